"""Selection as the patent's text reads, node by node, with nothing clever. Shares no code with the real one.

Also what the potentials cost, as their formulas read: from a policy they take what it knows, and nothing else.

The tests hold the real one against it, and `bench/selection.py` compares its speed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import permutations
from math import ceil, exp, floor, inf
from typing import Any

from jupyter_gpufit.models import Gpu, Node, Request
from jupyter_gpufit.naming import short_model


def usable(gpus: Sequence[Gpu], request: Request) -> list[Gpu]:
    """The GPUs of a node that the request may use now."""
    return [
        gpu
        for gpu in gpus
        if (gpu.idle or (request.shared and gpu.shareable))
        and gpu.allocatable
        and gpu.memory_free is not None
        and (request.gpu_model is None or is_model(gpu.model.lower(), request.gpu_model.lower()))
    ]


def is_model(model: str, asked: str) -> bool:
    """A glob matches the whole name; what has no wildcard is a part of it."""
    names = (model, short_model(model))
    return any(fnmatchcase(name, asked) if set(asked) & set("*?[") else asked in name for name in names)


def considered(node: Node, request: Request) -> bool:
    """Whether the request may use the node at all."""
    return (
        node.reason is None
        and (request.node is None or fnmatchcase(node.name, request.node))
        and all(node.labels.get(key) == value for key, value in request.labels.items())
        and (not request.require_model or has_model(node, request))
        and (not request.write_models or (node.models_write and (node.models is not None or node.model_store)))
        and (request.cpus is None or has_left(request.cpus, node.cpus_free, node.cpus, node.cpus_limit))
        and (request.ram is None or has_left(request.ram, node.ram_free, node.ram, node.ram_limit))
    )


def has_left(asked: float, free: float | None, total: float | None, limit: float | None) -> bool:
    """Whether that much of the machine is known to be free, and may be had by one."""
    return free is not None and all(asked <= most for most in (free, total, limit) if most is not None)


def has_model(node: Node, request: Request) -> bool:
    """Whether the node is known to have the model that the request names."""
    return request.model in [model.name for model in node.models or ()]


def stage_three(node: Node, request: Request) -> tuple[int, int, int, str]:
    """What the nodes that are left are ordered by."""
    gpus = usable(node.gpus, request)
    return len(gpus), sum(free(gpus)), 0 if has_model(node, request) else 1, node.name


def free(gpus: Sequence[Gpu]) -> list[int]:
    return [gpu.memory_free or 0 for gpu in gpus]


def cards(gpus: Sequence[Gpu]) -> int:
    return len({gpu.card for gpu in gpus})


def every_choice(gpus: Sequence[Gpu], request: Request) -> Iterator[tuple[Gpu, ...]]:
    """All ways of giving each size a GPU that has it, at most one of a card unless the request says otherwise."""
    for choice in permutations(gpus, request.gpus):
        if all(have >= size for have, size in zip(free(choice), request.sizes, strict=True)) and (
            request.share_card or cards(choice) == request.gpus
        ):
            yield choice


def serves(gpus: Sequence[Gpu], request: Request) -> bool:
    """Whether there is such a way: the largest size to the freest card, the next to the next, and so on."""
    best: dict[str, int] = {}
    for gpu, have in zip(gpus, free(gpus), strict=True):
        key = gpu.uuid if request.share_card else gpu.card
        best[key] = max(best.get(key, 0), have)
    offered = sorted(best.values(), reverse=True)
    sizes = sorted(request.sizes, reverse=True)
    return len(offered) >= len(sizes) and all(have >= size for have, size in zip(offered, sizes, strict=False))


def claim(nodes: Sequence[Node], request: Request, policy: object = None) -> str | None:
    """Policy `claim`: every idle GPU of a node takes part."""
    first = []
    for node in nodes:
        gpus = usable(node.gpus, request)
        if considered(node, request) and len(gpus) >= request.gpus and sum(free(gpus)) >= sum(request.sizes):
            first.append((node, gpus))
    second = []
    for node, gpus in first:
        on_one_card = len(gpus) > 1 and cards(gpus) == 1
        if not on_one_card and (request.share_card or cards(gpus) >= request.gpus):
            second.append((node, gpus))
    third = sorted(second, key=lambda pair: stage_three(pair[0], request))
    for node, gpus in third:
        if all(have >= min(request.sizes) for have in free(gpus)) and serves(gpus, request):
            return node.name
    return None


def best_fit(nodes: Sequence[Node], request: Request, policy: object = None) -> str | None:
    """Policy `best-fit`: some N of a node's idle GPUs take part."""
    first = []
    for node in nodes:
        gpus = usable(node.gpus, request)
        enough = sum(sorted(free(gpus), reverse=True)[: request.gpus]) >= sum(request.sizes)
        if considered(node, request) and len(gpus) >= request.gpus and enough:
            first.append((node, gpus))
    second = [(node, gpus) for node, gpus in first if request.share_card or cards(gpus) >= request.gpus]
    third = sorted(second, key=lambda pair: stage_three(pair[0], request))
    for node, gpus in third:
        if serves(gpus, request):
            return node.name
    return None


# --- the potentials

Room = list[tuple[Gpu, int]]
"""The GPUs of a node, with what is free of each, in thousandths."""


def room(node: Node) -> Room:
    return [(gpu, thousandths(gpu)) for gpu in node.gpus] if node.reason is None else []


def thousandths(gpu: Gpu) -> int:
    if not (gpu.idle or gpu.shareable) or not gpu.allocatable or gpu.memory_free is None or not gpu.memory_total:
        return 0
    part = min(1000, gpu.memory_free * 1000 // gpu.memory_total)
    return 1000 if gpu.idle and part >= 950 else part


def thousandths_known(gpu: Gpu) -> bool:
    return gpu.allocatable and gpu.memory_free is not None and bool(gpu.memory_total)


def need(size: int, gpu: Gpu) -> int:
    """More than 1000 if it does not fit."""
    return min(1001, ceil(size * 1000 / gpu.memory_total)) if gpu.memory_total else 1001


def taken(gpus: Room, request: Request) -> Room:
    """The GPUs once the request has those that fit it most tightly."""
    after, left = list(gpus), set(range(len(gpus)))
    for size in sorted(request.sizes, reverse=True):
        may = [
            at
            for at in left
            if (after[at][1] > 0 if request.shared else after[at][0].idle)
            and thousandths_known(after[at][0])
            and (request.gpu_model is None or is_model(after[at][0].model.lower(), request.gpu_model.lower()))
        ]
        serving = [at for at in may if after[at][1] >= min(1000, need(size, after[at][0]))]
        if not may:
            continue
        freest = max(may, key=lambda at: (after[at][1], -at))  # in thousandths it may not quite fit
        at = min(serving, key=lambda at: (after[at][1], at), default=freest)
        left.remove(at)
        gpu, free = after[at]
        after[at] = gpu, max(0, free - min(1000, need(size, gpu))) if request.shared else 0
    return after


def prices(nodes: Sequence[Node], policy: Any) -> list[float]:
    """What breaking one of each block costs, by policy `balance`."""
    if policy.name != "balance":
        return []
    free = sum(free for node in nodes for _, free in room(node)) / 1000
    found = []
    for block in policy.demand.blocks:
        there = sum(blocks(inf if node.cpus_free is None else node.cpus_free, room(node), block) for node in nodes)
        scarcity = policy.setting.scarce * block.part * free / max(block.gpus * there, 1e-9)
        found.append(policy.setting.block * block.gpus * min(1.0, scarcity) ** 3)
    return found


def cost(node: Node, request: Request, policy: Any, of_blocks: Sequence[float]) -> float:
    """What placing the request on that node costs by policy `fragmentation` or `balance`. `of_blocks`: `prices`."""
    cores, gpus = inf if node.cpus_free is None else node.cpus_free, room(node)
    after = max(0.0, cores - (request.cpus or 0.0)), taken(gpus, request)
    if policy.name == "fragmentation":
        rise = round(lost(*after, policy) - lost(cores, gpus, policy), 9)
        return -floor(100 / (1 + exp(rise)))
    rise = height(*after, policy) - height(cores, gpus, policy)
    least = policy.setting.least
    total = round(rise / least) * least if least else rise
    for block, price in zip(policy.demand.blocks, of_blocks, strict=True):
        total += price * (blocks(cores, gpus, block) - blocks(*after, block))
    return total


def lost(cores: float, gpus: Room, policy: Any) -> float:
    """GPUs that are free and of no use to what people ask for, on the average over it."""
    total = 0.0  # of use
    for shape, part in policy.demand.typical:
        asks = [asked_of(gpu, shape) for gpu, _ in gpus]
        serve = [free for (_, free), ask in zip(gpus, asks, strict=True) if free >= ask]
        useful = sum(serve) if len(serve) >= shape.gpus and cores >= shape.cores else 0
        total += part * useful / 1000
    return sum(free for _, free in gpus) / 1000 - (1 - policy.without) * total


def asked_of(gpu: Gpu, shape: Any) -> int:
    if shape.gpu_model is not None and not is_model(gpu.model.lower(), shape.gpu_model.lower()):
        return 1001
    asked = max(1, need(shape.size, gpu))
    return max(1000, asked) if shape.whole else asked


def height(cores: float, gpus: Room, policy: Any) -> float:
    demand, by = policy.demand, policy.setting
    sought = {(kind.model, kind.total): price for kind, price in demand.prices.items()}
    use = total = 0.0
    for gpu, free in gpus:
        value = float(demand.value(gpu.memory_total)[free]) if free else 0.0
        price = sought.get((gpu.model, gpu.memory_total), 1.0)
        use += value
        total += by.gather * (free / 1000) ** 0.6 - by.worth * value - by.sought * price * free / 1000
    total += by.gather * use**0.95
    if demand.cores is not None and cores < inf:
        total += use * exp(-((cores / (demand.cores / by.cores * use)) ** 3)) if use else 0.0
        total += by.idle_core * max(0.0, cores - by.cores * demand.cores * use)
    return total


def blocks(cores: float, gpus: Room, block: Any) -> int:
    whole = sum(
        free == 1000 and (block.gpu_model is None or is_model(gpu.model.lower(), block.gpu_model.lower()))
        for gpu, free in gpus
    )
    by_cores = floor(cores / block.cores) if block.cores and cores < inf else whole
    return min(whole // block.gpus, by_cores)


def potential(nodes: Sequence[Node], request: Request, policy: Any) -> str | None:
    """A policy by which placing goes where it costs least."""
    able = [node for node in nodes if considered(node, request) and serves(usable(node.gpus, request), request)]
    of_blocks = prices(nodes, policy)
    costs = {node.name: round(cost(node, request, policy, of_blocks), 9) for node in able}
    first = sorted(able, key=lambda node: (costs[node.name], not has_model(node, request), node.name))
    return first[0].name if first else None


ORACLES: dict[str, Callable[..., str | None]] = {
    "claim": claim,
    "best-fit": best_fit,
    "balance": potential,
    "fragmentation": potential,
}

"""Selection as the patent's text reads, node by node, with nothing clever. Shares no code with the real one.

The tests hold the real one against it, and `bench/select.py` compares its speed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import permutations

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
    )


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


def claim(nodes: Sequence[Node], request: Request) -> str | None:
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


def best_fit(nodes: Sequence[Node], request: Request) -> str | None:
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


ORACLES = {"claim": claim, "best-fit": best_fit}

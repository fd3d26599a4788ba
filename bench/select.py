"""How long a decision takes, in milliseconds, on simulated clusters: one JSON line per figure.

    python bench/select.py [--nodes 1213 20000] [--rounds 200]

Each line: cluster size, policy, the kind of request, median, 95th percentile and least time of a decision by
`Index.select`, the time of the literal implementation that the tests use as their oracle, and the ratio of the two.
`changed_ms` is a decision right after a node's report changed, as it is in life, without the time of `Index.update`
itself (which has a figure of its own).
"""

# ruff: noqa: E402

from __future__ import annotations

import sys

# This file's name (the issue's) is also a standard module's, which asyncio and others import: keep them apart.
sys.path[:] = [path for path in sys.path if not path.rstrip("/").endswith("bench")]

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers import oracle

from jupyter_gpufit.models import Gpu, Node, Request, StoredModel
from jupyter_gpufit.scheduling.fit import Index

GIB = 2**30
STORES = tuple(tuple(StoredModel(name=name) for name in names) for names in ((), ("bert",), ("bert", "llama-7b")))
MODELS = (("NVIDIA A100-SXM4-40GB", 40), ("NVIDIA H100 80GB HBM3", 80), ("Tesla T4", 15), ("NVIDIA A10", 22))


def cluster(count: int, seed: int, sharing_cards: bool = False) -> list[Node]:
    """`count` nodes of 8 GPUs, some held, some partly used by others; with `sharing_cards` a tenth is cut by MIG."""
    chance = random.Random(seed)
    nodes = []
    for number in range(count):
        name = f"node{number:05}"
        model, size = chance.choice(MODELS)
        mig = sharing_cards and chance.random() < 0.1
        gpus = tuple(
            Gpu(
                uuid=f"GPU-{number:05}-{index}",
                index=index,
                model=model,
                memory_total=size * GIB,
                memory_free=chance.randint(0, size) * GIB if chance.random() < 0.3 else size * GIB,
                card=f"GPU-{number:05}-card{index // 4}" if mig else "",
                idle=(idle := chance.random() < 0.6),
                shareable=not idle and chance.random() < 0.2,
            )
            for index in range(8)
        )
        labels = {"room": f"b{chance.randrange(12)}", "rack": f"r{number // 40}"}
        nodes.append(Node(name=name, gpus=gpus, labels=labels, age=1.0, models=STORES[number % len(STORES)]))
    return nodes


REQUESTS: dict[str, Request] = {
    "uniform": Request(gpus=2, memory="16GiB"),
    "mixed": Request(gpus=4, memory=("40GiB", "20GiB", "10GiB", "5GiB")),
    "eight-sizes": Request(gpus=8, memory=tuple(f"{size}GiB" for size in range(1, 9))),
    "shared": Request(gpus=2, memory="8GiB", shared=True),
    "gpu-model": Request(gpus=2, memory="16GiB", gpu_model="*A100*"),
    "model": Request(gpus=2, memory="16GiB", model="llama-7b"),
    "require-model": Request(gpus=2, memory="16GiB", model="llama-7b", require_model=True),
    "labels": Request(gpus=2, memory="16GiB", labels={"room": "b7"}),
    "node-glob": Request(gpus=2, memory="16GiB", node="node*7"),
    "all-filters": Request(gpus=2, memory="8GiB", shared=True, gpu_model="*h100*", labels={"room": "b7"}, node="*3"),
    "no-fit": Request(gpus=8, memory="81GiB"),
}


def timed(call: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """Milliseconds of each of `rounds` calls; `before` runs untimed before each."""
    times = []
    for _ in range(rounds):
        before()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def figures(count: int, rounds: int) -> Iterator[dict[str, object]]:
    for sharing_cards in (False, True):
        nodes = cluster(count, seed=count, sharing_cards=sharing_cards)
        start = time.perf_counter()
        index = Index(nodes)
        common = {"nodes": count, "gpus": sum(len(node.gpus) for node in nodes), "shared_cards": sharing_cards}
        yield common | {"figure": "index-build", "ms": round((time.perf_counter() - start) * 1e3, 1)}
        again = iter(nodes * (1 + rounds // count))
        updates = timed(lambda: index.update(next(again)), rounds)  # noqa: B023  (called at once)
        yield common | {"figure": "index-update", "ms": round(median(updates), 4)}
        for policy in ("best-fit", "claim"):
            for kind, request in REQUESTS.items():
                index.select(request, policy)  # the order of names and the rows of a node glob are worked out once
                times = timed(lambda: index.select(request, policy), rounds)  # noqa: B023
                changed = timed(lambda: index.select(request, policy), rounds, lambda: index.update(nodes[0]))  # noqa: B023
                literal = timed(lambda: oracle.ORACLES[policy](nodes, request), 3)  # noqa: B023
                node = index.select(request, policy).node
                assert node == oracle.ORACLES[policy](nodes, request), "decided otherwise than the literal reading"
                yield common | {
                    "figure": "select",
                    "policy": policy,
                    "request": kind,
                    "found": node is not None,
                    **spread(times),
                    "changed_ms": round(median(changed), 4),
                    "literal_ms": round(min(literal), 2),
                    "ratio": round(min(literal) / median(times), 1),
                }


def spread(times: list[float]) -> dict[str, float]:
    """What is told of the times of one decision, in milliseconds."""
    return {
        "ms": round(median(times), 4),
        "p95_ms": round(sorted(times)[int(len(times) * 0.95)], 4),
        "least_ms": round(min(times), 4),
    }


def main(figures: Callable[[int, int], Iterator[dict[str, object]]] = figures, about: str | None = __doc__) -> None:
    """Also that of `potentials.py`, with its own figures of so many nodes in so many rounds."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1213, 20000])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    gc.freeze()
    for count in options.nodes:
        for figure in figures(count, options.rounds):
            print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()

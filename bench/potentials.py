"""How long a decision by a potential takes, in milliseconds, beside `best-fit` on the same nodes: JSON lines.

    python bench/potentials.py [--nodes 1213 20000] [--rounds 200]

Between two decisions one node changes, as it does when something is placed; requests are of several shapes in turn.
"""

from __future__ import annotations

import random
import runpy
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from statistics import median

from jupyter_gpufit.models import Request
from jupyter_gpufit.scheduling.fit import Index, select
from jupyter_gpufit.scheduling.mix import Mix
from jupyter_gpufit.scheduling.policies import Policy, find
from jupyter_gpufit.scheduling.potentials import Balance, Fragmentation

_select = runpy.run_path(str(Path(__file__).with_name("select.py")))
cluster, spread, timed = _select["cluster"], _select["spread"], _select["timed"]


def requests(count: int, seed: int) -> list[Request]:
    """Parts of GPUs, whole ones and several, of all sizes that people ask for."""
    chance = random.Random(seed)
    sizes = [f"{size}GiB" for size in (2, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)]
    few = [Request(memory=size, shared=True) for size in sizes] + [Request(memory=size) for size in sizes]
    few += [Request(gpus=gpus, memory=size) for gpus in (2, 4, 8) for size in sizes[::4]]
    return chance.choices(few, k=count)


def figures(count: int, rounds: int) -> Iterator[dict[str, object]]:
    nodes = cluster(count, seed=count)
    index, asked, mix = Index(nodes), requests(rounds, seed=1), Mix()
    for request in asked * 10:
        mix.count(request)
    policies: list[Policy] = [find("best-fit"), Fragmentation(), Balance()]
    for policy in policies:
        common = {"nodes": count, "policy": policy.name}
        if not isinstance(policy, Fragmentation | Balance):
            known: Policy = policy
        else:
            (learning,) = timed(lambda: policy.learned(mix, nodes), 1)  # noqa: B023  (called at once)
            yield common | {"figure": "learning", "ms": round(learning, 1)}
            known = policy.learned(mix, nodes)
            (first,) = timed(lambda: index.select(asked[0], known), 1)  # noqa: B023
            yield common | {"figure": "first", "ms": round(first, 2)}
        turn, changing = cycle(asked), cycle(random.Random(2).choices(nodes, k=rounds))
        for request in asked:
            index.select(request, known)
        times = timed(lambda: index.select(next(turn), known), rounds, lambda: index.update(next(changing)))  # noqa: B023
        literal = timed(lambda: select(nodes, asked[0], known), 1)  # noqa: B023
        yield common | {
            "figure": "select",
            **spread(times),
            "fresh_ms": round(min(literal), 1),
            "ratio": round(min(literal) / median(times), 1),
        }


if __name__ == "__main__":
    _select["main"](figures, __doc__)

"""How long a decision takes, in milliseconds of one core, on simulated clusters of 8 GPUs a node. JSON lines.

    python bench/selection.py [--nodes 1213 20000] [--rounds 600] [--quick]

`selection.POLICY.NODES`: a decision by `Index.select`, requests of many shapes in turn, each after another node changed
(as it does when something is placed). `first_ms`: the first decision after a potential learned anew, which is prepared
off the way of decisions; `unprepared_ms`: without that. `ratio`: how many times as long the literal implementation
takes that the tests use as their oracle. `selection.POLICY.growth`: medians with 100,000 nodes to those with 1,000.
`selection.kinds.POLICY.NODES`: by the kind of request, all by one index.

Deciding waits for nothing, so what counts is the processor's time: it is the same whatever else runs on the machine.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from statistics import median

from figures import say
from helpers import oracle

from jupyter_gpufit.models import Gpu, Node, Request, StoredModel
from jupyter_gpufit.scheduling.fit import Index
from jupyter_gpufit.scheduling.mix import Mix
from jupyter_gpufit.scheduling.policies import Policy, find
from jupyter_gpufit.scheduling.potentials import Potential

GIB = 2**30
STORES = tuple(tuple(StoredModel(name=name) for name in names) for names in ((), ("bert",), ("bert", "llama-7b")))
MODELS = (("NVIDIA A100-SXM4-40GB", 40), ("NVIDIA H100 80GB HBM3", 80), ("Tesla T4", 15), ("NVIDIA A10", 22))
MOST_DIFFERENT = 5_000  # nodes; more are like these, with other names
GOALS = {
    ("best-fit", 1_213): 0.1,
    ("best-fit", 20_000): 1.0,
    ("fragmentation", 1_213): 0.4,
    ("fragmentation", 20_000): 3.0,
    ("balance", 1_213): 0.4,
    ("balance", 20_000): 3.0,
}
SMALL, LARGE = 1_000, 100_000  # nodes

KINDS = {
    "uniform": Request(gpus=2, memory="16GiB"),
    "mixed": Request(gpus=4, memory=("40GiB", "20GiB", "10GiB", "5GiB")),
    "eight-sizes": Request(gpus=8, memory=tuple(f"{size}GiB" for size in range(1, 9))),
    "shared": Request(gpus=2, memory="8GiB", shared=True),
    "gpu-model": Request(gpus=2, memory="16GiB", gpu_model="*A100*"),
    "model": Request(gpus=2, memory="16GiB", model="llama-7b"),
    "require-model": Request(gpus=2, memory="16GiB", model="llama-7b", require_model=True),
    "labels": Request(gpus=2, memory="16GiB", labels={"room": "b7"}),
    "node-glob": Request(gpus=2, memory="16GiB", node="node*7"),
    "cpus-ram": Request(gpus=2, memory="16GiB", cpus=16, ram="64GiB"),
    "all-filters": Request(gpus=2, memory="8GiB", shared=True, gpu_model="*h100*", labels={"room": "b7"}, node="*3"),
    "no-fit": Request(gpus=8, memory="81GiB"),
}


def cluster(count: int, seed: int, sharing_cards: bool = False) -> list[Node]:
    """`count` nodes, some GPUs of which are held, some partly used by others; with `sharing_cards` a tenth is cut by
    MIG."""
    chance = random.Random(seed)
    machines = []
    for number in range(min(count, MOST_DIFFERENT)):
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
        cores = {"cpus": 96.0, "cpus_free": float(chance.randint(0, 96))}
        machines.append({"gpus": gpus, "ram": 512 * GIB, "ram_free": chance.randint(0, 512) * GIB} | cores)
    return [
        Node(
            name=f"node{number:06}",
            labels={"room": f"b{chance.randrange(12)}", "rack": f"r{number // 40}"},
            age=1.0,
            models=STORES[number % len(STORES)],
            **machines[number % len(machines)],  # type: ignore[arg-type]
        )
        for number in range(count)
    ]


def requests(count: int, seed: int) -> list[Request]:
    """Parts of GPUs, whole ones and several, of all sizes that people ask for; every other one says how many cores."""
    chance = random.Random(seed)
    sizes = [f"{size}GiB" for size in (2, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)]
    few = [Request(memory=size, shared=True, cpus=4) for size in sizes] + [Request(memory=size) for size in sizes]
    few += [Request(gpus=gpus, memory=size, cpus=8 * gpus) for gpus in (2, 4, 8) for size in sizes[::4]]
    return chance.choices(few, k=count)


def timed(call: Callable[[], object], rounds: int = 1, before: Callable[[], object] = lambda: None) -> list[float]:
    """Milliseconds of each of `rounds` calls; `before` runs untimed before each."""
    times = []
    for _ in range(rounds):
        before()
        start = time.thread_time()
        call()
        times.append((time.thread_time() - start) * 1e3)
    return times


class Bench:
    """A cluster of so many nodes, and what is measured on it."""

    def __init__(self, count: int, rounds: int) -> None:
        self.count, self.rounds = count, rounds
        self.nodes = cluster(count, seed=count)
        self.asked, self.mix = requests(rounds, seed=1), Mix()
        for request in self.asked * 3:
            self.mix.count(request)
        made: list[Index] = []
        (self.building,) = timed(lambda: made.append(Index(self.nodes)))
        (self.index,) = made
        # What each node changes to and back: what another one has.
        places = random.Random(2).sample(range(count), min(count, rounds))
        changed = [self._like(self.nodes[at], self.nodes[at - 1]) for at in places]
        self.changing = cycle(changed + [self.nodes[at] for at in places])

    def _like(self, node: Node, other: Node) -> Node:
        return Node(name=node.name, labels=node.labels, age=1.0, models=node.models, gpus=other.gpus,
                    cpus=96.0, cpus_free=other.cpus_free, ram=other.ram, ram_free=other.ram_free)  # fmt: skip

    def change(self) -> None:
        self.index.update(next(self.changing))

    def index_figures(self) -> None:
        updates = timed(self.change, self.rounds)
        per_node = 1e3 * self.building / self.count
        say(f"selection.index.{self.count}", build_ms=_round(self.building), build_us_per_node=_round(per_node),
            update_us=_round(1e3 * median(updates)))  # fmt: skip

    def decisions(self, name: str, literal: bool) -> float:
        """Tell how long they take by that policy; gives the median."""
        policy, more = find(name), {}
        if isinstance(policy, Potential):
            policy = self._known(policy)
            policy, more = self._learned(policy)
        for request in self.asked:
            self.index.select(request, policy)
        turn = cycle(self.asked)
        times = timed(lambda: self.index.select(next(turn), policy), self.rounds, self.change)
        if literal:
            (by_hand,) = timed(lambda: oracle.ORACLES[name](self.index.nodes, self.asked[0], policy))
            more |= {"literal_ms": _round(by_hand), "ratio": _round(by_hand / median(times))}
        goal = GOALS.get((name, self.count))
        say(f"selection.{name}.{self.count}", goal=None if goal is None else {"ms": goal}, **spread(times), **more)
        return median(times)

    def _known(self, policy: Potential) -> Potential:
        """One that has been at work for a while."""
        known = policy.learned(self.mix, self.nodes)
        for request in self.asked:
            self.index.select(request, known)
        return known

    def _learned(self, policy: Potential) -> tuple[Potential, dict[str, float]]:
        """The policy for what is known now, and what that costs."""
        made: list[Potential] = []
        (learning,) = timed(lambda: made.append(policy.learned(self.mix, self.nodes)))
        (unprepared,) = timed(lambda: self.index.select(self.asked[0], made[0]))
        for request in self.asked:
            self.index.select(request, made[0])
        policy = policy.learned(self.mix, self.nodes)
        ready = self.index.prepare()(policy)
        self.change()
        ready()
        (first,) = timed(lambda: self.index.select(self.asked[0], policy))
        told = {"first_ms": first, "unprepared_ms": unprepared, "learning_ms": learning}
        return policy, {key: _round(value) for key, value in told.items()}


def kinds(count: int, rounds: int) -> None:
    """By the kind of request, on a cluster where some GPUs share cards."""
    nodes = cluster(count, seed=count, sharing_cards=True)
    index = Index(nodes)
    for name in ("best-fit", "claim"):
        policy, medians = find(name), {}
        for kind, request in KINDS.items():
            decision = index.select(request, policy)  # the order of names and the rows of a node glob come once
            assert decision.node == oracle.ORACLES[name](nodes, request), "decided otherwise than the literal reading"
            medians[kind] = _round(median(timed(_selecting(index, request, policy), rounds)))
        say(f"selection.kinds.{name}.{count}", **{f"{kind}_ms": value for kind, value in medians.items()})


def _selecting(index: Index, request: Request, policy: Policy) -> Callable[[], object]:
    return lambda: index.select(request, policy)


def spread(times: Sequence[float]) -> dict[str, float]:
    """What is told of the times of one decision, in milliseconds."""
    in_order = sorted(times)
    return {"ms": _round(median(times)), "p95_ms": _round(in_order[int(len(times) * 0.95)])}


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1213, 20000])
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--quick", action="store_true", help="half the rounds, and not by kinds of request")
    options = parser.parse_args()
    rounds = options.rounds // 2 if options.quick else options.rounds
    policies = ("best-fit", "fragmentation", "balance")
    for count in options.nodes:
        bench = Bench(count, rounds)
        gc.freeze()
        bench.index_figures()
        for name in policies:
            bench.decisions(name, literal=True)
        if not options.quick:
            kinds(count, rounds // 10)
    grown: dict[str, list[float]] = {name: [] for name in policies}
    for count in (SMALL, LARGE):
        bench = Bench(count, rounds // 3)
        gc.freeze()
        bench.index_figures()
        for name in policies:
            grown[name].append(bench.decisions(name, literal=False))
    for name, (small, large) in grown.items():
        say(f"selection.{name}.growth", nodes=LARGE // SMALL, ratio=_round(large / small))


if __name__ == "__main__":
    main()

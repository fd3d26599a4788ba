"""How full a cluster gets, by policy: the inflation experiment of the FGD paper (ATC'23, "Beware of Fragmentation") on
the public Alibaba GPU trace, and the same with departures. One JSON line per run, a table at the end.

    python bench/trace.py [--policies random bestfit fgd best-fit fragmentation balance] [--seeds 10]
                          [--workloads default gpushare100 multigpu50 gpuspec33] [--load 1.0 1.05] [--data DIRECTORY]
                          [--append FILE] [--figures]

Many runs take long: with `--append` each is kept in FILE, and none that is there is done again; the table is of all
that are. With `--figures` the means are told as JSON lines, as all benchmarks do, in place of runs and table.

`random`, `bestfit` and `fgd` are the paper's (`trace_references.py`): they prove the harness, for what they come to is
published. The others are ours, and decide by our own selection code (`trace_ours.py`).

The experiment, as the paper's: all tasks arrive in random order, none leaves, and more of them, drawn from the same
list, until 130 % of the GPUs there are have been asked for. One that fits nowhere is gone. The figure is how much of
the GPUs is allocated when 100 % and 130 % of them have been asked for.

    trace_data.py   the trace: Machines, Workload (its tasks as shapes), arrivals
    trace_field.py  Field: what is free on each node now; Lazy: costs on all nodes, anew only where something changed
    trace.py        inflate, churn; the table
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Protocol

import numpy as np
from figures import say
from trace_data import DATA, WORKLOADS, Machines, Workload, arrivals
from trace_field import Field
from trace_ours import OURS
from trace_references import REFERENCES

PUBLISHED = {
    "default": {"random": (86.3, 87.5), "bestfit": (92.9, 93.1), "fgd": (95.2, 95.4)},
    "gpushare100": {"random": (78.9, 79.4), "bestfit": (84.6, 85.0), "fgd": (86.6, 86.9)},
    "multigpu50": {"random": (81.3, 90.3), "bestfit": (95.6, 95.7), "fgd": (97.1, 97.2)},
    "gpuspec33": {"random": (83.9, 86.5), "bestfit": (80.4, 93.1), "fgd": (87.8, 94.6)},
}
"""Allocated, in percent, when 100 % and 130 % have arrived: means of the ten seeds in the paper's repository."""

LEAST = {"default": 96.0, "gpushare100": 88.0, "multigpu50": 97.4, "gpuspec33": 94.5}
"""What `balance` is to come to at 100 %."""
OFF = 0.4
"""Points by which what is reproduced may be off what is published."""
BEHIND = 0.3
"""Points by which `balance` may be behind `fgd` where tasks leave."""

FIRST_SEED = 42


class Chooser(Protocol):
    """A policy at work on a field."""

    def place(self, shape: int) -> tuple[int, tuple[int, ...]] | None:
        """The node's row and the slots of its GPUs that a task of that shape gets; `None`: it fits nowhere."""

    def changed(self, row: int) -> None:
        """Something was taken or given back on that row of the field."""


POLICIES: dict[str, Callable[[Field, Workload, np.random.Generator], Chooser]] = {**REFERENCES, **OURS}


def inflate(policy: str, workload: Workload, machines: Machines, seed: int) -> dict[str, float]:
    """Allocated, in percent, when 100 % and 130 % of the GPUs have been asked for."""
    chance = np.random.default_rng(seed)
    tasks = arrivals(workload, machines, 1.3, chance)
    field = Field(machines.in_order(chance), workload)
    chooser = POLICIES[policy](field, workload, chance)
    capacity = 1000.0 * machines.gpus
    arrived = allocated = 0.0
    figures = {}
    for task in tasks.tolist():
        demand = workload.demand[task]
        if "at100" not in figures and arrived + demand > capacity:
            figures["at100"] = 100 * allocated / capacity
        arrived += demand
        if (found := chooser.place(task)) is not None:
            row, slots = found
            field.take(row, task, slots)
            chooser.changed(row)
            allocated += demand
    return figures | {"at130": 100 * allocated / capacity}


def churn(
    policy: str, workload: Workload, machines: Machines, seed: int, load: float, lifetimes: float = 5.0
) -> dict[str, float]:
    """Tasks come at random, stay for a random (exponential) time, and are lost if nothing fits when they come.

    After `lifetimes` mean lifetimes of warm-up, over half as many more: allocated in percent of all GPUs, and lost GPU
    time in percent of what was asked. `load`: GPU time asked, per GPU time there is.
    """
    chance = np.random.default_rng(seed)
    field = Field(machines.in_order(chance), workload)
    chooser = POLICIES[policy](field, workload, chance)
    capacity = 1000.0 * machines.gpus
    kinds = workload.tasks
    rate = load * capacity / workload.demand[kinds].mean()  # tasks per mean lifetime
    now = allocated = area = asked = lost = since = 0.0
    warm, end = lifetimes, lifetimes * 1.5
    leaving: list[tuple[float, int, int, tuple[int, ...]]] = []
    while now < end:
        now += chance.exponential(1 / rate)
        while leaving and leaving[0][0] <= now:
            at, task, row, slots = heapq.heappop(leaving)
            area += allocated * (max(at, warm) - max(since, warm))
            since = at
            field.give(row, task, slots)
            chooser.changed(row)
            allocated -= workload.demand[task]
        area += allocated * (max(now, warm) - max(since, warm))
        since = now
        task = int(kinds[chance.integers(len(kinds))])
        stays = chance.exponential(1.0)
        demand = workload.demand[task]
        if now > warm:
            asked += demand * stays
        if (found := chooser.place(task)) is None:
            lost += demand * stays * (now > warm)
            continue
        row, slots = found
        field.take(row, task, slots)
        chooser.changed(row)
        allocated += demand
        heapq.heappush(leaving, (now + stays, task, row, slots))
    return {"allocated": 100 * area / (now - warm) / capacity, "lost": 100 * lost / asked}


def runs(options: argparse.Namespace, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What each run came to that is asked for and not among the `known` ones."""
    done = [_which(run) for run in known]
    machines = Machines.read(options.data, options.part)
    for name in options.workloads:
        workload = Workload.read(options.data, name)
        for policy in options.policies:
            for seed in range(options.first, options.first + options.seeds):
                common = {"workload": name, "policy": policy, "seed": seed, "part": options.part}
                for load in options.load or [None]:
                    what = {"figure": "inflation"} if load is None else {"figure": "departures", "load": load}
                    if load is not None:
                        what["lifetimes"] = options.lifetimes
                    if _which(common | what) in done:
                        continue
                    start = time.process_time()
                    if load is None:
                        found = inflate(policy, workload, machines, seed)
                    else:
                        found = churn(policy, workload, machines, seed, load, options.lifetimes)
                    spent = {"cpu_s": round(time.process_time() - start, 1)}
                    yield common | what | {key: round(value, 3) for key, value in found.items()} | spent


def _which(run: dict[str, Any]) -> dict[str, Any]:
    """What tells it from other runs."""
    return {key: run.get(key) for key in ("figure", "workload", "policy", "seed", "load", "lifetimes", "part")}


def _grouped(results: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """The runs by what they differ in but for the seed."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for each in results:
        groups[each["figure"], each["workload"], each["policy"], each.get("load"), each["part"]].append(each)
    return groups


def tell(results: list[dict[str, Any]]) -> None:
    """The means as figures. `error`: the standard error of the first; `behind`: `fgd` less `balance`, seed by seed."""
    groups = _grouped(results)
    for (figure, workload, policy, load, part), runs in groups.items():
        keys = ("at100", "at130") if figure == "inflation" else ("allocated", "lost")
        means = {key: round(mean(run[key] for run in runs), 2) for key in keys}
        told: dict[str, Any] = {"seeds": len(runs), "error": _error([run[keys[0]] for run in runs])}
        goal = None
        if figure == "inflation":
            if (known := PUBLISHED.get(workload, {}).get(policy)) is not None:
                told |= {"published": "/".join(map(str, known))}
                off = (abs(mean(run[key] for run in runs) - at) for key, at in zip(keys, known, strict=True))
                told["off"] = round(max(off), 2)
                goal = {"off": OFF}
            elif policy == "balance" and workload in LEAST:
                told["short"] = round(max(0.0, LEAST[workload] - mean(run["at100"] for run in runs)), 2)
                goal = {"short": 0.0}
        elif policy == "balance":
            others = {run["seed"]: run for run in groups.get((figure, workload, "fgd", load, part), ())}
            behind = [others[run["seed"]]["allocated"] - run["allocated"] for run in runs if run["seed"] in others]
            if behind:
                told |= {"behind": round(mean(behind), 2), "behind_error": _error(behind)}
                goal = {"behind": BEHIND}
        at = "" if load is None else f".load{load}"
        name = {"inflation": "placement", "departures": "departures"}[figure]
        say(f"{name}.{policy}.{workload}{at}", goal=goal, **means, **told, **({} if part == 1 else {"part": part}))


def _error(values: list[float]) -> float | None:
    return round(stdev(values) / len(values) ** 0.5, 3) if len(values) > 1 else None


def table(results: list[dict[str, Any]]) -> str:
    """Means over the seeds, published values beside those that there are for it."""
    lines = []
    for (figure, workload, policy, load, _), runs in _grouped(results).items():
        keys = ("at100", "at130") if figure == "inflation" else ("allocated", "lost")
        values = [[run[key] for run in runs] for key in keys]
        means = " ".join(f"{key} {mean(value):6.2f}" for key, value in zip(keys, values, strict=True))
        spread = "" if (error := _error(values[0])) is None else f"±{error:.2f}"
        at = "" if load is None else f" at load {load}"
        line = f"{workload:12}{policy:14}{means} {spread:6} {len(runs):2} seeds{at}"
        if figure == "inflation" and (known := PUBLISHED.get(workload, {}).get(policy)):
            off = max(abs(mean(value) - there) for value, there in zip(values, known, strict=True))
            line += (
                f"   published {known[0]}/{known[1]}, off by {off:.2f}{'' if off <= OFF else f' (more than {OFF}!)'}"
            )
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first of the seeds")
    parser.add_argument("--load", type=float, nargs="+", help="with departures, at these loads")
    parser.add_argument("--lifetimes", type=float, default=5.0, help="of warm-up, with departures")
    parser.add_argument("--part", type=int, default=1, help="only each PARTth node of the cluster, for a quick look")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--append", type=Path, help="keep each run here, and do none that is")
    parser.add_argument("--figures", action="store_true", help="tell the means, as all benchmarks tell their figures")
    options = parser.parse_args()
    kept: Path | None = options.append
    lines = kept.read_text(encoding="utf-8").splitlines() if kept is not None and kept.exists() else []
    results = [json.loads(line) for line in lines]
    for run in runs(options, results):
        print(json.dumps(run), file=sys.stderr if options.figures else sys.stdout, flush=True)
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
        results.append(run)
    if options.figures:
        tell(results)
    else:
        print(table(results))


if __name__ == "__main__":
    main()

"""The Alibaba GPU trace of 2023: the machines, and lists of tasks. Read by `trace.py`."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "alibaba-gpu-2023"
WORKLOADS = ("default", "gpushare100", "multigpu50", "gpuspec33")
SLOTS = 8  # the most GPUs of a machine


@dataclass(frozen=True)
class Machines:
    """The nodes, in an order; ties between them go to the first."""

    names: list[str]
    cpu: NDArray[np.int64]
    """Thousandths of a core."""
    ram: NDArray[np.int64]
    """MiB."""
    count: NDArray[np.int64]
    """GPUs."""
    model: NDArray[np.int64]
    """Number of the GPUs' model in `models`."""
    models: list[str]

    @property
    def gpus(self) -> int:
        return int(self.count.sum())

    @classmethod
    def read(cls, data: Path, part: int = 1) -> Machines:
        with (data / "openb_node_list_gpu_node.csv").open() as file:
            rows = list(csv.DictReader(file))[::part]
        models = sorted({row["model"] for row in rows})
        numbers = {key: np.array([int(row[key]) for row in rows]) for key in ("cpu_milli", "memory_mib", "gpu")}
        model = np.array([models.index(row["model"]) for row in rows])
        names = [row["sn"] for row in rows]
        return cls(names, numbers["cpu_milli"], numbers["memory_mib"], numbers["gpu"], model, models)

    def in_order(self, chance: np.random.Generator) -> Machines:
        """The same in a random order."""
        at = chance.permutation(len(self.names))
        names = [self.names[row] for row in at]
        return Machines(names, self.cpu[at], self.ram[at], self.count[at], self.model[at], self.models)


class Shape(NamedTuple):
    """What a task asks: many ask the same."""

    cpu: int
    """Thousandths of a core."""
    ram: int
    """MiB."""
    gpus: int
    share: int
    """Thousandths of each GPU; less than 1000 only of a single one."""
    models: tuple[str, ...]
    """Of which the GPUs may be; empty: of any."""


@dataclass(frozen=True)
class Workload:
    name: str
    shapes: list[Shape]
    tasks: NDArray[np.int64]
    """The shapes of all tasks, in the order of the tasks' names."""

    @cached_property
    def demand(self) -> NDArray[np.float64]:
        """Thousandths of GPUs that each shape takes."""
        return np.array([float(shape.gpus * shape.share) for shape in self.shapes])

    @classmethod
    def read(cls, data: Path, name: str) -> Workload:
        with (data / f"openb_pod_list_{name}.csv").open() as file:
            rows = sorted(csv.DictReader(file), key=lambda row: row["name"])
        asked = [
            Shape(
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["num_gpu"]),
                int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
                tuple(sorted({model for model in (row.get("gpu_spec") or "").split("|") if model})),
            )
            for row in rows
        ]
        shapes = [shape for shape, _ in Counter(asked).most_common()]
        number = {shape: at for at, shape in enumerate(shapes)}
        return cls(name, shapes, np.array([number[shape] for shape in asked]))


def arrivals(workload: Workload, machines: Machines, ratio: float, chance: np.random.Generator) -> NDArray[np.int64]:
    """All tasks in random order, and as many more, drawn at random, as make up `ratio` times the GPUs. (Fewer, if
    they are more than that.)"""
    tasks = chance.permutation(workload.tasks)
    target = ratio * 1000 * machines.gpus
    total = workload.demand[tasks].sum()
    if total > target:
        # Removing at random until it is enough is to keep the tail of a random order.
        order = chance.permutation(len(tasks))
        left = total - np.cumsum(workload.demand[tasks[order]])
        gone = order[: int(np.argmax(left <= target)) + 1]
        return np.delete(tasks, gone)
    more = chance.choice(workload.tasks, size=2 * len(tasks) + 100_000)
    sums = total + np.cumsum(workload.demand[more])
    return np.concatenate([tasks, more[: int(np.argmax(sums > target))]])

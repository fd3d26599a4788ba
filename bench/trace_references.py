"""The FGD paper's own policies that `trace.py` proves itself with: Random, BestFit and FGD, as its text and the code
that was published with it define them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray
from trace_data import Shape, Workload
from trace_field import NEVER, Field, Lazy, Rows, tightest

MOST_CPU, MOST_GPU = 128_000.0, 8_000.0  # of any machine; by these BestFit weighs one against the other
TYPICAL = 0.95  # the part of all tasks whose shapes FGD aims for


class Random:
    """Any node where it fits, any GPU there."""

    def __init__(self, field: Field, workload: Workload, chance: np.random.Generator) -> None:
        self._field, self._chance = field, chance

    def place(self, shape: int) -> tuple[int, tuple[int, ...]] | None:
        rows = np.flatnonzero(self._field.fits(shape, slice(None)))
        if not len(rows):
            return None
        row = int(rows[self._chance.integers(len(rows))])
        asked = self._field.shapes[shape]
        serving = np.flatnonzero(self._field.gpu[row] >= asked.share)
        return row, tuple(self._chance.permutation(serving)[: asked.gpus].tolist())

    def changed(self, row: int) -> None:
        pass


class BestFit:
    """The node with the least left, processors and GPUs weighed alike, in whole percent of the largest machine."""

    def __init__(self, field: Field, workload: Workload, chance: np.random.Generator) -> None:
        self._field = field
        self._lazy = Lazy(len(field), len(workload.shapes), self._costs)

    def place(self, shape: int) -> tuple[int, tuple[int, ...]] | None:
        costs = self._lazy.of(shape)
        row = int(costs.argmin())
        return None if costs[row] == NEVER else (row, tightest(self._field, row, shape))

    def changed(self, row: int) -> None:
        self._lazy.changed(row)

    def _costs(self, shape: int, rows: Rows) -> NDArray[np.float64]:
        field, asked = self._field, self._field.shapes[shape]
        cpu = (field.cpu[rows] - asked.cpu) / MOST_CPU
        gpu = (field.gpu[rows].sum(axis=1) - asked.gpus * asked.share) / MOST_GPU
        score = np.floor((1.0 - 0.5 * cpu - 0.5 * gpu) * 100)
        return np.where(field.fits(shape, rows), -score, NEVER)


class Fgd:
    """Fragmentation gradient descent: where placing makes the least free GPU useless to the typical tasks.

    To a typical task all free GPU of a node is useless if it cannot run there, else what is on GPUs too small for it.
    (To one that asks no GPU, all is.) Host memory is not looked at.
    """

    def __init__(self, field: Field, workload: Workload, chance: np.random.Generator) -> None:
        self._field = field
        typical = _typical(workload)
        self._sizes = sorted({(shape.share, shape.gpus) for shape in typical if shape.gpus})
        self._share = np.array([share for share, _ in self._sizes])
        self._gpus = np.array([gpus for _, gpus in self._sizes])
        self._steps = np.array(sorted({shape.cpu for shape in typical}))
        # [model, number of processor steps that are free, size] → part of the tasks that are of that size and can run
        self._part = np.zeros((len(field.machines.models), len(self._steps) + 1, len(self._sizes)))
        for shape, part in typical.items():
            if shape.gpus:
                may = [not shape.models or model in shape.models for model in field.machines.models]
                step = int(np.searchsorted(self._steps, shape.cpu)) + 1
                self._part[may, step:, self._sizes.index((shape.share, shape.gpus))] += part
        nodes = len(field)
        self._count = np.zeros((nodes, len(self._sizes)), dtype=np.int64)  # GPUs that serve each size
        self._sum = np.zeros((nodes, len(self._sizes)))  # what is free on them
        self._lost = np.zeros(nodes)
        self._look(np.arange(nodes))
        self._lazy = Lazy(nodes, len(workload.shapes), lambda shape, rows: self._scores(shape, rows)[0])

    def place(self, shape: int) -> tuple[int, tuple[int, ...]] | None:
        costs = self._lazy.of(shape)
        row = int(costs.argmin())
        if costs[row] == NEVER:
            return None
        asked = self._field.shapes[shape]
        if asked.share in (0, 1000):
            return row, tuple(np.flatnonzero(self._field.gpu[row] >= 1000)[: asked.gpus].tolist())
        each = self._scores(shape, np.array([row]))[1]
        return row, (int(each[0].argmin()),)

    def changed(self, row: int) -> None:
        self._look(np.array([row]))
        self._lazy.changed(row)

    def _look(self, rows: Rows) -> None:
        gpu = self._field.gpu[rows]
        serves = gpu[:, :, None] >= self._share
        self._count[rows] = serves.sum(axis=1)
        self._sum[rows] = (gpu[:, :, None] * serves).sum(axis=1)
        useful = self._parts(rows, self._field.cpu[rows]) * (self._count[rows] >= self._gpus) * self._sum[rows]
        self._lost[rows] = gpu.sum(axis=1) - useful.sum(axis=1)

    def _parts(self, rows: Rows, cpu: NDArray[np.int64]) -> NDArray[np.float64]:
        step = np.searchsorted(self._steps, cpu, side="right")
        return np.asarray(self._part[self._field.model[rows], step])

    def _scores(self, shape: int, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The cost of each row, and of each GPU there (for one that asks a part of a GPU; else of the row again)."""
        field, asked = self._field, self._field.shapes[shape]
        gpu = field.gpu[rows]
        parts = self._parts(rows, field.cpu[rows] - asked.cpu)
        count, total = self._count[rows], self._sum[rows]
        free = gpu.sum(axis=1)
        if asked.share in (0, 1000):
            useful = parts * (count - asked.gpus >= self._gpus) * (total - 1000 * asked.gpus)
            if not asked.gpus:
                useful = parts * (count >= self._gpus) * total
            lost = (free - 1000 * asked.gpus - useful.sum(axis=1))[:, None]
            able = field.fits(shape, rows)[:, None]
        else:
            left = gpu - asked.share
            was, stays = gpu[:, :, None] >= self._share, left[:, :, None] >= self._share
            count = count[:, None] - was + stays
            total = total[:, None] - was * gpu[:, :, None] + stays * left[:, :, None]
            useful = np.where(count >= self._gpus, total, 0.0)
            lost = (free - asked.share)[:, None] - np.einsum("nkc,nc->nk", useful, parts)
            able = field.fits(shape, rows)[:, None] & (left >= 0)
        score = np.floor(100 / (1 + np.exp((lost - self._lost[rows][:, None]) / 1000)))
        each = np.where(able, -score, NEVER)
        return each.min(axis=1), each


def _typical(workload: Workload) -> dict[Shape, float]:
    """The most frequent shapes (but for host memory) up to `TYPICAL` of all tasks, with their part of these."""
    counts: Counter[Shape] = Counter()
    for task in workload.tasks.tolist():
        counts[workload.shapes[task]._replace(ram=0)] += 1
    most = sorted(counts, key=lambda shape: (counts[shape], shape.cpu, shape.share, shape.gpus), reverse=True)
    chosen: dict[Shape, float] = {}
    for shape in most:
        if sum(chosen.values()) >= TYPICAL * len(workload.tasks):
            break
        chosen[shape] = float(counts[shape])
    total = sum(chosen.values())
    return {shape: count / total for shape, count in chosen.items()}


REFERENCES = {"random": Random, "bestfit": BestFit, "fgd": Fgd}

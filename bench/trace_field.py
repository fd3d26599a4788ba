"""What is free on each node now, as arrays; and costs of placing that are worked out anew only where it changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from trace_data import SLOTS, Machines, Workload

__all__ = ["NEVER", "Field", "Lazy", "Rows", "tightest"]

Rows = NDArray[np.intp]
NEVER = np.inf  # the cost of placing where it does not fit


class Field:
    """The nodes of `machines`, in its order, and what is free on them."""

    def __init__(self, machines: Machines, workload: Workload) -> None:
        self.machines, self.shapes = machines, workload.shapes
        self.cpu, self.ram = machines.cpu.copy(), machines.ram.copy()
        self.gpu = np.where(np.arange(SLOTS) < machines.count[:, None], 1000, 0)
        """[node, slot] → thousandths free."""
        self.model = machines.model
        self._may = [
            np.array([not shape.models or model in shape.models for model in machines.models]) for shape in self.shapes
        ]

    def __len__(self) -> int:
        return len(self.cpu)

    def fits(self, shape: int, rows: Rows | slice) -> NDArray[np.bool_]:
        """Whether a task of that shape can run on each of the rows."""
        asked = self.shapes[shape]
        fits = (self.cpu[rows] >= asked.cpu) & (self.ram[rows] >= asked.ram)
        if asked.gpus:
            fits &= (self.gpu[rows] >= asked.share).sum(axis=1) >= asked.gpus
            if asked.models:
                fits &= self._may[shape][self.model[rows]]
        return np.asarray(fits)

    def take(self, row: int, shape: int, slots: tuple[int, ...], back: int = 1) -> None:
        asked = self.shapes[shape]
        self.cpu[row] -= back * asked.cpu
        self.ram[row] -= back * asked.ram
        for slot in slots:
            self.gpu[row, slot] -= back * asked.share
        assert self.cpu[row] >= 0
        assert self.ram[row] >= 0
        assert all(0 <= self.gpu[row, slot] <= 1000 for slot in slots)

    def give(self, row: int, shape: int, slots: tuple[int, ...]) -> None:
        self.take(row, shape, slots, back=-1)


def tightest(field: Field, row: int, shape: int) -> tuple[int, ...]:
    """Of the GPUs that serve the shape, those with the least free."""
    asked = field.shapes[shape]
    free = field.gpu[row].tolist()
    serving = [slot for slot in range(SLOTS) if asked.share and free[slot] >= asked.share]
    return tuple(sorted(serving, key=lambda slot: free[slot])[: asked.gpus])


class Lazy:
    """The cost of each shape on each node, as `costs(shape, rows)` says; asked anew only for rows that changed since
    that shape was last looked for. (On average these are as many as there are shapes, and not all nodes.)"""

    def __init__(self, nodes: int, shapes: int, costs: Callable[[int, Rows], NDArray[np.float64]]) -> None:
        self._costs = costs
        self._all = np.arange(nodes)
        self._known: list[NDArray[np.float64] | None] = [None] * shapes
        self._seen = [0] * shapes
        self._log: list[int] = []

    def changed(self, row: int) -> None:
        self._log.append(row)

    def of(self, shape: int) -> NDArray[np.float64]:
        """The costs of the shape on all nodes, now."""
        known, seen = self._known[shape], self._seen[shape]
        self._seen[shape] = len(self._log)
        if known is None:
            known = self._known[shape] = self._costs(shape, self._all)
        elif len(self._log) > seen:
            rows = np.array(list(set(self._log[seen:])))
            known[rows] = self._costs(shape, rows)
        return known

"""The GPUs of many nodes as arrays, as `Policy.screen` sees them: a column for each node, a slot for each of its GPUs.

Shelf (kept up to date by `index.py`) ─ columns ─→ Columns → Policy.screen
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["ABSENT", "Bytes", "Columns", "Counts", "Mask", "Shelf", "counted", "grown"]

Mask: TypeAlias = NDArray[np.bool_]
Counts: TypeAlias = NDArray[np.integer[Any]]
Bytes: TypeAlias = NDArray[np.int64]

ABSENT = -1  # bytes free in a slot without a candidate; below every size that can be asked


class Columns:
    """The candidates of many nodes, one node per column, as `Policy.screen` sees them. All counts are per node."""

    def __init__(self, free: Bytes, same_card: Mask | None) -> None:
        self.free = free
        """[slot, node] → bytes free, `ABSENT` without a candidate. GPUs of one card are in neighbouring slots."""
        self._same_card = same_card  # [slot, node]: on the card of the slot before; None: no GPUs share a card

    @property
    def count(self) -> Counts:
        """Candidate GPUs."""
        return self.gpus_with(0)

    @property
    def shares_cards(self) -> bool:
        """Whether any two GPUs here are on one card; if not, `cards_with` is `gpus_with`."""
        return self._same_card is not None

    def gpus_with(self, size: int) -> Counts:
        """Candidate GPUs with at least `size` bytes free."""
        return counted(self.free >= size)

    def cards_with(self, size: int) -> Counts:
        """Cards that have a candidate GPU with at least `size` bytes free."""
        serves = self.free >= size
        if self._same_card is not None:
            # A card counts at its first slot that serves: `before` says whether an earlier slot of it does.
            before = np.zeros(serves.shape[1], dtype=np.bool_)
            for slot, same in zip(serves, self._same_card, strict=True):
                before &= same
                slot[:], before = slot & ~before, before | slot
        return counted(serves)


class Shelf:
    """The GPUs of the nodes that have at most `slots` of them (and more than half as many)."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.rows = np.zeros(0, dtype=np.int64)
        """Column → row of the node in the index."""
        self.used = 0
        """Columns in use or spare."""
        self._spare: list[int] = []
        self._free = np.zeros((2, slots, 0), dtype=np.int64)  # [for a shared request?, slot, column]
        self._model = np.zeros((slots, 0), dtype=np.intp)
        self._same = np.zeros((slots, 0), dtype=np.bool_)
        self._sharing = 0  # columns with GPUs on one card

    def put(self, column: int | None, row: int, free: list[list[int]], models: list[int], same: list[bool]) -> int:
        """Write a node's GPUs into `column`, or into a new one; returns which."""
        if column is None:
            column = self._spare.pop() if self._spare else self._add()
        padding = self.slots - len(models)
        self.rows[column] = row
        self._sharing += any(same) - bool(self._same[:, column].any())
        self._free[0, :, column] = free[0] + [ABSENT] * padding
        self._free[1, :, column] = free[1] + [ABSENT] * padding
        self._model[:, column] = models + [0] * padding
        self._same[:, column] = same + [False] * padding
        return column

    def clear(self, column: int) -> None:
        """Empty the column, for another node to use."""
        self._sharing -= bool(self._same[:, column].any())
        self._free[:, :, column] = ABSENT
        self._same[:, column] = False
        self._spare.append(column)

    def columns(self, shared: bool, models: Bytes | None) -> Columns:
        """All columns as a request sees them; `models`: by number, 0 for those it may have, else `ABSENT`."""
        free = self._free[int(shared), :, : self.used]
        if models is not None:
            free = free | models.take(self._model[:, : self.used])  # -1 | anything is -1, which is `ABSENT`
        return Columns(free, self._same[:, : self.used] if self._sharing else None)

    def _add(self) -> int:
        if self.used == len(self.rows):
            capacity = max(16, self.used * 2)
            self.rows = grown(self.rows, capacity, 0)
            self._free = grown(self._free, capacity, ABSENT)
            self._model = grown(self._model, capacity, 0)
            self._same = grown(self._same, capacity, False)
        self.used += 1
        return self.used - 1


def counted(there: Mask) -> Counts:
    """How many are there, per column."""
    counts: Counts = np.add.reduce(there.view(np.uint8), axis=0, dtype=np.uint8 if len(there) < 256 else np.int64)
    return counts


def grown(array: NDArray[Any], capacity: int, fill: int | bool) -> NDArray[Any]:
    """The array with its last axis made `capacity` long."""
    larger = np.full((*array.shape[:-1], capacity), fill, dtype=array.dtype)
    larger[..., : array.shape[-1]] = array
    return larger

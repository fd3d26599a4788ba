"""What is free on all nodes, as a potential sees it; and what placing costs on each, anew only where it changed.

    Node ─ put ─→ Terrain: Rooms (a column per node), height and blocks of each ─ costs(request) ─→ the key of each row

A potential (`potentials.py`) gives each node a height by what is free there. Placing costs what it raises the node by;
to that come the blocks that are broken, at a price that hangs on how many there are in the cluster.

`Index` keeps a terrain for the policy in use; a one-off `select` makes one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..models import Node, Request
from .candidates import lends, model_glob
from .host import cores_asked, cores_free
from .mix import Kind, kind_of, need
from .shelves import grown
from .worth import WHOLE

if TYPE_CHECKING:
    from .potentials import Potential

__all__ = ["Keys", "Rooms", "Terrain"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Keys = NDArray[np.int64]

ENTIRE = 950
"""Thousandths from which on an idle GPU is a whole one: drivers keep a little for themselves."""
FINEST = 1e9  # keys are whole numbers: billionths of a GPU
NO_GPU = Kind("", 0)  # the kind of what is in a slot without one
MOST_KEPT = 4_000_000  # costs that are kept, of all rows and kinds of request


@dataclass(frozen=True)
class Rooms:
    """What is free on some nodes, one per column."""

    cores: Floats
    """`nan`: not known."""
    free: Ints
    """[slot, node] → thousandths of the GPU; 0 where there is none to have."""
    kind: Ints
    """[slot, node] → number of its kind."""

    def take(self, rows: NDArray[np.intp]) -> Rooms:
        return Rooms(self.cores.take(rows), self.free.take(rows, axis=1), self.kind.take(rows, axis=1))


@dataclass(frozen=True)
class _Ask:
    """What of a request decides about costs. Requests with equal ones cost the same."""

    whole: bool
    sizes: tuple[int, ...]
    """Largest first."""
    cores: float
    gpu_model: str | None


class _Known:
    """The costs of one ask, of each row; and how much of the log of changes is in them."""

    def __init__(self, rows: int, blocks: int) -> None:
        self.rise = np.zeros(rows)
        self.broken = np.zeros((blocks, rows), dtype=np.int16)
        self.seen = -1


class Terrain:
    """All nodes as one potential sees them, by row. One writer, no locks."""

    def __init__(self, potential: Potential, nodes: Iterable[tuple[int, Node]] = ()) -> None:
        self._kinds: dict[Kind, int] = {NO_GPU: 0}
        self._rows = 0
        self._free = np.zeros((1, 0), dtype=np.int64)
        self._kind = np.zeros((1, 0), dtype=np.int64)
        self._idle = np.zeros((1, 0), dtype=np.bool_)
        self._cores = np.zeros(0)
        self._all_free = 0  # thousandths
        self._known: OrderedDict[_Ask, _Known] = OrderedDict()
        self._log: list[int] = []  # rows, in the order of their changes
        self._stale: set[int] = set()
        self.go_by(potential)
        for row, node in nodes:
            self.put(row, node)

    def go_by(self, potential: Potential) -> None:
        """From now on go by that one, on the same nodes."""
        self.potential = potential
        self._tables: Any = None
        self._height = np.zeros(len(self._cores))
        self._blocks = np.zeros((len(potential.blocks), len(self._cores)), dtype=np.int64)
        self._of_each = np.array([block.gpus for block in potential.blocks], dtype=np.int64)
        self._all_blocks = np.zeros(len(potential.blocks), dtype=np.int64)

    def put(self, row: int, node: Node | None) -> None:
        """What is free on that row now; `None`: there is no node."""
        gpus = () if node is None or node.reason is not None else node.gpus
        if row >= self._rows or len(gpus) > len(self._free):
            self._grow(row + 1, len(gpus))
        self._all_free -= int(self._free[:, row].sum())
        self._free[:, row] = 0
        self._idle[:, row] = False
        for slot, gpu in enumerate(gpus):
            if not lends(gpu, shared=True) or not gpu.memory_total:
                continue
            assert gpu.memory_free is not None
            part = min(WHOLE, gpu.memory_free * WHOLE // gpu.memory_total)
            self._free[slot, row] = WHOLE if gpu.idle and part >= ENTIRE else part
            self._idle[slot, row] = gpu.idle
            kind = kind_of(gpu.model, gpu.memory_total)
            if kind not in self._kinds:
                self._kinds[kind] = len(self._kinds)
                self._tables = None
            self._kind[slot, row] = self._kinds[kind]
        cores = None if node is None else cores_free(node)
        self._cores[row] = np.nan if cores is None else cores
        self._all_free += int(self._free[:, row].sum())
        self._stale.add(row)

    def costs(self, request: Request) -> Keys:
        """The key of each row by which the least is chosen. Only meant for rows where the request fits."""
        self._survey()
        known = self._known_of(_ask(request))
        if not len(self._of_each):
            return _keys(known.rise)
        prices = self.potential.prices(self._of_each, self._all_blocks, self._all_free / WHOLE)
        cost = known.rise.copy()
        for price, broken in zip(prices.tolist(), known.broken, strict=True):
            if price:
                cost += price * broken
        return _keys(cost)

    def _survey(self) -> None:
        """Look at the rows that changed."""
        if self._tables is None:
            self._tables = self.potential.tables(tuple(self._kinds))
            self._known.clear()
            self._log.clear()
            self._stale = set(range(self._rows))
        if not self._stale:
            return
        rows = np.fromiter(self._stale, dtype=np.intp, count=len(self._stale))
        self._stale.clear()
        rooms = self._rooms().take(rows)
        self._height[rows] = self.potential.height(rooms, self._tables)
        if len(self._of_each):
            before = self._blocks[:, rows].sum(axis=1)
            self._blocks[:, rows] = blocks = self.potential.count_blocks(rooms, self._tables)
            self._all_blocks += blocks.sum(axis=1) - before
        if len(self._log) > 4 * self._rows + 1000:
            self._known.clear()
            self._log.clear()
        self._log += rows.tolist()

    def _known_of(self, ask: _Ask) -> _Known:
        if (known := self._known.get(ask)) is None:
            while self._known and (len(self._known) + 1) * self._rows > MOST_KEPT:
                self._known.popitem(last=False)
            known = self._known[ask] = _Known(self._rows, len(self._of_each))
        self._known.move_to_end(ask)
        changed = len(self._log) - known.seen
        if known.seen < 0 or changed > self._rows:
            rows = np.arange(self._rows)
        elif changed:
            rows = np.array(sorted(set(self._log[known.seen :])), dtype=np.intp)
        else:
            return known
        known.seen = len(self._log)
        rooms = self._rooms().take(rows)
        after = self._after(rooms, self._idle.take(rows, axis=1), ask)
        rise = self.potential.height(after, self._tables) - self._height.take(rows)
        known.rise[rows] = self.potential.rounded(rise)
        if len(self._of_each):
            known.broken[:, rows] = self._blocks.take(rows, axis=1) - self.potential.count_blocks(after, self._tables)
        return known

    def _rooms(self) -> Rooms:
        return Rooms(self._cores[: self._rows], self._free[:, : self._rows], self._kind[:, : self._rows])

    def _after(self, rooms: Rooms, idle: NDArray[np.bool_], ask: _Ask) -> Rooms:
        """The rooms once that is taken from the GPUs that fit it most tightly."""
        free, cores = rooms.free, np.maximum(rooms.cores - ask.cores, 0.0)
        sizes = ask.sizes
        if not sizes:
            return Rooms(cores, free, rooms.kind)
        kinds = tuple(self._kinds)
        may = idle if ask.whole else free > 0
        if ask.gpu_model is not None:
            match = model_glob(ask.gpu_model)
            may = may & np.array([bool(match(kind.model)) for kind in kinds])[rooms.kind]
        if ask.whole and len(set(sizes)) == 1 and not ((free > 0) & (free < WHOLE) & may).any():
            there = may & (free == WHOLE)
            return Rooms(cores, np.where(there & (there.cumsum(axis=0) <= len(sizes)), 0, free), rooms.kind)
        free, may = free.copy(), may.copy()
        columns = np.arange(free.shape[1])
        for size in sizes:
            needs = np.array([min(WHOLE, need(size, kind)) for kind in kinds])[rooms.kind]
            serves = may & (free >= needs)
            slot = np.where(serves, free, WHOLE + 1).argmin(axis=0)
            left = 0 if ask.whole else free[slot, columns] - needs[slot, columns]
            free[slot, columns] = np.where(serves[slot, columns], left, free[slot, columns])
            may[slot, columns] = False
        return Rooms(cores, free, rooms.kind)

    def _grow(self, rows: int, slots: int) -> None:
        if (more := slots - len(self._free)) > 0:
            for name in ("_free", "_kind", "_idle"):
                setattr(self, name, np.pad(getattr(self, name), ((0, more), (0, 0))))
        if rows > len(self._cores):
            for name in ("_free", "_kind", "_idle", "_cores", "_height", "_blocks"):
                setattr(self, name, grown(getattr(self, name), max(16, 2 * rows), 0))
        if rows > self._rows:
            self._rows = rows
            self._known.clear()


def _ask(request: Request) -> _Ask:
    sizes: Sequence[int] = sorted(request.sizes, reverse=True)
    return _Ask(not request.shared, tuple(sizes), cores_asked(request) or 0.0, request.gpu_model)


def _keys(cost: Floats) -> Keys:
    return np.rint(cost * FINEST).astype(np.int64)

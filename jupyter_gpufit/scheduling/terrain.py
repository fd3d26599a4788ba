"""What is free on all nodes, as a potential sees it; and what placing costs on each, anew only where it changed.

    Node ─ put ─→ Terrain: Rooms (a column per node), height and blocks of each ─ costs(request, rows) ─→ their keys

A potential (`potentials.py`) gives each node a height by what is free there. Placing costs what it raises the node by;
to that come the blocks that are broken, at a price that hangs on how many there are in the cluster.

`Index` keeps a terrain for the policy in use; a one-off `select` makes one. When that policy learned, a `copy` is made
to go by what it knows now, while the old one is in use.
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
from .mix import Kind, kind_of, need
from .shelves import grown
from .worth import WHOLE

if TYPE_CHECKING:
    from .potentials import Potential

__all__ = ["Keys", "Rooms", "Rows", "Terrain"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = NDArray[np.integer[Any]]
Keys = NDArray[np.int64]

ENTIRE = 950
"""Thousandths from which on an idle GPU is a whole one: drivers keep a little for themselves."""
FINEST = 1e9  # keys are whole numbers: billionths of a GPU
MOST_KEPT = 4_000_000  # costs that are kept, of all rows and kinds of request
MOST_PREPARED = 50  # kinds of request, the ones asked for last
AT_ONCE = 2048  # rows: so many fit into the processor's cache


@dataclass(frozen=True)
class Rooms:
    """What is free on some nodes, one per column."""

    cores: Floats
    """`nan`: not known."""
    free: Ints
    """[slot, node] → thousandths of the GPU; 0 where there is none to have."""
    kind: Ints
    """[slot, node] → number of its kind."""


@dataclass(frozen=True)
class _Ask:
    """What of a request decides about costs. Requests with equal ones cost the same."""

    whole: bool
    sizes: tuple[int, ...]
    """Largest first."""
    cores: float
    gpu_model: str | None


class _Known:
    """The costs of one ask, of each row; and of which of its changes."""

    def __init__(self, ask: _Ask, kinds: Sequence[Kind] = (), capacity: int = 0, blocks: int = 0) -> None:
        match = None if ask.gpu_model is None else model_glob(ask.gpu_model)
        self.of_model = None if match is None else np.array([bool(match(kind.model)) for kind in kinds])
        """[kind] → whether its GPUs may be had; `None`: all may."""
        self.needs = [np.array([min(WHOLE, need(size, kind)) for kind in kinds]) for size in ask.sizes]
        """Of each size: [kind] → thousandths."""
        self.rise = np.zeros(capacity)
        self.broken = np.zeros((blocks, capacity), dtype=np.int16)
        self.change = np.full(capacity, -1, dtype=np.int32)
        """Number of the change of the row that they are worked out for."""


class Terrain:
    """All nodes as one potential sees them, by row. One writer, no locks."""

    def __init__(self, potential: Potential, nodes: Iterable[tuple[int, Node]] = ()) -> None:
        self._kinds: dict[tuple[str, int], int] = {("", 0): 0}  # the first one: of a slot without a GPU
        self._there: list[tuple[Any, ...] | None] = []  # row → what was put there
        self._free = np.zeros((1, 0), dtype=np.int64)
        self._kind = np.zeros((1, 0), dtype=np.int64)
        self._idle = np.zeros((1, 0), dtype=np.bool_)
        self._cores = np.zeros(0)
        self._change = np.zeros(0, dtype=np.int32)  # row → how often it changed
        self._all_free = 0  # thousandths
        self._known: OrderedDict[_Ask, _Known] = OrderedDict()
        self._stale: set[int] = set()  # rows that changed since the last survey
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

    def copy(self) -> Terrain:
        """Another one of the same nodes, which only knows what is free, and what was asked for last."""
        copied = Terrain(self.potential)
        copied._kinds, copied._there = dict(self._kinds), list(self._there)
        for name in ("_free", "_kind", "_idle", "_cores", "_change"):
            setattr(copied, name, getattr(self, name).copy())
        copied._all_free = self._all_free
        for ask in [*self._known][-MOST_PREPARED:]:
            copied._known[ask] = _Known(ask)
        return copied

    def prepare(self) -> None:
        """Work out what is there, and the costs of what was asked for last. May take its time."""
        asks = [*self._known]
        self._survey()
        rows = np.arange(len(self._there))
        for ask in asks:
            self._known_of(ask, rows)

    def put(self, row: int, node: Node | None) -> None:
        """What is free on that row now; `None`: there is no node."""
        gpus = () if node is None or node.reason is not None else node.gpus
        free, kinds, idle = [], [], []
        for gpu in gpus:
            if lends(gpu, shared=True) and (total := gpu.memory_total):
                assert gpu.memory_free is not None
                part = min(WHOLE, gpu.memory_free * WHOLE // total)
                free.append(WHOLE if gpu.idle and part >= ENTIRE else part)
                kinds.append(self._number(gpu.model, total))
                idle.append(gpu.idle)
            else:
                free.append(0)
                kinds.append(0)
                idle.append(False)
        now = (None if node is None else node.cpus_free, free, kinds, idle)
        if row >= len(self._there) or len(gpus) > len(self._free):
            self._grow(row + 1, len(gpus))
        if (before := self._there[row]) == now:
            return
        if before is not None:
            self._all_free -= sum(before[1])
            for array in (self._free, self._kind, self._idle):
                array[len(gpus) : len(before[1]), row] = 0
        self._there[row] = now
        self._free[: len(gpus), row], self._kind[: len(gpus), row], self._idle[: len(gpus), row] = free, kinds, idle
        self._cores[row] = np.nan if now[0] is None else now[0]
        self._all_free += sum(free)
        self._change[row] += 1
        self._stale.add(row)

    def costs(self, request: Request, rows: Rows) -> Keys:
        """The keys of the rows, by which the least is chosen. Only meant for rows where the request fits."""
        self._survey()
        known = self._known_of(_ask(request), rows)
        cost = known.rise.take(rows)
        if len(self._of_each):
            prices = self.potential.prices(self._of_each, self._all_blocks, self._all_free / WHOLE)
            for price, broken in zip(prices.tolist(), known.broken, strict=True):
                if price:
                    cost += price * broken.take(rows)
        return np.rint(cost * FINEST).astype(np.int64)

    def _survey(self) -> None:
        """Look at the rows that changed."""
        if self._tables is None:
            self._tables = self.potential.tables(tuple(kind_of(*kind) for kind in self._kinds))
            self._known.clear()
            self._stale = set(range(len(self._there)))
        if not self._stale:
            return
        stale = np.fromiter(self._stale, dtype=np.intp, count=len(self._stale))
        self._stale.clear()
        for rows in _portions(stale):
            rooms = self._rooms(rows)
            self._height[rows] = self.potential.height(rooms, self._tables)
            if len(self._of_each):
                before = self._blocks.take(rows, axis=1).sum(axis=1)
                self._blocks[:, rows] = blocks = self.potential.count_blocks(rooms, self._tables)
                self._all_blocks += blocks.sum(axis=1) - before

    def _known_of(self, ask: _Ask, rows: Rows) -> _Known:
        """What that costs, up to date on the rows."""
        if (known := self._known.get(ask)) is None:
            while self._known and (len(self._known) + 1) * len(self._there) > MOST_KEPT:
                self._known.popitem(last=False)
            kinds = [kind_of(*kind) for kind in self._kinds]
            known = self._known[ask] = _Known(ask, kinds, len(self._cores), len(self._of_each))
        self._known.move_to_end(ask)
        for changed in _portions(rows[(known.change != self._change).take(rows)]):
            rooms = self._rooms(changed)
            after = _after(rooms, self._idle.take(changed, axis=1), ask, known)
            rise = self.potential.height(after, self._tables) - self._height.take(changed)
            known.rise[changed] = self.potential.rounded(rise)
            if len(self._of_each):
                left = self.potential.count_blocks(after, self._tables)
                known.broken[:, changed] = self._blocks.take(changed, axis=1) - left
            known.change[changed] = self._change.take(changed)
        return known

    def _rooms(self, rows: Rows) -> Rooms:
        return Rooms(self._cores.take(rows), self._free.take(rows, axis=1), self._kind.take(rows, axis=1))

    def _number(self, model: str, total: int) -> int:
        if (number := self._kinds.get((model, total))) is None:
            number = self._kinds[model, total] = len(self._kinds)
            self._tables = None
        return number

    def _grow(self, rows: int, slots: int) -> None:
        if (more := slots - len(self._free)) > 0:
            for name in ("_free", "_kind", "_idle"):
                setattr(self, name, np.pad(getattr(self, name), ((0, more), (0, 0))))
        if rows > len(self._cores):
            for name in ("_free", "_kind", "_idle", "_cores", "_change", "_height", "_blocks"):
                setattr(self, name, grown(getattr(self, name), max(16, 2 * rows), 0))
            self._known.clear()
        self._there += [None] * (rows - len(self._there))


def _after(rooms: Rooms, idle: NDArray[np.bool_], ask: _Ask, known: _Known) -> Rooms:
    """The rooms once that is taken from the GPUs that fit it most tightly."""
    free, cores = rooms.free, np.maximum(rooms.cores - ask.cores, 0.0)
    if not ask.sizes:
        return Rooms(cores, free, rooms.kind)
    may = idle if ask.whole else free > 0
    if known.of_model is not None:
        may = may & known.of_model[rooms.kind]
    if ask.whole and len(set(ask.sizes)) == 1 and not (may & (free < WHOLE)).any():
        return Rooms(cores, np.where(may & (may.cumsum(axis=0) <= len(ask.sizes)), 0, free), rooms.kind)
    free, may = free.copy(), may.copy()
    columns = np.arange(free.shape[1])
    for of_kind in known.needs:
        needs = of_kind[rooms.kind]
        serves = may & (free >= needs)
        slot = np.where(serves, free, WHOLE + 1).argmin(axis=0)
        if not (found := serves.any(axis=0)).all():  # in thousandths it does not quite fit: then the freest
            slot = np.where(found, slot, np.where(may, free, -1).argmax(axis=0))
        taken = may[slot, columns]
        left = 0 if ask.whole else np.maximum(0, free[slot, columns] - needs[slot, columns])
        free[slot, columns] = np.where(taken, left, free[slot, columns])
        may[slot, columns] = False
    return Rooms(cores, free, rooms.kind)


def _ask(request: Request) -> _Ask:
    sizes: Sequence[int] = sorted(request.sizes, reverse=True)
    return _Ask(not request.shared, tuple(sizes), request.cpus or 0.0, request.gpu_model)


def _portions(rows: Rows) -> Iterable[Rows]:
    return (rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE))

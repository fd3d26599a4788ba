"""The cluster as arrays, kept up to date node by node, so that a decision walks no GPU objects.

    Index ─┬─ one row per node: order of names, idle GPUs and free memory in total, labels, cores and RAM
           └─ Shelf: the GPUs of all nodes with about as many of them, a column of slots each ─ Columns → Policy.screen

A decision is: filters and `Policy.screen` give the rows that fit; of these the least in stage 3's order is the target;
only that node's GPU objects are then looked at, to choose among them. The others that fit are put in order when
somebody asks; why the rest do not is worked out then, too, by the walk of `fit.py` over the nodes as they were.

numpy is imported here, in `shelves.py` and by the potentials (`terrain.py`), and nowhere else in this room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models import Gpu, Node, Request
from .candidates import by_index, glob, has_model, is_literal, lends, model_glob, pool_of, writable
from .fit import NOTHING, Decision, select
from .host import SLACK, asks, cores_to_have, ram_to_have
from .policies import Policy, find
from .shelves import ABSENT, Bytes, Mask, Shelf, counted, grown
from .terrain import Terrain

__all__ = ["Index"]

MOST_MODELS = 10_000  # names of models that are numbered before those that no GPU has any more are forgotten
PAGE = 128  # rows
MOST_PATTERNS = 64  # node globs whose rows are remembered
MOST_FACTS = 64  # models whose rows are remembered


class Index:
    """Nodes, indexed for selection. One writer, no locks: for use on one thread.

    `update` costs time in the node's own GPUs, `select` a few passes over arrays. The first decision after a node was
    added also sorts their names; the first one with a new wildcard for the node matches it with all names.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._row: dict[str, int] = {}
        self._nodes: list[Node | None] = []
        self._spare: list[int] = []
        self._place: list[tuple[Shelf, int] | None] = []  # row → where its GPUs are
        self._shelves: dict[int, Shelf] = {}
        self._models: dict[str, int] = {}
        self._most_models = MOST_MODELS
        self._labels: dict[str, _Label] = {}
        self._count = np.zeros((2, 0), dtype=np.int64)  # [for a shared request?, row]: candidate GPUs of any model
        self._total = np.zeros((2, 0), dtype=np.int64)  # and bytes free on them
        self._cores = np.zeros(0)  # row → the most that a request can have now
        self._ram = np.zeros(0, dtype=np.int64)  # bytes of the machine's memory, likewise
        self._terrain: tuple[Policy, Terrain] | None = None  # of the policy that was asked for last, if it has one
        # Worked out when needed, dropped when out of date:
        self._pages: list[tuple[Node, ...]] = []  # the nodes of `PAGE` rows each
        self._changed: set[int] = set()  # pages that are out of date
        self._names: tuple[str, ...] | None = None  # by row; a spare row has the name that it had
        self._rank: NDArray[np.int64] | None = None  # row → place in the order of names
        self._patterns: dict[str, Mask] = {}
        self._facts: dict[
            str, tuple[Callable[[Node], bool], Mask]
        ] = {}  # of model stores, and the rows that they hold on
        for node in nodes:
            self.update(node)

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, name: object) -> bool:
        return name in self._row

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes as they are now."""
        return tuple(chain.from_iterable(self._snapshot()))

    def update(self, node: Node) -> None:
        """Add `node`, or put it in the place of the one of that name. Called by the scheduler on each change."""
        row = self._row.get(node.name)
        if row is None:
            row = self._new_row(node.name)
        before, self._nodes[row] = self._nodes[row], node
        self._changed.add(row // PAGE)
        if self._terrain is not None:
            self._terrain[1].put(row, node)
        self._set_labels(row, {} if before is None else before.labels, node.labels)
        self._set_gpus(row, node)
        self._cores[row], self._ram[row] = cores_to_have(node), ram_to_have(node)
        if before is None or not _same_store(before, node):
            for holds, rows in self._facts.values():
                rows[row] = holds(node)
        if len(self._models) > self._most_models:
            self._number_anew()

    def remove(self, name: str) -> None:
        """Forget the node of that name; quiet if there is none."""
        row = self._row.pop(name, None)
        if row is None:
            return
        node, self._nodes[row] = self._nodes[row], None
        self._changed.add(row // PAGE)  # the order of the other names, and which of them match a glob, is as before
        assert node is not None
        self._set_labels(row, node.labels, {})
        self._leave_shelf(row)
        self._count[:, row] = self._total[:, row] = 0
        self._spare.append(row)
        if self._terrain is not None:
            self._terrain[1].put(row, None)

    def select(
        self, request: Request, policy: str | Policy = "best-fit", exclude: Mapping[str, str] = NOTHING
    ) -> Decision:
        """The decision that `fit.select` comes to on the nodes as they are now. Raises `InvalidValue` likewise."""
        policy = find(policy)
        fitting = self._fitting(request, policy, exclude)
        target = None if fitting is None else self._nodes[fitting.first(self._ranks)]
        placement = None if target is None else policy.place(pool_of(target, request))
        in_order = tuple if fitting is None else fitting.in_order
        return Decision(request, policy, placement, target, self._snapshot(), dict(exclude), in_order)

    def prepare(self) -> Callable[[Policy], Callable[[], None]]:
        """For a policy that is to decide soon: a function that works out, on any thread, what its first decision would
        take long for; it gives another one, which makes that known here. (Both are to be called once at most.)
        """
        nodes = list(self._nodes)
        copied = None if self._terrain is None else self._terrain[1].copy()

        def work(policy: Policy) -> Callable[[], None]:
            if (terrain := policy.terrain(copied)) is None:
                return lambda: None
            if terrain is not copied:
                for row, node in enumerate(nodes):
                    terrain.put(row, node)
            terrain.prepare()
            return lambda: self._take(policy, terrain, nodes)

        return work

    # --- a decision

    def _snapshot(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes as they are now, in pages; those without a change are the ones of the time before."""
        for page in self._changed:
            self._pages[page] = tuple(filter(None, self._nodes[page * PAGE : (page + 1) * PAGE]))
        self._changed.clear()
        return tuple(self._pages)

    def _fitting(self, request: Request, policy: Policy, exclude: Mapping[str, str]) -> _Fitting | None:
        """The nodes that fit, or `None`."""
        if request.node is not None and is_literal(request.node):
            row = self._row.get(request.node)
            return None if row is None else self._walk([self._nodes[row]], request, policy, exclude)
        terrain = self._terrain_of(policy)
        shared = int(request.shared)
        models = None if request.gpu_model is None else self._models_like(request.gpu_model)
        fitting, counts, totals = [], [], []
        for shelf in self._shelves.values():
            columns = shelf.columns(request.shared, models)
            mask = policy.screen(columns, request)
            if mask is None:
                return self._walk(self.nodes, request, policy, exclude)
            at = np.flatnonzero(mask)
            rows = shelf.rows[at]
            fitting.append(rows)
            if terrain is not None:
                continue
            if models is None:
                counts.append(self._count[shared, rows])
                totals.append(self._total[shared, rows])
            else:
                free = columns.free[:, at]
                counts.append(counted(free >= 0).astype(np.int64))
                totals.append(np.maximum(free, 0).sum(axis=0))
        if not fitting:
            return None
        rows = _joined(fitting)
        keep = None if (allowed := self._allowed(request, exclude)) is None else allowed[rows]
        if terrain is None:
            count, total = _joined(counts), _joined(totals)
            if keep is not None:
                rows, count, total = rows[keep], count[keep], total[keep]
        else:
            rows = rows if keep is None else rows[keep]
            count, total = terrain.costs(request, rows), np.zeros(len(rows), dtype=np.int64)
        if not len(rows):
            return None
        wished = None if request.model is None or request.require_model else self._having(request.model)[rows]
        return _Fitting(rows, count, total, wished, self._named())

    def _terrain_of(self, policy: Policy) -> Terrain | None:
        """The terrain of the policy, if it has one. There is one at most: that of the last policy that had one."""
        before = None
        if self._terrain is not None:
            kept, before = self._terrain
            if kept is policy:
                return before
        if (terrain := policy.terrain(before)) is not None:
            if terrain is not before:
                for row, node in enumerate(self._nodes):
                    terrain.put(row, node)
            self._terrain = policy, terrain
        return terrain

    def _take(self, policy: Policy, terrain: Terrain, nodes: list[Node | None]) -> None:
        """Go by that terrain from now on, which is one of those nodes."""
        nodes += [None] * (len(self._nodes) - len(nodes))
        for row, (node, before) in enumerate(zip(self._nodes, nodes, strict=True)):
            if node is not before:
                terrain.put(row, node)
        self._terrain = policy, terrain

    def _walk(
        self, nodes: Iterable[Node | None], request: Request, policy: Policy, exclude: Mapping[str, str]
    ) -> _Fitting | None:
        """Those of a few nodes, or for a policy without `screen`: as `select` finds them, in its order."""
        names = select([node for node in nodes if node is not None], request, policy, exclude).fitting
        place = np.arange(len(names))
        rows = np.array([self._row[name] for name in names], dtype=np.int64)
        return _Fitting(rows, place, place, None, self._named()) if names else None

    def _allowed(self, request: Request, exclude: Mapping[str, str]) -> Mask | None:
        """Which rows the request's node glob, labels, model, cores and RAM, and the exclusions leave; `None`: all."""
        of_stores = request.require_model or request.write_models
        if request.node is None and not request.labels and not exclude and not of_stores and not asks(request):
            return None
        allowed = np.ones(len(self._nodes), dtype=np.bool_)
        if request.node is not None:
            allowed &= self._named_like(request.node)
        for key, value in request.labels.items():
            if key not in self._labels:
                return np.zeros(len(self._nodes), dtype=np.bool_)
            allowed &= self._labels[key].having(value, len(allowed))
        if request.require_model and request.model is not None:
            allowed &= self._having(request.model)
        if request.write_models:
            allowed &= self._where("writable", writable)
        if request.cpus is not None:
            allowed &= self._cores[: len(allowed)] >= request.cpus - SLACK
        if request.host_memory is not None:
            allowed &= self._ram[: len(allowed)] >= request.host_memory
        for name in exclude:
            if name in self._row:
                allowed[self._row[name]] = False
        return allowed

    def _models_like(self, pattern: str) -> Bytes:
        match = model_glob(pattern)
        return np.array([ABSENT if match(model) is None else 0 for model in self._models], dtype=np.int64)

    def _named_like(self, pattern: str) -> Mask:
        if (known := self._patterns.get(pattern)) is not None:
            return known
        match = glob(pattern)
        mask = np.array([node is not None and match(node.name) is not None for node in self._nodes], dtype=np.bool_)
        if len(self._patterns) >= MOST_PATTERNS:
            self._patterns.clear()
        self._patterns[pattern] = mask
        return mask

    def _having(self, model: str) -> Mask:
        return self._where(f"has {model}", lambda node: has_model(node, model) is True)

    def _where(self, fact: str, holds: Callable[[Node], bool]) -> Mask:
        """The rows of the nodes that it `holds` on: looked up when first asked, and kept up to date from then on."""
        if (known := self._facts.get(fact)) is None:
            if len(self._facts) >= MOST_FACTS:
                self._facts.clear()
            rows = np.array([node is not None and holds(node) for node in self._nodes], dtype=np.bool_)
            known = self._facts[fact] = holds, rows
        return known[1]

    def _named(self) -> tuple[str, ...]:
        if self._names is None:
            names = {row: name for name, row in self._row.items()}
            self._names = tuple(names.get(row, "") for row in range(len(self._nodes)))
        return self._names

    def _ranks(self) -> NDArray[np.int64]:
        if self._rank is None:
            self._rank = np.zeros(len(self._nodes), dtype=np.int64)
            in_order = [self._row[name] for name in sorted(self._row)]
            self._rank[in_order] = np.arange(len(in_order))
        return self._rank

    # --- keeping up

    def _new_row(self, name: str) -> int:
        if self._spare:
            row = self._spare.pop()
        else:
            row = len(self._nodes)
            self._nodes.append(None)
            if row % PAGE == 0:
                self._pages.append(())
            self._place.append(None)
            if row == self._count.shape[1]:
                capacity = max(16, row * 2)
                self._count = grown(self._count, capacity, 0)
                self._total = grown(self._total, capacity, 0)
                self._cores = grown(self._cores, capacity, 0)
                self._ram = grown(self._ram, capacity, 0)
        self._row[name] = row
        self._rank = self._names = None
        self._patterns.clear()
        self._facts.clear()
        return row

    def _set_labels(self, row: int, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        if before == after:
            return
        for key in before:
            if key not in after:
                self._labels[key].set(row, None)
                if not self._labels[key].used:
                    del self._labels[key]
        for key, value in after.items():
            if before.get(key) != value:
                self._labels.setdefault(key, _Label()).set(row, value)

    def _set_gpus(self, row: int, node: Node) -> None:
        gpus = node.gpus
        if len({gpu.card for gpu in gpus}) < len(gpus):
            gpus = tuple(sorted(gpus, key=lambda gpu: (gpu.card, by_index(gpu))))
        usable = node.reason is None
        free = [[_free(gpu, shared) if usable else ABSENT for gpu in gpus] for shared in (False, True)]
        for shared in (0, 1):
            there = [size for size in free[shared] if size != ABSENT]
            self._count[shared, row] = len(there)
            self._total[shared, row] = sum(there)

        slots = 1 << (len(gpus) - 1).bit_length() if gpus else 0
        place = self._place[row]
        if place is not None and place[0].slots != slots:
            self._leave_shelf(row)
            place = None
        if not gpus:
            return
        models = [self._models.setdefault(gpu.model, len(self._models)) for gpu in gpus]
        same = [False, *(gpu.card == last.card for last, gpu in pairwise(gpus))]
        shelf = self._shelves.setdefault(slots, Shelf(slots)) if place is None else place[0]
        self._place[row] = shelf, shelf.put(None if place is None else place[1], row, free, models, same)

    def _number_anew(self) -> None:
        """Forget models that no GPU has any more: a broken node may have a new one in each report."""
        self._models, self._shelves, self._place = {}, {}, [None] * len(self._nodes)
        for node in self.nodes:
            self._set_gpus(self._row[node.name], node)
        self._most_models = max(MOST_MODELS, 2 * len(self._models))

    def _leave_shelf(self, row: int) -> None:
        if (place := self._place[row]) is not None:
            shelf, column = place
            shelf.clear(column)
            self._place[row] = None


@dataclass(frozen=True)
class _Fitting:
    """The nodes that a request fits on, one at least, as they were when it was decided."""

    rows: NDArray[np.int64]
    count: Bytes
    total: Bytes
    """Stage 3's order, of each of `rows`."""
    wished: Mask | None
    """Of each of them, whether it has the model that was named; `None`: none was, or all of them have it."""
    names: tuple[str, ...]
    """Row → name."""

    def first(self, ranks: Callable[[], NDArray[np.int64]]) -> int:
        """Row of the least in the order; of several the first by name (`ranks`: row → place in the order of names)."""
        least = self.count == self.count.min()
        rows, total = self.rows[least], self.total[least]
        alike = total == total.min()
        rows = rows[alike]
        if self.wished is not None and len(rows) > 1 and (having := self.wished[least][alike]).any():
            rows = rows[having]
        return int(rows[ranks()[rows].argmin()]) if len(rows) > 1 else int(rows[0])

    def in_order(self) -> tuple[str, ...]:
        """The names of all, in the order."""
        names = [self.names[row] for row in self.rows.tolist()]
        without = [False] * len(names) if self.wished is None else (~self.wished).tolist()
        return tuple(
            name for *_, name in sorted(zip(self.count.tolist(), self.total.tolist(), without, names, strict=True))
        )


class _Label:
    """The values of one label key on all rows, as small numbers, so that comparing them is one pass over an array."""

    def __init__(self) -> None:
        self._value = np.full(0, -1, dtype=np.int32)  # row → number of its value, -1 without the label
        self._number: dict[str, int] = {}
        self.used = 0
        """Rows that have the label."""

    def set(self, row: int, value: str | None) -> None:
        if row >= len(self._value):
            self._value = grown(self._value, max(16, row * 2), -1)
        number = -1 if value is None else self._number.setdefault(value, len(self._number))
        self.used += (number >= 0) - bool(self._value[row] >= 0)
        self._value[row] = number

    def having(self, value: str, rows: int) -> Mask:
        if value not in self._number:
            return np.zeros(rows, dtype=np.bool_)
        if len(self._value) < rows:
            self._value = grown(self._value, rows, -1)
        return np.asarray(self._value[:rows] == self._number[value])


def _same_store(before: Node, node: Node) -> bool:
    """Whether nothing is known anew of its model store. (The cache keeps the object for as long as nothing is.)"""
    if before.models is not node.models:
        return False
    return before.model_store == node.model_store and before.models_write == node.models_write


def _free(gpu: Gpu, shared: bool) -> int:
    if not lends(gpu, shared):
        return ABSENT
    assert gpu.memory_free is not None
    return gpu.memory_free


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

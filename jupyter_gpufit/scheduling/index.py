"""The cluster as arrays, kept up to date node by node, so that a decision walks no GPU objects.

    Index ─┬─ one row per node: order of names, idle GPUs and free memory in total, labels
           └─ Shelf: the GPUs of all nodes with about as many of them, a column of slots each ─ Columns → Policy.screen

A decision is: filters and `Policy.screen` give the rows that fit; of these the least in stage 3's order is the target;
only that node's GPU objects are then looked at, to choose among them. The others that fit are put in order when
somebody asks; why the rest do not is worked out then, too, by the walk of `fit.py` over the nodes as they were.

numpy is imported here and in `shelves.py`, and nowhere else in this room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models import Gpu, Node, Request
from .candidates import by_index, glob, is_literal, lends, model_glob, pool_of
from .fit import NOTHING, Decision, select
from .policies import Policy, find
from .shelves import ABSENT, Bytes, Mask, Shelf, counted, grown

__all__ = ["Index"]

MOST_MODELS = 10_000  # names of models that are numbered before those that no GPU has any more are forgotten
MOST_PATTERNS = 64  # node globs whose rows are remembered


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
        # Worked out when needed, dropped when out of date:
        self._snapshot: tuple[Node, ...] | None = None
        self._names: tuple[str, ...] | None = None  # by row; a spare row has the name that it had
        self._rank: NDArray[np.int64] | None = None  # row → place in the order of names
        self._patterns: dict[str, Mask] = {}
        for node in nodes:
            self.update(node)

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, name: object) -> bool:
        return name in self._row

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes as they are now."""
        if self._snapshot is None:
            self._snapshot = tuple(filter(None, self._nodes))
        return self._snapshot

    def update(self, node: Node) -> None:
        """Add `node`, or put it in the place of the one of that name. Called by the scheduler on each change."""
        row = self._row.get(node.name)
        if row is None:
            row = self._new_row(node.name)
        before, self._nodes[row] = self._nodes[row], node
        self._snapshot = None
        self._set_labels(row, {} if before is None else before.labels, node.labels)
        self._set_gpus(row, node)
        if len(self._models) > self._most_models:
            self._number_anew()

    def remove(self, name: str) -> None:
        """Forget the node of that name; quiet if there is none."""
        row = self._row.pop(name, None)
        if row is None:
            return
        node, self._nodes[row] = self._nodes[row], None
        assert node is not None
        self._set_labels(row, node.labels, {})
        self._leave_shelf(row)
        self._count[:, row] = self._total[:, row] = 0
        self._spare.append(row)
        self._snapshot = None  # the order of the other names, and which of them match a glob, is as before

    def select(
        self, request: Request, policy: str | Policy = "best-fit", exclude: Mapping[str, str] = NOTHING
    ) -> Decision:
        """The decision that `fit.select` comes to on the nodes as they are now. Raises `InvalidValue` likewise."""
        policy = find(policy)
        fitting = self._fitting(request, policy, exclude)
        placement = None
        if fitting is not None:
            row = fitting.first(self._ranks)
            node = self._nodes[row]
            assert node is not None
            placement = policy.place(pool_of(node, request))
        in_order = tuple if fitting is None else fitting.in_order
        return Decision(request, policy, placement, self.nodes, dict(exclude), in_order)

    # --- a decision

    def _fitting(self, request: Request, policy: Policy, exclude: Mapping[str, str]) -> _Fitting | None:
        """The nodes that fit, or `None`."""
        if request.node is not None and is_literal(request.node):
            row = self._row.get(request.node)
            return None if row is None else self._walk([self._nodes[row]], request, policy, exclude)
        shared = int(request.shared)
        models = None if request.model is None else self._models_like(request.model)
        fitting, counts, totals = [], [], []
        for shelf in self._shelves.values():
            columns = shelf.columns(request.shared, models)
            mask = policy.screen(columns, request)
            if mask is None:
                return self._walk(self.nodes, request, policy, exclude)
            at = np.flatnonzero(mask)
            rows = shelf.rows[at]
            fitting.append(rows)
            if models is None:
                counts.append(self._count[shared, rows])
                totals.append(self._total[shared, rows])
            else:
                free = columns.free[:, at]
                counts.append(counted(free >= 0).astype(np.int64))
                totals.append(np.maximum(free, 0).sum(axis=0))
        if not fitting:
            return None
        rows, count, total = _joined(fitting), _joined(counts), _joined(totals)
        if (allowed := self._allowed(request, exclude)) is not None:
            keep = allowed[rows]
            rows, count, total = rows[keep], count[keep], total[keep]
        return _Fitting(rows, count, total, self._named()) if len(rows) else None

    def _walk(
        self, nodes: Iterable[Node | None], request: Request, policy: Policy, exclude: Mapping[str, str]
    ) -> _Fitting | None:
        """Those of a few nodes, or for a policy without `screen`: as `select` finds them, in its order."""
        names = select([node for node in nodes if node is not None], request, policy, exclude).fitting
        place = np.arange(len(names))
        rows = np.array([self._row[name] for name in names], dtype=np.int64)
        return _Fitting(rows, place, place, self._named()) if names else None

    def _allowed(self, request: Request, exclude: Mapping[str, str]) -> Mask | None:
        """Which rows the request's node glob and labels and the exclusions leave; `None`: all."""
        if request.node is None and not request.labels and not exclude:
            return None
        allowed = np.ones(len(self._nodes), dtype=np.bool_)
        if request.node is not None:
            allowed &= self._named_like(request.node)
        for key, value in request.labels.items():
            if key not in self._labels:
                return np.zeros(len(self._nodes), dtype=np.bool_)
            allowed &= self._labels[key].having(value, len(allowed))
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
            self._place.append(None)
            if row == self._count.shape[1]:
                capacity = max(16, row * 2)
                self._count = grown(self._count, capacity, 0)
                self._total = grown(self._total, capacity, 0)
        self._row[name] = row
        self._rank = self._names = None
        self._patterns.clear()
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
    names: tuple[str, ...]
    """Row → name."""

    def first(self, ranks: Callable[[], NDArray[np.int64]]) -> int:
        """Row of the least in the order; of several the first by name (`ranks`: row → place in the order of names)."""
        least = self.count == self.count.min()
        rows, total = self.rows[least], self.total[least]
        rows = rows[total == total.min()]
        return int(rows[ranks()[rows].argmin()]) if len(rows) > 1 else int(rows[0])

    def in_order(self) -> tuple[str, ...]:
        """The names of all, in the order."""
        names = (self.names[row] for row in self.rows.tolist())
        return tuple(name for _, _, name in sorted(zip(self.count.tolist(), self.total.tolist(), names, strict=True)))


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


def _free(gpu: Gpu, shared: bool) -> int:
    if not lends(gpu, shared):
        return ABSENT
    assert gpu.memory_free is not None
    return gpu.memory_free


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

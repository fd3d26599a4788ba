"""What people ask for, as far as it is known: counts of the shapes of requests, in which old ones fade.

    Request ─ Mix.count ─→ Mix ─ demand(mix, nodes) ─→ Demand → potentials.py
                            └─ encode/decode: the store

The scheduler counts each request once, when it is made, whether it is placed or not. Learning from the counts takes
some tens of milliseconds and is nothing for the moment of a decision: `Mix.due` says when it pays to do it again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import InvalidValue
from ..models import Node, Request
from .candidates import model_glob
from .worth import WHOLE, Values, linear, worth

__all__ = ["Block", "Demand", "Kind", "Mix", "Shape", "demand", "gpus_there", "kind_of", "need"]

HALF = 5_000
"""Requests after which one counts half."""
MOST_SHAPES = 1_000  # that are counted; the rarest are forgotten first
FEW = 25
"""Requests before which nothing is concluded from them."""
_MOST_BLOCKS = 8
_MOST_SIZES = 16  # different sizes of GPUs for which values are worked out


class Shape(Struct, frozen=True, array_like=True, gc=False):
    """What requests have in common that matter alike."""

    gpus: int
    size: int
    """Bytes on each (the largest)."""
    whole: bool
    """GPUs of its own, not parts of them."""
    cores: float
    gpu_model: str | None


class Mix:
    """Counts of shapes. Encodable; the same requests in the same order give the same counts."""

    def __init__(self) -> None:
        self.seen = 0
        """Requests counted."""
        self._weight = 1.0  # of the next one: it grows, which is as if all the others shrank
        self._counts: dict[Shape, float] = {}

    @property
    def counts(self) -> Mapping[Shape, float]:
        """How often each shape came, the last one as 1."""
        return {shape: count / self._weight for shape, count in self._counts.items()}

    def count(self, request: Request) -> None:
        cores = round(request.cpus or 0.0, 2)
        shape = Shape(request.gpus, max(request.sizes), not request.shared, cores, request.gpu_model)
        self.seen += 1
        self._weight *= 2 ** (1 / HALF)
        self._counts[shape] = self._counts.get(shape, 0.0) + self._weight
        if len(self._counts) > MOST_SHAPES:
            most = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[: MOST_SHAPES * 9 // 10]
            self._counts = {shape: self._counts[shape] for shape in most}
        if self._weight > 1e100:
            self._counts, self._weight = dict(self.counts), 1.0

    def due(self, learned: int) -> bool:
        """Whether it pays to learn from it anew, after it was done when `learned` requests had been counted."""
        return self.seen - learned >= min(1_000, max(FEW, learned // 2))

    def encode(self) -> bytes:
        return msgspec.json.encode({"seen": self.seen, "counts": list(self.counts.items())})

    @classmethod
    def decode(cls, data: bytes) -> Mix:
        """Raises `InvalidValue` for what is none."""
        try:
            kept = msgspec.json.decode(data, type=_Kept)
        except msgspec.DecodeError as error:
            raise InvalidValue(f"the mix of requests cannot be read: {error}") from None
        mix = cls()
        mix.seen, mix._counts = kept.seen, dict(kept.counts)
        return mix


class _Kept(Struct):
    seen: int
    counts: list[tuple[Shape, float]]


@dataclass(frozen=True)
class Kind:
    """GPUs that are all alike to a request: of one model, with so many bytes in all."""

    model: str
    total: int


def kind_of(model: str, total: int | None) -> Kind:
    return Kind(model, total or 0)


def need(size: int, kind: Kind) -> int:
    """The thousandths of a GPU of that kind that `size` bytes are; more than all of it if it does not fit."""
    if size <= 0:
        return 0
    return min(WHOLE + 1, -(-size * WHOLE // kind.total)) if kind.total > 0 else WHOLE + 1


@dataclass(frozen=True)
class Block:
    """So many whole GPUs with so many cores, on one node: what requests for several GPUs want."""

    gpus: int
    cores: float
    gpu_model: str | None
    part: float
    """Of all GPUs asked for."""


@dataclass(frozen=True)
class Demand:
    """What the requests of a mix want of a cluster."""

    values: Mapping[int, Values]
    """Total bytes of a GPU → what free parts of it are worth (`worth.py`)."""
    cores: float | None
    """That come with a GPU; `None`: nobody asks for any."""
    prices: Mapping[Kind, float]
    """How sought after the GPUs are: GPUs asked for that may be of that kind, to those there are; 1 on the average."""
    blocks: tuple[Block, ...]
    """The most sought after ones."""
    typical: tuple[tuple[Shape, float], ...]
    """The most frequent shapes, with their part of these."""

    def value(self, total: int) -> Values:
        """Those of the GPUs of that size; or of the size nearest to it."""
        if not self.values:
            return linear()
        return self.values[min(self.values, key=lambda known: abs(known - total))]


NOTHING = Demand({}, None, {}, (), ())
"""Before anything is known."""


def demand(mix: Mix, nodes: Iterable[Node]) -> Demand:
    """What can be concluded from `mix` for the cluster of these nodes. Pure; takes tens of milliseconds."""
    counts = mix.counts
    there = gpus_there(nodes)
    if mix.seen < FEW or not there:
        return NOTHING
    fitting = {shape: _fitting(shape, there) for shape in counts}
    asked = {shape: count * _gpus_of(shape, fitting[shape]) for shape, count in counts.items()}
    if not (total := sum(asked.values())):
        return NOTHING
    all_gpus = sum(there.values())
    prices: dict[Kind, float] = defaultdict(float)
    blocks: dict[tuple[int, float, str | None], float] = defaultdict(float)
    for shape, gpus in asked.items():
        capacity = sum(fitting[shape].values())
        for kind in fitting[shape]:
            prices[kind] += gpus / total * all_gpus / capacity
        if shape.gpus > 1 and shape.whole:
            blocks[shape.gpus, shape.cores, shape.gpu_model] += gpus / total
    most = sorted(blocks.items(), key=lambda item: (-item[1], str(item[0])))[:_MOST_BLOCKS]
    cores = sum(shape.cores * count for shape, count in counts.items() if asked[shape]) / total
    return Demand(
        values=_values(counts, there),
        cores=cores or None,
        prices={kind: prices[kind] for kind in there},
        blocks=tuple(Block(*key, part) for key, part in most),
        typical=_typical(counts),
    )


def gpus_there(nodes: Iterable[Node]) -> dict[Kind, int]:
    """How many of each kind there are."""
    there = Counter((gpu.model, gpu.memory_total) for node in nodes for gpu in node.gpus if gpu.allocatable)
    return {kind_of(model, total): count for (model, total), count in there.items() if total}


def _fitting(shape: Shape, there: Mapping[Kind, int]) -> dict[Kind, int]:
    """The kinds of GPUs on which it may run, and how many there are of each."""
    match: Any = (lambda model: True) if shape.gpu_model is None else model_glob(shape.gpu_model)
    return {kind: count for kind, count in there.items() if need(shape.size, kind) <= WHOLE and match(kind.model)}


def _gpus_of(shape: Shape, kinds: Mapping[Kind, int]) -> float:
    """GPUs that it takes, parts as parts (of the average GPU where it may run)."""
    if not kinds:
        return 0.0
    if shape.whole:
        return float(shape.gpus)
    parts = sum(need(shape.size, kind) * count for kind, count in kinds.items()) / sum(kinds.values())
    return shape.gpus * parts / WHOLE


def _values(counts: Mapping[Shape, float], there: Mapping[Kind, int]) -> dict[int, Values]:
    totals: dict[int, int] = defaultdict(int)
    for kind, count in there.items():
        totals[kind.total] += count
    values = {}
    for total in sorted(totals, key=lambda total: (-totals[total], total))[:_MOST_SIZES]:
        parts: dict[int, float] = defaultdict(float)
        for shape, often in counts.items():
            if not shape.whole:
                parts[need(shape.size, Kind("", total))] += often * shape.gpus
        values[total] = worth(parts)
    return values


def _typical(counts: Mapping[Shape, float], part: float = 0.95, most: int = 200) -> tuple[tuple[Shape, float], ...]:
    chosen: list[Shape] = []
    sum_of_all, so_far = math.fsum(counts.values()), 0.0
    for shape in sorted(counts, key=lambda shape: (-counts[shape], str(shape))):
        if so_far >= part * sum_of_all or len(chosen) == most:
            break
        so_far += counts[shape]
        chosen.append(shape)
    return tuple((shape, counts[shape] / so_far) for shape in chosen)

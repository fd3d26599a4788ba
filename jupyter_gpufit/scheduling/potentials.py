"""Policies that choose the node where placing costs least worth: `fragmentation` and `balance`.

A potential gives each node a height, by what is free there; the request goes where that rises least. Stages 1, 2 and 4,
and which GPUs of the node are taken, are those of `best-fit`; stage 3 alone is another.

    mix.py ─ Demand ─→ Fragmentation, Balance ─ height, blocks ─→ terrain.py → stage 3's key of each node

What both go by is what people ask for (`mix.py`): `learned` gives the policy that knows it. Until then the order is the
one of `best-fit`, too: heights by which all requests are alike would break up what is whole. Both are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..models import Node, Request
from .candidates import Pool, model_glob
from .mix import NOTHING, Block, Demand, Kind, Mix, demand, need
from .policies import BestFit
from .terrain import Floats, Ints, Rooms, Terrain
from .worth import WHOLE

__all__ = ["Balance", "Fragmentation", "Potential"]


class Potential(BestFit):
    """`best-fit`, but for the order of the nodes: where placing raises the height least comes first."""

    by = "the node first where it costs least of what others could use"
    learns = True

    def __init__(self, demand: Demand = NOTHING) -> None:
        self.demand = demand
        if not self.knows:
            self.by = f"{BestFit.by} (until more is known of what people ask for)"

    @property
    def knows(self) -> bool:
        """Whether there is anything to go by."""
        return self.demand is not NOTHING

    def learned(self, mix: Mix, nodes: Iterable[Node]) -> Self:
        """The policy for what is known now of what people ask. Takes tens of milliseconds."""
        return type(self)(demand(mix, nodes))

    def terrain(self, before: Terrain | None) -> Terrain | None:
        if not self.knows:
            return None
        if before is None:
            return Terrain(self)
        before.go_by(self)
        return before

    def ordering(self, nodes: Sequence[Node], request: Request) -> Callable[[Pool], tuple[int, int]]:
        if not self.knows:
            return self.order
        costs = Terrain(self, enumerate(nodes)).costs(request, np.arange(len(nodes))).tolist()
        of_each = {node.name: cost for node, cost in zip(nodes, costs, strict=True)}
        return lambda pool: (of_each[pool.node.name], 0)

    # What `terrain.py` asks

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Of what the breaking has a price."""
        return ()

    def tables(self, kinds: tuple[Kind, ...]) -> Any:
        """Whatever `height` and `count_blocks` need to know of the kinds of GPUs there are."""
        raise NotImplementedError

    def height(self, rooms: Rooms, tables: Any) -> Floats:
        """Of each node."""
        raise NotImplementedError

    def rounded(self, rise: Floats) -> Floats:
        """What a rise costs. What comes to the same is a tie, and goes to the first node by name."""
        return rise

    def count_blocks(self, rooms: Rooms, tables: Any) -> Ints:
        """[block, node] → how many of it are there."""
        raise NotImplementedError

    def prices(self, gpus: Ints, blocks: Ints, free: float) -> Floats:
        """Of breaking one of each block: it has so many GPUs, there are so many of it, and so many GPUs are free."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Sizes:
    """What `fragmentation` knows of the typical requests: a column for each of the sizes that they ask."""

    needs: Ints
    """[kind, size] → thousandths of such a GPU; more than all if it may not be of that kind."""
    gpus: Ints
    steps: Floats
    """Numbers of cores that are asked with them, ascending."""
    parts: Floats
    """[steps that are free, size] → of all requests, those that are of this size and have cores enough."""


class Fragmentation(Potential):
    """`fragmentation`: the height of a node is the free memory of GPUs that is of no use to the requests people make,
    on the average over them.

    To a request all free memory of a node is of no use if it cannot run there, else what is on GPUs too small for it.
    After Weng and others, "Beware of Fragmentation" (USENIX ATC 2023). As there, a rise is only told apart roughly (by
    the hundredth of its logistic function) and ties go to the first node: that is what makes it fill one by one.
    """

    name = "fragmentation"
    without = 0.13
    """The part of all work that asks for no GPU, to which all that is free is of no use; as on the trace that it
    was made for. We never see such work, but it decides how roughly rises are told apart: without it the trace's
    default load fills some tenths of a point less, by the authors' rules (`bench/trace_references.py`), too."""

    def tables(self, kinds: tuple[Kind, ...]) -> _Sizes:
        needs: dict[tuple[tuple[int, ...], int], None] = {}
        rows = []
        for shape, part in self.demand.typical:
            match: Any = (lambda model: True) if shape.gpu_model is None else model_glob(shape.gpu_model)
            whole = [WHOLE if need(shape.size, kind) <= WHOLE else WHOLE + 1 for kind in kinds]
            each = whole if shape.whole else [max(1, need(shape.size, kind)) for kind in kinds]
            each = [size if match(kind.model) else WHOLE + 1 for size, kind in zip(each, kinds, strict=True)]
            needs.setdefault((tuple(each), shape.gpus))
            rows.append(((tuple(each), shape.gpus), shape.cores, part))
        sizes = {size: at for at, size in enumerate(needs)}
        steps = sorted({cores for _, cores, _ in rows})
        parts = np.zeros((len(steps) + 1, len(sizes)))
        for size, cores, part in rows:
            parts[steps.index(cores) + 1 :, sizes[size]] += part * (1 - self.without)
        return _Sizes(
            np.array([each for each, _ in sizes], dtype=np.int64).T.reshape(len(kinds), len(sizes)),
            np.array([gpus for _, gpus in sizes], dtype=np.int64),
            np.array(steps),
            parts,
        )

    def height(self, rooms: Rooms, tables: _Sizes) -> Floats:
        # Cores that are not known are enough (and `nan` is sorted last).
        parts = tables.parts[np.searchsorted(tables.steps, rooms.cores, side="right")]
        count = np.zeros(parts.shape, dtype=np.int64)
        useful = np.zeros(parts.shape, dtype=np.int64)
        for free, kind in zip(rooms.free, rooms.kind, strict=True):
            serves = free[:, None] >= tables.needs[kind]
            count += serves
            useful += serves * free[:, None]
        useful[count < tables.gpus] = 0
        lost = rooms.free.sum(axis=0) - np.einsum("ns,ns->n", parts, useful)
        return np.asarray(lost / WHOLE)

    def rounded(self, rise: Floats) -> Floats:
        return np.asarray(-np.floor(100 / (1 + np.exp(np.clip(np.round(rise, 9), -50, 50)))))


@dataclass(frozen=True)
class Setting:
    """How `balance` weighs. The numbers were found on the Alibaba trace (`bench/trace.py`)."""

    block: float = 0.2
    """What breaking a block costs at most, in GPUs, for each GPU of it."""
    scarce: float = 2.0
    """How many times as many there have to be of a block as are asked for, for it not to be scarce."""
    least: float = 0.01
    """What differs by less costs the same, so that nodes are filled one by one. (Without it things get scattered where
    they come and go.)"""

    # The height of a node, by what is free on each of its GPUs, in GPUs: it falls by ...
    worth: float = 0.7
    """... what that can serve,"""
    sought: float = 0.35
    """... how sought after the GPUs are (`Demand.prices`);"""
    gather: float = 0.15
    """it rises for what is scattered: for each GPU that is not all taken, the more the less is free (to the power of
    0.6), and for what is free on the node in all (to the power of 0.95),"""
    cores: float = 2.0
    """... by what is worth nothing for want of cores: most, if there are this many times less than come with GPUs; and
    a little by cores that nobody will use, those beyond this many times as many,"""
    idle_core: float = 0.0012
    """for each of them."""


@dataclass(frozen=True)
class _Worths:
    """What `balance` knows of the kinds of GPUs: [kind × (thousandths free)], flat."""

    use: Floats
    """What free parts are worth."""
    own: Floats
    """Their height, but for all that hangs on other GPUs and on cores."""
    may: tuple[tuple[NDArray[np.bool_] | None, list[int]], ...]
    """Of which kinds the GPUs may be (`None`: of all), and the blocks of which that is so."""
    gpus: Floats
    """[block, 1] → GPUs of it."""
    cores: Floats
    """[block, 1] → cores that go with them."""


class Balance(Potential):
    """`balance`: what is free is worth what it can serve (`worth.py`), GPUs are worth less without cores to go with
    them, those that many ask for are worth more, and nodes with room for requests for several GPUs are kept for them as
    these get scarce.

    `bench/trace.py` says how full clusters get by it.
    """

    name = "balance"

    def __init__(self, demand: Demand = NOTHING, setting: Setting = Setting()) -> None:
        super().__init__(demand)
        self.setting = setting

    def learned(self, mix: Mix, nodes: Iterable[Node]) -> Self:
        return type(self)(demand(mix, nodes), self.setting)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.demand.blocks

    def tables(self, kinds: tuple[Kind, ...]) -> _Worths:
        by, part = self.setting, np.arange(WHOLE + 1) / WHOLE
        use, own = [], []
        for kind in kinds:
            value = self.demand.value(kind.total)
            use.append(value)
            height = by.gather * part**0.6 - by.worth * value
            own.append(height - by.sought * self.demand.prices.get(kind, 1.0) * part)
        may: dict[tuple[bool, ...], list[int]] = {}
        for at, block in enumerate(self.blocks):
            match: Any = (lambda model: True) if block.gpu_model is None else model_glob(block.gpu_model)
            may.setdefault(tuple(bool(match(kind.model)) for kind in kinds), []).append(at)
        return _Worths(
            np.concatenate(use),
            np.concatenate(own),
            tuple((None if all(kinds) else np.array(kinds), blocks) for kinds, blocks in may.items()),
            np.array([[float(block.gpus)] for block in self.blocks]),
            np.array([[block.cores] for block in self.blocks]),
        )

    def height(self, rooms: Rooms, tables: _Worths) -> Floats:
        by, at = self.setting, rooms.kind * (WHOLE + 1) + rooms.free
        use = tables.use.take(at).sum(axis=0)
        height = np.asarray(tables.own.take(at).sum(axis=0) + by.gather * use**0.95)
        if (per_gpu := self.demand.cores) is None:
            return height
        cores = rooms.cores
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            short = cores * by.cores / (per_gpu * use)
            of_cores = use * np.exp(-(short * short * short))
            of_cores += by.idle_core * np.maximum(0.0, cores - by.cores * per_gpu * use)
        of_cores[np.isnan(of_cores)] = 0.0  # where they are not known, or there is nothing at all
        return np.asarray(height + of_cores)

    def rounded(self, rise: Floats) -> Floats:
        least = self.setting.least
        return np.round(rise / least) * least if least else rise

    def count_blocks(self, rooms: Rooms, tables: _Worths) -> Ints:
        whole = rooms.free == WHOLE
        gpus = np.zeros((len(self.blocks), len(rooms.cores)))
        for kinds, blocks in tables.may:
            gpus[blocks] = (whole if kinds is None else whole & kinds[rooms.kind]).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_cores = rooms.cores / tables.cores
        return np.floor(np.fmin(gpus / tables.gpus, by_cores)).astype(np.int64)  # `fmin`: what is not known is enough

    def prices(self, gpus: Ints, blocks: Ints, free: float) -> Floats:
        parts = np.array([block.part for block in self.blocks])
        scarcity = self.setting.scarce * parts * free / np.maximum(gpus * blocks, 1e-9)
        return np.asarray(self.setting.block * gpus * np.minimum(1.0, scarcity) ** 3)

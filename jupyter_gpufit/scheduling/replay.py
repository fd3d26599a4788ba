"""What each policy would have made of requests that were made: the same ones, as they came, on the same nodes. Pure.

    Recorded (`recording.py`) ─ arrivals ─→ Arrival ─┐
    Node ─ emptied ──────────────────────────────────┴─ replay(policy) ─→ Outcome ─┬─ figures ─→ Figures
                                                                                   └─ verdict of several (`verdict.py`)

Time is simulated. What decides is `Index.select`, as in the scheduler, and a policy that learns what people ask learns
it on the way, as there. Each request holds its GPUs for as long as it did, wherever it goes.

Of the queue (`queueing.py`, `backfill.py`) only this is kept: those that wait get what they need in their order, by
priority and age, and are refused when they have waited for as long as they said. A later one goes first where it fits
and the first one does not, but only `OVERTAKES` times; then nothing starts before the first one has. Quotas, images
and what others do on the nodes are not simulated.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..models import Gpu, Node, Placement, Request
from .index import Index
from .mix import Mix
from .policies import BestFit, Claim, Policy
from .recording import Recorded

__all__ = ["Arrival", "Figures", "Lifetimes", "Outcome", "arrivals", "demands", "emptied", "fitting", "replay"]

OVERTAKES = 8
"""How many later requests may go before the first one of those that wait (`LocalScheduler.overtakes`)."""
AN_HOUR = 3600.0
"""How long something runs of which nothing at all is known."""
_TELL_EVERY = 200  # requests

Rank = tuple[int, int]


@dataclass(frozen=True)
class Arrival:
    """A request at a moment of the replay."""

    at: float
    request: Request
    lifetime: float
    """Seconds for which it needs its GPUs."""

    @property
    def patience(self) -> float:
        """Seconds for which it waits."""
        return float(self.request.wait or 0)


class Lifetimes(Struct, frozen=True, kw_only=True):
    """How it is known for how long things ran: of how many requests."""

    known: int
    guessed: int
    """Still running, or never run: the median of those with as many GPUs (of all, if there are none), but not more
    than their `time`; that alone, or an hour, if nothing is known."""


def arrivals(requests: Sequence[Recorded], load: float = 1.0) -> tuple[list[Arrival], Lifetimes]:
    """The requests, `load` times as fast one after the other."""
    known: dict[int, list[float]] = {}
    for one in requests:
        if one.lifetime is not None:
            known.setdefault(one.request.gpus, []).append(one.lifetime)
    of_gpus = {gpus: median(lifetimes) for gpus, lifetimes in known.items()}
    of_all = median(lifetime for lifetimes in known.values() for lifetime in lifetimes) if known else None

    def guess(request: Request) -> float:
        usual = of_gpus.get(request.gpus, of_all)
        limit = None if request.time is None else float(request.time)
        return min((span for span in (usual, limit) if span is not None), default=AN_HOUR)

    begin = requests[0].asked if requests else 0.0
    made = [
        Arrival((one.asked - begin) / load, one.request, guess(one.request) if one.lifetime is None else one.lifetime)
        for one in requests
    ]
    count = sum(map(len, known.values()))
    return made, Lifetimes(known=count, guessed=len(made) - count)


def emptied(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that can be used, as they are when nothing runs on them."""
    return [
        replace(node, gpus=tuple(map(_emptied, node.gpus)), cpus_free=node.cpus, ram_free=node.ram, age=0.0)
        for node in nodes
        if node.reason is None
    ]


def _emptied(gpu: Gpu) -> Gpu:
    # What is free of an idle GPU is known better than by its size: drivers keep a little.
    free = gpu.memory_free if gpu.idle and gpu.memory_free else gpu.memory_total
    return replace(
        gpu,
        memory_free=free,
        idle=gpu.allocatable,
        shareable=False,
        processes=(),
        allocations=(),
        memory_claimed=0,
        memory_foreign=0,
    )


def fitting(nodes: Sequence[Node], arriving: Sequence[Arrival]) -> tuple[list[Arrival], int]:
    """Those that `best-fit` finds a place for on the empty nodes; and how many it never does."""
    index, found, policy = Index(nodes), dict[Any, bool](), BestFit()
    fits = []
    for arrival in arriving:
        key = _key(arrival.request)
        if key not in found:
            found[key] = index.select(arrival.request, policy).placement is not None
        if found[key]:
            fits.append(arrival)
    return fits, len(arriving) - len(fits)


def demands(nodes: Sequence[Node], arriving: Iterable[Arrival]) -> list[float]:
    """GPU hours of each; of a GPU that is shared, by the part of an average one's memory that it asks."""
    totals = [gpu.memory_total for node in nodes for gpu in node.gpus if gpu.allocatable and gpu.memory_total]
    average = fmean(totals) if totals else 1.0

    def gpus(request: Request) -> float:
        if not request.shared:
            return float(request.gpus)
        return sum(min(1.0, size / average) for size in request.sizes)

    return [gpus(arrival.request) * arrival.lifetime / 3600 for arrival in arriving]


@dataclass
class Outcome:
    """What became of the requests under one policy, in their order."""

    policy: str
    served: list[bool]
    waits: list[float]
    """Seconds; of one that was refused, those that it waited in vain."""
    held: float = 0.0
    """GPU seconds."""
    busy: float = 0.0
    """Seconds in which something ran, times the GPUs there are."""
    when_short: list[float] = field(default_factory=list)
    """The part of the GPUs that was held, each time that a request found no place at once."""


class Figures(Struct, frozen=True, kw_only=True):
    """An outcome in figures. Parts are from 0 to 1, times in seconds."""

    policy: str
    requests: int
    at_once: float
    """Part of the requests."""
    wait_mean: float | None
    """Of those that were served; `None`: none was."""
    wait_95: float | None
    """95 of 100 waited for no longer."""
    refused: int
    refused_gpu_hours: float
    served_gpu_hours: float
    allocated: float | None
    """Part of the GPUs that was held on the average while something ran."""
    allocated_when_short: float | None
    """... and at the moments in which a request found no place: what was then free was of no use to it."""


def figures(outcome: Outcome, hours: Sequence[float]) -> Figures:
    """`hours`: as `demands` gives them."""
    waits = sorted(wait for wait, served in zip(outcome.waits, outcome.served, strict=True) if served)
    count = len(outcome.served)
    served = sum(hour for hour, served in zip(hours, outcome.served, strict=True) if served)
    return Figures(
        policy=outcome.policy,
        requests=count,
        at_once=sum(wait == 0 for wait in waits) / count if count else 1.0,
        wait_mean=fmean(waits) if waits else None,
        wait_95=waits[min(len(waits) - 1, len(waits) * 95 // 100)] if waits else None,
        refused=count - len(waits),
        refused_gpu_hours=sum(hours) - served,
        served_gpu_hours=served,
        allocated=outcome.held / outcome.busy if outcome.busy else None,
        allocated_when_short=fmean(outcome.when_short) if outcome.when_short else None,
    )


def replay(
    nodes: Sequence[Node], arriving: Sequence[Arrival], policy: Policy, on_progress: Callable[[int], None] | None = None
) -> Outcome:
    """`nodes` as `emptied` gives them, `arriving` by time. `on_progress` is told now and then how many have come."""
    return _Replay(nodes, arriving, policy).run(on_progress or (lambda _: None))


class _Replay:
    def __init__(self, nodes: Sequence[Node], arriving: Sequence[Arrival], policy: Policy) -> None:
        self._arriving, self._floor = arriving, _Floor(nodes)
        self._policy, self._mix, self._learned = policy, Mix(), 0
        numbers: dict[Any, int] = {}
        self._keys = [numbers.setdefault(_key(one.request), len(numbers)) for one in arriving]
        self._short: set[int] = set()  # keys of which nothing fits before something ends
        self._waiting: list[Rank] = []
        self._of_key: dict[int, list[Rank]] = {}  # those that wait, likewise in their order
        self._overtaken: dict[int, int] = {}
        self._ends: list[tuple[float, int, int, Placement | None]] = []  # when, 0 of a run or 1 of a wait, whose, where
        self._now = 0.0
        self._outcome = Outcome(policy.name, [False] * len(arriving), [0.0] * len(arriving))

    def run(self, on_progress: Callable[[int], None]) -> Outcome:
        for number, arrival in enumerate(self._arriving):
            while self._ends and self._ends[0][0] <= arrival.at:
                self._end()
            self._pass(arrival.at)
            self._ask(number, arrival)
            if number % _TELL_EVERY == 0:
                on_progress(number)
        while self._ends:
            self._end()
        return self._outcome

    def _pass(self, now: float) -> None:
        span, self._now = now - self._now, now
        if self._floor.running:
            self._outcome.held += span * self._floor.held
            self._outcome.busy += span * self._floor.gpus

    def _ask(self, number: int, arrival: Arrival) -> None:
        self._learn(arrival.request)
        rank = self._rank(number)
        if self._may_go(rank):
            if self._start(number):
                return
            self._outcome.when_short.append(self._floor.held / (self._floor.gpus or 1))
        if arrival.patience > 0:
            insort(self._waiting, rank)
            insort(self._of_key.setdefault(self._keys[number], []), rank)
            heapq.heappush(self._ends, (arrival.at + arrival.patience, 1, number, None))

    def _learn(self, request: Request) -> None:
        if self._policy.learns:
            self._mix.count(request)
            if self._mix.due(self._learned):
                self._policy, self._learned = self._policy.learned(self._mix, self._floor.nodes), self._mix.seen

    def _may_go(self, rank: Rank) -> bool:
        if not self._waiting or rank <= self._waiting[0]:
            return True
        return self._overtaken.get(self._waiting[0][1], 0) < OVERTAKES

    def _rank(self, number: int) -> Rank:
        return -self._arriving[number].request.priority, number

    def _start(self, number: int) -> bool:
        """Whether it fits now; then it runs."""
        key, arrival = self._keys[number], self._arriving[number]
        if key in self._short:
            return False
        placement = self._floor.index.select(arrival.request, self._policy).placement
        if placement is None:
            self._short.add(key)
            return False
        self._floor.hold(placement, arrival.request)
        if isinstance(self._policy, Claim):  # by which a GPU that is too small may have been in the way
            self._short.clear()
        if self._waiting and self._waiting[0] < self._rank(number):
            first = self._waiting[0][1]
            self._overtaken[first] = self._overtaken.get(first, 0) + 1
        self._outcome.served[number] = True
        self._outcome.waits[number] = self._now - arrival.at
        heapq.heappush(self._ends, (self._now + arrival.lifetime, 0, number, placement))
        return True

    def _end(self) -> None:
        """Something ends, or somebody has waited for long enough: others may start."""
        at, _, number, placement = heapq.heappop(self._ends)
        if placement is None:
            if self._outcome.served[number]:
                return
            self._pass(at)
            self._outcome.waits[number] = self._arriving[number].patience
            self._leave(number)
        else:
            self._pass(at)
            self._floor.give_back(placement, self._arriving[number].request)
            self._short.clear()
        if self._waiting and not (self._ends and self._ends[0][:2] == (at, 0)):
            self._look()

    def _look(self) -> None:
        """Start those that wait and fit, in their order."""
        firsts = [(ranks[0], key) for key, ranks in self._of_key.items() if key not in self._short]
        heapq.heapify(firsts)
        while firsts:
            rank, key = heapq.heappop(firsts)
            if not self._may_go(rank):
                return
            if not self._start(rank[1]):
                continue
            self._leave(rank[1])
            if key in self._of_key:
                heapq.heappush(firsts, (self._of_key[key][0], key))

    def _leave(self, number: int) -> None:
        """It does not wait any more."""
        rank, key = self._rank(number), self._keys[number]
        self._overtaken.pop(number, None)
        ranks = self._of_key[key]
        for waiting in (self._waiting, ranks):
            del waiting[bisect_left(waiting, rank)]
        if not ranks:
            del self._of_key[key]


class _Floor:
    """The nodes, with what is held there."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        """Empty."""
        self.index = Index(nodes)
        self.gpus = sum(gpu.allocatable for node in nodes for gpu in node.gpus)
        self.running = 0
        self.held = 0.0
        """GPUs; of one that is shared the part of its memory."""
        self._empty = {node.name: node for node in nodes}
        self._now = dict(self._empty)
        self._claims: dict[tuple[str, str], list[int]] = {}  # node, uuid → bytes of each that shares it

    def hold(self, placement: Placement, request: Request) -> None:
        self._change(placement, request, True)

    def give_back(self, placement: Placement, request: Request) -> None:
        self._change(placement, request, False)

    def _change(self, placement: Placement, request: Request, holds: bool) -> None:
        name, sizes = placement.node, dict(zip(placement.gpus, placement.memory, strict=True))
        empty, now = self._empty[name], self._now[name]
        gpus = list(now.gpus)
        self.running += 1 if holds else -1
        for at, gpu in enumerate(empty.gpus):
            if (size := sizes.get(gpu.uuid)) is None:
                continue
            claims = self._claims.setdefault((name, gpu.uuid), [])
            if holds:
                claims.append(size)
            else:
                claims.remove(size)
            part = min(1.0, size / gpu.memory_total) if request.shared and gpu.memory_total else 1.0
            self.held += part if holds else -part
            free = (gpu.memory_free or 0) - sum(claims)
            gpus[at] = replace(gpu, memory_free=free, idle=False, shareable=request.shared) if claims else gpu
        self._now[name] = node = replace(
            now,
            gpus=tuple(gpus),
            cpus_free=_less(now.cpus_free, request.cpus, holds),
            ram_free=_less(now.ram_free, request.host_memory, holds),
        )
        self.index.update(node)


def _less(free: Any, asked: float | None, holds: bool) -> Any:
    if free is None or asked is None:
        return free
    return round(free - asked if holds else free + asked, 2)  # so that in the end all of it is there again


def _key(request: Request) -> tuple[object, ...]:
    """What of a request decides where it fits."""
    labels: Mapping[str, str] = request.labels
    return (
        request.sizes,
        request.shared,
        request.gpu_model,
        request.node,
        tuple(sorted(labels.items())),
        request.cpus,
        request.host_memory,
        request.share_card,
        request.model,
        request.require_model,
        request.write_models,
    )

"""What running allocations use of their GPUs, sample by sample; and those that use more than they asked for.

    nodes' reports ──sample_period──→ UsageSeries ─┬─ every 30 s, and before it ends ─→ `Used` (the ledger), the store
                                                   └─ over its size, twice running ──→ `OverUsed`, or `ReleaseAsked`

Only what was reported counts: one report is at most one sample, and a node that says nothing gives none. The memory is
that of the allocation's own processes, so what is said does not depend on who shares the GPU; the utilisation is the
GPU's. Docker does not limit GPU memory, so all there is against one that takes too much is to watch for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from ..errors import NotFound
from ..memory import format_memory
from ..models import Allocation, EndReason, Gpu, Node, State
from . import events as ev
from .entries import Entry
from .needs import Cluster
from .usage import UsageSeries

__all__ = ["PART", "Metering"]

PART = "usage"
"""What the series is kept as, in the store."""
_TELL_EVERY = 30.0  # s
_SAME_REPORT = 0.02  # s; ages are told with the little time that passes while they are
_TOLERANCE, _TOLERATED = 0.05, 256 * 2**20
"""So much over the size is none that was meant: a part of it, or bytes, whichever is more."""
_BEFORE = 60.0
"""s; a report that seems to be so much older than the allocation is not: the clock was set."""
_RUNNING = 2
"""Samples over the size, one after the other, until something is done about it."""


class Reading(Struct):
    """What the last report of its node says of one allocation."""

    gpus: tuple[str, ...]
    """Of which GPUs: it may have moved since then."""
    sampled: float
    """When, on our monotonic clock."""
    memory: list[int | None]
    busy: list[int | None]
    most: list[int]
    """The most memory in the reports since the last sample, this one not included."""


class Meter(Struct):
    """One allocation."""

    series: UsageSeries
    reading: Reading | None = None
    sampled: float = float("-inf")
    """When the report of the last sample was, on our monotonic clock."""
    told: float = float("-inf")
    """When the ledger and the store last heard of it; likewise."""
    news: bool = False
    """Whether there are samples since then."""
    over: dict[str, int] = {}
    """uuid -> samples running in which more than its size was used."""


class Metering:
    """Looks after all allocations of one scheduler. Made by it; for its event loop."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        cluster: Cluster,
        handle: Callable[[ev.Event], None],
        keep: Callable[[str, str, bytes], None],
        kept: Callable[[str, str], Awaitable[bytes | None]],
        clock: Callable[[], float],
        period: float,
        log: logging.Logger,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`entries` are the ledger's own; `handle` takes events to it; `keep` and `kept` are the store's; `clock` is
        Unix time; every `period` seconds there is a sample."""
        self._entries, self._cluster, self._handle = entries, cluster, handle
        self._keep, self._kept, self._clock, self._monotonic = keep, kept, clock, monotonic
        self._period, self._log = period, log
        self._meters: dict[str, Meter] = {}
        self._on: dict[str, list[str]] = {}  # node -> allocations that ran there at the last sample
        self._task: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to sample. Called when the scheduler opens."""
        self._deaf = self._cluster.on_change(self._heard)
        self._task = asyncio.create_task(self._keep_sampling())

    async def close(self) -> None:
        """Sample no more, and tell what is left to be told. Idempotent."""
        task, self._task = self._task, None
        if self._deaf is not None:
            self._deaf()
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        for id in list(self._meters):
            self.tell(id)

    def clock_set(self, by: float) -> None:
        """The clock was set by so many seconds."""
        for meter in self._meters.values():
            meter.series.shift(by)

    async def known(self, one: Allocation) -> UsageSeries:
        """What is known by now of one that runs, or did. Not to be added to."""
        meter = self._meters.get(one.id)
        return await self._found(one) if meter is None else meter.series

    def tell(self, id: str) -> None:
        """Tell the ledger and the store what is known by now. Called before any event of an allocation (it may be its
        last), and every now and then."""
        meter = self._meters.get(id)
        if meter is None or not meter.news:
            return
        meter.news, meter.told = False, self._monotonic()
        self._keep(id, PART, meter.series.encode())
        self._handle(ev.Used(id=id, usage=meter.series.usage()))

    async def sample(self) -> None:
        """Take a sample of every allocation that runs, of whose node there is a report since the last one, and do what
        follows from it. Called by its own task."""
        running = [entry for entry in self._entries.values() if _measurable(entry)]
        known = {entry.id for entry in self._entries.values() if entry.state in (State.RUNNING, State.STOPPING)}
        self._meters = {id: meter for id, meter in self._meters.items() if id in known}
        self._on = {}
        for entry in running:
            self._on.setdefault(str(entry.allocation.node), []).append(entry.id)
        if not running:
            return
        meters = [(entry, await self._meter(entry.allocation)) for entry in running]
        # From here on nothing is waited for: the nodes' ages are those of this moment.
        now, nodes = self._monotonic(), {node.name: node for node in self._cluster.nodes()}
        for entry, meter in meters:
            node = nodes.get(str(entry.allocation.node))
            if _measurable(entry) and node is not None:  # still
                self._sample_of(entry.allocation, meter, node, now)

    # --- one allocation

    async def _meter(self, one: Allocation) -> Meter:
        meter = self._meters.get(one.id)
        if meter is None:
            meter = Meter(await self._found(one))
            meter = self._meters.setdefault(one.id, meter)
        return meter

    async def _found(self, one: Allocation) -> UsageSeries:
        """What a process before this one has kept; or an empty one."""
        try:
            data = await self._kept(one.id, PART)
            if data is not None:
                return UsageSeries.decode(data)
        except ValueError as error:
            self._log.warning("what allocation %s used before cannot be read, and is lost: %s", one.name, error)
        return UsageSeries.of(sizes(one))

    def _sample_of(self, one: Allocation, meter: Meter, node: Node, now: float) -> None:
        self._read(one, meter, node, now)
        reading = meter.reading
        if reading is None or reading.gpus != one.gpus or reading.sampled <= meter.sampled + _SAME_REPORT:
            return
        at = self._clock() - (self._monotonic() - reading.sampled)
        if one.started is not None and 0 < one.started - at < _BEFORE:
            return  # how busy the GPU was with what ran there before
        meter.sampled, meter.news = reading.sampled, True
        meter.series = meter.series.moved(sizes(one))
        both = list(zip(reading.memory, reading.most, strict=True))
        memory = [None if last is None else max(last, most) for last, most in both]
        meter.series.add(at, list(zip(memory, reading.busy, strict=True)))
        reading.most = [most if last is None else 0 for last, most in both]  # what is known is not lost by that
        if self._monotonic() >= meter.told + _TELL_EVERY:
            self.tell(one.id)
        self._watch(one, meter, node, reading.memory)

    def _read(self, one: Allocation, meter: Meter, node: Node, now: float) -> None:
        """Take up what `node` reports, if it is a report since the last one, or more is known of that one by now.
        `now`: when the node was that old, on our monotonic clock."""
        if node.reason is not None or not node.reporting or node.age is None:
            return
        sampled = now - node.age
        uses, doing = self._cluster.uses(node.name, one.id), {gpu.uuid: gpu.utilization for gpu in node.gpus}
        memory, busy = [uses.get(uuid) for uuid in one.gpus], [doing.get(uuid) for uuid in one.gpus]
        before = meter.reading
        if before is None or before.gpus != one.gpus:
            meter.reading = Reading(one.gpus, sampled, memory, busy, [0] * len(memory))
        elif sampled > before.sampled + _SAME_REPORT:
            most = [max(last or 0, most) for last, most in zip(before.memory, before.most, strict=True)]
            meter.reading = Reading(one.gpus, sampled, memory, busy, most)
        else:
            # Whose a process is may be known a moment later than its report, or (it has ended since) no longer.
            before.memory = [new if known is None else known for known, new in zip(before.memory, memory, strict=True)]

    def _heard(self, name: str, node: Node | None) -> None:
        """Also what lies between two samples counts: a peak is one however short."""
        for id in self._on.get(name, ()) if node is not None else ():
            entry, meter = self._entries.get(id), self._meters.get(id)
            if meter is not None and node is not None and entry is not None and _measurable(entry):
                self._read(entry.allocation, meter, node, self._monotonic())

    # --- more than its size

    def _watch(self, one: Allocation, meter: Meter, node: Node, memory: Sequence[int | None]) -> None:
        asked, gpus = sizes(one), {gpu.uuid: gpu for gpu in node.gpus}
        # A GPU that is in none of the node's reports any more is nobody's concern here.
        used = {uuid: size for uuid, size in zip(one.gpus, memory, strict=True) if uuid in gpus}
        over = {uuid: size for uuid, size in used.items() if size is not None and size > _allowed(asked.get(uuid, 0))}
        # Where it is not known it may still be over: that is neither one more such sample, nor the end of them.
        before = {uuid: samples for uuid, samples in meter.over.items() if used.get(uuid, 0) is None}
        meter.over = before | {uuid: meter.over.get(uuid, 0) + 1 for uuid in over}
        long = [uuid for uuid in over if meter.over[uuid] >= _RUNNING]
        if not over:
            if one.warning_kind == "memory" and None not in used.values():
                self._handle(ev.OverUsed(id=one.id, message=""))
            return
        shared = [uuid for uuid in long if set(gpus[uuid].allocations) - {one.id}]
        stops = self._stops(node.name)
        if shared and stops:
            said = _said(shared, gpus, over, asked)
            message = f"it used {said} of {node.name}, which it shares with others (gpufit.toml says to stop it then)"
            self._handle(ev.ReleaseAsked(id=one.id, reason=EndReason.OVER_MEMORY, message=message))
        elif any(meter.over[uuid] == _RUNNING for uuid in long) or (long and not one.warning_kind):
            follows = (
                "it is stopped as soon as another allocation shares that GPU: free some, or ask for more the next time"
                if stops
                else "others there may run out of memory: free some, or ask for more the next time"
            )
            said = _said(long, gpus, over, asked)
            self._handle(
                ev.OverUsed(id=one.id, message=f"allocation {one.name!r} uses {said} of {node.name}; {follows}")
            )

    def _stops(self, node: str) -> bool:
        try:
            return self._cluster.spec(node).enforce == "stop"
        except NotFound:  # the node left the inventory
            return False

    # --- by itself

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            try:
                await self.sample()
            except Exception:
                self._log.exception("what allocations use was not sampled")


def sizes(one: Allocation) -> dict[str, int]:
    """uuid -> bytes that were asked for there; 0: none were, as of the other GPUs of its node under policy `claim`."""
    asked = one.request.gpus
    return {uuid: one.memory[at] if at < asked else 0 for at, uuid in enumerate(one.gpus)}


def _measurable(entry: Entry) -> bool:
    """Whether what its node reports is what it uses: in the middle of a restart nothing runs in it."""
    return entry.state is State.RUNNING and entry.unit is not None and not entry.restarting


def _allowed(asked: int) -> float:
    return asked + max(_TOLERATED, asked * _TOLERANCE) if asked else float("inf")


def _said(uuids: Iterable[str], gpus: Mapping[str, Gpu], used: Mapping[str, int], asked: Mapping[str, int]) -> str:
    """`"11.2 GiB (asked 8 GiB) on GPU 1"`, and so on."""
    parts = [
        f"{format_memory(used[uuid])} (asked {format_memory(asked[uuid])}) on GPU {gpus[uuid].index}" for uuid in uuids
    ]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))

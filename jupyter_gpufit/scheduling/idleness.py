"""Allocations that do nothing, where the inventory limits that (`idle_after`): warned, and later released.

    kernel has nothing to do, and all its GPUs are known to do nothing
        ──idle_after - idle_warning──▶ it says so itself ──▶ `Idled` (a warning)
        ──idle_warning───────────────▶ it says so itself ──▶ `ReleaseAsked`, reason `idle`

Anything that happens, or is not known, begins the time anew, and takes the warning back (`Stirred`).

What a server knows of a kernel is not enough to end it: a message beside the running cell (of a widget, of a debugger)
makes it look idle. So the kernel is asked, in the queue that cells run from; while one runs there is no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ..durations import format_duration
from ..errors import NotFound
from ..models import Allocation, EndReason, Node, State
from . import events as ev
from .entries import Entry
from .needs import Cluster, KernelHost

__all__ = ["Idleness"]

_LOOKS = 20  # per `idle_after`
_OFTEN, _SELDOM = 0.05, 15.0  # s between two looks
_ANSWER_WITHIN = 5.0  # s; a kernel that takes longer has something to do


class Rule(Struct, frozen=True):
    """A node's `idle_after`, and how long before that the warning comes."""

    after: float
    warning: float


class Warned(Struct, frozen=True):
    """A warning that was given."""

    since: float
    until: float


class Idleness:
    """Looks after all allocations of one scheduler. Made by it; for its event loop."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        cluster: Cluster,
        host: KernelHost | None,
        handle: Callable[[ev.Event], None],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        """`entries` are the ledger's own; `handle` takes events to it; `clock` is Unix time. No `host`, no looks."""
        self._entries, self._cluster, self._host = entries, cluster, host
        self._handle, self._clock, self._log = handle, clock, log
        self._nodes: dict[str, Node] = {}
        self._resting: dict[str, float] = {}  # allocation -> since when its GPUs are known to do nothing
        self._warned: dict[str, Warned] = {}
        self._task: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to look. Called when the scheduler opens."""
        if self._host is None:
            return
        self._deaf = self._cluster.on_change(self._heard)
        self._task = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        """Look no more. Idempotent."""
        task, self._task = self._task, None
        if self._deaf is not None:
            self._deaf()
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def clock_set(self, now: float) -> None:
        """The clock was set, to `now`: how long anything has done nothing cannot be told any more."""
        self._resting.update(dict.fromkeys(self._resting, now))
        self._warned.clear()  # so the next look takes them back

    async def look(self) -> None:
        """Look at every allocation that runs, once, and do what is due. Called by its own task."""
        entries = [entry for entry in self._entries.values() if entry.job is None]  # a job ends by itself
        running = [entry.allocation for entry in entries if entry.state is State.RUNNING]
        ids = {one.id for one in running}
        self._resting = {id: since for id, since in self._resting.items() if id in ids}
        self._warned = {id: warned for id, warned in self._warned.items() if id in ids}
        await asyncio.gather(*(self._look_at(one) for one in running))

    async def _look_at(self, one: Allocation) -> None:
        rule, warned = self._rule(one), self._warned.get(one.id)
        since = None if rule is None else self._idle_since(one.id)
        if self._over(one, since, warned):
            self._begin_anew(one.id)
        elif rule is None or since is None or self._host is None:
            return
        elif self._clock() >= (since + rule.after - rule.warning if warned is None else warned.until):
            if not await self._host.quiet(str(one.kernel_id), _ANSWER_WITHIN):
                self._begin_anew(one.id)
            elif self._idle_since(one.id) == since and not self._over(self._entries[one.id].allocation, since, warned):
                self._act(one, since, rule, warned)  # nothing happened while it was asked

    def _over(self, one: Allocation, since: float | None, warned: Warned | None) -> bool:
        """Whether it is warned, and what it was warned of will not come."""
        if warned is None:  # a process before this one warned, and did not see all that happened since
            return one.warning_kind == "idle"
        return since != warned.since or not one.warning  # it did something; or more time was asked for

    def _act(self, one: Allocation, since: float, rule: Rule, warned: Warned | None) -> None:
        now = self._clock()
        if warned is None:
            self._warned[one.id] = Warned(since, now + rule.warning)
            self._handle(ev.Idled(id=one.id, until=now + rule.warning))
        else:
            message = f"its kernel and its GPUs had nothing to do for {format_duration(now - since)}"
            self._handle(ev.ReleaseAsked(id=one.id, reason=EndReason.IDLE, message=message))

    def _begin_anew(self, id: str) -> None:
        self._resting[id] = self._clock()
        self._warned.pop(id, None)
        self._handle(ev.Stirred(id=id))

    def _idle_since(self, id: str) -> float | None:
        """Since when neither its kernel nor its GPUs have had anything to do; `None`: they have, or it is not known."""
        entry = self._entries.get(id)
        if entry is None or entry.state is not State.RUNNING or entry.unit is None or entry.restarting:
            return None
        one = entry.allocation
        if one.unreachable_since is not None or not _at_rest(self._nodes.get(str(one.node)), one.gpus):
            self._resting.pop(id, None)
            return None
        resting = self._resting.setdefault(id, self._clock())
        kernel = None if self._host is None else self._host.idle_since(str(one.kernel_id))
        return None if kernel is None else max(resting, kernel)

    def _rule(self, one: Allocation) -> Rule | None:
        try:
            spec = self._cluster.spec(str(one.node))
        except NotFound:  # the node left the inventory
            return None
        after = spec.idle_after
        return None if after is None else Rule(after, min(spec.idle_warning, after / 2))

    def _heard(self, name: str, node: Node | None) -> None:
        """Also what lies between two looks counts: GPUs that did something are not at rest."""
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        for id in list(self._resting):
            entry = self._entries.get(id)
            if entry is not None and entry.allocation.node == name:
                self._idle_since(id)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            try:
                await self.look()
            except Exception:
                self._log.exception("idle allocations were not looked at")

    def _pause(self) -> float:
        limits = [spec.idle_after for spec in self._cluster.inventory.nodes if spec.idle_after is not None]
        return min(_SELDOM, max(_OFTEN, min(limits, default=_SELDOM) / _LOOKS))


def _at_rest(node: Node | None, uuids: Sequence[str]) -> bool:
    """Whether all these GPUs of it are known to do nothing."""
    if node is None or node.reason is not None:
        return False
    doing = {gpu.uuid: gpu.utilization for gpu in node.gpus}
    return all(doing.get(uuid) == 0 for uuid in uuids)

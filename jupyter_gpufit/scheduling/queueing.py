"""The part of the state machine that finds an allocation its place: placed, refused, or queued until something fits.

Here is who waits, in what order, and since when; whether one may go before another is `backfill.py`'s, and what each is
told `placing.py`'s.
"""

from __future__ import annotations

from ..durations import format_duration
from ..models import Allocation, EndReason, Progress, State
from . import events as ev
from .entries import Entry
from .events import Instruction, Work
from .steps import Steps

__all__ = ["START_TAKES", "Queueing"]

START_TAKES = 120.0
"""Seconds that may pass between placement and the moment from which time counts, and until an end is confirmed: what is
placed now with a time of an hour is taken to be gone an hour and this from now."""


class Queueing(Steps):
    """Base of `Ledger`."""

    def queue(self) -> list[Entry]:
        """Those that wait, in their order: by priority, then by age."""
        return sorted((entry for entry in self.entries.values() if entry.queued), key=lambda entry: entry.rank)

    def ends(self, now: float) -> dict[str, float]:
        """When each allocation that holds something will have given it back, at the latest; without those of which that
        is not known: no time limit, a node that does not answer, a unit that cannot be removed."""
        known = {id: _end_of(entry, now) for id, entry in self.entries.items() if entry.allocation.node is not None}
        return {id: max(end, now) for id, end in known.items() if end is not None}

    def _requested(self, event: ev.Requested) -> None:
        allocation = Allocation(
            id=event.id,
            name=event.name,
            owner=event.owner,
            request=event.request,
            created=self._now,
            kernel_id=event.kernel_id,
            progress=Progress(phase="placing"),
        )
        entry = self.entries[event.id] = Entry(allocation=allocation, hosted=event.kernel_id is None)
        if event.behind:
            before = entry.allocation
            self._queue(entry, ev.NotPlaced(id=event.id, message=event.behind))
            self._report(entry, before)
        else:
            self._place(entry)

    def _placed(self, entry: Entry, event: ev.Placed) -> None:
        if not entry.live:
            self._wind_down(entry)
            return
        where = event.placement
        entry.cards, entry.totals, entry.waiting = event.cards, event.totals, False
        entry.placed_at = self._now
        for what in ("wait", "forgive"):
            entry.deadlines.pop(what, None)
        totals = tuple(event.totals.get(uuid, 0) for uuid in where.gpus)
        self._set(
            entry,
            state=State.STARTING,
            node=where.node,
            gpus=where.gpus,
            memory=where.memory,
            totals=totals,
            message="",
            queue=None,
        )
        if event.overtakes is not None and (before := self.entries.get(event.overtakes)) is not None:
            before.overtaken += 1
            self._out.append(ev.Save(id=before.id))
        self._prepare(entry)

    def _not_placed(self, entry: Entry, event: ev.NotPlaced) -> None:
        if not entry.live:
            self._wind_down(entry)
        elif entry.contended and entry.places < self.limits.attempts and not entry.waiting:
            self._place(entry)  # others that fought for the same GPUs may yield, too
        elif (not event.never or entry.moved) and entry.deadlines.get("wait", entry.waits_until) > self._now:
            self._queue(entry, event)
        elif entry.places <= 1 and not entry.waiting:  # whoever asks is told at once, and nothing is left of it
            del self.entries[entry.id]
        else:
            before = f"{entry.trouble}; then " if entry.trouble else ""
            self._end(entry, EndReason.REJECTED, f"{before}{event.message}")

    def _queue(self, entry: Entry, event: ev.NotPlaced) -> None:
        entry.waiting, entry.places = True, 1
        if "wait" not in entry.deadlines:
            entry.deadlines["wait"] = until = entry.waits_until
            self._out.append(ev.Wake(id=entry.id, at=until))
        if entry.avoid and "forgive" not in entry.deadlines:
            self._deadline(entry, "forgive", self.limits.forgive_after)
        waits = Progress(phase="placing", message="waiting for GPUs")
        self._set(entry, message=_after_all(entry, event.message), progress=waits)

    def _ranked(self, entry: Entry, event: ev.Ranked) -> None:
        if entry.waiting and entry.live:
            missing = event.queue.missing
            self._set(entry, queue=event.queue, message=_after_all(entry, missing) or entry.allocation.message)

    def retry_waiting(
        self, now: float, before: Entry | None = None, behind: tuple[float, ...] = ()
    ) -> list[Instruction]:
        """Somewhere there may be room: place those that wait, in their order; with `before` only those ahead of it, and
        only those `behind` a rank."""
        self._now, self._out = now, []
        for entry in self.queue():
            if before is not None and entry.rank > before.rank:
                break
            if entry.rank > behind:
                self._place_again(entry)
        return self._out

    def _place_again(self, entry: Entry) -> None:
        if entry.waiting and Work.PLACE not in entry.busy:
            self._begin(entry, Work.PLACE, ev.Place(id=entry.id, attempt=0, avoid=entry.avoid))

    def _forgiven(self, entry: Entry) -> None:
        """The nodes that failed it may be well again, and nobody else may have reason to say so."""
        entry.avoid = ()
        self._place_again(entry)

    def _waited_long(self, entry: Entry) -> None:
        waited = format_duration(
            self.limits.requeue_wait if entry.wait_until else float(entry.allocation.request.wait or 0)
        )
        self._end(entry, EndReason.REJECTED, f"waited {waited}; {entry.allocation.message}")


def _after_all(entry: Entry, missing: str) -> str:
    """Why it waits; of a job that had run before, why it had to go, too."""
    return f"{entry.moved}; {missing}" if entry.moved and missing else missing


def _end_of(entry: Entry, now: float) -> float | None:
    allocation = entry.allocation
    if allocation.unreachable_since is not None or entry.stop_failures:
        return None
    if not entry.live:
        return now
    if allocation.expires is not None:
        return allocation.expires
    lifetime = allocation.request.time
    if lifetime is None or allocation.state is State.RUNNING:
        return None
    return max(entry.placed_at + START_TAKES, now) + float(lifetime)

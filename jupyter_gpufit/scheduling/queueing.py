"""The part of the state machine that finds an allocation its place: placed, refused, or queued until something fits."""

from __future__ import annotations

from ..durations import format_duration
from ..models import Allocation, EndReason, Progress, State
from . import events as ev
from .entries import Entry
from .events import Instruction, Work
from .steps import Steps

__all__ = ["Queueing"]


class Queueing(Steps):
    """Base of `Ledger`."""

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
        self._place(entry)

    def _placed(self, entry: Entry, event: ev.Placed) -> None:
        if not entry.live:
            self._wind_down(entry)
            return
        where = event.placement
        entry.cards, entry.totals, entry.waiting = event.cards, event.totals, False
        entry.deadlines.pop("wait", None)
        self._set(entry, state=State.STARTING, node=where.node, gpus=where.gpus, memory=where.memory, message="")
        self._prepare(entry)

    def _not_placed(self, entry: Entry, event: ev.NotPlaced) -> None:
        if not entry.live:
            self._wind_down(entry)
        elif 1 < entry.places < self.limits.attempts and not entry.waiting:
            self._place(entry)  # others that fought for the same GPUs may yield, too
        elif not event.never and entry.allocation.created + float(entry.allocation.request.wait or 0) > self._now:
            self._queue(entry, event)
        elif entry.places <= 1 and not entry.waiting:  # whoever asks is told at once, and nothing is left of it
            del self.entries[entry.id]
        else:
            before = f"{entry.trouble}; then " if entry.trouble else ""
            self._end(entry, EndReason.REJECTED, f"{before}{event.message}")

    def _queue(self, entry: Entry, event: ev.NotPlaced) -> None:
        entry.waiting, entry.places = True, 1
        if "wait" not in entry.deadlines:
            entry.deadlines["wait"] = until = entry.allocation.created + float(entry.allocation.request.wait or 0)
            self._out.append(ev.Wake(id=entry.id, at=until))
        self._set(entry, message=event.message, progress=Progress(phase="placing", message="waiting for GPUs"))

    def retry_waiting(self, now: float) -> list[Instruction]:
        """Somewhere there may be room: place those that wait, oldest first. (No fairness yet: who fits first goes.)"""
        self._now, self._out = now, []
        for entry in self.entries.values():
            if entry.waiting and entry.live and Work.PLACE not in entry.busy:
                self._begin(entry, Work.PLACE, ev.Place(id=entry.id, attempt=0, avoid=entry.avoid))
        return self._out

    def _waited_long(self, entry: Entry) -> None:
        waited = format_duration(float(entry.allocation.request.wait or 0))
        self._end(entry, EndReason.REJECTED, f"waited {waited}; {entry.allocation.message}")

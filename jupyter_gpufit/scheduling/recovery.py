"""The part of the state machine that takes up what a scheduler before this one left.

    running, its kernel remembered ──→ running: its kernel is taken back      (a container does not need its server)
    queued ──────────────────────────→ queued, in its old place, for the rest of its time to wait
    a job, in any of these ──────────→ goes on, see `jobs.py`
    stopping ────────────────────────→ stopping, again from the start
    anything else ───────────────────→ stopping: half-made, or its kernel died with the server

Whatever it held stays reserved until it is confirmed gone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from ..models import EndReason, State
from . import events as ev
from .entries import Entry, fresh
from .events import Failure, Instruction, Work
from .outages import Outages
from .queueing import Queueing

__all__ = ["Recovery"]

_FIRST_REPORTS = 60.0  # s


class Recovery(Queueing, Outages):
    """Base of `Ledger`."""

    def restore(
        self, entries: Iterable[Entry], now: float, why: str, remembered: Container[str] = (), jobs: bool = True
    ) -> list[Instruction]:
        """Take up what a scheduler that died had left in its store. What cannot go on is ended, saying `why`.

        `remembered`: the allocations whose kernels can be taken back. `jobs`: those go on.
        """
        out: list[Instruction] = []
        for left in entries:
            if left.state is State.ENDED:
                continue
            self._now, self._out = now, []
            entry = self.entries[left.id] = fresh(left)
            before = entry.allocation
            if jobs and entry.job is not None and entry.live:
                self._resume_job(entry, left)
            elif _runs(left) and left.id in remembered:
                self._resume(entry)
            elif left.queued and left.hosted and left.job is None:
                self._queue_again(entry, left)
            elif entry.live:
                self._end(entry, EndReason.FAILED, why)
            else:
                self._wind_down(entry)
            self._report(entry, before)
            if (claim := entry.claim(self.scheduler)) is not None and entry.allocation == before:
                self._hold(str(entry.allocation.node), entry.id, claim)
                self._out.insert(0, ev.Publish(id=entry.id, node=str(entry.allocation.node)))
            out += self._out
        return out

    def _resume(self, entry: Entry) -> None:
        assert entry.unit is not None
        entry.unsure = False
        entry.units += 1  # one more may have been asked for in the last moment, and its name is taken
        self._arm_time(entry)
        self._begin(entry, Work.TAKE_BACK, ev.TakeBack(id=entry.id, unit=entry.unit))

    def _resume_job(self, entry: Entry, left: Entry) -> None:
        if entry.moving:
            self._go_elsewhere(entry)
        elif entry.allocation.node is None:
            self._queue_again(entry, left)
        elif _runs(left) and left.began:
            self._resume(entry)
        elif _may_run(left):  # that is found out first: it must not run twice, and may have done all it had to
            assert entry.unit is not None
            self._arm_time(entry)
            self._begin(entry, Work.TAKE_BACK, ev.TakeBack(id=entry.id, unit=entry.unit))
        else:  # half-made, or between two attempts: what there is of it is removed, then it starts
            entry.restarting = True
            self._arm_time(entry)
            self._stop_unit(entry)

    def _queue_again(self, entry: Entry, left: Entry) -> None:
        entry.waiting, entry.avoid = True, ()
        until = entry.waits_until
        if entry.job is not None:  # it may not have been refused by anybody so far: give nodes the time to report
            until = max(until, self._now + _FIRST_REPORTS)
        self._deadline(entry, "wait", until - self._now)

    def _take_back_failed(self, entry: Entry, event: ev.TakeBackFailed) -> None:
        if entry.live and event.failure is Failure.CANCELLED:
            return  # by the end of this scheduler: the next one takes it back
        if entry.job is not None:
            self._taken_up(entry, event.message)
            return
        entry.kernel_up = True  # who knows how far it came
        if entry.live:
            self._end(entry, EndReason.FAILED, f"its kernel could not be taken back: {event.message}")
        else:
            self._wind_down(entry)


def _runs(entry: Entry) -> bool:
    """Whether a kernel was started in it, as far as is known (it need not have answered yet, after a restart)."""
    return entry.state is State.RUNNING and _may_run(entry)


def _may_run(entry: Entry) -> bool:
    """Whether something was started in it, or was about to be."""
    return entry.unit is not None and entry.launched and not entry.restarting and not entry.stop_wanted

"""The part of the state machine for nodes that do not answer, and units that cannot be removed."""

from __future__ import annotations

from ..durations import format_duration
from ..models import EndReason
from . import events as ev
from .entries import Entry
from .events import Failure
from .steps import Steps

__all__ = ["Outages"]


class Outages(Steps):
    """Base of `Ledger`."""

    def _stop_failed(self, entry: Entry, event: ev.StopFailed) -> None:
        entry.stop_failures += 1
        entry.trouble, entry.stop_wanted = event.message, False
        if entry.live:  # whoever asked for it is told, and may ask again
            self._set(entry, message=event.message)
            self._vacant(entry)
            return
        if event.failure is not Failure.UNREACHABLE:
            entry.silent_since = None  # it is there and cannot be removed: its GPUs stay blocked, visibly
        elif entry.silent_since is None:
            entry.silent_since = self._now
        elif self._now - entry.silent_since >= self.limits.lost_after:
            self._give_up(entry, self._now - entry.silent_since)
            return
        kept = f"{entry.said}; " if entry.said else ""
        self._set(entry, message=f"{kept}its GPUs stay reserved until its unit is confirmed gone: {event.message}")
        pause = min(self.limits.retry_most, self.limits.retry_first * 2 ** min(entry.stop_failures - 1, 16))
        self._deadline(entry, "retry", pause)

    def _give_up(self, entry: Entry, silent: float) -> None:
        kept = f"{entry.said}; " if entry.said else ""
        message = (
            f"{kept}node {entry.allocation.node!r} did not answer for {format_duration(silent)}; "
            "what may still run there is removed when it is back"
        )
        entry.unsure = False
        self._set(entry, reason=EndReason.NODE_LOST, message=message, unit=None)
        self._wind_down(entry)

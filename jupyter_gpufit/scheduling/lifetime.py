"""The part of the state machine that ends an allocation whose time is over."""

from __future__ import annotations

from ..durations import format_duration
from ..models import EndReason
from .entries import Entry
from .steps import Steps

__all__ = ["Lifetime"]


class Lifetime(Steps):
    """Base of `Ledger`."""

    def _expired(self, entry: Entry) -> None:
        lifetime = format_duration(float(entry.allocation.request.time or 0))
        self._end(entry, EndReason.EXPIRED, f"its time of {lifetime} is over")

"""The part of the state machine that ends an allocation whose time is over, or that does nothing; warned beforehand.

    running ──10 m, 2 m before the end of its time──▶ warned ──▶ ends `expired`
    running ──Idled (`idleness.py` looks)───────────▶ warned ──▶ ends `idle`, said by `ReleaseAsked`

More time (`ExtendAsked`) takes both warnings back, and so does activity (`Stirred`) the one of an idle allocation.
"""

from __future__ import annotations

import msgspec

from ..durations import format_clock, format_duration
from ..models import EndReason, State
from . import events as ev
from .entries import Entry
from .steps import Steps

__all__ = ["Lifetime"]


class Lifetime(Steps):
    """Base of `Ledger`."""

    def _begin_time(self, entry: Entry) -> None:
        """It begins to run, and so does its time."""
        lifetime = entry.allocation.request.time
        entry.warned_until = self._now  # what lies before the start is not warned of
        started = self._now if entry.allocation.started is None else entry.allocation.started
        self._set(entry, started=started, expires=None if lifetime is None else self._now + float(lifetime))
        self._arm_time(entry)

    def _arm_time(self, entry: Entry) -> None:
        """Have one that runs warned and ended in time. Also one that is taken back: what was due meanwhile is due."""
        entry.deadlines.pop("expire", None)
        entry.deadlines.pop("warn", None)
        expires = entry.allocation.expires
        if expires is None:
            return
        self._deadline(entry, "expire", expires - self._now)
        moments = [expires - before for before in self.limits.warn_before]
        if coming := [moment for moment in moments if moment > entry.warned_until]:
            self._deadline(entry, "warn", min(coming) - self._now)

    def _warned(self, entry: Entry) -> None:
        expires, name = entry.allocation.expires, entry.allocation.name
        if expires is None:
            return
        entry.warned_until = self._now
        left, lifetime = expires - self._now, float(entry.allocation.request.time or 0)
        self._warn(
            entry,
            "time",
            f"allocation {name!r} ends in {_about(left)}, at {format_clock(expires)}, when its time of "
            f"{format_duration(lifetime)} is over: save what you need, or ask for more time with "
            f"%gpufit extend {name} 1h",
            expires,
        )
        self._arm_time(entry)

    def _expired(self, entry: Entry) -> None:
        lifetime = format_duration(float(entry.allocation.request.time or 0))
        self._end(entry, EndReason.EXPIRED, f"its time of {lifetime} is over")

    def _extend_asked(self, entry: Entry, event: ev.ExtendAsked) -> None:
        now = entry.allocation
        if not entry.live or now.request.time is None:
            return
        longer = float(now.request.time) + event.seconds
        self._set(entry, request=msgspec.structs.replace(now.request, time=longer))
        self._unwarn(entry, "time", "idle")
        if now.expires is not None:
            entry.warned_until = self._now  # whoever asks for a little more knows how little it is
            self._set(entry, expires=now.expires + event.seconds)
            self._arm_time(entry)

    def _idled(self, entry: Entry, event: ev.Idled) -> None:
        if entry.state is State.RUNNING:
            name = entry.allocation.name
            self._warn(
                entry,
                "idle",
                f"allocation {name!r} is released in {_about(event.until - self._now)}, at {format_clock(event.until)}"
                ": its kernel and its GPUs have nothing to do. To keep it, run a cell in it",
                event.until,
            )

    def _stirred(self, entry: Entry, event: ev.Stirred) -> None:
        if entry.live:
            self._unwarn(entry, "idle")


def _about(seconds: float) -> str:
    """A span for people, who do not mind a second: warnings come a moment after they are due."""
    if seconds >= 60:
        seconds = 60 * round(seconds / 60)
    return format_duration(max(1.0, seconds))

"""The part of the state machine that takes up what a scheduler before this one left."""

from __future__ import annotations

from collections.abc import Iterable

from ..models import EndReason, State
from . import events as ev
from .entries import Entry, fresh
from .events import Instruction
from .steps import Steps

__all__ = ["Recovery"]


class Recovery(Steps):
    """Base of `Ledger`."""

    def restore(self, entries: Iterable[Entry], now: float, why: str) -> list[Instruction]:
        """Take up what a scheduler that died had left in its store: reserve what it held, and end it, saying `why`.

        (Where an allocation is to be taken back rather than ended, this is the place to decide it.)
        """
        out: list[Instruction] = []
        for entry in map(fresh, entries):
            if entry.state is State.ENDED:
                continue
            self._now, self._out = now, []
            self.entries[entry.id] = entry
            before = entry.allocation
            if entry.live:
                self._end(entry, EndReason.FAILED, why)
            else:
                self._wind_down(entry)
            self._report(entry, before)
            if (claim := entry.claim(self.scheduler)) is not None and entry.allocation == before:
                self._hold(str(entry.allocation.node), entry.id, claim)
                self._out.insert(0, ev.Publish(id=entry.id, node=str(entry.allocation.node)))
            out += self._out
        return out

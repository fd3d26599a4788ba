"""The part of the state machine that keeps account: what each allocation holds, and what has to be said of a change.

The transitions themselves are in `allocations.py` and `steps.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..models import Allocation, Claim, Placement, State
from .entries import Entry, Limits, Overcommitted
from .events import Cancel, Instruction, Notify, Publish, Save, Wake, Work

__all__ = ["Books"]


class Books:
    """Entries and holdings, and the instructions that the event at hand has led to. Base of `Steps`."""

    def __init__(self, scheduler: str, limits: Limits | None = None) -> None:
        self.scheduler = scheduler
        self.limits = limits or Limits()
        self.entries: dict[str, Entry] = {}
        self._held: dict[str, dict[str, Claim]] = {}
        self._out: list[Instruction] = []
        self._now = 0.0

    def claims(self, node: str) -> list[Claim]:
        """What this scheduler's allocations hold on `node`."""
        return list(self._held.get(node, {}).values())

    def forget(self, id: str) -> None:
        """Drop an entry that ended."""
        if id in self.entries and self.entries[id].state is State.ENDED:
            del self.entries[id]

    def _check_free(self, entry: Entry, where: Placement) -> None:
        for other in self._held.get(where.node, {}).values():
            clash = sorted(other.gpus.keys() & set(where.gpus))
            if clash and not (other.shared and entry.allocation.request.shared):
                raise Overcommitted(f"{clash} on {where.node!r} are held by {other.allocation}, placed for {entry.id}")

    def _set(self, entry: Entry, **changes: Any) -> None:
        entry.allocation = msgspec.structs.replace(entry.allocation, **changes)

    def _begin(self, entry: Entry, work: Work, instruction: Instruction) -> None:
        entry.busy.add(work)
        self._out.append(instruction)

    def _cancel(self, entry: Entry, *works: Work) -> None:
        self._out += [Cancel(id=entry.id, work=work) for work in sorted(works) if work in entry.busy]

    def _deadline(self, entry: Entry, what: str, seconds: float) -> None:
        entry.deadlines[what] = self._now + seconds
        self._out.append(Wake(id=entry.id, at=self._now + seconds))

    def _warn(self, entry: Entry, kind: str, message: str, at: float | None = None) -> None:
        """Warn whoever uses it of what comes (at that moment), in place of a warning before this one."""
        self._set(entry, warning=message, warning_kind=kind, warning_at=at)

    def _unwarn(self, entry: Entry, *kinds: str) -> None:
        """What it was warned of will not come, if it is of one of these kinds (without any: whatever it is)."""
        if not kinds or entry.allocation.warning_kind in kinds:
            self._set(entry, warning="", warning_kind="", warning_at=None)

    def _report(self, entry: Entry, before: Allocation, save: bool = True) -> None:
        """Say what changed, ahead of what is to be done about it: reservations come first."""
        if before == entry.allocation:
            return
        self._set(entry, version=entry.allocation.version + 1)
        said: list[Instruction] = []
        for node in dict.fromkeys((before.node, entry.allocation.node)):
            if node is None:
                continue
            claim = entry.claim(self.scheduler) if node == entry.allocation.node else None
            if self._held.get(node, {}).get(entry.id) != claim:
                said.append(Publish(id=entry.id, node=node))
                self._hold(node, entry.id, claim)
        if save:
            said.append(Save(id=entry.id))
        self._out[:0] = [*said, Notify(id=entry.id)]

    def _hold(self, node: str, id: str, claim: Claim | None) -> None:
        held = self._held.setdefault(node, {})
        if claim is not None:
            held[id] = claim
            return
        del held[id]
        if not held:
            del self._held[node]

"""Selecting a node for what asks for one, and again for what waits, when there may be room.

    Place ─→ `choosing.py`: what it gets ─→ Placed | NotPlaced
    room  ─→ all that wait, in their order ─→ those that still wait are told where they stand

Those that wait come first, in whatever way something became free.
"""

from __future__ import annotations

import asyncio
import math
import time

from ..errors import GpufitError, NeverFits
from ..models import Allocation, Queued, State
from . import events as ev
from .allocations import Overcommitted
from .backfill import Start
from .choosing import Choice, Choosing
from .entries import Entry
from .events import Work
from .host import asks

__all__ = ["Placing"]

_ROOM_PAUSE = 0.1  # s; changes of nodes that come close together make those that wait be looked at once
_REST = 10  # times as long as a look at the queue took, nothing is looked at again: requests and reports have to go on
_NEWS_PAUSE = 2.0  # s; likewise, of what changes by which nothing can begin to fit, such as how busy a GPU is
_SELDOM = 50  # times as long as telling all of it took, they are not told of that again
_AT_ONCE, _BREATH = 0.02, 0.1  # s of telling many where they stand, and of doing other things in between
_MOST_NAMES = 4


class Placing(Choosing):
    """Base of `Execution`."""

    _all_untold = False
    _told_in = _took = 0.0
    """Seconds that telling all took the last time, and so far."""

    def _place(self, what: ev.Place) -> None:
        if what.attempt == 0:
            self._place_now(what)
            return
        self._works.begin(
            what.id,
            Work.PLACE,
            asyncio.sleep(self._pause(what.attempt)),
            lambda _: self._place_now(what),
            lambda _: self._handle(ev.NotPlaced(id=what.id, message="it was cancelled")),
        )

    def _place_now(self, what: ev.Place) -> None:
        """Select and reserve, with nothing in between."""
        entry = self._ledger.entries[what.id]
        if not self._open:  # what starts now is cut off in the middle; the next scheduler finds it queued
            self._handle(ev.NotPlaced(id=what.id, message=entry.allocation.message))
            return
        if not entry.waiting:  # nobody goes first for asking in the moment in which something has become free
            self._place_waiting_before(entry)
        try:
            choice = self._choose(entry)
        except GpufitError as error:
            self._refuse(what.id, error, never=True)
        except Exception:  # a fault of ours must not keep the others waiting for ever
            self._selection_failed(what.id)
        else:
            self._answer(entry, choice)

    def _answer(self, entry: Entry, choice: Choice) -> None:
        if choice.refusal is None:
            try:
                self._handle(self._placed(entry.id, choice))
            except Overcommitted:
                self._selection_failed(entry.id)
        elif entry.waiting:  # why it does not fit was said when it began to wait
            self._handle(ev.NotPlaced(id=entry.id, message=entry.allocation.message))
        else:
            refusal = choice.refusal()
            self._refuse(entry.id, refusal, never=isinstance(refusal, NeverFits))

    def _selection_failed(self, id: str) -> None:
        self.log.exception("selection is wrong")
        self._handle(ev.NotPlaced(id=id, message="selection failed; the server's log says why", never=True))

    def _refuse(self, id: str, error: GpufitError, never: bool) -> None:
        self._errors.setdefault(id, {})[Work.PLACE] = error
        self._handle(ev.NotPlaced(id=id, message=error.message, never=never))
        if (entry := self._ledger.entries.get(id)) is not None and entry.waiting:
            queue = [other.id for other in self._ledger.queue() if other.waiting]  # whoever asked is told at once
            self._tell(entry, queue.index(id) + 1, len(queue))
            self._tell_all_in(_ROOM_PAUSE)  # and the others are told of it

    def _placed(self, id: str, choice: Choice) -> ev.Placed:
        assert choice.decision is not None
        placement = choice.decision.placement
        assert placement is not None
        gpus = {gpu.uuid: gpu for gpu in self._fleet.node(placement.node).gpus}
        chosen = [gpus[uuid] for uuid in placement.gpus]
        return ev.Placed(
            id=id,
            placement=placement,
            cards={gpu.uuid: gpu.card for gpu in chosen},
            totals={gpu.uuid: gpu.memory_total for gpu in chosen if gpu.memory_total is not None},
            overtakes=choice.overtakes,
        )

    # --- those that wait

    def _make_room(self, soon: bool = True) -> None:
        """Something changed: what waits may fit now. Or (not `soon`) only something that they are told of, perhaps."""
        if soon:
            self._changes += 1
            self._found.forget()
        if self._dead:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(self._rest, _ROOM_PAUSE if soon else max(_NEWS_PAUSE, _SELDOM * self._told_in))
        if self._room is not None and at < self._room.when():
            self._room.cancel()
            self._room = None
        if self._room is None:
            self._room = loop.call_at(at, self._retry_waiting)

    def _retry_waiting(self) -> None:
        self._room = None
        self._found.forget()  # also what only time has changed
        began = time.perf_counter()
        self._place_waiting()
        self._rest = _REST * (time.perf_counter() - began)
        self._tell_all_in(0.0)

    def _place_waiting(self) -> None:
        if self._open:
            self._tried = self._changes, (math.inf,)
            self._execute(self._ledger.retry_waiting(self._clock()))

    def _place_waiting_before(self, entry: Entry) -> None:
        """Those that were tried since something changed last (as each is when it comes) need not be tried again."""
        changes, behind = self._tried
        if changes != self._changes:
            behind = ()
        if behind < entry.rank and self._open:
            self._tried = self._changes, entry.rank
            self._execute(self._ledger.retry_waiting(self._clock(), entry, behind))

    def _notify(self, what: ev.Notify) -> None:
        allocation = self._ledger.entries[what.id].allocation
        super()._notify(what)
        if allocation.state is State.ENDED and allocation.node is None:
            self._make_room()  # it waited, perhaps: others move up

    def _tell_all_in(self, seconds: float) -> None:
        """Tell all that wait where they stand; one that is about to be told already is not told later for that."""
        self._all_untold = True
        if self._telling is None and not self._dead:
            self._telling = asyncio.get_running_loop().call_later(seconds, self._tell_on)

    def _tell_on(self) -> None:
        """Tell those that wait where they stand, as far as that has changed; many of them bit by bit."""
        self._telling = None
        began = time.perf_counter()
        waiting = [entry.id for entry in self._ledger.queue() if entry.waiting]
        if self._all_untold:
            self._all_untold, self._took = False, 0.0
            self._untold |= dict.fromkeys(waiting)
        positions = {id: position for position, id in enumerate(waiting, 1)}
        while self._untold and not self._dead:
            id = next(iter(self._untold))
            del self._untold[id]
            if id in positions:
                self._tell(self._ledger.entries[id], positions[id], len(positions))
            if self._untold and time.perf_counter() - began > _AT_ONCE:
                self._telling = asyncio.get_running_loop().call_later(_BREATH, self._tell_on)
                break
        self._took += time.perf_counter() - began
        self._told_in = max(self._took, self._told_in if self._untold else 0.0)

    def _tell(self, entry: Entry, position: int, of: int) -> None:
        self._handle(ev.Ranked(id=entry.id, queue=self._standing(entry, position, of)))

    def _standing(self, entry: Entry, position: int, of: int) -> Queued:
        now = entry.allocation
        until = entry.waits_until
        try:
            choice = self._choose(entry)
        except GpufitError as error:  # what it may have has changed since it began to wait: it ends with the next look
            return Queued(position=position, of=of, until=until, missing=error.message)
        helps, start = choice.frees, None
        if choice.unfit and choice.decision is not None and choice.decision.never:
            helps = (
                "the cluster has become smaller since it was asked for: ask for less, or wait until it has enough again"
            )
        elif choice.unfit:
            needed, when = self._frees(entry)
            helps, start = self._needs(now, needed, self._comes_first(entry), when)
        return Queued(position=position, of=of, until=until, missing=choice.missing(), frees=helps, start=start)

    def _needs(self, asked: Allocation, start: Start | None, first: bool, now: float) -> tuple[str, float | None]:
        """What has to end for one that fits nowhere now, in a sentence, and when that will be, if it is the first."""
        if start is None:
            unknown = ", or the size of its machine is not known" if asks(asked.request) else ""
            why = f"programs use GPUs, or a node cannot be used{unknown}"
            return f"even when all allocations end it does not fit: {why}", None
        names = [self._called(id, asked) for id in start.after]
        several = len(names) > 1
        if len(names) > _MOST_NAMES:
            names = [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} more allocations"]
        who = " and ".join([", ".join(names[:-1]), names[-1]] if several else names)
        sentence = f"it can start when {who or 'what ends there'} on {start.node} {'end' if several else 'ends'}"
        if not first:
            return f"{sentence}, and those before it have started", None
        return sentence, None if start.at is None or start.at <= now else start.at

    def _called(self, id: str, asked: Allocation) -> str:
        """Allocation `id` in words for the owner of `asked`."""
        if (entry := self._ledger.entries.get(id)) is not None:
            mine = entry.allocation.owner == asked.owner
            return repr(entry.allocation.name) if mine else f"an allocation of {entry.allocation.owner!r}"
        owners = {c.owner for claims in self._fleet.seen().values() for c in claims if c.allocation == id and c.owner}
        return f"an allocation of {min(owners)!r}" if owners else "an allocation"

    def _publish(self, what: ev.Publish) -> None:
        self._fleet.publish(what.node)
        self._make_room()

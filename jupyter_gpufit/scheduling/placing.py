"""Selecting a node for what asks for one, and again for what waits, when there may be room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import GpufitError, NoFit
from ..models import Request
from . import events as ev
from .allocations import Overcommitted
from .events import Work
from .fit import Decision
from .handling import Handling

__all__ = ["Placing"]

_ROOM_PAUSE = 0.1  # s; changes of nodes that come close together make those that wait be looked at once


class Placing(Handling):
    """Base of `Execution`."""

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
        try:
            decision = self._select(entry.allocation.request, what.avoid)
            if decision.placement is not None:
                self._handle(self._placed(what.id, decision))
            elif entry.waiting:  # why it does not fit was said when it began to wait
                self._handle(ev.NotPlaced(id=what.id, message=entry.allocation.message))
            else:
                raise decision.refusal()
        except GpufitError as error:
            self._errors.setdefault(what.id, {})[Work.PLACE] = error
            self._handle(ev.NotPlaced(id=what.id, message=error.message, never=not isinstance(error, NoFit)))
        except Overcommitted:
            self.log.exception("selection is wrong")
            self._handle(ev.NotPlaced(id=what.id, message="selection failed; the server's log says why", never=True))

    def _select(self, request: Request, avoid: Sequence[str] = ()) -> Decision:
        policy = self.policy or self._cluster.inventory.policy
        return self._fleet.index.select(request, policy, self._fleet.exclude(request, avoid))

    def _placed(self, id: str, decision: Decision) -> ev.Placed:
        placement = decision.placement
        assert placement is not None
        gpus = {gpu.uuid: gpu for gpu in self._fleet.node(placement.node).gpus}
        chosen = [gpus[uuid] for uuid in placement.gpus]
        return ev.Placed(
            id=id,
            placement=placement,
            cards={gpu.uuid: gpu.card for gpu in chosen},
            totals={gpu.uuid: gpu.memory_total for gpu in chosen if gpu.memory_total is not None},
        )

    def _make_room(self) -> None:
        """Something changed: what waits may fit now."""
        if self._room is None and not self._dead:
            self._room = asyncio.get_running_loop().call_later(_ROOM_PAUSE, self._retry_waiting)

    def _retry_waiting(self) -> None:
        self._room = None
        self._execute(self._ledger.retry_waiting(self._clock()))

    def _publish(self, what: ev.Publish) -> None:
        self._fleet.publish(what.node)
        self._make_room()

"""What drives the state machine: events go in, and what it then says is done.

    event ─→ Ledger ─→ instructions ─┬─ Place                              select and reserve, at once
                (pure)               ├─ Prepare, StartUnit, StopUnit       in tasks, by the node's launcher
                                     ├─ StartKernel, StopKernel            in tasks, by the kernel host
                                     ├─ Publish, Save, Notify              cluster, store, whoever watches
                                     └─ Wake, Cancel

Everything happens on one event loop, and between an event and the last of its instructions nothing else does: no two
requests ever see the same GPU free.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from traitlets import Float, Int, Unicode
from traitlets.config import LoggingConfigurable

from ..errors import GpufitError, NoFit
from ..inventory import NodeSpec
from ..models import Allocation, Claim, Endpoint, EndReason, Progress, Request, State, Unit
from . import events as ev
from .alarms import Alarms
from .allocations import Ledger, Limits, Overcommitted
from .events import Event, Instruction, Work
from .fit import Decision
from .fleet import Fleet
from .needs import Cluster, KernelHost, Launcher
from .reaper import Reaper
from .records import Records
from .store import MEMORY, Store
from .watching import Bell, Subscribers
from .works import UnitWork, Works, failure_of

__all__ = ["Execution"]

_ROOM_PAUSE = 0.1  # s; changes of nodes that come close together make those that wait be looked at once

Payload = tuple[Sequence[str], Mapping[str, bytes], Mapping[str, str]]


class Execution(LoggingConfigurable):
    """Base of `Driver`: configuration, and what is done about events.

    `make_launcher` makes the launcher of a node; `host` runs kernels (`None`: only callers with a kernel of their own);
    `store` is the directory allocations are kept in, or `":memory:"`. `clock` is Unix time; `pause` says how long to
    wait before try number 1, 2, … when a claim was lost to another scheduler (random, so that not all try at once).
    """

    policy = Unicode("", help="How a node is chosen: 'best-fit' or 'claim'. Empty: as the inventory says.").tag(
        config=True
    )
    restart_within = Float(30.0, help="Seconds that GPUs of a kernel that died are kept for its restart.").tag(
        config=True
    )
    ready_within = Float(300.0, help="Seconds within which a started kernel has to answer.").tag(config=True)
    lost_after = Float(
        3600.0, help="Seconds after which an allocation that shall end is given up if its node does not answer."
    ).tag(config=True)
    reap_grace = Float(5.0, help="Seconds before something of ours that no allocation has is removed.").tag(config=True)
    stop_within = Float(15.0, help="Seconds to wait for releases to be confirmed when the scheduler closes.").tag(
        config=True
    )
    kernel_stop_within = Float(35.0, help="Seconds that a kernel may take to shut down.").tag(config=True)
    keep_ended = Int(200, help="How many allocations that have ended are remembered.").tag(config=True)
    keep_logs = Int(65536, help="How many characters of what a unit printed are kept after its end.").tag(config=True)

    def __init__(
        self,
        cluster: Cluster,
        make_launcher: Callable[[NodeSpec], Launcher],
        host: KernelHost | None = None,
        *,
        store: Path | Literal[":memory:"] = MEMORY,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        pause: Callable[[int], float] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("log", self) is None:
            del kwargs["log"]
        super().__init__(**kwargs)
        self.id = ""
        self._cluster, self._make_launcher, self._host = cluster, make_launcher, host
        self._where, self._limits, self._clock, self._pause = store, limits, clock, pause or _random_pause
        self._bell, self._subscribers, self._alarms = Bell(), Subscribers(self.log), Alarms(self._ring, clock)
        self._ledger, self._records, self._works = Ledger(""), Records(), Works(self.log)
        self._payloads: dict[str, Payload] = {}
        self._errors: dict[str, dict[Work, GpufitError]] = {}
        self._room: asyncio.TimerHandle | None = None
        self._open = self._dead = False
        self._store: Store
        self._fleet: Fleet
        self._units: UnitWork
        self._reaper: Reaper

    # --- events in, instructions out

    def _handle(self, event: Event) -> None:
        self._execute(self._ledger.handle(event, self._clock()))
        self._bell.ring(event.id)

    def _execute(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if not self._dead or isinstance(instruction, ev.Save | ev.Notify | ev.Publish):
                _DO[type(instruction)](self, instruction)

    def _save(self, what: ev.Save) -> None:
        self._store.save(self._ledger.entries[what.id])

    def _notify(self, what: ev.Notify) -> None:
        allocation = self._ledger.entries[what.id].allocation
        self._records.add(allocation)
        if allocation.state is State.ENDED:
            self._retire(allocation)
            self._ledger.forget(what.id)
            if allocation.reason is EndReason.NODE_LOST and allocation.node is not None:
                self._reaper.visit(allocation.node)
        self._subscribers.tell(allocation)

    def _retire(self, allocation: Allocation) -> None:
        for id in self._records.retire(allocation, self.keep_ended):
            self._units.forget(id)
            self._errors.pop(id, None)
            self._store.forget(id)

    def _publish(self, what: ev.Publish) -> None:
        self._fleet.publish(what.node)
        self._make_room()

    def _wake(self, what: ev.Wake) -> None:
        self._alarms.set(what.at, what.id)

    def _ring(self, id: str) -> None:
        self._handle(ev.Woken(id=id))

    def _cancel(self, what: ev.Cancel) -> None:
        self._works.cancel(what.id, what.work)

    def _failure(self, id: str, work: Work, error: BaseException | None) -> dict[str, Any]:
        """What an event says of a failure; remembers the error for whoever waits."""
        failure, message = failure_of(error)
        if isinstance(error, GpufitError):
            self._errors.setdefault(id, {})[work] = error
            if logs := str(error.details.get("logs") or ""):
                self._units.logs[id] = logs[-self.keep_logs :]
        return {"id": id, "failure": failure, "message": message}

    # --- placing

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

    # --- units

    def _prepare(self, what: ev.Prepare) -> None:
        def failed(error: BaseException | None) -> None:
            event = ev.PrepareFailed(**self._failure(what.id, Work.PREPARE, error))
            if event.failure is ev.Failure.UNREACHABLE:
                self._reaper.visit(what.node)
            self._handle(event)

        self._works.begin(
            what.id,
            Work.PREPARE,
            self._units.prepare(
                what.node,
                what.launch,
                partial(self._progressed, what.id),
                self._pause(what.attempt) if what.attempt else 0,
            ),
            lambda unit: self._handle(ev.Prepared(id=what.id, unit=unit)),
            failed,
        )

    def _progressed(self, id: str, progress: Progress) -> None:
        self._handle(ev.Progressed(id=id, progress=progress))

    def _start_unit(self, what: ev.StartUnit) -> None:
        def started(endpoint: Endpoint) -> None:
            self._handle(ev.UnitStarted(id=what.id, ports=endpoint.ports))

        def failed(error: BaseException | None) -> None:
            logs = str(error.details.get("logs") or "") if isinstance(error, GpufitError) else ""
            self._handle(ev.UnitStartFailed(**self._failure(what.id, Work.START_UNIT, error), logs=logs))

        self._units.codes.pop(what.id, None)
        work = self._units.start(what.unit, *self._payloads.pop(what.id))
        self._works.begin(what.id, Work.START_UNIT, work, started, failed)

    def _stop_unit(self, what: ev.StopUnit) -> None:
        self._works.begin(
            what.id,
            Work.STOP_UNIT,
            self._units.stop(what.id, what.node, what.unit),
            lambda logs: self._handle(ev.UnitGone(id=what.id, logs=logs)),
            lambda error: self._handle(ev.StopFailed(**self._failure(what.id, Work.STOP_UNIT, error))),
        )

    def _on_exit(self, unit: Unit, code: int, sentence: str) -> None:
        # A launcher tells of the units of all schedulers on its node, and of what is no allocation's unit any more.
        entry = self._ledger.entries.get(unit.allocation)
        if entry is None or entry.unit is None or entry.unit.id != unit.id:
            return
        self._units.codes[unit.allocation] = code
        self._handle(ev.UnitExited(id=unit.allocation, unit=unit.id, message=sentence))

    def _on_open(self, node: str) -> None:
        if len(self._store.schedulers) > 1:  # claims do not tell of units that hold nothing, such as exited ones
            self._reaper.visit(node)

    def _on_claims(self, node: str, claims: Sequence[Claim]) -> None:
        self._reaper.look(node, claims)

    def _belongs(self, node: str, claim: Claim, unit: Unit | None) -> bool:
        """Whether a live allocation is meant to have that on that node."""
        entry = self._ledger.entries.get(claim.allocation)
        if entry is None or entry.state is State.ENDED or entry.allocation.node != node:
            return False
        if unit is None or Work.PREPARE in entry.busy or entry.unsure:
            return True
        return entry.unit is not None and entry.unit.id == unit.id

    # --- kernels

    def _start_kernel(self, what: ev.StartKernel) -> None:
        assert self._host is not None
        self._works.begin(
            what.id,
            Work.START_KERNEL,
            self._host.start(self._ledger.entries[what.id].allocation),
            lambda kernel_id: self._handle(ev.KernelStarted(id=what.id, kernel_id=kernel_id)),
            lambda error: self._handle(ev.KernelStartFailed(**self._failure(what.id, Work.START_KERNEL, error))),
        )

    def _stop_kernel(self, what: ev.StopKernel) -> None:
        self._works.begin(
            what.id,
            Work.STOP_KERNEL,
            self._stop_kernel_now(what.kernel_id),
            lambda _: self._handle(ev.KernelStopped(id=what.id)),
            lambda _: self._handle(ev.KernelStopped(id=what.id)),  # its unit is stopped next, whatever it was
        )

    async def _stop_kernel_now(self, kernel_id: str) -> None:
        if self._host is None:
            return
        try:
            async with asyncio.timeout(self.kernel_stop_within):
                await self._host.stop(kernel_id)
        except (GpufitError, TimeoutError) as error:
            self.log.warning("kernel %s was not shut down in good order: %s", kernel_id, error or "no answer")


def _random_pause(attempt: int) -> float:
    """Seconds before try number `attempt`."""
    return random.uniform(0.05, 0.25) * float(2 ** min(attempt - 1, 5))


_DO: dict[type[Instruction], Callable[[Execution, Any], None]] = {
    ev.Place: Execution._place,
    ev.Prepare: Execution._prepare,
    ev.StartKernel: Execution._start_kernel,
    ev.StartUnit: Execution._start_unit,
    ev.StopKernel: Execution._stop_kernel,
    ev.StopUnit: Execution._stop_unit,
    ev.Cancel: Execution._cancel,
    ev.Publish: Execution._publish,
    ev.Wake: Execution._wake,
    ev.Save: Execution._save,
    ev.Notify: Execution._notify,
}

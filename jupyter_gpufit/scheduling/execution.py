"""What drives the state machine: events go in, and what it then says is done.

    event ─→ Ledger ─→ instructions ─┬─ Place                              select and reserve, at once
                (pure)               ├─ Prepare, StartUnit, StopUnit       in tasks, by the node's launcher
                                     ├─ StartKernel, StopKernel            in tasks, by the kernel host
                                     ├─ Publish, Save, Notify              cluster, store, whoever watches
                                     └─ Wake, Cancel

The way there and back is in `handling.py`, selection in `placing.py`; here is what is done by launchers and hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from ..errors import GpufitError
from ..models import Claim, Endpoint, Progress, State, Unit
from . import events as ev
from .events import Work
from .placing import Placing

__all__ = ["Execution"]


class Execution(Placing):
    """Base of `Driver`: the work that instructions ask for."""

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


Execution._do = {
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

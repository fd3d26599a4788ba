"""What drives the state machine: events go in, and what it then says is done.

    event ─→ Ledger ─→ instructions ─┬─ Place                              select and reserve, at once
                (pure)               ├─ Prepare, StartUnit, StopUnit       in tasks, by the node's launcher
                                     ├─ RunJob                             in a task, by the job host
                                     ├─ StartKernel, StopKernel, TakeBack  in tasks, by the kernel host
                                     ├─ Publish, Save, Notify              cluster, store, whoever watches
                                     └─ Wake, Cancel, Clean

The way there and back is in `handling.py`, selection in `placing.py`; here is what is done by launchers and hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

from ..durations import format_duration
from ..errors import GpufitError, LaunchError, NodeUnreachable, NotFound, StoreError
from ..models import Claim, Endpoint, Launch, Node, Progress, State, Unit
from . import events as ev
from .entries import Entry
from .events import Work
from .needs import Launcher
from .placing import Placing

__all__ = ["Execution"]

T = TypeVar("T")

_PATIENT = 120  # tries, at most half a minute apart, to find room on this machine for the outputs of a job


class Execution(Placing):
    """Base of `Driver`: the work that instructions ask for."""

    # --- units

    def _prepare(self, what: ev.Prepare) -> None:
        def prepared(unit: Unit) -> None:
            self._errors.pop(what.id, None)  # of tries before this one: what goes wrong from now on is something else
            if self._ledger.entries[what.id].moved:  # back where it was, perhaps: while this one was being made, what
                self._reaper.visit(what.node)  # is left there of an attempt before could not be told from it
            self._handle(ev.Prepared(id=what.id, unit=unit))

        def failed(error: BaseException | None) -> None:
            event = ev.PrepareFailed(**self._failure(what.id, Work.PREPARE, error))
            if event.failure is ev.Failure.UNREACHABLE:
                self._reaper.visit(what.node)
            self._handle(event)

        async def prepare() -> Unit:
            if launch.workspace:
                await self._written()
            progressed = partial(self._progressed, what.id)
            return await self._units.prepare(
                what.node, launch, progressed, self._pause(what.attempt) if what.attempt else 0
            )

        launch = self._as_the_node_has_it(what.node, what.launch)
        self._works.begin(what.id, Work.PREPARE, prepare(), prepared, failed)

    def _as_the_node_has_it(self, node: str, launch: Launch) -> Launch:
        """`launch`, with the folder only if the node has that, too."""
        with suppress(NotFound):
            if launch.folder is not None and not self._cluster.spec(node).shares(launch.folder):
                return msgspec.structs.replace(launch, folder=None)
        return launch

    def _progressed(self, id: str, progress: Progress) -> None:
        self._handle(ev.Progressed(id=id, progress=progress))

    def _start_unit(self, what: ev.StartUnit) -> None:
        def started(endpoint: Endpoint) -> None:
            self._handle(ev.UnitStarted(id=what.id, ports=endpoint.ports))

        def failed(error: BaseException | None) -> None:
            logs = str(error.details.get("logs") or "") if isinstance(error, GpufitError) else ""
            self._handle(ev.UnitStartFailed(**self._failure(what.id, Work.START_UNIT, error), logs=logs))

        self._units.begin(what.id, job=False)
        work = self._units.start(what.unit, *self._payloads.pop(what.id))
        self._works.begin(what.id, Work.START_UNIT, work, started, failed)

    def _stop_unit(self, what: ev.StopUnit) -> None:
        self._works.begin(
            what.id,
            Work.STOP_UNIT,
            self._once_written(lambda: self._stop_unit_now(what)),
            self._handle,
            lambda error: self._handle(ev.StopFailed(**self._failure(what.id, Work.STOP_UNIT, error))),
        )

    async def _stop_unit_now(self, what: ev.StopUnit) -> ev.UnitGone:
        entry = self._ledger.entries[what.id]
        outputs: list[str] = []
        trouble: list[str] = []

        async def collect(launcher: Launcher, unit: Unit) -> None:
            try:
                if (home := await self._collect(entry, launcher, unit)) is not None:
                    outputs.append(home)
            except NodeUnreachable:
                raise
            except GpufitError as error:
                if isinstance(error, StoreError) and entry.stop_failures < _PATIENT:
                    raise  # somebody may make room here; with the unit its outputs would be gone
                trouble.append(error.message)
            except Exception:
                self.log.exception("the outputs of job %s were not brought home", entry.allocation.name)
                trouble.append("its outputs were not brought home; the server's log says why")

        job, last = entry.job is not None, collect if what.collect else None
        logs = await self._units.stop(what.id, what.node, what.unit, job, last)
        return ev.UnitGone(id=what.id, logs=logs, outputs=outputs[-1] if outputs else None, said="; ".join(trouble))

    async def _collect(self, entry: Entry, launcher: Launcher, unit: Unit) -> str | None:
        if self._jobs is None:
            raise LaunchError("this scheduler runs no jobs")
        self._progressed(entry.id, Progress(phase="collecting"))
        spec, progressed = self._fleet.spec(unit.node), partial(self._progressed, entry.id)
        return await self._jobs.collect(entry.allocation, unit, spec, launcher, progressed)

    async def _once_written(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, begun when it is on disk that the allocation ends: after a crash in the middle of it,
        nobody must take the kernel back and find it dead. (One that is stopped to be restarted may be: it then is.)"""
        await self._written()
        return await work()

    # --- jobs

    def _run_job(self, what: ev.RunJob) -> None:
        entry = self._ledger.entries[what.id]

        def started(endpoint: Endpoint) -> None:
            self._handle(ev.UnitStarted(id=what.id))
            if entry.unit == what.unit:
                self._see_end(entry)  # of one that ended at once nobody was told

        def failed(error: BaseException | None) -> None:
            if error is None and self._open and entry.live:  # not by us; and nobody else would start it again
                error = LaunchError("its start was cut off")
            logs = str(error.details.get("logs") or "") if isinstance(error, GpufitError) else ""
            self._handle(ev.UnitStartFailed(**self._failure(what.id, Work.START_UNIT, error), logs=logs))

        async def start(launcher: Launcher) -> Endpoint:
            if self._jobs is None:
                raise LaunchError("this scheduler runs no jobs")
            spec = self._fleet.spec(what.unit.node)
            progressed = partial(self._progressed, what.id)
            return await self._jobs.start(entry.allocation, what.unit, spec, launcher, progressed)

        self._units.begin(what.id, job=True)
        self._works.begin(what.id, Work.START_UNIT, self._units.run(what.unit, start), started, failed)

    def _clean(self, what: ev.Clean) -> None:
        self._reaper.visit(what.node)

    # --- what nodes say

    def _on_exit(self, unit: Unit, code: int, sentence: str) -> None:
        # A launcher tells of the units of all schedulers on its node, and of what is no allocation's unit any more.
        entry = self._ledger.entries.get(unit.allocation)
        if entry is None or entry.unit is None or entry.unit.id != unit.id:
            return
        self._units.codes[unit.allocation] = code
        launcher = self._fleet.known(unit.node)
        with_node = launcher is not None and entry.job is not None and launcher.failed_with_node(unit)
        self._handle(ev.UnitExited(id=unit.allocation, unit=unit.id, message=sentence, code=code, with_node=with_node))

    def _on_open(self, node: str) -> None:
        if len(self._store.schedulers) > 1:  # claims do not tell of units that hold nothing, such as exited ones
            self._reaper.visit(node)

    def _on_claims(self, node: str, claims: Sequence[Claim]) -> None:
        self._reaper.look(node, claims)
        for entry in list(self._ledger.entries.values()):
            if entry.id in self._taken_over and entry.allocation.node == node:
                self._taken_over.discard(entry.id)
                self._see_end(entry)

    def _see_end(self, entry: Entry) -> None:
        """A unit that we took over may be gone already; then no launcher tells of its end."""
        launcher = None if entry.unit is None else self._fleet.known(entry.unit.node)
        if launcher is not None and entry.unit is not None and (code := launcher.exit_code(entry.unit)) is not None:
            self._on_exit(entry.unit, code, launcher.describe_exit(entry.unit))

    def _on_silence(self, node: str) -> None:
        """What is known of the node's engine has changed: whether it answers, or why not."""
        silence = self._fleet.silence(node)
        for id in self._on_node(node):
            if silence is None:
                self._handle(ev.NodeHeard(id=id))
            else:
                self._handle(ev.NodeSilent(id=id, why=silence[0], reporting=silence[1]))
        if silence is None:
            self._reaper.heard(node)

    def _on_report(self, node: Node) -> None:
        """The node says something else than before of its GPUs."""
        if not node.reporting:
            return  # the last that is known of them stays
        for id in self._on_node(node.name):
            entry = self._ledger.entries[id]
            broken = broken_gpus(entry.allocation.gpus, node)
            if broken.keys() != entry.broken.keys():
                self._handle(ev.GpusChanged(id=id, broken=broken))

    def _look_at_nodes(self) -> None:
        """Of allocations that were taken up: what is known of their nodes already."""
        for node in {entry.allocation.node for entry in self._ledger.entries.values()}:
            if node is not None and self._fleet.silence(node) is not None:
                self._on_silence(node)
            if node is not None and (shown := self._fleet.shown(node)) is not None:
                self._on_report(shown)

    def _on_node(self, node: str) -> list[str]:
        return [id for id, entry in self._ledger.entries.items() if entry.allocation.node == node]

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

    def _take_back(self, what: ev.TakeBack) -> None:
        self._works.begin(
            what.id,
            Work.TAKE_BACK,
            self._take_back_now(what),
            lambda kernel_id: self._handle(ev.TakenBack(id=what.id, kernel_id=kernel_id)),
            lambda error: self._handle(ev.TakeBackFailed(**self._failure(what.id, Work.TAKE_BACK, error))),
        )

    async def _take_back_now(self, what: ev.TakeBack) -> str | None:
        await self._units.take_over(what.unit)
        entry = self._ledger.entries[what.id]
        if entry.job is not None and not entry.began and await self._units.was_started(what.unit):
            self._handle(ev.UnitStarted(id=what.id))  # the process before us died before it could say so
        self._taken_over.add(what.id)  # its node's first word is still to come, if it does not answer now
        self._see_end(entry)
        if entry.job is not None:
            return None
        assert self._host is not None
        within = self.kernel_stop_within
        try:
            async with asyncio.timeout(within):
                return await self._host.take_back(entry.allocation, self._store.memories[what.id]["kernel"])
        except TimeoutError:
            raise LaunchError(f"the kernel manager did not do it within {format_duration(within)}") from None

    def _stop_kernel(self, what: ev.StopKernel) -> None:
        self._works.begin(
            what.id,
            Work.STOP_KERNEL,
            self._once_written(lambda: self._stop_kernel_now(what.kernel_id)),
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


def broken_gpus(held: Sequence[str], node: Node) -> dict[str, str]:
    """Those of `held` that are broken, as `node` reports, and what is wrong with them, in few words."""
    reported = {gpu.uuid: gpu for gpu in node.gpus}
    broken = {}
    for uuid in held if reported else ():
        gpu = reported.get(uuid)
        if gpu is None:
            broken[uuid] = "lost: its node does not report it any more"
        elif gpu.health in ("lost", "unhealthy"):
            broken[uuid] = (gpu.reason or gpu.health).split(";")[0]
    return broken


Execution._do = {
    ev.Place: Execution._place,
    ev.Prepare: Execution._prepare,
    ev.StartKernel: Execution._start_kernel,
    ev.StartUnit: Execution._start_unit,
    ev.RunJob: Execution._run_job,
    ev.StopKernel: Execution._stop_kernel,
    ev.TakeBack: Execution._take_back,
    ev.StopUnit: Execution._stop_unit,
    ev.Cancel: Execution._cancel,
    ev.Clean: Execution._clean,
    ev.Publish: Execution._publish,
    ev.Wake: Execution._wake,
    ev.Save: Execution._save,
    ev.Notify: Execution._notify,
}

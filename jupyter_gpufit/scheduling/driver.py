"""The life of a scheduler: it takes up what one that died left, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import StoreError
from ..models import State
from . import events as ev
from .allocations import Ledger, Limits
from .entries import Entry
from .events import Work
from .execution import Execution
from .fleet import Fleet
from .idleness import Idleness
from .learning import Learning
from .logbook import Logbook
from .metering import Metering
from .reaper import Reaper
from .store import Store
from .works import UnitWork

__all__ = ["Driver"]

_DIED = "the Jupyter server that held it ended without releasing it"
_STOPPED = "the Jupyter server was stopped"
_CLOSE_WITHIN = 10.0  # s; for what is cancelled at the end to be undone


class Driver(Execution):
    """Base of `ForKernels`."""

    _adopting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take up the cluster's nodes, and what a scheduler that died left in the store: its kernels are taken back
        (`restored` waits for that), what cannot go on is ended (its GPUs stay reserved until it is confirmed gone).
        Raises `StoreError`."""
        self._store, entries = await Store.open(self._where, self.log, self._embedded)
        self.id = self._store.scheduler
        limits = self._limits or Limits(
            ready_within=self.ready_within,
            restart_within=self.restart_within,
            lost_after=self.lost_after,
            outlive=0.0 if self._embedded else self.outlive,
            outlive_jobs=self.outlive_jobs if self._lasting else 0.0,
        )
        self._ledger = Ledger(self.id, limits)
        ours = self._store.schedulers
        self._fleet = Fleet(
            self._cluster,
            self._make_launcher,
            holds=self._ledger.claims,
            on_exit=self._on_exit,
            on_open=self._on_open,
            on_claims=self._on_claims,
            on_room=self._make_room,
            on_silence=self._on_silence,
            on_report=self._on_report,
            log=self.log,
        )
        self._learning = Learning(
            self._policy_name,
            lambda: self._fleet.index.nodes,
            self._store.facts,
            self._store.note,
            self.log,
            lambda: self._fleet.index.prepare(),
        )
        self._logbook = Logbook(self._store, self.keep_logs)
        self._units = UnitWork(self._fleet, ours, self.log, self._logbook)
        self._reaper = Reaper(self._fleet, ours, self._belongs, self.log, self.reap_grace)
        self._idleness = Idleness(self._ledger.entries, self._cluster, self._host, self._handle, self._clock, self.log)
        self._metering = Metering(
            self._ledger.entries,
            self._cluster,
            self._handle,
            self._store.keep,
            self._store.kept,
            self._clock,
            self.sample_period,
            self.log,
        )
        self._open = True
        for entry in entries:
            self._records.add(entry.allocation)
            if entry.state is State.ENDED:
                self._retire(entry.allocation)
        self._fleet.start()
        self._learning.start()
        self._idleness.start()
        self._metering.start()
        if self._jobs is not None and self._store.alone:
            self._jobs.forget_others({entry.id for entry in entries if entry.state is not State.ENDED})
        self._take_up(entries)
        if self._lasting and self.adopt_every > 0:
            self._adopting = asyncio.create_task(self._keep_adopting())

    def _take_up(self, entries: Sequence[Entry]) -> None:
        """Go on with what the store had from a scheduler that died."""
        remembered = () if self._host is None or self._embedded else self._remembered()
        self._execute(self._ledger.restore(entries, self._clock(), _DIED, remembered, jobs=self._lasting))
        self._look_at_nodes()
        self._forget_kernels(entries)
        for id in [id for id in self._store.memories if id not in self._ledger.entries]:
            self._store.forget_memories(id)  # they ended in the last moment of the one before us

    async def _keep_adopting(self) -> None:
        """Take up what others leave that use the same directory, and end while this one goes on."""
        while True:
            await asyncio.sleep(self.adopt_every)
            try:
                if entries := await self._store.adopt(self.outlive):
                    self._adopt(entries)
            except StoreError as error:
                self.log.warning("what another server may have left is not taken up now: %s", error)
            except Exception:
                self.log.exception("what another server may have left is not taken up")

    def _adopt(self, entries: Sequence[Entry]) -> None:
        names = ", ".join(entry.allocation.name for entry in entries)
        self.log.warning("another server of this store directory has ended; going on with what it left: %s", names)
        for entry in entries:
            self._records.add(entry.allocation)
        self._take_up(entries)
        for node in self._cluster.nodes():
            self._on_silence(node.name)  # that it answers, perhaps, which nobody will say again
            self._reaper.visit(node.name)  # claims do not tell of units that hold nothing, such as exited ones
        for entry in entries:
            self._subscribers.tell((self._ledger.entries.get(entry.id) or entry).allocation)
        self._make_room()

    def _handle(self, event: ev.Event) -> None:
        if not isinstance(event, ev.Used):
            self._metering.tell(event.id)  # it may end by that
        super()._handle(event)

    def _clock_set(self, by: float, now: float) -> None:
        super()._clock_set(by, now)
        self._idleness.clock_set(now)
        self._metering.clock_set(by)
        self._make_room()  # and those that wait are told until when

    def _forget_kernels(self, left: Sequence[Entry]) -> None:
        """Those of `left` that are not taken back."""
        for entry in left:
            kernel_id, now = entry.allocation.kernel_id, self._ledger.entries.get(entry.id)
            taken_back = now is not None and Work.TAKE_BACK in now.busy
            if self._host is not None and kernel_id is not None and not taken_back:
                self._host.forget(kernel_id)

    async def restored(self) -> None:
        """Wait until every kernel has been taken back, or has turned out not to be there for it."""
        for entry in list(self._ledger.entries.values()):
            while Work.TAKE_BACK in entry.busy and not self._dead:
                await self._bell.wait(entry.id)

    @property
    def _lasting(self) -> bool:
        """Whether there may be a next scheduler, which takes up the jobs of this one."""
        return not self._embedded and self._store.path is not None

    def _remembered(self) -> set[str]:
        return {id for id, parts in self._store.memories.items() if "kernel" in parts}

    async def close(self, release: bool = True) -> None:
        """Release everything (or, with `release=False`, only what the next scheduler cannot take back) but jobs, wait
        for that to be confirmed for up to `stop_within` seconds, and stop. Idempotent. What could not be confirmed is
        left to the next start, and so are jobs, in whatever state, if there may be one."""
        if not self._open:
            return
        self._open = False
        if self._adopting is not None:
            self._adopting.cancel()
        kept = self._remembered()
        kept = {id for id in kept if (entry := self._ledger.entries.get(id)) and entry.state is State.RUNNING}
        kept |= {entry.id for entry in self._ledger.entries.values() if entry.queued and entry.hosted}
        try:
            for entry in list(self._ledger.entries.values()):
                if (release or entry.id not in kept) and not (self._lasting and entry.job is not None):
                    self._handle(ev.ReleaseAsked(id=entry.id, message=_STOPPED))
            await self._wait_for_ends()
        finally:
            await self._shut_down()

    async def _wait_for_ends(self) -> None:
        try:
            async with asyncio.timeout(self.stop_within):
                for entry in list(self._ledger.entries.values()):
                    while entry.state is State.STOPPING:
                        await self._bell.wait(entry.id)
        except TimeoutError:
            left = [entry.allocation.name for entry in self._ledger.entries.values() if entry.state is State.STOPPING]
            self.log.warning("not confirmed gone: %s; this is tried again at the next start", ", ".join(left))

    async def _shut_down(self) -> None:
        self._dead = True
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.wait([self._adopting])
        for timer in (self._room, self._telling):
            if timer is not None:
                timer.cancel()
        self._alarms.close()
        await self._idleness.close()
        await self._metering.close()
        await self._learning.close()
        try:
            await self._works.close(_CLOSE_WITHIN)
        finally:
            self._bell.ring_all()
            await self._reaper.close()
            await self._fleet.close()
            await self._store.close()
            await self._recorder.close()

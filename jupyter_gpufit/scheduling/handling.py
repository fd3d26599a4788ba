"""How events come to the state machine, and its instructions to whatever does them. Base of all that drives it.

Everything happens on one event loop, and between an event and the last of its instructions nothing else does: no two
requests ever see the same GPU free.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from traitlets import Bool, Float, Int, Unicode
from traitlets.config import LoggingConfigurable

from ..errors import GpufitError, StoreError
from ..inventory import NodeSpec
from ..models import Allocation, EndReason, State
from . import events as ev
from .alarms import Alarms
from .allocations import Ledger, Limits
from .clock import Clock, steady_for
from .events import Event, Instruction, Work
from .fleet import Fleet
from .learning import Learning
from .logbook import Logbook
from .needs import Cluster, JobHost, KernelHost, Launcher
from .reaper import Reaper
from .recording import Recorder
from .records import Records
from .store import MEMORY, Store
from .watching import Bell, Subscribers
from .works import UnitWork, Works, failure_of

__all__ = ["Handling"]

Payload = tuple[Sequence[str], Mapping[str, bytes], Mapping[str, str]]


class Handling(LoggingConfigurable):
    """Base of `Choosing`: configuration, and the way of events through the state machine.

    `make_launcher` makes the launcher of a node; `host` runs kernels (`None`: only callers with a kernel of their own);
    `jobs` what jobs need (`None`: there can be none);
    `store` is the directory allocations are kept in, or `":memory:"`; `embedded`: by a program's own scheduler, which
    takes no kernel back, since they end with the program (see `store.py`). `clock` is Unix time, `steady` (seconds)
    never jumps; `pause` says how long to wait before try number 1, 2, … when a claim was lost to another scheduler
    (random, so that not all try at once).
    """

    policy = Unicode(
        "",
        help="How a node is chosen: 'best-fit', 'claim', 'fragmentation' or 'balance'. Empty: as the inventory says.",
    ).tag(config=True)
    restart_within = Float(30.0, help="Seconds that GPUs of a kernel that died are kept for its restart.").tag(
        config=True
    )
    ready_within = Float(300.0, help="Seconds within which a started kernel has to answer.").tag(config=True)
    lost_after = Float(
        3600.0,
        help="Seconds after which an allocation ends `node-lost` if neither engine nor reporter of its node answer.",
    ).tag(config=True)
    reap_grace = Float(5.0, help="Seconds before something of ours that no allocation has is removed.").tag(config=True)
    outlive = Float(
        600.0,
        help="Seconds that a plain process waits for the next server when its own died. (A container waits forever.)",
    ).tag(config=True)
    outlive_jobs = Float(
        604800.0,
        help="Seconds that a plain process in which a job runs waits for the next server; it runs on meanwhile.",
    ).tag(config=True)
    adopt_every = Float(
        60.0,
        help="Seconds between two looks at whether another server of the same store directory has ended, to go on with "
        "its jobs, and what else it left. (What waits for it to be started again is left alone for `outlive` "
        "seconds.) 0: only when this one starts.",
    ).tag(config=True)
    stop_within = Float(15.0, help="Seconds to wait for releases to be confirmed when the scheduler closes.").tag(
        config=True
    )
    kernel_stop_within = Float(35.0, help="Seconds that a kernel may take to shut down.").tag(config=True)
    sample_period = Float(5.0, help="Seconds between two samples of what running allocations use of their GPUs.").tag(
        config=True
    )
    keep_ended = Int(512, help="How many allocations that have ended are remembered.").tag(config=True)
    keep_logs = Int(2**20, help="How many characters of what it printed are kept of an allocation.").tag(config=True)
    record_requests = Bool(
        True,
        help="Whether what was asked, and for how long it ran, is written to requests.jsonl in the store's directory, "
        "for `jupyter gpufit bench policies` (docs/policies.md). No names, no owners, no code.",
    ).tag(config=True)

    _do: ClassVar[dict[type[Instruction], Callable[[Any, Any], None]]]
    """What does each instruction; the classes that are based on this one fill it in."""

    def __init__(
        self,
        cluster: Cluster,
        make_launcher: Callable[[NodeSpec], Launcher],
        host: KernelHost | None = None,
        *,
        jobs: JobHost | None = None,
        store: Path | Literal[":memory:"] = MEMORY,
        embedded: bool = False,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
        pause: Callable[[int], float] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("log", self) is None:
            del kwargs["log"]
        super().__init__(**kwargs)
        self.id = ""
        self._cluster, self._make_launcher, self._host = cluster, make_launcher, host
        self._jobs = jobs
        self._where, self._limits, self._pause = store, limits, pause or _random_pause
        self._clock = Clock(clock, steady or steady_for(clock), self._clock_set)
        self._embedded = embedded
        self._taken_over: set[str] = set()  # allocations whose unit may have ended before we watched it
        self._bell, self._subscribers, self._alarms = Bell(), Subscribers(self.log), Alarms(self._ring, self._clock)
        self._ledger, self._records, self._works = Ledger(""), Records(), Works(self.log)
        self._recorder = Recorder(store if isinstance(store, Path) and self.record_requests else None, self.log)
        self._payloads: dict[str, Payload] = {}
        self._errors: dict[str, dict[Work, GpufitError]] = {}
        self._room: asyncio.TimerHandle | None = None
        self._changes = 0  # how often something changed so far by which something that waits may fit
        self._tried: tuple[int, tuple[float, ...]] = (0, ())  # as of how many; up to which rank all were tried then
        self._untold: dict[str, None] = {}  # those that wait, and are to be told where they stand
        self._telling: asyncio.TimerHandle | None = None
        self._rest = 0.0  # s between two looks at what waits, so that these do not take all the time there is
        self._open = self._dead = False
        self._store: Store
        self._fleet: Fleet
        self._learning: Learning
        self._units: UnitWork
        self._logbook: Logbook
        self._reaper: Reaper

    # --- events in, instructions out

    def _handle(self, event: Event) -> None:
        self._execute(self._ledger.handle(event, self._clock()))
        self._bell.ring(event.id)

    def _clock_set(self, by: float, now: float) -> None:
        self.log.warning("this machine's clock was set by %+.0f s; time limits are moved with it", by)
        self._execute(self._ledger.clock_set(by, now))
        for id in list(self._ledger.entries):
            self._bell.ring(id)

    def _execute(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if not self._dead or isinstance(instruction, ev.Save | ev.Notify | ev.Publish):
                self._do[type(instruction)](self, instruction)

    def _save(self, what: ev.Save) -> None:
        self._store.save(self._ledger.entries[what.id])

    async def _written(self) -> None:
        """Wait until all that was saved so far is on disk. What the disk says against it is in the log."""
        with suppress(StoreError):
            await self._store.flush()

    def _notify(self, what: ev.Notify) -> None:
        allocation = self._ledger.entries[what.id].allocation
        self._records.add(allocation)
        if allocation.state is State.ENDED:
            self._store.forget_memories(what.id)
            if allocation.request.job is not None:
                self._forget_job(what.id)
            self._retire(allocation)
            self._recorder.ended(allocation, self._ledger.entries[what.id].placed_at, self._clock())
            self._ledger.forget(what.id)
            if allocation.reason is EndReason.NODE_LOST and allocation.node is not None:
                self._reaper.visit(allocation.node)
        self._subscribers.tell(allocation)

    def _forget_job(self, id: str) -> None:
        try:
            if self._jobs is not None:
                self._jobs.forget(id)
        except Exception:  # it has ended all the same
            self.log.exception("the files kept for job %s were not removed", id)

    def _retire(self, allocation: Allocation) -> None:
        for id in self._records.retire(allocation, self.keep_ended):
            self._units.forget(id)
            self._errors.pop(id, None)
            self._store.forget(id)

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
                self._logbook.failed(id, logs)
        return {"id": id, "failure": failure, "message": message}


def _random_pause(attempt: int) -> float:
    """Seconds before try number `attempt`."""
    return random.uniform(0.05, 0.25) * float(2 ** min(attempt - 1, 5))

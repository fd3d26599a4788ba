"""What the state machine remembers of each allocation, and the limits it works with."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..models import Allocation, Claim, Job, State, Unit
from .events import Work

__all__ = [
    "CANCELLABLE",
    "MESSAGE_LINES",
    "SWEEP_GAP",
    "UNIT_WORK",
    "Entry",
    "Limits",
    "Overcommitted",
    "fresh",
    "with_lines",
]

MESSAGE_LINES = 20
"""Of a failed unit's log, in the message for people; all that is kept is behind `logs`."""
SWEEP_GAP = 600.0
"""Seconds that each further job of a sweep is taken to be younger than it is: so that others get their turn between."""
UNIT_WORK = frozenset({Work.PREPARE, Work.START_UNIT, Work.STOP_UNIT})
CANCELLABLE = frozenset({Work.PLACE, Work.PREPARE, Work.START_UNIT, Work.START_KERNEL})


class Overcommitted(RuntimeError):
    """A placement on GPUs that another allocation of this ledger holds: a fault in selection, never a person's."""


class Limits(Struct, frozen=True, kw_only=True):
    """How long things may take, in seconds, and how often they are tried."""

    attempts: int = 8
    """Tries per request (or per restart), when claims are lost to other schedulers or nodes do not answer."""
    launch_within: float = 120.0
    """From prepared to `launch`; below the five minutes after which others ignore a created container."""
    ready_within: float = 300.0
    """From the start of the kernel's process until it answers: a backstop, kernel managers have their own limit."""
    restart_within: float = 30.0
    """From the death of a running kernel until somebody restarts it."""
    kernel_within: float = 10.0
    """How long an ending waits for `KernelHost.start` to come back, before and again after it is cancelled."""
    forgive_after: float = 60.0
    """One that waits is not placed on a node that failed it for so long: it would only fail again at once."""
    lost_after: float = 3600.0
    """An allocation is given up when neither engine nor reporter of its node have answered for so long."""
    warn_before: tuple[float, ...] = (600.0, 120.0)
    """How long before its time is over an allocation is warned."""
    outlive: float = 0.0
    """A process unit waits so long for the next server when its own died. (A container has all the time in the world.)
    """
    outlive_jobs: float = 0.0
    """Likewise, one in which a job runs."""
    requeue_wait: float = 86400.0
    """A job whose node was lost waits for another for so long."""
    again_first: float = 2.0
    """Pause before the second attempt of a job that failed; doubles with each further one ..."""
    again_most: float = 60.0
    """... up to this."""
    retry_first: float = 1.0
    """Pause before the second try to stop a unit; doubles with each further one ..."""
    retry_most: float = 30.0
    """... up to this."""


class Entry(Struct, kw_only=True):
    """All there is to know of one allocation; saved as it is. Changed by the `Ledger` only."""

    allocation: Allocation
    hosted: bool
    """The scheduler's own host starts what runs in it: a kernel, or a job."""
    cards: dict[str, str] = {}
    """uuid -> card, of the GPUs it holds."""
    totals: dict[str, int] = {}
    """uuid -> bytes in total, of the GPUs it holds."""
    ports: tuple[int, ...] = ()
    """Of its kernel, to be the same after a restart."""
    places: int = 0
    """Selections so far."""
    units: int = 0
    """Units asked for so far; makes each one's name unique."""
    tries: int = 0
    """Units asked for in this restart."""
    contended: bool = False
    """Another scheduler was faster, the last time that it was placed."""
    patience: int = 0
    """How often this restart failed because the node does not answer."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed it when it was placed there. While it waits they are forgiven after a while."""
    waiting: bool = False
    """Queued: nothing fits now."""
    overtaken: int = 0
    """How many later requests have gone before it that may have delayed it."""
    placed_at: float = 0.0
    """When it got the GPUs it holds."""
    unsure: bool = False
    """Something of it may be on the node that we do not know as a unit."""
    launched: bool = False
    """A kernel's process, or a job, was started in the unit."""
    restarting: bool = False
    """A new unit is asked for, in the place of the one before."""
    stop_wanted: bool = False
    """The kernel manager waits for its unit to be gone."""
    kernel_up: bool = False
    """A kernel manager runs its kernel."""
    kernel_cancelled: bool = False
    """`KernelHost.start` was cancelled."""
    busy: set[Work] = set()
    deadlines: dict[str, float] = {}
    """What happens at which moment: `wait`, `launch`, `ready`, `expire`, `warn`, `restart`, `kernel`, `retry`,
    `lost`, `forgive`, `again`."""
    warned_until: float = 0.0
    """Warnings of the end of its time that were due before this moment have been given, or are not needed."""
    said: str = ""
    """Why it ends, as it was said first."""
    died: str = ""
    """How the kernel, or the attempt of the job, before this one ended, if nobody had asked for it."""
    began: float = 0.0
    """When this attempt of the job began to run; 0: it has not, as far as is known."""
    starts: int = 0
    """Attempts of the job that began to run."""
    failures: int = 0
    """Attempts of the job that failed by themselves."""
    leaving: str = ""
    """Why the job is to go elsewhere as soon as it is known that nothing of it runs here."""
    moving: str = ""
    """Why the job cannot stay on its node: it goes elsewhere as soon as nothing of it is under way."""
    moved: str = ""
    """Why it had to leave the node before this one, until it runs again."""
    wait_until: float = 0.0
    """When it has waited for long enough for another node; 0: it waits for as long as it said."""
    stop_failures: int = 0
    """In a row."""
    silence: str = ""
    """Why its node's engine cannot be asked, while it cannot (`Allocation.unreachable_since`)."""
    broken: dict[str, str] = {}
    """Its GPUs that are, and what is wrong with them."""
    shown: str = ""
    """What its message says of these two."""
    trouble: str = ""
    """What last went wrong, for whoever waits."""

    @property
    def id(self) -> str:
        return self.allocation.id

    @property
    def state(self) -> State:
        return self.allocation.state

    @property
    def unit(self) -> Unit | None:
        return self.allocation.unit

    @property
    def job(self) -> Job | None:
        """What runs in it, if that is no kernel."""
        return self.allocation.request.job

    @property
    def live(self) -> bool:
        """Neither ending nor ended."""
        return self.state not in (State.STOPPING, State.ENDED)

    @property
    def queued(self) -> bool:
        """In the queue; also in the moments in which one that waited tries to get what it was given again."""
        return self.live and self.allocation.node is None and (self.waiting or self.allocation.request.wait is not None)

    @property
    def rank(self) -> tuple[int, float]:
        """Its place among those that wait: by priority, then by age."""
        turn = 0 if self.job is None else self.job.turn
        return -self.allocation.request.priority, self.allocation.created + turn * SWEEP_GAP

    @property
    def waits_until(self) -> float:
        """How long it waits for a place."""
        return self.wait_until or self.allocation.created + float(self.allocation.request.wait or 0)

    @property
    def prepared(self) -> bool:
        """Its unit waits for `launch`."""
        return self.unit is not None and not self.launched and not self.busy & UNIT_WORK

    def claim(self, scheduler: str) -> Claim | None:
        """What it holds now; `None`: nothing."""
        now = self.allocation
        if now.node is None or not now.gpus or now.state is State.ENDED:
            return None
        return Claim(
            allocation=now.id,
            scheduler=scheduler,
            owner=now.owner,
            gpus=dict(zip(now.gpus, now.memory, strict=True)),
            shared=now.request.shared,
            container=now.unit.id if now.unit else None,
            pids=now.unit.pids if now.unit else frozenset(),
            cards=self.cards,
            cpus=now.request.cpus or 0.0,
            ram=now.request.host_memory or 0,
        )


def with_lines(sentence: str, logs: str, most: int = MESSAGE_LINES) -> str:
    """`sentence`, and the last lines of what the unit printed (unless it has some already)."""
    lines = logs.rstrip().splitlines()[-most:]
    if not lines or "\n" in sentence:
        return sentence
    return "\n".join([f"{sentence}; its last lines were:", *lines])


def fresh(entry: Entry) -> Entry:
    """`entry` as a new process has to see it: nothing is under way any more, and who knows what is on the node."""
    return msgspec.structs.replace(
        entry,
        unsure=entry.allocation.node is not None,
        busy=set(),
        deadlines={},
        waiting=False,
        restarting=False,
        stop_wanted=False,
        kernel_up=False,
        kernel_cancelled=False,
        stop_failures=0,
    )

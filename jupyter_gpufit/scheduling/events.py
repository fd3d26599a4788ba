"""What goes into the allocation state machine, and what comes out of it (`allocations.Ledger`).

Events say what happened, instructions say what to do; both are plain frozen data, so that a test can write down a whole
life. For each instruction marked *work* exactly one of the named events must come back, whatever happens to the work.

    instruction    done by the scheduler                                 comes back as
    Place          select with the index (after a pause if not the first) Placed | NotPlaced
    Prepare        Launcher.prepare                                       Prepared | PrepareFailed
    StartKernel    KernelHost.start                                       KernelStarted | KernelStartFailed
    StartUnit      Launcher.start, for the caller of `launch`             UnitStarted | UnitStartFailed
    RunJob         JobHost.start                                          UnitStarted | UnitStartFailed
    StopKernel     KernelHost.stop                                        KernelStopped
    StopUnit       Launcher.logs, Launcher.stop (of a job, before that:   UnitGone | StopFailed
                   Launcher.halt, JobHost.collect)
    TakeBack       Launcher.take_over, KernelHost.take_back (of a job     TakenBack | TakeBackFailed
                   only the former; of one that was being started, first
                   `UnitStarted`, if Launcher.was_started)
    Cancel         cancel that work (its event still comes back)          -
    Clean          remove what may be left on a node, once it answers     -
    Publish        tell the cluster what the ledger holds on a node       -
    Wake           send `Woken` at that moment or later                   -
    Save, Notify   store it; tell whoever watches                         -
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ..models import EndReason, Launch, Placement, Progress, Queued, Request, Unit, Usage

__all__ = [
    "Cancel",
    "Clean",
    "Event",
    "ExtendAsked",
    "Failure",
    "GpusChanged",
    "Idled",
    "Instruction",
    "KernelFailed",
    "KernelReady",
    "KernelStartFailed",
    "KernelStarted",
    "KernelStopped",
    "LaunchAsked",
    "NodeHeard",
    "NodeSilent",
    "NotPlaced",
    "Notify",
    "OverUsed",
    "Place",
    "Placed",
    "Prepare",
    "PrepareFailed",
    "Prepared",
    "Progressed",
    "Publish",
    "Ranked",
    "ReleaseAsked",
    "Requested",
    "RestartAsked",
    "RunJob",
    "Save",
    "StartKernel",
    "StartUnit",
    "Stirred",
    "StopAsked",
    "StopFailed",
    "StopKernel",
    "StopUnit",
    "TakeBack",
    "TakeBackFailed",
    "TakenBack",
    "UnitExited",
    "UnitGone",
    "UnitStartFailed",
    "UnitStarted",
    "Used",
    "Wake",
    "Woken",
    "Work",
]


class Work(StrEnum):
    """What can be under way for an allocation; each is one task of the scheduler."""

    PLACE = "place"
    PREPARE = "prepare"
    START_KERNEL = "start-kernel"
    START_UNIT = "start-unit"
    STOP_KERNEL = "stop-kernel"
    STOP_UNIT = "stop-unit"
    TAKE_BACK = "take-back"


class Failure(StrEnum):
    """Ways in which work fails that are answered differently."""

    CLAIM_LOST = "claim-lost"
    """Another scheduler holds the GPUs: a little later, elsewhere."""
    UNREACHABLE = "unreachable"
    """The node does not answer: try elsewhere; what may be left there is removed when it is back."""
    UNFIT = "unfit"
    """The node can start nothing now, whatever is asked (its disk is full): elsewhere; it has undone all."""
    CANCELLED = "cancelled"
    """We cancelled it ourselves; it is undone."""
    ERROR = "error"
    """It said what is wrong, and has undone all: it will not get better by trying again."""
    UNEXPECTED = "unexpected"
    """A fault of ours; who knows what it left."""


# --- events ----------------------------------------------------------------------------------------------------------


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened to the allocation `id`."""

    id: str


class Requested(Event, frozen=True, kw_only=True):
    """Somebody asks. Without `kernel_id` the scheduler's own host will run the kernel."""

    name: str
    owner: str
    request: Request
    kernel_id: str | None = None
    behind: str = ""
    """Why it waits without a try: so does one before it that asks for the same."""


class Placed(Event, frozen=True, kw_only=True):
    """Selection found a node."""

    placement: Placement
    cards: dict[str, str] = {}
    """uuid -> card, of the GPUs placed on."""
    totals: dict[str, int] = {}
    """uuid -> bytes in total, where known."""
    overtakes: str | None = None
    """The allocation that waits before this one, if this one may delay it."""


class NotPlaced(Event, frozen=True, kw_only=True):
    """Selection found none."""

    message: str
    never: bool = False
    """And no waiting would help."""


class Ranked(Event, frozen=True, kw_only=True):
    """Where it stands among those that wait."""

    queue: Queued


class Progressed(Event, frozen=True, kw_only=True):
    """The launcher has come this far."""

    progress: Progress


class Prepared(Event, frozen=True, kw_only=True):
    unit: Unit


class PrepareFailed(Event, frozen=True, kw_only=True):
    failure: Failure
    message: str


class LaunchAsked(Event, frozen=True, kw_only=True):
    """The kernel manager wants its kernel to start now, in the prepared unit."""


class UnitStarted(Event, frozen=True, kw_only=True):
    """Its kernel process runs; it does not answer yet. Or its job runs."""

    ports: tuple[int, ...] = ()


class UnitStartFailed(Event, frozen=True, kw_only=True):
    failure: Failure
    message: str
    logs: str = ""


class KernelStarted(Event, frozen=True, kw_only=True):
    """`KernelHost.start` returned."""

    kernel_id: str


class KernelStartFailed(Event, frozen=True, kw_only=True):
    """`KernelHost.start` raised."""

    failure: Failure
    message: str


class KernelReady(Event, frozen=True, kw_only=True):
    """The kernel answers (said by whoever started it)."""

    kernel_id: str


class TakenBack(Event, frozen=True, kw_only=True):
    """`KernelHost.take_back` returned: the kernel that a server before this one started is ours. Or the job is."""

    kernel_id: str | None


class TakeBackFailed(Event, frozen=True, kw_only=True):
    """`KernelHost.take_back` raised."""

    failure: Failure
    message: str


class KernelFailed(Event, frozen=True, kw_only=True):
    """The kernel will never answer (said by whoever started it)."""

    message: str


class UnitExited(Event, frozen=True, kw_only=True):
    """The unit ended by itself."""

    unit: str
    """Id of the unit; one that is not the allocation's own any more means nothing."""
    message: str
    code: int = 1
    with_node: bool = False
    """Because of its node, which was started anew: not by itself."""


class StopAsked(Event, frozen=True, kw_only=True):
    """The kernel manager wants the unit gone, GPUs kept (it may restart)."""


class RestartAsked(Event, frozen=True, kw_only=True):
    """The kernel manager wants a new unit in the place of the one before."""

    died: str = ""
    """How that one ended, if nobody had asked for it."""


class ReleaseAsked(Event, frozen=True, kw_only=True):
    """It shall end."""

    reason: EndReason = EndReason.RELEASED
    message: str = ""
    kernel_gone: bool = False
    """Whoever asks is the kernel manager, ending that kernel: do not ask it to end the kernel again."""


class ExtendAsked(Event, frozen=True, kw_only=True):
    """It shall have more time. (One without a limit, or that ends, stays as it is.)"""

    seconds: float


class Idled(Event, frozen=True, kw_only=True):
    """It has done nothing for so long that it will be released, unless something happens."""

    until: float
    """Unix time of that."""


class Stirred(Event, frozen=True, kw_only=True):
    """It does something again, after `Idled`."""


class Used(Event, frozen=True, kw_only=True):
    """What it has used so far."""

    usage: Usage


class OverUsed(Event, frozen=True, kw_only=True):
    """It uses more memory than it had asked for."""

    message: str
    """For people; empty: not any more."""


class KernelStopped(Event, frozen=True, kw_only=True):
    """`KernelHost.stop` returned, raised, or took too long."""


class UnitGone(Event, frozen=True, kw_only=True):
    """Confirmed: nothing of the allocation is left on the node."""

    logs: str = ""
    outputs: str | None = None
    """Where the outputs of a job are now, if it had any."""
    said: str = ""
    """Why they are not, in a sentence for people."""


class StopFailed(Event, frozen=True, kw_only=True):
    """It could not be removed, or not be confirmed."""

    failure: Failure
    message: str


class NodeSilent(Event, frozen=True, kw_only=True):
    """The engine of its node does not answer. Said again when that changes, or whether the reporter does."""

    why: str
    """For people."""
    reporting: bool = False
    """The node's reporter still answers: so the machine is there, and what ran on it may well run on."""


class NodeHeard(Event, frozen=True, kw_only=True):
    """The engine of its node answers (again)."""


class GpusChanged(Event, frozen=True, kw_only=True):
    """Which of its GPUs are broken, all of those."""

    broken: dict[str, str]
    """uuid -> what is wrong, for people."""


class Woken(Event, frozen=True, kw_only=True):
    """Time has passed."""


# --- instructions ----------------------------------------------------------------------------------------------------


class Instruction(Struct, frozen=True, kw_only=True):
    """Something to do for the allocation `id`."""

    id: str


class Place(Instruction, frozen=True, kw_only=True):
    attempt: int
    """0: at once; more: after a random pause that grows with it."""
    avoid: tuple[str, ...] = ()
    """Nodes that failed this request."""


class Prepare(Instruction, frozen=True, kw_only=True):
    launch: Launch
    node: str
    attempt: int = 0
    """As for `Place`."""


class StartKernel(Instruction, frozen=True, kw_only=True):
    pass


class StartUnit(Instruction, frozen=True, kw_only=True):
    unit: Unit


class RunJob(Instruction, frozen=True, kw_only=True):
    unit: Unit


class StopKernel(Instruction, frozen=True, kw_only=True):
    kernel_id: str


class StopUnit(Instruction, frozen=True, kw_only=True):
    node: str
    unit: Unit | None
    """`None`: not known; whatever carries the allocation's label there."""
    collect: bool = False
    """A job may have run in it: it is to end in good order, and its outputs are to be brought home first."""


class TakeBack(Instruction, frozen=True, kw_only=True):
    unit: Unit


class Cancel(Instruction, frozen=True, kw_only=True):
    work: Work


class Clean(Instruction, frozen=True, kw_only=True):
    node: str


class Publish(Instruction, frozen=True, kw_only=True):
    node: str


class Wake(Instruction, frozen=True, kw_only=True):
    at: float


class Save(Instruction, frozen=True, kw_only=True):
    pass


class Notify(Instruction, frozen=True, kw_only=True):
    pass

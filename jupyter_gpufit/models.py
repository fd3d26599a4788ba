"""The vocabulary as types: frozen, validated when made and when they cross a wire.

    Report ─ Gpu ─ GpuProcess          what a reporter says of a node
    Node   ─ Gpu, Claim                what the cluster cache knows of a node; what selection works on
    Request → Placement → Allocation   what a person asks, where it goes, what was granted
    Launch → Unit → Endpoint           what a launcher is asked to start, what it made, where that is reached

(What nodes say holds nothing that could hold it, so the garbage collector need not look at it: `gc=False`. There may be
tens of thousands of it.)

Units: memory is bytes, time is seconds, moments are Unix time (UTC). `None` means unknown, never zero.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .durations import parse_duration
from .errors import InvalidValue
from .memory import format_memory, parse_memory

__all__ = [
    "Allocation",
    "Claim",
    "EndReason",
    "Endpoint",
    "Gpu",
    "GpuProcess",
    "Launch",
    "Node",
    "Placement",
    "Progress",
    "Queued",
    "Report",
    "Request",
    "State",
    "Unit",
    "decode",
    "encode",
]

T = TypeVar("T")

MAX_TEXT = 512  # characters of an image, a glob or a label; nothing real is longer
MAX_PRIORITY = 100
MAX_GPUS = 1024  # per request; far above any one machine, low enough that nothing of that size hurts


# --- stage A: what nodes say


class GpuProcess(Struct, frozen=True, kw_only=True, gc=False):
    """A process that computes on a GPU (`nvmlDeviceGetComputeRunningProcesses`)."""

    pid: int
    """In the node's own pid namespace."""
    memory: int | None = None
    """Bytes it uses on that GPU."""
    container: str | None = None
    """Full id of the container it runs in, as its cgroup tells; `None` outside any or when unknown."""
    name: str | None = None


class Gpu(Struct, frozen=True, kw_only=True, gc=False):
    """One schedulable device: a whole GPU, or a MIG instance. Also a MIG parent, which is shown and never allocated.

    As a reporter makes it, `memory_free` and `idle` are the device's own. As the cluster cache hands it to selection,
    they are *effective*: less what allocations reserved and do not use yet, and not idle where one holds it.
    """

    uuid: str
    index: int
    model: str = ""
    memory_total: int | None = None
    memory_free: int | None = None
    memory_used: int | None = None
    card: str = ""
    """The physical card; GPUs with one `card` share hardware. Empty (in a constructor) means: a card of its own."""
    idle: bool = True
    utilization: int | None = None
    """Percent of the last sample period in which a kernel ran (NVML's `gpu` rate)."""
    temperature: int | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""
    mig_profile: str | None = None
    """For a MIG instance: its profile, such as `1g.10gb`."""
    parent: str | None = None
    """For a MIG instance: the uuid of the GPU it is part of."""
    allocatable: bool = True
    """False for a MIG parent, a lost or unhealthy GPU, or one whose memory is unknown; `reason` says which."""
    reason: str | None = None
    """Why the GPU is not allocatable, for people."""
    health: str = "ok"
    """`ok`, `unhealthy`, `lost`, or `unknown`."""
    numa: int | None = None
    """NUMA node of the host that the GPU is attached to."""
    links: tuple[str, ...] = ()
    """Uuids of the GPUs of this node it has an NVLink to."""
    processes: tuple[GpuProcess, ...] = ()
    allocations: tuple[str, ...] = ()
    """Effective view only: ids of the allocations that hold it (also other schedulers')."""
    shareable: bool = False
    """Effective view only: held by shared allocations alone, so a shared request may join where memory fits."""
    memory_claimed: int = 0
    """Effective view only: bytes that allocations hold there, whether used yet or not."""
    memory_foreign: int | None = None
    """Effective view only: bytes that processes of no allocation use."""

    def __post_init__(self) -> None:
        if not self.card:
            msgspec.structs.force_setattr(self, "card", self.uuid)


class Report(Struct, frozen=True, kw_only=True, gc=False):
    """What a node says of its GPUs at one moment: the body of a reporter's `GET /v1/report`."""

    schema: int = 1
    host: str = ""
    """The node's own host name."""
    time: float = 0.0
    """When the sample was taken, by the node's clock. Never compare it with another machine's clock: use `age`."""
    age: float = 0.0
    """Seconds since the sample was taken, when this answer was written."""
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    """Why this report cannot be relied on (driver mismatch, NVML hangs, ...); then `gpus` may be the last known."""


class Claim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one allocation holds on a node, as the scheduler's ledger or the labels on the node's engine tell."""

    allocation: str
    scheduler: str
    owner: str = ""
    gpus: dict[str, int] = {}
    """uuid -> bytes reserved there."""
    shared: bool = False
    container: str | None = None
    """Id of the container whose processes are the allocation's own."""
    pids: frozenset[int] = frozenset()
    """Likewise for the process launcher."""
    cards: dict[str, str] = {}
    """uuid -> card, for GPUs whose card is known to the claimant."""
    expires: float | None = None
    """Unix time at which it will end by itself, as far as the claimant said when it began."""


class Node(Struct, frozen=True, kw_only=True, gc=False):
    """A machine with GPUs, as selection sees it."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    """Effective GPUs (see `Gpu`)."""
    labels: dict[str, str] = {}
    reason: str | None = None
    """Why nothing may be placed here now (unreachable, stale, mismatch...), for people; `None`: usable."""
    age: float | None = None
    """Seconds since its last good report was sampled; `None`: there was none."""
    reporting: bool = True
    """Whether its reporter answers. (Its engine is another matter.)"""
    driver: str | None = None
    cuda: str | None = None
    launcher: str = "docker"
    """`docker` or `process`."""


# --- stages B and C: what people ask, and where it goes


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """N GPUs, memory per GPU, and the wishes around it.

    Raises `InvalidValue` when made from values that cannot be meant.
    """

    gpus: int = 1
    memory: int | str | tuple[int | str, ...] = 0
    """Bytes per GPU: one size for all, or one size each. After construction always a tuple of `gpus` ints."""
    name: str | None = None
    image: str | None = None
    time: float | str | None = None
    """Seconds after which the allocation ends by itself."""
    shared: bool = False
    """May also use GPUs that other shared allocations hold, as long as memory fits."""
    wait: float | str | None = None
    """Seconds it may be queued if nothing fits now."""
    priority: int = 0
    """Of those that wait, the ones with a higher number come first; from -100 to 100."""
    node: str | None = None
    """Only this node (a glob)."""
    model: str | None = None
    """Only GPUs of this model, in any case: part of its name, such as `A100-80GB`, or a glob, such as `*A100*`."""
    labels: dict[str, str] = {}
    """Only nodes that carry all of these."""
    share_card: bool = False
    """Policy `best-fit` may take several GPUs (MIG instances) of one physical card."""

    def __post_init__(self) -> None:
        put = msgspec.structs.force_setattr
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, int) or not 1 <= self.gpus <= MAX_GPUS:
            raise InvalidValue(f"gpus is {self.gpus!r}; ask for a whole number from 1 to {MAX_GPUS}")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int) or abs(self.priority) > MAX_PRIORITY:
            raise InvalidValue(
                f"priority is {self.priority!r}; give a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )
        sizes = tuple(self.memory) if isinstance(self.memory, list | tuple) else (self.memory,) * self.gpus
        if len(sizes) != self.gpus:
            gpus = f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}"
            raise InvalidValue(f"memory has {len(sizes)} sizes for {gpus}; give one size, or one for each GPU")
        put(self, "memory", tuple(parse_memory(size) for size in sizes))
        for wish in ("time", "wait"):
            if (value := getattr(self, wish)) is not None:
                put(self, wish, parse_duration(value))
        if self.name is not None:
            _check_name(self.name)
        for key in ("image", "node", "model"):
            _check_length(key, getattr(self, key))
        for label in (*self.labels.keys(), *self.labels.values()):
            _check_length("a label", label)

    @property
    def sizes(self) -> tuple[int, ...]:
        """`memory` as it is after construction: bytes, one entry per GPU."""
        return self.memory  # type: ignore[return-value]

    def body(self) -> dict[str, Any]:
        """The request as a body of `POST allocations`, in JSON types; what is the default is left out."""
        body: dict[str, Any] = msgspec.to_builtins(self)  # leaves most of that out
        del body["memory"]
        if any(self.sizes):
            body["memory"] = self.sizes[0] if len(set(self.sizes)) == 1 else list(self.sizes)
        return body

    def describe(self) -> str:
        """The request in a few words: `"2 GPUs with 16 GiB each"`, or `"2 GPUs"` where no memory is asked."""
        noun = "GPU" if self.gpus == 1 else "GPUs"
        if not any(self.sizes):
            return f"{self.gpus} {noun}"
        if len(set(self.sizes)) == 1:
            each = "" if self.gpus == 1 else " each"
            return f"{self.gpus} {noun} with {format_memory(self.sizes[0])}{each}"
        return f"{self.gpus} {noun} with {', '.join(format_memory(size) for size in self.sizes)}"


class Placement(Struct, frozen=True, kw_only=True):
    """The answer of selection: a node and one GPU for each requested one."""

    node: str
    gpus: tuple[str, ...]
    """Uuids. The first ones are aligned with the request's memory entries; policy `claim` appends the node's other idle
    GPUs."""
    memory: tuple[int, ...]
    """Bytes reserved on each of `gpus`."""


# --- stages D and E: what was granted

# What is shown of an allocation, in the contract's order.
_PUBLIC = """
    id name owner state reason message node gpus memory kernel_id created expires ended
    warning unreachable_since progress queue version
"""


class State(StrEnum):
    """States of an allocation, in the only order they can come."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why an allocation ended."""

    RELEASED = "released"
    EXPIRED = "expired"
    IDLE = "idle"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NODE_LOST = "node-lost"
    REJECTED = "rejected"


class Progress(Struct, frozen=True, kw_only=True):
    """How far a start has come."""

    phase: str
    """`placing`, `pulling`, `creating`, `starting`, `connecting`."""
    current: int | None = None
    total: int | None = None
    """Bytes, while pulling."""
    message: str = ""


class Queued(Struct, frozen=True, kw_only=True):
    """Where a request that waits stands in the queue of its scheduler."""

    position: int
    """1: it is the next one to get what becomes free."""
    of: int
    """How many wait."""
    until: float
    """When it will have waited for as long as it said, and is refused."""
    missing: str = ""
    """Why it cannot start now, in a sentence for people."""
    frees: str = ""
    """What would make it start, as far as is known: a sentence for people."""
    start: float | None = None
    """When it starts at the latest, by the time limits of what runs; `None`: that is not known."""


class Allocation(Struct, frozen=True, kw_only=True):
    """A granted request. What REST shows of it is `public()`."""

    id: str
    name: str
    owner: str
    request: Request
    created: float
    state: State = State.PENDING
    reason: EndReason | None = None
    message: str = ""
    """One sentence for people on the state it is in."""
    warning: str = ""
    """One sentence for people on what will happen to it soon, when, and what to do about it; empty: nothing."""
    warning_kind: str = ""
    """What it warns of: `time` (its time will be over), `idle` (it will be released for doing nothing), …"""
    warning_at: float | None = None
    """When that will be, if it is known."""
    node: str | None = None
    gpus: tuple[str, ...] = ()
    memory: tuple[int, ...] = ()
    kernel_id: str | None = None
    expires: float | None = None
    ended: float | None = None
    progress: Progress | None = None
    queue: Queued | None = None
    """While it waits for GPUs: where it stands."""
    unit: Unit | None = None
    unreachable_since: float | None = None
    """When the node's engine stopped answering; `None`: it answers, or nothing is placed."""
    version: int = 0
    """Counts the changes of this allocation; "wait for a change" means wait for a greater one."""

    def public(self) -> dict[str, Any]:
        """The allocation as REST and events show it: nothing secret, only JSON types."""
        keys = _PUBLIC.split()
        # By way of JSON: `to_builtins` leaves tuples, which are no JSON type (schemas of events refuse them).
        public: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({key: getattr(self, key) for key in keys}))
        return public | {
            "request": self.request.body(),
            "image": self.request.image,
            "shared": self.request.shared,
            "time": self.request.time,
            "priority": self.request.priority,
        }


class Launch(Struct, frozen=True, kw_only=True):
    """Everything a launcher has to know to prepare one unit. A restart is a new `Launch` with a new `name`."""

    allocation: str
    scheduler: str
    owner: str
    name: str
    """Unique per attempt."""
    gpus: dict[str, int]
    """uuid -> bytes."""
    shared: bool = False
    image: str | None = None
    kernel: str | None = None
    expires: float | None = None
    outlive: float = 0.0
    """Seconds that a process unit waits for another server, should its own die; 0: it ends with it. (A container waits
    for as long as it takes.)"""
    host_ports: tuple[int, ...] = ()
    """After a restart: the ports the unit before had, to have again."""
    cards: dict[str, str] = {}
    totals: dict[str, int] = {}
    """uuid -> bytes the GPU has in all, where known: with it, shared claims of several schedulers are added up."""


class Unit(Struct, frozen=True, kw_only=True):
    """What runs (or is about to) in an allocation: one container, or one local process with all it forked."""

    id: str
    """Container id, or the process launcher's own id."""
    name: str
    node: str
    allocation: str
    inner_ip: str = "127.0.0.1"
    """The address its kernel has to bind, in the unit."""
    inner_ports: tuple[int, ...] = ()
    """The ports its kernel has to bind, in the unit: shell, iopub, stdin, hb, control."""
    encrypt: bool = True
    """Whether the kernel's channels leave this machine, and so have to be encrypted."""
    pids: frozenset[int] = frozenset()


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where a started unit's kernel is reached from here."""

    host: str
    ports: tuple[int, ...]
    """shell, iopub, stdin, hb, control."""


def encode(value: Any) -> bytes:
    """`value` (any type of this module) as JSON."""
    return msgspec.json.encode(value)


def decode(data: bytes | str, type: type[T]) -> T:  # the field's own word
    """A `type` of this module from JSON. Raises `InvalidValue` naming the place and what is wrong there."""
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.DecodeError as error:  # ValidationError included
        cause = error.__cause__
        raise (cause if isinstance(cause, InvalidValue) else InvalidValue(str(error))) from None


def _check_length(what: str, text: str | None) -> None:
    if text is not None and len(text) > MAX_TEXT:
        raise InvalidValue(f"{what} has {len(text)} characters; more than {MAX_TEXT} cannot be meant")


def _check_name(name: str) -> None:
    allowed = name.isascii() and all(char.isalnum() or char in "-_." for char in name)
    if not (allowed and name[:1].isalnum() and len(name) <= 63):
        raise InvalidValue(
            f"name {name!r} cannot be used; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first"
        )

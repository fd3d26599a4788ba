"""The vocabulary as types: frozen, validated when made and when they cross a wire.

    Report ─ Gpu ─ GpuProcess          what a reporter says of a node, and of the models in its store
    Node   ─ Gpu, Claim                what the cluster cache knows of a node; what selection works on
    Request → Placement → Allocation   what a person asks (perhaps with a Job to run), where it goes, what was granted
    Launch → Unit → Endpoint           what a launcher is asked to start, what it made, where that is reached

(What nodes say holds nothing that could hold it, so the garbage collector need not look at it: `gc=False`. There may be
tens of thousands of it.)

Units: memory is bytes, time is seconds, moments are Unix time (UTC). `None` means unknown, never zero.
"""

from __future__ import annotations

import shlex
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
    "GpuUse",
    "Job",
    "JobKind",
    "Launch",
    "Node",
    "Placement",
    "Progress",
    "Queued",
    "Report",
    "Request",
    "State",
    "StoredModel",
    "Unit",
    "Usage",
    "decode",
    "encode",
    "without_secrets",
]

T = TypeVar("T")

MAX_TEXT = 512  # characters of an image, a glob or a label; nothing real is longer
MAX_PATH = 4096
MAX_PRIORITY = 100
MAX_GPUS = 1024  # per request; far above any one machine, low enough that nothing of that size hurts
MAX_CPUS = 4096
LEAST_RAM = 2**26  # bytes; with less no Python starts
MAX_RETRIES = 100
MAX_WORDS = 1000  # of a job's arguments, and of its variables
MAX_WORD = 32_768  # characters of one of them; execve(2) takes 131,072 bytes


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


class StoredModel(Struct, frozen=True, kw_only=True, gc=False):
    """A model in a node's model store: a file or a directory directly in it."""

    name: str
    size: int | None = None
    """Bytes, of all files in it; `None`: not counted (yet)."""
    modified: float | None = None
    """When the newest file in it was last written (Unix time, by the node's clock)."""


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
    models: tuple[StoredModel, ...] | None = None
    """What is in the node's model store; `None`: it has none, or that is not known."""
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
    cpus: float = 0.0
    """Cores of the machine that it asked for; 0: none in particular."""
    ram: int = 0
    """Bytes of the machine's own memory that it asked for; 0: none in particular."""


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
    models: tuple[StoredModel, ...] | None = None
    """What is in its model store; `None`: it has none, or that is not known."""
    model_store: bool = False
    """Whether it has one: then `models` of `None` means that what is in it is not known (yet)."""
    models_write: bool = True
    """Whether a request may ask to write there."""
    cpus: float | None = None
    """Cores of the machine, as its engine says."""
    cpus_free: float | None = None
    """Effective: those that no allocation asked for."""
    cpus_limit: float | None = None
    """The most that one allocation may have; `None`: all of them."""
    ram: int | None = None
    """Bytes of the machine's own memory, as its engine says."""
    ram_free: int | None = None
    """Effective: those that no allocation asked for. (What is in use is not looked at: it is gone the next moment.)"""
    ram_limit: int | None = None
    """The most that one allocation may have; `None`: all of it."""


# --- stages B and C: what people ask, and where it goes


class JobKind(StrEnum):
    """How what a job runs is started."""

    SCRIPT = "script"
    """A Python file of the folder, by the image's Python."""
    NOTEBOOK = "notebook"
    """A notebook of the folder, cell by cell; what it shows is kept in a copy of it."""
    COMMAND = "command"
    """A line for the image's shell."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What runs unattended in an allocation, in the place of a kernel.

    Raises `InvalidValue` when made from values that cannot be meant. Whether its file is there is not known here.
    """

    run: str
    """`train.py`, `notebook.ipynb` (relative to the request's `folder`), or a command line."""
    args: tuple[str, ...] = ()
    """What follows it. (A notebook takes none: its parameters are `sweep`'s.)"""
    env: dict[str, str] = {}
    """Further variables. May hold secrets: never shown, only their names are."""
    retries: int = 0
    """How often it is started again after it failed by itself. (A lost node is not its fault, and does not count.)"""
    launcher: str | None = None
    """`torchrun`: one process per GPU."""
    sweep: dict[str, str] = {}
    """Its point in a sweep: parameter -> value."""
    turn: int = 0
    """Which one of its sweep it is, from 0: later ones let others go before them in the queue."""

    def __post_init__(self) -> None:
        if not self.run.strip() or len(self.run) > MAX_WORD or "\0" in self.run:
            raise InvalidValue(f"run is {self.run[:40]!r}; name a script, a notebook, or a command in quotes")
        if isinstance(self.retries, bool) or not 0 <= self.retries <= MAX_RETRIES:
            raise InvalidValue(f"retries is {self.retries!r}; give a whole number from 0 to {MAX_RETRIES}")
        if self.launcher not in (None, "torchrun"):
            raise InvalidValue(f"launcher is {self.launcher!r}; there is only 'torchrun'")
        if self.launcher is not None and self.kind is not JobKind.SCRIPT:
            raise InvalidValue(f"{self.launcher} starts a Python script, and {self.run!r} is none; name a .py file")
        if self.args and self.kind is JobKind.NOTEBOOK:
            raise InvalidValue(
                f"a notebook takes no arguments, {' '.join(self.args)!r} was given; use --sweep, or --env"
            )
        for name in (*self.env, *self.sweep):
            if not (name.isidentifier() and name.isascii()):
                raise InvalidValue(f"{name!r} is not the name of a variable; use letters, digits and '_'")
        words = (*self.args, *self.env.values(), *self.sweep.values())
        if len(words) > MAX_WORDS or any(len(word) > MAX_WORD or "\0" in word for word in words):
            raise InvalidValue(
                f"the arguments or variables of {self.run!r} are more, or longer, than a process can have"
            )

    @property
    def kind(self) -> JobKind:
        """By how `run` ends, if it is one word: `python train.py` is a command."""
        if self._word.endswith(".py"):
            return JobKind.SCRIPT
        return JobKind.NOTEBOOK if self._word.endswith(".ipynb") else JobKind.COMMAND

    @property
    def file(self) -> str:
        """The script or notebook, as it is called: of `'My notebook.ipynb'` without the quotes. Empty for a command."""
        return "" if self.kind is JobKind.COMMAND else self._word

    @property
    def _word(self) -> str:
        try:
            words = shlex.split(self.run)
        except ValueError:  # quotes that do not end; the shell will say so
            return ""
        return words[0] if len(words) == 1 else ""

    def public(self) -> dict[str, Any]:
        """It as REST and events show it: of its variables only the names."""
        shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(self)))
        return shown | {"kind": str(self.kind), "env": sorted(self.env)}

    def __repr__(self) -> str:
        return f"Job({self.public()})"  # a repr gets into logs


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
    gpu_model: str | None = None
    """Only GPUs of this model, in any case: part of its name, such as `A100-80GB`, or a glob, such as `*A100*`."""
    model: str | None = None
    """A model of the node's model store that it will work with: of nodes that are equal otherwise, one that has it."""
    require_model: bool = False
    """... only nodes that have it."""
    write_models: bool = False
    """The node's model store is mounted to be written, too."""
    labels: dict[str, str] = {}
    """Only nodes that carry all of these."""
    cpus: float | None = None
    """Cores of the machine for it alone (of the allocation, not per GPU); `None`: none in particular."""
    ram: int | str | None = None
    """Bytes of the machine's own memory for it alone; `None`: none in particular. After construction an int."""
    share_card: bool = False
    """Policy `best-fit` may take several GPUs (MIG instances) of one physical card."""
    folder: str | None = None
    """The directory on the server's machine, as an absolute path, that shall be reached there: mounted where the node
    has it, too (`shared` in the inventory); else a job gets a copy, and a kernel what is uploaded."""
    notebook: str | None = None
    """Path of the notebook that it is for, as the Jupyter server has it: to suggest a size the next time."""
    job: Job | None = None
    """What runs unattended there; `None`: a kernel."""

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
        if self.cpus is not None:
            put(self, "cpus", _cores(self.cpus))
        if self.ram is not None:
            put(self, "ram", _ram(self.ram))
        for wish in ("time", "wait"):
            if (value := getattr(self, wish)) is not None:
                put(self, wish, 0.0 if self.job and _is_nothing(wish, value) else parse_duration(value))
        if self.name is not None:
            _check_name(self.name)
        for key in ("image", "node", "gpu_model", "model"):
            _check_length(key, getattr(self, key))
        for key in ("folder", "notebook"):
            _check_length(key, getattr(self, key), MAX_PATH)
        if self.folder is not None and not self.folder.startswith("/"):
            raise InvalidValue(f"folder is {self.folder!r}; give an absolute path")
        if self.require_model and self.model is None:
            raise InvalidValue("require_model (--require-model) needs a model; name it with --model")
        for label in (*self.labels.keys(), *self.labels.values()):
            _check_length("a label", label)

    @property
    def sizes(self) -> tuple[int, ...]:
        """`memory` as it is after construction: bytes, one entry per GPU."""
        return self.memory  # type: ignore[return-value]

    @property
    def host_memory(self) -> int | None:
        """`ram` as it is after construction: bytes."""
        return self.ram  # type: ignore[return-value]

    def body(self) -> dict[str, Any]:
        """The request as a body of `POST allocations`, in JSON types; what is the default is left out, and so are the
        values of a job's variables."""
        body: dict[str, Any] = msgspec.to_builtins(self)  # leaves most of that out
        del body["memory"]
        if "job" in body:
            body["job"].pop("env", None)  # it may hold secrets
        if any(self.sizes):
            body["memory"] = self.sizes[0] if len(set(self.sizes)) == 1 else list(self.sizes)
        return body

    def describe(self) -> str:
        """The request in a few words: `"2 GPUs with 16 GiB each"`, `"1 GPU, 8 CPUs, 64 GiB RAM"`."""
        parts = [f"{self.gpus} {'GPU' if self.gpus == 1 else 'GPUs'}"]
        if any(self.sizes):
            alike = len(set(self.sizes)) == 1
            sizes = self.sizes[:1] if alike else self.sizes
            each = " each" if alike and self.gpus > 1 else ""
            parts[0] += f" with {', '.join(map(format_memory, sizes))}{each}"
        if self.cpus is not None:
            parts.append(f"{self.cpus:g} {'CPU' if self.cpus == 1 else 'CPUs'}")
        if self.host_memory is not None:
            parts.append(f"{format_memory(self.host_memory)} RAM")
        return ", ".join(parts)


def without_secrets(request: Request) -> Request:
    """`request`, of a job's variables only with their names."""
    if request.job is None or not request.job.env:
        return request
    job = msgspec.structs.replace(request.job, env=dict.fromkeys(request.job.env, ""))
    return msgspec.structs.replace(request, job=job)


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
    id name owner state reason message node gpus memory kernel_id created expires ended started
    warning unreachable_since progress queue exit_code attempt outputs usage version
"""


class State(StrEnum):
    """States of an allocation, in the only order they can come. (But a job whose node was lost is pending again.)"""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why an allocation ended."""

    RELEASED = "released"
    FINISHED = "finished"
    """A job, with exit code 0."""
    EXPIRED = "expired"
    IDLE = "idle"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NODE_LOST = "node-lost"
    OVER_MEMORY = "over-memory"
    """It used more memory of a GPU that it shared than it had asked for, and the inventory says `enforce = "stop"`."""
    REJECTED = "rejected"


class Progress(Struct, frozen=True, kw_only=True):
    """How far a start has come."""

    phase: str
    """`placing`, `pulling`, `creating`, `uploading`, `starting`, `connecting`; at the end of a job, `collecting`."""
    current: int | None = None
    total: int | None = None
    """Bytes, while pulling, uploading or collecting."""
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


class GpuUse(Struct, frozen=True, kw_only=True):
    """What an allocation really used of one GPU."""

    uuid: str
    asked: int
    """Bytes."""
    peak: int | None = None
    """The most memory (bytes) that its own processes had there in any sample; `None`: that is not known."""
    busy: float | None = None
    """Mean utilisation of the GPU in percent, over the samples; of a shared one, all who use it. `None`: not known."""
    unknown: int = 0
    """In how many of the samples it was not known what its processes have there: then the peak may have been higher."""


class Usage(Struct, frozen=True, kw_only=True):
    """What an allocation really used, over all samples since it ran (`scheduling/usage.py`)."""

    gpus: tuple[GpuUse, ...]
    seconds: float
    """From the first sample to the last."""
    samples: int
    suggested: int | None = None
    """Bytes per GPU that would have been enough, in whole GiB; `None`: not less than asked, or not known."""


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
    totals: tuple[int, ...] = ()
    """Bytes that each of `gpus` has in all; 0: not known."""
    kernel_id: str | None = None
    started: float | None = None
    """When it ran first."""
    expires: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    """Of a job: of the last attempt that ended by itself."""
    attempt: int = 0
    """Of a job: the how manieth start of it this is, from 1."""
    outputs: str | None = None
    """Of a job: the directory on the server's machine where its outputs are."""
    usage: Usage | None = None
    """What it really used, as far as that is known by now; looked at now and then, and when it ends."""
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
            "job": None if self.request.job is None else self.request.job.public(),
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
    folder: str | None = None
    """The directory (absolute) to have at its own path, to read and write; what is written there belongs to this
    process's user. Only where the node's `shared` has it (`NodeSpec.shares`)."""
    workspace: bool = False
    """A job's unit: it works in a directory of its own (`Launcher.put`), and has one for outputs."""
    write_models: bool = False
    """The node's model store may be written."""
    cpus: float | None = None
    """Cores that it asked for, and is held to; `None`: what the inventory says."""
    ram: int | None = None
    """Bytes of the machine's own memory, likewise."""


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


def _check_length(what: str, text: str | None, most: int = MAX_TEXT) -> None:
    if text is not None and len(text) > most:
        raise InvalidValue(f"{what} has {len(text)} characters; more than {most} cannot be meant")


def _cores(cpus: object) -> float:
    if isinstance(cpus, bool) or not isinstance(cpus, int | float) or not 0 < cpus <= MAX_CPUS:
        raise InvalidValue(f"cpus is {cpus!r}; ask for more than 0 and at most {MAX_CPUS} cores, such as 8 or 0.5")
    return max(0.01, round(float(cpus), 2))  # engines count hundredths, and no finer


def _ram(ram: int | str) -> int:
    if (size := parse_memory(ram)) < LEAST_RAM:
        raise InvalidValue(f"ram is {ram!r}; ask for {format_memory(LEAST_RAM)} of the machine's memory at least")
    return size


def _is_nothing(wish: str, value: float | str) -> bool:
    """Whether it says that a job shall not wait (one that says nothing does)."""
    return wish == "wait" and not isinstance(value, bool) and value in (0, "0", "0s")


def _check_name(name: str) -> None:
    allowed = name.isascii() and all(char.isalnum() or char in "-_." for char in name)
    if not (allowed and name[:1].isalnum() and len(name) <= 63):
        raise InvalidValue(
            f"name {name!r} cannot be used; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first"
        )

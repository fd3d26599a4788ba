"""Scriptable stand-ins for what the scheduler needs: engine and launcher, kernel host, job host, cluster.

    script = Script()
    engine = FakeEngine("n1")                        # what runs on one node; two launchers (schedulers) may share it
    launcher = FakeLauncher(engine, script)
    script.fail("prepare", LaunchError("no space"))  # the next arrival at that point raises
    gate = script.hold("start:running")              # arrivals wait there: `await gate.arrived.wait()` … `gate.open()`

Points, in the order they are passed (each is an await, so a task can be cancelled there):

    launcher   prepare, prepare:made, start, start:running, stop, stop:gone, interrupt, logs, units, put, fetch, halt
    host       kernel, kernel:prepared, kernel:launched, kernel:ready, kernel:back, kernel:stop, kernel:stopped
    job host   job:check, job:start, job:started, job:collect

The names `POINTS_TO_RUNNING` and `POINTS_TO_GONE` list those of one whole launch and one whole release,
`JOB_TO_RUNNING` and `JOB_TO_GONE` those of a job (`engine.crash(unit, code=0)` is its end).
"""

from __future__ import annotations

import asyncio
import io
import itertools
import posixpath
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from jupyter_gpufit.cluster.effective import left_of, used_by_each
from jupyter_gpufit.errors import ClaimLost, LaunchError, NodeUnreachable, NotFound
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.launching.claims import crowded
from jupyter_gpufit.launching.machine import Machine
from jupyter_gpufit.models import Allocation, Claim, Endpoint, Gpu, Launch, Node, Progress, Request, Unit
from jupyter_gpufit.scheduling.logs import Piece, last_lines
from jupyter_gpufit.scheduling.needs import Launcher

__all__ = [
    "GIB",
    "JOB_TO_GONE",
    "JOB_TO_RUNNING",
    "POINTS_TO_GONE",
    "POINTS_TO_RUNNING",
    "FakeCluster",
    "FakeContainer",
    "FakeEngine",
    "FakeHost",
    "FakeJobHost",
    "FakeLauncher",
    "Gate",
    "Script",
    "node",
]

GIB = 2**30
POINTS_TO_RUNNING = (
    "prepare",
    "prepare:made",
    "kernel",
    "kernel:prepared",
    "start",
    "start:running",
    "kernel:launched",
    "kernel:ready",
)
POINTS_TO_GONE = ("kernel:stop", "stop", "stop:gone", "kernel:stopped")
JOB_TO_RUNNING = ("prepare", "prepare:made", "job:start", "start", "start:running", "job:started")
JOB_TO_GONE = ("halt", "logs", "job:collect", "stop", "stop:gone")


def node(name: str, gpus: int = 2, memory: int = 16 * GIB, **more: Any) -> Node:
    """A node with `gpus` idle GPUs of `memory` bytes each, uuids `GPU-<name>-<i>`."""
    made = tuple(
        Gpu(uuid=f"GPU-{name}-{i}", index=i, model="Fake GPU", memory_total=memory, memory_free=memory)
        for i in range(gpus)
    )
    return Node(name=name, gpus=made, age=0.0, **more)


class Gate:
    """A place where arrivals wait."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def pass_through(self) -> None:
        self.arrived.set()
        await self._open.wait()


class Script:
    """What happens at which point. One may be shared by all fakes of a test."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        """Every point passed, in order."""
        self.pause = 0.0
        """Seconds every point takes at least (0: one turn of the event loop)."""
        self._failures: defaultdict[str, list[BaseException]] = defaultdict(list)
        self._gates: dict[str, Gate] = {}
        self._calls: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    def fail(self, point: str, *errors: BaseException) -> None:
        """The next arrivals at `point` raise these, one each."""
        self._failures[point] += errors

    def hold(self, point: str) -> Gate:
        """The next arrivals at `point` wait until the gate is opened."""
        self._gates[point] = gate = Gate()
        return gate

    def call(self, point: str, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the next arrival."""
        self._calls[point].append(callback)

    async def at(self, point: str) -> None:
        self.seen.append(point)
        await asyncio.sleep(self.pause)
        while self._calls[point]:
            self._calls[point].pop(0)()
        if gate := self._gates.pop(point, None):
            await gate.pass_through()
        if self._failures[point]:
            raise self._failures[point].pop(0)


@dataclass
class FakeContainer:
    unit: Unit
    launch: Launch
    claim: Claim
    state: str = "created"
    code: int | None = None
    sentence: str = ""
    logs: str = ""
    with_node: bool = False
    """It ended with its node."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What was put there; names begin with where it was put `into`."""


@dataclass
class FakeEngine:
    """What runs on one node, whoever started it."""

    name: str
    reachable: bool = True
    containers: dict[str, FakeContainer] = field(default_factory=dict)
    launchers: list[FakeLauncher] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    """Names of all units ever made."""
    ids: itertools.count[int] = field(default_factory=itertools.count)
    stuck: set[str] = field(default_factory=set)
    """Ids of units that cannot be removed."""
    machine: tuple[float | None, int | None] = (None, None)
    """Its cores and its memory; unless they are known, launchers say nothing of them."""

    def check(self) -> None:
        if not self.reachable:
            raise NodeUnreachable(f"node {self.name!r} does not answer")

    def claims(self) -> list[Claim]:
        return [box.claim for box in self.containers.values()]

    def changed(self) -> None:
        twice = [uuid for uuid, holders in self.holders().items() if holders > 1]
        assert not twice, f"{twice} run in two units at once"
        for launcher in list(self.launchers):
            launcher.tell_claims()

    def crash(self, unit_id: str, code: int = 1, sentence: str = "", logs: str = "", with_node: bool = False) -> None:
        """The unit ends by itself; every launcher that watches is told."""
        box = self.containers[unit_id]
        box.state, box.code, box.sentence = "exited", code, sentence or f"it ended with exit code {code}"
        box.logs += logs
        box.with_node = with_node
        for launcher in list(self.launchers):
            launcher.tell_exit(box)

    def holders(self, exclusive_only: bool = True) -> Counter[str]:
        """uuid -> number of *running* units that hold it."""
        held: Counter[str] = Counter()
        for box in self.containers.values():
            if box.state == "running" and not (exclusive_only and box.claim.shared):
                held.update(list(box.claim.gpus))
        return held


class FakeLauncher:
    """`needs.Launcher` over a `FakeEngine`."""

    kind = "docker"

    def __init__(self, engine: FakeEngine, script: Script | None = None, spec: NodeSpec | None = None) -> None:
        self.engine = engine
        self.node = engine.name
        self.script = script or Script()
        self.spec = spec or NodeSpec(name=engine.name)
        self.opened = self.closed = False
        self.killed = False
        """True: our process died (`kill -9`), so no undo runs any more."""
        self.launches: list[Launch] = []
        self._on_exit: Callable[[Unit, int, str], None] | None = None
        self._on_claims: Callable[[Sequence[Claim]], None] | None = None
        self.on_trouble: Callable[[str | None], None] | None = None
        """Tests say by it that the engine does not answer (`FakeEngine.reachable` alone is that nobody noticed yet)."""
        self.on_host: Callable[[float | None, int | None], None] | None = None

    async def open(
        self,
        on_exit: Callable[[Unit, int, str], None],
        on_claims: Callable[[Sequence[Claim]], None],
        on_trouble: Callable[[str | None], None] | None = None,
        on_host: Callable[[float | None, int | None], None] | None = None,
    ) -> None:
        assert not self.opened, "opened twice"
        self.opened = True
        self.on_trouble, self.on_host = on_trouble, on_host
        if on_host is not None and self.engine.machine != (None, None):
            on_host(*self.engine.machine)
        if on_trouble is not None:
            on_trouble(None)
        self._on_exit, self._on_claims = on_exit, on_claims
        self.engine.launchers.append(self)
        self.tell_claims()

    def tell_claims(self) -> None:
        if self._on_claims and self.engine.reachable and not self.killed:
            self._on_claims(self.engine.claims())

    def tell_exit(self, box: FakeContainer) -> None:
        if self._on_exit and not self.killed:
            self._on_exit(box.unit, box.code or 0, box.sentence)

    def doubt(self) -> None:
        self.script.seen.append("doubt")

    async def take_over(self, unit: Unit) -> None:
        self._check_open()
        await self.script.at("take_over")
        self.engine.check()

    async def was_started(self, unit: Unit) -> bool:
        self._check_open()
        await self.script.at("was_started")
        self.engine.check()
        box = self.engine.containers.get(unit.id)
        return box is not None and box.state != "created"

    async def prepare(self, launch: Launch, on_progress: Callable[[Progress], None]) -> Unit:
        self._check_open()
        await self.script.at("prepare")
        self.engine.check()
        assert launch.name not in self.engine.history, f"unit name {launch.name} used twice"
        self.launches.append(launch)
        on_progress(Progress(phase="creating"))
        number = next(self.engine.ids)
        ports = launch.host_ports or tuple(40000 + 10 * number + i for i in range(5))
        unit = Unit(
            id=f"{self.node}-unit-{number}",
            name=launch.name,
            node=self.node,
            allocation=launch.allocation,
            inner_ports=ports,
        )
        claim = Claim(
            allocation=launch.allocation,
            scheduler=launch.scheduler,
            owner=launch.owner,
            gpus=dict(launch.gpus),
            shared=launch.shared,
            container=unit.id,
            cards=dict(launch.cards),
            expires=launch.expires,
            cpus=launch.cpus or 0.0,
            ram=launch.ram or 0,
        )
        self.engine.containers[unit.id] = FakeContainer(unit, launch, claim)
        self.engine.history.append(launch.name)
        try:
            self.engine.changed()
            await self.script.at("prepare:made")
            self.engine.check()
            for other in self.engine.claims():
                clash = set(other.gpus) & set(claim.gpus)
                if other.allocation != claim.allocation and clash and not (other.shared and claim.shared):
                    raise ClaimLost(
                        f"{', '.join(sorted(clash))} on {self.node!r} is claimed by allocation {other.allocation}"
                    )
            if short := crowded(claim, self.engine.claims(), Machine(*self.engine.machine)):
                raise ClaimLost("; ".join(short.values()))
        except BaseException:
            self._undo(unit)
            raise
        return unit

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        self._check_open()
        await self.script.at("start")
        self.engine.check()
        box = self.engine.containers.get(unit.id)
        if box is None:
            raise LaunchError(f"unit {unit.id} is gone", logs="")
        if box.state != "created":
            raise LaunchError(f"unit {unit.id} is {box.state} already", logs=box.logs)
        box.state = "running"
        box.logs += "kernel started\n"
        try:
            self.engine.changed()
            await self.script.at("start:running")
            self.engine.check()
            if box.code is not None and not box.launch.workspace:
                raise LaunchError(box.sentence, logs=box.logs)
        except BaseException:
            self._undo(unit)
            raise
        return Endpoint(host="127.0.0.1", ports=unit.inner_ports)

    def exit_code(self, unit: Unit) -> int | None:
        box = self.engine.containers.get(unit.id)
        return 0 if box is None else box.code

    def describe_exit(self, unit: Unit) -> str:
        box = self.engine.containers.get(unit.id)
        return "it is gone" if box is None else box.sentence

    def failed_with_node(self, unit: Unit) -> bool:
        box = self.engine.containers.get(unit.id)
        return box is not None and box.with_node

    async def put(self, unit: Unit, archive: Path, on_progress: Callable[[Progress], None], into: str = "") -> None:
        await self.script.at("put")
        self.engine.check()
        with tarfile.open(archive) as tar:
            for member in tar:
                if (file := tar.extractfile(member)) is not None:
                    name = posixpath.normpath(posixpath.join(into, member.name))
                    self.engine.containers[unit.id].files[name] = file.read()
        on_progress(Progress(phase="uploading", current=1, total=1))

    async def fetch(
        self, unit: Unit, path: str, archive: Path, limit: int, on_progress: Callable[[Progress], None]
    ) -> None:
        await self.script.at("fetch")
        self.engine.check()
        files = self.engine.containers[unit.id].files
        path = posixpath.normpath(path)
        found = {name: data for name, data in files.items() if name == path or name.startswith(f"{path}/")}
        if not found:
            raise NotFound(f"there is no {path!r} in {unit.name}")
        if sum(map(len, found.values())) > limit:
            raise LaunchError(f"{path!r} in {unit.name} is more than {limit} bytes")
        with tarfile.open(archive, "w") as tar:
            for name, data in found.items():
                member = tarfile.TarInfo(posixpath.relpath(name, posixpath.dirname(path) or "."))
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        on_progress(Progress(phase="collecting", current=1))

    async def halt(self, unit: Unit, grace: float) -> None:
        self._check_open()
        await self.script.at("halt")
        self.engine.check()
        box = self.engine.containers.get(unit.id)
        if box is not None and box.state == "running":
            box.state, box.code, box.sentence = "exited", 143, "it was killed by SIGTERM (exit code 143)"
            self.engine.changed()

    async def interrupt(self, unit: Unit) -> None:
        await self.script.at("interrupt")
        self.engine.check()

    async def stop(self, unit: Unit, grace: float = 0.0) -> None:
        self._check_open()
        if self.killed:
            raise NodeUnreachable("nobody is there to ask it")
        await self.script.at("stop")
        self.engine.check()
        if unit.id in self.engine.stuck:
            raise LaunchError(f"unit {unit.id} cannot be removed: device or resource busy")
        self.engine.containers.pop(unit.id, None)
        self.engine.changed()
        await self.script.at("stop:gone")

    async def logs(self, unit: Unit, tail: int | None = None, after: str = "") -> Sequence[Piece]:
        await self.script.at("logs")
        self.engine.check()
        box = self.engine.containers.get(unit.id)
        lines = [] if box is None else box.logs.splitlines(keepends=True)
        pieces = [Piece(f"{number:08d}", line) for number, line in enumerate(lines, 1)]
        pieces = [piece for piece in pieces if piece.mark > after]
        return pieces if tail is None else last_lines(pieces, tail)

    async def units(self) -> Sequence[tuple[Unit, Claim]]:
        await self.script.at("units")
        self.engine.check()
        return [(box.unit, box.claim) for box in self.engine.containers.values()]

    async def close(self) -> None:
        self.closed = True
        if self in self.engine.launchers:
            self.engine.launchers.remove(self)

    def _undo(self, unit: Unit) -> None:
        if not self.killed:
            self.engine.containers.pop(unit.id, None)
            self.engine.changed()

    def _check_open(self) -> None:
        assert self.opened, f"launcher of {self.node} used before open"
        assert not self.closed, f"launcher of {self.node} used after close"


class FakeHost:
    """`needs.KernelHost`: goes through a kernel's life as the provisioner does. Set `scheduler` before first use."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.scheduler: Any = None
        self.kernels: dict[str, str] = {}
        """kernel id -> allocation, of the kernels that run."""
        self.stopped: list[str] = []
        self.idle: dict[str, float] = {}
        """kernel id -> since when it is idle; of a kernel that is not named here nothing is known."""
        self.busy: set[str] = set()
        """Kernels that do not answer because a cell runs, whatever `idle` says."""
        self.taken_back: list[str] = []
        self.forgotten: list[str] = []
        self._ids = itertools.count()

    def forget(self, kernel_id: str) -> None:
        self.forgotten.append(kernel_id)

    async def start(self, allocation: Allocation) -> str:
        id, kernel_id = allocation.id, f"kernel-{next(self._ids)}-of-{allocation.id}"
        await self.script.at("kernel")
        await self.scheduler.prepared(id)
        await self.script.at("kernel:prepared")
        await self.scheduler.launch(id, ["{python}", "-m", "ipykernel"], {"connection.json": b"{}"}, {})
        self.kernels[kernel_id] = id
        try:
            await self.script.at("kernel:launched")
            self.scheduler.remember(id, kernel_id.encode())
            await self.scheduler.ready(id, kernel_id)
            await self.script.at("kernel:ready")
        except BaseException:
            self.kernels.pop(kernel_id, None)
            raise
        return kernel_id

    async def take_back(self, allocation: Allocation, memory: bytes) -> str:
        await self.script.at("kernel:back")
        kernel_id = memory.decode()
        self.kernels[kernel_id] = allocation.id
        self.taken_back.append(kernel_id)
        return kernel_id

    async def stop(self, kernel_id: str) -> None:
        self.stopped.append(kernel_id)
        await self.script.at("kernel:stop")
        if id := self.kernels.pop(kernel_id, None):
            await self.scheduler.stop_unit(id)
            await self.scheduler.release(id, kernel_gone=True)
        await self.script.at("kernel:stopped")

    def idle_since(self, kernel_id: str) -> float | None:
        return self.idle.get(kernel_id)

    async def quiet(self, kernel_id: str, within: float) -> bool:
        await self.script.at("kernel:quiet")
        return kernel_id not in self.busy


class FakeJobHost:
    """`needs.JobHost`: puts nothing, and brings home names."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.kept: dict[str, Request] = {}
        """Allocation -> its request, as it was checked in."""
        self.started: list[Allocation] = []
        """Each attempt, as it was then."""
        self.collected: list[str] = []
        """Ids of units."""
        self.home: str | None = "/home/me/outputs"
        """Where outputs go; `None`: there are none."""

    async def check_in(self, ids: Sequence[str], request: Request) -> None:
        await self.script.at("job:check")
        self.kept |= dict.fromkeys(ids, request)

    async def start(
        self,
        allocation: Allocation,
        unit: Unit,
        spec: NodeSpec,
        launcher: Launcher,
        on_progress: Callable[[Progress], None],
    ) -> Endpoint:
        await self.script.at("job:start")
        on_progress(Progress(phase="uploading"))
        self.started.append(allocation)
        assert allocation.request.job is not None
        endpoint = await launcher.start(unit, [allocation.request.job.run], {}, {})
        await self.script.at("job:started")
        return endpoint

    async def collect(
        self,
        allocation: Allocation,
        unit: Unit,
        spec: NodeSpec,
        launcher: Launcher,
        on_progress: Callable[[Progress], None],
    ) -> str | None:
        await self.script.at("job:collect")
        on_progress(Progress(phase="collecting"))
        self.collected.append(unit.id)
        return None if self.home is None else f"{self.home}/{allocation.name}"

    def forget(self, id: str) -> None:
        self.kept.pop(id, None)

    def forget_others(self, known: Container[str]) -> None:
        self.kept = {id: request for id, request in self.kept.items() if id in known}


class FakeCluster:
    """`needs.Cluster`: nodes as given, less the claims that were set."""

    def __init__(self, nodes: Sequence[Node] = (), specs: Sequence[NodeSpec] = ()) -> None:
        self.inventory = Inventory(nodes=tuple(specs))
        self._raw = {one.name: one for one in nodes}
        self._specs = {spec.name: spec for spec in specs}
        self._claims: dict[tuple[str, str], tuple[Claim, ...]] = {}
        self._troubles: dict[str, str | None] = {}
        self._hosts: dict[str, tuple[float | None, int | None]] = {}
        self._callbacks: list[Callable[[str, Node | None], None]] = []

    def nodes(self) -> Sequence[Node]:
        return [self._effective(name) for name in sorted(self._raw)]

    def spec(self, node: str) -> NodeSpec:
        if node not in self._raw:
            raise NotFound(f"there is no node {node!r}")
        return self._specs.get(node) or NodeSpec(name=node, docker="unix:///var/run/docker.sock")

    def uses(self, node: str, allocation: str) -> Mapping[str, int | None]:
        claims = [claim for (_, at), said in self._claims.items() if at == node for claim in said]
        return used_by_each(self._raw[node].gpus if node in self._raw else (), claims).get(allocation, {})

    def set_claims(self, source: str, node: str, claims: Sequence[Claim]) -> None:
        self._claims[source, node] = tuple(claims)
        if node in self._raw:
            self._tell(node)

    def set_trouble(self, node: str, trouble: str | None) -> None:
        news = self._troubles.get(node) != trouble
        self._troubles[node] = trouble
        if news and node in self._raw:
            self._tell(node)

    def set_host(self, node: str, cpus: float | None, ram: int | None) -> None:
        news = self._hosts.get(node, (None, None)) != (cpus, ram)
        self._hosts[node] = cpus, ram
        if news and node in self._raw:
            self._tell(node)

    def claims(self, node: str, source: str = "ledger") -> tuple[Claim, ...]:
        """What was last set."""
        return self._claims.get((source, node), ())

    @property
    def raw(self) -> Sequence[Node]:
        """The nodes as given."""
        return list(self._raw.values())

    def put(self, one: Node, spec: NodeSpec | None = None) -> None:
        """Add or change a node."""
        self._raw[one.name] = one
        if spec is not None:
            self._specs[one.name] = spec
        self._tell(one.name)

    def remove(self, name: str) -> None:
        del self._raw[name]
        self._tell(name)

    def on_change(self, callback: Callable[[str, Node | None], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        for name in sorted(self._raw):
            callback(name, self._effective(name))
        return lambda: self._callbacks.remove(callback)

    def _tell(self, name: str) -> None:
        one = self._effective(name) if name in self._raw else None
        for callback in list(self._callbacks):
            callback(name, one)

    def _effective(self, name: str) -> Node:
        merged: dict[str, Claim] = {}
        for source in ("engine", "ledger"):
            for claim in self._claims.get((source, name), ()):
                merged.setdefault(claim.allocation, claim)
        gpus = []
        for gpu in self._raw[name].gpus:
            holding = [claim for claim in merged.values() if gpu.uuid in claim.gpus]
            reserved = sum(claim.gpus[gpu.uuid] for claim in holding)
            free = None if gpu.memory_free is None else max(0, gpu.memory_free - reserved)
            gpus.append(
                msgspec.structs.replace(
                    gpu,
                    memory_free=free,
                    idle=gpu.idle and not holding,
                    shareable=gpu.idle and bool(holding) and all(claim.shared for claim in holding),
                    allocations=tuple(sorted(claim.allocation for claim in holding)),
                    memory_claimed=reserved,
                )
            )
        raw = self._raw[name]
        reason = raw.reason or self._troubles.get(name)
        said = [claim for claims in self._claims.items() if claims[0][1] == name for claim in claims[1]]
        cpus, ram = self._hosts.get(name) or (raw.cpus, raw.ram)
        cpus_free, ram_free = left_of(cpus, ram, said)
        return msgspec.structs.replace(
            raw, gpus=tuple(gpus), reason=reason, cpus=cpus, ram=ram, cpus_free=cpus_free, ram_free=ram_free
        )

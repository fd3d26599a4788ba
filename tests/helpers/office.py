"""A Jupyter server with the extension over make-believe parts: the real scheduler on the fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from jupyter_gpufit.diagnosis import Check, Diagnosis, Tell, right, wrong
from jupyter_gpufit.errors import Conflict, InvalidValue, NotFound
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.models import Allocation, Node
from jupyter_gpufit.scheduling.scheduler import LocalScheduler
from jupyter_gpufit.server.extension import GpufitExtension

from .fakes import FakeCluster, FakeEngine, FakeHost, FakeJobHost, FakeLauncher, Script, node
from .frontend import FrontEnd
from .jupyterserver import Here

__all__ = ["MakeOffice", "Office", "Parts", "extension_of"]


class FakeTransfer(msgspec.Struct, frozen=True):
    id: str
    allocation: str
    do: str
    files: list[str]
    version: int = 0
    done: bool = False
    failed: bool = False
    message: str = ""
    current: int | None = None
    total: int | None = None


class FakeTransfers:
    """`jobs.transfers.Transfers` that copies nothing: a byte each time that somebody looks."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, str, str, list[str]]] = []
        self._all: dict[str, FakeTransfer] = {}

    def begin(self, allocation: Allocation, do: str, folder: str, paths: list[str]) -> FakeTransfer:
        if allocation.state != "running":
            raise Conflict(f"{allocation.name!r} is {allocation.state}")
        if not paths or any(path.startswith(("/", "..")) or not path.strip() for path in paths):
            raise InvalidValue(f"{paths} leads out of {folder}")
        self.begun.append((allocation.name, do, folder, paths))
        made = FakeTransfer(f"t{len(self._all)}", allocation.id, do, paths, total=3)
        self._all[made.id] = made
        return made

    async def latest(self, id: str, after: int, wait: float) -> FakeTransfer:
        now = self._known(id)
        if not now.done:
            version = now.version + 1
            now = msgspec.structs.replace(now, version=version, current=version, done=version == 3)
            self._all[id] = now
        return now

    def cancel(self, id: str) -> FakeTransfer:
        self._all[id] = msgspec.structs.replace(self._known(id), done=True, failed=True, message="cancelled")
        return self._all[id]

    async def close(self) -> None: ...

    def _known(self, id: str) -> FakeTransfer:
        if id not in self._all:
            raise NotFound(f"there is no transfer {id!r}")
        return self._all[id]


class Parts:
    """What the extension takes for its service: the real scheduler on fakes."""

    def __init__(self) -> None:
        self.script = Script()
        self.cluster = FakeCluster([node("n1", gpus=2), node("n2", gpus=4, labels={"room": "b12"})])
        self.engines = {"n1": FakeEngine("n1"), "n2": FakeEngine("n2")}
        self.host = FakeHost(self.script)
        self.jobs = FakeJobHost(self.script)
        self.transfers = FakeTransfers()
        self.inventory_error: str | None = None
        self.scheduler: LocalScheduler
        self.opened: dict[str, Any] = {}
        self.closed = False
        self.findings = (right("reporter", "it answers"), wrong("engine", "it does not", "sudo reboot"))
        self.examined = asyncio.Event()
        """Set: the doctor goes on."""
        self.examined.set()

    async def open(self, inventory: Any, **options: Any) -> Parts:
        self.opened = {"inventory": inventory, **options}

        def launcher(spec: NodeSpec) -> FakeLauncher:
            return FakeLauncher(self.engines.setdefault(spec.name, FakeEngine(spec.name)), self.script, spec)

        self.scheduler = self.host.scheduler = LocalScheduler(self.cluster, launcher, self.host, jobs=self.jobs)
        await self.scheduler.open()
        return self

    def on_node_change(self, callback: Callable[[str, Node | None], None]) -> Callable[[], None]:
        return self.cluster.on_change(callback)

    async def examine(self, node: str, deep: bool, tell: Tell) -> Diagnosis:
        """Slowly, and with what `findings` has."""
        known: list[Check] = []
        for check in self.findings:
            await self.examined.wait()
            known.append(check)
            tell(Diagnosis(node=node, deep=deep, checks=tuple(known)))
        return Diagnosis(node=node, deep=deep, done=True, checks=tuple(known))

    async def close(self, keep: bool = False) -> None:
        self.closed = True
        await self.scheduler.close(release=not keep)


class Office:
    """A server on make-believe parts, and somebody in front of it."""

    def __init__(self, here: Here, front: FrontEnd, parts: Parts) -> None:
        self.here, self.front, self.parts = here, front, parts

    @property
    def extension(self) -> GpufitExtension:
        return extension_of(self.here)


def extension_of(here: Here) -> GpufitExtension:
    app = here.app.extension_manager.extension_points["jupyter_gpufit"].app
    assert isinstance(app, GpufitExtension)
    return app


MakeOffice = Callable[..., AbstractAsyncContextManager[Office]]
"""`make_office(config, start=False)`: fixture of tests/server."""

"""A Jupyter server with the extension over make-believe parts: the real scheduler on the fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from jupyter_gpufit.diagnosis import Check, Diagnosis, right, wrong
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.kernels.doctor import Tell
from jupyter_gpufit.models import Node
from jupyter_gpufit.scheduling.scheduler import LocalScheduler
from jupyter_gpufit.server.extension import GpufitExtension

from .fakes import FakeCluster, FakeEngine, FakeHost, FakeLauncher, Script, node
from .frontend import FrontEnd
from .jupyterserver import Here

__all__ = ["MakeOffice", "Office", "Parts", "extension_of"]


class Parts:
    """What the extension takes for its service: the real scheduler on fakes."""

    def __init__(self) -> None:
        self.script = Script()
        self.cluster = FakeCluster([node("n1", gpus=2), node("n2", gpus=4, labels={"room": "b12"})])
        self.engines = {"n1": FakeEngine("n1"), "n2": FakeEngine("n2")}
        self.host = FakeHost(self.script)
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

        self.scheduler = self.host.scheduler = LocalScheduler(self.cluster, launcher, self.host)
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

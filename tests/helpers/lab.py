"""A scheduler over fakes, ready to use:

    async with Lab(node("a", 2), node("b", 4)) as lab:
        allocation = await lab.running(gpus=2)
        lab.script.fail("stop", NodeUnreachable("no answer"))
        await lab.scheduler.release(allocation.id)
        await lab.until(allocation.id, "ended")

Leaving it closes the scheduler, and checks that nothing is left: no unit, no reservation, no kernel, no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from helpers.fakes import FakeCluster, FakeContainer, FakeEngine, FakeHost, FakeJobHost, FakeLauncher, Script

from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.models import Allocation, Job, Node, Request, State
from jupyter_gpufit.scheduling.allocations import Limits
from jupyter_gpufit.scheduling.scheduler import LocalScheduler

__all__ = ["QUICK", "Lab", "eventually"]

QUICK = Limits(
    restart_within=0.2, kernel_within=0.2, retry_first=0.01, retry_most=0.05, again_first=0.01, again_most=0.05
)
"""Limits for tests that wait for them."""


async def eventually(holds: Callable[[], bool], within: float = 20.0) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110  (nobody says when)
            await asyncio.sleep(0.01)


class Lab:
    """`of`: another lab, whose engines this one's scheduler uses, too. `host=False`: no kernel host."""

    def __init__(
        self,
        *nodes: Node,
        specs: tuple[NodeSpec, ...] = (),
        of: Lab | None = None,
        host: bool = True,
        limits: Limits = QUICK,
        **options: Any,
    ) -> None:
        nodes = nodes or (tuple(of.cluster.raw) if of else ())
        self.script = Script()
        self.engines = of.engines if of else {one.name: FakeEngine(one.name) for one in nodes}
        self.cluster = FakeCluster(nodes, specs)
        self.host = FakeHost(self.script)
        self.jobs = FakeJobHost(self.script)
        if of is not None:
            self.jobs.kept = dict(of.jobs.kept)  # it is on disk
        self.launchers: list[FakeLauncher] = []
        options = {"pause": lambda attempt: 0.01, "reap_grace": 0.01, "limits": limits, "jobs": self.jobs} | options
        self.scheduler = LocalScheduler(self.cluster, self._launcher, self.host if host else None, **options)
        self.host.scheduler = self.scheduler
        self.may_leave = of is not None
        """Whether engines may have something left at the end (somebody else's)."""

    def _launcher(self, spec: NodeSpec) -> FakeLauncher:
        engine = self.engines.setdefault(spec.name, FakeEngine(spec.name))
        self.launchers.append(FakeLauncher(engine, self.script, spec))
        return self.launchers[-1]

    async def __aenter__(self) -> Self:
        self._before = asyncio.all_tasks()
        await self.scheduler.open()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.scheduler.close()
        if kind is None:
            self.check_clean()

    async def request(self, owner: str = "me", kernel_id: str | None = None, **wishes: Any) -> Allocation:
        return await self.scheduler.request(Request(**wishes), owner, kernel_id=kernel_id)

    async def submit(
        self,
        run: str = "train.py",
        owner: str = "me",
        sweep: Mapping[str, Sequence[str]] | None = None,
        job: Mapping[str, Any] | None = None,
        **wishes: Any,
    ) -> list[Allocation]:
        """Ask for a job; `job`: what else it is, such as retries."""
        return await self.scheduler.submit(Request(job=Job(run=run, **(job or {})), **wishes), owner, sweep or {})

    async def job(self, **wishes: Any) -> Allocation:
        """A job that runs."""
        [made] = await self.submit(**wishes)
        return await self.until(made.id, "running")

    def box(self, id: str) -> FakeContainer:
        """The one container of an allocation."""
        boxes = [box for engine in self.engines.values() for box in engine.containers.values()]
        [found] = [box for box in boxes if box.claim.allocation == id]
        return found

    def ends(self, id: str, code: int = 0, **how: Any) -> None:
        """What runs in its container ends by itself."""
        unit = self.box(id).unit
        self.engines[unit.node].crash(unit.id, code, **how)

    async def running(self, **wishes: Any) -> Allocation:
        return await self.until((await self.request(**wishes)).id, "running")

    async def external(self, **wishes: Any) -> Allocation:
        """A running allocation whose kernel is somebody else's."""
        allocation = await self.request(kernel_id="foreign", **wishes)
        await self.scheduler.prepared(allocation.id)
        await self.scheduler.launch(allocation.id, ["python"], {}, {})
        return await self.scheduler.ready(allocation.id, "foreign")

    async def until(self, id: str, state: str, within: float = 20.0) -> Allocation:
        """The allocation once it is in that state."""
        async with asyncio.timeout(within):
            while (now := self.scheduler.get(id)).state is not State(state):
                assert now.state is not State.ENDED, f"it ended instead: {now.reason}: {now.message}"
                await self.scheduler.changed(id, now.version, within)
        return now

    async def end(self, id: str) -> Allocation:
        await self.scheduler.release(id)
        return await self.until(id, "ended")

    async def kill(self, written: bool = True) -> None:
        """As `kill -9` of the server: whatever is under way stops in the middle, and nothing is undone or written.

        `written=False`: nor is what was to be written soon.
        """
        for launcher in self.launchers:
            launcher.killed = True
        store = self.scheduler._store
        if written:
            await store.flush()
        store._waiting.clear()
        store._memories_waiting.clear()
        store._kept_waiting.clear()
        store._facts_waiting.clear()
        store.save = store.forget = store.remember = store.keep = lambda *_: None  # type: ignore[method-assign]
        self.scheduler._learning._note = lambda *_: None
        self.scheduler._open = False
        await self.scheduler._shut_down()

    def held(self, name: str) -> set[str]:
        """GPUs that the ledger has reserved on a node, as it told the cluster."""
        return {uuid for claim in self.cluster.claims(name) for uuid in claim.gpus}

    def check_clean(self) -> None:
        """Nothing is left."""
        assert self.host.kernels == {}
        assert self.may_leave or self.jobs.kept == {}, "files of jobs are left"
        for name, engine in self.engines.items():
            assert self.may_leave or engine.containers == {}, f"left on {name}"
            assert self.held(name) == set(), f"reserved on {name}"
        left = {task for task in asyncio.all_tasks() - self._before if task is not asyncio.current_task()}
        assert not left, f"tasks left: {left}"
        assert all(launcher.closed for launcher in self.launchers)

"""Allocations that do nothing: what counts as nothing, and that whatever happens counts against it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from helpers.fakes import node
from helpers.lab import Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.models import Allocation, EndReason, Node, State

HOUR = 3600.0
NOW = 1_000_000.0


def doing(*utilizations: int | None, **more: Any) -> Node:
    """Node `a`, whose GPUs do so much."""
    made = node("a", len(utilizations), **more)
    return replace(
        made, gpus=tuple(replace(gpu, utilization=each) for gpu, each in zip(made.gpus, utilizations, strict=True))
    )


class Watched(Lab):
    """A lab whose clock stands still, and one allocation in it whose kernel and GPUs do nothing from now on."""

    def __init__(self, *nodes: Node, after: float | None = HOUR, warning: float = 600.0, **options: Any) -> None:
        self.now = NOW
        spec = NodeSpec(name="a", docker="unix:///d", idle_after=after, idle_warning=warning)
        super().__init__(*(nodes or (doing(0, 0),)), specs=(spec,), clock=lambda: self.now, **options)

    async def pass_time(self, seconds: float) -> Allocation:
        """Time passes, and the scheduler looks."""
        self.now += seconds
        self.scheduler._alarms.check()
        await self.scheduler._idleness.look()
        return self.it

    @property
    def it(self) -> Allocation:
        return self.scheduler.get("nap")

    @property
    def kernel(self) -> str:
        return str(self.it.kernel_id)

    def cell(self) -> None:
        """A cell has run, and is done."""
        self.host.idle[self.kernel] = self.now


@asynccontextmanager
async def napping(*nodes: Node, gpus: int = 2, time: str | None = None, **options: Any) -> AsyncIterator[Watched]:
    async with Watched(*nodes, **options) as lab:
        await lab.running(gpus=gpus, name="nap", time=time)
        lab.cell()
        await lab.pass_time(0)
        yield lab


async def test_it_is_warned_and_then_released() -> None:
    async with napping() as lab:
        assert (await lab.pass_time(HOUR - 601)).warning == ""
        assert "is released in 10 m" in (await lab.pass_time(1)).warning
        assert lab.it.warning_at == lab.now + 600
        assert (await lab.pass_time(599)).state is State.RUNNING
        await lab.pass_time(1)
        ended = await lab.until(lab.it.id, "ended")
        assert (ended.reason, ended.message) == (
            EndReason.IDLE,
            "its kernel and its GPUs had nothing to do for 1 h",
        )


async def test_by_default_nothing_is_ever_released() -> None:
    async with napping(after=None) as lab:
        assert (await lab.pass_time(10_000 * HOUR)).warning == ""


async def test_the_warning_comes_half_way_at_the_earliest() -> None:
    async with napping(after=600.0) as lab:
        assert (await lab.pass_time(299)).warning == ""
        assert "in 5 m" in (await lab.pass_time(1)).warning


async def test_a_cell_that_runs_is_never_ended_however_silent() -> None:
    """Also where the server takes it for idle, because a message beside the cell was handled."""
    async with napping() as lab:
        lab.host.busy.add(lab.kernel)
        for _ in range(20):
            assert (await lab.pass_time(HOUR)).warning == ""
        lab.host.busy.clear()
        assert (await lab.pass_time(HOUR - 601)).warning == "", "the time began anew each time that it was found busy"
        assert (await lab.pass_time(1)).warning
        lab.host.busy.add(lab.kernel)
        assert (await lab.pass_time(HOUR)).state is State.RUNNING, "it is asked once more at the end"
        assert lab.it.warning == ""


async def test_a_kernel_of_which_nothing_is_known_is_not_idle() -> None:
    async with napping() as lab:
        del lab.host.idle[lab.kernel]
        assert (await lab.pass_time(10 * HOUR)).warning == ""


async def test_a_cell_after_the_warning_takes_it_back() -> None:
    async with napping() as lab:
        assert (await lab.pass_time(HOUR)).warning
        lab.now += 10
        lab.cell()
        assert (await lab.pass_time(1)).warning == ""
        assert (await lab.pass_time(HOUR - 610)).warning == ""
        assert (await lab.pass_time(10)).warning, "and the time began anew"


async def test_a_cell_that_begins_while_it_is_asked_keeps_it() -> None:
    async with napping() as lab:
        await lab.pass_time(HOUR)
        gate = lab.script.hold("kernel:quiet")
        last = asyncio.create_task(lab.pass_time(HOUR))
        await gate.arrived.wait()
        lab.cell()
        gate.open()
        assert (await last).state is State.RUNNING
        assert (await lab.pass_time(1)).warning == ""


async def test_more_time_that_is_asked_for_while_it_is_asked_keeps_it() -> None:
    async with napping(time="100h") as lab:
        await lab.pass_time(HOUR)
        gate = lab.script.hold("kernel:quiet")
        last = asyncio.create_task(lab.pass_time(HOUR))
        await gate.arrived.wait()
        await lab.scheduler.extend(lab.it.id, HOUR)
        gate.open()
        assert (await last).state is State.RUNNING


@pytest.mark.parametrize("by", [10 * HOUR, -10 * HOUR])
async def test_a_clock_that_is_set_takes_the_warning_back_and_ends_nothing(by: float) -> None:
    passed = [NOW]
    async with napping(steady=lambda: passed[0]) as lab:
        passed[0] += HOUR
        assert (await lab.pass_time(HOUR)).warning_kind == "idle"
        lab.now += by
        lab.scheduler._clock()  # whoever looks at it first
        assert (await lab.pass_time(0)).warning == ""
        passed[0] += 1
        assert ((await lab.pass_time(1)).state, lab.it.warning) == (State.RUNNING, "")


@pytest.mark.parametrize("load", [1, 100, None], ids=["little", "much", "unknown"])
async def test_one_gpu_that_does_something_is_enough(load: int | None) -> None:
    async with napping() as lab:
        lab.cluster.put(doing(0, load))
        assert (await lab.pass_time(10 * HOUR)).warning == ""
        lab.cluster.put(doing(0, 0))
        await lab.pass_time(0)
        assert (await lab.pass_time(HOUR - 601)).warning == "", "counted from when they came to rest"
        assert (await lab.pass_time(1)).warning
        lab.cluster.put(doing(load, 0))
        assert (await lab.pass_time(1)).warning == ""


async def test_the_other_gpus_of_the_node_do_not_matter() -> None:
    async with napping(doing(0, 80), gpus=1) as lab:
        assert lab.it.gpus == ("GPU-a-0",)
        assert (await lab.pass_time(HOUR)).warning


async def test_work_between_two_looks_counts() -> None:
    async with napping() as lab:
        await lab.pass_time(HOUR - 700)
        lab.cluster.put(doing(50, 0))
        lab.cluster.put(doing(0, 0))
        assert (await lab.pass_time(600)).warning == ""


async def test_a_node_that_does_not_report_is_not_idle() -> None:
    async with napping() as lab:
        lab.cluster.put(replace(doing(0, 0), reason="unreachable since noon"))
        assert (await lab.pass_time(10 * HOUR)).warning == ""
        lab.cluster.put(doing(0, 0))
        await lab.pass_time(0)
        assert (await lab.pass_time(HOUR)).warning
        lab.cluster.remove("a")
        assert (await lab.pass_time(1)).warning == ""


async def test_a_limit_that_is_taken_away_takes_the_warning_with_it() -> None:
    async with napping() as lab:
        assert (await lab.pass_time(HOUR)).warning
        lab.cluster.put(doing(0, 0), NodeSpec(name="a", docker="unix:///d"))
        assert (await lab.pass_time(HOUR)).warning == ""
        assert lab.it.state is State.RUNNING


async def test_whoever_asks_for_more_time_is_there() -> None:
    async with napping(time="100h") as lab:
        assert (await lab.pass_time(HOUR)).warning_kind == "idle"
        await lab.scheduler.extend(lab.it.id, HOUR)
        assert lab.it.warning == ""
        assert (await lab.pass_time(1)).warning == ""
        assert (await lab.pass_time(HOUR - 601)).warning == ""
        assert (await lab.pass_time(600)).warning_kind == "idle"


async def test_the_end_of_its_time_is_warned_of_in_between() -> None:
    async with napping(time="62m") as lab:
        assert (await lab.pass_time(HOUR - 600)).warning_kind == "idle"
        assert (await lab.pass_time(120)).warning_kind == "time"
        await lab.pass_time(480)
        assert (await lab.until(lab.it.id, "ended")).reason is EndReason.IDLE, "which comes first all the same"


async def test_a_kernel_that_restarts_is_not_idle() -> None:
    async with napping() as lab:
        await lab.scheduler.stop_unit(lab.it.id)
        assert (await lab.pass_time(HOUR)).warning == ""


async def test_a_warning_of_a_server_that_died_is_taken_back() -> None:
    """This one has not seen that nothing happened in between."""
    async with napping() as lab:
        await lab.pass_time(HOUR)
        lab.scheduler._idleness._warned.clear()
        assert (await lab.pass_time(1)).warning == ""


async def test_it_looks_by_itself() -> None:
    async with Lab(doing(0), specs=(NodeSpec(name="a", docker="unix:///d", idle_after=0.4),)) as lab:
        made = await lab.running(name="nap")
        lab.host.idle[str(made.kernel_id)] = 0.0
        await eventually(lambda: lab.scheduler.get("nap").warning_kind == "idle")
        assert (await lab.until(made.id, "ended")).reason is EndReason.IDLE

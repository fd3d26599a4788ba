"""`kill -9` of the scheduler at every point, and a new one on the same store: nothing held twice, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.fakes import POINTS_TO_GONE, POINTS_TO_RUNNING, node
from helpers.lab import Lab, eventually

from jupyter_gpufit.errors import NoFit
from jupyter_gpufit.models import EndReason, Request, State


async def killed_at(point: str, store: Path) -> tuple[Lab, str]:
    """A lab whose scheduler was killed there; and the id of the allocation."""
    lab = Lab(node("a"), store=store)
    await lab.scheduler.open()
    if point in POINTS_TO_GONE:
        allocation = await lab.running(gpus=2)
        gate = lab.script.hold(point)
        await lab.scheduler.release(allocation.id)
    else:
        gate = lab.script.hold(point)
        allocation = await lab.request(gpus=2)
    await gate.arrived.wait()
    await lab.kill()
    return lab, allocation.id


@pytest.mark.parametrize("point", [*POINTS_TO_RUNNING, *POINTS_TO_GONE])
async def test_what_a_killed_scheduler_left_is_removed_before_its_gpus_are_free(point: str, tmp_path: Path) -> None:
    dead, id = await killed_at(point, tmp_path)
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    gate = lab.script.hold("units")
    async with lab:
        assert lab.scheduler.get(id).state is State.STOPPING
        assert lab.held("a") == {"GPU-a-0", "GPU-a-1"}
        with pytest.raises(NoFit):
            await lab.request()
        await gate.arrived.wait()
        gate.open()
        ended = await lab.until(id, "ended")
        if point in POINTS_TO_GONE:
            assert ended.reason is EndReason.RELEASED
        else:
            assert (ended.reason, ended.message.split(";")[0]) == (
                EndReason.FAILED,
                "the Jupyter server that held it ended without releasing it",
            )
        assert lab.engines["a"].containers == {}
        await lab.running(gpus=2)


@pytest.mark.parametrize("point", POINTS_TO_RUNNING)
async def test_what_never_got_into_the_store_is_found_by_its_label(point: str, tmp_path: Path) -> None:
    """The process died before the store's thread had written anything."""
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    dead.scheduler._store.save = lambda *_: None  # type: ignore[method-assign]
    gate = dead.script.hold(point)
    allocation = await dead.request(gpus=2)
    await gate.arrived.wait()
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        assert lab.scheduler.allocations(ended=True) == []
        await eventually(lambda: not lab.engines["a"].containers)
        running = await lab.running(gpus=2)
        assert running.id != allocation.id


async def test_an_exited_unit_that_claims_nothing_is_found_too(tmp_path: Path) -> None:
    dead, id = await killed_at("kernel:ready", tmp_path)
    [unit] = dead.engines["a"].containers
    dead.engines["a"].crash(unit)
    dead.engines["a"].claims = list  # type: ignore[method-assign]
    async with Lab(node("a"), store=tmp_path) as forgetful:  # its engine is another: the allocation counts as gone
        await forgetful.until(id, "ended")
    async with Lab(of=dead, store=tmp_path) as lab:
        await eventually(lambda: not lab.engines["a"].containers)


async def test_killed_again_while_cleaning_up(tmp_path: Path) -> None:
    dead, id = await killed_at("kernel:ready", tmp_path)
    for point in ("units", "logs", "stop", "stop:gone"):
        lab = Lab(of=dead, store=tmp_path)
        gate = lab.script.hold(point)
        await lab.scheduler.open()
        await gate.arrived.wait()
        assert lab.held("a")
        await lab.kill()
        dead = lab
        if point != "stop:gone":
            assert dead.engines["a"].containers
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        await lab.until(id, "ended")


async def test_a_node_that_does_not_answer_at_the_start_is_cleaned_when_it_does(tmp_path: Path) -> None:
    dead, id = await killed_at("kernel:ready", tmp_path)
    dead.engines["a"].reachable = False
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        await eventually(lambda: "does not answer" in lab.scheduler.get(id).message)
        assert lab.held("a")
        dead.engines["a"].reachable = True
        await lab.until(id, "ended")


async def test_another_scheduler_meanwhile_respects_what_the_dead_one_left(tmp_path: Path) -> None:
    dead, _ = await killed_at("kernel:ready", tmp_path)
    async with Lab(of=dead) as other:
        await eventually(lambda: other.scheduler.explain(Request()).node is None)  # it has seen what is there
        with pytest.raises(NoFit):
            await other.request()
    [box] = dead.engines["a"].containers.values()
    assert box.state == "running", "others leave it alone"
    async with Lab(of=dead, store=tmp_path) as heir:
        await eventually(lambda: not heir.engines["a"].containers)


async def test_history_survives(tmp_path: Path) -> None:
    async with Lab(node("a"), store=tmp_path) as lab:
        ids = [(await lab.end((await lab.running(name="train")).id)).id for _ in range(3)]
    async with Lab(of=lab, store=tmp_path, keep_ended=2) as again:
        assert [each.id for each in again.scheduler.allocations(ended=True)] == ids[1:]
        assert again.scheduler.get("train").id == ids[-1]
    async with Lab(of=lab, store=tmp_path) as again:
        assert len(again.scheduler.allocations(ended=True)) == 2

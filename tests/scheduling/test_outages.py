"""The state machine when something breaks on a node: a silent engine, a lost GPU, a unit that cannot be removed."""

from __future__ import annotations

import asyncio

import pytest
from helpers.fakes import GIB, node
from helpers.lab import QUICK, Lab, eventually
from helpers.lives import HERE, LIMITS, Life, kinds
from msgspec.structs import replace

from jupyter_gpufit.errors import NodeUnfit, NoFit
from jupyter_gpufit.models import EndReason, State
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.events import Failure, Work

WHY = "its Docker engine does not answer since 2026-01-02 03:04:05 UTC: Connection refused (tcp://n1)"

# --- a node's engine is silent


def test_a_silent_node_is_shown_and_nothing_is_given_up() -> None:
    life = Life()
    life.run()
    assert life(ev.NodeSilent, why=WHY, reporting=True) == []
    assert (life.it.state, life.it.unreachable_since) == (State.RUNNING, 1000)
    assert life.it.message.startswith("node 'n1' unreachable since ")
    assert life.it.message.count(" since ") == 1
    assert "Connection refused (tcp://n1); the machine still reports, so its kernel is kept" in life.it.message
    assert life.wake(1e6) == [], "an engine alone that is gone ends nothing"
    assert life.held
    version = life.it.version
    life(ev.NodeSilent, why=WHY, reporting=True)
    assert life.it.version == version, "no news"
    life(ev.NodeHeard)
    assert (life.it.state, life.it.unreachable_since, life.it.message) == (State.RUNNING, None, "")


def test_a_node_that_is_back_in_time_goes_on() -> None:
    life = Life()
    life.run()
    life(ev.NodeSilent, why=WHY)
    assert "given up after 10 m" in life.it.message
    assert life.wake(599) == []
    life(ev.NodeHeard)
    assert life.wake(1e6) == []
    assert (life.it.state, life.it.message) == (State.RUNNING, "")


def test_the_time_after_which_it_is_lost_begins_when_the_reporter_is_silent_too() -> None:
    life = Life()
    life.run()
    life(ev.NodeSilent, why=WHY, reporting=True)
    life.wake(500)
    life(ev.NodeSilent, why=WHY, reporting=False)
    life.wake(599)
    assert life.it.state is State.RUNNING
    life(ev.NodeSilent, why=WHY, reporting=True)
    life.wake(600)
    assert life.it.state is State.RUNNING
    life(ev.NodeSilent, why=WHY, reporting=False)
    assert kinds(life.wake(600)) == [ev.StopKernel]
    assert (life.it.state, life.it.reason) == (State.STOPPING, EndReason.NODE_LOST)


def test_a_lost_node_ends_it_without_being_asked() -> None:
    life = Life()
    life.run()
    life(ev.NodeSilent, why=WHY)
    assert life.wake(600) == [ev.StopKernel(id="x", kernel_id="k")]
    # The kernel manager has the unit stopped: that would take until the node is back.
    assert life(ev.StopAsked) == []
    assert life(ev.KernelStopped) == []
    assert (life.it.state, life.it.reason, life.held) == (State.ENDED, EndReason.NODE_LOST, {})
    assert (life.it.unit, life.it.unreachable_since) == (None, None)
    assert life.it.message == ("node 'n1' did not answer for 10 m; what may still run there is removed when it is back")


def test_one_that_ends_on_a_silent_node_is_lost_with_it_and_keeps_its_reason_in_the_message() -> None:
    life = Life(hosted=False, time="1m")
    life.run()
    life(ev.NodeSilent, why=WHY)
    life.wake(60)
    assert life.it.reason is EndReason.EXPIRED
    life(ev.KernelStopped)
    life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    assert life.it.unreachable_since == 1000
    life.wake(539)
    assert life.it.state is State.STOPPING
    life.wake(1)
    if life.it.state is State.STOPPING:  # a try to stop it was under way
        life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    assert (life.it.state, life.it.reason, life.held) == (State.ENDED, EndReason.NODE_LOST, {})
    assert life.it.message.startswith("its time of 1 m is over; node 'n1' did not answer for 10 m; ")


def test_a_unit_that_cannot_be_stopped_is_not_lost_while_its_engine_answers_others() -> None:
    life = Life(hosted=False)
    life.run()
    life(ev.ReleaseAsked)
    life(ev.KernelStopped)
    for _ in range(100):
        life(ev.StopFailed, failure=Failure.UNREACHABLE, message="it took too long")
        life.wake(30)
    assert life.it.state is State.STOPPING
    assert life.held


def test_what_shall_end_is_stopped_as_soon_as_its_node_is_back() -> None:
    life = Life(hosted=False)
    unit = life.run()
    life(ev.NodeSilent, why=WHY, reporting=True)
    life(ev.ReleaseAsked)
    life(ev.KernelStopped)
    for _ in range(8):
        life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
        life.wake(30)
    life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    assert life(ev.NodeHeard) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life(ev.UnitGone)
    assert (life.it.state, life.it.reason, life.it.message) == (State.ENDED, EndReason.RELEASED, "")


def test_a_dead_kernel_is_waited_for_only_while_somebody_could_restart_it() -> None:
    life = Life()
    unit = life.run()
    life(ev.UnitExited, unit=unit.id, message="killed by SIGTERM")
    life(ev.NodeSilent, why=WHY, reporting=True)
    assert life.it.message == "killed by SIGTERM", "what happened to it says more"
    assert life.wake(1000) == []
    life(ev.NodeHeard)
    assert life.wake(29) == []
    assert kinds(life.wake(1)) == [ev.StopKernel]
    assert "killed by SIGTERM; nobody restarted it within 30 s" in life.it.message


def test_why_the_kernel_before_died_is_said_again_when_the_node_is_back() -> None:
    life = Life()
    unit = life.run()
    life(ev.UnitExited, unit=unit.id, message="killed by SIGTERM")
    life(ev.RestartAsked, died="killed by SIGTERM")
    [prepare] = life(ev.UnitGone)
    life.prepared(prepare)
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    life(ev.KernelReady, kernel_id="k")
    assert life.it.message == "killed by SIGTERM"
    life(ev.NodeSilent, why=WHY)
    assert "unreachable since" in life.it.message
    life(ev.NodeHeard)
    assert life.it.message == "killed by SIGTERM"


def test_a_restart_waits_for_its_node() -> None:
    life = Life()
    unit = life.run()
    life(ev.NodeSilent, why=WHY, reporting=True)
    assert life(ev.RestartAsked) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    for pause in (1, 2, 4, 8, 16, 30, 30):
        assert life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer") == []
        assert life.it.progress is not None
        assert "as soon as the node answers" in life.it.progress.message
        assert life.wake(pause) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    assert life(ev.NodeHeard) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    [prepare] = life(ev.UnitGone)
    life(ev.NodeSilent, why=WHY, reporting=True)
    life(ev.PrepareFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    assert life(ev.NodeHeard) == [ev.StopUnit(id="x", node="n1", unit=None)], "who knows what it made"
    [prepare] = life(ev.UnitGone)
    life.prepared(prepare)
    assert life.entry.prepared


@pytest.mark.parametrize("event", [ev.StopAsked, ev.ReleaseAsked])
def test_a_restart_that_waits_for_its_node_can_be_taken_back(event: type[ev.Event]) -> None:
    life = Life()
    life.run()
    life(ev.NodeSilent, why=WHY, reporting=True)
    life(ev.RestartAsked)
    life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    life(event)
    assert not life.entry.restarting
    assert "retry" not in life.entry.deadlines


def test_one_whose_start_is_moved_forgets_the_node_it_was_on() -> None:
    life = Life()
    life(ev.Placed, placement=HERE)
    life(ev.NodeSilent, why=WHY)
    assert life.it.unreachable_since == 1000
    assert life(ev.PrepareFailed, failure=Failure.UNREACHABLE, message="n1 does not answer") == [
        ev.Place(id="x", attempt=1, avoid=("n1",))
    ]
    assert (life.it.unreachable_since, life.it.message, life.entry.deadlines) == (None, "", {})


def test_a_node_that_can_start_nothing_is_avoided_and_has_undone_all() -> None:
    life = Life()
    life(ev.Placed, placement=HERE)
    assert life(ev.PrepareFailed, failure=Failure.UNFIT, message="its disk is full") == [
        ev.Place(id="x", attempt=1, avoid=("n1",))
    ]
    life(ev.NotPlaced, message="no node fits")  # nobody fights for anything, who could yield
    assert (life.it.state, life.it.reason) == (State.ENDED, EndReason.REJECTED)
    assert life.it.message == "its disk is full; then no node fits"


def test_a_unit_that_is_slow_to_go_does_not_end_what_somebody_is_restarting() -> None:
    life = Life(hosted=False)
    life.run()
    life(ev.UnitExited, unit=life.entry.unit.id, message="killed for memory")
    [stop] = life(ev.StopAsked)
    assert isinstance(stop, ev.StopUnit)
    assert life.wake(LIMITS.restart_within) == []
    assert life.it.state is State.RUNNING
    life(ev.UnitGone)
    assert kinds(life.wake(LIMITS.restart_within)) == [ev.StopKernel], "but then nobody did"
    assert life.it.message.startswith("killed for memory; nobody restarted it")


def test_one_that_waits_forgives_a_node_that_failed_it() -> None:
    life = Life(wait="1h")
    life(ev.Placed, placement=HERE)
    life(ev.PrepareFailed, failure=Failure.UNFIT, message="its disk is full")
    life(ev.NotPlaced, message="no node fits")
    assert life.entry.waiting
    assert life.wake(LIMITS.forgive_after - 1) == [], "it would only fail again"
    assert life.wake(1) == [ev.Place(id="x", attempt=0, avoid=())]
    life(ev.Placed, placement=HERE)
    assert life.entry.deadlines == {}


def test_events_of_a_node_mean_nothing_to_what_is_not_on_one() -> None:
    life = Life(wait="1h")
    life(ev.NotPlaced, message="no node fits")
    version = life.it.version
    for event, fields in ((ev.NodeSilent, {"why": WHY}), (ev.NodeHeard, {})):
        assert life(event, **fields) == []
    assert life.it.version == version


# --- a GPU is broken


def test_a_broken_gpu_is_said_once_and_kept() -> None:
    life = Life()
    life.run()
    life(ev.GpusChanged, broken={"G0": "lost: the driver no longer lists it"})
    assert life.it.state is State.RUNNING
    assert life.it.message.startswith("GPU G0 is lost: the driver no longer lists it; what runs on it may fail")
    assert (life.it.warning_kind, life.it.message in life.it.warning) == ("gpu", True)
    said = life.it.version
    life(ev.GpusChanged, broken={"G0": "lost: the driver no longer lists it"})
    assert life.it.version == said
    life(ev.NodeSilent, why=WHY)
    assert "unreachable since" in life.it.message
    assert "GPU G0 is lost" in life.it.message
    life(ev.NodeHeard)
    life(ev.GpusChanged, broken={})
    assert (life.it.message, life.it.warning, life.held) == ("", "", {"G0": 8, "G1": 8})


# --- the scheduler: who says it


async def test_the_scheduler_hears_of_silence_from_launcher_and_cluster() -> None:
    async with Lab(node("a"), limits=replace(QUICK, lost_after=0.3)) as lab:
        allocation = await lab.running(gpus=1)
        [launcher] = lab.launchers
        launcher.on_trouble(WHY)
        now = lab.scheduler.get(allocation.id)
        assert now.unreachable_since is not None
        assert "the machine still reports" in now.message
        with pytest.raises(NoFit):
            await lab.request(gpus=1)
        launcher.on_trouble(None)
        assert lab.scheduler.get(allocation.id).unreachable_since is None
        lab.cluster.put(replace(node("a"), reporting=False))
        assert lab.scheduler.get(allocation.id).message == "", "a reporter that is silent is the node's affair"
        assert lab.script.seen[-1] == "doubt"
        launcher.on_trouble(WHY)
        ended = await lab.until(allocation.id, "ended")
        assert ended.reason is EndReason.NODE_LOST
        assert len(lab.engines["a"].containers) == 1, "nobody has asked it anything"
        launcher.on_trouble(None)
        await eventually(lambda: not lab.engines["a"].containers)


async def test_the_scheduler_hears_of_broken_gpus_and_does_not_offer_them_until_healthy() -> None:
    def with_health(health: str) -> list:
        fine = node("a")
        broken = replace(
            fine.gpus[0],
            health=health,
            allocatable=health == "ok",
            idle=health == "ok",
            reason="lost: fell off; reset it",
        )
        return replace(fine, gpus=(broken, fine.gpus[1]))

    async with Lab(node("a")) as lab:
        allocation = await lab.running(gpus=2)
        lab.cluster.put(with_health("lost"))
        now = lab.scheduler.get(allocation.id)
        assert now.message.startswith("GPU GPU-a-0 is lost: fell off; what runs on it")
        await lab.end(allocation.id)
        with pytest.raises(NoFit):
            await lab.request(gpus=2)
        lab.cluster.put(with_health("ok"))
        again = await lab.running(gpus=2)
        lab.cluster.put(replace(node("a"), gpus=node("a").gpus[1:]))
        assert "GPU-a-0 is lost: its node does not report it any more" in lab.scheduler.get(again.id).message
        lab.cluster.put(node("a"))
        assert lab.scheduler.get(again.id).message == ""


async def test_a_full_disk_sends_it_elsewhere() -> None:
    async with Lab(node("a", 1), node("b", 2)) as lab:
        lab.script.fail("prepare", NodeUnfit("the disk of a is full (no space left on device)"))
        assert (await lab.running(gpus=1)).node == "b"
        assert Work.PREPARE not in lab.scheduler._ledger.entries


async def test_a_restart_that_nobody_waits_for_any_more_is_called_off() -> None:
    async with Lab(node("a", memory=16 * GIB)) as lab:
        allocation = await lab.external(gpus=1)
        lab.engines["a"].reachable = False
        lab.launchers[0].on_trouble(WHY)
        restart = asyncio.create_task(lab.scheduler.restart_unit(allocation.id))
        await eventually(lambda: "as soon as" in str(lab.scheduler.get(allocation.id).progress))
        restart.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restart
        lab.engines["a"].reachable = True
        lab.launchers[0].on_trouble(None)
        await eventually(lambda: "nobody restarted it" in lab.scheduler.get(allocation.id).message)

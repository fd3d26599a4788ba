"""What `test_allocations_model.py` and `test_scheduler_model.py` found, as short as it can be said."""

from __future__ import annotations

import asyncio
from pathlib import Path

from helpers.fakes import node
from helpers.lab import Lab
from helpers.lives import HERE, LIMITS, Life, kinds

from jupyter_gpufit.models import EndReason, State
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Ledger
from jupyter_gpufit.scheduling.events import Failure


def test_a_restart_that_waits_for_its_node_and_is_given_up_does_not_hold_its_gpus_for_ever() -> None:
    life = Life(hosted=False)
    life.run()
    life(ev.NodeSilent, why="no answer")
    life(ev.RestartAsked)
    life(ev.StopFailed, failure=Failure.UNREACHABLE, message="no answer")
    life(ev.NodeHeard)
    life(ev.UnitGone)
    life(ev.NodeSilent, why="no answer")
    life(ev.PrepareFailed, failure=Failure.UNREACHABLE, message="no answer")
    assert set(life.entry.deadlines) == {"retry", "lost"}
    assert kinds(life(ev.StopAsked)) == [ev.StopUnit], "something of it may be there"
    life(ev.NodeHeard)
    life(ev.UnitGone)
    assert set(life.entry.deadlines) == {"restart"}
    assert kinds(life.wake(LIMITS.restart_within)) == [ev.StopKernel]
    life(ev.KernelStopped)
    assert (life.it.state, life.it.reason, life.held) == (State.ENDED, EndReason.FAILED, {})


def test_one_that_waited_and_tries_again_is_queued_again_after_a_crash() -> None:
    life = Life(wait="1h")
    life(ev.Placed, placement=HERE)
    [again] = life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="another was first")
    assert isinstance(again, ev.Place)
    assert (life.entry.waiting, life.entry.queued) == (False, True)
    after = Ledger("another id", LIMITS)
    after.restore([life.entry], life.now + 1, "the server died")
    entry = after.entries["x"]
    assert (entry.state, entry.waiting, entry.rank) == (State.STARTING, True, life.entry.rank)
    assert entry.deadlines == {"wait": life.it.created + 3600}


async def test_what_the_end_of_a_scheduler_frees_is_not_given_to_those_it_leaves_queued(tmp_path: Path) -> None:
    lab = Lab(node("a", 2), node("b", 1), store=tmp_path)
    await lab.scheduler.open()
    starting = []
    for gpus in (1, 2):
        gate = lab.script.hold("start")
        starting.append(await lab.request(gpus=gpus))
        await gate.arrived.wait()
    assert [each.node for each in starting] == ["b", "a"]
    waits = await lab.request(gpus=2, wait=600)
    slow = lab.script.hold("stop")
    stopped = asyncio.create_task(lab.scheduler.close(release=False))
    await lab.until(starting[1].id, "ended")
    lab.scheduler._retry_waiting()
    slow.open()
    await stopped
    assert lab.scheduler.get(waits.id).state is State.PENDING
    next_one = Lab(of=lab, store=tmp_path)
    next_one.may_leave = False
    async with next_one:
        await next_one.until(waits.id, "running")

"""Somebody sets the clock of the machine that the scheduler runs on."""

from __future__ import annotations

import time

import pytest
from helpers.fakes import node
from helpers.lab import Lab, eventually

from jupyter_gpufit.errors import NodeUnreachable
from jupyter_gpufit.models import EndReason
from jupyter_gpufit.scheduling.clock import Clock, steady_for

HOUR = 3600.0


def test_a_jump_is_told_once_and_slewing_is_none() -> None:
    wall, steady, told = [1000.0], [5.0], []
    clock = Clock(lambda: wall[0], lambda: steady[0], lambda by, now: told.append((by, now)))
    for passed, off in ((10, 0.0), (10, 0.3), (10, -0.3)):
        steady[0] += passed
        wall[0] += passed + off
        assert clock() == wall[0]
    assert told == []
    wall[0] -= HOUR
    assert clock() == clock() == wall[0]
    assert told == [(-HOUR, wall[0])]


def test_beside_the_machines_own_clock_is_one_that_never_jumps() -> None:
    steady = steady_for(time.time)
    assert steady is not time.time
    assert 0 <= steady() - steady() + 1 <= 1
    own = [1.0]
    assert steady_for(lambda: own[0])() == 1.0


@pytest.mark.parametrize("by", [HOUR, -HOUR])
async def test_what_lies_ahead_stays_as_far_ahead(by: float) -> None:
    now, off = [1_000_000.0], [0.0]
    async with Lab(node("a"), clock=lambda: now[0] + off[0], steady=lambda: now[0]) as lab:
        running = await lab.running(time=2 * HOUR)
        assert running.expires == now[0] + 2 * HOUR
        off[0] = by
        lab.scheduler._alarms.check()
        moved = lab.scheduler.get(running.id)
        assert (moved.state, moved.expires) == ("running", now[0] + by + 2 * HOUR)
        assert moved.version == running.version + 1, "who shows it is told"
        now[0] += 2 * HOUR + 1
        lab.scheduler._alarms.check()
        assert (await lab.until(running.id, "ended")).reason is EndReason.EXPIRED


async def test_what_is_tried_again_is_not_put_off_by_a_clock_that_is_set_back() -> None:
    off = [0.0]
    async with Lab(node("a"), clock=lambda: time.time() + off[0], steady=time.monotonic) as lab:
        running = await lab.running()
        lab.script.fail("stop", NodeUnreachable("no answer"))
        gate = lab.script.hold("stop")
        await lab.scheduler.release(running.id)
        await gate.arrived.wait()
        gate.open()
        await eventually(lambda: lab.scheduler._ledger.entries[running.id].stop_failures == 1)
        off[0] = -HOUR
        await lab.until(running.id, "ended")

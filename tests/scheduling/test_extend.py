"""`Scheduler.extend`: who gets more time, and who does not, with the sentence that says why."""

from __future__ import annotations

import pytest
from helpers.fakes import node
from helpers.lab import Lab

from jupyter_gpufit.errors import Conflict, Forbidden, InvalidValue, NotFound
from jupyter_gpufit.inventory import Inventory, Quota
from jupyter_gpufit.models import EndReason, State

HOUR = 3600.0


async def test_more_time() -> None:
    now = [1000.0]
    async with Lab(node("a"), clock=lambda: now[0]) as lab:
        made = await lab.running(time="1h")
        now[0] += HOUR - 60
        lab.scheduler._alarms.check()
        assert lab.scheduler.get(made.id).warning
        longer = await lab.scheduler.extend(made.id, HOUR)
        assert (longer.expires, longer.request.time, longer.warning) == (1000 + 2 * HOUR, 2 * HOUR, "")
        now[0] += HOUR
        lab.scheduler._alarms.check()
        assert lab.scheduler.get(made.id).state is State.RUNNING
        now[0] += 60
        lab.scheduler._alarms.check()
        assert (await lab.until(made.id, "ended")).reason is EndReason.EXPIRED


async def test_also_before_it_runs() -> None:
    async with Lab(node("a", 1)) as lab:
        first = await lab.running()
        waiting = await lab.request(time="1h", wait="1h")
        assert waiting.state is State.PENDING
        assert (await lab.scheduler.extend(waiting.id, 60)).request.time == HOUR + 60
        await lab.scheduler.release(first.id)
        running = await lab.until(waiting.id, "running")
        assert running.request.time == HOUR + 60
        gate = lab.script.hold("prepare")
        await lab.end(waiting.id)
        starting = await lab.request(time="1h")
        await gate.arrived.wait()
        assert (await lab.scheduler.extend(starting.id, 60)).state is State.STARTING
        gate.open()
        await lab.until(starting.id, "running")


async def test_what_cannot_be_extended() -> None:
    async with Lab(node("a")) as lab:
        with pytest.raises(NotFound, match="nobody"):
            await lab.scheduler.extend("nobody", 60)
        endless = await lab.running(name="endless")
        with pytest.raises(Conflict, match="'endless' has no time limit; there is nothing to extend"):
            await lab.scheduler.extend(endless.id, 60)
        short = await lab.running(name="short", time="1h")
        for seconds in (0, -1, float("nan"), float("inf")):
            with pytest.raises(InvalidValue, match="is not a possible duration"):
                await lab.scheduler.extend(short.id, seconds)
        with pytest.raises(InvalidValue, match="is not a possible duration"):
            await lab.scheduler.extend(short.id, 10 * 366 * 86400)
        gate = lab.script.hold("stop")
        await lab.scheduler.release(short.id)
        with pytest.raises(Conflict, match="'short' is stopping; it cannot get more time: ask for another"):
            await lab.scheduler.extend(short.id, 60)
        gate.open()
        await lab.until(short.id, "ended")
        with pytest.raises(Conflict, match="'short' is ended"):
            await lab.scheduler.extend(short.id, 60)


async def test_the_quotas_longest_time_counts_from_the_start() -> None:
    async with Lab(node("a", 4)) as lab:
        lab.cluster.inventory = Inventory(nodes=(), own_quotas={"me": Quota(time=4 * HOUR)})
        mine = await lab.running(name="train", time="2h")
        assert (await lab.scheduler.extend(mine.id, HOUR)).request.time == 3 * HOUR
        with pytest.raises(Forbidden) as refused:
            await lab.scheduler.extend(mine.id, 2 * HOUR)
        assert refused.value.message == (
            "5 h in all is longer than the 4 h that an allocation of yours may last; 'train' has 3 h: "
            "extend it by 1 h at most"
        )
        assert (await lab.scheduler.extend(mine.id, HOUR)).request.time == 4 * HOUR
        with pytest.raises(Forbidden, match="'train' has 4 h already"):
            await lab.scheduler.extend(mine.id, 1)
        other = await lab.running(owner="you", time="2h")
        assert (await lab.scheduler.extend(other.id, 20 * HOUR)).request.time == 22 * HOUR

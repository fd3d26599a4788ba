"""Many people at once on nodes that fail at random, in one scheduler after another on one store, some killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from helpers.fakes import node
from helpers.lab import Lab, eventually

from jupyter_gpufit.errors import GpufitError, LaunchError, NodeUnreachable
from jupyter_gpufit.models import State


def make_unreliable(lab: Lab, random: Random) -> None:
    """At each point something may go wrong, take longer, or the node may go away."""
    reliable = lab.script.at

    async def at(point: str) -> None:
        await reliable(point)
        if random.random() < 0.1:
            await asyncio.sleep(random.random() * 0.02)
        if random.random() < 0.06 and point not in ("logs", "kernel:stop", "kernel:stopped"):
            raise random.choice([LaunchError("it failed"), NodeUnreachable("no answer"), RuntimeError("a bug")])
        if random.random() < 0.02:
            engine = random.choice(list(lab.engines.values()))
            engine.reachable = not engine.reachable

    lab.script.at = at  # type: ignore[method-assign]


async def person(lab: Lab, random: Random, owner: str) -> None:
    """Asks, waits for some time, restarts, releases, or forgets about it."""
    for _ in range(8):
        try:
            allocation = await lab.request(
                owner=owner, gpus=random.randint(1, 3), shared=random.random() < 0.3, wait=random.choice([None, 0.2])
            )
            for _ in range(random.randint(0, 6)):
                now = lab.scheduler.get(allocation.id)
                await lab.scheduler.changed(now.id, now.version, random.random() * 0.05)
            if random.random() < 0.3:
                await lab.scheduler.stop_unit(allocation.id)
                await lab.scheduler.restart_unit(allocation.id)
                await lab.scheduler.launch(allocation.id, ["python"], {}, {})
            if random.random() < 0.8:
                await lab.scheduler.release(allocation.id)
        except GpufitError:
            await asyncio.sleep(random.random() * 0.01)


def heal(lab: Lab) -> None:
    lab.script.at = type(lab.script).at.__get__(lab.script)  # type: ignore[method-assign]
    for engine in lab.engines.values():
        engine.reachable = True
        engine.changed()


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_held_twice_and_in_the_end_nothing_is_left(seed: int, tmp_path: Path) -> None:
    """(That no two running units have one GPU the engine asserts at each change.)"""
    random = Random(seed)
    lab = Lab(node("a", 3), node("b", 2), node("c", 1), store=tmp_path)
    for killed in (True, True, False):
        await lab.scheduler.open()
        make_unreliable(lab, random)
        people = [asyncio.create_task(person(lab, random, owner)) for owner in "wxyz"]
        if killed:
            await asyncio.sleep(random.random() * 0.5)
            for each in people:
                each.cancel()
            await asyncio.wait(people)
            await lab.kill()
            heal(lab)
            lab = Lab(of=lab, store=tmp_path)
    async with asyncio.timeout(60):
        await asyncio.gather(*people)
        heal(lab)
        for allocation in lab.scheduler.allocations():
            await lab.scheduler.release(allocation.id)
        await eventually(lambda: not lab.scheduler.allocations())
        await eventually(lambda: not any(engine.containers for engine in lab.engines.values()))
    assert all(each.state is State.ENDED and each.reason for each in lab.scheduler.allocations(ended=True))
    assert all(not lab.held(name) for name in lab.engines)
    await lab.running(gpus=3)
    await lab.scheduler.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}

"""Cores and RAM of a machine with a real engine: what a container may have, who waits for it, and two people's servers.

(The machine of these tests has 2 cores or more; the GPUs are always more than enough.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.frontend import FrontEnd, eventually
from helpers.machines import containers, machines
from helpers.person import Person, attached, same

from .engines import Engine

GIB = 2**30
PREFIX = "io.github.jupyter-gpufit."
SEES = "import os; print([os.environ.get(name) for name in ('OMP_NUM_THREADS', 'PYTHON_CPU_COUNT')])"


@pytest.fixture
def inventory(engine: Engine, kernel_image: str, tmp_path: Path) -> Iterator[Path]:
    with machines([engine], tmp_path, kernel_image, more='ram = "3GiB"') as file:
        yield file


def person(tmp_path: Path, inventory: Path, name: str) -> Person:
    home = tmp_path / name
    home.mkdir()
    return Person(home, inventory)


def limits(engine: Engine, allocation: str) -> tuple[int, int, int]:
    """Of its container, as `docker inspect` shows them: billionths of a core, bytes, bytes with swap."""
    try:
        label = f"{PREFIX}allocation={allocation}"
        [container] = engine.client().containers.list(filters={"label": label})
        host = container.attrs["HostConfig"]
        return host["NanoCpus"], host["Memory"], host["MemorySwap"]
    finally:
        engine.close_clients()


async def node(front: FrontEnd) -> dict[str, Any]:
    [one] = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
    return dict(one)


async def left(front: FrontEnd) -> tuple[float, int]:
    one = await node(front)
    return one["cpus_free"], one["ram_free"]


async def test_what_was_asked_for_is_had_and_waited_for_also_after_a_restart(
    inventory: Path, engine: Engine, tmp_path: Path
) -> None:
    ann = person(tmp_path, inventory, "ann")
    async with ann.serve() as first, first.front() as front:
        machine = await node(front)
        cores, size = machine["cpus"], machine["ram"]
        try:
            about = engine.client().info()
        finally:
            engine.close_clients()
        assert (cores, size) == (about["NCPU"], about["MemTotal"])
        assert (machine["cpus_free"], machine["ram_free"]) == (cores, size)
        assert (machine["cpus_limit"], machine["ram_limit"]) == (None, 3 * GIB)

        notebook, made = await attached(front, name="train", cpus=cores - 0.75, ram="2GiB")
        assert limits(engine, made["id"]) == (round((cores - 0.75) * 1e9), 2 * GIB, 2 * GIB)
        threads = str(-int(-(cores - 0.75) // 1))
        assert (await notebook.run(SEES)).text == f"{[threads] * 2}\n"
        other = await front.request(name="asks-for-none")
        assert limits(engine, other["id"]) == (0, 3 * GIB, 3 * GIB)
        assert await left(front) == (0.75, size - 2 * GIB)

        refused = await front.gpufit("POST", "allocations", {"cpus": 1}, expect=409)
        assert refused.json["error"] == "no-fit"
        [why] = [stage["rejected"][engine.name] for stage in refused.json["details"]["stages"] if stage["rejected"]]
        assert why == f"0.75 of its {cores:g} cores free, 1 asked"
        for wish, most in (
            ({"cpus": cores + 1}, f"it has {cores:g} cores"),
            ({"ram": "4GiB"}, "it gives 3 GiB of RAM"),
        ):
            never = await front.gpufit("POST", "allocations", wish, expect=422)
            assert never.json["error"] == "never-fits"
            assert most in str(never.json["details"]["stages"])

        waiting = (
            await front.gpufit("POST", "allocations", {"cpus": 1, "name": "late", "wait": "1h"}, expect=202)
        ).json
        waiting = await front.allocation("late", lambda one: one["queue"] is not None)
        assert waiting["queue"]["frees"] == f"it can start when 'train' on {engine.name} ends"
        await notebook.run("x = 41")
        held = containers(engine)
        await first.kill()

        async with ann.serve() as second:
            assert same(await front.allocation("train"), made)
            assert await left(front) == (0.75, size - 2 * GIB), "as before, and once"
            assert await notebook.value("x") == "41"
            assert containers(engine) == held
            assert (await front.allocation("late"))["state"] == "pending"
            await front.release("train")
            late = await front.allocation("late", lambda one: one["state"] == "running")
            assert limits(engine, late["id"])[0] == 1e9
            await second.stop()
    assert containers(engine) == []
    ann.check_logs()


async def test_what_one_person_has_the_other_ones_server_counts(
    inventory: Path, engine: Engine, tmp_path: Path
) -> None:
    ann, ben = person(tmp_path, inventory, "ann"), person(tmp_path, inventory, "ben")
    async with ann.serve() as hers, hers.front() as front, ben.serve() as his, his.front() as other:
        cores, size = await left(front)
        assert await left(other) == (cores, size)
        mine = await front.request(cpus=cores - 0.5, ram="1GiB")
        await eventually(lambda: _left(other, (0.5, size - GIB)))
        await other.gpufit("POST", "allocations", {"cpus": 1}, expect=409)
        waiting = (await other.gpufit("POST", "allocations", {"cpus": 1, "wait": "1h"}, expect=202)).json
        beside = await other.request(cpus=0.5)
        assert beside["state"] == "running"
        await eventually(lambda: _left(front, (0, size - GIB)))
        await front.release(mine["id"])
        await other.allocation(waiting["id"], lambda one: one["state"] == "running")
        await eventually(lambda: _left(front, (cores - 1.5, size)))

        # Both at once, again and again: never more than there is, and nobody waits for ever.
        for id in (waiting["id"], beside["id"]):
            await other.release(id)
        await eventually(lambda: _left(front, (cores, size)))

        async def asks(who: FrontEnd) -> None:
            for _ in range(3):
                asked = {"cpus": cores - 0.5, "wait": "10m"}
                id = (await who.gpufit("POST", "allocations", asked, expect=202)).json["id"]
                now = await who.allocation(id, lambda one: one["state"] in ("running", "ended"))
                assert now["state"] == "running", now["message"]
                assert len(running(engine)) == 1
                await who.release(id)

        await asyncio.gather(asks(front), asks(other))
        await eventually(lambda: _left(front, (cores, size)))
        await his.stop()
        await hers.stop()
    assert containers(engine) == []
    ann.check_logs()
    ben.check_logs()


def running(engine: Engine) -> list[str]:
    try:
        return [one.name for one in engine.client().containers.list(filters={"status": "running"})]
    finally:
        engine.close_clients()


async def _left(front: FrontEnd, wanted: tuple[float, int]) -> bool:
    return await left(front) == wanted

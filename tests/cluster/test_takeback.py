"""`kill -9` of a Jupyter server whose kernels run on an engine, and what its next one finds and takes back.

(What has nothing to do with containers is in `tests/server/test_takeback.py`.)
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.frontend import FrontEnd, Notebook, eventually
from helpers.jupyterserver import directories
from helpers.machines import containers, machines
from helpers.person import Person, attached, long_cell, same

from .engines import Engine

SEES = "import os, json; print(json.dumps([os.environ['NVIDIA_VISIBLE_DEVICES'].split(','), os.uname().nodename]))"
PROGRAM = """
import os, signal, sys
from jupyter_gpufit.kernels.service import ThreadedService
from jupyter_gpufit.models import Request, State
with ThreadedService(sys.argv[1]) as gpus:
    made = gpus.call(lambda scheduler: scheduler.request(Request(gpus=1), gpus.owner))
    while made.state is not State.RUNNING:
        assert made.state is not State.ENDED, made
        made = gpus.call(lambda scheduler: scheduler.changed(made.id, made.version, 60))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def inventory(engine: Engine, kernel_image: str, tmp_path: Path) -> Iterator[Path]:
    with machines([engine], tmp_path, kernel_image) as file:
        yield file


@pytest.fixture
def person(inventory: Path, tmp_path: Path) -> Iterator[Person]:
    made = Person(tmp_path, inventory)
    yield made
    made.check_logs()


def touch(engine: Engine, flag: str) -> None:
    try:
        [container] = engine.client().containers.list()
        assert container.exec_run(["touch", flag]).exit_code == 0
    finally:
        engine.close_clients()


def remove_by_hand(engine: Engine) -> None:
    try:
        [container] = engine.client().containers.list()
        container.remove(force=True)
    finally:
        engine.close_clients()


async def test_a_kernel_in_a_container_and_its_notebook_go_on(person: Person, engine: Engine) -> None:
    async with person.serve() as first, first.front() as front:
        notebook, made = await attached(front, gpus=2, memory="16GiB", name="train")
        await notebook.run("x = 41")
        cell = notebook.send(long_cell("/tmp/go"))
        await eventually(lambda: "began" in cell.text)
        held = containers(engine)
        await first.kill()

        # The node cannot be reached when the next server starts: a kernel that is not heard of is not a dead one.
        engine.partition()
        async with person.serve() as second:
            now = await front.allocation("train")
            assert same(now, made)
            assert (await notebook.model())["kernel"]["id"] == made["kernel_id"]
            engine.heal()
            await eventually(lambda: _state(front, notebook, "busy"))
            touch(engine, "/tmp/go")
            await cell.done(90)
            assert cell.text.endswith("let go\n42\n"), cell.text
            assert json.loads((await notebook.run(SEES)).text)[0] == made["gpus"]
            assert containers(engine) == held, "the very same container"
            await second.kill()

        # Somebody removes the container while nobody watches: as if it had died under our eyes.
        remove_by_hand(engine)
        async with person.serve(GpufitExtension__on_stop="keep") as third:
            cell = await notebook.run(SEES, 90)
            assert json.loads(cell.stdout)[0] == made["gpus"], "on the same GPUs"
            # By the engine's events of the last seconds it was killed, by its list it was removed.
            ended = "the kernel before this one ended: "
            assert any(ended + how in cell.stderr for how in ("its container was removed", "killed by SIGKILL"))
            assert (await notebook.run("x")).error == "NameError: name 'x' is not defined"
            held = containers(engine)
            assert len(held) == 1
            await notebook.run("x = 8")
            await third.stop()
        assert containers(engine) == held, "kept"

        async with person.serve() as fourth:
            assert await notebook.value("x") == "8"
            assert same(await front.allocation("train"), made)
            await fourth.stop()
        assert containers(engine) == [], "and given back"


async def test_half_made_things_are_removed_and_the_queue_is_restored(person: Person, engine: Engine) -> None:
    async with person.serve() as first, first.front() as front:
        running = await front.request(gpus=3, memory="1GiB")
        starting = (await front.gpufit("POST", "allocations", {"gpus": 1}, expect=202)).json
        waiting = (await front.gpufit("POST", "allocations", {"gpus": 4, "wait": "10m"}, expect=202)).json
        await front.allocation(starting["id"], lambda one: _made(engine, one))
        await first.kill()
        async with person.serve():
            ended = await front.allocation(starting["id"], lambda one: one["state"] == "ended")
            assert ended["message"].startswith("the Jupyter server that held it ended without releasing it")
            assert same(await front.allocation(running["id"]), running)
            assert len(containers(engine)) == 1
            now = await front.allocation(waiting["id"])
            assert (now["state"], now["created"]) == ("pending", waiting["created"])
            await front.release(running["id"])
            await front.allocation(waiting["id"], lambda one: one["state"] == "running")


def _made(engine: Engine, starting: dict[str, Any]) -> bool:
    """Whether its container is there, before it runs."""
    assert starting["state"] in ("pending", "starting"), starting
    return len(containers(engine)) == 2


async def test_what_a_killed_program_left_is_removed_and_a_dead_servers_is_left_to_it(
    person: Person, engine: Engine, inventory: Path, tmp_path: Path
) -> None:
    async def program() -> None:
        environment = os.environ | directories(tmp_path)
        command = [sys.executable, "-c", PROGRAM, str(inventory)]
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        assert await process.wait() == -9

    await program()
    left = containers(engine)
    assert len(left) == 1
    async with person.serve() as first, first.front() as front:
        await eventually(lambda: containers(engine) == [])
        made = await front.request(gpus=1, memory="1GiB")
        [held] = containers(engine)
        await first.kill()
        await program()
        assert held in containers(engine), "a program's scheduler does not touch what a server may want back"
        assert len(containers(engine)) == 2
        async with person.serve():
            assert same(await front.allocation(made["id"]), made)
            await eventually(lambda: containers(engine) == [held])


async def _state(front: FrontEnd, notebook: Notebook, state: str) -> bool:
    model = (await front.api("GET", f"api/kernels/{notebook.kernel_id}", expect=200)).json
    return bool(model["execution_state"] == state)

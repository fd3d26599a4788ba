"""`kill -9` of any one process: no GPU is ever held twice, and nobody sees a traceback of ours in a notebook.

And two schedulers that know nothing of each other but the engine's labels.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.frontend import eventually
from helpers.machines import containers, machines, reporter

from jupyter_gpufit.errors import NotPlaced
from jupyter_gpufit.kernels.service import ThreadedService
from jupyter_gpufit.models import Allocation, Request, State

from .engines import Cluster, Engine
from .test_story import SEES, Lab, lab_at

GPUS = "io.github.jupyter-gpufit.gpus"


def held(engine: Engine) -> Counter[str]:
    """uuid → number of running containers that hold it, as the engine itself tells."""
    try:
        return Counter(
            uuid
            for one in engine.client().containers.list(ignore_removed=True)
            for uuid in json.loads(one.labels[GPUS])
        )
    finally:
        engine.close_clients()


def nobody_twice(cluster: Cluster) -> None:
    for engine in cluster:
        assert all(count == 1 for count in held(engine).values()), held(engine)


@pytest.fixture
async def lab(cluster: Cluster, kernel_image: str, tmp_path: Path) -> AsyncIterator[Lab]:
    with machines(cluster, tmp_path, kernel_image) as inventory:
        async with lab_at(cluster, tmp_path, inventory) as made:
            await made.all_idle()
            yield made
        assert "Traceback" not in made.server.log, made.server.log


async def attached(lab: Lab) -> Any:
    """A notebook that runs on both GPUs of gpu02."""
    notebook = await lab.front.open("study.ipynb")
    story = ["%load_ext jupyter_gpufit", "%gpufit request 2 --memory 16GiB --name train", "x = 1"]
    for cell in notebook.run_all(story):
        assert (await cell.done(120)).error is None
    made = (await lab.front.gpufit("GET", "allocations/train", expect=200)).json
    await notebook.on(made["kernel_id"])
    return notebook


def reporter_processes(engine: Engine) -> tuple[psutil.Process, psutil.Process]:
    """The reporter on that machine, and its NVML child."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "jupyter_gpufit.cli.reporter" in line and engine.ip in line:
            [child] = process.children()
            return process, child
    raise AssertionError(f"no reporter runs on {engine.name}")


async def test_a_reporter_and_its_nvml_child_are_killed(lab: Lab) -> None:
    notebook = await attached(lab)
    engine = lab.cluster["gpu02"]

    parent, child = reporter_processes(engine)
    child.kill()
    assert (await notebook.run("x += 1")).error is None
    await eventually(lambda: parent.children() and parent.children()[0].pid != child.pid)

    parent.kill()

    async def shown() -> bool:
        return (await lab.nodes())["gpu02"]["reason"] is not None

    await eventually(shown)
    assert (await notebook.run("x += 1; print(x)")).text == "3\n", "what runs there goes on"
    refused = await lab.front.gpufit("POST", "explain", {"gpus": 1, "memory": "1GiB", "node": "gpu02"}, expect=200)
    assert refused.json["node"] is None, "nothing is placed on a machine that says nothing"
    nobody_twice(lab.cluster)

    with reporter(engine, lab.server.log_file.parent / "reporter.token"):
        await eventually(lambda: _usable(lab, "gpu02"))
        node = (await lab.nodes())["gpu02"]
        assert [gpu["idle"] for gpu in node["gpus"]] == [False, False], "still held"
        await lab.front.release("train")


def replaced(lab: Lab, before: Any) -> bool:
    """Whether another container runs in the place of `before`."""
    try:
        now = lab.holder("gpu02")
    except ValueError:  # none just now
        return False
    return bool(now["State"]["Running"] and now["Id"] != before["Id"])


async def test_dockerd_is_killed(lab: Lab) -> None:
    notebook = await attached(lab)
    engine = lab.cluster["gpu02"]
    before = lab.holder("gpu02")
    engine.kill()
    # The container goes on without its engine, and so does the kernel: a node that cannot be reached is no dead kernel.
    assert (await notebook.run("x += 1; print(x)")).text == "2\n"
    refused = await lab.front.gpufit("POST", "allocations", {"gpus": 2, "memory": "1GiB", "node": "gpu02"})
    assert refused.status == 409, "both are held"
    engine.start()
    nobody_twice(lab.cluster)
    # An engine without live-restore ends the containers it finds: then the kernel is restarted, on the same GPUs.
    # (A cell that is sent in the moment before it ends is lost with it.)
    await eventually(lambda: replaced(lab, before))
    cell = await notebook.run(SEES, 180)
    now = (await lab.front.gpufit("GET", "allocations/train", expect=200)).json
    if now["state"] == "running":
        if cell.error is not None:
            assert "gpufit" not in cell.error.lower().split("traceback")[-1] or "Traceback" not in cell.error
        nobody_twice(lab.cluster)
        await lab.front.release("train")
    await lab.front.allocation(now["id"], lambda one: one["state"] == "ended")
    await eventually(lambda: containers(engine) == [])


async def test_the_kernel_is_killed(lab: Lab) -> None:
    notebook = await attached(lab)
    before = lab.holder("gpu02")
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    await eventually(lambda: replaced(lab, before))  # by the kernel manager's restarter
    made = (await lab.front.gpufit("GET", "allocations/train", expect=200)).json
    cell = await notebook.run(SEES)
    [printed] = [line for line in cell.text.splitlines() if line.startswith("[[")]
    assert json.loads(printed)[0] == made["gpus"], "on the same GPUs"
    assert "killed" in cell.text, f"the notebook is told why its variables are gone: {cell.text}"
    nobody_twice(lab.cluster)
    await lab.front.release("train")


async def test_the_server_is_killed_during_a_launch(cluster: Cluster, kernel_image: str, tmp_path: Path) -> None:
    with machines(cluster, tmp_path, kernel_image) as inventory:
        async with lab_at(cluster, tmp_path, inventory) as lab:
            await lab.all_idle()
            for _ in range(3):
                await lab.front.gpufit("POST", "allocations", {"gpus": 1, "memory": "16GiB"}, expect=202)
            await eventually(lambda: sum(len(containers(engine)) for engine in cluster) >= 2)
            await lab.server.kill()
        nobody_twice(cluster)
        async with lab_at(cluster, tmp_path, inventory, log_name="second.log") as lab:
            await lab.all_idle()  # nothing of it is left, in any state
            made = await lab.front.request(gpus=4, memory="16GiB")
            assert made["state"] == "running", made
            nobody_twice(cluster)
            await lab.front.release(made["id"])


async def test_two_schedulers_hammer_one_engine(cluster: Cluster, kernel_image: str, tmp_path: Path) -> None:
    """Each with its own ledger and kernels, and three clients that want a GPU each, for the two GPUs of gpu02."""
    engine = cluster["gpu02"]
    with (
        machines([engine], tmp_path, kernel_image) as inventory,
        ThreadedService(str(inventory)) as one,
        ThreadedService(str(inventory)) as other,
    ):
        watching = asyncio.create_task(_watch(engine))
        won = await asyncio.gather(*(_clients(service) for service in (one, other)))
        watching.cancel()
        assert await _outcome(watching) is None, "a GPU was held twice"
        assert all(won), f"both make progress: {won}"
    assert containers(engine) == []


async def _clients(service: ThreadedService) -> int:
    return sum(await asyncio.gather(*(_client(service) for _ in range(3))))


async def _client(service: ThreadedService) -> int:
    """Ask, hold, give back, until two were had; gives up after many refusals. Returns how often it ran."""
    ran = 0
    for _ in range(60):
        try:
            made = await service.acall(lambda scheduler: scheduler.request(Request(gpus=1, memory=2**30), "tester"))
        except NotPlaced:
            await asyncio.sleep(0.5)
            continue
        made = await _past(service, made, State.PENDING, State.STARTING)
        ran += made.state is State.RUNNING
        await service.acall(lambda scheduler, made=made: scheduler.release(made.id))
        await _past(service, made, *(state for state in State if state is not State.ENDED))
        if ran == 2:
            break
    return ran


async def _past(service: ThreadedService, made: Allocation, *states: State) -> Allocation:
    """The allocation once it is in none of these states."""
    while made.state in states:
        made = await service.acall(lambda scheduler, made=made: scheduler.changed(made.id, made.version, 60))
    return made


async def _watch(engine: Engine) -> None:
    """Look at the engine itself, again and again; raises as soon as a GPU has two holders."""
    while True:
        counts = await asyncio.to_thread(held, engine)
        assert all(count == 1 for count in counts.values()), counts
        await asyncio.sleep(0.05)


async def _outcome(task: asyncio.Task[None]) -> BaseException | None:
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return None if isinstance(outcome, asyncio.CancelledError) else outcome


async def _usable(lab: Lab, node: str) -> bool:
    return (await lab.nodes())[node]["reason"] is None

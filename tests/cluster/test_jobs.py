"""Jobs on three real engines, as a person sends them: from a notebook, which then dies, as does the server.

    gpu01: 4 GPUs of 40 GiB     gpu02: 2 GPUs of 40 GiB     gpu03: 2 GPUs of 12 GiB on one card

(What has nothing to do with engines is in `tests/scheduling`, what has to do with one of them in `tests/jobs`.)
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.frontend import FrontEnd, Notebook, eventually
from helpers.jupyter import NOT_NEEDED
from helpers.machines import containers, machines
from helpers.person import Person

from .engines import Cluster, Engine, default_gpus

GIB = 2**30
TESTS = Path(__file__).parents[1]

WATCHED = """%%writefile watched.py
import os, pathlib, sys, time

outputs = pathlib.Path(os.environ["GPUFIT_OUTPUTS"])
print("began with", *sys.argv[1:], "and", pathlib.Path("data/numbers.txt").read_text().strip())
step = 0
while not os.path.exists("/tmp/go"):
    step += 1
    print("step", step)
    time.sleep(0.1)
(outputs / "gpus.txt").write_text(os.environ["GPUFIT_GPUS"])
(outputs / "key.txt").write_text(os.environ["KEY"])
print("let go after step", step)
"""

TRAIN = """%%writefile train.py
import os, pathlib, time
import numpy as np

checkpoint = pathlib.Path(os.environ["GPUFIT_OUTPUTS"], "checkpoint.npz")
attempt = os.environ["GPUFIT_ATTEMPT"]
random = np.random.default_rng(1)
inputs = random.normal(size=(256, 8))
wanted = inputs @ np.arange(8.0)
weights, losses = np.zeros(8), []
if checkpoint.exists():
    weights, losses = (np.load(checkpoint)[name] for name in ("weights", "losses"))
print(f"attempt {attempt} begins with epoch {len(losses) + 1}")
for epoch in range(len(losses) + 1, 21):
    error = inputs @ weights - wanted
    weights = weights - 0.1 * inputs.T @ error / len(inputs)
    losses = [*losses, float((error**2).mean())]
    np.savez(checkpoint, weights=weights, losses=losses)
    print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    while attempt == "1" and epoch == 7 or attempt == "2" and epoch == 12 and not os.path.exists("/tmp/go"):
        time.sleep(0.1)
"""


# --- a person with a notebook, and what they see of the machines


@asynccontextmanager
async def serving(person: Person, **traits: Any) -> AsyncIterator[FrontEnd]:
    """The front end of their (next) server."""
    extensions = dict.fromkeys(NOT_NEEDED, False) | {"helpers.hasty": True}
    config = {"ServerApp__jpserver_extensions": extensions, "LocalScheduler__sample_period": 0.2}
    async with person.serve(**config, **traits) as server, server.front() as front:
        yield front


async def job(front: FrontEnd, name: str, state: str, within: float = 60) -> dict[str, Any]:
    """The job once it is in that state; its end always counts."""
    now = await front.allocation(name, lambda one: one["state"] in (state, "ended"), within)
    assert now["state"] == state, now
    return now


async def printed(front: FrontEnd, name: str) -> str:
    answer = await front.gpufit("GET", f"allocations/{name}/logs?tail=10000", expect=200)
    return str(answer.json["logs"])


async def prints(front: FrontEnd, name: str, line: str) -> None:
    async def there() -> bool:
        return line in await printed(front, name)

    await eventually(there)


async def free(front: FrontEnd) -> None:
    """All GPUs are."""

    async def idle() -> bool:
        nodes = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
        return all(gpu["idle"] for node in nodes for gpu in node["gpus"])

    await eventually(idle)


def outputs_of(job: dict[str, Any]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(job["outputs"]).iterdir()}


def container_of(engine: Engine, name: str) -> Any:
    """The container of an allocation, as the engine describes it."""
    try:
        found = [each.attrs for each in engine.client().containers.list() if f"-{name}-" in f"{each.name}-"]
        assert len(found) == 1, containers(engine)
        return found[0]
    finally:
        engine.close_clients()


def running(engine: Engine) -> list[str]:
    """Names of the containers that run there."""
    try:
        return [each.name for each in engine.client().containers.list()]
    finally:
        engine.close_clients()


def let_go(engine: Engine, name: str) -> None:
    """What a job on that machine waits for happens."""
    id = container_of(engine, name)["Id"]
    try:
        assert engine.client().containers.get(id).exec_run(["touch", "/tmp/go"], user="0").exit_code == 0
    finally:
        engine.close_clients()


def kernels_die(person: Person) -> None:
    """`kill -9` of all that the server started."""
    for child in psutil.Process(person.servers[-1].pid).children(recursive=True):
        child.kill()


def computes(engine: Engine, name: str, memory: tuple[int, int], utilization: int) -> None:
    """From now on the job's process uses so much of that machine's two GPUs, as the driver sees it."""
    pid = container_of(engine, name)["State"]["Pid"]
    engine.set_gpus(
        dataclasses.replace(gpu, memory_used=used, utilization=utilization, processes={pid: used})
        for gpu, used in zip(engine.gpus, memory, strict=True)
    )


@pytest.fixture
async def person(cluster: Cluster, kernel_image: str, tmp_path: Path) -> AsyncIterator[Person]:
    with machines(cluster, tmp_path, kernel_image, 'timeout = "2s"') as inventory:
        made = Person(tmp_path, inventory, PYTHONPATH=str(TESTS))
        yield made
        made.check_logs()
    assert [containers(engine) for engine in cluster] == [[], [], []]
    left = [path for path in (tmp_path / "data" / "gpufit" / "jobs").glob("*") if path.is_dir()]
    assert left == [], "nothing is left in the store"


async def send(notebook: Notebook, *cells: str) -> str:
    """What the last of these cells shows."""
    done = [await notebook.run(cell) for cell in ("%load_ext jupyter_gpufit", *cells)]
    assert [cell.error for cell in done] == [None] * len(done), [cell.text for cell in done]
    return done[-1].text


async def test_jobs_outlive_notebook_and_server(cluster: Cluster, person: Person, tmp_path: Path) -> None:
    root, gpu02, gpu03 = tmp_path / "root", cluster["gpu02"], cluster["gpu03"]
    async with serving(person) as front:
        (root / "data").mkdir()
        (root / "data" / "numbers.txt").write_text("42\n")
        (root / ".gpufitignore").write_text("*.secret\n")
        (root / "a.secret").write_text("stays here")
        notebook = await front.open("study.ipynb")
        said = await send(
            notebook,
            WATCHED,
            TRAIN,
            "%gpufit train train.py --memory 8GiB --node gpu03 --name train --retries 1",
            "%gpufit train watched.py --memory 8GiB --node gpu01 --name parallel --launcher torchrun",
            "%gpufit train watched.py -n 2 --memory 16GiB --name watched --env KEY=s3cret -- --fast 'two words'",
        )
        assert "Follow it: %gpufit logs -f watched" in said

        # Its GPUs are used: so much, and then less.
        watched = await job(front, "watched", "running")
        assert (watched["node"], watched["kernel_id"]) == ("gpu02", None)
        await prints(front, "watched", "step 1\n")
        computes(gpu02, "watched", (9 * GIB, 7 * GIB), 80)

        async def measured(memory: int, least: int) -> bool:
            series = (await front.gpufit("GET", "allocations/watched/usage", expect=200)).json
            return series["gpus"][0]["memory"].count(memory) >= least

        await eventually(lambda: measured(9 * GIB, 3))
        computes(gpu02, "watched", (GIB, GIB), 20)
        await eventually(lambda: measured(GIB, 3))

        # An image without torchrun: a sentence, at once, although it might be tried again.
        failed = await job(front, "parallel", "ended")
        assert (failed["reason"], failed["exit_code"]) == ("failed", 90)
        assert "has no torchrun" in failed["message"]
        assert "Traceback" not in failed["message"]
        assert containers(cluster["gpu01"]) == []

        # Its process dies in the middle of the training.
        await prints(front, "train", "epoch 7: ")
        os.kill(container_of(gpu03, "train")["State"]["Pid"], signal.SIGKILL)
        await prints(front, "train", "epoch 12: ")
        again = await job(front, "train", "running")
        assert again["attempt"] == 2

        kernels_die(person)
        await person.servers[-1].kill()

    # One ends while no server is there, one goes on when the next one is.
    let_go(gpu02, "watched")
    await eventually(lambda: running(gpu02) == [])
    gpu02.set_gpus(default_gpus("gpu02"))  # as the driver does
    async with serving(person) as front:
        assert (await job(front, "train", "running"))["id"] == again["id"]
        let_go(gpu03, "train")
        watched, train = [await job(front, name, "ended") for name in ("watched", "train")]
        assert [(one["reason"], one["exit_code"]) for one in (watched, train)] == [("finished", 0)] * 2, (
            watched,
            train,
        )

        log = (await printed(front, "watched")).splitlines()
        steps = int(log[-1].rpartition(" ")[2])
        expected = ["began with --fast two words and 42", *(f"step {n + 1}" for n in range(steps))]
        assert log == [*expected, f"let go after step {steps}"]
        assert Path(watched["outputs"]) == root / "outputs" / "watched"
        home = outputs_of(watched)
        assert home == {"gpus.txt": ",".join(watched["gpus"]).encode(), "key.txt": b"s3cret"}
        assert {path.stat().st_uid for path in (root / "outputs").rglob("*")} == {os.geteuid()}

        log = (await printed(front, "train")).splitlines()
        firsts = [line for line in log if line.startswith("attempt ")]
        assert firsts == ["attempt 1 begins with epoch 1", "attempt 2 begins with epoch 8"]
        losses = [float(line.rpartition(" ")[2]) for line in log if line.startswith("epoch ")]
        assert len(losses) == 20, "no epoch twice"
        assert losses == sorted(losses, reverse=True)
        assert train["attempt"] == 2
        assert [*outputs_of(train)] == ["checkpoint.npz"]

        await figures_are_what_the_driver_was_told(front)
        said = await send(await front.open("second.ipynb"), "%gpufit usage watched")
        assert "asked 16 GiB on 2 GPUs, peak 9 and 7 GiB, busy " in said
        assert "--memory 10GiB would have been enough" in said
        await free(front)
        shown = json.dumps((await front.gpufit("GET", "allocations?ended=1", expect=200)).json)
        assert "s3cret" not in shown + person.servers[0].log + person.servers[1].log


async def figures_are_what_the_driver_was_told(front: FrontEnd) -> None:
    series = (await front.gpufit("GET", "allocations/watched/usage", expect=200)).json
    for gpu, use, most in zip(series["gpus"], series["usage"]["gpus"], (9 * GIB, 7 * GIB), strict=True):
        # (Before it used anything: nothing, or not known yet.)
        assert set(gpu["memory"]) - {0, None} == {most, GIB}
        assert set(gpu["utilization"]) - {0, None} == {80, 20}
        assert use["asked"] == 16 * GIB
        assert use["peak"] == most
        known = [busy for busy in gpu["utilization"] if busy is not None]
        assert use["busy"] == pytest.approx(statistics.mean(known))
    assert len(series["times"]) == series["usage"]["samples"]


async def test_a_job_whose_node_is_lost_runs_elsewhere(cluster: Cluster, person: Person, tmp_path: Path) -> None:
    gpu01, gpu02 = cluster["gpu01"], cluster["gpu02"]
    async with serving(person, LocalScheduler__lost_after=4.0) as front:
        (tmp_path / "root" / "data").mkdir()
        (tmp_path / "root" / "data" / "numbers.txt").write_text("7\n")
        (tmp_path / "root" / "watched.py").write_text(WATCHED.partition("\n")[2])
        wishes = {"gpus": 2, "memory": "16GiB", "name": "watched", "folder": "."}
        body = {"request": {**wishes, "job": {"run": "watched.py", "env": {"KEY": "k"}}}}
        await front.gpufit("POST", "jobs", body, expect=202)
        first = await job(front, "watched", "running")
        assert first["node"] == "gpu02"
        await prints(front, "watched", "step 1\n")
        [lost] = containers(gpu02)

        gpu02.partition()
        moved = await front.allocation("watched", lambda one: one["node"] == "gpu01" and one["state"] == "running")
        assert moved["id"] == first["id"]
        assert moved["message"].startswith("node 'gpu02' did not answer for "), moved
        assert containers(gpu02) == [lost], "it does not know yet"
        let_go(gpu01, "watched")
        ended = await job(front, "watched", "ended")
        assert (ended["reason"], ended["exit_code"]) == ("finished", 0)
        assert outputs_of(ended)["gpus.txt"] == ",".join(moved["gpus"]).encode()
        assert set(moved["gpus"]) <= set(gpu01.gpu_uuids)
        # The log says both: as much of the first one as was known, and all of the second.
        log = (await printed(front, "watched")).splitlines()
        assert log[-1].startswith("let go after step "), log

        gpu02.heal()
        await eventually(lambda: containers(gpu02) == [])
        await free(front)

"""Kernels that restart or die, in containers on a real engine, through a real Jupyter server.

By whoever and however it is restarted: the same node, the same GPUs, the same ports, and a new container, made once the
old one is gone. What ended it is told in the notebook, and in the allocation.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from helpers.frontend import Cell, FrontEnd, Notebook, eventually
from helpers.jupyter import JupyterServer
from helpers.jupyterserver import directories

from .engines import Engine

PREFIX = "io.github.jupyter-gpufit."
SEES = "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"
HOG = "hog = [bytearray(2**20) for _ in range(1024)]"
LIMIT = "192 MiB"
GONE = "its variables are gone"
# As a library in C prints: not into the notebook, but on what the container started with.
LAST_LINES = "print('cudaErrorLaunchFailure, said the driver', file=open('/proc/1/fd/1', 'w'))"

Restart = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A notebook on a GPU of an engine, and everything around it."""

    def __init__(self, engine: Engine, server: JupyterServer, front: FrontEnd) -> None:
        self.engine, self.server, self.front = engine, server, front
        self.notebook: Notebook

    async def open(self) -> dict[str, Any]:
        """A notebook that was started on a GPU; its allocation."""
        self.notebook = await self.front.open("study.ipynb", "gpufit")
        [made] = (await self.front.gpufit("GET", "allocations", expect=200)).json["allocations"]
        return dict(made)

    async def allocation(self) -> dict[str, Any]:
        """The one there is."""
        [one] = (await self.front.gpufit("GET", "allocations", expect=200)).json["allocations"]
        return dict(one)

    def containers(self) -> list[dict[str, Any]]:
        """As the engine describes them."""
        try:
            return [each.attrs for each in self.engine.client().containers.list(all=True, ignore_removed=True)]
        finally:
            self.engine.close_clients()

    def container(self) -> dict[str, Any]:
        [one] = self.containers()
        return one

    def happened(self, since: float) -> list[tuple[str, str]]:
        """What the engine did with containers: action and id, in order."""
        client = self.engine.client()
        try:
            filters = {"type": "container", "event": ["create", "start", "destroy"]}
            told = client.events(since=int(since), until=int(time.time()) + 1, filters=filters, decode=True)
            return [(event["Action"], event["Actor"]["ID"]) for event in told]
        finally:
            self.engine.close_clients()

    async def kernel(self) -> dict[str, Any]:
        """Its kernel, as the server has it."""
        return dict((await self.front.api("GET", f"api/kernels/{self.notebook.kernel_id}", expect=200)).json)

    def kill(self) -> None:
        """As the system kills what takes too much, or whoever is root there."""
        os.kill(self.container()["State"]["Pid"], signal.SIGKILL)

    async def again(self, before: str) -> dict[str, Any]:
        """The container that runs in the place of `before`."""

        def look() -> dict[str, Any] | None:
            found = [one for one in self.containers() if one["Id"] != before and one["State"]["Running"]]
            return found[0] if found else None

        return dict(await eventually(look))

    async def all_free(self) -> None:
        async def free() -> bool:
            [node] = (await self.front.gpufit("GET", "nodes", expect=200)).json["nodes"]
            return all(gpu["idle"] for gpu in node["gpus"]) and not self.containers()

        await eventually(free)


@pytest.fixture(scope="module")
def server(_engine: Engine, kernel_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    home = tmp_path_factory.mktemp("restarts")
    inventory = home / "gpufit.toml"
    inventory.write_text(f"""
        [[node]]
        name = "gpu01"
        docker = "{_engine.url}"
        insecure = true
        address = "{_engine.ip}"
        report = "simulated:2xT4-16GB"
        monitor_period = "250ms"
        image = "{kernel_image}"
        pull = "never"
        ram = "192MiB"
    """)
    options = {"GpufitExtension.inventory": inventory, "KernelRestarter.time_to_dead": 0.3}
    options["KernelRestarter.restart_limit"] = 2
    flags = [f"--{name}={value}" for name, value in options.items()]
    with JupyterServer(home / "root", directories(home), *flags) as server:
        yield server
    assert "/jupyter_gpufit/" not in server.log, "a traceback of ours"


@pytest.fixture
async def bench(engine: Engine, server: JupyterServer) -> AsyncIterator[Bench]:
    async with FrontEnd(server.url, server.token) as front:
        bench = Bench(engine, server, front)
        yield bench
        for one in (await front.gpufit("GET", "allocations", expect=200)).json["allocations"]:
            await front.release(one["id"])
        for session in (await front.api("GET", "api/sessions", expect=200)).json:
            await front.api("DELETE", f"api/sessions/{session['id']}", expect=204)
        await bench.all_free()


# --- three kinds of restart


async def by_the_person(bench: Bench) -> None:
    """*Kernel > Restart*, as JupyterLab does it: it connects anew afterwards."""
    await bench.notebook.restart()
    await bench.notebook.reconnect()


async def by_rest(bench: Bench) -> None:
    """By somebody else: another window, or a script. This notebook stays connected."""
    await bench.front.api("POST", f"api/kernels/{bench.notebook.kernel_id}/restart", {}, expect=200)


async def by_death(bench: Bench) -> None:
    """It dies, and the server restarts it by itself."""
    before = bench.container()["Id"]
    bench.kill()
    await bench.again(before)


@pytest.mark.parametrize("restart", [by_the_person, by_rest, by_death])
async def test_a_restart_is_on_the_same_gpus_and_ports_in_a_new_container(bench: Bench, restart: Restart) -> None:
    made = await bench.open()
    notebook, before, since = bench.notebook, bench.container(), time.time()
    assert (await notebook.run("import subprocess; x = 1")).error is None
    notebook.send("subprocess.run(['sleep', '600'])")  # it is restarted in the middle of this
    await eventually(lambda: sleeps(bench))

    await restart(bench)
    after = await bench.again(before["Id"])

    assert [one["Id"] for one in bench.containers()] == [after["Id"]]
    assert bench.happened(since)[-3:] == [("destroy", before["Id"]), ("create", after["Id"]), ("start", after["Id"])]
    assert after["NetworkSettings"]["Ports"] == before["NetworkSettings"]["Ports"]
    assert after["Config"]["Labels"] == before["Config"]["Labels"]
    again = await bench.allocation()
    same = ("id", "state", "node", "gpus", "memory", "kernel_id")
    assert {key: again[key] for key in same} == {key: made[key] for key in same}

    await everything_works(bench)
    assert (await notebook.run(SEES)).stdout.strip().split(",") == made["gpus"]
    assert "NameError" in str((await notebook.run("x")).error)


def sleeps(bench: Bench) -> bool:
    """Whether a child of the kernel runs in the container."""
    try:
        [one] = bench.engine.client().containers.list(ignore_removed=True)
        return "sleep 600" in [line[-1] for line in one.top()["Processes"]]
    finally:
        bench.engine.close_clients()


async def everything_works(bench: Bench) -> None:
    """Of a kernel that was restarted in the middle of a cell."""
    notebook = bench.notebook
    await eventually(lambda: is_in(bench, "idle"))  # before any cell ran: the one before is over
    cell = await notebook.run("print('here')")
    assert cell.stdout == "here\n", (cell.status, cell.text)

    notebook.answer_input = lambda prompt: prompt.upper()
    assert (await notebook.run("print(input('who? '))")).stdout.endswith("WHO? \n")

    await notebook.run(
        "from comm import create_comm\n"
        "widget = create_comm(target_name='t', data={'value': 1}, comm_id='slider')\n"
        "widget.on_msg(lambda message: widget.send({'twice': 2 * message['content']['data']['value']}))"
    )
    notebook.send_comm("slider", {"value": 21})
    await eventually(lambda: {"twice": 42} in [message["content"].get("data") for message in notebook.comms])

    active = (await bench.kernel())["last_activity"]
    sleeping = notebook.send("import subprocess; subprocess.run(['sleep', '600'])")
    await eventually(lambda: sleeps(bench))
    await eventually(lambda: is_in(bench, "busy"))
    assert (await bench.kernel())["last_activity"] > active
    await notebook.interrupt()
    assert str((await sleeping).error).startswith("KeyboardInterrupt")
    await eventually(lambda: not sleeps(bench))
    await eventually(lambda: is_in(bench, "idle"))


async def is_in(bench: Bench, state: str) -> bool:
    """Whether that is what the server takes its kernel for."""
    return bool((await bench.kernel())["execution_state"] == state)


async def test_interrupts_during_a_restart_are_harmless(bench: Bench) -> None:
    await bench.open()
    notebook = bench.notebook
    restarting = asyncio.create_task(by_rest(bench))
    answers = []
    while not restarting.done():
        answers.append(await bench.front.api("POST", f"api/kernels/{notebook.kernel_id}/interrupt", {}))
        await asyncio.sleep(0.05)
    await restarting
    assert {answer.status for answer in answers} <= {204, 500}  # Jupyter's own refusal of what is being restarted
    assert (await notebook.run("print(6 * 7)")).stdout == "42\n"
    assert len(bench.containers()) == 1
    assert (await bench.allocation())["state"] == "running"


async def test_restart_is_pressed_while_it_restarts_by_itself(bench: Bench) -> None:
    """As one does who sees that the kernel died: both mean the same."""
    made = await bench.open()
    bench.kill()
    await eventually(lambda: "restarting" in bench.notebook.statuses)
    await asyncio.gather(by_rest(bench), by_rest(bench))
    assert (await bench.notebook.run(SEES)).stdout.strip().split(",") == made["gpus"]
    assert (await bench.allocation())["state"] == "running"
    assert len(bench.containers()) == 1


# --- what killed it is told


async def test_a_container_killed_for_memory_says_so(bench: Bench) -> None:
    await bench.open()
    before = bench.container()["Id"]
    await bench.notebook.run(LAST_LINES)
    bench.notebook.send(HOG)
    await bench.again(before)
    cell = await bench.notebook.run("print(1)")
    assert f"killed for memory: limit {LIMIT}" in cell.stderr, cell.text
    assert "cudaErrorLaunchFailure, said the driver" in cell.stderr
    assert GONE in cell.stderr
    assert cell.stdout == "1\n"
    assert (await bench.notebook.run("print(2)")).text == "2\n", "told once"
    for shown in ((await bench.allocation())["message"], (await bench.kernel())["reason"]):
        assert f"killed for memory: limit {LIMIT}" in shown
    await by_the_person(bench)
    assert (await bench.notebook.run("print(3)")).text == "3\n"
    assert (await bench.allocation())["message"] == ""
    assert "reason" not in await bench.kernel()


async def test_a_crash_says_what_it_was(bench: Bench) -> None:
    await bench.open()
    before = bench.container()["Id"]
    bench.notebook.send("import ctypes; ctypes.string_at(0)")
    await bench.again(before)
    cell = await bench.notebook.run("print(1)")
    assert "killed by SIGSEGV" in cell.stderr, cell.text
    assert "Fatal Python error: Segmentation fault" in cell.stderr, "what Python said on its way down"
    assert "string_at" in cell.stderr, "where it was"
    assert GONE in cell.stderr


async def test_a_forwarded_cell_that_takes_too_much_memory_says_so(bench: Bench) -> None:
    notebook = await bench.front.open("local.ipynb")
    story = ["%load_ext jupyter_gpufit", "%gpufit request 1 --memory 1GiB --name train", LAST_LINES, HOG, "print(1)"]
    cells = notebook.run_all(story)
    assert [(await cell.done(60)).error for cell in cells[:3]] == [None] * 3, [cell.text for cell in cells]
    error = await said(cells[3])
    assert f"killed for memory: limit {LIMIT}" in error
    assert "cudaErrorLaunchFailure, said the driver" in error
    assert GONE in error
    assert "Traceback" not in cells[3].text


async def up(bench: Bench, before: set[str]) -> str | None:
    """The container of a kernel that answers, after those `before`."""
    [one] = (await bench.front.gpufit("GET", "allocations", expect=200)).json["allocations"]
    new = [each["Id"] for each in bench.containers() if each["Id"] not in before]
    return new[0] if new and not one.get("progress") else None


async def said(cell: Cell) -> str:
    await cell
    return str(cell.error)


async def test_a_kernel_that_dies_again_and_again_is_given_up(bench: Bench) -> None:
    """An attached notebook gets its local kernel back, and is told; its GPUs are free."""
    notebook = await bench.front.open("attached.ipynb")
    await notebook.run("x = 1")
    local = notebook.kernel_id
    story = ["%load_ext jupyter_gpufit", "%gpufit request 1 --memory 1GiB --name train"]
    for cell in notebook.run_all(story):
        assert (await cell.done(60)).error is None
    await notebook.off(local)
    made = await bench.allocation()
    units: set[str] = set()
    for _ in range(3):  # the first, and as many restarts as there may be
        units.add(await eventually(lambda: up(bench, units)))
        notebook.send("import os; os._exit(3)")
    now = await bench.front.allocation(made["id"], lambda one: one["state"] == "ended")
    assert now["reason"] == "failed"
    assert len(units) == 3
    # The last one may have died in the moment in which it answered, before anybody had noted that.
    assert "died too often" in now["message"] or "ended while it started" in now["message"]
    assert "exit code 3" in now["message"]
    await notebook.on(local)
    cell = await notebook.run("print(x)")
    assert "exit code 3" in cell.text
    assert await notebook.value("x") == "1"
    await bench.all_free()

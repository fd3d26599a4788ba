"""The main job on three real engines, through a real Jupyter server: by REST, from the kernel picker, and by magic.

    gpu01: 4 GPUs of 40 GiB     gpu02: 2 GPUs of 40 GiB     gpu03: 2 GPUs of 12 GiB on one card

Each test asks, checks which node was taken and what the container sees, works there, gives back, and finds everything
as it was: no container, all GPUs idle, the notebook on its local kernel with its variables.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.frontend import FrontEnd, eventually
from helpers.jupyterserver import ServerProcess, server_process
from helpers.machines import containers, machines

from .engines import Cluster

GIB = 2**30
SEES = "import os, json; print(json.dumps([os.environ['NVIDIA_VISIBLE_DEVICES'].split(','), os.uname().nodename]))"


class Lab:
    """The machines, a Jupyter server, and somebody in front of it."""

    def __init__(self, cluster: Cluster, server: ServerProcess, front: FrontEnd) -> None:
        self.cluster, self.server, self.front = cluster, server, front

    async def nodes(self) -> dict[str, Any]:
        answer = await self.front.gpufit("GET", "nodes", expect=200)
        assert answer.json["inventory_error"] is None
        return {one["name"]: one for one in answer.json["nodes"]}

    async def all_idle(self) -> None:
        """Every node has reported, and every GPU is idle; no container is anywhere."""

        async def idle() -> bool:
            nodes = await self.nodes()
            return len(nodes) == 3 and all(
                one["reason"] is None and one["gpus"] and all(gpu["idle"] for gpu in one["gpus"])
                for one in nodes.values()
            )

        await eventually(idle)
        assert [containers(engine) for engine in self.cluster] == [[], [], []]

    def holder(self, name: str) -> Any:
        """The one container on that engine, as the engine describes it."""
        engine = self.cluster[name]
        try:
            [container] = engine.client().containers.list(all=True, ignore_removed=True)
            return container.attrs
        finally:
            engine.close_clients()


@pytest.fixture(scope="module")
def inventory(_cluster: Cluster, kernel_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with machines(_cluster, tmp_path_factory.mktemp("machines"), kernel_image) as file:
        yield file


@asynccontextmanager
async def lab_at(cluster: Cluster, home: Path, inventory: Path, **options: Any) -> AsyncIterator[Lab]:
    async with server_process(home, inventory=inventory, **options) as server, server.front() as front:
        yield Lab(cluster, server, front)


@pytest.fixture
async def lab(cluster: Cluster, inventory: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab_at(cluster, tmp_path, inventory) as made:
        await made.all_idle()
        yield made
        await made.all_idle()
    assert "Traceback" not in made.server.log, made.server.log


def uuids(lab: Lab, node: str) -> set[str]:
    return set(lab.cluster[node].gpu_uuids)


async def test_by_rest(lab: Lab) -> None:
    front = lab.front
    notebook = await front.open("study.ipynb")
    await notebook.run("x = 41")
    local = notebook.kernel_id

    explained = (await front.gpufit("POST", "explain", {"gpus": 2, "memory": "16GiB"}, expect=200)).json
    assert explained["node"] == "gpu02", "the tightest of those that fit"
    assert "gpu03" in explained["stages"][0]["rejected"]

    made = await front.request(gpus=2, memory="16GiB", name="train")
    assert made["state"] == "running", made
    assert made["node"] == "gpu02"
    assert set(made["gpus"]) == uuids(lab, "gpu02")
    about = lab.holder("gpu02")
    assert about["State"]["Running"]
    assert json.loads(about["Config"]["Labels"]["io.github.jupyter-gpufit.gpus"]) == dict.fromkeys(
        made["gpus"], 16 * GIB
    )
    assert [set(each["DeviceIDs"]) for each in about["HostConfig"]["DeviceRequests"]] == [set(made["gpus"])]
    assert [containers(lab.cluster[name]) for name in ("gpu01", "gpu03")] == [[], []]

    # Attached while cells are queued: none is lost.
    cells = notebook.run_all(["import time; time.sleep(1)", "x += 1", "print(x)"])
    await front.gpufit("POST", "allocations/train/attach", {"session": notebook.session}, expect=202)
    assert (await cells[2]).text == "42\n"
    await notebook.on(made["kernel_id"])
    seen, host = json.loads((await notebook.run(SEES)).text)
    assert seen == made["gpus"], "exactly the asked ones, in their order"
    assert about["Id"].startswith(host) or about["Config"]["Hostname"] == host
    keys = await notebook.run(
        "from ipykernel.kernelapp import IPKernelApp; bool(IPKernelApp.instance().curve_secretkey)"
    )
    assert keys.text == "True\n", "what is not on loopback is encrypted"

    # Another one goes where there is still room, and a third nowhere, with the reason of each node.
    second = await front.request(gpus=2, memory="16GiB")
    assert (second["state"], second["node"]) == ("running", "gpu01")
    refused = await front.gpufit("POST", "allocations", {"gpus": 3, "memory": "16GiB"}, expect=409)
    why = {node: reason for stage in refused.json["details"]["stages"] for node, reason in stage["rejected"].items()}
    assert set(why) == {"gpu01", "gpu02", "gpu03"}
    assert why["gpu01"].startswith("2 idle GPUs, 3 asked"), why

    ended = await front.release("train")
    assert ended["reason"] == "released"
    await notebook.on(local)
    assert await notebook.value("x") == "42"
    assert containers(lab.cluster["gpu02"]) == []
    nodes = await lab.nodes()
    assert all(gpu["idle"] for gpu in nodes["gpu02"]["gpus"])
    assert sum(gpu["idle"] for gpu in nodes["gpu01"]["gpus"]) == 2
    await front.release(second["id"])


async def test_by_kernelspec(lab: Lab) -> None:
    """As the kernel picker does: 1 GPU of 1 GiB, for which the smallest node is tightest."""
    notebook = await lab.front.open("direct.ipynb", "gpufit")
    [made] = (await lab.front.gpufit("GET", "allocations", expect=200)).json["allocations"]
    assert (made["node"], made["kernel_id"], len(made["gpus"])) == ("gpu03", notebook.kernel_id, 1)
    seen, _ = json.loads((await notebook.run(SEES)).text)
    assert seen == made["gpus"]
    before = lab.holder("gpu03")["Id"]
    await notebook.run("y = 1")
    await notebook.restart()
    assert "NameError" in str((await notebook.run("y")).error)
    again, _ = json.loads((await notebook.run(SEES)).text)
    assert again == made["gpus"], "the same GPUs"
    assert lab.holder("gpu03")["Id"] != before, "in a new container"
    await notebook.shutdown()
    ended = await lab.front.allocation(made["id"], lambda one: one["state"] == "ended")
    assert ended["reason"] == "released"


async def test_by_magic(lab: Lab) -> None:
    """*Run All* on a notebook whose first cells are the request; then the whole notebook once more."""
    notebook = await lab.front.open("magic.ipynb")
    await notebook.run("x = 1")
    local = notebook.kernel_id
    story = ["%load_ext jupyter_gpufit", "%gpufit request 2 --memory 16GiB --name train", SEES, "y = 6 * 7", "print(y)"]
    cells = [await cell.done(120) for cell in notebook.run_all(story)]
    assert [cell.error for cell in cells] == [None] * 5, [cell.text for cell in cells]
    [made] = (await lab.front.gpufit("GET", "allocations", expect=200)).json["allocations"]
    assert (made["name"], made["node"]) == ("train", "gpu02")
    assert json.loads(cells[2].text)[0] == made["gpus"]
    assert cells[4].text == "42\n"
    await notebook.on(made["kernel_id"])
    assert await notebook.value("y") == "42", "what was forwarded ran in this very kernel"

    cells = [await cell.done(120) for cell in notebook.run_all(story)]
    assert [cell.error for cell in cells] == [None] * 5, [cell.text for cell in cells]
    assert json.loads(cells[2].text)[0] == made["gpus"]
    assert len((await lab.front.gpufit("GET", "allocations", expect=200)).json["allocations"]) == 1

    cells = notebook.run_all(["%gpufit release", "print('to the end')"])
    assert (await cells[1]).text == "to the end\n"
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    await lab.front.allocation(made["id"], lambda one: one["state"] == "ended")


async def test_the_server_is_killed(cluster: Cluster, inventory: Path, tmp_path: Path) -> None:
    """`kill -9`, and the same person's next server: the GPUs are held once or not at all, and can be had again."""
    async with lab_at(cluster, tmp_path, inventory) as lab:
        await lab.all_idle()
        made = await lab.front.request(gpus=2, memory="16GiB")
        assert made["state"] == "running", made
        await lab.server.kill()
    async with lab_at(cluster, tmp_path, inventory, log_name="second.log") as lab:
        now = (await lab.front.gpufit("GET", f"allocations/{made['id']}", expect=200)).json
        if now["state"] == "running":
            assert now["gpus"] == made["gpus"]
            await lab.front.release(made["id"])
        await lab.front.allocation(made["id"], lambda one: one["state"] == "ended")
        await lab.all_idle()
        again = await lab.front.request(gpus=2, memory="16GiB")
        assert (again["state"], again["node"]) == ("running", "gpu02"), again
    assert [containers(engine) for engine in cluster] == [[], [], []], "a server that stops gives everything back"


async def test_an_engine_that_hangs(lab: Lab) -> None:
    """It accepts connections and never answers: nobody waits for it. What was asked happens once it is back."""
    made = await lab.front.request(gpus=2, memory="16GiB")
    assert made["node"] == "gpu02"
    lab.cluster["gpu02"].freeze()
    for method, path, body, statuses in (
        ("GET", f"allocations/{made['id']}/logs", None, {503}),
        ("GET", "nodes", None, {200}),
        ("POST", "explain", {"gpus": 1}, {200}),
        ("POST", "allocations", {"gpus": 1, "name": "elsewhere", "node": "gpu01"}, {202}),
        ("GET", "allocations", None, {200}),
        ("DELETE", f"allocations/{made['id']}", None, {202}),
        ("POST", f"allocations/{made['id']}/detach", {}, {200}),
    ):
        answer = await lab.front.gpufit(method, path, body)
        assert answer.status in statuses, (method, path, answer)
        assert answer.seconds < 5, (method, path, answer)
    other = await lab.front.allocation("elsewhere", lambda one: one["state"] in ("running", "ended"))
    assert other["state"] == "running", other
    held = (await lab.nodes())["gpu02"]["gpus"]
    assert not any(gpu["idle"] for gpu in held), "not given to anybody before it is known to be free"
    lab.cluster["gpu02"].thaw()
    await lab.front.allocation(made["id"], lambda one: one["state"] == "ended", within=90)
    await lab.front.release("elsewhere")


async def test_the_container_of_an_attached_notebook_is_killed(lab: Lab) -> None:
    """By somebody on the node: the notebook gets a kernel that works, on the same GPUs or at home."""
    notebook = await lab.front.open("a.ipynb")
    await notebook.run("x = 1")
    local = notebook.kernel_id
    made = await lab.front.request(gpus=2, memory="16GiB")
    await lab.front.gpufit("POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=202)
    await notebook.on(made["kernel_id"])
    await notebook.run("y = 2")
    engine = lab.cluster["gpu02"]
    [container] = engine.client().containers.list()
    container.kill()
    engine.close_clients()
    await eventually(lambda: notebook.kernel_id == local or "restarting" in notebook.statuses)
    if notebook.kernel_id != local:
        cell = await notebook.run(SEES, within=90)
        assert json.loads(cell.stdout)[0] == made["gpus"]
        assert "the kernel before this one ended" in cell.stderr
        assert "NameError" in str((await notebook.run("y")).error)
        assert (await lab.front.allocation(made["id"]))["state"] == "running"
    await lab.front.release(made["id"])
    await notebook.on(local)
    assert await notebook.value("x") == "1"

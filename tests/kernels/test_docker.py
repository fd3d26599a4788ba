"""Kernel `gpufit` in a container on a real engine that is another host: conformance, encryption, GPUs, memory limit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.cells import Cell, ready, run_cell
from helpers.jupyter import HttpError, JupyterServer, until

from jupyter_gpufit.kernels.probe import Probe

if TYPE_CHECKING:
    from conftest import Cluster  # type: ignore[import-not-found]

pytestmark = pytest.mark.docker
LABEL = "io.github.jupyter-gpufit.allocation"


def inventory(engine: Any, image: str, more: str = "") -> str:
    return f"""
[[node]]
name = "{engine.name}"
docker = "{engine.url}"
insecure = true
address = "{engine.ip}"
report = "simulated:2xT4-16GB"
monitor_period = "250ms"
image = "{image}"
images = ["*"]
pull = "never"
{more}
"""


@pytest.fixture
def server(cluster_here: Cluster, engine: Any, kernel_image: str) -> Iterator[JupyterServer]:
    cluster_here.file.write_text(inventory(engine, kernel_image, 'ram = "256MiB"'))
    with JupyterServer(cluster_here.directory / "root", {}, "--KernelRestarter.time_to_dead=0.5") as server:
        yield server
    assert units(engine) == []


def units(engine: Any) -> list[Any]:
    return list(engine.client().containers.list(all=True, ignore_removed=True, filters={"label": LABEL}))


def test_a_kernel_in_a_container(server: JupyterServer, engine: Any, cluster_here: Cluster) -> None:
    session = server.start_session("gpufit")
    kernel_id = session["kernel"]["id"]
    [unit] = units(engine)
    file = cluster_here.directory / "runtime" / f"kernel-{kernel_id}.json"
    connection = json.loads(file.read_text())
    assert connection["ip"] == engine.ip
    assert connection["curve_publickey"]
    secrets = [connection["key"], connection["curve_publickey"], connection["curve_secretkey"]]
    assert not any(secret in json.dumps(unit.attrs) or secret in server.log for secret in secrets)
    with server.client(kernel_id) as client:
        cell = run_cell(client, "import os; print(os.environ['GPUFIT_GPUS'], os.path.exists('/.dockerenv'))")
        [allocation] = server.get("gpufit/api/v1/allocations")["allocations"]
        assert cell.stdout.split() == [*allocation["gpus"], "True"]
        assert "This kernel holds 1 GPU" in run_cell(client, "%load_ext jupyter_gpufit\n%gpufit").stdout
        message = client.execute("import subprocess; subprocess.run(['sleep', '600'])")
        until(lambda: "sleep 600" in str(unit.top()))
        server.post(f"api/kernels/{kernel_id}/interrupt")
        assert Cell.of(client, message).error.startswith("KeyboardInterrupt")
        until(lambda: "sleep 600" not in str(unit.top()))
        server.post(f"api/kernels/{kernel_id}/restart")
        ready(client)
        assert run_cell(client, "import os; print(os.environ['GPUFIT_GPUS'])").stdout.split() == allocation["gpus"]
    [after] = units(engine)
    assert after.id != unit.id
    # Nobody without the keys: who asks in plaintext is not answered.
    assert asyncio.run(answers(connection))
    assert not asyncio.run(answers({name: value for name, value in connection.items() if not name.startswith("curve")}))
    server.delete(f"api/sessions/{session['id']}")
    until(lambda: units(engine) == [])


async def answers(connection: dict[str, Any]) -> bool:
    """Whether the kernel answers a client with that connection file."""
    with Probe({**connection, "key": connection["key"].encode()}) as probe:
        try:
            async with asyncio.timeout(3):
                await probe.answered()
        except TimeoutError:
            return False
        return True


def test_a_container_killed_for_memory_says_so_in_the_notebook(server: JupyterServer) -> None:
    session = server.start_session("gpufit")
    with server.client(session["kernel"]["id"]) as client:
        client.execute("hog = [bytearray(2**20) for _ in range(1024)]")
        until(lambda: server.kernels()[0]["execution_state"] in ("restarting", "starting") or "killed" in server.log)
        until(lambda: "killed for memory" in server.log)
        ready(client)
        cell = run_cell(client, "1 + 1")
        assert "killed for memory" in cell.stderr
        assert "256 MiB" in cell.stderr


def test_the_end_of_its_time_is_warned_of_in_the_notebook(server: JupyterServer) -> None:
    path = "gpufit/api/v1/allocations/train"
    server.post("gpufit/api/v1/allocations", {"gpus": 1, "name": "train", "time": "122s"})
    made = until(lambda: one if (one := server.get(path))["state"] == "running" else None)
    with server.client(made["kernel_id"]) as client:
        ready(client)
        until(lambda: server.get(path)["warning"])
        until(lambda: "gpufit: allocation 'train' ends in 2 m" in run_cell(client, "1").stderr)
        # And in the middle of a cell that says nothing.
        message = client.execute("print('begun'); import time; time.sleep(600)")
        heard = [client.get_iopub_msg(timeout=60)]
        while heard[-1]["msg_type"] != "stream":
            heard.append(client.get_iopub_msg(timeout=60))
        more = time.time() + 121 - server.get(path)["expires"]
        assert server.post(f"{path}/extend", {"time": more})["warning"] == ""
        warning = client.get_iopub_msg(timeout=60)
        assert warning["parent_header"]["msg_id"] == message
        assert (warning["msg_type"], warning["content"]["name"]) == ("stream", "stderr")
        assert "'train' ends in 2 m" in warning["content"]["text"]
        server.post(f"api/kernels/{made['kernel_id']}/interrupt")
        assert Cell.of(client, message).error.startswith("KeyboardInterrupt")
    server.delete(path)


@pytest.mark.parametrize(
    ("variant", "told"), [("no-ipykernel", "has no ipykernel"), ("old-ipykernel", "need 7.4 or later")]
)
def test_an_image_that_cannot_be_used_says_what_to_do(
    server: JupyterServer, engine: Any, cluster_here: Cluster, variant: str, told: str
) -> None:
    from cluster import image

    name = image.variant(engine.client(), variant)
    with pytest.raises(HttpError) as caught:
        server.start_session(cluster_here.kernelspec("ours", image=name))
    body = json.loads(caught.value.body)["message"]
    assert told in body
    assert "pip install 'ipykernel>=7.4'" in body
    until(lambda: units(engine) == [])


def test_an_image_too_old_to_encrypt_where_plaintext_is_allowed(
    cluster_here: Cluster, engine: Any, kernel_image: str
) -> None:
    from cluster import image

    old = image.variant(engine.client(), "old-ipykernel")
    cluster_here.file.write_text(inventory(engine, old, "allow_plaintext = true"))
    with JupyterServer(cluster_here.directory / "root") as server:
        session = server.start_session("gpufit")
        with server.client(session["kernel"]["id"]) as client:
            assert run_cell(client, "6 * 7").result == "42"
        file = Path(cluster_here.directory / "runtime" / f"kernel-{session['kernel']['id']}.json")
        assert "curve_publickey" not in json.loads(file.read_text())
    assert units(engine) == []

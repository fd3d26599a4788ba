"""The engines behave as hosts of a cluster would."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
import requests.exceptions
from docker.models.containers import Container
from docker.types import DeviceRequest
from jupyter_client.blocking.client import BlockingKernelClient
from standins.nvml import StandinGpu

from cluster import host, image
from cluster.engines import Cluster, Engine

# The first run on a machine makes the image.
pytestmark = pytest.mark.timeout(600)

SERVE = ["python3", "-m", "http.server", "8000"]
KERNEL_PORTS = dict(zip(("shell", "iopub", "stdin", "control", "hb"), range(5001, 5006), strict=True))


def port_of(container: Container, port: int) -> int:
    container.reload()
    bindings = container.ports[f"{port}/tcp"]
    assert bindings
    return int(bindings[0]["HostPort"])


def answers(url: str, timeout: float = 2) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def serve(engine: Engine) -> tuple[Container, str]:
    container = engine.client().containers.run(image.BASE, SERVE, detach=True, init=True, ports={"8000/tcp": None})
    url = f"http://{engine.ip}:{port_of(container, 8000)}/"
    host.wait_until(lambda: answers(url), 60, url)
    return container, url


def test_a_container_gets_exactly_the_gpus_asked_for(cluster: Cluster, kernel_image: str) -> None:
    for engine in cluster:
        asked = [engine.gpu_uuids[1]]
        output = engine.client(engine.url).containers.run(
            kernel_image,
            ["python3", "-c", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"],
            device_requests=[DeviceRequest(driver="nvidia", device_ids=asked, capabilities=[["gpu"]])],
            remove=True,
        )
        assert output.decode().split() == asked


def test_a_partition_and_its_end(cluster: Cluster) -> None:
    cut, other = cluster["gpu01"], cluster["gpu02"]
    _, url = serve(cut)
    _, other_url = serve(other)
    cut.partition()
    assert not answers(url)
    assert answers(other_url)
    with pytest.raises(docker.errors.DockerException):
        cut.client(cut.url, timeout=2)
    assert len(cut.client().containers.list()) == 1, "what runs there goes on"
    cut.heal()
    host.wait_until(lambda: answers(url), 15, url)
    cut.client(cut.url, timeout=5).ping()


def test_kill_and_start_again(cluster: Cluster, kernel_image: str) -> None:
    engine = cluster["gpu03"]
    container, url = serve(engine)
    engine.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((engine.ip, 2375), timeout=2)
    engine.start()
    assert engine.client().containers.get(str(container.id)).status == "exited"
    assert not answers(url)
    assert engine.client().containers.run(kernel_image, ["echo", "back"], remove=True) == b"back\n"


def test_power_loss_takes_the_containers_along(engine: Engine) -> None:
    _, url = serve(engine)
    engine.kill(containers=True)
    assert not answers(url)


def test_a_frozen_engine_accepts_and_never_answers(engine: Engine) -> None:
    engine.freeze()
    socket.create_connection((engine.ip, 2375), timeout=2).close()
    with pytest.raises(requests.exceptions.ReadTimeout):
        docker.APIClient(base_url=engine.url, timeout=1, version="1.41").ping()
    engine.thaw()
    assert engine.client().ping()


def test_each_test_finds_the_engine_clean(engine: Engine) -> None:
    assert engine.client().containers.list(all=True, ignore_removed=True) == []
    assert engine.pid


def test_a_kernel_answers_over_published_ports(engine: Engine, kernel_image: str, tmp_path: Path) -> None:
    info: dict[str, Any] = {
        "ip": "0.0.0.0",
        "transport": "tcp",
        "signature_scheme": "hmac-sha256",
        "key": secrets.token_hex(16),
    }
    inside = info | {f"{name}_port": port for name, port in KERNEL_PORTS.items()}
    start = time.monotonic()
    container = engine.client().containers.run(
        kernel_image,
        [
            "/bin/sh",
            "-c",
            'echo "$CONNECTION" > /tmp/kernel.json && exec python3 -m ipykernel_launcher -f /tmp/kernel.json',
        ],
        environment={"CONNECTION": json.dumps(inside)},
        ports={f"{port}/tcp": None for port in KERNEL_PORTS.values()},
        detach=True,
        init=True,
    )
    outside = info | {"ip": engine.ip}
    outside |= {f"{name}_port": port_of(container, port) for name, port in KERNEL_PORTS.items()}
    client = BlockingKernelClient()
    client.load_connection_info(outside)  # type: ignore[arg-type]
    client.start_channels()
    try:
        client.wait_for_ready(timeout=30)
        reply = client.execute_interactive("print(6 * 7)", timeout=20, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
    print(f"container to answering kernel: {time.monotonic() - start:.1f} s")


@pytest.mark.parametrize("name", image.VARIANTS)
def test_variants(engine: Engine, name: str) -> None:
    client = engine.client()
    made = image.variant(client, name)
    if name == "exits":
        container = client.containers.run(made, detach=True)
        assert container.wait()["StatusCode"] == 3
        assert container.logs().decode().splitlines()[-1] == "CUDA driver version is insufficient"
        return
    code = "import os; print(os.getuid()); import ipykernel; print(ipykernel.__version__)"
    container = client.containers.run(made, ["python3", "-c", code], detach=True)
    status, logs = container.wait()["StatusCode"], container.logs().decode()
    if name == "no-ipykernel":
        assert status == 1
        assert "ModuleNotFoundError" in logs
    if name == "old-ipykernel":
        assert logs.split() == ["0", "6.29.5"]
    if name == "non-root":
        assert logs.split()[0] == "1000"
    assert image.variant(client, name) == made, "made once"


def test_a_reporter_on_the_host_sees_its_gpus(engine: Engine) -> None:
    engine.set_gpus([StandinGpu("GPU-other")])
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"
    with engine.popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=20)[0] == b"GPU-other\n"


def test_tls(tls_engine: Engine) -> None:
    assert tls_engine.client(tls_engine.url).ping()
    plain = f"http://{tls_engine.ip}:2376/_ping"
    assert not answers(plain)
    with pytest.raises(OSError, match="certificate"):
        urllib.request.urlopen(plain.replace("http", "https"), timeout=5)


def test_ssh(engine: Engine) -> None:
    ssh = engine.start_ssh()
    try:
        found = subprocess.run(
            ["docker", "-H", ssh.url, "info", "-f", "{{.DockerRootDir}}"],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | ssh.environment,
            check=False,
        )
        assert found.stdout.strip() == engine.client().info()["DockerRootDir"], found.stderr
    finally:
        ssh.stop()


def test_a_run_that_was_killed_leaves_nothing_that_matters() -> None:
    """A second cluster comes up on the slot of one that was abandoned in full flight, and cleans up behind it."""
    abandoned = Cluster(["gpu01"])
    abandoned.set_up()
    serve(abandoned["gpu01"])
    abandoned["gpu01"].close_clients()
    dead, slot = abandoned["gpu01"]._process, abandoned.slot
    with slot.kept():  # else another run on this machine may take it up between its release and our look at it
        with Cluster(["gpu01"], slot=slot) as second:
            assert dead is not None
            assert dead.wait(60)
            assert second["gpu01"].client().containers.list(all=True, ignore_removed=True) == []
        assert not slot.directory.exists()
        assert not list(Path("/run/netns").glob(f"{slot.prefix}*"))
        assert not list(Path("/sys/class/net").glob(f"{slot.prefix}*"))
        assert f"{slot.data}/" not in Path("/proc/self/mountinfo").read_text()

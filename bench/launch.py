"""From a request to the first cell's result, against the floor: plain `docker create/start` + ipykernel, same engine.

    python bench/launch.py [--rounds 10] [--local]

Needs root and `dockerd` (it starts an engine as the tests do). One JSON line per figure; rounds of both are
interleaved, so that what else the machine does hits both alike. The ratio of the medians counts, the seconds are this
machine's.

`floor`    create and start a container that runs ipykernel on published ports, connect, kernel_info, one cell
`docker`   `Scheduler.request` → running → the same cell over the kernel's (encrypted) channels
`process`  the same, on this machine's process launcher; `local` is jupyter_client's own local kernel, its floor
"""

# ruff: noqa: E402

from __future__ import annotations

import sys

# `bench/select.py` bears a standard module's name, which asyncio and others import: keep them apart.
sys.path[:] = [path for path in sys.path if not path.rstrip("/").endswith("bench")]

import argparse
import asyncio
import contextlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cluster import image
from cluster.engines import Cluster, Engine
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from jupyter_gpufit.kernels.probe import Probe
from jupyter_gpufit.kernels.service import Service, open_service
from jupyter_gpufit.models import Request, State

NAMES = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
PORTS = dict(zip(NAMES, range(52001, 52006), strict=True))
TIMEOUT = 120.0


async def first_cell(client: AsyncKernelClient) -> None:
    """One cell on a kernel that answers; returns with its result."""
    reply = await client.execute_interactive("print(6 * 7)", timeout=TIMEOUT, output_hook=lambda _: None)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"the cell failed: {reply['content']}")


async def floor(engine: Engine) -> float:
    """Seconds of the least that can be done: two engine calls, ipykernel's start, one cell."""
    client = engine.client()
    kernel = AsyncKernelClient()
    kernel.session.key = b"bench"
    begin = time.perf_counter()
    connection = json.dumps(
        {**PORTS, "transport": "tcp", "ip": "0.0.0.0", "key": "bench", "signature_scheme": "hmac-sha256"}
    )
    container = await asyncio.to_thread(
        client.containers.create,
        image.BASE,
        ["python3", "-m", "ipykernel_launcher", "-f", "/connection.json"],
        ports={f"{port}/tcp": None for port in PORTS.values()},
        init=True,
    )
    try:
        await asyncio.to_thread(container.put_archive, "/", _tar("connection.json", connection.encode()))
        await asyncio.to_thread(container.start)
        await asyncio.to_thread(container.reload)
        published = container.attrs["NetworkSettings"]["Ports"]
        info = {name: int(published[f"{port}/tcp"][0]["HostPort"]) for name, port in PORTS.items()}
        info |= {"transport": "tcp", "ip": engine.ip, "key": b"bench", "signature_scheme": "hmac-sha256"}
        with Probe(info) as probe:  # as soon as it can: jupyter_client alone would ask again only after a second
            await probe.answered()
        kernel.load_connection_info(info)
        kernel.start_channels()
        await kernel.wait_for_ready(timeout=TIMEOUT)
        await first_cell(kernel)
        return time.perf_counter() - begin
    finally:
        kernel.stop_channels()
        await asyncio.to_thread(container.remove, force=True)
        engine.close_clients()


async def ours(service: Service) -> float:
    """Seconds from the request to the first cell's result; the release is not counted."""
    begin = time.perf_counter()
    allocation = await service.scheduler.request(Request(gpus=1, memory=2**30), service.owner)
    try:
        while allocation.state is not State.RUNNING:
            if allocation.state is State.ENDED:
                raise RuntimeError(f"the start failed: {allocation.message}")
            allocation = await service.scheduler.changed(allocation.id, allocation.version, TIMEOUT)
        client = service.host.client(allocation.kernel_id)  # type: ignore[attr-defined]
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=TIMEOUT)
            await first_cell(client)
        finally:
            client.stop_channels()
        return time.perf_counter() - begin
    finally:
        allocation = await service.scheduler.release(allocation.id)
        while allocation.state is not State.ENDED:
            allocation = await service.scheduler.changed(allocation.id, allocation.version, TIMEOUT)


async def local() -> float:
    """Seconds of jupyter_client's own local kernel."""
    begin = time.perf_counter()
    manager = AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=TIMEOUT)
        await first_cell(client)
        return time.perf_counter() - begin
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)


async def compare(pairs: dict[str, Callable[[], Awaitable[float]]], rounds: int) -> None:
    """Interleave the ways of `pairs` (the first is the floor), after one warm-up of each, and print the figures."""
    seconds: dict[str, list[float]] = {name: [] for name in pairs}
    for turn in range(rounds + 1):
        for name, way in pairs.items():
            taken = await way()
            if turn:
                seconds[name].append(taken)
    names = list(pairs)
    for name in names:
        print(json.dumps({"figure": f"launch.{name}", "median_s": round(median(seconds[name]), 3), "rounds": rounds}))
    for name in names[1:]:
        ratio = median(seconds[name]) / median(seconds[names[0]])
        print(json.dumps({"figure": f"launch.{name}/{names[0]}", "ratio": round(ratio, 3)}), flush=True)


@contextlib.asynccontextmanager
async def opened(inventory: str):
    """A service over an inventory of that text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gpufit.toml")
        path.write_text(inventory)  # noqa: ASYNC240
        service = await open_service(path)
        try:
            await service.settled()
            yield service
        finally:
            await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--local", action="store_true", help="only what needs no engine")
    options = parser.parse_args()
    asyncio.run(on_processes(options.rounds))
    if options.local:
        return
    with Cluster(["gpu01"]) as cluster:
        engine = cluster["gpu01"]
        token = Path(engine.directory, "token")
        token.write_text("bench" * 8)
        token.chmod(0o600)
        command = ["jupyter_gpufit.cli.app", "reporter", "--host", "0.0.0.0", "--token-file", str(token)]
        reporter = engine.popen([sys.executable, "-m", *command])
        try:
            asyncio.run(on_docker(engine, token, options.rounds))
        finally:
            reporter.terminate()
            reporter.wait()


async def on_processes(rounds: int) -> None:
    process = '[[node]]\nname = "here"\nreport = "simulated:2xA100-40GB"\ndocker = "process"\n'
    async with opened(process) as service:
        await compare({"local": local, "process": lambda: ours(service)}, rounds)


async def on_docker(engine: Engine, token: Path, rounds: int) -> None:
    inventory = f"""
        [[node]]
        name = "{engine.name}"
        docker = "{engine.url}"
        insecure = true
        report = "http://{engine.ip}:9477"
        report_token_file = "{token}"
        address = "{engine.ip}"
        image = "{image.BASE}"
    """
    async with opened(inventory) as service:
        usable = asyncio.Event()
        service.on_node_change(lambda _, node: usable.set() if node and not node.reason else None)
        await usable.wait()
        await compare({"floor": lambda: floor(engine), "docker": lambda: ours(service)}, rounds)


def _tar(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o644
        tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


if __name__ == "__main__":
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    main()

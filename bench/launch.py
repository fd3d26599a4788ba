"""From a request to the first cell's result, against its floor: plain `docker create/start` + ipykernel, same engine.

    python bench/launch.py [--rounds 10] [--quick] [--local]

Needs root and `dockerd` (it starts an engine as the tests do). Rounds of all are interleaved, so that what else the
machine does hits all alike. The ratio of the medians counts, the seconds are this machine's.

`floor`    create and start a container that runs ipykernel on published ports, connect, one cell
`docker`   `Scheduler.request` → running → the same cell over the kernel's (encrypted) channels
`gateway_provisioners`  its Docker provisioner, with the same image, if it is there (launch_gateway.py)
`process`  as `docker`, on this machine's process launcher; `local` is jupyter_client's own local kernel, its floor
`server.process`, `server.local`  the same by a Jupyter server: POST, then the cell by the kernel's websocket

The `phases` are the milliseconds that each step took (medians), so that what is above the floor can be seen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import figures
import launch_gateway
import launch_server
from cluster import image
from cluster.engines import Cluster, Engine, missing
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from launch_cell import TIMEOUT, Steps, first_cell

from jupyter_gpufit.kernels import provisioner
from jupyter_gpufit.kernels.grant import Grant
from jupyter_gpufit.kernels.probe import Probe
from jupyter_gpufit.kernels.service import Service, open_service
from jupyter_gpufit.models import Request, State

NAMES = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
PORTS = dict(zip(NAMES, range(52001, 52006), strict=True))
GOALS = {"docker/floor": 1.15, "process/local": 1.15}
SKIPPED = 77
PROCESSES = '[[node]]\nname = "here"\nreport = "simulated:2xA100-40GB"\ndocker = "process"\n'
REST = 0.9
"""Seconds between two rounds: what one leaves to be done (and what gpufit makes ready for the next) is not to fall into
the time of another."""
Way = Callable[[], Awaitable[dict[str, float]]]
"""One round: the seconds that each of its steps took."""


async def floor(engine: Engine) -> dict[str, float]:
    """The least that can be done: four engine calls, ipykernel's start, one cell."""
    client, kernel = engine.client().api, AsyncKernelClient()
    connection = json.dumps(
        {**PORTS, "transport": "tcp", "ip": "0.0.0.0", "key": "bench", "signature_scheme": "hmac-sha256"}
    )
    ports = {f"{port}/tcp": None for port in PORTS.values()}
    steps = Steps()
    made = await asyncio.to_thread(
        client.create_container,
        image.BASE,
        ["python3", "-m", "ipykernel_launcher", "-f", "/connection.json"],
        ports=[(port, "tcp") for port in PORTS.values()],
        host_config=client.create_host_config(port_bindings=ports, init=True),
    )
    steps.done("created")
    try:
        await asyncio.to_thread(client.put_archive, made["Id"], "/", _tar("connection.json", connection.encode()))
        await asyncio.to_thread(client.start, made["Id"])
        inspected = await asyncio.to_thread(client.inspect_container, made["Id"])
        steps.done("started")
        published = inspected["NetworkSettings"]["Ports"]
        info = {name: int(published[f"{port}/tcp"][0]["HostPort"]) for name, port in PORTS.items()}
        info |= {"transport": "tcp", "ip": engine.ip, "key": b"bench", "signature_scheme": "hmac-sha256"}
        with Probe(info) as probe:  # as soon as it can: jupyter_client alone would ask again only after a second
            await probe.answered()
        steps.done("answers")
        kernel.load_connection_info(info)
        await first_cell(kernel)
        steps.done("result")
        return steps.taken
    finally:
        await asyncio.to_thread(client.remove_container, made["Id"], force=True)
        engine.close_clients()


async def ours(service: Service) -> dict[str, float]:
    """From the request to the first cell's result; the release is not counted."""
    with watched() as steps:
        allocation = await service.scheduler.request(Request(gpus=1, memory=2**30), service.owner)
        steps.done("placed")
        try:
            while allocation.state is not State.RUNNING:
                if allocation.state is State.ENDED:
                    raise RuntimeError(f"the start failed: {allocation.message}")
                allocation = await service.scheduler.changed(allocation.id, allocation.version, TIMEOUT)
            steps.done("running")
            await first_cell(service.host.client(allocation.kernel_id))  # type: ignore[attr-defined]
            steps.done("result")
            return steps.taken
        finally:
            allocation = await service.scheduler.release(allocation.id)
            while allocation.state is not State.ENDED:
                allocation = await service.scheduler.changed(allocation.id, allocation.version, TIMEOUT)


@contextlib.contextmanager
def watched() -> Iterator[Steps]:
    """In here the ends of a start's steps are noted."""
    steps = Steps()

    def noting(step: str, work: Any) -> Any:
        async def noted(*args: Any, **options: Any) -> Any:
            result = await work(*args, **options)
            steps.done(step)
            return result

        return noted

    with (
        mock.patch.object(Grant, "prepared", noting("created", Grant.prepared)),
        mock.patch.object(Grant, "launch", noting("started", Grant.launch)),
        mock.patch.object(provisioner, "wait_for_answer", noting("answers", provisioner.wait_for_answer)),
    ):
        yield steps


async def local() -> dict[str, float]:
    """jupyter_client's own local kernel, asked as eagerly as ours is."""
    steps, manager = Steps(), AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel()
    steps.done("started")
    try:
        with Probe(manager.get_connection_info()) as probe:
            await probe.answered()
        steps.done("answers")
        await first_cell(manager.client())
        steps.done("result")
        return steps.taken
    finally:
        await manager.shutdown_kernel(now=True)


async def compare(ways: dict[str, Way], rounds: int, pairs: Sequence[tuple[str, str]]) -> None:
    """Interleave the ways, after one warm-up of each, and print the figures: of `pairs` the ratio."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            await asyncio.sleep(REST)
            steps = await way()
            if turn:
                taken[name].append(steps)
    totals = {name: median(sum(steps.values()) for steps in each) for name, each in taken.items()}
    for name, each in taken.items():
        if not (name == "local" and "docker" in ways):  # it has been told
            figures.say(f"launch.{name}", median_s=round(totals[name], 3), rounds=rounds)
            phases = {f"{step}_ms": round(1000 * median(steps[step] for steps in each), 1) for step in each[0]}
            if len(phases) > 1:
                figures.say(f"launch.{name}.phases", **phases)
    for name, other in pairs:
        if name in totals and other in totals:
            pair = f"{name}/{other}"
            goal = {"ratio": GOALS[pair]} if pair in GOALS else None
            figures.say(f"launch.{pair}", goal=goal, ratio=round(totals[name] / totals[other], 3))


@contextlib.asynccontextmanager
async def opened(inventory: str) -> AsyncIterator[Service]:
    """A service over an inventory of that text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gpufit.toml")
        path.write_text(inventory)  # noqa: ASYNC240
        with mock.patch.dict(os.environ, GPUFIT_CLAIMS_DIR=f"{folder}/claims"):  # nobody else's are to be read
            service = await open_service(path)
            try:
                await service.settled()
                yield service
            finally:
                await service.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--local", action="store_true", help="only what needs no engine")
    options = parser.parse_args()
    rounds = 4 if options.quick else options.rounds
    asyncio.run(on_processes(rounds))
    asyncio.run(on_server(rounds))
    if options.local:
        return 0
    if why := missing():
        print(f"launches in an engine: {why}", file=sys.stderr)
        return SKIPPED
    with Cluster(["gpu01"]) as cluster, tempfile.TemporaryDirectory() as folder:
        engine = cluster["gpu01"]
        token = Path(engine.directory, "token")
        token.write_text("bench" * 8)
        token.chmod(0o600)
        command = ["jupyter_gpufit.cli.app", "reporter", "--host", "0.0.0.0", "--token-file", str(token)]
        reporter = engine.popen([sys.executable, "-m", *command], stdout=sys.stderr.fileno())
        try:
            with contextlib.ExitStack() as stack:
                gateway = None
                if found := launch_gateway.python():
                    made = launch_gateway.Gateway(engine, image.BASE, found)
                    gateway = stack.enter_context(made.driven(Path(folder)))
                else:
                    print(f"gateway_provisioners left out: {launch_gateway.MISSING}", file=sys.stderr)
                asyncio.run(on_docker(engine, token, rounds, gateway))
        finally:
            reporter.terminate()
            reporter.wait()
    return 0


async def on_processes(rounds: int) -> None:
    async with opened(PROCESSES) as service:
        await compare({"local": local, "process": lambda: ours(service)}, rounds, [("process", "local")])


async def on_server(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with launch_server.front(Path(folder), PROCESSES) as one:
            ways: dict[str, Way] = {
                "server.local": lambda: launch_server.plain(one),
                "server.process": lambda: launch_server.allocated(one),
            }
            await compare(ways, rounds, [("server.process", "server.local")])


async def on_docker(engine: Engine, token: Path, rounds: int, gateway: launch_gateway.Gateway | None) -> None:
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
        ways: dict[str, Way] = {"floor": lambda: floor(engine), "docker": lambda: ours(service), "local": local}
        if gateway is not None:
            ways["gateway_provisioners"] = gateway.round
        others = ("floor", "gateway_provisioners", "local")
        pairs = [("gateway_provisioners", "floor"), *(("docker", other) for other in others)]
        await compare(ways, rounds, pairs)


def _tar(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o644
        tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


if __name__ == "__main__":
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    raise SystemExit(main())

"""What the launchers' tests share: a place to launch on (processes here, or a real engine), and a watched launcher."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient

from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Claim, Endpoint, Launch, Progress, Unit
from jupyter_gpufit.scheduling.logs import text_of

PATIENCE = 60.0
_numbers = itertools.count(1)


async def _eventually(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """What `condition` returns once that is true."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {patience:.0f} s in vain for {what}"
        await asyncio.sleep(0.02)
    return value


@dataclass
class Watched:
    """A launcher, opened, and what it has told."""

    launcher: Any
    exits: list[tuple[Unit, int, str]] = field(default_factory=list)
    claims: list[Sequence[Claim]] = field(default_factory=list)
    hosts: list[tuple[float | None, int | None]] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    scheduler: str = "s1"
    uuids: Sequence[str] = ()

    @property
    def held(self) -> set[str]:
        """Allocations that hold something, as it said last."""
        return {claim.allocation for claim in self.claims[-1]} if self.claims else set()

    def launch(self, *uuids: str, **wishes: Any) -> Launch:
        number = next(_numbers)
        wishes = {"allocation": f"a{number}", "name": f"gpufit-test-{os.getpid()}-{number}", "owner": "ann"} | wishes
        return Launch(scheduler=self.scheduler, gpus=dict.fromkeys(uuids, 2**30), **wishes)

    async def prepare(self, *uuids: str, **wishes: Any) -> Unit:
        return await self.launcher.prepare(self.launch(*uuids, **wishes), self.progress.append)

    async def run(self, unit: Unit, code: str, files: Mapping[str, bytes] | None = None, **env: str) -> Endpoint:
        """Start Python code in it."""
        return await self.launcher.start(unit, ["{python}", "-c", code], files or {}, env)

    async def printed(self, unit: Unit, tail: int | None = None, after: str = "") -> str:
        return text_of(await self.launcher.logs(unit, tail, after))

    async def said(self, unit: Unit, words: str) -> str:
        """Its logs, once these words are in them."""
        deadline = time.monotonic() + PATIENCE
        while words not in (logs := await self.printed(unit)):
            assert time.monotonic() < deadline, f"{words!r} never came; its logs:\n{logs}"
            assert self.launcher.exit_code(unit) is None, f"it {self.launcher.describe_exit(unit)}; its logs:\n{logs}"
            await asyncio.sleep(0.05)
        return logs

    async def ended(self, unit: Unit) -> tuple[int, str]:
        """Exit code and sentence, once it ended by itself."""
        found = await _eventually(lambda: [end for end in self.exits if end[0].id == unit.id], f"{unit.name} to end")
        assert len(found) == 1
        return found[0][1:]


@dataclass
class Place:
    """Where to launch."""

    spec: NodeSpec
    uuids: Sequence[str]
    left: Callable[[], Sequence[str]]
    """What is left of any unit here, for people."""
    engine: Any = None

    @asynccontextmanager
    async def opened(self, scheduler: str = "s1", **changes: Any) -> AsyncIterator[Watched]:
        """A launcher of a scheduler of its own."""
        spec = NodeSpec(**{name: getattr(self.spec, name) for name in NodeSpec.__struct_fields__} | changes)
        watched = Watched(make_launcher(spec), scheduler=scheduler, uuids=self.uuids)
        await watched.launcher.open(
            lambda *end: watched.exits.append(end),
            watched.claims.append,
            on_host=lambda *host: watched.hosts.append(host),
        )
        try:
            await _eventually(lambda: watched.claims, "the first claims")
            yield watched
        finally:
            await watched.launcher.close()

    async def clean(self) -> None:
        """Nothing is left here."""
        await _eventually(lambda: not self.left(), "nothing to be left")


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """`await eventually(condition, what)`: what `condition` returns once that is true."""
    return _eventually


@pytest.fixture
def claims_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "claims"
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(directory))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return directory


@pytest.fixture
def processes(claims_directory: Path, tmp_path: Path) -> Place:
    """Processes on this machine, whose claims and files are the test's own."""

    def left() -> list[str]:
        return [str(path) for path in (*claims_directory.glob("*"), *tmp_path.glob("gpufit-*"))]

    return Place(NodeSpec(name="here", report="simulated:4xA100-40GB"), [f"GPU-{n}" for n in range(4)], left)


@pytest.fixture
def containers(engine: Any, kernel_image: str) -> Place:
    """A real Docker engine, over the network."""

    def left() -> list[str]:
        return [item["Names"][0] for item in engine.client().api.containers(all=True)]

    spec = NodeSpec(name=engine.name, docker=engine.url, insecure=True, image=kernel_image, pull="never")
    return Place(spec, engine.gpu_uuids, left, engine)


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def place(request: pytest.FixtureRequest) -> Place:
    """Either."""
    return request.getfixturevalue("processes" if request.param == "process" else "containers")


@pytest.fixture
async def watched(place: Place) -> AsyncIterator[Watched]:
    async with place.opened() as watched:
        yield watched


@pytest.fixture
def kernel() -> Iterator[Callable[[Watched, Unit], Awaitable[AsyncKernelClient]]]:
    """Starts ipykernel in a prepared unit, and returns a client for which it answers."""
    clients: list[AsyncKernelClient] = []

    async def start(watched: Watched, unit: Unit) -> AsyncKernelClient:
        names = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
        common: dict[str, Any] = {"transport": "tcp", "key": "secret", "signature_scheme": "hmac-sha256"}
        if unit.encrypt:
            public, secret = (key.decode() for key in zmq.curve_keypair())
            common |= {"curve_publickey": public, "curve_secretkey": secret}
        inner = common | dict(zip(names, unit.inner_ports, strict=True)) | {"ip": unit.inner_ip}
        command = ["{python}", "-m", "ipykernel_launcher", "-f", "{gpufit}/kernel.json"]
        endpoint = await watched.launcher.start(unit, command, {"kernel.json": json.dumps(inner).encode()}, {})
        client = AsyncKernelClient()
        outer = common | dict(zip(names, endpoint.ports, strict=True)) | {"ip": endpoint.host, "key": b"secret"}
        client.load_connection_info(outer)
        client.start_channels(hb=False)  # the heart beats late on a busy machine, and then it is said to be dead
        clients.append(client)
        await client.wait_for_ready(timeout=PATIENCE)
        return client

    yield start
    for client in clients:
        client.stop_channels()
        client.context.destroy(linger=0)


@pytest.fixture
def evaluate() -> Callable[[AsyncKernelClient, str], Awaitable[str]]:
    """The `repr` of an expression's value in a kernel."""

    async def evaluate(client: AsyncKernelClient, expression: str) -> str:
        wanted = {"it": expression}
        reply = await client.execute_interactive("", user_expressions=wanted, timeout=PATIENCE, output_hook=print)
        value = reply["content"]["user_expressions"]["it"]
        assert value["status"] == "ok", value
        return value["data"]["text/plain"]

    return evaluate

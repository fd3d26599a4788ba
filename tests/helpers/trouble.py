"""What `soak.py` does to a cluster and its server, and how it looks at them meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import secrets
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
from cluster.engines import Cluster, Engine

from .frontend import FrontEnd
from .jupyter import NOT_NEEDED
from .jupyterserver import ServerProcess, free_port, server_process

__all__ = ["FAULTS", "Chaos", "Engines", "Faults", "Health", "Server"]

FAULTS = ("server killed", "engine killed", "partition")
GPUS = "io.github.jupyter-gpufit.gpus"
LOST_AFTER = 8.0  # s; some partitions are longer
AFTERMATH = 25.0  # s; after a fault, in which what fails is explained by it


class Server:
    """The same person's server at the same address, life after life."""

    def __init__(self, home: Path, inventory: Path) -> None:
        self.home = home
        self._inventory, self._port, self._token = inventory, free_port(), secrets.token_hex(16)
        self._stack = AsyncExitStack()
        self.lives = 0
        self.process: ServerProcess

    async def start(self) -> None:
        self.lives += 1
        extensions = dict.fromkeys(NOT_NEEDED, False) | {"helpers.insight": True}
        self.process = await self._stack.enter_async_context(
            server_process(
                self.home,
                inventory=self._inventory,
                config={
                    "ServerApp.jpserver_extensions": extensions,
                    "LocalScheduler.lost_after": LOST_AFTER,
                    "LocalScheduler.keep_ended": 60,  # so that what is remembered of them does not grow
                },
                environment={"PYTHONPATH": str(Path(__file__).parents[1])},
                port=self._port,
                token=self._token,
                log_name=f"server-{self.lives}.log",
            )
        )

    async def kill(self) -> None:
        """`kill -9`."""
        await self.process.kill()
        await self._stack.aclose()

    async def stop(self) -> None:
        """As Ctrl-C twice does."""
        await self._stack.aclose()

    def front(self) -> FrontEnd:
        return FrontEnd(f"http://127.0.0.1:{self._port}/", self._token)

    @property
    def logs(self) -> str:
        """What all of them printed."""
        return "".join(self.home.joinpath(f"server-{n + 1}.log").read_text() for n in range(self.lives))


class Faults:
    """What was done to the cluster, and when; so that what fails by itself can be told from the rest."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._spans: list[tuple[float, float, str]] = []  # begin, end, node ("": the server)

    @contextlib.contextmanager
    def one(self, kind: str, node: str = "") -> Any:
        self.counts[kind] += 1
        number = len(self._spans)
        began = time.monotonic()
        self._spans.append((began, float("inf"), node))
        try:
            yield
        finally:
            self._spans[number] = (began, time.monotonic() + AFTERMATH, node)

    def explain(self, since: float, node: str | None) -> bool:
        """Whether something was done to that node or the server after `since`, or just before."""
        return any(end >= since and where in ("", node) for _, end, where in self._spans)


class Chaos:
    """Does it."""

    def __init__(self, cluster: Cluster, server: Server, faults: Faults, luck: random.Random) -> None:
        self._cluster, self._server, self._faults, self._luck = cluster, server, faults, luck
        self.spare_server = False
        """Let the server live from now on (its memory is looked at)."""

    async def run(self) -> None:
        kinds = [self._kill_server, self._kill_engine, self._partition, self._partition]
        while True:
            for kind in kinds:
                await asyncio.sleep(self._luck.uniform(0.5, 3))
                await kind()
            self._luck.shuffle(kinds)

    async def _partition(self) -> None:
        engine = self._luck.choice(list(self._cluster))
        with self._faults.one("partition", engine.name):
            engine.partition()
            try:
                await asyncio.sleep(self._luck.choice((0.5, 2, 5, 1.5 * LOST_AFTER)))
            finally:
                engine.heal()

    async def _kill_engine(self) -> None:
        engine = self._luck.choice(list(self._cluster))
        with self._faults.one("engine killed", engine.name):
            await asyncio.to_thread(engine.kill)
            try:
                await asyncio.sleep(self._luck.choice((0, 1, 3)))
            finally:
                await asyncio.shield(asyncio.to_thread(engine.start))

    async def _kill_server(self) -> None:
        if self.spare_server:
            return
        with self._faults.one("server killed"):
            await self._server.kill()
            await asyncio.sleep(self._luck.choice((0, 1, 3)))
            await self._server.start()


class Engines:
    """Asks the engines, by their unix sockets, who holds what."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.looks = 0
        self.twice: list[str] = []
        """GPUs that were seen in two running containers, and in which."""

    async def watch(self) -> None:
        while True:
            for engine in self._cluster:
                self._check(engine, await asyncio.to_thread(_containers, engine, False))
            self.looks += 1
            await asyncio.sleep(0.1)

    def _check(self, engine: Engine, running: list[dict[str, Any]]) -> None:
        holders: dict[str, list[str]] = {}
        for container in running:
            for gpu in json.loads(container["Labels"].get(GPUS, "{}")):
                holders.setdefault(gpu, []).append(container["Names"][0])
        self.twice += [f"{engine.name}: {gpu}: {names}" for gpu, names in holders.items() if len(names) > 1]

    def containers(self) -> list[str]:
        """Names of all that there are, in whatever state."""
        return [each["Names"][0] for engine in self._cluster for each in _containers(engine, True)]

    def processes(self) -> list[str]:
        """Command lines of what runs in containers, or was left by one."""
        groups = {group for engine in self._cluster for group in Path("/sys/fs/cgroup").glob(f"**/{engine.netns}")}
        files = [file for group in groups for file in group.rglob("cgroup.procs")]
        found = [_command(pid) for pid in sorted({int(pid) for file in files for pid in file.read_text().split()})]
        # A dockerd that is killed while it makes a container leaves what was to become it: no container, and not ours.
        return [command for command in found if not command.endswith(": runc init")]


def _command(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} of {process.ppid()}: {' '.join(process.cmdline())}"
    except psutil.Error as error:
        return f"{pid}: {error}"


def _containers(engine: Engine, all: bool) -> list[dict[str, Any]]:
    """(Not with docker-py, which leaves a socket open when an engine is down.)"""
    connection = http.client.HTTPConnection("engine", timeout=30)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        connection.sock.connect(str(engine.socket))
        connection.request("GET", f"/v1.41/containers/json?all={int(all)}")
        listed: list[dict[str, Any]] = json.loads(connection.getresponse().read())
        return listed
    except (OSError, http.client.HTTPException, ValueError):
        return []  # it is down
    finally:
        connection.close()


class Health:
    """Of the server, over time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.samples: list[tuple[int, float, int]] = []
        """Of which life, when, and bytes."""

    async def watch(self) -> None:
        while True:
            with contextlib.suppress(psutil.Error):
                now = psutil.Process(self._server.process.pid).memory_info().rss
                self.samples.append((self._server.lives, time.monotonic(), now))
            await asyncio.sleep(0.25)

    def growth(self) -> float | None:
        """Memory at the end of the second half of the last life, as a ratio to that at its beginning."""
        last = [rss for life, _, rss in self.samples if life == self._server.lives]
        half = last[len(last) // 2 :]
        if len(half) < 8:
            return None
        quarter = len(half) // 4
        return mean(half[-quarter:]) / mean(half[:quarter])

    async def look(self, front: FrontEnd) -> dict[str, Any]:
        """What the server holds now."""
        process = psutil.Process(self._server.process.pid)
        inside = (await front.api("GET", "insight", expect=200)).json
        with process.oneshot():
            return {
                "fds": process.num_fds(),
                "sockets": len(process.net_connections("all")),
                "children": len(process.children(recursive=True)),
                "memory": process.memory_info().rss,
                **inside,
            }

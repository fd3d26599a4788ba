"""Servers that die where they are told, for `test_crash.py`.

async with Zygote.started() as zygote:
    server = await Server.start(zygote, home, inventory, "first", kill="launch: before Prepare #1")
    assert await server.ended == -9
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from helpers.frontend import FrontEnd, eventually
from helpers.jupyterserver import directories, free_port

__all__ = ["Server", "Zygote"]

TESTS = Path(__file__).parents[1]


class Zygote:
    """The process that all servers are forks of (`zygote.py`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._forked: dict[str, asyncio.Future[int]] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator[Zygote]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crash.zygote"),
            env=_environment() | {"PYTHONPATH": str(TESTS)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        zygote = cls(process)
        hearing = asyncio.create_task(zygote._hear())
        try:
            yield zygote
        finally:
            for pid, end in zygote._ends.items():
                if not end.done():
                    os.kill(pid, signal.SIGKILL)
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await hearing

    async def fork(self, order: dict[str, Any]) -> tuple[int, asyncio.Future[int]]:
        """A server: its pid, and its exit code once it ended."""
        assert self._process.stdin is not None
        forked = self._forked[order["log"]] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        pid = await forked
        return pid, self._end(pid)

    def _end(self, pid: int) -> asyncio.Future[int]:
        return self._ends.setdefault(pid, asyncio.get_running_loop().create_future())

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            if "status" in said:
                self._end(said["pid"]).set_result(said["status"])
            else:
                self._forked.pop(said["log"]).set_result(said["pid"])


class Server:
    """A Jupyter server of somebody who keeps everything in `home`."""

    def __init__(self, home: Path, name: str, url: str, token: str) -> None:
        self.home, self.url, self.token = home, url, token
        self._log, self._steps = home / f"{name}.log", home / f"{name}.steps"
        self.pid = 0
        self.ended: asyncio.Future[int]
        """Its exit code, once it has one."""

    @classmethod
    async def start(cls, zygote: Zygote, home: Path, inventory: Path, name: str, kill: str | None = None) -> Server:
        """`name`: of this one among those of `home`; `kill`: the moment to die at. Returns before it listens."""
        port, token = free_port(), secrets.token_hex(16)
        server = cls(home, name, f"http://127.0.0.1:{port}/", token)
        order = {
            "home": str(home),
            "log": str(server._log),
            "steps": str(server._steps),
            "kill": kill,
            "environment": _environment() | directories(home),
            "token": token,
            "port": port,
            "inventory": str(inventory),
        }
        server.pid, server.ended = await zygote.fork(order)
        return server

    def front(self) -> FrontEnd:
        """`async with server.front() as front:`"""
        return FrontEnd(self.url, self.token)

    async def ready(self, front: FrontEnd) -> dict[str, Any]:
        """The node, once the server and its scheduler are there and the node has reported."""

        async def answers() -> Any:
            assert not self.ended.done(), f"the server ended with {self.ended.result()}; its log:\n{self.log}"
            try:
                answer = await front.gpufit("GET", "nodes")
            except OSError:
                return None
            assert answer.status in (200, 503), answer
            nodes = answer.json["nodes"] if answer.status == 200 else []
            return nodes[0] if nodes and nodes[0]["reason"] is None else None

        node: dict[str, Any] = await eventually(answers, step=0.02)
        return node

    async def stop(self) -> int:
        """As Ctrl-C twice does. Its exit code."""
        if not self.ended.done():
            os.kill(self.pid, signal.SIGTERM)
        return await asyncio.wait_for(asyncio.shield(self.ended), 60)

    async def kill(self) -> None:
        """`kill -9`."""
        if not self.ended.done():
            os.kill(self.pid, signal.SIGKILL)
        await self.ended

    @property
    def log(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def moments(self) -> list[str]:
        """All that it came by, in order."""
        return self._steps.read_text().splitlines() if self._steps.exists() else []


def _environment() -> dict[str, str]:
    ours = ("JUPYTER", "JPY_", "GPUFIT_", "PYTEST")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}

"""Real Jupyter servers for tests: in this process (its insides can be reached), or in one of its own (can be killed).

async with server_here(tmp_path, config) as here:          # here.app is the ServerApp, here.url, here.token
async with server_process(tmp_path, inventory=...) as it:   # it.pid, await it.stop(), it.kill(), it.log
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from .frontend import FrontEnd, eventually
from .jupyter import NOT_NEEDED

__all__ = ["Here", "ServerProcess", "directories", "free_port", "server_here", "server_process"]


def directories(home: Path) -> dict[str, str]:
    """Environment variables that keep Jupyter's and IPython's files in `home`."""
    places = {
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "IPYTHONDIR": home / "ipython",
    }
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    return {name: str(place) for name, place in places.items()} | {"JUPYTER_PLATFORM_DIRS": "0"}


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_ports = itertools.cycle(random.sample(range(10_000 + 600 * _WORKER, 10_600 + 600 * _WORKER), 600))


def free_port() -> int:
    """A port that nobody has now, and that neither the system nor a launcher gives to anybody; nor another worker, who
    would then ask our server for their own, nor this one again so soon."""
    while True:
        port = next(_ports)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


class Here:
    """A Jupyter server on this event loop."""

    def __init__(self, app: ServerApp) -> None:
        self.app = app
        self.token: str = app.identity_provider.token
        self.url = f"http://127.0.0.1:{app.port}{app.base_url}"

    def front(self, **options: Any) -> FrontEnd:
        """`async with here.front() as front:`"""
        return FrontEnd(self.url, self.token, **options)


@asynccontextmanager
async def server_here(
    home: Path,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    extension: bool = False,
    start: bool = True,
    base_url: str = "/base/",
) -> AsyncIterator[Here]:
    """A Jupyter server on this event loop; `extension`: with ours; `start=False`: loaded, but not started yet.

    The environment has to keep Jupyter's files in `home` already (`directories`).
    """
    root = home / "root"
    root.mkdir(exist_ok=True)
    settings = Config(config or {})
    settings.ServerApp.jpserver_extensions = {"jupyter_gpufit": extension}
    settings.ServerApp.reraise_server_extension_failures = True
    settings.IdentityProvider.token = secrets.token_hex(16)
    ServerApp.clear_instance()
    port = free_port()
    app = ServerApp.instance(
        config=settings,
        ip="127.0.0.1",
        port=port,
        port_retries=0,
        base_url=base_url,
        root_dir=str(root),
        open_browser=False,
        allow_root=True,
        log_level="DEBUG",
    )
    app.init_signal = lambda: None  # signals are pytest's
    logging.getLogger("tornado.access").propagate = False
    try:
        app.initialize(argv=[], find_extensions=False)
        app.log.propagate = True
        app.log.handlers = []
        app.start_app()
        if start:
            await app.extension_manager.start_all_extensions()
        await eventually(lambda: app.http_server._sockets)  # it listens from the loop's next turn on
        yield Here(app)
    finally:
        await app._cleanup()
        app.session_manager.connection.close()
        await app.http_server.close_all_connections()
        app.kernel_manager.context.destroy(linger=0)
        ServerApp.clear_instance()


class ServerProcess:
    """`jupyter server` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, token: str, log_file: Path) -> None:
        self.process, self.url, self.token = process, url, token
        self.log_file = log_file

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What the server printed."""
        return self.log_file.read_text(errors="replace")

    def front(self, **options: Any) -> FrontEnd:
        """`async with server.front() as front:`"""
        return FrontEnd(self.url, self.token, **options)

    async def stop(self, within: float = 60.0) -> None:
        """As Ctrl-C twice does: the server shuts its kernels down and gives its GPUs back."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), within)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
                raise AssertionError(f"the server did not stop within {within:.0f} s; its log:\n{self.log}") from None

    async def kill(self) -> None:
        """`kill -9`: nothing is cleaned up."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def server_process(
    home: Path,
    *,
    inventory: Path | None = None,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    lab: bool = False,
    port: int | None = None,
    token: str | None = None,
    log_name: str = "server.log",
) -> AsyncIterator[ServerProcess]:
    """Start `jupyter server` (`lab`: `jupyter lab`) with our extension and wait until its scheduler answers.

    All its files are in `home`; a second call with the same `home` is the same person's next server. `config`: traits
    as on the command line, such as `{"GpufitExtension.owner": "ada"}`. On leaving it is stopped, if it still runs.
    """
    root = home / "root"
    root.mkdir(parents=True, exist_ok=True)
    if port is None:
        port = free_port()
    token = token or secrets.token_hex(16)
    traits: dict[str, Any] = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.root_dir": root,
        "ServerApp.allow_root": True,
        **({} if lab else {"ServerApp.jpserver_extensions": dict.fromkeys(NOT_NEEDED, False)}),
        **({"GpufitExtension.inventory": inventory} if inventory is not None else {}),
        **(config or {}),
    }
    command = [sys.executable, "-m", "jupyterlab" if lab else "jupyter_server"]
    command += [f"--{name}={value}" for name, value in traits.items()]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_", "GPUFIT_"))}
    env |= directories(home) | {"JUPYTER_TOKEN": token, "PYTHONUNBUFFERED": "1"} | dict(environment or {})
    log_file = home / log_name
    with log_file.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=root, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    server = ServerProcess(process, f"http://127.0.0.1:{port}/", token, log_file)
    try:
        await _until_ready(server)
        yield server
    finally:
        await server.stop()


async def _until_ready(server: ServerProcess) -> None:
    async with server.front() as front:

        async def ready() -> bool:
            assert server.process.returncode is None, f"the server ended; its log:\n{server.log}"
            try:
                answer = await front.gpufit("GET", "nodes")
            except OSError:  # aiohttp's connection errors
                return False
            assert answer.status in (200, 503), f"{answer}; its log:\n{server.log}"
            return answer.status == 200

        await eventually(ready, within=120, step=0.1)

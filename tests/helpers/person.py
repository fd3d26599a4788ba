"""A person whose Jupyter server dies and is started again, always at the same address and with the same files.

person = Person(tmp_path, inventory)
async with person.serve() as server, server.front() as front:
    notebook, made = await attached(front)
    cell = notebook.send(long_cell(flag))
    await server.kill()
    async with person.serve(): ...                 # `front` and `notebook` go on, as a browser's page does
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .frontend import FrontEnd, Notebook, eventually
from .jupyterserver import ServerProcess, free_port, server_process

__all__ = ["Person", "attached", "long_cell", "same"]


class Person:
    def __init__(self, home: Path, inventory: Path, **environment: str) -> None:
        self._home, self._inventory, self._environment = home, inventory, environment
        self._port = free_port()
        self.servers: list[ServerProcess] = []

    @asynccontextmanager
    async def serve(self, **config: Any) -> AsyncIterator[ServerProcess]:
        """Their (next) server. `config`: as of `server_process`, with `__` for the dot."""
        async with server_process(
            self._home,
            inventory=self._inventory,
            config={name.replace("__", "."): value for name, value in config.items()},
            environment=self._environment,
            port=self._port,
            token="a-token",
            log_name=f"server-{len(self.servers)}.log",
        ) as server:
            self.servers.append(server)
            async with server.front() as front:
                await eventually(lambda: _all_reported(front))
            yield server

    def check_logs(self) -> None:
        """No server has printed a traceback."""
        for server in self.servers:
            assert "Traceback" not in server.log, server.log


async def _all_reported(front: FrontEnd) -> bool:
    nodes = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
    return all(node["age"] is not None or "not reported" not in (node["reason"] or "") for node in nodes)


async def attached(front: FrontEnd, path: str = "a.ipynb", **wishes: Any) -> tuple[Notebook, dict[str, Any]]:
    """A notebook on the kernel of an allocation of its own."""
    notebook = await front.open(path)
    made = await front.request(**{"gpus": 1, "memory": "1GiB", **wishes})
    assert made["state"] == "running", made
    await front.gpufit("POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=202)
    await notebook.on(made["kernel_id"])
    return notebook, made


def long_cell(flag: str) -> str:
    """It runs until there is a file `flag`, says so again and again meanwhile, and gives `x + 1`."""
    return f"""import os, time
print("began", flush=True)
while not os.path.exists({flag!r}):
    print(".", end="", flush=True)
    time.sleep(0.05)
print("let go", flush=True)
x + 1"""


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether that is the same allocation, with all that it holds."""
    keys = ("id", "name", "state", "node", "gpus", "kernel_id", "created", "expires")
    return [one[key] for key in keys] == [other[key] for key in keys]

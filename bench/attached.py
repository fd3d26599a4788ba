"""Working in a kernel of an allocation, against a local kernel on the same Jupyter server.

    python bench/attached.py [--quick] [--local] [--only attached|forwarded|push]

A server of its own with the extension, and notebooks that reach their kernels as JupyterLab does: the server's kernel
websocket, `v1.kernel.websocket.jupyter.org`. All of them take turns in one run. The server's limits on the rate of
output are off for all alike (`iopub_msg_rate_limit` and `iopub_data_rate_limit`): both ways would run into them, and
nothing be measured but these. The front end here reads each message's headers and counts the rest.

`local`      a `python3` kernel of that server
`attached`   a notebook whose session follows an allocation's kernel (process launcher); `attached.docker`: in a
             container, where there is an engine (root, `dockerd`)
`forwarded`  a local kernel that forwards each cell to an allocation's (the notebook has no session that could follow);
             `forwarded.cell`: a `%%gpufit` cell in one that forwards nothing

`round_trip`   from `execute_request` until the reply and `idle` are there; the cell is `pass`
`outputs_100`  a cell with 100 small outputs
`lines_50mb`   one that prints 50 MB in lines of 1 kB; `display_50mb`: that displays them, 1 MiB at a time
`server_mb`    by how much the server's memory grew at most while these 50 MB went through it
`processor`    the processor time of server, kernels and this front end, as a ratio too: unlike how long it takes, it
               does not depend on what else the machine does, nor on how many cores share the work
`push_16mb`    seconds of `%%gpufit --push` of 16 MB
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import psutil
from figures import say
from helpers.jupyter import JupyterServer
from helpers.jupyterserver import directories

from jupyter_gpufit.notebook.messages import pack

PROTOCOL = "v1.kernel.websocket.jupyter.org"
LONG = 120.0  # s
MB = 10**6
CHUNK = 2**20

CELLS = {
    "round_trip": "pass",
    "outputs_100": "for n in range(100):\n    display(n)",
    "lines_50mb": f"for n in range({50 * MB // 1000}):\n    print(f'{{n:0999}}')",
    "display_50mb": (
        f"for n in range({50 * MB // CHUNK + 1}):\n    display({{'text/plain': chr(97 + n % 26) * {CHUNK}}}, raw=True)"
    ),
}
LARGE = ("lines_50mb", "display_50mb")
ELSEWHERE = ("attached.docker",)
"""Whose kernel is no process below the server, so that its processor time is not known here."""
MOST = {"attached": 1.1, "attached.docker": 1.1, "forwarded": 1.5, "forwarded.cell": 1.5}


class Notebook:
    """A front end's connection to one kernel."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self._websocket = websocket
        self._connection: socket.socket = websocket.get_extra_info("socket")
        self._session = uuid.uuid4().hex
        self.prefix = ""
        """What each cell begins with."""
        self.bytes = self.messages = 0
        """Of the cell that ran last."""

    async def run(self, code: str, *, silent: bool = False) -> float:
        """Seconds until the kernel has answered, and said that it is idle. Raises `RuntimeError` if the cell fails."""
        id = uuid.uuid4().hex
        header = {"msg_id": id, "msg_type": "execute_request", "session": self._session, "version": "5.3"}
        content = {
            "code": self.prefix + code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        frame = pack("shell", header, content)
        self.bytes = self.messages = 0
        idle = replied = False
        error: Any = None
        began = time.perf_counter()
        await self._websocket.send_bytes(frame)
        while not (idle and replied):
            data = await self._next()
            parts = _parts(data)
            if json.loads(data[parts[2] : parts[3]]).get("msg_id") != id:
                continue
            kind = json.loads(data[parts[1] : parts[2]])["msg_type"]
            if kind == "status":
                idle = json.loads(data[parts[4] : parts[5]])["execution_state"] == "idle"
            elif kind == "execute_reply":
                replied = True
                reply = json.loads(data[parts[4] : parts[5]])
                error = None if reply["status"] == "ok" else reply
            elif kind in ("stream", "display_data", "execute_result"):
                self.bytes += parts[5] - parts[4]
                self.messages += 1
        taken = time.perf_counter() - began
        if error is not None:
            raise RuntimeError(f"{code!r} failed: {error}")
        return taken

    async def _next(self) -> bytes:
        # Not after 40 ms, as is the rule: the server, which lets small messages wait for it (Nagle), would be measured.
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        message = await asyncio.wait_for(self._websocket.receive(), LONG)
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise RuntimeError(f"the server ended the connection: {message}")
        return message.data  # type: ignore[no-any-return]


def _parts(frame: bytes) -> tuple[int, ...]:
    """Where channel, header, parent, metadata and content of a message begin, and where the last one ends."""
    return struct.unpack_from("<6Q", frame, 8)


class Front:
    """What a browser does with one server."""

    def __init__(self, server: JupyterServer, client: aiohttp.ClientSession) -> None:
        self._server, self._client = server, client

    async def api(self, method: str, path: str, body: Any = None) -> Any:
        async with self._client.request(method, self._server.url + path, json=body) as answer:
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {await answer.text()}")
            return await answer.json() if answer.status != 204 else None

    async def connected(self, kernel_id: str) -> Notebook:
        """A notebook's connection to that kernel, which answers."""
        url = f"{self._server.url}api/kernels/{kernel_id}/channels?session_id={uuid.uuid4().hex}"
        # JupyterLab's browsers do not compress it either: the server does not.
        websocket = await self._client.ws_connect(url, protocols=(PROTOCOL,), max_msg_size=0)
        if websocket.protocol != PROTOCOL:
            raise RuntimeError(f"the server speaks {websocket.protocol}")
        notebook = Notebook(websocket)
        await notebook.run("pass")
        return notebook

    async def local(self) -> Notebook:
        """A notebook on a `python3` kernel."""
        session = await self.session("local.ipynb")
        return await self.connected(session["kernel"]["id"])

    async def session(self, path: str) -> Any:
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        return await self.api("POST", "api/sessions", body)

    async def running(self, node: str, name: str) -> Any:
        """An allocation on that node, once it runs."""
        wishes = {"gpus": 1, "memory": "1GiB", "node": node, "name": name}
        one = await self.api("POST", "gpufit/api/v1/allocations", wishes)
        while one["state"] != "running":
            if one["state"] == "ended":
                raise RuntimeError(f"{name} ended: {one['message']}")
            query = f"after={one['version']}&wait=4"
            one = await self.api("GET", f"gpufit/api/v1/allocations/{one['id']}?{query}")
        return one

    async def attached(self, node: str, name: str) -> Notebook:
        """A notebook whose session has followed an allocation's kernel there."""
        one = await self.running(node, name)
        session = await self.session(f"{name}.ipynb")
        await self.api("POST", f"gpufit/api/v1/allocations/{one['id']}/attach", {"session": session["id"]})
        while session["kernel"]["id"] != one["kernel_id"]:
            await asyncio.sleep(0.1)
            session = await self.api("GET", f"api/sessions/{session['id']}")
        return await self.connected(one["kernel_id"])

    async def forwarding(self, node: str, name: str) -> Notebook:
        """A local kernel that forwards; it belongs to no session, which would be swapped."""
        kernel = await self.api("POST", "api/kernels", {"name": "python3"})
        notebook = await self.connected(kernel["id"])
        await notebook.run("%load_ext jupyter_gpufit")
        await notebook.run(f"%gpufit request 1 --memory 1GiB --node {node} --name {name}")
        await notebook.run("import os\nassert 'GPUFIT_ALLOCATION' in os.environ")
        return notebook

    async def sending(self, name: str) -> Notebook:
        """A local kernel with the magic, whose cells are `%%gpufit` ones."""
        kernel = await self.api("POST", "api/kernels", {"name": "python3"})
        notebook = await self.connected(kernel["id"])
        await notebook.run("%load_ext jupyter_gpufit")
        notebook.prefix = f"%%gpufit {name}\n"
        await notebook.run("import os\nassert 'GPUFIT_ALLOCATION' in os.environ")
        return notebook


class Memory:
    """Peaks of a process's memory."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")

    def begin(self) -> None:
        (self._proc / "clear_refs").write_text("5")  # the peak is what it is now
        self._before = self._read("VmRSS")

    def grown(self) -> float:
        """MB from `begin` to the peak since."""
        return max(0.0, self._read("VmHWM") - self._before)

    def _read(self, field: str) -> float:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024 / MB
        raise RuntimeError(f"{self._proc} has no {field}")


class Processor:
    """Processor seconds of a server, its kernels and this process."""

    def __init__(self, pid: int) -> None:
        server = psutil.Process(pid)
        self._all = [psutil.Process(), server, *server.children(recursive=True)]

    def seconds(self) -> float:
        """So far."""
        return sum(times.user + times.system for times in (one.cpu_times() for one in self._all))


async def measure(notebooks: dict[str, Notebook], server: JupyterServer, turns: dict[str, int]) -> None:
    """All cells in all notebooks, in turns, and their figures; the others are held against the first notebook."""
    memory, processor = Memory(server.pid), Processor(server.pid)
    for cell, code in CELLS.items():
        taken: dict[str, list[float]] = {name: [] for name in notebooks}
        grown: dict[str, list[float]] = {name: [] for name in notebooks}
        worked = dict.fromkeys(notebooks, 0.0)
        seen: dict[str, tuple[int, int]] = {}
        order = list(notebooks.items())
        for turn in range(turns[cell] + 1):
            random.shuffle(order)  # nobody comes always after the same one
            for name, notebook in order:
                if cell in LARGE:
                    memory.begin()
                before = processor.seconds()
                seconds = await notebook.run(code)
                if cell in LARGE and notebook.bytes < 50 * MB:
                    raise RuntimeError(f"{name}: {notebook.bytes} bytes of {cell} arrived")
                if turn:  # the first is a warm-up
                    taken[name].append(seconds)
                    worked[name] += processor.seconds() - before
                    seen[name] = (notebook.bytes, notebook.messages)
                    if cell in LARGE:
                        grown[name].append(memory.grown())
        _say(cell, taken, worked, grown, seen)


def _say(
    cell: str,
    taken: dict[str, list[float]],
    worked: dict[str, float],
    grown: dict[str, list[float]],
    seen: dict[str, tuple[int, int]],
) -> None:
    base, *others = taken
    for name in taken:
        turns = len(taken[name])
        more: dict[str, Any] = {"turns": turns}
        if name not in ELSEWHERE:
            more["processor_ms"] = round(1e3 * worked[name] / turns, 2)
        if cell in LARGE:
            more |= {"messages": seen[name][1], "server_mb": round(max(grown[name]), 1)}
        say(f"{name}.{cell}", median_ms=round(1e3 * median(taken[name]), 2), **more)
    for name in others:
        ratio = median(taken[name]) / median(taken[base])
        more = {} if name in ELSEWHERE else {"processor": round(worked[name] / worked[base], 3)}
        say(f"{name}.{cell}/{base}", goal={"ratio": MOST[name]}, ratio=round(ratio, 3), **more)


async def push(front: Front, server: JupyterServer, name: str, rounds: int) -> None:
    """What `--push` of 16 MB costs."""
    notebook = await front.sending(name)
    notebook.prefix = ""
    await notebook.run("import os\nparcel = os.urandom(16 * 10**6)")
    processor, seconds, worked = Processor(server.pid), [], []
    for _ in range(rounds + 1):
        before = processor.seconds()
        seconds.append(await notebook.run(f"%%gpufit {name} --push parcel\nassert len(parcel) == 16 * 10**6"))
        worked.append(processor.seconds() - before)
    say(
        "forwarded.push_16mb",
        median_s=round(median(seconds[1:]), 3),
        mb_per_s=round(16 / median(seconds[1:]), 1),
        processor_s=round(median(worked[1:]), 2),
    )


@contextlib.contextmanager
def served(nodes: str) -> Iterator[JupyterServer]:
    """A Jupyter server on that inventory."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        inventory = home / "gpufit.toml"
        inventory.write_text(nodes)
        env = directories(home) | {"GPUFIT_CLAIMS_DIR": str(home / "claims"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        limits = [
            f"--ZMQChannelsWebsocketConnection.{limit}=0" for limit in ("iopub_msg_rate_limit", "iopub_data_rate_limit")
        ]
        with JupyterServer(home / "root", env, f"--GpufitExtension.inventory={inventory}", *limits) as server:
            yield server


@contextlib.asynccontextmanager
async def fronted(server: JupyterServer) -> AsyncIterator[Front]:
    headers = {"Authorization": f"token {server.token}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        yield Front(server, client)


HERE = '[[node]]\nname = "here"\nreport = "simulated:8xA100-40GB"\ndocker = "process"\n'


async def bench(nodes: str, only: str | None, turns: dict[str, int], engine: bool) -> None:
    with served(nodes) as server:
        async with fronted(server) as front:
            notebooks = {"local": await front.local()}
            if only in (None, "attached"):
                notebooks["attached"] = await front.attached("here", "process")
                if engine:
                    notebooks["attached.docker"] = await front.attached("gpu01", "docker")
            if only in (None, "forwarded"):
                notebooks["forwarded"] = await front.forwarding("here", "forwarded")
                await front.running("here", "cells")
                notebooks["forwarded.cell"] = await front.sending("cells")
            if len(notebooks) > 1:
                await measure(notebooks, server, turns)
            if only in (None, "push"):
                await front.running("here", "parcels")
                await push(front, server, "parcels", max(1, turns["lines_50mb"] // 2))


@contextlib.contextmanager
def engined() -> Iterator[str]:
    """A Docker engine, as the tests start one, with a reporter: its entry in an inventory."""
    from cluster import image
    from cluster.engines import Cluster

    with Cluster(["gpu01"]) as cluster:
        engine = cluster["gpu01"]
        token = Path(engine.directory, "token")
        token.write_text("bench" * 8)
        token.chmod(0o600)
        command = ["jupyter_gpufit.cli.app", "reporter", "--host", "0.0.0.0", "--token-file", str(token)]
        reporter = engine.popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL)
        try:
            yield (
                f'[[node]]\nname = "gpu01"\ndocker = "{engine.url}"\ninsecure = true\nimage = "{image.BASE}"\n'
                f'report = "http://{engine.ip}:9477"\nreport_token_file = "{token}"\naddress = "{engine.ip}"\n'
            )
        finally:
            reporter.terminate()
            reporter.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns, under 90 s")
    parser.add_argument("--local", action="store_true", help="only what needs no engine")
    parser.add_argument("--only", choices=("attached", "forwarded", "push"))
    options = parser.parse_args()
    turns = {"round_trip": 400, "outputs_100": 40, "lines_50mb": 9, "display_50mb": 9}
    if options.quick:
        turns = {"round_trip": 100, "outputs_100": 16, "lines_50mb": 3, "display_50mb": 4}
    without = "--local was said" if options.local else _no_engine()
    if options.only in ("forwarded", "push"):
        without = "not asked for"
    if without is not None:
        if not options.local:
            print(f"no Docker engine: {without}", file=sys.stderr)
        asyncio.run(bench(HERE, options.only, turns, engine=False))
        return
    with engined() as node:
        asyncio.run(bench(HERE + node, options.only, turns, engine=True))


def _no_engine() -> str | None:
    """Why there can be none here."""
    from cluster.engines import missing

    return missing()


if __name__ == "__main__":
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    main()

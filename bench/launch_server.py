"""Launches as a browser asks for them: by a Jupyter server's REST and a kernel's websocket. For `launch.py`."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import figures  # noqa: F401  (it puts tests/ on the path)
from helpers.frontend import FrontEnd
from helpers.jupyterserver import server_process
from launch_cell import TIMEOUT, Steps

__all__ = ["allocated", "front", "plain"]


@asynccontextmanager
async def front(home: Path, inventory: str) -> AsyncIterator[FrontEnd]:
    """A front end of a Jupyter server over an inventory of that text."""
    path = home / "gpufit.toml"
    path.write_text(inventory)
    own = {"GPUFIT_CLAIMS_DIR": str(home / "claims")}
    async with server_process(home, inventory=path, environment=own) as server, server.front() as one:
        yield one


async def plain(one: FrontEnd) -> dict[str, float]:
    """The server's own way: a local kernel."""
    steps = Steps()
    kernel = (await one.api("POST", "api/kernels", {"name": "python3"}, expect=201)).json["id"]
    steps.done("running")
    try:
        await _first_cell(one, kernel)
        steps.done("result")
        return steps.taken
    finally:
        await one.api("DELETE", f"api/kernels/{kernel}", expect=204)


async def allocated(one: FrontEnd) -> dict[str, float]:
    """Ours: an allocation with its kernel."""
    steps = Steps()
    answer = await one.gpufit("POST", "allocations", {"gpus": 1, "memory": "1GiB"}, expect=202)
    steps.done("placed")
    try:
        runs = await one.allocation(answer.json["id"], lambda now: now["state"] in ("running", "ended"), TIMEOUT)
        if runs["state"] == "ended":
            raise RuntimeError(runs["message"])
        steps.done("running")
        await _first_cell(one, runs["kernel_id"])
        steps.done("result")
        return steps.taken
    finally:
        await one.release(answer.json["id"])


async def _first_cell(one: FrontEnd, kernel: str) -> None:
    session, message = uuid.uuid4().hex, uuid.uuid4().hex
    header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": session, "version": "5.4"}
    content = {"code": "print(6 * 7)", "silent": False, "store_history": True, "allow_stdin": False}
    request = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    printed, replied = False, False
    url = f"{one.url}api/kernels/{kernel}/channels?session_id={session}&token={one.token}"
    async with aiohttp.ClientSession() as client, client.ws_connect(url, max_msg_size=0) as socket:
        await socket.send_str(json.dumps(request))
        while not (printed and replied):
            said = json.loads(await socket.receive_str(timeout=TIMEOUT))
            if said["parent_header"].get("msg_id") == message:
                printed |= said["content"].get("text") == "42\n"
                replied |= said["header"]["msg_type"] == "execute_reply"

"""Taking a kernel back that a server before this one started: its container went on without it.

It goes the way of every start of a kernel manager, under the old kernel id: so manager, restarter, activity watching,
culling and metrics are as for any other. The provisioner then starts nothing (`resume.py`). What is left to do here is
what a manager takes for granted of a kernel that it has just started, and what is not so of one that may be in the
middle of a cell:

    execution_state   is found out: whether the kernel answers on its shell channel, or only on control
    kernel info       is asked for on the control channel, since a websocket waits for it (a minute) before it opens
    what it prints    is kept for the front end whose cell runs, under that one's identity, until that is back; so is
                      the reply to the cell. (What it printed while there was no server is lost: nobody kept it.)
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_core.utils import ensure_async
from msgspec import Struct

from ..errors import LaunchError
from ..models import Allocation

__all__ = ["Memory", "Worked", "forget_kernel", "resume_kernel", "settle"]

_CHANNELS = ("iopub", "shell", "control", "stdin")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # s until it is asked again
_LOOK = 1.0  # s between looks whether the kernel is still there
_BUSY_AFTER = 0.3  # s without an answer on the shell channel, while there is one on the control channel


_Answer = asyncio.Task[dict[str, Any]]


class Memory(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What it takes to go on with a kernel. Has its keys in it."""

    kernel_id: str
    kernel_name: str
    provisioner: dict[str, Any]
    """Of `get_provisioner_info`."""
    env: dict[str, str] = {}
    """What it was given of its server's environment, for its restarts."""
    cwd: str | None = None
    """Likewise."""

    def __repr__(self) -> str:
        return f"Memory({self.kernel_name} {self.kernel_id})"  # never the keys: this may end in a log

    @classmethod
    def read(cls, data: bytes) -> Memory:
        """From `bytes(memory)`. Raises `LaunchError`."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError:
            raise LaunchError("what was remembered of it cannot be read (by this version of jupyter_gpufit)") from None

    def __bytes__(self) -> bytes:
        return msgspec.json.encode(self)


class Worked(Struct, frozen=True, kw_only=True):
    """Whose cell a kernel ran last, and when that began. Remembered of each (part `worked`)."""

    session: str
    """The front end's: in the header of its messages, and its identity on all channels."""
    at: float
    """Unix time."""


async def resume_kernel(kernels: Any, allocation: Allocation, memory: Memory) -> str:
    """Have `kernels` (a multi-kernel manager) go on with the kernel. Raises what its `start_kernel` raises.

    Called by `KernelHost.take_back`.
    """
    forget_kernel(kernels, memory.kernel_id)  # a manager believes a file that is there; it is written anew
    options: dict[str, Any] = {} if memory.cwd is None else {"cwd": memory.cwd}
    kernel_id: str = await ensure_async(
        kernels.start_kernel(
            kernel_name=memory.kernel_name,
            kernel_id=memory.kernel_id,
            env={**memory.env, "GPUFIT_ALLOCATION": allocation.id},
            **options,
        )
    )
    return kernel_id


def forget_kernel(kernels: Any, kernel_id: str) -> None:
    """Remove the connection file that a server before us has left. It has the kernel's keys in it."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(kernels.connection_dir, f"kernel-{kernel_id}.json"))


async def settle(kernels: Any, kernel_id: str, worked: bytes | None, heard: asyncio.Event, log: logging.Logger) -> None:
    """See how it is with a kernel that was taken back, and keep what it says for its front end. For a server's kernels.

    Sets `heard` once that is known; returns when the kernel has been idle, or is gone. `worked`: see `Worked`.
    Called in a task by `Sessions`. Never raises.
    """
    last = None if worked is None else _read(worked)
    try:
        if kernel_id not in kernels:
            raise _Gone
        manager = kernels.get_kernel(kernel_id)
        if last is not None:
            manager.last_activity = datetime.fromtimestamp(last.at, UTC)
            _keep_for(kernels, kernel_id, last.session)
        async with _asking(manager, lambda: kernel_id in kernels) as (alive, idle):
            _give_info(manager, await alive)
            await asyncio.wait({idle}, timeout=_BUSY_AFTER)
            busy = not idle.done()
            if busy:
                manager.execution_state, manager.last_activity = "busy", datetime.now(UTC)
            elif manager.execution_state == "starting":
                manager.execution_state = "idle"
            log.info("kernel %s was taken back; it is %s", kernel_id, manager.execution_state)
            heard.set()
            await idle
        if busy:
            await _end_of_cell(manager, lambda: kernel_id in kernels)
    except _Gone:
        log.info("kernel %s was taken back, and is gone", kernel_id)
    except Exception:  # of managers that are not as we know them; the kernel runs all the same
        log.exception("kernel %s was taken back, but what it does is not known", kernel_id)
    finally:
        heard.set()


class _Gone(Exception):
    """The kernel manager has no such kernel any longer."""


def _read(worked: bytes) -> Worked | None:
    try:
        return msgspec.json.decode(worked, type=Worked)
    except msgspec.DecodeError:
        return None


def _keep_for(kernels: Any, kernel_id: str, session: str) -> None:
    """Be that front end until it is back, as a server is for one that lost its connection: same identity, so that the
    kernel's replies come here; and what comes is replayed to it (`MappingKernelManager.start_buffering`)."""
    manager = kernels.get_kernel(kernel_id)
    channels = {}
    for name in _CHANNELS:
        channels[name] = stream = getattr(manager, f"connect_{name}")(identity=session.encode("ascii", "replace"))
        stream.channel = name
    kernels.start_buffering(kernel_id, f"{kernel_id}:{session}", channels)


def _give_info(manager: Any, info: dict[str, Any]) -> None:
    """To the websockets that wait for it. jupyter_server keeps it here, for all that connect (`channels.py`)."""
    known = getattr(manager, "_kernel_info_future", None)
    if known is None:
        manager._kernel_info_future = known = Future()
    if not known.done():
        known.set_result(info)


async def _end_of_cell(manager: Any, there: Callable[[], bool]) -> None:
    """The cell has ended. That was published; but in the moment when we found the kernel busy we may have missed it."""
    async with _asking(manager, there) as (_, idle):
        await asyncio.wait({idle}, timeout=_BUSY_AFTER)
        if idle.done() and manager.execution_state == "busy":
            manager.execution_state = "idle"


@asynccontextmanager
async def _asking(manager: Any, there: Callable[[], bool]) -> AsyncIterator[tuple[_Answer, _Answer]]:
    """Ask the kernel for its info, on the control and on the shell channel: it answers on the first in any case, on the
    second when it runs no cell. The answers raise `_Gone` once it is not `there` any more."""
    client = AsyncKernelClient()
    client.load_connection_info(manager.get_connection_info())
    client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=True)
    channels = (client.control_channel, client.get_control_msg), (client.shell_channel, client.get_shell_msg)
    asking = [
        asyncio.create_task(_answer(partial(_send, client, channel), receive, there)) for channel, receive in channels
    ]
    try:
        yield asking[0], asking[1]
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for channel in (client.shell_channel, client.control_channel):
            channel.stop()
        client.context.destroy(linger=0)


def _send(client: AsyncKernelClient, channel: Any) -> None:
    channel.send(client.session.msg("kernel_info_request", {}))


async def _answer(
    ask: Callable[[], None], receive: Callable[..., Awaitable[dict[str, Any]]], there: Callable[[], bool]
) -> dict[str, Any]:
    pause = _FIRST_PAUSE
    while there():
        ask()
        end = asyncio.get_running_loop().time() + pause
        while (left := end - asyncio.get_running_loop().time()) > 0 and there():
            try:
                async with asyncio.timeout(min(left, _LOOK)):
                    content: dict[str, Any] = (await receive(timeout=None))["content"]
                return content
            except (TimeoutError, ValueError):  # not signed with its key
                continue
        pause = min(2 * pause, _LONGEST_PAUSE)  # only a question that went down with its connection is asked in vain
    raise _Gone

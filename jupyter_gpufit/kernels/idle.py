"""When a kernel has nothing left to do: neither running a cell, nor any waiting in its queue.

A server sees only what a kernel *does*. So this puts a question that changes nothing (`kernel_info_request`) into the
same queue as the cells, and again a moment later. A kernel takes turns between those who ask it, so one answer says
nothing; but it answers the second only after whatever waited while it answered the first. No cell ran in between: the
queue was empty.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import KernelManager

from .topics import COMMS, DOINGS, hear_less

__all__ = ["KernelWatch"]

# s; a front end that sends cell after cell gets this long between two before its kernel counts as idle, and what it was
# sent so long to arrive: one whose session changes drops what it still waits for.
_STEP = 0.3
_LOOK = 0.5  # s between looks whether the kernel is still there
_ASK_AGAIN = 10.0  # s; a question that a restarting kernel lost is asked anew
_NUDGES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # s to wait for the first word of a kernel, after each question
_WORK = {"execute_request"}
_TOLD = {"status", "comm_open"}


class KernelWatch:
    """Listens to one kernel, on a client of its own. `start` before use, `close` after."""

    def __init__(
        self,
        manager: KernelManager,
        alive: Callable[[], bool],
        on_comm: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`alive` tells whether the kernel is still there; `on_comm` is called with the data of each comm that the
        kernel opens to target `jupyter_gpufit`. With that it listens for as long as there is a kernel, and hears as
        little as it can: what cells do only while somebody waits in `idle`, so that `begins` is not for it."""
        # With a session of its own: kernels answer the newest of several clients that share a session's id.
        self._client = AsyncKernelClient()
        self._client.load_connection_info(manager.get_connection_info())
        self._alive = alive
        self._on_comm = on_comm
        self._asking = 0 if on_comm is not None else 1
        self._less = False
        self._worked = 0
        self._works = asyncio.Event()
        self._kernel: str | None = None  # the kernel process's own session id
        self._heard = asyncio.Event()
        self._answered: dict[str, asyncio.Future[bool]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Connect and listen. Called by `Attachments` and by the provisioner."""
        self._client.start_channels(shell=True, iopub=True, stdin=False, hb=False, control=True)
        self._tasks = [
            asyncio.create_task(self._listen()),
            # Replies are not needed (iopub tells), but they must not pile up.
            asyncio.create_task(self._drop(self._client.get_shell_msg)),
            asyncio.create_task(self._drop(self._client.get_control_msg)),
        ]

    async def close(self) -> None:
        """Stop listening; leaves nothing behind. Whoever waits in `idle` is told that the kernel is gone."""
        self._alive = lambda: False
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also if whoever closes it is cancelled meanwhile
            self._tasks = []
            # Not `stop_channels`: it opens the channels that it does not find, to close them.
            for channel in (self._client.shell_channel, self._client.iopub_channel, self._client.control_channel):
                channel.stop()
            self._client.context.destroy(linger=0)

    async def idle(self) -> bool:
        """Wait until the kernel has nothing to do and nothing queued (true), or is gone (false)."""
        with self._hearing():
            await self._connected()
            while self._alive():
                before = self._worked
                self._works.clear()
                if await self._ask():
                    await asyncio.sleep(_STEP)
                    if self._worked == before and await self._ask() and self._worked == before:
                        return True
            return False

    async def begins(self, within: float) -> bool:
        """Whether a cell has begun since `idle` said that there is none, or does so `within` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._works.wait()
        except TimeoutError:
            return False
        return True

    async def tell(self, target: str, data: dict[str, Any], within: float) -> bool:
        """Open a comm to `target` in the kernel, queued behind its cells; whether it was handled `within` seconds."""
        content = {"comm_id": self._client.session.msg_id, "target_name": target, "data": data}
        with self._hearing():
            await self._connected(_NUDGES[:4])
            return await self._put("comm_open", content, within)

    # ---

    @contextlib.contextmanager
    def _hearing(self) -> Iterator[None]:
        """In here what the kernel does is heard, once `_connected` says so."""
        self._asking += 1
        if self._asking == 1 and self._less:
            self._client.iopub_channel.socket.setsockopt(zmq.SUBSCRIBE, DOINGS)
        try:
            yield
        finally:
            self._asking -= 1
            if self._asking == 0:
                self._heard.clear()
                socket = self._client.iopub_channel.socket
                if self._less and socket is not None and not socket.closed:  # `close` ends who waits
                    socket.setsockopt(zmq.UNSUBSCRIBE, DOINGS)

    async def _connected(self, nudges: tuple[float, ...] = _NUDGES) -> None:
        """Wait until what the kernel publishes is heard: the answer to a question asked before that may be missed.

        Asked on the control channel, which a kernel answers also while it is busy. Ends in any case.
        """
        for pause in nudges:
            if self._heard.is_set() or not self._alive():
                return
            self._client.control_channel.send(self._client.session.msg("kernel_info_request", {}))
            try:
                async with asyncio.timeout(pause):
                    await self._heard.wait()
            except TimeoutError:
                continue

    async def _ask(self) -> bool:
        return await self._put("kernel_info_request", {}, _ASK_AGAIN)

    async def _put(self, kind: str, content: dict[str, Any], within: float) -> bool:
        """Send a message to the kernel's queue; true once it was handled, false if it was lost, or not by then."""
        if not self._alive():
            return False
        message = self._client.session.msg(kind, content)
        # The kernel's `idle` on iopub comes last, so whatever ran before it has been counted by then.
        answered = self._answered[message["header"]["msg_id"]] = asyncio.get_running_loop().create_future()
        self._client.shell_channel.send(message)
        deadline = asyncio.get_running_loop().time() + within
        try:
            while not answered.done():
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0 or not self._alive():
                    return False
                await asyncio.wait({answered}, timeout=min(left, _LOOK))
            return bool(answered.result())
        finally:
            del self._answered[message["header"]["msg_id"]]

    async def _listen(self) -> None:
        socket, session = self._client.iopub_channel.socket, self._client.session
        while True:
            parts = await socket.recv_multipart()
            self._less = self._less or hear_less(socket, parts, (COMMS, DOINGS) if self._asking else (COMMS,))
            try:
                _, parts = session.feed_identities(parts)
                if session.unpack(parts[1])["msg_type"] not in _TOLD:
                    continue  # output, perhaps many megabytes of it
                message = session.deserialize(parts)
            except (ValueError, KeyError, IndexError, TypeError):  # no message, or not signed with this kernel's key
                continue
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        kind, content, parent = message["msg_type"], message["content"], message["parent_header"]
        if kind == "status":
            self._heard.set()
        kernel = message["header"].get("session")
        if kernel != parent.get("session"):  # some kernels repeat the asker's
            if self._kernel not in (None, kernel):
                self._lose_questions()
            self._kernel = kernel
        if kind == "status" and parent.get("msg_type") in _WORK:
            self._worked += 1
            self._works.set()
        elif kind == "status" and content.get("execution_state") == "idle":
            answered_now = self._answered.get(parent.get("msg_id", ""))
            if answered_now is not None and not answered_now.done():
                answered_now.set_result(True)
        elif kind == "comm_open" and content.get("target_name") == "jupyter_gpufit" and self._on_comm is not None:
            data = content.get("data")
            self._on_comm(data if isinstance(data, dict) else {})

    def _lose_questions(self) -> None:
        """Another process answers than before: the kernel was restarted, and what it was asked before is lost."""
        for answered in self._answered.values():
            if not answered.done():
                answered.set_result(False)

    async def _drop(self, receive: Callable[..., Any]) -> None:
        while True:
            try:
                await receive(timeout=None)
            except ValueError:
                continue

"""Messages to and from one remote kernel, whatever carries them.

    WebSocketChannel   through the Jupyter server, as front ends do: needs to reach neither the node nor its keys
    LoopChannel        straight to the kernel, with an asyncio client in the event loop of the embedded service

Both are used from the local kernel's main thread and do their reading elsewhere, so that a KeyboardInterrupt, which may
strike anywhere in the main thread, never loses half a message. What arrives waits in a bounded queue: a kernel that
prints faster than we can show is slowed down by its transport, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote

from .discovery import Server
from .messages import LARGE, KernelGone, Message, pack, unpack
from .transport import ServerUnreachable, ssl_context

__all__ = ["Channel", "LoopChannel", "WebSocketChannel"]

_QUEUED = 500  # messages; each may be megabytes, so the queue is also bounded in bytes
_QUEUED_BYTES = 64 * 2**20
_OPEN_TIMEOUT = 30.0  # s; the server makes sure the kernel answers before it opens the connection


class Channel(Protocol):
    """A way to one remote kernel."""

    serving: threading.RLock
    """Held by whoever sends something and reads what comes of it: a cell, or a widget's message on another thread."""
    keep: bool
    """Whether widgets depend on it, so that it has to stay open also while no cell runs."""

    @property
    def well(self) -> bool:
        """Whether it is sure to have told if the kernel had died, or had been shut down, and has not."""

    def send(self, channel: str, kind: str, content: dict[str, Any], **more: Any) -> str:
        """Send a message (`metadata`, `buffers`, `parent` may be in `more`); its id. Raises `KernelGone`."""

    def receive(self, timeout: float) -> Message | None:
        """The next message, or `None` after `timeout` seconds. Raises `KernelGone` once there can be none any more."""

    def listen(self, on: bool) -> None:
        """Whether somebody reads. While nobody does, only the kernel's death is kept: a notebook that has been swapped
        to the remote kernel must not fill the memory of the local one."""

    def interrupt(self) -> None:
        """Interrupt what runs there, child processes too. Raises a `GpufitError` if that cannot even be asked for."""

    def close(self) -> None:
        """End the connection; the kernel goes on. Idempotent."""


class _Inbox:
    """What has arrived and not been read: bounded, and ends with the reason why nothing more can come."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message | KernelGone] = queue.SimpleQueue()
        self._bytes = 0
        self._lock = threading.Lock()
        self._gone: KernelGone | None = None
        self.listening = False
        self.well = True

    def full(self) -> bool:
        return self._queue.qsize() >= _QUEUED or self._bytes >= _QUEUED_BYTES

    def put(self, message: Message | KernelGone) -> None:
        death = isinstance(message, KernelGone) or message.tells_death
        self.well = self.well and not death and not (isinstance(message, Message) and message.tells_shutdown)
        if isinstance(message, Message):
            if not self.listening and not death:
                return
            with self._lock:
                self._bytes += message.size
        self._queue.put(message)

    def get(self, timeout: float) -> Message | None:
        if self._gone is not None:
            raise self._gone
        try:
            message = self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(message, KernelGone):
            self._gone = message
            raise message
        with self._lock:
            self._bytes -= message.size
        return message


class _Inboxed:
    """What both channels share: the reading half."""

    def __init__(self) -> None:
        self.serving = threading.RLock()
        self.keep = False
        self._inbox = _Inbox()

    def receive(self, timeout: float) -> Message | None:
        return self._inbox.get(timeout)

    def listen(self, on: bool) -> None:
        self._inbox.listening = on


class WebSocketChannel(_Inboxed):
    """Over the server's `api/kernels/{id}/channels` (protocol `v1.kernel.websocket.jupyter.org`)."""

    def __init__(self, server: Server, kernel_id: str, interrupt: Callable[[], None]) -> None:
        """Connects. `interrupt` asks the server to interrupt the kernel. Raises `ServerUnreachable` or `KernelGone`."""
        import websocket

        super().__init__()
        self._session = uuid.uuid4().hex
        self._interrupt = interrupt
        self._closed = threading.Event()
        url = f"ws{server.url.removeprefix('http')}api/kernels/{quote(kernel_id)}/channels?session_id={self._session}"
        options: dict[str, Any] = {"enable_multithread": True, "skip_utf8_validation": True}
        if url.startswith("wss:"):
            options["sslopt"] = {"context": ssl_context()}
        self._websocket = websocket.WebSocket(**options)
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) if server.socket else None
        try:
            if unix is not None:
                unix.connect(str(server.socket))
            self._websocket.connect(  # type: ignore[no-untyped-call]
                url,
                header=[f"Authorization: token {server.token}"] if server.token else [],
                subprotocols=["v1.kernel.websocket.jupyter.org"],
                suppress_origin=True,  # an Origin header is what a browser's page would have to send
                http_no_proxy=["*"],
                timeout=_OPEN_TIMEOUT,
                **({} if unix is None else {"socket": unix}),
            )
            unix = None  # it is the websocket's from here on
        except websocket.WebSocketBadStatusException as problem:
            if problem.status_code == 404:
                raise KernelGone(f"the server has no kernel {kernel_id} any more") from None
            raise ServerUnreachable(
                f"{server.url} refuses the connection to kernel {kernel_id} ({problem.status_code})"
            ) from None
        except (OSError, websocket.WebSocketException) as problem:
            raise ServerUnreachable(f"cannot connect to kernel {kernel_id} through {server.url}: {problem}") from None
        finally:
            if unix is not None:
                unix.close()
        self._websocket.settimeout(None)
        frames = self._websocket.frame_buffer
        frames.recv_strict = self._in_one_piece(frames.recv_strict)  # type: ignore[method-assign, assignment]
        self._thread = threading.Thread(target=self._read, name="gpufit-channel", daemon=True)
        self._thread.start()

    @property
    def well(self) -> bool:
        return self._inbox.well

    def send(self, channel: str, kind: str, content: dict[str, Any], **more: Any) -> str:
        header = _header(kind, self._session)
        try:
            self._websocket.send_binary(pack(channel, header, content, **more))
        except Exception as problem:  # websocket-client raises its own, OSError and ssl's
            raise KernelGone(f"the connection to the kernel is lost ({problem})") from None
        return str(header["msg_id"])

    def interrupt(self) -> None:
        self._interrupt()

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            with contextlib.suppress(Exception):  # it may be closed from the other side already, in any state
                self._websocket.close(timeout=1)
            self._websocket.shutdown()  # type: ignore[no-untyped-call]
            self._thread.join(timeout=5)

    def _read(self) -> None:
        reason = "the server closed the connection to the kernel"
        try:
            while not self._closed.is_set():
                while self._inbox.full() and not self._closed.wait(0.01):
                    pass
                self._acknowledge_at_once()
                data = self._websocket.recv()
                if isinstance(data, str):
                    data = data.encode()
                if not data:
                    break
                self._inbox.put(unpack(data))
        except Exception as problem:  # the thread's last word, whatever it is
            reason = f"the connection to the kernel is lost ({problem or type(problem).__name__})"
        self._inbox.put(KernelGone(reason))

    def _acknowledge_at_once(self) -> None:
        """The server sends its next small message when the one before is acknowledged (Nagle), which Linux would do
        after 40 ms. It forgets that it was told so."""
        connection = self._websocket.sock
        if hasattr(socket, "TCP_QUICKACK") and connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _in_one_piece(self, in_pieces: Callable[[int], bytes]) -> Callable[[int], bytes | bytearray]:
        """How the websocket reads so many bytes. Its own way is by 16 KiB, and for each of them this thread would wait
        for its turn behind the one that shows what has come."""

        def receive(size: int) -> bytes | bytearray:
            connection = self._websocket.sock
            if size < LARGE or connection is None or isinstance(connection, ssl.SSLSocket):
                return in_pieces(size)
            data = bytearray(size)
            view, done = memoryview(data), 0
            while done < size:
                got = connection.recv_into(view[done:], size - done, getattr(socket, "MSG_WAITALL", 0))
                if not got:
                    raise ConnectionError("the server closed it")
                done += got
            return data

        return receive


class LoopChannel(_Inboxed):
    """A kernel's channels by an asyncio kernel client that lives in another thread's event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: Callable[[], Any],
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Connects. `client` makes an `AsyncKernelClient`, `alive` tells whether the kernel is still the one it was;
        both are called in the loop.

        Raises `KernelGone` if the kernel does not answer.
        """
        super().__init__()
        self._loop = loop
        self._alive = alive
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._run(self._open(client))

    @property
    def well(self) -> bool:
        return False  # it looks only now and then; and the scheduler is in this process, and asked in no time

    def send(self, channel: str, kind: str, content: dict[str, Any], **more: Any) -> str:
        return str(self._run(self._send(channel, kind, content, **more)))

    def interrupt(self) -> None:
        # ipykernel, which leads its process group, interrupts its children too.
        self.send("control", "interrupt_request", {})

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._loop.is_running():
                self._run(self._close())

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(_OPEN_TIMEOUT)
        except TimeoutError:
            future.cancel()
            raise KernelGone(f"the thread that talks to the kernel did nothing for {_OPEN_TIMEOUT:.0f} s") from None

    async def _open(self, client: Callable[[], Any]) -> None:
        self._client = client()
        self._client.start_channels(hb=False)
        try:
            await self._client.wait_for_ready(timeout=_OPEN_TIMEOUT - 5)
        except RuntimeError as problem:
            self._client.stop_channels()
            raise KernelGone(f"the kernel does not answer ({problem})") from None
        for name in ("shell", "iopub", "stdin", "control"):
            channel = getattr(self._client, f"{name}_channel")
            self._tasks.append(asyncio.create_task(self._read(name, channel)))
        self._tasks.append(asyncio.create_task(self._watch()))

    async def _send(self, channel: str, kind: str, content: dict[str, Any], **more: Any) -> str:
        session = self._client.session
        message = session.msg(kind, content, metadata=more.get("metadata"))
        if parent := more.get("parent"):
            message["parent_header"] = parent
        session.send(
            getattr(self._client, f"{channel}_channel").socket, message, buffers=list(more.get("buffers", ())) or None
        )
        return str(message["header"]["msg_id"])

    async def _read(self, name: str, channel: Any) -> None:
        while True:
            while self._inbox.full():  # noqa: ASYNC110  (it is emptied by a thread)
                await asyncio.sleep(0.01)
            message = await channel.get_msg(timeout=None)
            buffers = tuple(bytes(buffer) for buffer in message.get("buffers") or ())
            self._inbox.put(
                Message(
                    channel=name,
                    type=message["msg_type"],
                    body=message["content"],
                    id=message["header"].get("msg_id", ""),
                    parent=message["parent_header"].get("msg_id", ""),
                    metadata=message.get("metadata") or {},
                    buffers=buffers,
                    size=_size(message["content"]) + sum(map(len, buffers)),
                )
            )

    async def _watch(self) -> None:
        while self._alive():  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.5)  # what it still said is read first
        self._inbox.put(KernelGone("the kernel died"))

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.stop_channels()


def _header(kind: str, session: str) -> dict[str, Any]:
    return {
        "msg_id": uuid.uuid4().hex,
        "session": session,
        "username": "gpufit",
        "date": datetime.now(UTC).isoformat(),
        "msg_type": kind,
        "version": "5.3",
    }


def _size(content: dict[str, Any]) -> int:
    """About how large, without serialising it again: the long strings are what counts."""
    if "text" in content:
        return len(content["text"])
    data = content.get("data")
    return sum(len(value) for value in data.values() if isinstance(value, str)) + 200 if isinstance(data, dict) else 200

"""One question to a kernel, over a socket of its own. Whether it answers at all: `kernel_info_request` on its shell
channel, as any client would ask.

A port that accepts is not enough: Docker's port forwarding accepts connections before anything listens in the
container.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.session import Session

__all__ = ["Probe"]

_RECONNECT = 20  # ms, and up to twice that, until it tries again; ZeroMQ's own 100 would add 75 ms to every start
_ASK_AGAIN = 2.0  # s; a question that went down with a half-open connection


class Probe:
    """Asks one kernel, over a socket of its own. Use as a context manager, on one event loop."""

    def __init__(self, info: Mapping[str, Any], channel: str = "shell") -> None:
        """`info`: a connection info as `connection.connection_info` makes it."""
        self._session = Session(key=info["key"], signature_scheme=info["signature_scheme"])
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl = _RECONNECT
        if "curve_publickey" in info:
            self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
            self._socket.curve_serverkey = info["curve_publickey"].encode("ascii")
        self._socket.connect(f"{info['transport']}://{info['ip']}:{info[f'{channel}_port']}")

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    async def answered(self) -> None:
        """Returns as soon as the kernel answered, and not before: put a deadline around it."""
        while True:
            question = self._session.serialize(self._session.msg("kernel_info_request"))
            await self._socket.send_multipart(question)
            if await self._socket.poll(int(_ASK_AGAIN * 1000)):
                return

    async def told(self, kind: str, content: Mapping[str, Any]) -> None:
        """Send one message; returns as soon as the kernel replied. Likewise."""
        await self._socket.send_multipart(self._session.serialize(self._session.msg(kind, dict(content))))
        await self._socket.poll()

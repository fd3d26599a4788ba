"""Holds back who asks for kernels and sessions while those that outlived the server before this one are not there yet.

A server listens before its extensions have started. A front end that asks in between for its session is told that there
is none, and shuts its notebook's connection down for good, though kernel and session are back a moment later. So such
requests wait, websockets too; all others are answered at once.

    request ─→ tornado's router ─┬─ gate open: the server's own handlers
                                 └─ shut, and the path is one of `_HELD`: wait, then these
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any

from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.routing import Matcher, Router, Rule
from tornado.web import Application

__all__ = ["Gate"]

_HELD = r"api/(kernels|sessions)(/|$)"
_LONGEST = 60.0  # s; whatever happens to whoever should open it


class Gate(Matcher, Router):
    """Shut when made. By the server extension, while the server loads it."""

    def __init__(self, app: Application, base_url: str) -> None:
        self._app = app
        self._paths = re.compile(re.escape(base_url) + _HELD)
        self._open = asyncio.Event()
        app.default_router.rules.insert(0, Rule(self, self))

    def open(self) -> None:
        """Let all in that wait, and whoever comes."""
        self._open.set()

    def shut(self) -> None:
        """Again: the server stops, and what it lets go of must not be found missing."""
        self._open.clear()

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Called by tornado: whether the request is held."""
        held = not self._open.is_set() and self._paths.match(request.path) is not None
        return {} if held else None

    def find_handler(self, request: HTTPServerRequest, **_: Any) -> HTTPMessageDelegate:
        """Likewise, for one that is."""
        return _Held(self, request)

    async def let_in(self, request: HTTPServerRequest) -> HTTPMessageDelegate:
        """Who really handles it, once the gate is open."""
        try:
            async with asyncio.timeout(_LONGEST):
                await self._open.wait()
        except TimeoutError:
            self.open()
        return self._app.find_handler(request)


class _Held(HTTPMessageDelegate):
    """A request that waits. Its body has not been read by then."""

    def __init__(self, gate: Gate, request: HTTPServerRequest) -> None:
        self._gate, self._request = gate, request
        self._real: HTTPMessageDelegate | None = None

    async def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:  # tornado waits for it
        self._real = await self._gate.let_in(self._request)
        if (more := self._real.headers_received(start_line, headers)) is not None:
            await more

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return None if self._real is None else self._real.data_received(chunk)

    def finish(self) -> None:
        if self._real is not None:
            self._real.finish()

    def on_connection_close(self) -> None:
        if self._real is not None:
            self._real.on_connection_close()

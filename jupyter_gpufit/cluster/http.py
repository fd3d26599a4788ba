"""Asks a reporter on another machine: `GET /v1/report`. Trusts nothing of what comes back until it is checked.

Whatever a node does (accept and never answer, send garbage, 100 MB, a redirect, half an answer), one `fetch` ends
within its timeout, holds at most about `MAX_BODY` bytes of it, and leaves no connection behind that is not in order.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from .. import models
from ..errors import InvalidValue, NodeUnreachable
from ..inventory import NodeSpec
from ..models import Report
from .checks import check_report, clean

__all__ = ["MAX_BODY", "HttpSource"]

MAX_BODY: Final = 2 * 2**20
"""Bytes. A report of 16 GPUs with 100 processes each is under 300 kB."""


class HttpSource:
    """The reporter of one node, as a `reporting.source.ReportSource`. Keeps one connection open between polls."""

    def __init__(self, spec: NodeSpec) -> None:
        self._base = spec.report
        self._url: URL | None = None  # made once: to read an address takes a tenth of a poll
        self._token_file = spec.report_token_file
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, timeout: float) -> Report:
        """The node's report, within `timeout` seconds. Called by the poller, one call at a time.

        Raises `NodeUnreachable` if there is no answer, and `InvalidValue` if the answer is not a report.
        """
        try:
            async with asyncio.timeout(timeout):
                self._url = self._url or URL(f"{self._base}/v1/report")
                body = await self._get(self._url)
        except TimeoutError:
            raise NodeUnreachable(f"{self._base} did not answer within {timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: odd headers
            raise NodeUnreachable(f"{self._base}: {_brief(error)}") from None
        try:
            return check_report(models.decode(body, Report))
        except InvalidValue as error:
            raise InvalidValue(f"{self._base} answers, but not with a report: {clean(error.message, 300)}") from None

    async def close(self) -> None:
        """Close the connection. A later `fetch` would open a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _get(self, url: URL) -> bytes:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._token_file is not None:
            token = await asyncio.to_thread(_token, Path(self._token_file))
            headers["Authorization"] = f"Bearer {token}"
        # Redirects are not followed: they could lead the token, or us, anywhere.
        async with self._connected().get(url, headers=headers, allow_redirects=False) as response:
            if response.status in (401, 403):
                hint = "is it the one the reporter was started with?" if self._token_file else "set report_token_file"
                raise NodeUnreachable(f"{self._base} refuses our token ({response.status}); {hint}")
            if response.status != 200:
                said = "a redirect, which is not followed" if 300 <= response.status < 400 else "not with a report"
                raise NodeUnreachable(f"{self._base} answers {response.status}, {said}; is that a gpufit reporter?")
            # We asked for no compression: what is small on the wire could be anything once unpacked.
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise NodeUnreachable(f"{self._base} sends a compressed answer, which was not asked for")
            return await self._body(response)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        if (response.content_length or 0) <= MAX_BODY:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY:
                    break
            else:
                return bytes(body)
        response.close()  # not back to the pool: the rest is still coming
        raise NodeUnreachable(f"{self._base} sends more than {MAX_BODY // 2**20} MiB; is that a gpufit reporter?")

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            # One connection: there is never more than one question outstanding. No proxies, no cookies.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, resolver=_Resolver(), ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),  # `fetch` has the deadline
            )
        return self._session


class _Resolver(AbstractResolver):
    """The system's resolver, in a few threads of its own. The event loop's default threads are for everybody in this
    process: they are not to wait for the name service on account of nodes whose names it does not know."""

    _threads = ThreadPoolExecutor(8, "gpufit-names")  # started as needed, shared by all nodes

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in found
        ]

    async def close(self) -> None:
        """The threads serve all."""


def _token(path: Path) -> str:
    """Read at every poll, so that a token can be changed without a restart. Never part of a message."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise NodeUnreachable(f"report_token_file {path} cannot be read: {reason}") from None
    if not token or not token.isprintable():
        raise NodeUnreachable(f"report_token_file {path} holds no token: one line of printable characters is expected")
    return token


def _brief(error: Exception) -> str:
    """What went wrong, for people: the operating system's words where there are any."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its TLS certificate is not accepted: {clean(str(error.certificate_error), 200)}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "there is no host of that name (or the name service does not answer)"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ssl.SSLError):
        return f"TLS fails: {clean(cause.reason or str(cause), 200)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)  # asyncio words these otherwise, and longer
    return clean(str(error) or type(error).__name__, 200)

"""The reporter of a node: `GET /v1/report` (JSON) and `GET /metrics` (Prometheus).

It samples on its own period; a request is answered from the last sample, whatever NVML does meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace
from prometheus_client.exposition import choose_encoder

from ..errors import InvalidValue
from ..models import Report, encode
from .access import allowed, read_token, resolve
from .metrics import make_registry
from .source import ReportSource

__all__ = ["Agent", "run"]

log = logging.getLogger(__name__)

_SHUTDOWN = 2.0  # seconds that a request in progress has when the reporter ends


class Agent:
    """Samples `source` every `monitor_period` seconds while its `app` is served. Used from one event loop.

    `token`: what requests must bear; `None` lets everybody who can connect ask.
    """

    def __init__(self, source: ReportSource, monitor_period: float, token: str | None = None) -> None:
        self._source, self._period, self._token = source, monitor_period, token
        self._last = Report(host=socket.gethostname(), time=time.time(), error="the GPUs have not been read yet")
        self._received = time.monotonic()
        self._registry = make_registry(self.report)
        self.app = web.Application(middlewares=[self._guard], client_max_size=1024)
        self.app.router.add_get("/v1/report", self._get_report)
        self.app.router.add_get("/metrics", self._get_metrics)
        self.app.cleanup_ctx.append(self._sampling)

    def report(self) -> Report:
        """The last sample, as old as it is now."""
        return replace(self._last, age=self._last.age + time.monotonic() - self._received)

    async def _sampling(self, app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sample_forever())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self._source.close()

    async def _sample_forever(self) -> None:
        while True:
            begun = time.monotonic()
            # Whatever the source does, the last report stays, its age grows, and the next period tries again.
            try:
                async with asyncio.timeout(self._period + 5):
                    report = await self._source.fetch(max(self._period, 1.0))
            except Exception as error:
                log.exception("sampling failed")
                report = replace(self.report(), error=f"the reporter failed to read the GPUs: {error!r}")
            self._last, self._received = report, time.monotonic()
            await asyncio.sleep(max(0.05, self._period - (time.monotonic() - begun)))

    # --- requests

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """The token first, for every path; and every error as JSON."""
        if not allowed(self._token, request.headers.getall("Authorization", [])):
            message = "this reporter needs its token: send the header  Authorization: Bearer TOKEN"
            answer = _refusal(401, "unauthorized", message)
            answer.headers["WWW-Authenticate"] = 'Bearer realm="gpufit reporter"'
            return answer
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _refusal(404, "not-found", "a reporter has /v1/report and /metrics, nothing else")
        except web.HTTPMethodNotAllowed as refused:
            answer = _refusal(405, "method-not-allowed", f"a reporter is only read: use GET, not {refused.method}")
            answer.headers["Allow"] = ", ".join(sorted(refused.allowed_methods))
            return answer

    async def _get_report(self, request: web.Request) -> web.Response:
        return web.Response(body=encode(self.report()), content_type="application/json", headers=_FRESH)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._registry), headers=_FRESH | {"Content-Type": content_type})


_FRESH = {"Cache-Control": "no-store"}


def _refusal(status: int, code: str, message: str) -> web.Response:
    body = json.dumps({"error": code, "message": message, "details": {}})
    return web.Response(status=status, text=body, content_type="application/json")


def run(
    host: str,
    port: int,
    token_file: Path | None,
    monitor_period: float,
    source: ReportSource,
    on_ready: Callable[[Sequence[str]], None] = lambda urls: None,
) -> None:
    """Serve until SIGTERM or SIGINT; then end the source and return. `on_ready` gets the addresses that answer by then.

    Raises `InvalidValue` if it may not, or cannot, listen there. Called by `jupyter gpufit reporter`.
    """
    token = None if token_file is None else read_token(token_file)
    addresses = resolve(host, port, token)
    asyncio.run(_serve(addresses, port, Agent(source, monitor_period, token), on_ready))


async def _serve(addresses: Sequence[str], port: int, agent: Agent, on_ready: Callable[[Sequence[str]], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(agent.app, access_log=None, shutdown_timeout=_SHUTDOWN)
    try:
        await runner.setup()
        for address in addresses:
            site = web.TCPSite(runner, address, port)
            try:
                await site.start()
            except OSError as error:
                # "localhost" may also be ::1, on a machine that has no IPv6.
                if error.errno == errno.EADDRNOTAVAIL and len(addresses) > 1:
                    log.warning("not listening on %s: %s", address, error.strerror)
                    continue
                raise InvalidValue(f"cannot listen on {address} port {port}: {error.strerror or error}") from None
        if not runner.addresses:
            raise InvalidValue(f"cannot listen on any of {', '.join(addresses)}: this machine has no such address")
        on_ready([_url(sockname) for sockname in runner.addresses])
        await stop.wait()
    finally:
        await runner.cleanup()


def _url(sockname: Sequence[object]) -> str:
    host = str(sockname[0])
    return f"http://[{host}]:{sockname[1]}" if ":" in host else f"http://{host}:{sockname[1]}"

"""HTTP to one Jupyter server: JSON in, JSON out, errors as this package's own. Synchronous, standard library only.

A new connection per request: requests are few, and a kept one would go stale while cells run. Redirects are not
followed: the only ones a Jupyter server makes lead to its login page, and the token must not travel.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from .. import errors
from ..errors import Forbidden, GpufitError, NotFound
from .discovery import Server

__all__ = ["ExtensionMissing", "Http", "ServerUnreachable", "error_from", "ssl_context"]

TIMEOUT = 15.0
"""Seconds for one request. The server answers each within 5."""

_BY_CODE: dict[str, type[GpufitError]] = {
    kind.code: kind for kind in (getattr(errors, name) for name in errors.__all__) if kind is not GpufitError
}


class ServerUnreachable(GpufitError):
    """The Jupyter server does not answer, or does not let us in."""

    code = "server-unreachable"
    status = 503


class ExtensionMissing(GpufitError):
    """The Jupyter server answers, and has no `jupyter_gpufit` extension."""

    code = "extension-missing"
    status = 404


def error_from(body: Mapping[str, Any]) -> GpufitError:
    """The error that a REST answer (`{"error", "message", "details"}`) tells of."""
    kind = _BY_CODE.get(str(body.get("error")), GpufitError)
    details = body.get("details")
    return kind(str(body.get("message") or body.get("error")), **(details if isinstance(details, dict) else {}))


def ssl_context() -> ssl.SSLContext:
    """How TLS servers are checked; `$GPUFIT_SERVER_CA` names a file of certificates for one with its own authority."""
    return ssl.create_default_context(cafile=os.environ.get("GPUFIT_SERVER_CA"))


class Http:
    """Requests to one Jupyter server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._base = urlsplit(server.url)

    def call(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON that `path` (below the server's base url, quoted) answers; `None` for an empty answer.

        Raises `ServerUnreachable`, `ExtensionMissing`, or the error that the answer tells of.
        """
        target = self._base.path + path
        if query := {key: value for key, value in (query or {}).items() if value is not None}:
            target += "?" + urlencode(query)
        headers = {"Accept": "application/json"}
        if self.server.token:
            headers["Authorization"] = f"token {self.server.token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connect()
        try:
            connection.request(method, target, data, headers)
            answer = connection.getresponse()
            return self._read(answer.status, answer.getheader("Content-Type", ""), answer.read(), path)
        except (OSError, http.client.HTTPException) as problem:
            raise ServerUnreachable(
                f"the Jupyter server at {self.server.url} does not answer ({problem or type(problem).__name__}); "
                "see whether it still runs"
            ) from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.server.socket:
            return _UnixConnection(self.server.socket)
        host, port = self._base.hostname or "localhost", self._base.port
        if self._base.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=ssl_context())
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT)

    def _read(self, status: int, kind: str, data: bytes, path: str) -> Any:
        body: Any = None
        if data and "json" in kind:
            try:
                body = json.loads(data)
            except ValueError:
                raise ServerUnreachable(
                    f"{self.server.url}{path} answers what is not JSON; see the server's log"
                ) from None
        if 200 <= status < 300:
            return body
        told = body if isinstance(body, dict) else {}
        # jupyter_server says no more than this to who is not let in; our own Forbidden says what is forbidden.
        locked = status in (401, 403) and str(told.get("message")).lower() in ("forbidden", "unauthorized")
        if "error" in told and not locked:
            raise error_from(told)
        if status in (401, 403) or 300 <= status < 400:
            raise Forbidden(
                f"the Jupyter server at {self.server.url} does not accept "
                + ("this token" if self.server.token else "a request without a token")
                + "; start it with a token (a server with a password only has none), or name one with GPUFIT_TOKEN"
            )
        if status == 404:
            if path.startswith("gpufit/"):
                raise ExtensionMissing(
                    f"the Jupyter server at {self.server.url} has no jupyter_gpufit extension; install jupyter_gpufit "
                    "where the server runs and enable it: jupyter server extension enable jupyter_gpufit"
                )
            raise NotFound(f"{self.server.url}{path} does not exist")
        message = told.get("message")
        raise ServerUnreachable(
            f"{self.server.url}{path} answers {status} {message or ''}".rstrip() + "; see the server's log"
        )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

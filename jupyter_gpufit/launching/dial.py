"""Sockets to an engine that requests cannot open by itself: a Unix socket, and the system's ssh client.

docker-py has both, but its Unix connection leaves a socket open when there is no engine, and its ssh connection is a
pair of pipes: without timeouts, and nothing that another thread could shut down. Here both are real sockets.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
import requests.adapters
import urllib3
import urllib3.connection

__all__ = ["Dial", "DialAdapter", "Ssh", "unix"]

Dial = Callable[[float | None], socket.socket]
"""Opens a socket within so many seconds; raises `OSError`."""


def unix(path: str) -> Dial:
    """To the engine at a Unix socket."""

    def dial(timeout: float | None) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        return sock

    return dial


class Ssh:
    """To another machine's engine, as `docker -H ssh://…` does: one `ssh … docker system dial-stdio` per connection.

    In a session of its own and in batch mode: it cannot ask for a password on the server's terminal, and Ctrl-C there
    does not reach it.
    """

    def __init__(self, url: str, connect_timeout: float) -> None:
        parts = urlsplit(url)
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(max(round(connect_timeout), 1)),
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
        }
        self._command = ["ssh", "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
        self._command += ["-l", parts.username] if parts.username else []
        self._command += ["-p", str(parts.port)] if parts.port else []
        self._command += ["--", parts.hostname or "", "docker system dial-stdio"]
        self._clients: list[subprocess.Popen[bytes]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)

    def __call__(self, timeout: float | None) -> socket.socket:
        self._clients = [client for client in self._clients if client.poll() is None]  # buries the dead
        ours, theirs = socket.socketpair()
        with theirs:
            ends: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": self._errors}
            try:
                self._clients.append(subprocess.Popen(self._command, start_new_session=True, **ends))
            except OSError:
                ours.close()
                raise
        ours.settimeout(timeout)
        return ours

    def last_words(self) -> str:
        """What the ssh clients complained of last; empty if nothing."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End the clients that still run (each ends by itself when its connection is closed)."""
        for client in self._clients:
            client.terminate()
            try:
                client.wait(2)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
        self._clients.clear()
        self._errors.close()


class _Connection(urllib3.connection.HTTPConnection):
    dial: Dial

    def connect(self) -> None:
        timeout = self.timeout if isinstance(self.timeout, int | float) else None
        self.sock = self.dial(timeout)


class _Pool(urllib3.HTTPConnectionPool):
    def __init__(self, dial: Dial, size: int) -> None:
        super().__init__("localhost", maxsize=size)
        self._dial = dial

    def _new_conn(self) -> _Connection:
        connection = _Connection("localhost", timeout=self.timeout.connect_timeout)
        connection.dial = self._dial
        return connection


class DialAdapter(requests.adapters.HTTPAdapter):
    """Lets a requests session talk HTTP over sockets that `dial` opens, whatever the URL says."""

    def __init__(self, dial: Dial, size: int) -> None:
        super().__init__()
        self._pool = _Pool(dial, size)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> _Pool:
        """Called by requests since 2.32."""
        return self._pool

    def get_connection(self, *_: Any, **__: Any) -> _Pool:
        """Called by requests before 2.32."""
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        return request.path_url

    def close(self) -> None:
        super().close()
        self._pool.close()

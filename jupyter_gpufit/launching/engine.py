"""The client of one node's Docker Engine: how it is reached, and what its failures mean.

`Engine.client()` connects when first asked, and again after a failure to; it blocks, so it is asked in a worker's
thread. A client may be used by several threads: each call takes a connection of its own from the pool.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.errors
import docker.tls
import requests
import urllib3.exceptions
from msgspec import Struct

from ..errors import NodeUnreachable
from ..inventory import NodeSpec
from .dial import Dial, DialAdapter, Ssh, unix
from .machine import Machine, engines

__all__ = ["CALL_WITHIN", "About", "Engine", "check_readable", "hang_up", "said"]

CONNECT_WITHIN = 5.0
CALL_WITHIN = 30.0
"""Seconds an engine may take to answer one call; making a container of a large image on a busy disk takes several."""
CONNECTIONS = 16

BROKEN = (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)
"""What a call raises when the engine did not answer it; of these, `docker.errors.APIError` *is* an answer."""


class _Client(docker.APIClient):
    def __init__(self, adapter: DialAdapter | None, **options: Any) -> None:
        self._dialled = adapter
        try:
            # A pair, as requests takes it: no call of docker-py that adds to it is used.
            timeout: Any = (CONNECT_WITHIN, CALL_WITHIN)
            super().__init__(timeout=timeout, max_pool_size=CONNECTIONS, version="auto", **options)
        except BaseException:
            self.close()
            raise

    def _retrieve_server_version(self) -> str:
        # The node's address is in the inventory: no proxy, and no other authority, from the environment.
        self.trust_env = False
        return super()._retrieve_server_version()  # type: ignore[misc,no-any-return]

    def get_adapter(self, url: str) -> Any:
        return self._dialled or super().get_adapter(url)

    def close(self) -> None:
        if self._dialled is not None:
            self._dialled.close()
        super().close()


class About(Struct, frozen=True):
    """What an engine says of itself."""

    now: float
    """Unix time by its own clock."""
    machine: Machine


class Engine:
    """The engine of the node `spec` describes. Thread-safe."""

    def __init__(self, spec: NodeSpec) -> None:
        assert spec.docker is not None
        self.node = spec.name
        self.url: str = spec.docker
        self._spec = spec
        self._client: _Client | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._dial: Dial | None = None

    def client(self) -> Any:
        """The client, connected. Raises `NodeUnreachable`, also for an inventory entry that must not be used."""
        with self._lock, self.answering():
            try:
                if self._client is None and not self._closed:
                    self._client = self._connect()
            finally:
                if self._closed:  # meanwhile
                    self._hang_up()
            if self._client is None:
                raise NodeUnreachable(f"the connection to the Docker engine of {self.node} is closed")
            return self._client

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around calls: raises `NodeUnreachable` if the engine did not answer. Its answer, an `APIError`, passes."""
        try:
            yield
        except docker.errors.APIError:
            raise
        except BROKEN as error:
            why = self._why(error)
            raise NodeUnreachable(
                f"the Docker engine of {self.node} ({self.url}) does not answer: {why}", why=f"{why} ({self.url})"
            ) from None

    def about(self) -> About:
        """One call. Blocks."""
        with self.answering():
            info = self.client().info()
            return About(datetime.fromisoformat(info["SystemTime"]).timestamp(), engines(info))

    def close(self) -> None:
        """Close what is idle; what is in use is closed when its call ends. Does not wait for who is connecting."""
        self._closed = True
        if self._lock.acquire(timeout=0.1):
            try:
                self._hang_up()
            finally:
                self._lock.release()

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if isinstance(self._dial, Ssh):
            self._dial.close()

    def _connect(self) -> _Client:
        scheme = urlsplit(self.url).scheme
        if scheme == "unix":
            self._dial = unix(self.url.removeprefix("unix://"))
        elif scheme == "ssh":
            self._dial = self._dial or Ssh(self.url, CONNECT_WITHIN)
        if self._dial is not None:
            return _Client(DialAdapter(self._dial, CONNECTIONS), base_url="unix:///" + self.node)
        if self._spec.tls is not None:
            files = Path(self._spec.tls).expanduser()
            for name in ("ca.pem", "cert.pem", "key.pem"):
                check_readable(files / name, self._spec)
            certificate = (str(files / "cert.pem"), str(files / "key.pem"))
            tls = docker.tls.TLSConfig(client_cert=certificate, ca_cert=str(files / "ca.pem"), verify=True)
            return _Client(None, base_url=self.url, tls=tls)
        if not self._spec.insecure:
            raise NodeUnreachable(
                f"node {self.node}: {self.url} without TLS gives anybody on the network root on that machine, so it is "
                "not used; name the directory of its TLS files (tls = …) in gpufit.toml, or set insecure = true"
            )
        return _Client(None, base_url=self.url)

    def _why(self, error: BaseException) -> str:
        words = self._dial.last_words() if isinstance(self._dial, Ssh) else ""
        return words or _reason(error)


def check_readable(file: Path, spec: NodeSpec) -> None:
    """Raises `NodeUnreachable` for a file of `spec.tls` that is not there, or not ours to read."""
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise NodeUnreachable(
            f"the TLS file {str(file)!r} {what}; gpufit.toml says tls = {spec.tls!r} for {spec.name}, and in that "
            "directory there have to be ca.pem, cert.pem and key.pem"
        ) from None


def hang_up(response: requests.Response) -> None:
    """End a streaming response from another thread: whoever reads it sees its end."""
    reader = getattr(getattr(response.raw, "_fp", None), "fp", None)  # urllib3's → http.client's → buffered reader
    sock = getattr(getattr(reader, "raw", None), "_sock", None)
    if sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def said(error: docker.errors.APIError) -> str:
    """The engine's own words on why it refused."""
    words = str(error.explanation or error)
    with contextlib.suppress(ValueError, TypeError, KeyError):
        words = json.loads(words)["message"]
    return words.strip()


def _reason(error: BaseException) -> str:
    """The innermost message: what urllib3 and requests wrap around it tells people nothing."""
    seen = {id(error)}
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__

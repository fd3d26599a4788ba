"""The cluster when nobody described one: this machine, with its Docker Engine if that answers, else plain processes."""

from __future__ import annotations

import http.client
import logging
import os
import re
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from .inventory import NodeSpec

__all__ = ["engine_answers", "this_machine"]

_log = logging.getLogger(__name__)
_DEFAULT_ENGINE = "unix:///var/run/docker.sock"


def this_machine(patience: float = 1.0) -> NodeSpec:
    """This machine as a node. Asks its engine (`$DOCKER_HOST`, else Docker's usual socket) for at most about `patience`
    seconds; whether it has GPUs is for its report to say. Called by `inventory.load`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("-._") or "localhost"
    engine = os.environ.get("DOCKER_HOST") or _DEFAULT_ENGINE
    url = urlsplit(engine)
    here = url.scheme == "unix" or (url.scheme == "tcp" and url.hostname in ("localhost", "127.0.0.1", "::1"))
    if not here:
        _log.warning(
            "$DOCKER_HOST is another machine's engine: not used. To use it, describe that machine in a gpufit.toml"
        )
        return NodeSpec(name=name)
    tls = (os.environ.get("DOCKER_CERT_PATH") or "~/.docker") if os.environ.get("DOCKER_TLS_VERIFY") else None
    folder = str(Path(tls).expanduser()) if tls and url.scheme == "tcp" else None
    if not engine_answers(engine, folder, patience):
        return NodeSpec(name=name)
    # Plain tcp is what the person's own environment says here, and it does not leave the machine.
    return NodeSpec(name=name, docker=engine, tls=folder, insecure=url.scheme == "tcp" and folder is None)


def engine_answers(engine: str, tls: str | None, patience: float) -> bool:
    """Whether a Docker Engine answers `GET /_ping` (Engine API "Ping") at `engine`, a `unix://` or `tcp://` address."""
    try:
        with _connect(engine, tls, patience) as connection:
            connection.settimeout(patience)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            response = http.client.HTTPResponse(connection, method="GET")
            try:
                response.begin()
                return response.status == 200
            finally:
                response.close()
    except (OSError, ValueError, http.client.HTTPException) as error:  # ssl.SSLError is an OSError
        _log.info("no Docker Engine at %s: %s", engine, error)
        return False


def _connect(engine: str, tls: str | None, patience: float) -> socket.socket:
    url = urlsplit(engine)
    if url.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(patience)
            connection.connect(url.path)
        except BaseException:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((url.hostname or "", url.port or (2376 if tls else 2375)), patience)
    if tls is None:
        return connection
    try:
        context = ssl.create_default_context(cafile=f"{tls}/ca.pem")
        context.load_cert_chain(f"{tls}/cert.pem", f"{tls}/key.pem")
        return context.wrap_socket(connection, server_hostname=url.hostname)
    except BaseException:
        connection.close()
        raise

"""Which Jupyter server started this kernel, and as which of its kernels. Does not import jupyter_server: that is slow.

A server writes `jpserver-PID.json` (url, token) into the Jupyter runtime directory, and every kernel it starts has its
pid in `JPY_PARENT_PID`. The kernel's id is in its connection file's name. The file of a server with a password alone
has no token, and none under JupyterHub: `GPUFIT_TOKEN` is used then, or `JUPYTERHUB_API_TOKEN`, which kernels have
there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from ..errors import InvalidValue

__all__ = ["Server", "connection_file_of", "find_server", "kernel_id_of", "running_servers", "server_at", "with_token"]


class Server(Struct, frozen=True, kw_only=True):
    """A Jupyter server, and what is needed to talk to it."""

    url: str
    """With the base url, ends in `/`: `http://127.0.0.1:8888/user/ada/`."""
    token: str = ""
    pid: int | None = None
    socket: str | None = None
    """Path of its Unix socket, for a server without a port."""
    root: str | None = None
    """The directory it serves."""

    def __repr__(self) -> str:  # the token must not get into a log or a traceback
        return f"Server({self.url!r}, pid={self.pid})"


def server_at(url: str, token: str = "") -> Server:
    """The server a person named by its address (`--server`, `--token`); `?token=…` as Jupyter prints it is understood.

    Raises `InvalidValue`.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValue(f"{url!r} is not the address of a Jupyter server; write it like 'http://127.0.0.1:8888/'")
    if not token and (match := re.search(r"(?:^|&)token=([^&]+)", parts.query)):
        token = match[1]
    path = re.sub(r"(lab|tree|notebooks|doc)(/.*)?$", "", parts.path).rstrip("/")
    return Server(url=f"{parts.scheme}://{parts.netloc}{path}/", token=token)


def running_servers(runtime: Path | None = None) -> Iterator[Server]:
    """The Jupyter servers of this user that run now, latest first. Files of servers that died are passed over."""
    if runtime is None:
        from jupyter_core.paths import jupyter_runtime_dir

        runtime = Path(jupyter_runtime_dir())
    found: list[tuple[float, Path]] = []
    for file in runtime.glob("jpserver-*.json"):
        try:
            found.append((file.stat().st_mtime, file))
        except OSError:
            continue  # its server removed it just now
    for _, file in sorted(found, reverse=True):
        try:
            info = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # being written or removed right now
        if isinstance(info, dict) and isinstance(info.get("url"), str) and _alive(info.get("pid")):
            yield _server(info)


def find_server(environ: Mapping[str, str] | None = None, runtime: Path | None = None) -> Server | None:
    """The server that started this kernel, or `None` (VS Code, nbclient, papermill, a terminal)."""
    environ = os.environ if environ is None else environ
    parent = environ.get("JPY_PARENT_PID", "")
    hub_token = environ.get("JUPYTERHUB_API_TOKEN", "")
    given = environ.get("GPUFIT_TOKEN") or hub_token
    for server in running_servers(runtime):
        if parent and str(server.pid) == parent:
            return with_token(server, given)
    url = environ.get("JUPYTERHUB_SERVICE_URL", "")
    if parent and url and hub_token:
        # The single-user server's runtime directory is not ours. Its prefix may be in the url already.
        prefix = environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")
        base = url if url.rstrip("/").endswith(prefix.rstrip("/")) else url.rstrip("/") + prefix
        return Server(url=base.rstrip("/") + "/", token=hub_token)
    return None


def with_token(server: Server, token: str) -> Server:
    """The server with that token, if its own file names none (a password alone, or JupyterHub)."""
    return replace(server, token=server.token or token)


def connection_file_of(shell: Any) -> str | None:
    """Path of the connection file of the kernel that `shell` is in; `None` in a terminal."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return None
    parent = getattr(kernel, "parent", None)  # the IPKernelApp
    file = getattr(parent, "abs_connection_file", None) or getattr(parent, "connection_file", None)
    return str(file) if file else None


def kernel_id_of(connection_file: str | None) -> str | None:
    """The kernel's id, as its server knows it, from its connection file's name."""
    match = re.fullmatch(r"kernel-(.+)\.json", Path(connection_file).name) if connection_file else None
    return match[1] if match else None


def _server(info: dict[str, Any]) -> Server:
    url = str(info["url"])
    socket = info.get("sock") or None
    if socket:
        url = "http://localhost" + str(info.get("base_url") or "/")
    pid = info.get("pid")
    return Server(
        url=url.rstrip("/") + "/",
        token=str(info.get("token") or ""),
        pid=pid if isinstance(pid, int) else None,
        socket=socket,
        root=info.get("root_dir"),
    )


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Files into a container and out of it, as tar streams of its engine. Blocks; never holds more than a chunk."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import docker.errors
import docker.utils

from ..errors import LaunchError, NotFound
from ..models import Unit
from .carrying import Carrier, size_of
from .containers import check_disk
from .engine import CALL_WITHIN, CONNECT_WITHIN, Engine, hang_up, said
from .tarring import CHUNK, given_to

__all__ = ["fetch", "put"]

SENT_WITHIN = 60.0  # s for one chunk, on a slow line
UNPACKED_WITHIN = 300.0  # s after the last chunk; a slow disk writes back what it has taken
SILENT_FOR = 60.0  # s without a byte of what is fetched
_FOLDER, _LINK = 1 << 31, 1 << 27  # of Go's os.FileMode


def put(
    engine: Engine,
    unit: Unit,
    archive: Path,
    target: str,
    owner: tuple[int, int] | None,
    made: str | None,
    carrier: Carrier,
) -> None:
    """Unpack `archive` in the directory `target` (absolute), for `owner`. `made`: a directory that is the unit's own
    (`target` is that, or lies in it), and is given to the owner, too. Others are made if they are not there."""
    parts, total = PurePosixPath(target).parts[1:], size_of(archive)
    with engine.answering():
        client = engine.client()
        try:
            if made is not None:
                base, folders = "/", len(parts) - len(PurePosixPath(made).parts) + 2
                prefix: Sequence[str] = parts
            else:
                base, prefix = _nearest(client, unit, target)
                folders = len(prefix)
            stream = given_to(owner, archive, prefix, folders, lambda current: carrier.moved(current, total))
            response = client.put(
                client._url("/containers/{0}/archive", unit.id),
                params={"path": base},
                data=stream,
                timeout=(SENT_WITHIN, UNPACKED_WITHIN),
            )
            client._raise_for_status(response)
        except docker.errors.APIError as error:
            check_disk(engine.node, words := said(error))
            raise LaunchError(f"files cannot be put to {target} in {unit.name}: {words}") from None


def fetch(engine: Engine, unit: Unit, path: str, archive: Path, limit: int, carrier: Carrier) -> None:
    """Write a tar of `path` (absolute) to the file `archive`, no more than `limit` bytes."""
    with engine.answering():
        client = engine.client()
        response = client.get(
            client._url("/containers/{0}/archive", unit.id),
            params={"path": path},
            headers={"Accept-Encoding": "identity"},
            stream=True,
            timeout=(CONNECT_WITHIN, SILENT_FOR),
        )
        with response, carrier.reading(lambda: hang_up(response)):
            try:
                client._raise_for_status(response)
            except docker.errors.NotFound:
                raise NotFound(f"there is no {path} in {unit.name}") from None
            except docker.errors.APIError as error:
                raise LaunchError(f"{path} cannot be fetched from {unit.name}: {said(error)}") from None
            with carrier.writing(archive, path, limit) as write:
                for chunk in response.iter_content(CHUNK):
                    write(chunk)


def _nearest(client: Any, unit: Unit, target: str) -> tuple[str, Sequence[str]]:
    """The innermost directory on the way to `target` that there is, and what has to be made in it."""
    missing: list[str] = []
    at = posixpath.normpath(target)
    while (mode := _mode(client, unit, at)) is None:
        if at == "/":
            raise LaunchError(f"files cannot be put to {target} in {unit.name}: its container is gone")
        at, name = posixpath.split(at)
        missing.insert(0, name)
    if not mode & (_FOLDER | _LINK):
        raise LaunchError(f"files cannot be put to {target} in {unit.name}: {at} is a file")
    return at, missing


def _mode(client: Any, unit: Unit, path: str) -> int | None:
    response = client.head(
        client._url("/containers/{0}/archive", unit.id), params={"path": path}, timeout=(CONNECT_WITHIN, CALL_WITHIN)
    )
    if response.status_code == 404:
        return None
    client._raise_for_status(response)
    stat = docker.utils.decode_json_header(response.headers["X-Docker-Container-Path-Stat"])
    return int(stat["mode"])

"""Which uid and gid an image's user has, so that what is put into a container is theirs and nobody else's."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import docker.errors

__all__ = ["entry", "owner_of"]

LARGEST = 2**24
"""Bytes of an /etc/passwd that is read."""


def owner_of(client: Any, container: str, user: str) -> tuple[int, int] | None:
    """uid and gid of `user` (`USER` of its image: empty for root, `uid`, `uid:gid` or a name) in `container`.

    Asks the engine, for the container's /etc/passwd, only if `user` is a name. `None` if it is not in there.
    """
    name, _, group = user.partition(":")
    if not name:
        return 0, 0
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name), int(group) if group.isdigit() else 0
    try:
        chunks, _ = client.get_archive(container, "/etc/passwd")
        found = bytearray()
        for chunk in chunks:
            found += chunk
            if len(found) > LARGEST:  # an image can have anything there
                return None
        with tarfile.open(fileobj=io.BytesIO(found)) as tar:
            member = tar.extractfile(tar.next() or "")
            text = member.read().decode("utf-8", "replace") if member else ""
    except (docker.errors.NotFound, tarfile.TarError, KeyError):  # KeyError: an empty archive
        return None
    return entry(text, name)


def entry(passwd: str, name: str) -> tuple[int, int] | None:
    """uid and gid of `name` in the text of a passwd(5) file."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) > 3 and fields[2].isdigit() and fields[3].isdigit():
            return int(fields[2]), int(fields[3])
    return None

"""Who may ask a reporter: anybody on this machine while it listens on loopback only, else those who have the token."""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import InvalidValue

__all__ = ["allowed", "read_token", "resolve"]


def resolve(host: str, port: int, token: str | None) -> list[str]:
    """The addresses to listen on for `host`; resolved once, so that what was checked is what is listened on.

    Raises `InvalidValue` if it has none, or if one is not loopback and there is no token.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidValue(f"--host {host!r} cannot be listened on: {error}") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if token is None and (open_to_others := [address for address in addresses if not _is_loopback(address)]):
        raise InvalidValue(
            f"--host {host!r} ({', '.join(open_to_others)}) can be reached from other machines, and so needs a token: "
            "write one into a file that only this user can read, and name it with --token-file "
            "(or listen on 127.0.0.1, the default)"
        )
    return addresses


def read_token(path: Path) -> str:
    """The first line of `path`. Raises `InvalidValue` if it cannot be read, is no token, or everybody can read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = file.readline(4096).strip()
    except OSError as error:
        raise InvalidValue(f"token file {str(path)!r} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InvalidValue(f"token file {str(path)!r} can be read or written by everybody: run chmod 600 on it")
    if len(line) < 16 or not line.isascii() or any(byte <= 32 or byte == 127 for byte in line):
        raise InvalidValue(
            f"token file {str(path)!r} must hold, in its first line, 16 or more printable characters without spaces: "
            "make it with  openssl rand -hex 32"
        )
    return line.decode()


def allowed(token: str | None, headers: Sequence[str]) -> bool:
    """Whether a request with these `Authorization` headers may be answered. Every wrong token takes the same time."""
    if token is None:
        return True
    if len(headers) != 1:
        return False
    scheme, _, given = headers[0].partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())
    return scheme.lower() == "bearer" and same


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback

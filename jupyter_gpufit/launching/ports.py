"""Five free ports on loopback, kept free until the kernel takes them.

A port that was free a moment ago may be taken by the time a kernel has imported itself. So they come from below the
range from which the system gives ports to whoever asks for any, and the sockets that found them stay bound, with
SO_REUSEADDR and not listening: ZeroMQ, which sets SO_REUSEADDR too, can still bind and listen there (Linux socket(7);
elsewhere they are let go before the kernel starts).
"""

from __future__ import annotations

import errno
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import LaunchError

__all__ = ["Ports"]

LOWEST, HIGHEST = 15_000, 32_767
ATTEMPTS = 500
_held: set[int] = set()  # by this process: the system lets two hold a port if both set SO_REUSEADDR
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports:
    """`count` ports on 127.0.0.1, or exactly those `wanted`. Raises `LaunchError` if one of these is taken."""

    def __init__(self, count: int = 5, wanted: Sequence[int] = ()) -> None:
        self._sockets: list[socket.socket] = []
        port = 0
        try:
            for port in wanted:
                if port in _held:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
                self._keep(_hold(port, again=True))
        except OSError as error:
            self.close()
            raise LaunchError(
                f"port {port} of 127.0.0.1, which the kernel had before its restart, is in use by another program now "
                f"({error.strerror}); release this allocation and request again",
                port=port,
            ) from None
        if not wanted:
            self._find(count)
        self.numbers = tuple(held.getsockname()[1] for held in self._sockets)

    def _find(self, count: int) -> None:
        for port in _candidates():
            try:
                self._keep(_hold(port))
            except OSError:  # taken
                continue
            if len(self._sockets) == count:
                return
        self.close()
        raise LaunchError(f"there are no {count} free ports on 127.0.0.1; end some programs there, and request again")

    def _keep(self, held: socket.socket) -> None:
        self._sockets.append(held)
        _held.add(held.getsockname()[1])

    def let_go(self) -> None:
        """The kernel is about to bind them."""
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Give them up; again and again if you like."""
        while self._sockets:
            held = self._sockets.pop()
            _held.discard(held.getsockname()[1])
            held.close()


def _candidates() -> Iterator[int]:
    """Random ports that the system gives to nobody; then, should it give away all, whichever it gives."""
    try:
        highest = min(int(_RANGE.read_text().split()[0]) - 1, HIGHEST)
    except OSError:
        highest = HIGHEST
    if highest - LOWEST > 1000:
        yield from random.sample(range(LOWEST, highest + 1), min(ATTEMPTS, highest - LOWEST))
    yield from (0,) * ATTEMPTS


def _hold(port: int, *, again: bool = False) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if again:  # connections of the kernel that had it are still in TIME_WAIT
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Without SO_REUSEADDR at first, so that one which somebody else holds like this is taken.
        held.bind(("127.0.0.1", port))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        held.close()
        raise
    return held

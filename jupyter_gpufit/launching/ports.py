"""Five free ports on loopback, kept free until the kernel takes them.

A port that was free a moment ago may be taken by the time a kernel has imported itself. So the sockets that found them
stay bound, with SO_REUSEADDR and not listening: then nobody is *given* one of these ports, while ZeroMQ, which sets
SO_REUSEADDR too, can still bind and listen there (Linux socket(7)).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ..errors import LaunchError

__all__ = ["Ports"]


class Ports:
    """`count` ports on 127.0.0.1, or exactly those `wanted`. Raises `LaunchError` if one of these is taken."""

    def __init__(self, count: int = 5, wanted: Sequence[int] = ()) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for port in wanted or (0,) * count:
                self._sockets.append(_hold(port))
        except OSError as error:
            self.close()
            raise LaunchError(
                f"port {port} of 127.0.0.1, which the kernel had before its restart, is in use by another program now "
                f"({error.strerror}); release this allocation and request again",
                port=port,
            ) from None
        self.numbers = tuple(held.getsockname()[1] for held in self._sockets)

    def close(self) -> None:
        """Give them up; again and again if you like."""
        while self._sockets:
            self._sockets.pop().close()


def _hold(port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    return held

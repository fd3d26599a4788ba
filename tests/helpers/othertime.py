"""An engine whose clock is wrong: a proxy before its TCP port that shifts every moment the engine tells.

with other_time(engine.ip, 2375, shift=3600) as url:   # "tcp://127.0.0.1:PORT"
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

__all__ = ["other_time", "shifted"]

_NUMBERS = re.compile(rb'("(?:Created|time)":)(\d{10})(?=\D)')
_NANOS = re.compile(rb'("timeNano":)(\d{10})(?=\d{9}\D)')
_TEXTS = re.compile(rb'("(?:SystemTime|Created|StartedAt|FinishedAt)":")(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?=[.Z+-])')


def shifted(data: bytes, shift: int) -> bytes:
    """`data`, of the same length, its moments `shift` seconds later."""

    def number(match: re.Match[bytes]) -> bytes:
        return match[1] + b"%010d" % (int(match[2]) + shift)

    def text(match: re.Match[bytes]) -> bytes:
        if match[2].startswith(b"0001"):  # "never"
            return match[0]
        return match[1] + (datetime.fromisoformat(match[2].decode()) + timedelta(seconds=shift)).isoformat().encode()

    return _TEXTS.sub(text, _NANOS.sub(number, _NUMBERS.sub(number, data)))


@contextmanager
def other_time(host: str, port: int, shift: int) -> Iterator[str]:
    """The url of an engine like that at `host` and `port`, whose clock is `shift` seconds ahead."""
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def start(work: Callable[..., None], *args: object) -> None:
        threads.append(threading.Thread(target=work, args=args, daemon=True))
        threads[-1].start()

    def pump(source: socket.socket, sink: socket.socket, change: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**20):
                sink.sendall(shifted(data, shift) if change else data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                engine = socket.create_connection((host, port), 10)
                engine.settimeout(None)
                sockets.extend((client, engine))
                start(pump, client, engine, False)
                start(pump, engine, client, True)

    start(accept)
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for end in list(sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in threads:
            thread.join(10)

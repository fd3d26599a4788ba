"""The line to a local unit's supervisor: the pipes of one that this process started, or the door of one it found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from ..errors import LaunchError
from . import spare, supervise
from .directory import Process

__all__ = ["Child", "Door", "Line"]

LET_IN_WITHIN = 5.0  # s; the supervisor may not have noticed yet that the server before us died
LOOK_EVERY = 0.02  # s


class Line(Protocol):
    """Both ways, one JSON object per line (`supervise`)."""

    pid: int
    """Of the supervisor."""
    reports: IO[bytes]
    """What it says; ends with it."""

    def write(self, data: memoryview) -> int:
        """Tell it; how many bytes it took. Raises `OSError` or `ValueError` once it is gone."""

    def kill(self) -> None:
        """End the supervisor, whatever it does."""

    def close(self) -> None:
        """After the last report: wait until it is gone."""


class Child:
    """A supervisor that this process starts. Raises `LaunchError` if it cannot be."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._process = spare.supervisor()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self._commands, self.reports = self._process.pid, self._process.stdin, self._process.stdout
        with contextlib.suppress(OSError):  # it was killed in this moment: the end of its reports tells
            self.write(memoryview(json.dumps({"do": "begin", **config}).encode() + b"\n"))

    def write(self, data: memoryview) -> int:
        return self._commands.write(data)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._commands.close()
        self._process.wait()


class Door:
    """A supervisor that lost its server, in the unit's `directory`. Raises `LaunchError` if it does not let us in."""

    def __init__(self, directory: Path, supervisor: Process) -> None:
        self.pid, self._supervisor = supervisor.pid, supervisor
        deadline = time.monotonic() + LET_IN_WITHIN
        while (connection := _knock(directory)) is None:
            if time.monotonic() > deadline or not supervisor.lives:
                raise LaunchError(f"the supervisor in {directory} (process {supervisor.pid}) does not answer")
            time.sleep(LOOK_EVERY)
        self._connection = connection
        self.reports: IO[bytes] = connection.makefile("rb")

    def write(self, data: memoryview) -> int:
        return self._connection.send(data)

    def kill(self) -> None:
        if self._supervisor.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self._connection.close()
        while self._supervisor.lives:  # no child of ours: there is nothing to wait on
            time.sleep(LOOK_EVERY)


def _knock(directory: Path) -> socket.socket | None:
    """A connection, if the supervisor has no server: then it speaks first."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(directory) as place:
            connection.settimeout(1.0)
            connection.connect(f"{place}/{supervise.DOOR}")
            if connection.recv(1, socket.MSG_PEEK):
                connection.settimeout(None)
                return connection
    except OSError:
        pass
    connection.close()
    return None


@contextlib.contextmanager
def _short(directory: Path) -> Any:
    """A name of `directory` that leaves room for a socket's: their paths are cut at about a hundred characters."""
    if not supervise.LINUX:
        yield directory
        return
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}"
    finally:
        os.close(opened)

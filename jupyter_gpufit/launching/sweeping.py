"""What is left of a local unit whose supervisor was killed: its processes, found by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from . import supervise

__all__ = ["MARK", "sweep"]

MARK = "GPUFIT_UNIT"
"""In the environment of everything a unit runs: by it the rest is found should the supervisor itself be killed."""
LOOK_EVERY = 0.01  # s


def sweep(unit: str, directory: str | os.PathLike[str], within: float | None = None) -> bool:
    """End all that the unit with this id forked (its main process died with its supervisor), then remove its files.

    Whether nothing is left: `False` if that took longer than `within` seconds, and the files are there, too.
    """
    mark, deadline = f"{MARK}={unit}".encode(), None if within is None else time.monotonic() + within
    while left := [pid for pid in supervise.processes() if mark in _environment(pid)]:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY)
    shutil.rmtree(directory, ignore_errors=True)
    return True


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, another user's, or a system without /proc
        return []

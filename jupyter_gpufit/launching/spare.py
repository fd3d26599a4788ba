"""A supervisor that is there before its unit is, so that a kernel's start need not wait for that of another Python.

One for all launchers of this process, for as long as one of them is open. It holds nothing, and ends with its input.

    use ─→ make ─→ supervisor ─→ make ─→ … ─→ leave
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading

from ..errors import LaunchError
from . import supervise

__all__ = ["leave", "make", "supervisor", "use"]

log = logging.getLogger(__name__)

_lock = threading.Lock()
_users: set[object] = set()
_spare: subprocess.Popen[bytes] | None = None
_parents: list[subprocess.Popen[bytes] | None] = []


def use(user: object) -> None:
    """From now on `make` makes one, until that user leaves."""
    with _lock:
        _users.add(user)


def make() -> None:
    """See that there is one, if anybody uses it. Blocks for a moment."""
    global _spare
    with _lock:
        if _users and _spare is None:
            try:
                _spare = _started()
            except LaunchError as error:  # the unit that will need one says so
                log.debug("%s", error.message)


def supervisor() -> subprocess.Popen[bytes]:
    """One that waits to be told what it is for: the spare one, or a new one. Raises `LaunchError`."""
    global _spare
    with _lock:
        spare, _spare = _spare, None
    if spare is None:
        return _started()
    if spare.poll() is None:
        return spare
    _end(spare)
    return _started()


def leave(user: object) -> None:
    """The last one to leave ends it. Blocks for a moment. Idempotent."""
    global _spare
    with _lock:
        _users.discard(user)
        spare = None
        if not _users:
            spare, _spare = _spare, None
    if spare is not None:
        _end(spare)


def _started() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", supervise.__file__]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True, cwd="/"
        )
    except OSError as error:
        raise LaunchError(f"cannot start a process on this machine: {error}") from None


def _end(spare: subprocess.Popen[bytes]) -> None:
    for end in (spare.stdin, spare.stdout):
        assert end is not None
        with contextlib.suppress(OSError):
            end.close()
    spare.kill()
    spare.wait()


def _forget_in_child() -> None:
    """A forked child has no children of its parent's."""
    global _lock, _spare
    _parents.append(_spare)  # or it would be missed as one of ours that nobody waited for
    _lock, _spare = threading.Lock(), None
    _users.clear()


os.register_at_fork(after_in_child=_forget_in_child)

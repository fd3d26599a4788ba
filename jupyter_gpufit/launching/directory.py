"""The claims of all process launchers of one machine, whoever's: one small file each in a directory all users share.

It plays the part that the engine's list of containers plays for Docker. `$GPUFIT_CLAIMS_DIR`, else `gpufit-claims` in
the directory for temporary files, writable by everybody with the sticky bit, as that one. Whoever reads or writes locks
the directory itself (flock(2)), so a claim is checked and written in one step. A record whose holder and supervisor are
both gone (by pid *and* start time) claims nothing, once what it left running is ended, too; its owner's next look does
that, and removes it with its unit's directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from ..errors import LaunchError
from ..models import Claim, Unit
from . import claims
from .machine import Machine
from .supervise import descendants
from .sweeping import sweep

__all__ = ["ClaimsDirectory", "Process", "Record", "read_claims"]

LOCK_WITHIN = 10.0  # s; it is held for a millisecond
SWEEP_WITHIN = 1.0  # s; for what a killed supervisor left to end; else its claim stays, and it is tried again


class Process(Struct, frozen=True):
    """A process, told from a later one that got the same pid."""

    pid: int
    start: float
    """When it started: clock ticks after boot on Linux, Unix time elsewhere."""

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process `pid` as it is now; `None` if there is none, or only its zombie."""
        try:
            if sys.platform != "linux":
                process = psutil.Process(pid)
                return None if process.status() == psutil.STATUS_ZOMBIE else cls(pid, process.create_time())
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return None if fields[0] in (b"Z", b"X") else cls(pid, float(fields[19]))
        except (OSError, psutil.Error):
            return None

    @property
    def lives(self) -> bool:
        return Process.of(self.pid) == self


class Record(Struct, frozen=True, kw_only=True):
    """What one file says."""

    unit: Unit
    claim: Claim
    place: str
    """`""` for this machine; the node's name for a simulated node, which is a machine of its own."""
    holder: Process
    """The server that made it."""
    supervisor: Process | None = None
    directory: str = ""
    """The unit's own, once there is a supervisor; for its user alone."""
    work: str = ""
    """Where it works."""
    ram: int | None = None
    """Bytes of memory with more of which it is ended."""

    @property
    def lives(self) -> bool:
        return self.holder.lives or (self.supervisor is not None and self.supervisor.lives)


class ClaimsDirectory:
    """The directory at `path` (default: this machine's). All methods block for a moment; call them from a worker.

    Raises `LaunchError` if the directory cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path or os.environ.get("GPUFIT_CLAIMS_DIR") or Path(tempfile.gettempdir(), "gpufit-claims"))

    def file(self, unit: str) -> Path:
        """Where the record of the unit with this id is."""
        return self.path / f"{unit}.json"

    def claim(self, record: Record, totals: Mapping[str, int], machine: Machine | None = None) -> None:
        """Write `record` if its claim fits together with all others of its place. Raises `ClaimLost`."""
        with self._locked():
            others = [other.claim for other in self._read() if other.place == record.place]
            where = f"node {record.unit.node}"
            claims.check(record.claim, others, totals, where, machine)
            self._write(record)

    def update(self, record: Record) -> None:
        """Replace what is written of the record's unit."""
        with self._locked():
            self._write(record)

    def remove(self, unit: str) -> None:
        """Take back the claim of the unit with this id; nothing to do if there is none."""
        self.file(unit).unlink(missing_ok=True)

    def record(self, unit: str) -> Record | None:
        """The living record of the unit with this id, if this user wrote it: what others write here of our units must
        not lead us to processes and directories of their choice."""
        if not self.path.is_dir():
            return None
        with self._locked():
            record = _read_ours(self.file(unit))
        return record if record is not None and record.lives and record.unit.id == unit else None

    def records(self, place: str) -> list[Record]:
        """The living records of `place`, each with the pids of what runs in its unit now."""
        if not self.path.is_dir():
            return []
        with self._locked():
            found = [record for record in self._read() if record.place == place]
        supervisors = [record.supervisor.pid for record in found if record.supervisor]
        below = descendants(*supervisors) if supervisors else {}
        return [_with_pids(record, below) for record in found]

    def _read(self) -> list[Record]:
        living = []
        for file in sorted(self.path.glob("*.json")):
            try:
                record = msgspec.json.decode(file.read_bytes(), type=Record)
            except (OSError, msgspec.DecodeError):
                continue  # gone in this moment (a supervisor removes its own), or nothing of ours
            if record.lives or not self._swept(file, record):
                living.append(record)
            else:
                with contextlib.suppress(OSError):  # another user's: theirs to remove
                    file.unlink()
        return living

    def _swept(self, file: Path, record: Record) -> bool:
        """Whether nothing runs any more of a unit whose server and supervisor were both killed: what that leaves of
        ours is ended, and its directory removed. (As in `record`: what others write must not lead us anywhere.)"""
        if _read_ours(file) != record or not record.directory or file != self.file(record.unit.id):
            return True
        return sweep(record.unit.id, record.directory, SWEEP_WITHIN)

    def _write(self, record: Record) -> None:
        target = self.file(record.unit.id)
        partial = target.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        # A new file in any case: in a directory of everybody's somebody may have put a link there.
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(record))
            os.fchmod(file.fileno(), 0o644)
        partial.replace(target)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            fd = self._open()
        except OSError as error:
            raise LaunchError(
                f"the directory for claims, {self.path}, cannot be used: {error.strerror}; "
                "see that all users may write there (mode 1777), or name another one in $GPUFIT_CLAIMS_DIR"
            ) from None
        try:
            _lock(fd, self.path)
            yield
        except OSError as error:
            raise LaunchError(f"cannot write a claim in {self.path}: {error.strerror}") from None
        finally:
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # somebody else was faster
                self.path.mkdir(parents=True)
            fd = os.open(self.path, flags)
            if os.fstat(fd).st_uid == os.geteuid():  # mkdir's mode is cut by the umask
                os.fchmod(fd, stat.S_ISVTX | 0o777)
            return fd


def read_claims(node: str, path: str | os.PathLike[str] | None = None) -> list[Claim]:
    """What all process units on `node` hold, each claim with the pids of what runs in it now. `node`: a simulated
    node's name, `""` for this machine.

    Called by the simulated reporter, to let the memory of its GPUs follow what runs on them.
    """
    return [record.claim for record in ClaimsDirectory(path).records(node)]


def _read_ours(file: Path) -> Record | None:
    """What the file says, if this user wrote it."""
    try:
        with open(file, "rb", opener=_ours) as opened:
            return msgspec.json.decode(opened.read(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def _ours(path: str, flags: int) -> int:
    """Opens a file only if it belongs to this user."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise PermissionError(f"{path} belongs to somebody else")
    return fd


def _with_pids(record: Record, below: Mapping[int, set[int]]) -> Record:
    pids = frozenset(below.get(record.supervisor.pid, ())) if record.supervisor else frozenset()
    replace = msgspec.structs.replace
    return replace(record, unit=replace(record.unit, pids=pids), claim=replace(record.claim, pids=pids))


def _lock(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WITHIN
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LaunchError(f"{path} has been locked for {LOCK_WITHIN:.0f} s by another program") from None
            time.sleep(0.005)
        else:
            return

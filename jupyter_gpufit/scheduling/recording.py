"""What was asked of this person's schedulers, and what became of it: `requests.jsonl` in the store's directory.

    scheduler ── asked, refused, ended ──→ lines ── the recorder's own thread ──→ requests.jsonl (→ requests.1.jsonl)
    jupyter gpufit bench policies ←── read

Two lines of JSON for each request. Of whom it is, what it is called, what it runs and where its files are is in
neither: only what selection sees of it, when it was asked, and when it had its GPUs.

Nobody waits for the disk: lines are gathered for a moment, and written by a thread of our own, since a home may be on a
server that hangs. A disk that refuses is told of in the log, once, and costs nobody more than the record.

Several servers of one person may write at once: each write is some whole lines of less than a page, at the end of the
file (`O_APPEND`). Whatever is broken all the same (a machine that lost its power, two machines on one NFS) is left out
by the reader, which counts it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ..errors import GpufitError, InvalidValue
from ..memory import format_memory
from ..models import Allocation, Request

__all__ = ["FILE", "History", "Recorded", "Recorder", "files", "read"]

FILE = "requests.jsonl"
BEFORE = "requests.1.jsonl"
"""What was in `FILE` until that had `MOST_BYTES`."""
SCHEMA = 1
MOST_BYTES = 8 * 2**20
"""Of each of the two files: about 25,000 requests."""
MOST_LINE = 4096
"""Bytes of one write. (Of a request only a thousand different sizes would need more: it is not recorded.)"""
MOST_WAITING = 10_000  # lines, while a disk hangs
MOST_READ = 2**30
"""Bytes of all the files that are read: more than anybody waits for."""
GATHER = 0.2
"""Seconds for which lines are gathered. They are lost if the process is killed in that time."""
CLOSE_WITHIN = 5.0  # s

Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Unix time, in which a calendar can say it."""


class _Line(Struct, kw_only=True, omit_defaults=True):
    """What both kinds of lines begin with."""

    schema: int
    line: str
    id: str = ""


class _Asked(_Line):
    asked: Moment
    gpus: int
    memory: int | list[int]
    """Bytes per GPU: one size for all, or one each."""
    shared: bool = False
    gpu_model: str | None = None
    node: str | None = None
    labels: dict[str, str] = {}
    cpus: float | None = None
    ram: int | None = None
    share_card: bool = False
    model: str | None = None
    require_model: bool = False
    write_models: bool = False
    time: float | None = None
    wait: float | None = None
    priority: int = 0
    job: bool = False


# Of a request as it is: what selection and the queue see of it.
_WISHES = sorted({*_Asked.__struct_fields__} & {*Request.__struct_fields__} - {"gpus", "memory", "job"})


class _Ended(_Line):
    ended: Moment
    state: str
    """`ended`, or `refused`: it never became an allocation."""
    reason: str = ""
    placed: Moment | None = None
    """When it got its GPUs; `None`: it got none."""
    started: Moment | None = None
    """When what runs in it ran first."""
    node: str | None = None


class Recorder:
    """Writes. Made by the scheduler; used on its event loop. Without a directory it does nothing."""

    def __init__(self, directory: Path | None, log: logging.Logger) -> None:
        self._directory, self._log = directory, log
        self._lines: Queue[bytes] = Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._refused = False  # by the disk, the last time

    def asked(self, id: str, request: Request, now: float) -> None:
        """Somebody asks for it."""
        if self._directory is None:
            return
        sizes = request.sizes
        wishes: dict[str, Any] = {wish: getattr(request, wish) for wish in _WISHES}
        self._put(
            _Asked(
                schema=SCHEMA,
                line="asked",
                id=id,
                asked=round(now, 3),
                gpus=request.gpus,
                memory=sizes[0] if len(set(sizes)) == 1 else list(sizes),
                job=request.job is not None,
                **wishes,
            )
        )

    def refused(self, id: str, error: GpufitError | None, now: float) -> None:
        """It was told at once that it gets nothing."""
        reason = "failed" if error is None else error.code
        self._put(_Ended(schema=SCHEMA, line="ended", id=id, ended=round(now, 3), state="refused", reason=reason))

    def never(self, requests: Iterable[Request], error: GpufitError, now: float) -> None:
        """Likewise of requests that were asked for together, and got no ids."""
        for request in requests:
            id = secrets.token_hex(6)
            self.asked(id, request, now)
            self.refused(id, error, now)

    def ended(self, allocation: Allocation, placed: float, now: float) -> None:
        """It is over; `placed`: when it got its GPUs (0: never)."""
        self._put(
            _Ended(
                schema=SCHEMA,
                line="ended",
                id=allocation.id,
                ended=round(now if allocation.ended is None else allocation.ended, 3),
                state=str(allocation.state),
                reason="" if allocation.reason is None else str(allocation.reason),
                placed=round(placed, 3) or None,
                started=None if allocation.started is None else round(allocation.started, 3),
                node=allocation.node,
            )
        )

    async def close(self) -> None:
        """Write what is left. Idempotent. Waits for a disk that hangs for some seconds at most."""
        self._directory, thread, self._thread = None, self._thread, None
        if thread is not None:
            self._closing.set()
            with suppress(Full):  # then there is no want of a line that wakes it
                self._lines.put_nowait(b"")
            await asyncio.to_thread(thread.join, CLOSE_WITHIN)

    def _put(self, line: _Line) -> None:
        if self._directory is None:
            return
        data = msgspec.json.encode(line) + b"\n"
        if len(data) > MOST_LINE:
            return
        with suppress(Full):
            self._lines.put_nowait(data)
        if self._thread is None:
            # A daemon: at its exit the interpreter would wait for any other one, as long as the disk hangs.
            thread = threading.Thread(target=self._run, args=[self._directory], name="gpufit recording", daemon=True)
            with suppress(RuntimeError):  # there are too many threads: the next line tries again
                thread.start()
                self._thread = thread

    # --- on the recorder's thread

    def _run(self, directory: Path) -> None:
        closing = False
        while not closing:
            lines = [self._lines.get()]
            closing = self._closing.wait(GATHER)
            with suppress(Empty):
                while True:
                    lines.append(self._lines.get_nowait())
            self._write(directory, lines)

    def _write(self, directory: Path, lines: Sequence[bytes]) -> None:
        try:
            append(directory, lines)
        except OSError as error:
            if not self._refused:
                self._log.warning(
                    "requests are not recorded in %s: %s (said once; `bench policies` will not know of them)",
                    directory / FILE,
                    error.strerror or error,
                )
            self._refused = True
        else:
            self._refused = False


def append(directory: Path, lines: Iterable[bytes]) -> None:
    """Put whole `lines` at the end of the file in that directory. Raises `OSError`. Blocks."""
    file = _open(directory)
    try:
        # Somebody's last line may be half a line.
        torn = (size := os.fstat(file).st_size) > 0 and os.pread(file, 1, size - 1) != b"\n"
        for page in _pages(lines):
            data = b"\n" + page if torn else page
            torn = os.write(file, data) < len(data)
    finally:
        os.close(file)


def _open(directory: Path) -> int:
    """The file, with room in it."""
    while True:
        file = os.open(directory / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < MOST_BYTES or not _put_away(file, directory):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _put_away(file: int, directory: Path) -> bool:
    """Rename the full file, unless somebody else just did; whether there is a new one now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when it is closed
    except OSError:  # no locks there: then it grows
        return False
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file), os.stat(directory / FILE)):
            os.replace(directory / FILE, directory / BEFORE)
    return True


def _pages(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, as many in one write as fit."""
    page = b""
    for line in lines:
        if page and len(page) + len(line) > MOST_LINE:
            yield page
            page = b""
        page += line
    if page:
        yield page


# --- reading


@dataclass(frozen=True)
class Recorded:
    """One request, and what became of it."""

    id: str
    asked: float
    request: Request
    job: bool
    ended: float | None = None
    """`None`: it goes on, or nobody wrote it down."""
    placed: float | None = None
    state: str = ""
    reason: str = ""

    @property
    def lifetime(self) -> float | None:
        """Seconds for which it had its GPUs; `None`: not known, or it had none."""
        if self.placed is None or self.ended is None or self.ended < self.placed:
            return None
        return self.ended - self.placed


@dataclass(frozen=True)
class History:
    """What is recorded, by the time it was asked."""

    requests: tuple[Recorded, ...] = ()
    broken: int = 0
    """Lines that cannot be read."""
    newer: int = 0
    """Lines of versions that are not known here."""


@dataclass
class _Reading:
    asked: dict[str, Recorded] = field(default_factory=dict)
    ended: dict[str, _Ended] = field(default_factory=dict)
    broken: int = 0
    newer: int = 0


def files(directory: Path) -> list[Path]:
    """The files of that directory in which something may be recorded, oldest first."""
    return [path for name in (BEFORE, FILE) if (path := directory / name).is_file()]


def read(paths: Iterable[Path]) -> History:
    """What is recorded in these files. Lines that are broken, or of other versions, are counted and left out.

    Raises `OSError` for a file that cannot be read, and `InvalidValue` if they are too large.
    """
    reading, left = _Reading(), MOST_READ
    for path in paths:
        with path.open("rb") as file:
            # None of ours is longer. (What has no ends of lines is no file of ours, and may be of any size.)
            while line := file.readline(MOST_LINE + 1):
                if line.strip():
                    _take(reading, line)
                if (left := left - len(line)) < 0:
                    raise InvalidValue(f"{path}: more than {format_memory(MOST_READ)} are too much to replay")
    requests = [_with_end(one, reading.ended.get(one.id)) for one in reading.asked.values()]
    return History(
        requests=tuple(sorted(requests, key=lambda one: one.asked)),
        broken=reading.broken,
        newer=reading.newer,
    )


def _take(reading: _Reading, line: bytes) -> None:
    try:
        head = msgspec.json.decode(line, type=_Line)
        if head.schema != SCHEMA or head.line not in ("asked", "ended"):
            reading.newer += 1
        elif head.line == "ended":
            reading.ended[head.id] = msgspec.json.decode(line, type=_Ended)
        else:
            reading.asked.setdefault(head.id, _recorded(msgspec.json.decode(line, type=_Asked)))
    except (ValueError, RecursionError):  # the latter of what is nested too deep
        reading.broken += 1


def _recorded(line: _Asked) -> Recorded:
    """Raises `InvalidValue` for what nobody can have asked."""
    wishes: dict[str, Any] = {wish: getattr(line, wish) for wish in _WISHES}
    if not line.wait:  # a job that does not wait says so with 0
        wishes["wait"] = None
    memory = tuple(line.memory) if isinstance(line.memory, list) else line.memory
    request = Request(gpus=line.gpus, memory=memory, **wishes)
    return Recorded(id=line.id, asked=line.asked, request=request, job=line.job)


def _with_end(asked: Recorded, end: _Ended | None) -> Recorded:
    if end is None:
        return asked
    return Recorded(
        asked.id, asked.asked, asked.request, asked.job, end.ended, end.placed, state=end.state, reason=end.reason
    )

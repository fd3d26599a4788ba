"""Carrying files into a unit and out of it, for both launchers: a call in a worker's thread that says how far it is,
and can be cancelled at any time.

    carry(worker, …, call)   on the loop: runs `call(carrier)` in a thread
    Carrier                  in the thread: counts bytes, tells, notices that it is cancelled
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ..errors import LaunchError, StoreError
from ..memory import format_memory
from ..models import Progress
from ..scheduling.needs import OnProgress
from .tarring import whole
from .worker import Worker

__all__ = ["THREADS", "Carrier", "carry", "size_of"]

T = TypeVar("T")
THREADS = 8
"""How much is carried to and from one node at a time; the rest waits for its turn."""
TELL_EVERY = 0.25  # s
ENDS_WITHIN = 5.0  # s; for what is cancelled


class Stopped(Exception):
    """Nobody wants it any more."""


class Carrier:
    """One load. Used in one thread, but for `cancel`."""

    def __init__(self, tell: Callable[[int, int | None], None]) -> None:
        self._tell, self._told = tell, 0.0
        self._lock = threading.Lock()
        self._cancelled = False
        self._hang_up: Callable[[], None] | None = None

    def moved(self, current: int, total: int | None = None) -> None:
        """So many bytes by now. Raises `Stopped` if it is cancelled."""
        if self._cancelled:
            raise Stopped
        if time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            self._tell(current, total)

    def cancel(self) -> None:
        """From any thread: end it."""
        with self._lock:
            self._cancelled = True
            if self._hang_up is not None:
                self._hang_up()

    @contextlib.contextmanager
    def reading(self, hang_up: Callable[[], None]) -> Iterator[None]:
        """While something is read that `hang_up` ends from another thread."""
        with self._lock:
            if self._cancelled:
                raise Stopped
            self._hang_up = hang_up
        try:
            yield
        finally:
            with self._lock:
                self._hang_up = None

    @contextlib.contextmanager
    def writing(
        self, archive: Path, what: str, limit: int, total: int | None = None
    ) -> Iterator[Callable[[bytes], int]]:
        """Yields what writes to the new file `archive`, which is not there after an error. `what` is in it, for people.
        Raises `LaunchError`, also as soon as it is more than `limit` bytes, and `StoreError` if it cannot write."""
        size = 0

        def write(data: bytes) -> int:
            nonlocal size
            size += len(data)
            if size > limit:
                raise LaunchError(f"{what} is more than {format_memory(limit)}, and is not fetched")
            try:
                file.write(data)
            except OSError as error:
                raise _unwritable(archive, error) from None
            self.moved(size)
            return len(data)

        try:
            file = open(archive, "wb")  # noqa: SIM115  (closed below)
        except OSError as error:
            raise _unwritable(archive, error) from None
        try:
            yield write
            try:
                file.close()
            except OSError as error:
                raise _unwritable(archive, error) from None
            if self._cancelled:
                raise Stopped
            if not whole(archive):
                raise LaunchError(f"{what} came only in part; fetch it again")
        except BaseException:
            with contextlib.suppress(OSError):  # what it has not written yet has no room, either
                file.close()
            archive.unlink(missing_ok=True)
            raise


def size_of(archive: Path) -> int:
    """Bytes. Raises `LaunchError` for one that cannot be read."""
    try:
        with open(archive, "rb") as file:
            return file.seek(0, 2)
    except OSError as error:
        raise LaunchError(f"cannot read {archive} on this machine: {error.strerror}") from None


def _unwritable(archive: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write {archive} on this machine: {error.strerror}")


async def carry(worker: Worker, phase: str, on_progress: OnProgress, call: Callable[[Carrier], T]) -> T:
    """`call`'s result. Cancelled, it lets go within a moment, and `call` ends by itself."""
    loop = asyncio.get_running_loop()
    over = False

    def tell(current: int, total: int | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(show, Progress(phase=phase, current=current, total=total))

    def show(progress: Progress) -> None:
        if not over:
            on_progress(progress)

    on_progress(Progress(phase=phase))
    carrier = Carrier(tell)
    job = worker.submit(lambda: call(carrier))
    done = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        carrier.cancel()
        if not job.cancel():
            await asyncio.wait([done], timeout=ENDS_WITHIN)
        raise
    finally:
        over = True

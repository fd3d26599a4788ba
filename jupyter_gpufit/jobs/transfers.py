"""Files that go to a running allocation, or come from it, in the background: one `Transfer` each, which tells how far.

    upload      paths of a folder here → where the allocation works      (packing.py, Launcher.put)
    download    paths from where it works → a folder here                (Launcher.fetch, unpacking.py)

Files that are there already are replaced, as by scp; nothing is written outside the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import posixpath
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ..errors import Conflict, GpufitError, InvalidValue, NotFound
from ..inventory import NodeSpec
from ..memory import format_memory
from ..models import Allocation, Progress, State
from ..scheduling.api import Scheduler
from ..scheduling.needs import OnProgress
from ..scheduling.store import MEMORY
from .host import OUTPUTS_LIMIT
from .inthread import in_thread
from .packing import UPLOAD_LIMIT, OnBytes, inside, pack_paths
from .scratch import scratch
from .unpacking import Unpacked, unpack

__all__ = ["MOST_AT_ONCE", "MOST_KEPT", "Transfer", "Transfers"]

MOST_AT_ONCE = 16
MOST_KEPT = 100
MOST_PATHS = 1000
_log = logging.getLogger(__name__)


class Transfer(Struct, frozen=True, kw_only=True):
    """One of them, as it is now."""

    id: str
    allocation: str
    do: str
    """`upload` or `download`."""
    version: int = 0
    """Counts its changes."""
    done: bool = False
    """It has ended, well or not."""
    failed: bool = False
    message: str = ""
    """One sentence for people, or what it is at."""
    current: int | None = None
    total: int | None = None
    """Bytes."""
    files: tuple[str, ...] = ()
    """The paths that were asked for."""


class Transfers:
    """Those in progress, and the last ones. Used from one event loop; made by `open_service`.

    `spec`: a node's entry in the inventory; `where`: where archives are kept meanwhile.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        spec: Callable[[str], NodeSpec],
        where: Path | Literal[":memory:"] = MEMORY,
        *,
        upload_limit: int = UPLOAD_LIMIT,
        download_limit: int = OUTPUTS_LIMIT,
    ) -> None:
        self._scheduler, self._spec = scheduler, spec
        self._where = Path(tempfile.gettempdir()) if where == MEMORY else Path(where)
        self._upload_limit, self._download_limit = upload_limit, download_limit
        self._latest: dict[str, Transfer] = {}
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self._news: dict[str, asyncio.Event] = {}

    def begin(self, allocation: Allocation, do: str, folder: str, paths: Sequence[str]) -> Transfer:
        """Begin to `upload` or `download` `paths`; as it is then.

        Raises `InvalidValue` (no such folder or file here, one that leads out of the folder), `Conflict` (it does not
        run, too many go on).
        """
        if do not in ("upload", "download"):
            raise InvalidValue(f"{do!r} is neither 'upload' nor 'download'")
        if not 1 <= len(paths) <= MOST_PATHS:
            raise InvalidValue(f"{len(paths)} paths are given; name from 1 to {MOST_PATHS}")
        if any(not path or "\0" in path for path in paths):
            raise InvalidValue("a path is empty; name a file or a directory")
        if allocation.state is not State.RUNNING or allocation.node is None:
            raise Conflict(f"allocation {allocation.name!r} is {allocation.state}; files are copied while it runs")
        if len(self._tasks) >= MOST_AT_ONCE:
            raise Conflict(f"{MOST_AT_ONCE} copies of files go on already; wait for one of them, or cancel it")
        base = _here(folder, do)
        for path in paths:
            if do == "upload":
                inside(base, path)
            else:
                _check_theirs(path)
        transfer = Transfer(id=secrets.token_hex(8), allocation=allocation.id, do=do, files=tuple(paths))
        self._latest[transfer.id], self._news[transfer.id] = transfer, asyncio.Event()
        work = self._upload if do == "upload" else self._download
        task = asyncio.create_task(work(transfer, allocation, base), name=f"gpufit {do} {allocation.name}")
        self._tasks[transfer.id] = task
        task.add_done_callback(lambda task: self._ended(transfer.id, task))
        return transfer

    async def latest(self, id: str, after: int, wait: float) -> Transfer:
        """The transfer, once its version is greater than `after`, or it is done; at the latest after `wait` seconds.
        Raises `NotFound`."""
        self._known(id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not (now := self._known(id)).done and now.version <= after:
                    await self._news[id].wait()
        return self._known(id)

    def cancel(self, id: str) -> Transfer:
        """End it, if it goes on; as it is then. What has been copied stays. Raises `NotFound`."""
        if (task := self._tasks.get(id)) is not None:
            task.cancel()
        return self._known(id)

    async def close(self) -> None:
        """End all of them."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    # --- in the background

    def _ended(self, id: str, task: asyncio.Task[str]) -> None:
        del self._tasks[id]
        if task.cancelled():
            self._change(id, done=True, failed=True, message="it was cancelled; what had been copied by then stays")
        elif (error := task.exception()) is None:
            self._change(id, done=True, message=task.result())
        elif isinstance(error, GpufitError):
            self._change(id, done=True, failed=True, message=error.message)
        else:
            _log.error("copying files failed", exc_info=error)
            what = f"{type(error).__name__}: {error}; the server's log says more"
            self._change(id, done=True, failed=True, message=what)
        self._forget()

    async def _upload(self, transfer: Transfer, allocation: Allocation, base: Path) -> str:
        name = f"{allocation.name} on {allocation.node}"
        if self._has_itself(allocation, base):
            return f"nothing to copy: {allocation.node} has {base} itself"
        async with scratch(self._where) as room:
            archive = room / "files.tar"
            packed = await in_thread(
                lambda on_bytes: pack_paths(base, transfer.files, archive, self._upload_limit, on_bytes),
                lambda done, total: self._change(transfer.id, message="packing", current=done, total=total),
            )
            async with self._scheduler.unit(transfer.allocation) as (launcher, unit):
                await launcher.put(unit, archive, lambda progress: self._progressed(transfer.id, "uploading", progress))
        return f"{_counted(packed.files)} ({format_memory(packed.bytes)}) copied to {name}"

    async def _download(self, transfer: Transfer, allocation: Allocation, base: Path) -> str:
        if self._has_itself(allocation, base) and not any(map(_is_absolute, transfer.files)):
            if (missing := next((path for path in transfer.files if not (base / path).exists()), None)) is not None:
                raise NotFound(f"there is no {missing!r} in {base}, which {allocation.node} has itself")
            return f"nothing to copy: {allocation.node} has {base} itself"
        files = size = 0
        left = self._download_limit
        for number, path in enumerate(transfer.files, 1):
            at = path if len(transfer.files) == 1 else f"{path} ({number} of {len(transfer.files)})"
            async with scratch(self._where) as room:
                archive = room / "files.tar"
                async with self._scheduler.unit(transfer.allocation) as (launcher, unit):
                    tell = _telling(self._progressed, transfer.id, at)
                    await launcher.fetch(unit, path, archive, left, tell)
                came = await in_thread(_unpacking(archive, base, path, left))
            files, size, left = files + came.files, size + came.bytes, left - came.bytes
        return f"{_counted(files)} ({format_memory(size)}) copied to {base}"

    def _has_itself(self, allocation: Allocation, base: Path) -> bool:
        """Whether what is in `base` is already where it would be copied to, and from."""
        spec = self._spec(allocation.node or "")
        folder = allocation.request.folder
        if spec.launcher == "process" and allocation.request.job is None:
            return True  # a kernel that sees all this machine has
        return folder is not None and spec.shares(folder) and base == Path(os.path.realpath(folder))

    def _progressed(self, id: str, message: str, progress: Progress) -> None:
        self._change(id, message=message, current=progress.current, total=progress.total)

    def _change(self, id: str, **changes: object) -> None:
        now = self._latest.get(id)
        if now is None or now.done:
            return
        self._latest[id] = msgspec.structs.replace(now, version=now.version + 1, **changes)
        news, self._news[id] = self._news[id], asyncio.Event()
        news.set()

    def _forget(self) -> None:
        """What is older than the last `MOST_KEPT`, and done."""
        over = [id for id, transfer in self._latest.items() if transfer.done]
        for id in over[: max(len(self._latest) - MOST_KEPT, 0)]:
            del self._latest[id], self._news[id]

    def _known(self, id: str) -> Transfer:
        if id not in self._latest:
            raise NotFound(f"there is no transfer {id!r}, or it ended long ago")
        return self._latest[id]


def _here(folder: str, do: str) -> Path:
    """The folder on this machine."""
    if not os.path.isabs(folder):
        raise InvalidValue(f"folder is {folder!r}; give an absolute path")
    if not os.path.isdir(folder):
        raise InvalidValue(f"{folder} is no folder on this machine; make it, or name another one")
    if do == "download" and not os.access(folder, os.W_OK):
        raise InvalidValue(f"{folder} cannot be written; name another folder")
    return Path(folder).resolve()


def _is_absolute(path: str) -> bool:
    return path.startswith(("/", "{"))  # `{outputs}` is one


def _check_theirs(path: str) -> None:
    """Raises `InvalidValue` for a path from which no name here could be made."""
    if ".." in path.split("/"):
        if _is_absolute(path):
            raise InvalidValue(f"{path} has '..' in it; write the path without that")
        raise InvalidValue(f"{path} leads out of the directory it works in; give an absolute path")
    if posixpath.normpath(path) in ("/", "//"):
        raise InvalidValue(f"{path} is all there is in it; name a file or a directory")


def _unpacking(archive: Path, base: Path, path: str, limit: int) -> Callable[[OnBytes], Unpacked]:
    """Unpacks what was fetched as `path`: a relative one to its like in the folder, an absolute one into the folder."""
    name = posixpath.normpath(path)
    into = base if _is_absolute(path) else base / posixpath.dirname(name)

    def call(on_bytes: OnBytes) -> Unpacked:
        real = Path(os.path.realpath(into))
        if not real.is_relative_to(base):
            raise InvalidValue(f"{into} leads out of {base}, to {real}; nothing is written there")
        return unpack(archive, into, limit, strip=1 if name == "." else 0, on_bytes=on_bytes)

    return call


def _telling(tell: Callable[[str, str, Progress], None], id: str, at: str) -> OnProgress:
    return lambda progress: tell(id, at, progress)


def _counted(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"

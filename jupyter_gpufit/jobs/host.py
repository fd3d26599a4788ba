"""The files of jobs on this machine: `needs.JobHost`.

    <store>/jobs/<id>/files.tar     its folder as it was when it was asked for; those of a sweep are one file on disk
    <store>/jobs/<id>/outputs       (text) where its outputs come home to, once that is decided
    <store>/jobs/<id>/direct        (empty) there is one if its unit writes them there itself
    <folder>/outputs/<name>/        its outputs; below the store, if the folder cannot be written

Where a node has the folder itself (`shared` in the inventory, or a plain process) nothing is copied: a job works in it,
and its outputs are written where they belong.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Container, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from traitlets import Int
from traitlets.config import LoggingConfigurable

from ..errors import GpufitError, InvalidValue, LaunchError, NotFound
from ..inventory import NodeSpec
from ..models import Allocation, Endpoint, JobKind, Request, Unit
from ..scheduling.needs import Launcher, OnProgress
from ..scheduling.store import MEMORY
from . import contents
from .checking import check_job, file_of
from .inthread import in_thread, of_phase
from .packing import UPLOAD_LIMIT, pack, pack_all
from .places import is_empty, is_sound, new_place, remove_empty
from .rules import Rules
from .scratch import clean, scratch, writing
from .unpacking import unpack

__all__ = ["OUTPUTS_LIMIT", "LocalJobHost"]

OUTPUTS_LIMIT = 64 * 2**30

_FILES = "files.tar"
_PLACE = "outputs"
_DIRECT = "direct"
_UNIT_OUTPUTS = "{outputs}"
_LEFT_OUT = "gpufit-left-out.txt"


class LocalJobHost(LoggingConfigurable):
    """`needs.JobHost`. `where`: the directory of the store, or `":memory:"`, and then files are kept until `close`.
    `nodes`: those of the inventory, of which may or may not have a folder themselves. Made by `open_service`."""

    upload_limit = Int(UPLOAD_LIMIT, help="Bytes of a folder that are copied to a node at most.").tag(config=True)
    outputs_limit = Int(OUTPUTS_LIMIT, help="Bytes of outputs that a job brings home at most.").tag(config=True)

    def __init__(
        self,
        where: Path | Literal[":memory:"] = MEMORY,
        nodes: Callable[[], Sequence[NodeSpec]] = lambda: (),
        **kwargs: Any,
    ) -> None:
        if kwargs.get("log", self) is None:
            del kwargs["log"]
        super().__init__(**kwargs)
        self._nodes = nodes
        self._store = None if where == MEMORY else Path(where)
        self._memory: tempfile.TemporaryDirectory[str] | None = None
        self._making = threading.Lock()

    async def check_in(self, ids: Sequence[str], request: Request) -> None:
        await in_thread(lambda on_bytes: self._check_in(ids, request, on_bytes))

    async def start(
        self, allocation: Allocation, unit: Unit, spec: NodeSpec, launcher: Launcher, on_progress: OnProgress
    ) -> Endpoint:
        job, folder = _job(allocation), allocation.request.folder
        mounted = folder is not None and spec.shares(folder)
        place = await asyncio.to_thread(self._place, allocation)
        if not mounted:
            async with scratch(self._where) as room:
                archive = await in_thread(
                    lambda on_bytes: self._files(allocation, room, on_bytes), of_phase("uploading", on_progress)
                )
                await launcher.put(unit, archive, on_progress)
        outputs = str(place) if mounted and self._at_home(allocation, place) else _UNIT_OUTPUTS
        await asyncio.to_thread(self._note_direct, allocation, outputs != _UNIT_OUTPUTS)
        if outputs == _UNIT_OUTPUTS:
            async with scratch(self._where) as room:
                archive = room / "outputs.tar"
                await in_thread(lambda on_bytes: pack_all(place, archive, on_bytes))
                await launcher.put(unit, archive, on_progress, _UNIT_OUTPUTS)
        run = await asyncio.to_thread(_run, allocation)
        files = contents.files(allocation, job, run, _whose(spec, allocation))
        return await launcher.start(unit, contents.command(job, outputs), files, {})

    async def collect(
        self, allocation: Allocation, unit: Unit, spec: NodeSpec, launcher: Launcher, on_progress: OnProgress
    ) -> str | None:
        place = await asyncio.to_thread(self._place, allocation)
        if (self._of(allocation.id) / _DIRECT).exists():
            return await _home(place)
        async with scratch(self._where) as room:
            archive = room / "outputs.tar"
            try:
                await launcher.fetch(unit, _UNIT_OUTPUTS, archive, self.outputs_limit, on_progress)
            except NotFound:
                return await _home(place)  # what an attempt before has brought
            except LaunchError as error:
                raise LaunchError(f"its outputs were not brought home: {error.message}") from None
            try:
                await in_thread(
                    lambda on_bytes: self._bring_home(archive, place, on_bytes), of_phase("collecting", on_progress)
                )
            except InvalidValue as error:
                kept = await asyncio.to_thread(self._keep, archive, allocation)
                raise LaunchError(f"its outputs are in {kept}, and were not unpacked: {error.message}") from None
        return await _home(place)

    def forget(self, id: str) -> None:
        if self._store is None and self._memory is None:
            return
        with contextlib.suppress(OSError):
            remove_empty(Path((self._of(id) / _PLACE).read_text()))
        shutil.rmtree(self._of(id), ignore_errors=True)

    def forget_others(self, known: Container[str]) -> None:
        if self._store is None:
            return  # of another process there is nothing
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._jobs):
                if entry.name not in known:
                    self.forget(entry.name)
        clean(self._where)

    def close(self) -> None:
        """Remove what was kept for as long as this process."""
        if self._memory is not None:
            self._memory.cleanup()
            self._memory = None

    # --- in threads

    @property
    def _where(self) -> Path:
        if self._store is not None:
            return self._store
        with self._making:  # two jobs are checked in by two threads
            if self._memory is None:
                self._memory = tempfile.TemporaryDirectory(prefix="gpufit-jobs-", ignore_cleanup_errors=True)
            return Path(self._memory.name)

    @property
    def _jobs(self) -> Path:
        return self._where / "jobs"

    def _of(self, id: str) -> Path:
        return self._jobs / id

    def _check_in(self, ids: Sequence[str], request: Request, on_bytes: Callable[[int, int], None]) -> None:
        check_job(request)
        made: list[Path] = []
        try:
            with writing(self._where):
                self._jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
                for id in ids:
                    self._of(id).mkdir(mode=0o700)
                    made.append(self._of(id))
            if request.folder is not None and self._is_copied(request, request.folder):
                _check_travels(request)
                first, *others = (directory / _FILES for directory in made)
                pack(Path(request.folder), first, self.upload_limit, on_bytes)
                with writing(self._where):
                    for other in others:
                        _same(first, other)
        except BaseException:
            for directory in made:
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def _is_copied(self, request: Request, folder: str) -> bool:
        """Whether it may get to a node that does not have its folder."""
        nodes = self._nodes()
        if request.node is not None:
            nodes = [node for node in nodes if fnmatchcase(node.name, request.node)]
        return not nodes or any(not node.shares(folder) for node in nodes)

    def _files(self, allocation: Allocation, room: Path, on_bytes: Callable[[int, int], None]) -> Path:
        """The archive of its folder."""
        archive = self._of(allocation.id) / _FILES
        if archive.exists():
            return archive
        archive, folder = room / _FILES, allocation.request.folder
        if folder is None:
            pack_all(room / "nothing", archive)
            return archive
        try:  # every node had it, when this was asked for
            pack(Path(folder), archive, self.upload_limit, on_bytes)
        except InvalidValue as error:
            raise LaunchError(error.message) from None
        return archive

    def _place(self, allocation: Allocation) -> Path:
        """Where its outputs come home to; the same for all its attempts."""
        note = self._of(allocation.id) / _PLACE
        with contextlib.suppress(OSError):
            place = Path(note.read_text())
            if is_sound(place):
                place.mkdir(parents=True, exist_ok=True)
                return place
        with writing(self._where):
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place = self._new_place(allocation)
            note.write_text(str(place))
        return place

    def _new_place(self, allocation: Allocation) -> Path:
        if (folder := allocation.request.folder) is not None:
            try:
                return new_place(Path(folder), allocation.name)
            except OSError as error:
                self.log.warning(
                    "the outputs of job %s cannot be kept in %s: %s", allocation.name, folder, error.strerror
                )
        return new_place(self._for_people(), allocation.name)

    def _for_people(self) -> Path:
        """Where they find what could not be kept in their folder: not in what goes with this process."""
        return self._store or Path(tempfile.mkdtemp(prefix="gpufit-"))

    def _keep(self, archive: Path, allocation: Allocation) -> Path:
        """Put outputs that could not be unpacked out of the way: they may be the work of days, and their unit goes."""
        with writing(self._where):
            place = new_place(self._for_people(), allocation.name)
            return Path(shutil.move(archive, place / archive.name))

    def _note_direct(self, allocation: Allocation, direct: bool) -> None:
        """Remember whether its outputs are written where they belong."""
        with writing(self._where):
            if direct:
                (self._of(allocation.id) / _DIRECT).touch()
            else:
                (self._of(allocation.id) / _DIRECT).unlink(missing_ok=True)

    def _at_home(self, allocation: Allocation, place: Path) -> bool:
        """Whether the place is in its folder."""
        return allocation.request.folder is not None and place.is_relative_to(allocation.request.folder)

    def _bring_home(self, archive: Path, place: Path, on_bytes: Callable[[int, int], None]) -> None:
        came = unpack(archive, place, self.outputs_limit, strip=1, root="/outputs", lenient=True, on_bytes=on_bytes)
        if came.left_out:
            note = place / _LEFT_OUT
            with contextlib.suppress(OSError):  # a directory of that name is in the way: the log says it, too
                note.unlink(missing_ok=True)  # it may be a link
                with open(note, "x", encoding="utf-8", errors="replace") as file:
                    file.writelines(f"{sentence}\n" for sentence in came.left_out)
            self.log.warning("%d of the outputs were left out, see %s", len(came.left_out), note)


async def _home(place: Path) -> str | None:
    """Where its outputs are, if there are any."""
    return None if await asyncio.to_thread(is_empty, place) else str(place)


def _job(allocation: Allocation) -> Any:
    job = allocation.request.job
    assert job is not None
    return job


def _run(allocation: Allocation) -> str:
    """Its script or notebook, relative to where it works."""
    job = _job(allocation)
    if job.kind is JobKind.COMMAND:
        return ""
    try:
        return str(file_of(allocation.request))
    except GpufitError:  # moved meanwhile; the copy in the unit is as it was
        return str(PurePosixPath(job.file))


def _whose(spec: NodeSpec, allocation: Allocation) -> str:
    """What has to have what a job needs, for people."""
    if spec.launcher == "process":
        return f"node {spec.name}, where plain processes run,"
    return f"image {allocation.request.image or spec.image}"


def _check_travels(request: Request) -> None:
    """Raises `InvalidValue` for a script that the rules leave here."""
    job, folder = request.job, Path(request.folder or "")
    assert job is not None
    if job.kind is JobKind.COMMAND:
        return
    name = file_of(request)
    if (why := Rules(folder.resolve()).why(str(name))) is not None:
        raise InvalidValue(
            f"{name} does not get to the node: .gitignore, .gpufitignore or a rule of our own leaves {why} here; "
            f"write !{why} into {folder}/.gpufitignore"
        )


def _same(file: Path, other: Path) -> None:
    """`other` as a second name of `file`; a copy, where there is no such thing."""
    try:
        os.link(file, other)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        shutil.copyfile(file, other)

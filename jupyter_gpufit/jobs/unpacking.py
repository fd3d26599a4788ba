"""Archives into folders, whoever made them: nothing is ever written outside the folder, and a refused archive leaves
nothing in it.

An archive is looked through first, then unpacked beside what is there, then put into its place file by file. Blocks: is
called in threads (inthread.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from ..errors import InvalidValue
from ..memory import format_memory
from .packing import DEEPEST, OnBytes, Packed, stays_inside

__all__ = ["MOST_MEMBERS", "Unpacked", "unpack"]

MOST_MEMBERS = 200_000
_CHUNK = 2**20


class Unpacked(Packed, frozen=True):
    """What came of an archive."""

    left_out: tuple[str, ...] = ()
    """Sentences on what was not taken."""


class _Member(Struct, frozen=True):
    info: tarfile.TarInfo
    name: PurePosixPath


def unpack(
    archive: Path,
    into: Path,
    limit: int,
    *,
    strip: int = 0,
    root: str | None = None,
    lenient: bool = False,
    on_bytes: OnBytes | None = None,
) -> Unpacked:
    """Unpack `archive` in the folder `into` (made if missing); files that are there are replaced.

    `strip`: how many parts each name begins with that are left out. `root`: where the archive was made of: links to an
    absolute path below it are made relative. `lenient`: what cannot be taken is left out, and
    said; else it raises `InvalidValue` with that sentence. It does so in any case for what is no archive, has more than
    `limit` bytes, or does not go together with what is there.
    """
    try:
        with tarfile.open(archive, "r:", errors="surrogateescape") as tar:
            members, left_out = _looked_through(tar, limit, strip, root, lenient)
            total = sum(member.info.size for member in members if member.info.isreg())
            _check_place(members, into)
            made = not into.exists()
            into.mkdir(parents=True, exist_ok=True)
            stage = Path(tempfile.mkdtemp(prefix=".gpufit-", dir=into))
            try:
                _extract(tar, members, stage, total, on_bytes)
                _move(stage, into)
            except BaseException:
                shutil.rmtree(stage, ignore_errors=True)
                if made:
                    with _quiet():
                        into.rmdir()
                raise
            shutil.rmtree(stage, ignore_errors=True)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(f"what came is no sound archive ({error}); ask for it again") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InvalidValue(f"there is no room in {into}; free some there") from None
        raise InvalidValue(f"cannot write in {into}: {error.strerror or error}") from None
    files = [member for member in members if not member.info.isdir()]
    return Unpacked(files=len(files), bytes=total, left_out=tuple(left_out))


# --- looking through it -----------------------------------------------------------------------------------------------


def _looked_through(
    tar: tarfile.TarFile, limit: int, strip: int, root: str | None, lenient: bool
) -> tuple[list[_Member], list[str]]:
    """Its members that may be unpacked, and why not the others."""
    members: dict[PurePosixPath, _Member] = {}
    left_out: list[str] = []
    total = 0
    for count, info in enumerate(_infos(tar), 1):
        if count > MOST_MEMBERS:
            raise InvalidValue(f"the archive has more than {MOST_MEMBERS:,} files; ask for a part of it")
        name = PurePosixPath(info.name)
        if root is not None and info.issym() and PurePosixPath(info.linkname).is_relative_to(root):
            info.linkname = os.path.relpath(info.linkname, PurePosixPath(root, *name.parts[strip:]).parent)
        if (refusal := _refusal(info, name, members, strip)) is not None:
            if not lenient:
                raise InvalidValue(refusal)
            left_out.append(refusal)
            continue
        name = PurePosixPath(*name.parts[strip:])
        if not name.parts:
            continue
        if info.isreg():
            total += max(info.size, 0)
        if total > limit:
            raise InvalidValue(
                f"the archive has more than {format_memory(limit)}; ask for a part of it", limit=limit, size=total
            )
        members[name] = _Member(info, name)
    files = {name for name, member in members.items() if not member.info.isdir()}
    sound = []
    for name, member in members.items():
        above = next((parent for parent in name.parents if parent in files), None)
        if above is None:
            sound.append(member)
            continue
        refusal = f"{name} in the archive is below {above}, which is no directory"
        if not lenient:
            raise InvalidValue(refusal)
        left_out.append(refusal)
    return sound, left_out


def _infos(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (info := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # else they are kept, and looked through for each link
        yield info
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)  # for tarfile, one that was cut off ends there
    if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0") or tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it ends early")


def _refusal(
    info: tarfile.TarInfo, name: PurePosixPath, before: dict[PurePosixPath, _Member], strip: int
) -> str | None:
    """Why a member cannot be taken."""
    shown = _shown(info.name)
    if name.is_absolute():
        return f"{shown} in the archive is an absolute name; only what is below the folder is taken"
    if ".." in name.parts or "\0" in info.name:
        return f"{shown} in the archive leads out of the folder"
    if len(name.parts) > DEEPEST:
        return f"{shown} in the archive is deeper than {DEEPEST} directories"
    if info.issym():
        if stays_inside("/".join(name.parts[strip:]), info.linkname):
            return None
        return f"the link {shown} in the archive leads out of the folder, to {_shown(info.linkname)}"
    if info.islnk():
        target = PurePosixPath(*PurePosixPath(info.linkname).parts[strip:])
        if PurePosixPath(info.linkname).is_absolute() or target not in before or not before[target].info.isreg():
            return f"{shown} in the archive is a second name of {_shown(info.linkname)}, which is not in it"
        return None
    if not (info.isreg() or info.isdir()):
        return f"{shown} in the archive is a device or a pipe; only files, directories and links are taken"
    return None


def _shown(name: str) -> str:
    shown = name.encode("utf-8", "replace").decode()
    return repr(shown if len(shown) <= 100 else shown[:99] + "…")


def _check_place(members: list[_Member], into: Path) -> None:
    """Raises `InvalidValue` if they do not go together with what is in `into`."""
    if not os.path.lexists(into):
        return
    base = _real(into)
    if not base.is_dir():
        raise InvalidValue(f"{into} is no directory; move it away, or name another folder")
    sound: set[PurePosixPath] = set()
    for member in members:
        for parent in member.name.parents:
            if not parent.parts or parent in sound:
                continue
            path = into / parent
            if not os.path.lexists(path):
                continue
            if not _real(path).is_relative_to(base):
                raise InvalidValue(f"{path} leads out of {into}, to {_real(path)}; nothing is written there")
            if not path.is_dir():
                raise InvalidValue(f"{path} is a file here and a directory there; move it away")
            sound.add(parent)
        path = into / member.name
        if member.info.isdir() and path.is_symlink() and not _real(path).is_relative_to(base):
            raise InvalidValue(f"{path} leads out of {into}, to {_real(path)}; nothing is written there")
        if member.info.issym():  # by a link that is here it may come to lie less deep than its name says
            at = _real(path.parent).relative_to(base) / path.name
            if not stays_inside(at.as_posix(), member.info.linkname):
                where = f"the link {path} would lead out of {into}, as a link here puts it in {_real(path.parent)}"
                raise InvalidValue(f"{where}; nothing is written there")
        if os.path.lexists(path) and path.is_dir() != member.info.isdir() and not path.is_symlink():
            here, there = ("directory", "file") if path.is_dir() else ("file", "directory")
            raise InvalidValue(f"{path} is a {here} here and a {there} there; move it away")
        if member.info.isdir() and path.is_symlink() and not path.is_dir():
            raise InvalidValue(f"{path} is a file here and a directory there; move it away")


def _real(path: Path) -> Path:
    """Where it leads. (`Path.resolve` has an error for links that lead to each other.)"""
    return Path(os.path.realpath(path))


# --- unpacking it -----------------------------------------------------------------------------------------------------


def _extract(tar: tarfile.TarFile, members: list[_Member], stage: Path, total: int, on_bytes: OnBytes | None) -> None:
    """Into an empty directory. Links come last, so nothing is written through one."""
    done = 0
    for member in members:
        path = stage / member.name
        if member.info.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.info.isreg():
            path.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member.info)
            assert source is not None
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with source, open(descriptor, "wb") as file:
                while data := source.read(_CHUNK):
                    file.write(data)
                    done += len(data)
                    if on_bytes is not None:
                        on_bytes(done, total)
                if file.tell() != member.info.size:
                    raise tarfile.ReadError("unexpected end of data")
                os.fchmod(descriptor, member.info.mode & 0o777 & ~_UMASK | 0o600)
            with _quiet():
                os.utime(path, (member.info.mtime, member.info.mtime))
    for member in members:
        path = stage / member.name
        if member.info.islnk():
            path.parent.mkdir(parents=True, exist_ok=True)
            strip = len(PurePosixPath(member.info.name).parts) - len(member.name.parts)
            os.link(stage.joinpath(*PurePosixPath(member.info.linkname).parts[strip:]), path, follow_symlinks=False)
    for member in members:
        path = stage / member.name
        if member.info.issym():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(PurePosixPath(member.info.linkname), path)


def _move(stage: Path, into: Path) -> None:
    """All that is in `stage` to its place."""
    for directory, folders, files in os.walk(stage):
        there = into / Path(directory).relative_to(stage)
        for name in (*files, *folders):
            source = Path(directory, name)
            if stat.S_ISDIR(source.lstat().st_mode):
                (there / name).mkdir(exist_ok=True)
            else:
                os.replace(source, there / name)


def _quiet() -> contextlib.suppress:
    """Errors of the file system that do not matter."""
    return contextlib.suppress(OSError, OverflowError, ValueError)


def _read_umask() -> int:
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration, ValueError):
        return 0o022


_UMASK = _read_umask()

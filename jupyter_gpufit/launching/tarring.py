"""Tar files on their way into a unit: given to its user for a container, or unpacked here for a process.

What is in an archive was looked at by who made it (jobs/packing.py); here nothing leaves the directory it is meant for.
Nothing is held in memory but a chunk.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import LaunchError

__all__ = ["CHUNK", "given_to", "pack", "unpack", "whole"]

CHUNK = 2**18
_END = bytes(2 * tarfile.BLOCKSIZE)


def given_to(
    owner: tuple[int, int] | None, archive: Path, prefix: Sequence[str], folders: int, moved: Callable[[int], None]
) -> Iterator[bytes]:
    """The bytes of `archive` with each name below `prefix`, and all its files given to `owner` (uid, gid); first the
    last `folders` directories of the prefix themselves.

    Without an owner (a user that the image does not have) everybody may read and write them. `moved` is told how many
    bytes came of how much was read; what it raises ends it. Raises `LaunchError` for an archive that cannot be used.
    """
    buffer = bytearray()

    def put(info: tarfile.TarInfo) -> None:
        info.uid, info.gid = owner or (0, 0)
        info.mode &= 0o777
        if owner is None:
            info.mode |= 0o777 if info.isdir() else 0o666
        buffer.extend(info.tobuf(tarfile.GNU_FORMAT))

    with _opened(archive) as tar:
        now = archive.stat().st_mtime
        for depth in range(len(prefix) - folders + 1, len(prefix) + 1):
            folder = tarfile.TarInfo("/".join(prefix[:depth]))
            folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o755, now
            put(folder)
        for member, parts in _members(tar):
            info = tarfile.TarInfo("/".join((*prefix, *parts)))
            info.mode, info.mtime, info.linkname = member.mode, int(member.mtime), member.linkname
            info.type = tarfile.REGTYPE if member.isreg() else member.type
            if member.islnk():
                info.linkname = "/".join((*prefix, *_parts(member.linkname)))
            info.size = member.size if member.isreg() else 0
            put(info)
            if len(buffer) >= CHUNK:
                yield bytes(buffer)
                buffer.clear()
            source = tar.extractfile(member) if member.isreg() else None
            left = info.size
            while source is not None and left:
                data = source.read(min(left, CHUNK))
                if not data:
                    raise LaunchError(f"{archive} ends in the middle of {member.name!r}")
                left -= len(data)
                buffer += data
                if len(buffer) >= CHUNK:
                    yield bytes(buffer)
                    buffer.clear()
                    moved(tar.offset - left)
            buffer += bytes(-info.size % tarfile.BLOCKSIZE)
        moved(tar.offset)
    buffer += _END
    yield bytes(buffer)


def unpack(archive: Path, target: str, moved: Callable[[int], None]) -> None:
    """Unpack `archive` in the directory `target`, and nowhere else, whatever links there are in it or come with the
    archive. What is there already is replaced, but no directory by a file. Raises `LaunchError` and `OSError`."""
    root = os.path.realpath(target)
    with _opened(archive) as tar:
        for member, parts in _members(tar):
            if not parts:
                continue
            path = os.path.join(_inside(root, parts[:-1], member.name), parts[-1])
            if member.isdir():
                if os.path.islink(path) or not os.path.isdir(path):
                    _remove(path)
                    os.mkdir(path)
                os.chmod(path, member.mode & 0o777 | 0o700)
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                raise LaunchError(f"{member.name!r} is a directory there already, and cannot be replaced by a file")
            _remove(path)
            if member.issym():
                os.symlink(member.linkname, path)
            elif member.islnk():
                first = _parts(member.linkname)
                os.link(os.path.join(_inside(root, first[:-1], member.name), *first[-1:]), path, follow_symlinks=False)
            else:
                _copy(tar, member, path, moved)
            moved(tar.offset)


def pack(path: str, write: Callable[[bytes], int]) -> None:
    """`write` a tar of `path`, a file or directory of this machine, names in it beginning with its last part. What goes
    away meanwhile is left out. Raises `LaunchError` for what cannot be read."""
    with tarfile.open(fileobj=_Sink(write), mode="w") as tar:  # type: ignore[call-overload]
        todo = [(path, os.path.basename(path))]
        while todo:
            place, name = todo.pop()
            try:
                if (info := tar.gettarinfo(place, name)) is None:  # a socket
                    continue
                if info.isreg():
                    with open(place, "rb") as file:
                        tar.addfile(info, file)
                else:
                    tar.addfile(info)
                if info.isdir():
                    todo += ((os.path.join(place, each), f"{name}/{each}") for each in sorted(os.listdir(place))[::-1])
            except FileNotFoundError:
                continue
            except OSError as error:
                why = error.strerror or "it changed meanwhile; try again"
                raise LaunchError(f"{place} cannot be read: {why}") from None


class _Sink:
    """What `tarfile` needs of a file to write to."""

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self._write, self._size = write, 0

    def write(self, data: bytes) -> int:
        self._size += len(data)
        return self._write(data)

    def tell(self) -> int:
        return self._size


def whole(archive: Path) -> bool:
    """Whether a tar file ends as one does."""
    with open(archive, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(_END), 0))
        return size % tarfile.BLOCKSIZE == 0 and file.read() == _END


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive, "r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise LaunchError(f"{archive} is no tar file that can be used: {error}") from None


def _members(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, tuple[str, ...]]]:
    """Each with the parts of its name; the directory itself has none."""
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]  # or it remembers each of millions
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise LaunchError(f"{member.name!r} is neither a file, a directory nor a link, and cannot be put there")
        yield member, _parts(member.name)


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise LaunchError(f"{name!r} would lie outside the directory it is meant for")
    return parts


def _inside(root: str, folders: Sequence[str], name: str) -> str:
    """The directory `folders` below `root`, made if need be; `name` is what goes there."""
    path = os.path.realpath(os.path.join(root, *folders))
    if path != root and not path.startswith(root.rstrip("/") + "/"):
        raise LaunchError(f"{name!r} would lie outside the directory it is meant for: a link leads to {path}")
    os.makedirs(path, exist_ok=True)
    return path


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, moved: Callable[[int], None]) -> None:
    source = tar.extractfile(member)
    assert source is not None
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        while data := source.read(CHUNK):
            file.write(data)
            moved(tar.offset)
        os.fchmod(file.fileno(), member.mode & 0o777 | 0o600)
    os.utime(path, (member.mtime, member.mtime))

"""Folders into archives: what a job or an upload takes along of this machine.

    pack(folder, archive, limit)                 all of it, less what the rules leave here (rules.py)
    pack_paths(folder, paths, archive, limit)    what somebody named

An archive is an uncompressed tar of names relative to the folder; owners are left out (the launcher knows whose the
files will be). All of this blocks: it is called in threads (inthread.py).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from msgspec import Struct

from ..errors import InvalidValue
from ..memory import format_memory
from .rules import Rules

__all__ = [
    "DEEPEST",
    "MOST_FILES",
    "UPLOAD_LIMIT",
    "OnBytes",
    "Packed",
    "pack",
    "pack_all",
    "pack_paths",
    "stays_inside",
]

UPLOAD_LIMIT = 2**30
MOST_FILES = 100_000
DEEPEST = 128
_LARGEST_SHOWN = 3

OnBytes = Callable[[int, int], None]
"""Hears of bytes done, and of those in all. May raise, to end it."""


class Packed(Struct, frozen=True):
    """What an archive holds."""

    files: int
    bytes: int


class _Found(Struct, frozen=True):
    """Something that will be packed."""

    path: str
    name: str
    """Relative to the folder."""
    size: int = 0
    link: str | None = None
    directory: bool = False


def pack(folder: Path, archive: Path, limit: int = UPLOAD_LIMIT, on_bytes: OnBytes | None = None) -> Packed:
    """Write what is in `folder` to `archive`, less what the rules leave here.

    Raises `InvalidValue`: no such folder, a link that leads out of it, a file that cannot be read, more than `limit`
    bytes. Then there is no archive.
    """
    base = _base(folder)
    walk = _Walk(base, Rules(base))
    found = list(walk.below(str(base), ""))
    _check_size(str(folder), found, limit)
    return _write(found, archive, on_bytes)


def pack_paths(
    folder: Path, paths: Sequence[str], archive: Path, limit: int = UPLOAD_LIMIT, on_bytes: OnBytes | None = None
) -> Packed:
    """Likewise for `paths` of the folder (relative to it, or absolute). One that is named is taken whatever the rules
    say of it; they hold for what is below it. Raises `InvalidValue` also for one that is not there, or leads out."""
    base = _base(folder)
    found: dict[str, _Found] = {}
    for text in paths:
        name = inside(base, text)
        if not name:
            below = _Walk(base, Rules(base)).below(str(base), "")
        elif (rules := Rules(base, outputs=False)).why(name, (base / name).is_dir()) is None:
            below = _Walk(base, rules).named(name)
        else:  # those that say it stays here are of no concern
            below = _Walk(base, Rules(base / name, outputs=False, above=False), top=name).named(name)
        for each in below:
            found.setdefault(each.name, each)
    _check_size(", ".join(paths), list(found.values()), limit)
    return _write(list(found.values()), archive, on_bytes, itself=False)


def pack_all(folder: Path, archive: Path, on_bytes: OnBytes | None = None) -> Packed:
    """Everything in `folder`, without rules or limit: outputs that a job shall have again. Links that lead out are left
    here. An empty archive (of the folder alone) if there is no such folder."""
    base = folder.resolve()
    found = list(_Walk(base, None).below(str(base), "")) if base.is_dir() else []
    return _write(found, archive, on_bytes)


def inside(base: Path, text: str) -> str:
    """What `text` names in the folder `base`, relative to it; empty for that itself.

    Raises `InvalidValue` for what is not there, is not in it, or leads out of it.
    """
    path = Path(os.path.normpath(base / os.path.expanduser(text)))
    if not path.is_relative_to(base):
        path = Path(os.path.realpath(path))
        if not path.is_relative_to(base):  # it may have been named by a link to the folder
            raise InvalidValue(f"{text} is not in {base}; copy it there, or name a path below that folder")
    if not os.path.lexists(path):
        raise InvalidValue(f"there is no {text} in {base}" + _there_is(base))
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(base):
        raise InvalidValue(f"{text} leads out of {base}, to {real}; copy that into the folder")
    return "" if path == base else path.relative_to(base).as_posix()


# --- what there is ----------------------------------------------------------------------------------------------------


class _Walk:
    """What is in a folder that may travel. `top`: where (below `base`) the rules begin."""

    def __init__(self, base: Path, rules: Rules | None, top: str = "") -> None:
        self._base, self._rules, self._cut = base, rules, len(top) + 1 if top else 0
        self._count = 0

    def named(self, name: str) -> Iterator[_Found]:
        """`name` itself, whatever the rules say of it, and what is below it."""
        path = os.path.join(self._base, name)
        parts = name.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            yield _Found(os.path.join(self._base, parent), parent, directory=True)
        try:
            found = self._look(path, name, os.lstat(path))
        except OSError as error:
            raise _unreadable(name, error) from None
        if found is not None:
            yield found
            if found.directory:
                yield from self.below(path, name)

    def below(self, directory: str, name: str) -> Iterator[_Found]:
        """What is in `directory`, which is called `name`."""
        waiting = [(directory, name)]
        while waiting:
            directory, name = waiting.pop()
            try:
                with os.scandir(directory) as entries:
                    inside = sorted(entries, key=lambda entry: entry.name)
            except FileNotFoundError:
                continue  # gone meanwhile
            except OSError as error:
                raise _unreadable(name, error) from None
            for entry in inside:
                if (found := self._entry(entry, f"{name}/{entry.name}" if name else entry.name)) is not None:
                    yield found
                    if found.directory:
                        waiting.append((found.path, found.name))

    def _entry(self, entry: os.DirEntry[str], name: str) -> _Found | None:
        directory = entry.is_dir(follow_symlinks=False)
        if self._rules is not None and self._rules.ignored(name[self._cut :], directory):
            return None
        try:
            return self._look(entry.path, name, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None  # gone meanwhile
        except OSError as error:
            raise _unreadable(name, error) from None

    def _look(self, path: str, name: str, info: os.stat_result) -> _Found | None:
        self._count += 1
        if self._count > MOST_FILES and self._rules is not None:
            raise InvalidValue(
                f"{self._base} has more than {MOST_FILES:,} files; list what is not needed in .gpufitignore, "
                "or choose a smaller folder"
            )
        if name.count("/") >= DEEPEST and self._rules is not None:
            raise InvalidValue(f"{name[:80]}… is deeper than {DEEPEST} directories; list it in .gpufitignore")
        if stat.S_ISLNK(info.st_mode):
            return self._link(path, name)
        if stat.S_ISDIR(info.st_mode):
            return _Found(path, name, directory=True)
        if stat.S_ISREG(info.st_mode):
            return _Found(path, name, size=info.st_size)
        return None  # a socket, a FIFO, a device

    def _link(self, path: str, name: str) -> _Found | None:
        target = os.readlink(path)
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self._base):
            if self._rules is None:
                return None
            raise InvalidValue(
                f"the link {name} leads out of {self._base}, to {real}; list it in .gpufitignore, "
                "or put a copy in its place"
            )
        if not stays_inside(name, target):
            target = os.path.relpath(real, os.path.realpath(os.path.dirname(path)))
        return _Found(path, name, link=target)


def stays_inside(name: str, target: str) -> bool:
    """Whether a link called `name` leads to what is below the folder, wherever that is, and whatever else is in it. So
    `..` may only be what it begins with: after a name that is itself a link it would lead anywhere."""
    parts = PurePosixPath(target).parts
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and not target.startswith("/") and ups <= name.count("/") and ".." not in parts[ups:]


def _base(folder: Path) -> Path:
    if not folder.is_dir():
        what = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
        raise InvalidValue(f"{what} on this machine; name one that is there")
    return folder.resolve()


def _there_is(base: Path) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(base) if not entry.name.startswith("."))
    except OSError:
        return ""
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"; there is: {shown}" if names else "; it is empty"


def _unreadable(name: str, error: OSError) -> InvalidValue:
    return InvalidValue(
        f"{name or 'the folder'} cannot be read ({error.strerror}); make it readable, or list it in .gpufitignore"
    )


def _check_size(what: str, found: Sequence[_Found], limit: int) -> None:
    total = sum(each.size for each in found)
    if total <= limit:
        return
    sizes: Counter[str] = Counter()
    for each in found:
        first, slash, _ = each.name.partition("/")
        sizes[first + ("/" if slash or each.directory else "")] += each.size
    largest = ", ".join(f"{name} {format_memory(size)}" for name, size in sizes.most_common(_LARGEST_SHOWN))
    raise InvalidValue(
        f"{what} has {format_memory(total)}, and {format_memory(limit)} may be copied to a node (largest: {largest}); "
        "list what is not needed in .gpufitignore, or have the folder mounted there (`shared` in gpufit.toml)",
        size=total,
        limit=limit,
    )


# --- the archive ------------------------------------------------------------------------------------------------------


def _write(found: Sequence[_Found], archive: Path, on_bytes: OnBytes | None, itself: bool = True) -> Packed:
    """`itself`: the archive has the folder, too. (Where it is a person's there, its owner and mode are no concern.)"""
    total, done, files = sum(each.size for each in found), 0, 0
    report = on_bytes or (lambda done, total: None)
    try:
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
            root = tarfile.TarInfo(".")
            root.type, root.mode = tarfile.DIRTYPE, 0o755
            if itself:
                tar.addfile(root)
            for each in found:
                info = tarfile.TarInfo(each.name)
                if each.directory or each.link is not None:
                    info.type = tarfile.DIRTYPE if each.directory else tarfile.SYMTYPE
                    info.mode, info.linkname = 0o755, each.link or ""
                    tar.addfile(info)
                    files += each.link is not None
                    continue
                with _opened(each) as file:
                    if file is None:
                        continue  # gone meanwhile
                    said = os.fstat(file.fileno())
                    info.size, info.mode, info.mtime = said.st_size, said.st_mode & 0o777, int(said.st_mtime)
                    tar.addfile(info, _Steady(file, info.size, partial(_report, report, done, total)))
                done, files = done + info.size, files + 1
            report(done, max(done, total))
    except OSError as error:
        archive.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InvalidValue(
                f"there is no room for {format_memory(total)} in {archive.parent}; free some there"
            ) from None
        raise InvalidValue(f"{archive} cannot be written: {error.strerror or error}") from None
    except BaseException:
        archive.unlink(missing_ok=True)
        raise
    return Packed(files=files, bytes=done)


def _report(report: OnBytes, before: int, total: int, now: int) -> None:
    report(before + now, total)


@contextlib.contextmanager
def _opened(found: _Found) -> Iterator[BinaryIO | None]:
    """The file, if it still is one."""
    try:
        descriptor = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            yield None
            return
        raise _unreadable(found.name, error) from None
    with open(descriptor, "rb") as file:
        yield file if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


class _Steady(io.RawIOBase):
    """`size` bytes of a file, whatever it becomes meanwhile: what grows is cut, what shrinks is filled with zeros."""

    def __init__(self, file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> None:
        self._file, self._left, self._on_bytes, self._done = file, size, on_bytes, 0

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted).ljust(wanted, b"\0")
        self._left -= wanted
        self._done += wanted
        self._on_bytes(self._done)
        return data

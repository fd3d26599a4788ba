"""What is in a node's model store: the files and directories directly in one directory, with their sizes.

    models ─ last result, at once ─→ Report.models
       └─ a minute old? ─→ a thread ─ scan: names ─→ result ─ sizes, as long as it may take ─→ result

Such a directory may be on a network file system, where every look can take long or never come back. So nobody waits for
the thread, and it ends with the process, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ..models import StoredModel

__all__ = ["LAST_MOMENT", "MOST_MODELS", "ModelStore", "is_model_name"]

log = logging.getLogger(__name__)

MOST_MODELS: Final = 1000
"""More are not told: the first ones by name are."""
LAST_MOMENT: Final = 9e9
"""In the year 2255. Some file systems have later ones, and tables of moments do not."""
_LONGEST_NAME: Final = 255  # bytes; what file systems have
_NOT_MODELS: Final = frozenset({"lost+found"})

_SCAN_EVERY: Final = 60.0
_REST: Final = 10  # times as long as a scan took, there is no other
_LONGEST_SCAN: Final = 30.0
_LONGEST_COUNT: Final = 10.0  # of one model
_STEP, _STEPS = 0.01, 20  # s between two glances at the first look, and how many there are


class ModelStore:
    """The model store in `directory`, looked through in a thread, every `every` seconds at most. For report sources.

    What cannot be counted within `longest_count` seconds, or cannot be read, is of unknown size.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every: float = _SCAN_EVERY,
        longest_scan: float = _LONGEST_SCAN,
        longest_count: float = _LONGEST_COUNT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self._every, self._longest_scan, self._longest_count = every, longest_scan, longest_count
        self._clock = clock
        self._found: tuple[StoredModel, ...] | None = None
        self._counted: dict[str, tuple[float, StoredModel]] = {}  # name → when it was counted last, and the result
        self._complaint: str | None = None
        self._thread: threading.Thread | None = None
        self._due = -math.inf
        self._closed = threading.Event()
        self._patience = _STEPS

    def models(self) -> tuple[StoredModel, ...] | None:
        """What was found last, by name; `None`: that is not known (yet). Never waits. Looks anew if it is time."""
        if self._thread is None and not self._closed.is_set() and self._clock() >= self._due:
            self._thread = threading.Thread(target=self._look, name="gpufit models", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads to be had just now; GPUs are reported all the same
                self._thread = None
        return self._found

    async def first_models(self) -> tuple[StoredModel, ...] | None:
        """As `models`, but waits a moment for the first look, once: most directories are read in less, and whoever asks
        for a model right away need not be told that nothing is known."""
        found, steps = self.models(), self._patience
        self._patience = 0
        for _ in range(steps):
            if found is not None:
                break
            await asyncio.sleep(_STEP)
            found = self._found
        return found

    def close(self) -> None:
        """No more looks; one that goes on ends as soon as the file system lets it. Idempotent."""
        self._closed.set()

    # --- in the thread

    def _look(self) -> None:
        began = self._clock()
        try:
            self._scan(began)
        except Exception:  # a fault of ours: it must not be the last look
            log.exception("looking through the model store %s failed", self.directory)
        took = self._clock() - began
        self._due = self._clock() + max(self._every, _REST * took)
        self._thread = None

    def _scan(self, began: float) -> None:
        """Publish the names with the sizes known from before, then those with new sizes, when all are counted."""
        try:
            names = _names(self.directory)
        except OSError as error:
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            self._complain(f"the model store {str(self.directory)!r} cannot be read: {error.strerror or error}")
            self._found, self._counted = () if gone else None, {}
            return
        self._complain(None)
        self._counted = {name: self._counted[name] for name in names if name in self._counted}
        self._publish(names)
        until = began + self._longest_scan
        # Those that were not counted for longest come first: where time is short, each has its turn.
        for name in sorted(names, key=lambda name: self._counted[name][0] if name in self._counted else -math.inf):
            now = self._clock()
            if now >= until or self._closed.is_set():
                break
            self._counted[name] = (
                now,
                _count(self.directory / name, self._over_at(min(until, now + self._longest_count))),
            )
        self._publish(names)

    def _over_at(self, moment: float) -> Callable[[], bool]:
        return lambda: self._clock() >= moment or self._closed.is_set()

    def _publish(self, names: list[str]) -> None:
        counted = {name: model for name, (_, model) in self._counted.items()}
        self._found = tuple(counted.get(name) or StoredModel(name=name) for name in names)

    def _complain(self, complaint: str | None) -> None:
        """In the log, once."""
        if complaint is not None and complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint


def is_model_name(name: str) -> bool:
    """Whether it can be the name of a file or directory, and be shown and typed. Anything else cannot be asked for."""
    return (
        name.isprintable()  # also false for bytes that are no UTF-8
        and 0 < len(name.encode()) <= _LONGEST_NAME
        and "/" not in name
        and not name.startswith(".")
        and name == name.strip()
    )


def _names(directory: Path) -> list[str]:
    """The names of its models, sorted. Raises `OSError`."""
    with os.scandir(directory) as entries:
        names = (entry.name for entry in entries if is_model_name(entry.name) and entry.name not in _NOT_MODELS)
        found = heapq.nsmallest(MOST_MODELS, names)
    root = os.path.realpath(directory)
    return [name for name in found if _stays(root, name)]


def _stays(root: str, name: str) -> bool:
    """Whether it is there, in the store. A link out of it leads nowhere in a container, which has the store alone."""
    path = os.path.join(root, name)
    if not os.path.islink(path):
        return True
    target = os.path.realpath(path)
    return target.startswith(root.rstrip("/") + "/") and os.path.exists(target)


def _count(path: Path, over: Callable[[], bool]) -> StoredModel:
    """The model with its size and its newest moment; both unknown if any of it cannot be read, or time is `over`."""
    name, size, newest = path.name, 0, 0.0
    linked: set[tuple[int, int]] = set()
    try:
        for status in _files(os.path.realpath(path)):
            if over():
                return StoredModel(name=name)
            newest = max(newest, status.st_mtime)
            if not stat.S_ISREG(status.st_mode):
                continue
            if status.st_nlink > 1:  # a file with two names is there once
                if (status.st_dev, status.st_ino) in linked:
                    continue
                linked.add((status.st_dev, status.st_ino))
            size += status.st_size
    except OSError:
        return StoredModel(name=name)
    return StoredModel(name=name, size=size, modified=newest if 0 < newest < LAST_MOMENT else None)


def _files(path: str) -> Iterator[os.stat_result]:
    """What is at `path` and below it (links are not followed; a directory counts only if there is nothing in it).
    Raises `OSError` for what cannot be read; what goes meanwhile is passed over."""
    status = os.stat(path, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        yield status
        return
    folders = [path]
    while folders:
        folder = folders.pop()
        empty = True
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    empty = False
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        else:
                            yield entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
            if empty:
                yield os.stat(folder, follow_symlinks=False)
        except FileNotFoundError:
            continue

"""Our end of one local unit: its supervisor process, what it was told and what it said.

Loop-free and thread-safe: a unit outlives the launcher object that made it (the inventory may change under it), and is
found again in `RUNNING` by the next one. It may outlive this process, too (`Launch.outlive`): then the next one takes
it over by its supervisor's door (`line.Door`).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..errors import LaunchError
from ..scheduling.logs import Piece
from ..scheduling.needs import KILLED
from .base import Places, describe_end
from .directory import Record
from .line import Child, Door, Line
from .ports import Ports
from .printed import from_files
from .sweeping import MARK, sweep

__all__ = ["OUTPUTS", "RUNNING", "WORK", "LocalUnit", "make_directory"]

LOG, LOG_SIZE = "log", 8 * 2**20
WORK, OUTPUTS = "work", "outputs"

RUNNING: dict[str, LocalUnit] = {}
"""The units of this process, by id, until they are gone."""


class LocalUnit:
    """One unit: a directory of its own, five ports, and a supervisor that waits for its command."""

    def __init__(self, record: Record, file: Path, line: Line, ports: Ports | None) -> None:
        """Made by `started` and `taken_over`. `record` is, or will be, what `file` says."""
        self.unit, self.claim = record.unit, record.claim
        self.directory = Path(record.directory)
        self.places = Places(record.directory, record.work, str(self.directory / OUTPUTS))
        self.code: int | None = None
        """Exit code, once the unit ended by itself and all it forked is gone."""
        self.sentence = ""
        self.stuck: list[int] = []
        self.listeners: set[Callable[[LocalUnit], None]] = set()
        """Called, in a thread, when the unit ended by itself."""
        self.gone: Future[None] = Future()
        """Done when nothing of it is left."""
        self.over: Future[None] = Future()
        """Done when it ended, by itself or told to."""
        self.running: Future[int] = Future()
        """Pid of its main process."""
        self.known: Future[None] = Future()
        """Done when the supervisor of one that was taken over has said what had happened there."""
        if ports is not None:
            self.known.set_result(None)
        self.stopping = False
        self.halting = False
        self._ports, self._file, self._ram = ports, file, record.ram
        self._log = self.directory / LOG
        self._telling = threading.Lock()  # a long command takes several writes, and nothing may come between them
        self._line = line
        RUNNING[self.unit.id] = self
        threading.Thread(target=self._listen, name=f"gpufit-{self.unit.name}", daemon=True).start()

    @classmethod
    def started(cls, record: Record, file: Path, ports: Ports, outlive: float) -> LocalUnit:
        """A new one, whose supervisor waits. Raises `LaunchError`; then nothing is left but what was given."""
        config = {"directory": record.directory, "record": str(file), "log": f"{record.directory}/{LOG}"}
        line = Child(config | {"log_size": LOG_SIZE, "ram": record.ram, "outlive": outlive})
        return cls(record, file, line, ports)

    @classmethod
    def taken_over(cls, record: Record, file: Path) -> LocalUnit:
        """One that a process before this one started. Raises `LaunchError` if its supervisor does not let us in."""
        assert record.supervisor is not None
        return cls(record, file, Door(Path(record.directory), record.supervisor), None)

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._line.pid

    def start(self, argv: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]) -> Future[int]:
        """Write `files`, run `argv`; the future has its pid. Raises `LaunchError` if a file cannot be written."""
        for name, content in files.items():
            path = self.directory / name
            if not path.resolve().is_relative_to(self.directory.resolve()):
                raise LaunchError(f"file {name!r} would lie outside the unit's directory")
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(content)
            except OSError as error:
                raise LaunchError(f"cannot write {path}: {error.strerror}") from None
        if self._ports is not None:
            self._ports.let_go()
        self._tell(do="start", argv=list(argv), env={**env, MARK: self.unit.id}, cwd=self.places.work)
        return self.running

    def signal(self, number: int) -> None:
        """Send it to all that runs in the unit."""
        self._tell(do="signal", signal=number)

    def halt(self, grace: float) -> Future[None]:
        """End it, and leave its files; the future is done when it has ended."""
        self.halting = True
        self._tell(do="halt", grace=grace)
        return self.over

    def stop(self, grace: float) -> Future[None]:
        """End it, and remove every trace; the future is done then."""
        self.stopping = True
        self._tell(do="stop", grace=grace)
        return self.gone

    def kill(self) -> None:
        """End it even if the supervisor does not listen any more; `gone` is done when all is."""
        self.stopping = True
        self._line.kill()

    def logs(self, tail: int | None = None, after: str = "") -> Sequence[Piece]:
        """What it printed: the last `tail` lines, or all that is kept; only what came `after` that mark."""
        return from_files(self._log, tail, after)

    def _tell(self, **message: Any) -> None:
        left = memoryview(json.dumps(message).encode() + b"\n")
        # It is gone, or about to be: `gone` tells.
        with self._telling, contextlib.suppress(OSError, ValueError):
            while left:  # one write takes what the pipe has room for, which may be less
                left = left[self._line.write(left) :]

    # --- in the thread

    def _listen(self) -> None:
        said_gone = False
        # A supervisor that is killed may leave half a line.
        with contextlib.suppress(ConnectionResetError, json.JSONDecodeError), self._line.reports as reports:
            for line in reports:
                message = json.loads(line)
                said_gone |= message["event"] == "gone"
                self._heard(**message)
        self._line.close()
        if not said_gone:  # somebody killed the supervisor
            self._sweep()
        if self._ports is not None:
            self._ports.close()
        RUNNING.pop(self.unit.id, None)
        self._ended(KILLED, "killed: its supervisor process was ended by somebody")
        if not self.running.done():
            self.running.set_exception(LaunchError("the process was stopped before it started"))
        if not self.known.done():
            self.known.set_result(None)
        self.gone.set_result(None)

    def _heard(self, event: str, **news: Any) -> None:
        if event == "started":
            self.running.set_result(news["pid"])
        elif event == "taken over":
            if news["pid"] is not None:
                self.running.set_result(news["pid"])
            if news["code"] is not None:
                self._heard("exited", code=news["code"], memory=news["memory"])
            self.known.set_result(None)
        elif event == "refused":
            self.running.set_exception(LaunchError(f"the command cannot be run: {news['error']}"))
        elif event == "exited":
            self._ended(news["code"], describe_end(news["code"], memory=news["memory"], limit=self._ram))
        elif event == "stuck":
            self.stuck = news["pids"]

    def _ended(self, code: int, sentence: str) -> None:
        if self.code is None:
            self.code, self.sentence = code, sentence
            if not (self.stopping or self.halting):
                for listener in tuple(self.listeners):
                    listener(self)
            self.over.set_result(None)

    def _sweep(self) -> None:
        """What a killed supervisor leaves: its descendants, its files, its claim."""
        sweep(self.unit.id, self.directory)
        self._file.unlink(missing_ok=True)


def make_directory(name: str) -> Path:
    """A directory that only this user can look into. Raises `LaunchError`."""
    try:
        return Path(tempfile.mkdtemp(prefix=f"gpufit-{name[:32]}-"))
    except OSError as error:
        raise LaunchError(f"cannot make a directory in {tempfile.gettempdir()}: {error.strerror}") from None

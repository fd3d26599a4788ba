"""The parent of the NVML child: it always has an answer, whatever NVML does.

    fetch ──> at most one read at a time ──> child ──> Reading ──> Health ──> the last report
                                               └ hung: killed     └ dead: started again, ever more slowly

There is never more than one child: one that cannot even be killed (it waits in the driver) is not replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable

from msgspec.structs import replace

from ..models import Report
from .health import Health
from .reading import Reading, decode_reading

__all__ = ["Sampler"]

log = logging.getLogger(__name__)

_LONGEST_ANSWER = 16 * 2**20  # bytes
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_REOPEN_AFTER = 30.0  # seconds: NVML only sees a lost GPU come back when it is opened anew
_REAP = 2.0  # seconds that a killed process may take to be gone, before it counts as one that cannot be killed

# -P: a `json.py` in the directory we were started in must not be imported in place of the library's.
_COMMAND = (sys.executable, "-P", "-m", "jupyter_gpufit.reporting.child")


class _ReadFailed(Exception):
    """There was no reading this time; says why, for people."""


class Sampler:
    """Reads NVML in a child process. Used from one event loop, which it never blocks.

    `answer_within`: seconds after which a child counts as hung. `open_within`: the same for its first answer, since
    opening NVML takes seconds on a machine with many GPUs in low power. `kill` is for tests.
    """

    def __init__(
        self,
        answer_within: float = 10.0,
        open_within: float = 30.0,
        *,
        kill: Callable[[Process], None] = Process.kill,
    ) -> None:
        self._answer_within, self._open_within, self._kill = answer_within, open_within, kill
        self._health = Health()
        self._last: tuple[Report, float] | None = None  # and when it was asked for, on the monotonic clock
        self._error: str | None = "the GPUs of this node have not been read yet: NVML has not answered so far"
        self._process: Process | None = None
        self._stuck = False  # it was killed and is still there
        self._answered = False
        self._opened = 0.0
        self._cause = ""  # what became of the child before
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self._read: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the child, if there is one."""
        return None if self._process is None else self._process.pid

    def report(self) -> Report:
        """The last report, at once: its `age` is as of now, and `error` says why there is no newer one."""
        if self._last is None:
            return Report(host=socket.gethostname(), time=time.time(), error=self._error)
        report, asked = self._last
        return replace(report, age=time.monotonic() - asked, error=self._error or report.error)

    async def fetch(self, timeout: float) -> Report:
        """A new report if there is one within `timeout` seconds, else the last one. Never raises for what NVML does.

        Asking again while a read goes on waits for that one.
        """
        if self._closed:
            raise RuntimeError("this sampler is closed")
        if self._read is None or self._read.done():
            self._read = asyncio.create_task(self._sample())
        done, _ = await asyncio.wait([self._read], timeout=timeout)
        for read in done:
            read.result()  # a bug of ours must not pass as an old report
        return self.report()

    async def close(self) -> None:
        """End the child. Idempotent."""
        self._closed = True
        if self._read is not None:
            self._read.cancel()
            await asyncio.wait([self._read])
        if self._process is not None:
            await self._end(self._process)

    # --- one read

    async def _sample(self) -> None:
        asked = time.monotonic()
        try:
            reading = await self._reading()
        except _ReadFailed as failure:
            self._error = str(failure)
            return
        if self._error is not None and self._last is not None:
            log.warning("the GPUs of this node can be read again")
        self._last, self._error = (self._health.conclude(reading), asked), None
        self._answered, self._pause = True, _FIRST_PAUSE

    async def _reading(self) -> Reading:
        process = await self._child()
        questions, answers = _pipes(process)
        reopen = not self._answered or self._reopening_may_help()
        limit = self._open_within if reopen else self._answer_within
        if reopen:
            self._opened = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                questions.write(b"reopen\n" if reopen else b"read\n")
                await questions.drain()
                line = await answers.readline()
            if not line:
                raise ConnectionResetError
            return decode_reading(line)
        except TimeoutError:
            cause = f"NVML did not answer within {limit:g} s"
        except ConnectionError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _REAP)
            cause = f"NVML ended the process it ran in ({_ending(process.returncode)})"
        except ValueError as error:  # InvalidValue, or a line that is longer than any reading
            cause = f"the NVML process does not answer with a reading ({error})"
        await self._abandon(process, cause)
        raise _ReadFailed(self._why_none())

    def _reopening_may_help(self) -> bool:
        lost = self._last is not None and any(gpu.health == "lost" for gpu in self._last[0].gpus)
        return lost and time.monotonic() - self._opened >= _REOPEN_AFTER

    # --- the child

    async def _child(self) -> Process:
        """The child; a new one if there is none and it is time. Raises `_ReadFailed` if there can be none now."""
        if self._stuck and self._process is not None and self._process.returncode is not None:
            self._process, self._stuck = None, False
        if self._stuck or (self._process is None and time.monotonic() < self._not_before):
            raise _ReadFailed(self._why_none())
        if self._process is None:
            self._answered = False
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *_COMMAND,
                    str(os.getpid()),
                    stdin=PIPE,
                    stdout=PIPE,
                    limit=_LONGEST_ANSWER,
                    start_new_session=True,  # Ctrl-C in our terminal is not for it
                )
            except OSError as error:  # no memory, too many processes
                raise _ReadFailed(f"the process that NVML runs in cannot be started ({error})") from None
        return self._process

    async def _abandon(self, process: Process, cause: str) -> None:
        self._cause, self._stuck = cause, True
        if await self._end(process):
            self._process, self._stuck = None, False
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        log.warning("%s", self._why_none())

    async def _end(self, process: Process) -> bool:
        """Kill it; whether it is gone. A process that waits in the driver is not, until the driver lets it go."""
        questions, answers = _pipes(process)
        with contextlib.suppress(ProcessLookupError):
            self._kill(process)
        questions.close()
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(_REAP):
                await answers.read()
                await process.wait()
        return process.returncode is not None

    def _why_none(self) -> str:
        if self._stuck:
            return (
                f"{self._cause}, and its process {self.pid} cannot be killed, since it waits in the driver; there will "
                "be no other one while it lasts. Look into dmesg, and reboot this node"
            )
        return f"{self._cause}; it is started again in {max(0.0, self._not_before - time.monotonic()):.0f} s"


def _pipes(process: Process) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"

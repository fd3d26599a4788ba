"""The work that instructions ask for: one task each, whose end, however it comes about, is one event.

instruction ─→ coroutine, in a task ─→ result, error or cancellation ─→ event ─→ the state machine
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import ClaimLost, GpufitError, NodeUnfit, NodeUnreachable
from ..models import Endpoint, Launch, Progress, Unit
from .events import Failure, Work
from .fleet import Fleet
from .logbook import Logbook, launchers, marked
from .logs import Piece
from .needs import KILLED, Launcher

__all__ = ["UnitWork", "Works", "failure_of"]

T = TypeVar("T")
Collect = Callable[[Launcher, Unit], Awaitable[None]]

_TAKE_OVERS, _TAKE_OVER_WITHIN, _TAKE_OVER_AGAIN = 3, 5.0, 0.5  # times; s; s
_LOGS_WITHIN = 5.0  # s; a last look at what a unit printed must not keep its GPUs
_JOB_GRACE = 10.0  # s; for a job to write down where it was


def failure_of(error: BaseException | None) -> tuple[Failure, str]:
    """What kind of failure `error` is (`None`: cancelled), and the sentence for people."""
    if error is None or isinstance(error, asyncio.CancelledError):
        return Failure.CANCELLED, "it was cancelled"
    if isinstance(error, ClaimLost):
        return Failure.CLAIM_LOST, error.message
    if isinstance(error, NodeUnfit):
        return Failure.UNFIT, error.message
    if isinstance(error, NodeUnreachable):
        return Failure.UNREACHABLE, error.message
    if isinstance(error, GpufitError):
        return Failure.ERROR, error.message
    return Failure.UNEXPECTED, f"{type(error).__name__}: {error}"


class Works:
    """Tasks, by allocation and kind of work. Made by the scheduler; used on its event loop."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: dict[tuple[str, Work], asyncio.Task[Any]] = {}

    def begin(
        self,
        id: str,
        work: Work,
        doing: Coroutine[Any, Any, T],
        done: Callable[[T], None],
        failed: Callable[[BaseException | None], None],
    ) -> None:
        """Do it in a task; then call `done` with its result, or `failed` with its error (`None`: it was cancelled).

        (From a callback of the task, not from within it: one that is cancelled before its first step never runs.)
        """
        task = asyncio.get_running_loop().create_task(doing, name=f"gpufit {work} {id}")
        self._tasks[id, work] = task

        def came_back(task: asyncio.Task[T]) -> None:
            if self._tasks.get((id, work)) is task:
                del self._tasks[id, work]
            if task.cancelled():
                failed(None)
            elif (error := task.exception()) is None:
                done(task.result())
            else:
                if failure_of(error)[0] is Failure.UNEXPECTED:
                    self._log.error("%s of allocation %s failed", work, id, exc_info=error)
                failed(error)

        task.add_done_callback(came_back)

    def task(self, id: str, work: Work) -> asyncio.Task[Any]:
        """The task that does it now."""
        return self._tasks[id, work]

    def cancel(self, id: str, work: Work) -> None:
        """Cancel it; what it has done is undone, and `failed` called, as soon as that is."""
        if (task := self._tasks.get((id, work))) is not None:
            task.cancel()

    async def close(self, within: float) -> None:
        """Cancel all, and wait for their undoing, at most `within` seconds."""
        end = asyncio.get_running_loop().time() + within
        cancelled: set[asyncio.Task[Any]] = set()
        while self._tasks and (left := end - asyncio.get_running_loop().time()) > 0:
            tasks = list(self._tasks.values())
            for task in tasks:
                if task not in cancelled:
                    task.cancel()
            cancelled.update(tasks)
            await asyncio.wait(tasks, timeout=left)
            await asyncio.sleep(0)  # for `came_back`
        for (id, work), task in self._tasks.items():
            self._log.error("%s of allocation %s does not end: %r", work, id, task)


class UnitWork:
    """What is done to units, by the launcher of the node they are on. Made by the scheduler."""

    def __init__(self, fleet: Fleet, ours: Container[str], log: logging.Logger, logbook: Logbook) -> None:
        self.codes: dict[str, int] = {}
        """Allocation -> exit code of its last unit."""
        self._fleet, self._ours, self._log, self._logbook = fleet, ours, log, logbook

    async def prepare(self, node: str, launch: Launch, on_progress: Callable[[Progress], None], pause: float) -> Unit:
        """After `pause` seconds, `Launcher.prepare`."""
        if pause:
            await asyncio.sleep(pause)
        with self._fleet.use(node) as slot:
            launcher = await self._fleet.opened(slot)
            return await launcher.prepare(launch, on_progress)

    async def take_over(self, unit: Unit) -> None:
        """`Launcher.take_over`; tried a few times, since what cannot be taken over counts as ended. Never raises."""
        for _ in range(_TAKE_OVERS):
            try:
                with self._fleet.use(unit.node) as slot:
                    launcher = await self._fleet.opened(slot)
                    async with asyncio.timeout(_TAKE_OVER_WITHIN):
                        await launcher.take_over(unit)
                return
            except (GpufitError, TimeoutError) as error:
                self._log.warning("%s on %s was not taken over: %s", unit.name, unit.node, error or "no answer")
                if self._fleet.known(unit.node) is None:
                    return
                await asyncio.sleep(_TAKE_OVER_AGAIN)

    async def was_started(self, unit: Unit) -> bool:
        """`Launcher.was_started`; `False` also if nobody can tell: before it is made anew, what is there is removed."""
        try:
            with self._fleet.use(unit.node) as slot:
                launcher = await self._fleet.opened(slot)
                async with asyncio.timeout(_TAKE_OVER_WITHIN):
                    return await launcher.was_started(unit)
        except (GpufitError, TimeoutError) as error:
            self._log.info("whether %s on %s was started is not known: %s", unit.name, unit.node, error or "no answer")
            return False

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        """`Launcher.start`."""
        with self._fleet.use(unit.node) as slot:
            launcher = await self._fleet.opened(slot)
            return await launcher.start(unit, command, files, env)

    async def run(self, unit: Unit, start: Callable[[Launcher], Awaitable[Endpoint]]) -> Endpoint:
        """What `start`, which starts a job's unit, gives. Cancelled, it removes what was prepared."""
        with self._fleet.use(unit.node) as slot:
            launcher = await self._fleet.opened(slot)
            try:
                return await start(launcher)
            except asyncio.CancelledError:
                with contextlib.suppress(GpufitError):  # then the next scheduler does
                    await launcher.stop(unit)
                raise

    async def printed(self, unit: Unit, tail: int | None, after: str) -> list[Piece]:
        """What a unit that is there printed, in marks of the logbook. Raises `NodeUnreachable`."""
        with self._fleet.use(unit.node) as slot:
            launcher = await self._fleet.opened(slot)
            return marked(unit, await launcher.logs(unit, tail, launchers(unit, after)))

    async def stop(
        self, id: str, node: str, unit: Unit | None, job: bool = False, collect: Collect | None = None
    ) -> str:
        """Keep what the unit printed, and remove it; without one, whatever on the node is the allocation's and ours.
        `collect` is called of a unit that is to end in good order, before it is removed.

        Returns what it had printed. Raises `NodeUnreachable`, or `LaunchError` for a unit that cannot be removed.
        """
        with self._fleet.use(node) as slot:
            launcher = await self._fleet.opened(slot)
            units = [unit] if unit is not None else []
            if unit is None:
                for found, claim in await launcher.units():
                    if claim.allocation == id and claim.scheduler in self._ours:
                        units.append(found)
            for each in units:
                if collect is not None:
                    await launcher.halt(each, _JOB_GRACE)
                await self._logbook.add(id, each, await self._last_words(launcher, each), behind=job)
                if collect is not None:
                    await collect(launcher, each)
                code = launcher.exit_code(each)
                self.codes[id] = KILLED if code is None else code
                await launcher.stop(each)
            return self._logbook.last.get(id, "") if units else ""

    async def _last_words(self, launcher: Launcher, unit: Unit) -> Sequence[Piece]:
        try:
            async with asyncio.timeout(_LOGS_WITHIN):
                return await launcher.logs(unit)
        except (GpufitError, TimeoutError) as error:
            self._log.info("what %s printed is lost: %s", unit.name, error or "no answer")
            return []

    def begin(self, id: str, job: bool) -> None:
        """A unit is about to start; what is known of the one before it is known no longer (but a job's log goes on)."""
        self._logbook.begin(id, anew=not job)
        self.codes.pop(id, None)

    def forget(self, id: str) -> None:
        """Nobody will ask about this allocation any more."""
        self._logbook.forget(id)
        self.codes.pop(id, None)

"""The allocation that one kernel runs in, as the scheduler knows it: what its provisioner asks and is told.

asked, given ─→ prepared ─→ launch ─→ ready ─┬─→ end
                   ↑                         │
                   └──────── again ←─────────┘        fate, log: meanwhile
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ..errors import Conflict, GpufitError, ImageRefused, LaunchError, NotFound, NotPlaced, Unavailable
from ..inventory import NodeSpec
from ..models import Allocation, Endpoint, EndReason, Request, State, Unit
from ..scheduling.api import Scheduler
from ..scheduling.entries import with_lines
from .bootstrap.contents import SAYS
from .leases import Lease, lease

__all__ = ["ANSWER_WITHIN", "Grant"]

T = TypeVar("T")

ANSWER_WITHIN = 5.0  # s; for what the scheduler answers from what it knows
_GONE = 1  # exit code of a kernel whose allocation failed without one
_LOG_LINES = 50
_LOG_CHARACTERS = 8000
_REASONS = 6  # lines; a dialog has to hold them
_LOOK_EVERY = 0.1  # s


class Grant:
    """A kernel's hold on its allocation. Made by `asked`, `given`; `end` lets go of it."""

    def __init__(self, rented: Lease, allocation: Allocation, log: logging.Logger) -> None:
        self.allocation = allocation
        """As it was when it was last looked at."""
        self.id = allocation.id
        self._lease, self._log = rented, log

    @classmethod
    async def asked(cls, request: Request, kernel_id: str, log: logging.Logger) -> Grant:
        """Ask for an allocation for that kernel. Raises what `Scheduler.request` and `open_service` raise."""
        rented = await lease()
        try:
            await rented.settled()
            owner = rented.owner
            made = await rented.ask(lambda scheduler: scheduler.request(request, owner, kernel_id=kernel_id))
        except NotPlaced as refused:
            wrong = rented.inventory_error
            await rented.close()
            raise with_reasons(refused, wrong) from None
        except BaseException:
            await rented.close()
            raise
        return cls(rented, made, log)

    @classmethod
    async def given(cls, allocation_id: str, log: logging.Logger) -> Grant:
        """Take up an allocation that was made for this kernel. Raises `NotFound`."""
        rented = await lease()
        try:
            made = await rented.see(lambda scheduler: scheduler.get(allocation_id))
        except BaseException:
            await rented.close()
            raise
        return cls(rented, made, log)

    # --- a start, and a start after it

    async def prepared(self) -> Unit:
        """Its unit, once that is prepared. Raises what went wrong if the allocation ends before."""
        try:
            unit = await self._lease.ask(lambda scheduler: scheduler.prepared(self.id))
        except NotPlaced as refused:
            raise with_reasons(refused) from None
        await self._look()
        return unit

    async def again(self, died: str = "") -> Unit:
        """A new unit on the same GPUs; `died`: how the one before ended, if nobody had asked for it.

        Raises `Conflict` if the allocation ended, and what `restart_unit` raises.
        """
        now = await self._look()
        if now.state in (State.STOPPING, State.ENDED):
            raise Conflict(f"allocation {now.name!r} has ended: {_why(now)}; its kernel cannot be started again")
        unit = await self._lease.ask(lambda scheduler: scheduler.restart_unit(self.id, died))
        await self._look()
        return unit

    async def spec(self) -> NodeSpec:
        """The inventory's entry of its node."""
        return await self._lease.spec(self.allocation.node or "")

    async def launch(self, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]) -> Endpoint:
        """See `Scheduler.launch`."""
        return await self._lease.ask(lambda scheduler: scheduler.launch(self.id, command, files, env))

    async def here(self, work: Callable[[], Awaitable[T]]) -> T:
        """See `Lease.here`."""
        return await self._lease.here(work)

    @property
    def closers(self) -> set[Callable[[], Awaitable[None]]]:
        """See `Lease.closers`."""
        return self._lease.closers

    async def ready(self, kernel_id: str) -> None:
        """See `Scheduler.ready`."""
        self.allocation = await self._lease.ask(lambda scheduler: scheduler.ready(self.id, kernel_id))

    async def remember(self, memory: bytes) -> None:
        """See `Scheduler.remember`."""
        await self._lease.see(lambda scheduler: scheduler.remember(self.id, memory))

    async def recalled(self) -> bytes | None:
        """What was remembered, if its kernel runs already, and is to be gone on with."""

        def look(scheduler: Scheduler) -> bytes | None:
            return scheduler.recall(self.id) if scheduler.resuming(self.id) else None

        return await self._lease.see(look)

    # --- what became of it

    async def fate(self, started: bool) -> tuple[int | None, str] | None:
        """Exit code and a sentence if the kernel is known to have ended; no code: the allocation has, or is about to.

        `started`: it answered before. From known state; `None` also if there is no answer in time.
        """

        def known(scheduler: Scheduler) -> tuple[int | None, str] | None:
            try:
                now = scheduler.get(self.id)
            except NotFound:
                return None, "its allocation is gone"
            code = scheduler.exit_code(self.id)
            # While a running one is being stopped, its kernel manager is told to shut it down: no death to report.
            if now.state is not State.ENDED and (started or now.state is not State.STOPPING):
                return None if code is None else (code, scheduler.describe_exit(self.id))
            # One that fails while it starts is what the exit of its unit made it.
            return (_GONE if code is None else code, _why(now)) if now.reason is EndReason.FAILED else (None, _why(now))

        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await self._lease.see(known)
        except TimeoutError:
            return None
        except Unavailable as ended:  # which gave back all that it held
            return None, ended.message

    async def with_last_lines(self, sentence: str) -> str:
        """`sentence` on how the kernel ended, and what its unit printed last, as far as that can be had."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                log = (await self._lease.ask(lambda scheduler: scheduler.logs(self.id, _LOG_LINES))).text
        except (GpufitError, TimeoutError) as error:
            self._log.debug("no log of %s: %s", self.id, error)
            log = ""
        return with_lines(sentence, log[-_LOG_CHARACTERS:], _LOG_LINES)

    async def explained(self, error: BaseException) -> BaseException:
        """`error` of a start, with the last lines that the unit printed in its message, as far as they can be had."""
        if not isinstance(error, LaunchError):
            return error
        log = str(error.details.get("logs") or "") or await self._log_of_the_end()
        lines = log.strip().splitlines()[-_LOG_LINES:]
        if isinstance(error, ImageRefused) and (said := [line for line in lines if line.startswith(SAYS)]):
            return ImageRefused(said[-1].removeprefix(SAYS), logs=log)
        if not lines or lines[-1] in error.message:
            return error
        return type(error)("\n".join([f"{error.message}. Its last lines:", *lines]), **{**error.details, "logs": log})

    async def _log_of_the_end(self) -> str:
        """A unit that is being removed has no log any more; once it is gone, the scheduler has it."""
        log, over = "", False
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                while not log and not over:
                    over = (await self._look()).state is State.ENDED
                    log = (await self._lease.ask(lambda scheduler: scheduler.logs(self.id, _LOG_LINES))).text
                    await asyncio.sleep(0 if log or over else _LOOK_EVERY)
        except (GpufitError, TimeoutError) as error:
            self._log.debug("no log of %s: %s", self.id, error)
        return log

    # --- down

    async def quietly(self, what: str, ask: Callable[[Scheduler], Awaitable[object]], within: float) -> bool:
        """Ask the scheduler to do something; whether it did. Never raises, never takes longer than `within` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._lease.ask(ask)
            return True
        except Unavailable as ended:
            self._log.debug("allocation %s: %s: %s", self.allocation.name, what, ended.message)
            return True  # it gave back all that it held
        except (GpufitError, TimeoutError) as error:
            said = str(error) or f"no answer within {within:.0f} s"
            self._log.warning("allocation %s: %s: %s", self.allocation.name, what, said)
            return False

    async def end(self, how: Callable[[Scheduler], Awaitable[object]], within: float) -> None:
        """End the allocation by `how`, and let go of the scheduler. Never raises."""
        try:
            async with asyncio.timeout(within):
                await self._lease.ask(how)
                await self._lease.ended(self.id)
        except (NotFound, Unavailable) as nothing:
            self._log.debug("allocation %s has ended already: %s", self.id, nothing.message)
        except (GpufitError, TimeoutError) as error:
            said = str(error) or "not confirmed so far"
            self._log.warning("end of allocation %s: %s; the scheduler goes on trying", self.allocation.name, said)
        finally:
            await self._lease.close()

    async def _look(self) -> Allocation:
        self.allocation = await self._lease.see(lambda scheduler: scheduler.get(self.id))
        return self.allocation


def with_reasons(refused: NotPlaced, inventory_error: str | None = None) -> NotPlaced:
    """The refusal with its reasons, node by node, in the message: of an error of a kernel's start, nbconvert, papermill
    and JupyterLab's dialog show nothing else."""
    stages = refused.details.get("stages") or []
    reasons = [f"{node}: {why}" for stage in reversed(stages) for node, why in stage["rejected"].items()]
    more = len(reasons) - _REASONS
    shown = [
        *reasons[:_REASONS],
        *([f"and {more} more nodes; all of them: jupyter gpufit explain"] if more > 0 else []),
    ]
    if inventory_error:
        shown.append(f"the inventory cannot be used as it is: {inventory_error}")
    return type(refused)("\n".join([refused.message, *shown]), **refused.details)


def _why(allocation: Allocation) -> str:
    return allocation.message.split("\n", 1)[0] or f"its allocation was {allocation.reason}"

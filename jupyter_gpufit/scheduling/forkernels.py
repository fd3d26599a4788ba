"""What kernels ask of the scheduler, by way of the provisioner: a unit, its start, its end. (`scheduler.py` has what
people ask.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ..errors import Cancelled, Conflict, GpufitError, LaunchError, NodeUnreachable, NotFound
from ..models import Allocation, Endpoint, EndReason, State, Unit
from . import events as ev
from .driver import Driver
from .entries import Entry
from .events import Work
from .works import failure_of

__all__ = ["ForKernels"]

_STOPPED = "the scheduler was stopped"


class ForKernels(Driver):
    """Base of `LocalScheduler`."""

    async def prepared(self, id: str) -> Unit:
        """Wait until the allocation's unit is prepared."""
        entry = await self._until(self._for_kernel(id), lambda one: one.prepared or one.launched or not one.live)
        if not entry.live:
            raise self._why(entry.allocation)
        if not entry.prepared or entry.unit is None:
            raise Conflict(
                f"allocation {entry.allocation.name!r} runs a kernel already; restart that, or ask for another"
            )
        return entry.unit

    async def launch(
        self, id: str, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        """Start the prepared unit."""
        entry = self._for_kernel(id)
        if not entry.prepared:
            raise Conflict(f"allocation {entry.allocation.name!r} has no unit that waits for a kernel")
        self._payloads[id] = (command, files, env)
        self._handle(ev.LaunchAsked(id=id))
        task: asyncio.Task[Endpoint] = self._works.task(id, Work.START_UNIT)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise self._why(entry.allocation)
        try:
            return task.result()
        except GpufitError:
            raise
        except Exception as error:
            raise LaunchError(failure_of(error)[1]) from error

    async def ready(self, id: str, kernel_id: str) -> Allocation:
        """The kernel answers: the allocation is running."""
        entry = self._for_kernel(id)
        self._handle(ev.KernelReady(id=id, kernel_id=kernel_id))
        await self._written()  # from now on a server that dies can take it back
        return entry.allocation

    async def failed(self, id: str, message: str) -> None:
        """The kernel will never answer: the allocation ends `failed`."""
        self._known(id)
        self._handle(ev.KernelFailed(id=id, message=message))

    def remember(self, id: str, memory: bytes | None, part: str = "kernel") -> None:
        """Keep `memory` for as long as the allocation lives, also should this process die."""
        if id in self._ledger.entries and not self._embedded:
            self._store.remember(id, part, memory)

    def recall(self, id: str, part: str = "kernel") -> bytes | None:
        """What was remembered last of that part."""
        return self._store.memories.get(id, {}).get(part)

    def resuming(self, id: str) -> bool:
        """Whether its kernel is being taken back."""
        entry = self._ledger.entries.get(id)
        return entry is not None and Work.TAKE_BACK in entry.busy

    async def stop_unit(self, id: str) -> None:
        """Stop and remove its unit, confirmed, and keep its GPUs reserved. Raises `NodeUnreachable` or `LaunchError` if
        it cannot be confirmed now."""
        entry = self._ledger.entries.get(id)
        if entry is None:
            self._known(id)
            return
        if entry.job is not None:
            return
        failures = entry.stop_failures
        self._handle(ev.StopAsked(id=id))
        await self._until(
            entry,
            lambda entry: (
                entry.state is State.ENDED
                or entry.stop_failures > failures
                or (entry.unit is None and not entry.busy & {Work.PREPARE, Work.START_UNIT, Work.STOP_UNIT})
            ),
        )
        if entry.stop_failures > failures and (entry.unit is not None or entry.unsure):
            raise self._errors.get(id, {}).get(Work.STOP_UNIT) or NodeUnreachable(entry.trouble)

    async def restart_unit(self, id: str, died: str = "") -> Unit:
        """Prepare a new unit on the same node, the same GPUs and the same ports. As long as the node's engine is known
        not to answer, it waits for that."""
        entry = self._for_kernel(id)
        self._handle(ev.RestartAsked(id=id, died=died))
        try:
            await self._until(entry, lambda entry: not entry.restarting or not entry.live)
        except asyncio.CancelledError:
            self._handle(ev.StopAsked(id=id))  # nobody would launch in it; it may wait for its node for hours
            raise
        if not entry.live:
            raise self._why(entry.allocation)
        if not entry.prepared or entry.unit is None:
            raise NodeUnreachable(entry.trouble or f"allocation {entry.allocation.name!r} cannot be restarted now")
        return entry.unit

    async def interrupt(self, id: str) -> None:
        """`Launcher.interrupt`; never raises."""
        entry = self._ledger.entries.get(id)
        if entry is None or entry.unit is None:
            return
        try:
            with self._fleet.use(entry.unit.node) as slot:
                launcher = await self._fleet.opened(slot)
                await launcher.interrupt(entry.unit)
        except GpufitError as error:
            self.log.warning("allocation %s was not interrupted: %s", entry.allocation.name, error)
        except Exception:
            self.log.exception("allocation %s was not interrupted", entry.allocation.name)

    def exit_code(self, id: str) -> int | None:
        """Exit code if its unit is confirmed to have ended (or was removed)."""
        allocation = self._known(id)
        if allocation.unit is not None:
            launcher = self._fleet.known(allocation.unit.node)
            return None if launcher is None else launcher.exit_code(allocation.unit)
        entry = self._ledger.entries.get(id)
        if entry is not None and entry.busy & {Work.PREPARE}:
            return None
        return self._units.codes.get(id)

    def describe_exit(self, id: str) -> str:
        """One sentence on how its unit ended."""
        allocation = self._known(id)
        launcher = self._fleet.known(allocation.unit.node) if allocation.unit is not None else None
        if allocation.unit is not None and launcher is not None:
            return launcher.describe_exit(allocation.unit)
        return allocation.message.split("\n", 1)[0] or "it was stopped"

    # --- inside

    def _find(self, id: str) -> Allocation | None:
        entry = self._ledger.entries.get(id)
        return entry.allocation if entry is not None else self._records.get(id)

    def _known(self, id: str) -> Allocation:
        if (allocation := self._find(id)) is None:
            raise NotFound(f"there is no allocation {id!r}")
        return allocation

    def _live(self, id: str) -> Entry:
        entry = self._ledger.entries.get(id)
        if entry is None or not entry.live:
            raise self._why(self._known(id))
        if self._dead:
            raise Cancelled(_STOPPED)
        return entry

    def _for_kernel(self, id: str) -> Entry:
        entry = self._live(id)
        if entry.job is not None:
            name = entry.allocation.name
            raise Conflict(
                f"{name!r} is a job: no kernel runs in it, and none can; what it prints is shown by %gpufit logs {name}"
            )
        return entry

    async def _until(self, entry: Entry, reached: Callable[[Entry], bool]) -> Entry:
        while not reached(entry):
            if self._dead:
                raise Cancelled(_STOPPED)
            await self._bell.wait(entry.id)
        return entry

    def _why(self, allocation: Allocation) -> GpufitError:
        """What whoever waits for a kernel in it is told: it ends, or has ended."""
        if allocation.reason in (EndReason.FAILED, EndReason.REJECTED, EndReason.NODE_LOST):
            errors = self._errors.get(allocation.id, {})
            for work in (Work.START_UNIT, Work.PREPARE, Work.PLACE):
                if (error := errors.get(work)) is not None:
                    waited = work is Work.PLACE and allocation.message  # it says for how long, too
                    return type(error)(waited or error.message, **error.details)
            message = allocation.message or f"allocation {allocation.name!r} ended: {allocation.reason}"
            return LaunchError(message, logs=self._logbook.last.get(allocation.id, ""))
        because = f": {allocation.message}" if allocation.message else ""
        return Cancelled(f"allocation {allocation.name!r} was {allocation.reason}{because}")

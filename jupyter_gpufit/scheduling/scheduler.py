"""The scheduler of this process: the one writer of allocations (`api.Scheduler`). What it does about a question is said
to the state machine as an event; `driver.py` and `execution.py` have the rest.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..durations import format_duration, parse_duration
from ..errors import Cancelled, Conflict, Forbidden, GpufitError, LaunchError, NodeUnreachable, NotFound, Unavailable
from ..models import Allocation, Endpoint, EndReason, Node, Request, State, Unit
from . import events as ev
from .about import About, about
from .allocations import Entry
from .driver import Driver
from .events import Work
from .fit import Decision
from .names import fresh_name
from .quotas import admit
from .works import failure_of

__all__ = ["LocalScheduler"]

_STOPPED = "the scheduler was stopped"
_LIVELINESS = {State.ENDED: 0, State.STOPPING: 1, State.PENDING: 2, State.STARTING: 2, State.RUNNING: 2}


class LocalScheduler(Driver):
    """`api.Scheduler`, living on the event loop that `open` is called on. Made by `kernels/service.py`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._random = random.Random()

    # --- for people

    def nodes(self) -> Sequence[Node]:
        """All nodes, usable or not, by name."""
        return self._cluster.nodes()

    def about(self, owner: str) -> About:
        """What `owner` has to know to ask for something."""
        return about(self._cluster.inventory, self._policy(), owner)

    def explain(self, request: Request) -> Decision:
        """A dry run of `request`."""
        self._check_open()
        return self._would_get(request)

    async def request(self, request: Request, owner: str, *, kernel_id: str | None = None) -> Allocation:
        """Place and reserve now; prepare and start in the background."""
        self._check_open()
        name = request.name
        if name is None:
            name = fresh_name(self._records, self._random)
        elif (holder := self._live_of_name(name, owner)) is not None:
            raise Conflict(
                f"you have an allocation {name!r} already ({holder.state}, {holder.request.describe()}); "
                "use that one, release it, or choose another name",
                allocation=holder.id,
            )
        if kernel_id is None and self._host is None:
            raise Conflict("this scheduler runs no kernels; ask with the id of the kernel that will run there")
        request = admit(request, self._cluster.inventory.quota(owner))
        id = secrets.token_hex(6)
        self._handle(ev.Requested(id=id, name=name, owner=owner, request=request, kernel_id=kernel_id))
        entry = self._ledger.entries.get(id)
        if entry is None:
            refusal = self._errors.pop(id, {}).get(Work.PLACE)
            raise refusal or RuntimeError(f"selection failed for {request.describe()}; the log says why")
        await self._written()  # what was answered is not forgotten in a crash
        return entry.allocation

    def allocations(self, owner: str | None = None, ended: bool = False) -> Sequence[Allocation]:
        """Allocations that have not ended (and with `ended` recent ones that have), oldest first."""
        found = [entry.allocation for entry in self._ledger.entries.values()]
        if ended:
            found = [*self._records.ended(), *found]
        found = [each for each in found if owner is None or each.owner == owner]
        return sorted(found, key=lambda each: each.created)

    def get(self, id_or_name: str, owner: str | None = None) -> Allocation:
        """The allocation of that id, or else the latest of that name (a live one first)."""
        found = self._find(id_or_name)
        if found is None or (owner is not None and found.owner != owner):
            candidates = [self._find(id) for id in self._records.of_name(id_or_name)]
            mine = [each for each in candidates if each is not None and (owner is None or each.owner == owner)]
            found = max(mine, key=lambda each: (_LIVELINESS[each.state], each.created), default=None)
        if found is None:
            names = ", ".join(each.name for each in self.allocations(owner)) or "none"
            raise NotFound(f"there is no allocation {id_or_name!r}; there are: {names}")
        return found

    async def release(
        self, id: str, reason: EndReason = EndReason.RELEASED, message: str = "", *, kernel_gone: bool = False
    ) -> Allocation:
        """Begin to end it."""
        self._known(id)
        self._handle(ev.ReleaseAsked(id=id, reason=reason, message=message, kernel_gone=kernel_gone))
        now = self._known(id)
        await self._written()
        return self._find(id) or now

    async def extend(self, id: str, seconds: float) -> Allocation:
        """Give it `seconds` more time, counted from when it would end now."""
        self._check_open()
        now = self._known(id)
        if now.state in (State.STOPPING, State.ENDED):
            raise Conflict(f"allocation {now.name!r} is {now.state}; it cannot get more time: ask for another")
        if now.request.time is None:
            raise Conflict(f"allocation {now.name!r} has no time limit; there is nothing to extend")
        before, more = float(now.request.time), parse_duration(seconds)
        longest, total = self._cluster.inventory.quota(now.owner).time, parse_duration(before + more)
        if longest is not None and total > longest:
            raise Forbidden(
                f"{format_duration(total)} in all is longer than the {format_duration(longest)} that an "
                f"allocation of yours may last; {now.name!r} has {format_duration(before)}"
                + (f": extend it by {format_duration(longest - before)} at most" if longest > before else " already"),
                time=longest,
            )
        self._handle(ev.ExtendAsked(id=id, seconds=more))
        await self._written()
        return self._known(id)

    async def changed(self, id: str, version: int, timeout: float) -> Allocation:
        """The allocation as soon as its `version` is greater than `version`, or as it is after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while (now := self._known(id)).version <= version and not self._dead:
                    await self._bell.wait(id)
        except TimeoutError:
            now = self._known(id)
        return now

    async def logs(self, id: str, tail: int | None = None) -> str:
        """What its unit printed (kept after the end, up to a limit)."""
        allocation = self._known(id)
        if allocation.unit is None:
            lines = self._units.logs.get(id, "").splitlines(keepends=True)
            return "".join(lines if tail is None else lines[-tail:] if tail else [])
        with self._fleet.use(allocation.unit.node) as slot:
            launcher = await self._fleet.opened(slot)
            return await launcher.logs(allocation.unit, tail)

    def subscribe(self, callback: Callable[[Allocation], None]) -> Callable[[], None]:
        """Call back with each allocation that changed, until the returned function is called."""
        return self._subscribers.add(callback)

    # --- for the kernel in it

    async def prepared(self, id: str) -> Unit:
        """Wait until the allocation's unit is prepared."""
        entry = await self._until(self._live(id), lambda entry: entry.prepared or entry.launched or not entry.live)
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
        entry = self._live(id)
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
        entry = self._live(id)
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
        entry = self._live(id)
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

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable("the scheduler is not open (its server is starting or stopping); try again in a moment")

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

    def _live_of_name(self, name: str, owner: str) -> Allocation | None:
        for id in self._records.of_name(name):
            entry = self._ledger.entries.get(id)
            if entry is not None and entry.live and entry.allocation.owner == owner:
                return entry.allocation
        return None

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
            return LaunchError(message, logs=self._units.logs.get(allocation.id, ""))
        because = f": {allocation.message}" if allocation.message else ""
        return Cancelled(f"allocation {allocation.name!r} was {allocation.reason}{because}")

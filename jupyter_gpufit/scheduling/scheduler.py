"""The scheduler of this process: the one writer of allocations (`api.Scheduler`). What it does about a question is said
to the state machine as an event; `forkernels.py`, `driver.py` and `execution.py` have the rest.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from ..durations import format_duration, parse_duration
from ..errors import Conflict, Forbidden, InvalidValue, NotFound, Unavailable
from ..models import Allocation, EndReason, Node, Request, State, Unit
from . import events as ev
from .about import About, about
from .events import Work
from .fit import Decision
from .forkernels import ForKernels
from .logs import Log, last_lines, text_of
from .names import fresh_name
from .needs import Launcher
from .quotas import admit
from .stored import unknown_model
from .sweeps import named, patient, spread
from .usage import UsageSeries

__all__ = ["LocalScheduler"]

_LIVELINESS = {State.ENDED: 0, State.STOPPING: 1, State.PENDING: 2, State.STARTING: 2, State.RUNNING: 2}


class LocalScheduler(ForKernels):
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
        return about(self._cluster.inventory, self._policy_name(), owner)

    def explain(self, request: Request) -> Decision:
        """A dry run of `request`."""
        self._check_open()
        self._check_model(request)
        return self._would_get(request)

    async def request(self, request: Request, owner: str, *, kernel_id: str | None = None) -> Allocation:
        """Place and reserve now; prepare and start in the background."""
        self._check_open()
        if request.job is not None:
            raise InvalidValue("a job is asked for by itself, not as GPUs for a kernel: %gpufit train, or POST jobs")
        self._check_model(request)
        name = request.name
        if name is None:
            name = fresh_name(self._records, self._random)
        self._check_names([name], owner)
        if kernel_id is None and self._host is None:
            raise Conflict("this scheduler runs no kernels; ask with the id of the kernel that will run there")
        request = admit(request, self._cluster.inventory.quota(owner))
        id = secrets.token_hex(6)
        self._learning.count(request)
        self._recorder.asked(id, request, self._clock())
        self._handle(ev.Requested(id=id, name=name, owner=owner, request=request, kernel_id=kernel_id))
        entry = self._ledger.entries.get(id)
        if entry is None:
            refusal = self._errors.pop(id, {}).get(Work.PLACE)
            self._recorder.refused(id, refusal, self._clock())
            raise refusal or RuntimeError(f"selection failed for {request.describe()}; the log says why")
        await self._written()  # what was answered is not forgotten in a crash
        return entry.allocation

    async def submit(
        self, request: Request, owner: str, sweep: Mapping[str, Sequence[str]] | None = None
    ) -> list[Allocation]:
        """Ask for a job, or for one for each point of a sweep: for all of them, or for none."""
        self._check_open()
        if request.job is None:
            raise InvalidValue("there is no job in the request; say what it shall run")
        if self._jobs is None:
            raise Conflict("this scheduler runs no jobs")
        self._check_model(request)
        quota = self._cluster.inventory.quota(owner)
        requests = spread(admit(patient(request, quota), quota), sweep or {})
        names = named(requests, request.name or fresh_name(self._records, self._random))
        requests = [replace(one, name=name) for one, name in zip(requests, names, strict=True)]
        self._check_names(names, owner)
        for one in requests:
            self._learning.count(one)
        if (decision := self._would_get(requests[0])).never:
            self._recorder.never(requests, refusal := decision.refusal(), self._clock())
            raise refusal  # before anything is copied
        ids = [secrets.token_hex(6) for _ in requests]
        try:
            await self._jobs.check_in(ids, requests[0])
            self._check_open()
            self._check_names(names, owner)
            self._request_all(dict(zip(ids, requests, strict=True)), owner)
        except BaseException:
            for id in ids:
                self._forget_job(id)
            raise
        await self._written()  # what was answered is not forgotten in a crash
        return [self._known(id) for id in ids]

    def _request_all(self, requests: Mapping[str, Request], owner: str) -> None:
        """By id. Raises the refusal of the first that is refused, when those before it have been taken back."""
        made: list[str] = []
        behind = ""
        for id, request in requests.items():
            self._recorder.asked(id, request, self._clock())
            asked = ev.Requested(id=id, name=str(request.name), owner=owner, request=request, behind=behind)
            self._handle(asked)
            if id not in self._ledger.entries:
                for other in made:
                    self._handle(ev.ReleaseAsked(id=other, message=f"{request.name!r} of the same sweep was refused"))
                refusal = self._errors.pop(id, {}).get(Work.PLACE)
                self._recorder.refused(id, refusal, self._clock())
                raise refusal or RuntimeError(f"selection failed for {request.describe()}; the log says why")
            made.append(id)
            entry = self._ledger.entries[id]
            if entry.waiting and not behind:  # the rest of a large sweep need not be tried one by one
                behind = entry.allocation.message
                self._make_room()

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

    async def logs(self, id: str, tail: int | None = None, after: str = "") -> Log:
        """What it printed."""
        while True:
            now = self._known(id)
            pieces = await self._logbook.read(id, after)
            if now.unit is not None:
                mark = pieces[-1].mark if pieces else after
                pieces += await self._units.printed(now.unit, None if tail is None else max(tail, 1), mark)
            if self._known(id).unit == now.unit:  # else it is in the logbook by now
                break
        mark = pieces[-1].mark if pieces else after
        text = text_of(pieces if tail is None else last_lines(pieces, tail))
        return Log(text=text, mark=mark, over=now.state is State.ENDED)

    def keep(self, id: str, part: str, data: bytes | None) -> None:
        """Keep `data` until nobody can ask about the allocation any more, also should this process die."""
        if self._find(id) is not None:
            self._store.keep(id, part, data)

    async def kept(self, id: str, part: str) -> bytes | None:
        """What was kept last as that part."""
        return await self._store.kept(id, part)

    async def usage(self, id: str) -> UsageSeries:
        """What it used of its GPUs (kept after the end, too)."""
        return await self._metering.known(self._known(id))

    def subscribe(self, callback: Callable[[Allocation], None]) -> Callable[[], None]:
        """Call back with each allocation that changed, until the returned function is called."""
        return self._subscribers.add(callback)

    @asynccontextmanager
    async def unit(self, id: str) -> AsyncIterator[tuple[Launcher, Unit]]:
        """The launcher and the unit of a running allocation."""
        now = self._known(id)
        if now.state is not State.RUNNING or now.unit is None:
            raise Conflict(f"allocation {now.name!r} is {now.state}, and not running; its files cannot be reached")
        with self._fleet.use(now.unit.node) as slot:
            yield await self._fleet.opened(slot), now.unit

    # --- inside

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable("the scheduler is not open (its server is starting or stopping); try again in a moment")

    def _check_model(self, request: Request) -> None:
        """Raises `InvalidValue` for a model that no node has."""
        if (error := unknown_model(self._fleet.index.nodes, request)) is not None:
            raise error

    def _check_names(self, names: Sequence[str], owner: str) -> None:
        """Raises `Conflict` if the owner has a live one of such a name."""
        for name in names:
            if (holder := self._live_of_name(name, owner)) is not None:
                raise Conflict(
                    f"you have an allocation {name!r} already ({holder.state}, {holder.request.describe()}); "
                    "use that one, release it, or choose another name",
                    allocation=holder.id,
                )

    def _live_of_name(self, name: str, owner: str) -> Allocation | None:
        for id in self._records.of_name(name):
            entry = self._ledger.entries.get(id)
            if entry is not None and entry.live and entry.allocation.owner == owner:
                return entry.allocation
        return None

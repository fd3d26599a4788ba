"""Attach a notebook to an allocation's kernel: the *swap* half (the forwarding half is `notebook/forward.py`).

The notebook's session is pointed at the remote kernel as soon as the allocation runs and the notebook's own kernel has
nothing left to do: a session that is swapped while a cell runs loses that cell's output and all queued ones. Front ends
follow a changed session by themselves. The notebook's own (*local*) kernel is kept alive, and gets the session back on
detach, or when the allocation ends.

    waiting ──it runs, kernel idle──▶ attached ──detach / allocation ends / kernel dies──▶ detached
            ◀──a cell in the local kernel──  (as long as no front end has gone along)

A session has at most one attachment of the first two kinds each: both while it moves from one allocation to another.

`PATCH /api/sessions` is no way to do it: it shuts the kernel down that the session had. And a server drops the session
of a kernel that is gone as soon as anybody looks: so a session goes back *before* its kernel is stopped
(`before_stop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from jupyter_core.utils import ensure_async

from ..errors import Conflict, GpufitError, InvalidValue
from ..models import Allocation, EndReason, State
from .attach_notebooks import Notebooks
from .attachment import ASKED_FOR, LOCAL_TARGET, Attachment, stop_forwarding
from .idle import KernelWatch
from .remotes import Remotes, watch_of

__all__ = ["Attachment", "Attachments"]

_PARKED_PERIOD = 30.0  # s
_FOLLOWED_CHECK = 0.25  # s between looks whether front ends have gone along with their session
_STILL_CHECK = 2.0  # s between looks whether a notebook that waits for its allocation is still there
_LISTED_WITHIN = 10.0  # s until the server's kernel manager lists the kernel of an allocation that just runs
_LISTED_CHECK = 0.05  # s between looks for that
_TELL_WITHIN = 2.0  # s; a local kernel that is busy hears it later
_ORPHAN_CHECKS = (0.5, 1.0, 5.0, 30.0, 60.0)  # s between looks, after a session got its local kernel back
_OVER = (State.STOPPING, State.ENDED)


class Attachments:
    """All attached notebooks of one Jupyter server. Made by the server extension; used from its event loop."""

    def __init__(
        self,
        sessions: Any,
        kernels: Any,
        release: Callable[[str], Coroutine[Any, Any, Any]],
        on_change: Callable[[Attachment], None],
        log: logging.Logger,
        beside: Callable[[str], Sequence[str]] = lambda allocation_id: (),
        extend: Callable[[str, dict[str, Any], dict[str, Any]], Coroutine[Any, Any, None]] | None = None,
        now: Callable[[Allocation], Allocation] = lambda allocation: allocation,
    ) -> None:
        """`sessions` and `kernels` are the server's session and kernel managers; `release` is `Scheduler.release`.

        `beside` gives the ids of all else that the owner of an allocation holds. `extend` does what a kernel asks for
        (`notices.extend`). `now` gives an allocation as it is now.
        """
        self._notebooks = Notebooks(sessions, kernels, log)
        self._kernels = kernels
        self._on_change = on_change
        self._log = log
        self._now = now
        self._all: list[Attachment] = []  # also those that are about to be detached
        self._attaching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._remotes = Remotes(
            kernels,
            release=release,
            detach=self.detach,
            died=self._died,
            beside=beside,
            extend=extend,
            spawn=self._spawn,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked: asyncio.Task[None] | None = None
        self._closed = False

    # --- called by the REST handlers

    async def attach(self, allocation: Allocation, session: str | None = None, path: str | None = None) -> Attachment:
        """Point the notebook of that session or path at the allocation's kernel, once that runs and the notebook's own
        is idle; returns at once.

        Raises `InvalidValue` (neither or both named), `NotFound` (no such session), `Conflict` (it ends, or its kernel
        runs elsewhere).
        """
        if (session is None) == (path is None):
            raise InvalidValue("name the notebook by `session` (its session's id) or by `path`")
        _check_live(allocation)
        if allocation.state is State.RUNNING and allocation.kernel_id not in self._kernels:
            raise Conflict(f"the kernel of allocation {allocation.name!r} does not run under this server")
        model = await self._notebooks.named(session, path)
        async with self._attaching.setdefault(model["id"], asyncio.Lock()):
            return await self._attach(allocation, await self._notebooks.named(model["id"], None))

    async def _attach(self, allocation: Allocation, model: dict[str, Any]) -> Attachment:
        """One at a time for one session: there is at most one waiting and one attached attachment of each."""
        waiting, attached = self._of_session(model["id"])
        for same in (waiting, attached):
            if same is not None and same.allocation == allocation.id and same.leaving is None:
                if same is attached and waiting is not None:
                    await self._detach(waiting)
                return same
        if attached is None and model["kernel"]["id"] == allocation.kernel_id:
            raise Conflict(
                f"notebook {model['path']!r} was started on allocation {allocation.name!r}; it has no local kernel"
            )
        if waiting is not None:
            await self._detach(waiting)
        allocation = self._now(allocation)  # from here on `follow` tells what becomes of it
        _check_live(allocation)
        local = attached or waiting
        attachment = Attachment(
            allocation=allocation.id,
            session=model["id"],
            path=model["path"],
            name=model["name"],
            type=model["type"],
            local_kernel=local.local_kernel if local is not None else model["kernel"]["id"],
            local_kernelspec=local.local_kernelspec if local is not None else model["kernel"]["name"],
            remote_kernel=allocation.kernel_id if allocation.state is State.RUNNING else None,
        )
        self._all.append(attachment)
        self._on_change(attachment)
        attachment.swapping = self._spawn(self._swap_when_idle(attachment))
        if self._parked is None:
            self._parked = asyncio.create_task(self._keep_parked())
        return attachment

    def restore(self, attachment: Attachment) -> None:
        """Take up one that a server before this one had. Its local kernel died with that; on detach it gets a new one.

        Called by `Sessions`, once the session has the remote kernel again."""
        assert attachment.remote_kernel is not None
        self._all.append(attachment)
        self._remotes.listen(attachment.allocation, attachment.remote_kernel)
        self._on_change(attachment)

    async def detach(self, allocation_id: str, reason: EndReason | None = None) -> None:
        """Give every notebook attached to that allocation its local kernel back, now. Quiet if there is none."""
        await asyncio.gather(*(self._detach(attachment, reason) for attachment in self.of(allocation_id)))

    def of(self, allocation_id: str) -> list[Attachment]:
        """The notebooks attached (or about to be) to that allocation."""
        return [attachment for attachment in self._all if attachment.allocation == allocation_id]

    async def present(self) -> list[Attachment]:
        """All that are waiting or attached, under the names that their notebooks have now."""
        for attachment in list(self._all):
            await self._notebooks.model(attachment)
        return [attachment for attachment in self._all if attachment.state != "detached"]

    # --- called when something begins or ends

    def follow(self, allocation: Allocation) -> None:
        """Called by the scheduler's subscription: an allocation that runs is what its notebooks have waited for, and
        one that ends gives them back."""
        if allocation.state is State.RUNNING and allocation.kernel_id is not None:
            for attachment in self.of(allocation.id):
                if attachment.remote_kernel is None:
                    attachment.runs_in(allocation.kernel_id)
        if allocation.state in _OVER:
            for attachment in self.of(allocation.id):
                self._begin_detach(attachment, allocation.reason)

    def _died(self, allocation_id: str) -> None:
        for attachment in self.of(allocation_id):
            self._begin_detach(attachment, EndReason.FAILED)

    async def before_stop(self, kernel_id: str) -> None:
        """Called by the kernel host before it stops a kernel: give back the sessions that have it. Never raises."""
        for attachment in [one for one in self._all if one.remote_kernel == kernel_id]:
            await self._detach(attachment)

    async def close(self) -> None:
        """Stop all tasks. Notebooks keep the session they have. Called when the server stops."""
        self._closed = True
        tasks = [*self._tasks, *([self._parked] if self._parked else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._remotes.close()
        self._all.clear()
        self._parked = None

    # --- the swap, and the way back

    async def _swap_when_idle(self, attachment: Attachment) -> None:
        if not await self._runs(attachment):
            self._begin_detach(attachment)
            return
        kernel_id = attachment.remote_kernel
        assert kernel_id is not None
        if await self._listed(kernel_id) and kernel_id != attachment.local_kernel:
            while await self._swap(attachment, kernel_id):
                pass
        else:
            self._begin_detach(attachment)

    async def _runs(self, attachment: Attachment) -> bool:
        """Wait until its allocation runs; false if meanwhile the notebook is shut down, or given another kernel."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STILL_CHECK):
                    await attachment.running.wait()
                return True
            model = await self._notebooks.model(attachment)
            its = {one.remote_kernel for one in self._all if one.session == attachment.session}
            if model is None or model["kernel"]["id"] not in {attachment.local_kernel, *its}:
                return False

    async def _listed(self, kernel_id: str) -> bool:
        """Wait until the server's kernel manager has it (it does not quite yet, where it started it for a notebook)."""
        try:
            async with asyncio.timeout(_LISTED_WITHIN):
                while kernel_id not in self._kernels:  # noqa: ASYNC110  (nobody tells)
                    await asyncio.sleep(_LISTED_CHECK)
        except TimeoutError:
            return False
        return True

    async def _swap(self, attachment: Attachment, remote_kernel: str) -> bool:
        """Swap once; whether it has to be done again, because a front end had not gone along yet."""
        while True:
            _, attached = self._of_session(attachment.session)
            kernel_id = (attached.remote_kernel if attached is not None else None) or attachment.local_kernel
            async with self._watching(kernel_id) as watch:
                idle = watch is not None and await watch.idle()
                if attached is not None and not idle:
                    await self._detach(attached, EndReason.FAILED)
                if self._of_session(attachment.session)[1] is not attached:
                    continue  # it is detached by now, and it is the local kernel that has to be idle
                front_ends = self._front_ends(kernel_id)
                if not (
                    idle
                    and remote_kernel in self._kernels
                    and await self._notebooks.point(attachment, kernel_id, remote_kernel)
                ):
                    break  # the notebook was shut down meanwhile, or somebody chose another kernel for it
                attachment.state = "attached"
                self._remotes.listen(attachment.allocation, remote_kernel)
                self._touch_parked()
                self._on_change(attachment)
                assert watch is not None
                try:
                    # (Cells that run where other notebooks are, too, say nothing of this one.)
                    shared = attached is not None and len(self.of(attached.allocation)) > 1
                    followed = shared or await self._followed(kernel_id, front_ends, watch)
                except asyncio.CancelledError:
                    if attached is not None:
                        self._begin_detach(attached)  # it has been left, whatever becomes of this one
                    raise
                if followed:
                    if attached is not None:
                        await self._detach(attached)
                    return False
                # At once: a front end that sees the new kernel while it waits for a cell of the old one drops the cell.
                if not await self._notebooks.point(attachment, remote_kernel, kernel_id):
                    break
                attachment.state = "waiting"
                if attached is not None:
                    self._on_change(attached)  # it is the one in force again
                self._on_change(attachment)
                return True
        self._begin_detach(attachment)
        return False

    async def _followed(self, kernel_id: str, front_ends: int, watch: KernelWatch) -> bool:
        """Wait until a front end has left that kernel, for the one its session has now; false if it ran a cell there.

        Front ends look every ten seconds or so, and send what is run until then to the kernel that they know.
        """
        while front_ends and kernel_id in self._kernels and self._front_ends(kernel_id) >= front_ends:
            if await watch.begins(_FOLLOWED_CHECK):
                return False
        return True

    def _front_ends(self, kernel_id: str) -> int:
        """How many are connected to it through the server."""
        if kernel_id not in self._kernels:
            return 0
        return int(self._kernels.kernel_model(kernel_id).get("connections", 0))

    @contextlib.asynccontextmanager
    async def _watching(self, kernel_id: str) -> AsyncIterator[KernelWatch | None]:
        if kernel_id not in self._kernels:
            yield None
            return
        watch = watch_of(self._kernels, kernel_id)
        watch.start()
        try:
            yield watch
        finally:
            await watch.close()

    async def _detach(self, attachment: Attachment, reason: EndReason | None = None) -> None:
        """Returns when the notebook has its local kernel (again)."""
        leaving = self._begin_detach(attachment, reason)
        if leaving is not None:
            await asyncio.wait({leaving})

    def _begin_detach(self, attachment: Attachment, reason: EndReason | None = None) -> asyncio.Task[None] | None:
        if attachment.leaving is None and not self._closed:
            attachment.leaving = self._spawn(self._leave(attachment, reason))
        return attachment.leaving

    async def _leave(self, attachment: Attachment, reason: EndReason | None) -> None:
        was, attachment.state = attachment.state, "detached"
        swapping, attachment.swapping = attachment.swapping, None
        if swapping is not None:
            swapping.cancel()
            await asyncio.wait({swapping})
        try:
            # At once: whoever looks after the remote kernel's end makes the server forget the session.
            model = await self._notebooks.model(attachment)
            if not self._is_taken_over(attachment):
                # A server drops the session of a kernel that died. The notebook did nothing wrong.
                wronged = was == "attached" and reason not in ASKED_FOR
                await self._notebooks.give_back(attachment, model, anew=wronged)
            await self._tell_local(attachment, reason)
        finally:
            self._all.remove(attachment)
            remote_kernel = attachment.remote_kernel
            if remote_kernel and not any(other.remote_kernel == remote_kernel for other in self._all):
                await self._remotes.forget(remote_kernel)
            self._on_change(attachment)
        self._spawn(self._stop_if_orphan(attachment))

    def _is_taken_over(self, attachment: Attachment) -> bool:
        """Whether the session was attached to that kernel anew meanwhile."""
        return any(
            other.session == attachment.session
            and other.remote_kernel == attachment.remote_kernel
            and other.state == "attached"
            for other in self._all
        )

    async def _stop_if_orphan(self, attachment: Attachment) -> None:
        """A notebook that was shut down while attached takes its local kernel with it, as it would have without us."""
        kernel_id = attachment.local_kernel
        for pause in _ORPHAN_CHECKS:
            await asyncio.sleep(pause)
            if kernel_id not in self._kernels or any(other.local_kernel == kernel_id for other in self._all):
                return
            if not await self._notebooks.have(kernel_id):
                self._log.info("notebook %s was shut down; so is its local kernel", attachment.path)
                await ensure_async(self._kernels.shutdown_kernel(kernel_id, now=True))
                return

    # --- the local kernel meanwhile

    async def _tell_local(self, attachment: Attachment, reason: EndReason | None) -> None:
        """Tell the local kernel to forward no longer; it may be that nobody forwards there."""
        if attachment.remote_kernel is None or attachment.local_kernel not in self._kernels:
            return
        watch = watch_of(self._kernels, attachment.local_kernel)
        watch.start()
        try:
            await watch.tell(LOCAL_TARGET, stop_forwarding(attachment, reason), _TELL_WITHIN)
        finally:
            await watch.close()

    async def _keep_parked(self) -> None:
        """The culler must not take a local kernel for idle because its notebook works elsewhere."""
        while True:
            self._touch_parked()
            await asyncio.sleep(_PARKED_PERIOD)

    def _touch_parked(self) -> None:
        for attachment in self._all:
            if attachment.local_kernel in self._kernels:
                self._kernels.get_kernel(attachment.local_kernel).last_activity = datetime.now(UTC)

    # --- small parts

    def _of_session(self, session_id: str) -> tuple[Attachment | None, Attachment | None]:
        """The session's attachment that is waiting, and the one that is in force."""
        found = {one.state: one for one in self._all if one.session == session_id}
        return found.get("waiting"), found.get("attached")

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            expected = isinstance(error, GpufitError)
            self._log.warning("attaching: %s", error, exc_info=None if expected else error)


def _check_live(allocation: Allocation) -> None:
    """Raises `Conflict` for one that no notebook can be attached to, or not any more."""
    if allocation.request.job is not None:
        raise Conflict(
            f"{allocation.name!r} is a job, and has no kernel to attach to; %gpufit logs -f {allocation.name} shows "
            "what it prints"
        )
    if allocation.state in _OVER:
        raise Conflict(f"allocation {allocation.name!r} is {allocation.state}; attach to another one")

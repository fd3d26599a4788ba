"""Attach a notebook to an allocation's kernel: the *swap* half (the forwarding half is `notebook/forward.py`).

The notebook's session is pointed at the remote kernel as soon as its own has nothing left to do: a session that is
swapped while a cell runs loses that cell's output and all queued ones. Front ends follow a changed session by
themselves. The notebook's own (*local*) kernel is kept alive, and gets the session back on detach, or when the
allocation ends.

    waiting ──kernel idle──▶ attached ──detach / allocation ends / kernel dies──▶ detached
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
from tornado.web import HTTPError

from ..errors import Conflict, GpufitError, InvalidValue, NotFound
from ..models import Allocation, EndReason, State
from .attachment import ASKED_FOR, LOCAL_TARGET, Attachment, stop_forwarding
from .idle import KernelWatch
from .remotes import Remotes, watch_of

__all__ = ["Attachment", "Attachments"]

_PARKED_PERIOD = 30.0  # s
_FOLLOWED_CHECK = 0.25  # s between looks whether front ends have gone along with their session
_TELL_WITHIN = 2.0  # s; a local kernel that is busy hears it later
_ORPHAN_CHECKS = (0.5, 1.0, 5.0, 30.0, 60.0)  # s between looks, after a session got its local kernel back


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
    ) -> None:
        """`sessions` and `kernels` are the server's session and kernel managers; `release` is `Scheduler.release`.

        `beside` gives the ids of all else that the owner of an allocation holds. `extend` does what a kernel asks for
        (`notices.extend`).
        """
        self._sessions = sessions
        self._kernels = kernels
        self._on_change = on_change
        self._log = log
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
        """Point the notebook of that session or path at the allocation's kernel, once its own is idle; returns at once.

        Raises `InvalidValue` (neither or both named), `NotFound` (no such session), `Conflict` (it is not running).
        """
        if (session is None) == (path is None):
            raise InvalidValue("name the notebook by `session` (its session's id) or by `path`")
        if allocation.state is not State.RUNNING or allocation.kernel_id is None:
            raise Conflict(
                f"allocation {allocation.name!r} is {allocation.state}; a notebook can attach once it is running"
            )
        if allocation.kernel_id not in self._kernels:
            raise Conflict(f"the kernel of allocation {allocation.name!r} does not run under this server")
        model = await self._named(session, path)
        async with self._attaching.setdefault(model["id"], asyncio.Lock()):
            return await self._attach(allocation, await self._named(model["id"], None))

    async def _attach(self, allocation: Allocation, model: dict[str, Any]) -> Attachment:
        """One at a time for one session: there is at most one waiting and one attached attachment of each."""
        assert allocation.kernel_id is not None
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
        local = attached or waiting
        attachment = Attachment(
            allocation=allocation.id,
            session=model["id"],
            path=model["path"],
            name=model["name"],
            type=model["type"],
            local_kernel=local.local_kernel if local is not None else model["kernel"]["id"],
            local_kernelspec=local.local_kernelspec if local is not None else model["kernel"]["name"],
            remote_kernel=allocation.kernel_id,
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
        self._all.append(attachment)
        self._remotes.listen(attachment.allocation, attachment.remote_kernel)
        self._on_change(attachment)

    async def detach(self, allocation_id: str, reason: EndReason | None = None) -> None:
        """Give every notebook attached to that allocation its local kernel back, now. Quiet if there is none."""
        await asyncio.gather(*(self._detach(attachment, reason) for attachment in self.of(allocation_id)))

    def of(self, allocation_id: str) -> list[Attachment]:
        """The notebooks attached (or about to be) to that allocation."""
        return [attachment for attachment in self._all if attachment.allocation == allocation_id]

    # --- called when something ends

    def follow(self, allocation: Allocation) -> None:
        """Called by the scheduler's subscription: an allocation that ends gives its notebooks back."""
        if allocation.state in (State.STOPPING, State.ENDED):
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
        while await self._swap(attachment):
            pass

    async def _swap(self, attachment: Attachment) -> bool:
        """Swap once; whether it has to be done again, because a front end had not gone along yet."""
        while True:
            _, attached = self._of_session(attachment.session)
            kernel_id = attachment.local_kernel if attached is None else attached.remote_kernel
            async with self._watching(kernel_id) as watch:
                idle = watch is not None and await watch.idle()
                if attached is not None and not idle:
                    await self._detach(attached, EndReason.FAILED)
                if self._of_session(attachment.session)[1] is not attached:
                    continue  # it is detached by now, and it is the local kernel that has to be idle
                front_ends = self._front_ends(kernel_id)
                if not (
                    idle
                    and attachment.remote_kernel in self._kernels
                    and await self._point(attachment, kernel_id, attachment.remote_kernel)
                ):
                    break  # the notebook was shut down meanwhile, or somebody chose another kernel for it
                attachment.state = "attached"
                self._remotes.listen(attachment.allocation, attachment.remote_kernel)
                self._touch_parked()
                self._on_change(attachment)
                if attached is not None:
                    await self._detach(attached)
                    return False
                assert watch is not None
                if await self._followed(kernel_id, front_ends, watch):
                    return False
                # At once: a front end that sees the new kernel while it waits for a cell of the old one drops the cell.
                if not await self._point(attachment, attachment.remote_kernel, kernel_id):
                    break
                attachment.state = "waiting"
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
        attachment.state = "detached"
        swapping, attachment.swapping = attachment.swapping, None
        if swapping is not None:
            swapping.cancel()
            await asyncio.wait({swapping})
        try:
            # At once: whoever looks after the remote kernel's end makes the server forget the session.
            await self._point_back(attachment, reason)
            await self._tell_local(attachment, reason)
        finally:
            self._all.remove(attachment)
            if not any(other.remote_kernel == attachment.remote_kernel for other in self._all):
                await self._remotes.forget(attachment.remote_kernel)
            self._on_change(attachment)
        self._spawn(self._stop_if_orphan(attachment))

    async def _point(self, attachment: Attachment, before: str, kernel_id: str) -> bool:
        """Make `kernel_id` the kernel of the session, if that is `before` now; whether it was."""
        model = await self._model(attachment)
        if model is None or model["kernel"]["id"] != before:
            return False
        await self._sessions.update_session(attachment.session, kernel_id=kernel_id)
        return True

    async def _point_back(self, attachment: Attachment, reason: EndReason | None) -> None:
        """Give the session its local kernel back, if the remote one is what it has."""
        model = await self._model(attachment)
        if self._is_taken_over(attachment):
            return
        if model is not None and model["kernel"]["id"] == attachment.remote_kernel:
            await self._sessions.update_session(attachment.session, kernel_id=await self._local_kernel(attachment))
        elif model is None and reason not in ASKED_FOR:
            # The server dropped the session because its kernel died. The notebook did nothing wrong.
            await self._sessions.save_session(
                attachment.session,
                path=attachment.path,
                name=attachment.name,
                type=attachment.type,
                kernel_id=await self._local_kernel(attachment),
            )

    def _is_taken_over(self, attachment: Attachment) -> bool:
        """Whether the session was attached to that kernel anew meanwhile."""
        return any(
            other.session == attachment.session
            and other.remote_kernel == attachment.remote_kernel
            and other.state == "attached"
            for other in self._all
        )

    async def _local_kernel(self, attachment: Attachment) -> str:
        if attachment.local_kernel not in self._kernels:
            # Somebody shut the parked kernel down. A notebook without any kernel is worse than one that starts afresh.
            self._log.warning("the local kernel of notebook %s is gone; it gets a new one", attachment.path)
            attachment.local_kernel = await self._sessions.start_kernel_for_session(
                attachment.session,
                path=attachment.path,
                name=attachment.name,
                type=attachment.type,
                kernel_name=attachment.local_kernelspec,
            )
        return attachment.local_kernel

    async def _stop_if_orphan(self, attachment: Attachment) -> None:
        """A notebook that was shut down while attached takes its local kernel with it, as it would have without us."""
        kernel_id = attachment.local_kernel
        for pause in _ORPHAN_CHECKS:
            await asyncio.sleep(pause)
            if kernel_id not in self._kernels or any(other.local_kernel == kernel_id for other in self._all):
                return
            if all(model["kernel"]["id"] != kernel_id for model in await self._sessions.list_sessions()):
                self._log.info("notebook %s was shut down; so is its local kernel", attachment.path)
                await ensure_async(self._kernels.shutdown_kernel(kernel_id, now=True))
                return

    # --- the local kernel meanwhile

    async def _tell_local(self, attachment: Attachment, reason: EndReason | None) -> None:
        """Tell the local kernel to forward no longer; it may be that nobody forwards there."""
        if attachment.local_kernel not in self._kernels:
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

    async def _model(self, attachment: Attachment) -> dict[str, Any] | None:
        """The session as it is now (it may have been renamed), or `None`."""
        try:
            model: dict[str, Any] = await self._sessions.get_session(session_id=attachment.session)
        except HTTPError:
            return None
        attachment.path, attachment.name, attachment.type = model["path"], model["name"], model["type"]
        return model

    async def _named(self, session: str | None, path: str | None) -> dict[str, Any]:
        query = {"session_id": session} if session is not None else {"path": str(path).strip("/")}
        try:
            model: dict[str, Any] = await self._sessions.get_session(**query)
        except HTTPError:
            name = session if session is not None else path
            raise NotFound(f"no running notebook {name!r}; open it first, or see `GET /api/sessions`") from None
        return model

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

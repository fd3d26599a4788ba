"""The part of the provisioner that hears what `%gpufit` asks in a kernel that was started on its GPUs (`bootstrap`).

    post_launch ─→ `_listen` ─→ a comm: `release`, `extend` ─→ the scheduler
    the end ─→ `_close_watch`

All of it on the event loop that the scheduler lives on. A kernel that a notebook is attached to is heard by
`Attachments`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from jupyter_client.manager import KernelManager

from ..errors import Unavailable
from ..scheduling.api import Scheduler
from .beside import beside
from .grant import ANSWER_WITHIN, Grant
from .idle import KernelWatch
from .notices import extend
from .resume import Resumable

__all__ = ["Hearing"]


class Hearing(Resumable):
    """Base of `GpufitProvisioner`."""

    _watch: KernelWatch | None = None
    _watched: Grant | None = None  # by which its event loop is reached, also after this kernel's end
    _tasks: set[asyncio.Task[None]]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tasks = set()

    @property
    def listens(self) -> bool:
        """Whether it does what `%gpufit` in this kernel asks for. Asked by `Attachments`, which would do it, too."""
        return self._watch is not None

    async def _listen(self, grant: Grant) -> None:
        manager = cast(KernelManager, self.parent)
        watch = self._watch = KernelWatch(manager, lambda: self.has_process, self._asked)
        self._watched = grant
        grant.closers.add(self._stop_listening)
        watch.start()

    async def _stop_listening(self) -> None:
        watch, self._watch = self._watch, None
        if self._watched is not None:
            self._watched.closers.discard(self._stop_listening)
        if watch is not None:
            await watch.close()

    def _asked(self, data: dict[str, Any]) -> None:
        if data.get("action") == "release":
            self._spawn(self._release_when_idle(everything=data.get("all") is True))
        elif data.get("action") == "extend" and (grant := self._grant) is not None:
            self._spawn(self._extend(grant, data))

    async def _release_when_idle(self, everything: bool) -> None:
        async def release(scheduler: Scheduler, own: str) -> None:
            for id in (*(beside(scheduler, own) if everything else ()), own):
                await scheduler.release(id)

        watch = self._watch
        if watch is not None and await watch.idle() and (grant := self._grant) is not None:
            await grant.quietly("release", lambda scheduler: release(scheduler, grant.id), ANSWER_WITHIN)

    async def _extend(self, grant: Grant, data: dict[str, Any]) -> None:
        info = cast(dict[str, Any], self.connection_info)
        await grant.quietly("extend", lambda scheduler: extend(scheduler, grant.id, data, info), ANSWER_WITHIN)

    async def _close_watch(self) -> None:
        if self._watch is not None and self._watched is not None:
            try:
                await self._watched.here(self._stop_listening)
            except Unavailable:
                self._watch = None  # closed with the service

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

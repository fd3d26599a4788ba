"""Jobs that are being asked for: to copy a large folder may take longer than an answer may, so one can ask again."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any

from ..errors import NotFound, Unavailable
from ..models import Allocation

__all__ = ["MOST_KEPT", "Submissions"]

MOST_KEPT = 100
"""How many of those that are done can still be asked for."""


class Submissions:
    """Those in progress, and the last ones. Used from one event loop, by the handlers."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Sequence[Allocation]]] = {}

    def begin(self, submit: Coroutine[Any, Any, Sequence[Allocation]]) -> str:
        """Begin; the id of it. It goes on whether somebody asks for it or not."""
        id = secrets.token_hex(8)
        self._tasks[id] = task = asyncio.create_task(submit, name=f"gpufit submission {id}")
        task.add_done_callback(self._done)
        return id

    async def result(self, id: str, wait: float) -> Sequence[Allocation] | None:
        """What was made; `None`: not yet, after `wait` seconds. Raises why there is nothing, and `NotFound`."""
        if (task := self._tasks.get(id)) is None:
            raise NotFound(f"there is no submission {id!r}, or it ended long ago")
        await asyncio.wait({task}, timeout=wait)
        if task.cancelled():
            raise Unavailable("this server is stopping; nothing was asked for")
        return task.result() if task.done() else None

    async def close(self) -> None:
        """End what goes on: of these there is no job then."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _done(self, task: asyncio.Task[Sequence[Allocation]]) -> None:
        if not task.cancelled():
            task.exception()  # it is told to who asks, if anybody does
        over = [id for id, each in self._tasks.items() if each.done()]
        for id in over[: len(over) - MOST_KEPT]:
            del self._tasks[id]

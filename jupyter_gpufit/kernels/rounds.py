"""The doctor's rounds in a server: one look at a node at a time, whoever asks for it, and its findings as they come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from ..diagnosis import Diagnosis, Tell
from ..errors import Conflict, NotFound

__all__ = ["Examine", "Rounds"]

_log = logging.getLogger(__name__)

Examine = Callable[[str, bool, Tell], Awaitable[Diagnosis]]
"""`Service.examine`."""


class Rounds:
    """The last diagnosis of each node, and those in progress. Used from one event loop, by the server extension."""

    def __init__(self, examine: Examine) -> None:
        self._examine = examine
        self._latest: dict[str, Diagnosis] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news: dict[str, asyncio.Event] = {}

    def begin(self, node: str, deep: bool) -> Diagnosis:
        """Begin to look at `node`, which has to be in the inventory, or join who does so now; what is known by then.

        Raises `Conflict` for a deep look while a shallow one goes on.
        """
        if node in self._tasks:
            if deep and not self._latest[node].deep:
                raise Conflict(f"node {node!r} is being looked at without `deep` just now; ask again in a moment")
            return self._latest[node]
        self._take(Diagnosis(node=node, deep=deep))
        self._tasks[node] = asyncio.create_task(self._look(node, deep), name=f"gpufit doctor {node}")
        return self._latest[node]

    async def latest(self, node: str, after: int, wait: float) -> Diagnosis:
        """The last diagnosis of `node`, once it has more than `after` checks, or is done; at the latest after `wait`
        seconds. Raises `NotFound` if there is none."""
        if node not in self._latest:
            raise NotFound(f"node {node!r} has not been looked at; `POST nodes/{node}/doctor` does")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not self._latest[node].done and len(self._latest[node].checks) <= after:
                    await self._news[node].wait()
        return self._latest[node]

    async def close(self) -> None:
        """End what goes on; what it has started on nodes is removed by then."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _look(self, node: str, deep: bool) -> None:
        try:
            self._take(await self._examine(node, deep, self._take))
        except Exception:
            _log.exception("looking at node %s failed", node)
        finally:
            self._tasks.pop(node, None)
            if not self._latest[node].done:  # nobody has to wait for what does not come
                self._take(msgspec.structs.replace(self._latest[node], done=True))

    def _take(self, diagnosis: Diagnosis) -> None:
        self._latest[diagnosis.node] = diagnosis
        news = self._news.get(diagnosis.node)
        self._news[diagnosis.node] = asyncio.Event()  # for those that wait from now on
        if news is not None:
            news.set()

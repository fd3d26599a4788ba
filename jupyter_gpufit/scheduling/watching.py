"""Who waits for news of an allocation: `changed`, `subscribe`, and the scheduler's own waiting for a step."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from ..models import Allocation

__all__ = ["Bell", "Subscribers"]


class Bell:
    """Wakes whoever waits for something to happen to an id."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, dict[asyncio.Future[None], None]] = defaultdict(dict)  # in the order they came

    def ring(self, id: str) -> None:
        """Something happened."""
        for future in self._waiting.pop(id, ()):
            if not future.done():
                future.set_result(None)

    def ring_all(self) -> None:
        """Nothing will happen any more."""
        for id in list(self._waiting):
            self.ring(id)

    async def wait(self, id: str) -> None:
        """Until the next ring."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[id][future] = None
        try:
            await future
        finally:
            waiting = self._waiting.get(id)
            if waiting is not None:
                waiting.pop(future, None)
                if not waiting:
                    del self._waiting[id]


class Subscribers:
    """Callbacks that get every change, in order, from the event loop (never from within the scheduler)."""

    def __init__(self, log: logging.Logger) -> None:
        self._callbacks: dict[object, Callable[[Allocation], None]] = {}
        self._log = log

    def add(self, callback: Callable[[Allocation], None]) -> Callable[[], None]:
        """Call `callback` with each change from now on, until the returned function is called."""
        key = object()
        self._callbacks[key] = callback

        def end() -> None:
            self._callbacks.pop(key, None)

        return end

    def tell(self, allocation: Allocation) -> None:
        """Soon, all of them."""
        if self._callbacks:
            asyncio.get_running_loop().call_soon(self._tell, allocation)

    def _tell(self, allocation: Allocation) -> None:
        for callback in list(self._callbacks.values()):
            try:
                callback(allocation)
            except Exception:  # of code that is not ours: the others go on
                self._log.exception("a subscriber failed on allocation %s", allocation.name)

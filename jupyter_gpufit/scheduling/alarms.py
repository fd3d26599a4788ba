"""One alarm clock for all allocations: calls back for each id once its moment has come."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

__all__ = ["Alarms"]

_LONGEST_NAP = 30.0  # s; moments are wall-clock time, which may jump


class Alarms:
    """Moments (Unix time, by `clock`) and who is to be woken then. For one event loop; one timer, however many wait.

    It may call early or twice: whoever is called looks at the time.
    """

    def __init__(self, ring: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._ring, self._clock = ring, clock
        self._heap: list[tuple[float, str]] = []
        self._known: set[tuple[float, str]] = set()  # what is in the heap: one that waits for days sets it ever again
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float, id: str) -> None:
        """Ring for `id` at that moment."""
        if (at, id) in self._known:
            return
        self._known.add((at, id))
        heapq.heappush(self._heap, (at, id))
        if self._heap[0] == (at, id):
            self._arm()

    def check(self) -> None:
        """Ring for all whose moment has come. Called by its own timer; and by tests that move the clock."""
        due: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= self._clock():
            alarm = heapq.heappop(self._heap)
            self._known.discard(alarm)
            due[alarm[1]] = None
        self._arm()
        for id in due:
            self._ring(id)

    def close(self) -> None:
        """Ring no more."""
        self._heap.clear()
        self._known.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            delay = min(max(0.0, self._heap[0][0] - self._clock()), _LONGEST_NAP)
            self._timer = asyncio.get_running_loop().call_later(delay, self.check)

"""The wall clock, and what to do when somebody sets it."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "steady_for"]

_JUMP = 1.0  # s; less is the clock being slewed


class Clock:
    """`clock()` is Unix time, by `wall`. `jumped` is called before it tells of a jump: the seconds it was set by.

    Moments that lie ahead (an allocation's end, the next try) are Unix times. Set back by an hour, they would all come
    an hour late; set forward, at once. Whoever is told moves them. `steady` never jumps; it runs on while the machine
    is suspended, so that waking up is no jump.
    """

    def __init__(
        self, wall: Callable[[], float], steady: Callable[[], float], jumped: Callable[[float, float], None]
    ) -> None:
        self._wall, self._steady, self._jumped = wall, steady, jumped
        self._ahead = wall() - steady()

    def __call__(self) -> float:
        now = self._wall()
        ahead = now - self._steady()
        if abs(by := ahead - self._ahead) >= _JUMP:
            self._ahead = ahead
            self._jumped(by, now)
        return now


def steady_for(wall: Callable[[], float]) -> Callable[[], float]:
    """A clock that never jumps, beside `wall`. Beside one that is not this machine's (of a test), that one itself."""
    if wall is not time.time:
        return wall
    suspended_too = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    return time.monotonic if suspended_too is None else lambda: time.clock_gettime(suspended_too)

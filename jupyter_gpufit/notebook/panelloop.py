"""The one thread of a panel: does one task after the other, those put there by hand before those that are due."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Loop", "Pace", "Task"]


@dataclass(frozen=True)
class Task:
    """Something to do."""

    what: str
    run: Callable[[], None]
    of: str = ""
    """Id of the allocation that it is about: what is said then is said there."""

    @property
    def key(self) -> tuple[str, str]:
        return self.what, self.of


@dataclass(frozen=True)
class Pace:
    """How often a panel asks, in seconds."""

    typing: float = 0.3
    """After the last key, until the server is asked where it would go."""
    moving: float = 1.0
    """Between looks while an allocation starts, waits or ends."""
    watched: float = 3.0
    """... while somebody has used the panel lately."""
    idle: float = 15.0
    cluster: float = 30.0
    """Between looks at the nodes, which may be many."""
    lately: float = 120.0
    apart: float = 0.5
    """At least, whatever asks for them."""


class Loop:
    """All methods are for any thread, and return at once (`close`: within a second)."""

    CLOSES_WITHIN = 1.0
    """Seconds for which closing waits for a task that is under way; it ends by itself, and nothing follows it."""

    def __init__(self, name: str, perform: Callable[[Task], None]) -> None:
        """`perform` is called in the thread, for each task; it must not raise."""
        self._perform = perform
        self._turn = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._asked: set[tuple[str, str]] = set()
        self._due: dict[str, tuple[float, Task]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, task: Task) -> None:
        """Do it as soon as its turn comes; not twice, if it is waiting or under way (a second click)."""
        with self._turn:
            if not self._closed and task.key not in self._asked:
                self._asked.add(task.key)
                self._tasks.append(task)
                self._turn.notify_all()

    def due(self, task: Task, at: float, *, later: bool = False) -> None:
        """Do it at that moment (`time.monotonic`). One of the same kind that is due sooner stays, unless `later`."""
        with self._turn:
            before = self._due.get(task.what)
            if before is None or later or at < before[0]:
                self._due[task.what] = at, task
                self._turn.notify_all()

    def close(self, wait: bool = True) -> None:
        """Do nothing more. Idempotent; also from the thread itself."""
        with self._turn:
            self._closed = True
            self._tasks.clear()
            self._due.clear()
            self._turn.notify_all()
        if wait and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(self.CLOSES_WITHIN)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            self._perform(task)
            with self._turn:
                self._asked.discard(task.key)

    def _next(self) -> Task | None:
        """What is to be done, as soon as there is something. `None`: closed."""
        with self._turn:
            while not self._closed:
                if self._tasks:
                    return self._tasks.popleft()
                now = time.monotonic()
                at, first = min(self._due.values(), key=lambda due: due[0], default=(None, None))
                if at is not None and first is not None and at <= now:
                    del self._due[first.what]
                    return first
                self._turn.wait(None if at is None else at - now)
            return None

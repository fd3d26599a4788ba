"""A node's own few threads, for calls that block: a node that never answers delays nobody else.

Not `concurrent.futures.ThreadPoolExecutor`: the interpreter would wait at its exit for a call that hangs.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import NodeUnreachable

__all__ = ["Worker"]

T = TypeVar("T")
THREADS = 4  # so that a slow start of one container does not hold up the stop of another


class Worker:
    """Runs blocking calls of one node. Closed on the event loop; calls may be submitted from any thread."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._name = name
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` as soon as a thread is free; until then the future can be cancelled. Raises `NodeUnreachable` if
        the worker is closed."""
        job: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise NodeUnreachable(f"nothing is asked of {self._name} any more: its launcher is closed")
            self._unfinished += 1
            self._jobs.put((job, call))
            if len(self._threads) < min(self._unfinished, self._limit):
                name = f"gpufit-{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        return job

    async def run(self, call: Callable[[], T], timeout: float | None = None) -> T:
        """Its result. Raises `TimeoutError` after `timeout` seconds; the call itself goes on until it ends."""
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(self.submit(call))

    async def close(self, patience: float = 2.0) -> None:
        """Take no more calls, drop the waiting ones, and wait for those that run, at most `patience` seconds. A thread
        that hangs longer is left behind: it is a daemon, and holds nothing but its own call."""
        with self._lock:
            self._closed = True
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + patience
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # the caller's, whatever it is
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result  # or an idle thread would keep it alive
            del job, future, call
            with self._lock:
                self._unfinished -= 1

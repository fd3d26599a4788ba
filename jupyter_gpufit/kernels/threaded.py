"""An event loop in a thread of its own, and questions from other threads and loops to it."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import Unavailable

__all__ = ["LoopThread", "ask_on"]

T = TypeVar("T")


async def ask_on(loop: asyncio.AbstractEventLoop, question: Callable[[], Awaitable[T]]) -> T:
    """What `question`, called on `loop`, gives. From any event loop, that one included; cancelling it cancels that.

    Raises `Unavailable` if `loop` has ended, or ends before there is an answer.
    """
    if asyncio.get_running_loop() is loop:
        return await _answer(question)
    answer = _answer(question)
    try:
        future = asyncio.run_coroutine_threadsafe(answer, loop)
    except RuntimeError as error:
        answer.close()
        if not loop.is_closed():
            raise
        raise Unavailable("the gpufit service of this process has ended") from error
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        asking = asyncio.current_task()
        if asking is not None and asking.cancelling():
            raise
        raise Unavailable("the gpufit service of this process ended meanwhile") from None


class LoopThread:
    """A daemon thread that runs an event loop. Started once, stopped once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, at_exit: Callable[[], None]) -> None:
        """Start it. `at_exit` is called when the interpreter exits and it has not been stopped by then."""
        self._at_exit = at_exit
        # `atexit` comes after the interpreter has shut down thread pools, which launchers still need to clean up.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(self._exiting)
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=self._name, daemon=True)
        self._thread.start()
        ready.wait()

    def call(self, question: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
        """What `question`, called on the loop, gives. Waits for it; if that is interrupted, the question is cancelled.

        Raises `TimeoutError` after `timeout` seconds.
        """
        if self._loop is None or threading.current_thread() is self._thread:
            raise RuntimeError(f"the {self._name} thread does not run, or is this one")
        future = asyncio.run_coroutine_threadsafe(_answer(question), self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop, cancelling what still runs there, and join the thread. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            loop.call_soon(ready.set)
            loop.run_forever()

    def _exiting(self) -> None:
        if self._loop is not None:
            self._at_exit()


async def _answer(question: Callable[[], Awaitable[T]]) -> T:
    return await question()

"""What blocks for as long as a disk takes, in a thread: heard of while it goes on, and ended when it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..models import Progress
from ..scheduling.needs import OnProgress
from .packing import OnBytes

__all__ = ["in_thread", "of_phase"]

T = TypeVar("T")
_TELL_EVERY = 0.2  # s


class _Stopped(Exception):
    """Nobody waits for it any more."""


async def in_thread(call: Callable[[OnBytes], T], on_bytes: OnBytes | None = None) -> T:
    """What `call` returns, which is given something to tell of its bytes. If we are cancelled it ends at the next word
    of them, and only then do we."""
    loop, stopped, told = asyncio.get_running_loop(), threading.Event(), 0.0

    def hear(done: int, total: int) -> None:
        nonlocal told
        if stopped.is_set():
            raise _Stopped
        now = time.monotonic()
        if on_bytes is not None and (done >= total or now - told >= _TELL_EVERY):
            told = now
            loop.call_soon_threadsafe(on_bytes, done, total)

    work = asyncio.ensure_future(asyncio.to_thread(call, hear))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stopped.set()
        with contextlib.suppress(Exception):
            await work
        raise


def of_phase(phase: str, on_progress: OnProgress) -> OnBytes:
    """Tells `on_progress` of bytes."""
    return lambda done, total: on_progress(Progress(phase=phase, current=done, total=total))

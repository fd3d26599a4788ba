"""Waiting for a kernel's first answer, and not a moment longer than there is hope for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

from ..durations import format_duration
from ..errors import Cancelled, GpufitError, ImageRefused, LaunchError
from .bootstrap.contents import IMAGE_UNUSABLE
from .probe import Probe

__all__ = ["wait_for_answer"]

_LOOK_EVERY = 0.1  # s


async def wait_for_answer(
    infos: Sequence[dict[str, Any]], timeout: float, fate: Callable[[], Awaitable[tuple[int | None, str] | None]]
) -> int:
    """Index of the connection info under which the kernel answered; more than one where it may choose to be in
    plaintext.

    `fate` tells the exit code and a sentence once the kernel ended; no code: its allocation ends. Called by the
    provisioner after the unit's start. Raises `ImageRefused`, `Cancelled` or `LaunchError`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    with ExitStack() as stack:
        probes = [stack.enter_context(Probe(info)) for info in infos]
        asking = [asyncio.create_task(probe.answered()) for probe in probes]
        try:
            while loop.time() < deadline:
                done, _ = await asyncio.wait(asking, timeout=_LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    first = next(iter(done))
                    first.result()
                    return asking.index(first)
                if (ended := await fate()) is not None:
                    raise _error(*ended)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
    raise LaunchError(f"the kernel did not answer within {format_duration(timeout)} of its container's start")


def _error(code: int | None, words: str) -> GpufitError:
    if code is None:
        return Cancelled(f"the kernel was not waited for: {words.rstrip('.')}")
    if code == IMAGE_UNUSABLE:
        return ImageRefused("the image cannot be used")
    return LaunchError(f"the kernel ended while it started: {words.rstrip('.')}")

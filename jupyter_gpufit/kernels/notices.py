"""Tells kernels what their allocations are warned of, and answers what they ask. `bootstrap/notices.py` hears it.

    allocation warned ──▶ `gpufit_notice` on its kernel's control channel ──▶ shown in the cell that runs, or the next
    `%gpufit extend 1h` there ──comm──▶ `extend` ──▶ the answer, the same way

A kernel that cannot be reached, or does not know such messages, is not told; that harms nothing, since the allocation
says the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..durations import parse_duration
from ..errors import GpufitError
from ..models import Allocation, State
from ..scheduling.api import Scheduler
from .bootstrap.notices import KIND
from .extended import extended
from .probe import Probe

__all__ = ["Notices", "extend", "notify"]

_log = logging.getLogger(__name__)

_WITHIN = 5.0  # s


async def notify(info: Mapping[str, Any], text: str, *, answers: str | None = None, error: bool = False) -> bool:
    """Send a notice to the kernel of that connection info; whether it was heard. Never raises."""
    content: dict[str, Any] = {"text": text}
    if answers is not None:
        content |= {"answers": answers, "error": error}
    with Probe(info, "control") as probe:
        try:
            async with asyncio.timeout(_WITHIN):
                await probe.told(KIND, content)
        except TimeoutError:
            return False
    return True


async def extend(scheduler: Scheduler, allocation_id: str, data: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    """Do what `%gpufit extend` in the kernel of that connection info asked for, and answer. Called by `Attachments` and
    the provisioner, with the data of its comm."""
    question = data.get("ask")
    try:
        allocation = await scheduler.extend(allocation_id, parse_duration(str(data.get("time", ""))))
        text, error = extended(allocation.public(), time.time()), False
    except GpufitError as problem:
        text, error = problem.message, True
    await notify(info, text, answers=question if isinstance(question, str) else None, error=error)


class Notices:
    """Follows the allocations of one scheduler. Made by the service; for its event loop."""

    def __init__(self, info: Callable[[str], Mapping[str, Any] | None]) -> None:
        """`info` gives the connection info of a kernel, if it runs here."""
        self._info = info
        self._warnings: dict[str, str] = {}  # as the kernels should know them
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, allocation: Allocation) -> None:
        """Called by the scheduler with each allocation that changed."""
        if allocation.state is not State.RUNNING:
            self._warnings.pop(allocation.id, None)
        elif self._warnings.get(allocation.id, "") != allocation.warning:
            self._warnings[allocation.id] = allocation.warning
            if allocation.id not in self._tasks:
                self._tasks[allocation.id] = asyncio.create_task(self._tell(allocation))

    async def close(self) -> None:
        """Tell nobody any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, allocation: Allocation) -> None:
        told: str | None = None
        try:
            while (warning := self._warnings.get(allocation.id, told)) != told:
                info = self._info(str(allocation.kernel_id))
                if info is None or not await notify(info, f"gpufit: {warning}" if warning else ""):
                    _log.debug("kernel %s was not told: %s", allocation.kernel_id, warning or "all is well again")
                told = warning
        finally:
            del self._tasks[allocation.id]

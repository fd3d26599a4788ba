"""More of a log as soon as there is more: units tell nobody that they have printed something, so they are asked."""

from __future__ import annotations

import asyncio
import itertools

from ..errors import NodeUnreachable
from ..models import Allocation
from ..scheduling.api import Scheduler
from ..scheduling.logs import Log

__all__ = ["more_of"]

_LOOK_AGAIN = (0.25, 0.5, 1.0)  # s between looks; the last one again and again


async def more_of(
    scheduler: Scheduler, allocation: Allocation, tail: int | None, after: str, wait: float, within: float
) -> Log:
    """What `Scheduler.logs` gives, once that is anything new, or nothing more will come, or `wait` seconds are over.

    Raises `NodeUnreachable` if the node has given nothing at all `within` seconds. Called by the REST handler, and by
    `EmbeddedClient`.
    """
    log: Log | None = None
    clock = asyncio.get_running_loop().time
    until = clock() + wait
    try:
        async with asyncio.timeout(within):
            for looks in itertools.count():
                log = await scheduler.logs(allocation.id, tail, after)
                if log.text or log.over or (left := until - clock()) <= 0:
                    break
                pause = min(_LOOK_AGAIN[min(looks, len(_LOOK_AGAIN) - 1)], left)
                allocation = await scheduler.changed(allocation.id, allocation.version, pause)
    except TimeoutError:
        if log is None:
            raise NodeUnreachable(
                f"node {allocation.node!r} did not give the log of {allocation.name!r} within {within:.0f} s; try again"
            ) from None
    assert log is not None
    return log

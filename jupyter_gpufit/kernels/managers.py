"""What jupyter_client's kernel managers do not get right by themselves, put right by a kernel's provisioner."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["begins_anew", "forget_pending", "hold_shutdown", "start_of_another"]

_LOOK_EVERY = 0.05  # s


async def start_of_another(manager: Any) -> None:
    """Wait for the start of `manager`'s kernel that is under way, and raise what it raises.

    Called within another start, because a kernel manager does two at a time: somebody presses *Restart* as the kernel
    died, and it restarts by itself already. Both mean the same, so whichever comes later has the kernel of the other.
    Both will set the manager's one `ready`, and a second time is an error: so for the one that waited there is a new
    one.
    """
    await _until_ready(manager)
    ready, manager._ready = manager.ready, asyncio.get_running_loop().create_future()
    ready.result()


def hold_shutdown(manager: Any, kernel_id: str) -> None:
    """Called when a kernel goes down, perhaps to be restarted: a multi-kernel manager that is to shut it down meanwhile
    waits for what it knows as pending, and fails if that is not said."""
    pending = _pending(manager)
    if pending is None or kernel_id in pending:
        return
    held = pending[kernel_id] = asyncio.get_running_loop().create_task(_until_ready(manager))

    def over(_: Any) -> None:
        if pending.get(kernel_id) is held:
            del pending[kernel_id]

    held.add_done_callback(over)


def begins_anew(manager: Any, died: bool) -> None:
    """Called before a kernel starts again. A server takes it for what it said last: `busy` for good, if it died in the
    middle of a cell. From `starting` on whatever the new one says puts that right."""
    if getattr(manager, "execution_state", None) == "busy":
        manager.execution_state = "starting"
    if hasattr(manager, "reason") and not died:
        manager.reason = ""


def forget_pending(manager: Any, kernel_id: str) -> None:
    """Called when a start failed: a multi-kernel manager keeps its entry, and then fails to stop all its kernels."""
    pending = _pending(manager)
    if pending is None:
        return
    start = pending.get(kernel_id)
    if isinstance(start, asyncio.Task):
        start.add_done_callback(lambda _: pending.pop(kernel_id, None))


def _pending(manager: Any) -> dict[str, Any] | None:
    kernels = getattr(manager, "parent", None)
    pending = getattr(kernels, "_pending_kernels", None)
    return pending if isinstance(pending, dict) and not getattr(kernels, "use_pending_kernels", False) else None


async def _until_ready(manager: Any) -> None:
    while not manager.ready.done():  # noqa: ASYNC110  (it is replaced by each step of a restart)
        await asyncio.sleep(_LOOK_EVERY)

"""The kernels that notebooks are attached to: what their `%gpufit` asks for (`bootstrap/attached.py`), and their death.

comm: `detach`, `release` ─→ once the kernel is idle: detached, released
      `extend`            ─→ at once
"dead"                    ─→ detached
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from .idle import KernelWatch

__all__ = ["Remotes", "watch_of"]

Extend = Callable[[str, dict[str, Any], dict[str, Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class _Remote:
    watch: KernelWatch
    on_dead: Callable[[], None]


class Remotes:
    """Of one Jupyter server. Made by `Attachments`, whose arguments these are.

    `died` is called with the allocation of a kernel that does not start again; `spawn` runs a task of its own.
    """

    def __init__(
        self,
        kernels: Any,
        *,
        release: Callable[[str], Coroutine[Any, Any, Any]],
        detach: Callable[[str], Coroutine[Any, Any, None]],
        died: Callable[[str], None],
        beside: Callable[[str], Sequence[str]],
        extend: Extend | None,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._kernels = kernels
        self._release, self._detach, self._beside, self._extend = release, detach, beside, extend
        self._died, self._spawn = died, spawn
        self._all: dict[str, _Remote] = {}

    def listen(self, allocation_id: str, kernel_id: str) -> None:
        """Hear that kernel, if it is not heard already."""
        if kernel_id in self._all:
            return

        def on_comm(data: dict[str, Any]) -> None:
            self._spawn(self._asked(allocation_id, kernel_id, data))

        def on_dead() -> None:
            self._died(allocation_id)

        remote = self._all[kernel_id] = _Remote(watch_of(self._kernels, kernel_id, on_comm), on_dead)
        remote.watch.start()
        self._kernels.add_restart_callback(kernel_id, on_dead, "dead")

    async def forget(self, kernel_id: str) -> None:
        """Hear that kernel no longer. Quiet if it is not heard."""
        remote = self._all.pop(kernel_id, None)
        if remote is not None:
            if kernel_id in self._kernels:
                self._kernels.remove_restart_callback(kernel_id, remote.on_dead, "dead")
            await remote.watch.close()

    async def close(self) -> None:
        """Hear nobody any more."""
        for kernel_id in list(self._all):
            await self.forget(kernel_id)

    async def _asked(self, allocation_id: str, kernel_id: str, data: dict[str, Any]) -> None:
        action, remote = data.get("action"), self._all.get(kernel_id)
        if action == "extend" and self._extend is not None and kernel_id in self._kernels:
            manager = self._kernels.get_kernel(kernel_id)
            if not getattr(manager.provisioner, "listens", False):  # one that does extends it itself; twice is too much
                await self._extend(allocation_id, data, manager.get_connection_info())
        # The cell that asks still runs, and others may be queued behind it.
        if action in ("detach", "release") and remote is not None and await remote.watch.idle():
            others = self._beside(allocation_id) if action == "release" and data.get("all") is True else ()
            await self._detach(allocation_id)
            if action == "release":
                for one in (allocation_id, *others):
                    await self._release(one)


def watch_of(kernels: Any, kernel_id: str, on_comm: Callable[[dict[str, Any]], None] | None = None) -> KernelWatch:
    """One of a kernel that runs under `kernels`, a server's kernel manager."""
    return KernelWatch(kernels.get_kernel(kernel_id), lambda: kernel_id in kernels, on_comm)

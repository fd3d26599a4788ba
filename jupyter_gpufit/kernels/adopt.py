"""Who runs the kernels of allocations: the Jupyter server's kernel manager, or one of ours where there is no server.

Both start kernel `gpufit` with nothing but the allocation's id in its environment; the provisioner does the rest.
A start that the scheduler gives up on (release while the kernel connects) cannot be cancelled in a kernel manager: it
is left to end by itself, which it does at once, because the provisioner sees that the allocation ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import NoSuchKernel
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from jupyter_core.paths import jupyter_runtime_dir
from jupyter_core.utils import ensure_async
from tornado.web import HTTPError

from ..errors import LaunchError, NotFound
from ..models import Allocation
from .bootstrap.notices import KIND
from .probe import Probe
from .takeback import Memory, forget_kernel, resume_kernel

__all__ = ["KERNEL_NAME", "OwnKernelHost", "ServerKernelHost"]

KERNEL_NAME = "gpufit"
_STOP_WITHIN = 30.0  # s
_STEP = 0.02  # s


class ServerKernelHost:
    """`KernelHost` over a (multi) kernel manager, such as a Jupyter server's `ServerApp.kernel_manager`.

    Made by the server extension; used by the scheduler, on the manager's event loop.
    """

    before_stop: Callable[[str], Awaitable[None]] | None = None
    """Awaited with a kernel's id before it is stopped here. Set by the server extension: notebooks that are attached to
    the kernel have to leave it while it is there, because a server drops the sessions of a kernel that is gone."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        untracked = getattr(kernels, "untracked_message_types", None)
        if untracked is not None and KIND not in untracked:  # what we tell a kernel is nothing that it does
            kernels.untracked_message_types = [*untracked, KIND]
        self._starts: set[asyncio.Task[str]] = set()

    async def start(self, allocation: Allocation) -> str:
        """Start a `gpufit` kernel for an allocation whose unit is prepared; returns its id once it answers.

        Raises `LaunchError` if there is no such kernelspec, and what the provisioner raises.
        """
        environment = {"GPUFIT_ALLOCATION": allocation.id}
        task = asyncio.create_task(
            self._start(ensure_async(self._kernels.start_kernel(kernel_name=KERNEL_NAME, env=environment)))
        )
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._gave_up)
            raise

    async def take_back(self, allocation: Allocation, memory: bytes) -> str:
        """Go on with the kernel that a process before this one ran in the allocation. See `takeback.py`.

        Raises `LaunchError`, also if such a kernelspec is not there any more.
        """
        task = asyncio.create_task(self._start(resume_kernel(self._kernels, allocation, Memory.read(memory))))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        return await asyncio.shield(task)  # whoever gives it up stops the kernel, if it shall not go on

    def forget(self, kernel_id: str) -> None:
        """Remove what a process before this one left on disk of a kernel that nobody goes on with."""
        forget_kernel(self._kernels, kernel_id)

    async def let_go(self, kernel_id: str) -> None:
        """Have the kernel manager forget a kernel that goes on without this process, for the next one to take back."""
        if kernel_id not in self._kernels:
            return
        manager = self._kernels.get_kernel(kernel_id)
        manager.stop_restarter()
        for stop in ("stop_watching_activity", "stop_buffering"):  # a server's manager has them
            if hasattr(self._kernels, stop):
                getattr(self._kernels, stop)(kernel_id)
        self._kernels.remove_kernel(kernel_id)
        await ensure_async(manager.cleanup_resources(restart=True))  # as one that comes back: the GPUs are kept
        manager.cleanup_connection_file()

    async def stop(self, kernel_id: str) -> None:
        """Shut the kernel down. Quiet if there is none, or if it was being shut down already."""
        if kernel_id not in self._kernels:
            return
        if self.before_stop is not None:
            await self.before_stop(kernel_id)
        try:
            async with asyncio.timeout(_STOP_WITHIN):
                # A kernel manager cannot shut down what is being restarted (and a server then does not stop at all). It
                # will not be for long: the provisioner sees that the allocation ends.
                while self._being_started(kernel_id):  # noqa: ASYNC110  (there is nothing to wait on: see there)
                    await asyncio.sleep(_STEP)
                if kernel_id in self._kernels:
                    await ensure_async(self._kernels.shutdown_kernel(kernel_id))
        except (KeyError, HTTPError):
            return  # somebody else was faster
        except TimeoutError:
            raise LaunchError(f"kernel {kernel_id} was not shut down within {_STOP_WITHIN:.0f} s") from None

    def connection_info(self, kernel_id: str) -> dict[str, Any] | None:
        """How to reach that kernel, if it runs here. As secret as its keys, which it has in it."""
        if kernel_id not in self._kernels:
            return None
        info: dict[str, Any] = self._kernels.get_kernel(kernel_id).get_connection_info()
        return info

    def idle_since(self, kernel_id: str) -> float | None:
        """Since when it has had nothing to do, as far as the kernel manager knows: a server's does, others do not."""
        if kernel_id not in self._kernels:
            return None
        kernel = self._kernels.get_kernel(kernel_id)
        last: datetime | None = getattr(kernel, "last_activity", None)
        if last is None or getattr(kernel, "execution_state", None) != "idle":
            return None
        return last.timestamp()

    async def quiet(self, kernel_id: str, within: float) -> bool:
        """Whether the kernel answers `within` seconds in the queue that its cells run from: none of them does now."""
        info = self.connection_info(kernel_id)
        if info is None:
            return False
        with Probe(info) as probe:
            try:
                async with asyncio.timeout(within):
                    await probe.answered()
            except TimeoutError:
                return False
        return True

    async def close(self) -> None:
        """Wait, for a while, for starts that were given up. Called by the service."""
        if self._starts:
            await asyncio.wait(self._starts, timeout=_STOP_WITHIN)

    def _being_started(self, kernel_id: str) -> bool:
        """Its `ready` is a new future for each start, and of either of two kinds."""
        return kernel_id in self._kernels and not self._kernels.get_kernel(kernel_id).ready.done()

    async def _start(self, start: Awaitable[str]) -> str:
        try:
            return await start
        except NoSuchKernel as missing:
            raise LaunchError(
                f"there is no kernel {missing.name!r} here (jupyter kernelspec list); "
                "it comes with the package: python3 -m pip install --force-reinstall jupyter_gpufit"
            ) from None

    def _gave_up(self, task: asyncio.Task[str]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        stop = asyncio.create_task(self._stop_late(task.result()))
        self._starts.add(stop)
        stop.add_done_callback(self._starts.discard)

    async def _stop_late(self, kernel_id: str) -> str:
        await self.stop(kernel_id)
        return kernel_id


class OwnKernelHost(ServerKernelHost):
    """`KernelHost` over a kernel manager of our own. Connection files are where everybody looks for them."""

    def __init__(self) -> None:
        connection_dir = Path(jupyter_runtime_dir())
        connection_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._own = AsyncMultiKernelManager(connection_dir=os.fspath(connection_dir))
        super().__init__(self._own)

    def client(self, kernel_id: str) -> AsyncKernelClient:
        """A client of that kernel; its channels are not started. Raises `NotFound`."""
        client: AsyncKernelClient = self._kernel(kernel_id).client()
        return client

    async def alive(self, kernel_id: str) -> bool:
        """Whether that kernel runs."""
        return kernel_id in self._own and bool(await ensure_async(self._own.is_alive(kernel_id)))

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt that kernel. Raises `NotFound`."""
        await ensure_async(self._kernel(kernel_id).interrupt_kernel())

    async def close(self) -> None:
        """Shut down what still runs. Called by the service."""
        await super().close()
        await self._own.shutdown_all(now=True)
        self._own.context.destroy(linger=0)

    def _kernel(self, kernel_id: str) -> Any:
        if kernel_id not in self._own:
            raise NotFound(f"kernel {kernel_id} does not run (any longer)")
        return self._own.get_kernel(kernel_id)

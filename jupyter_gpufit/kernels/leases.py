"""Which service the kernels of this process use.

a Jupyter server           the extension opens a `Service` on the server's event loop, and says so (`set_current`)
nbclient, papermill, …     the provisioner opens one when the first kernel starts (`lease`), in a thread of its own,
                           since those run one event loop after another; it goes when the last kernel goes
%gpufit without a server   the magic opens one, likewise in a thread (`ThreadedService`)
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ..inventory import NodeSpec
from ..models import Allocation, State
from ..scheduling.api import Scheduler
from .service import Service, ThreadedService, of_loop
from .threaded import ask_on

__all__ = ["Lease", "current", "expect_current", "lease", "set_current"]

T = TypeVar("T")

_EXPECTED_WITHIN = 20.0  # s

_current: Service | None = None
_expected = False
_lock = threading.Lock()
_embedded: ThreadedService | None = None
_leases = 0


def set_current(service: Service | None) -> None:
    """Say which service kernels of this process use. Called by the server extension, once it is open and once it is
    closed: a kernel that starts in between finds out that it is closing, instead of opening one of its own."""
    global _current, _expected
    _current, _expected = service, False


def expect_current() -> None:
    """Say that `set_current` will be called soon: kernels that start now wait for it. By the server extension."""
    global _expected
    _expected = True


def current() -> Service | None:
    """The service of this process's Jupyter server, if there is one."""
    return _current


class Lease:
    """A provisioner's hold on the service it uses. Made by `lease`."""

    def __init__(self, service: Service, embedded: bool) -> None:
        self._service = service
        self._embedded = embedded

    @property
    def owner(self) -> str:
        """See `Service.owner`."""
        return self._service.owner

    @property
    def inventory_error(self) -> str | None:
        """See `Service.inventory_error`."""
        return self._service.inventory_error

    async def ask(self, question: Callable[[Scheduler], Awaitable[T]]) -> T:
        """See `Service.ask`."""
        return await self._service.ask(question)

    async def see(self, look: Callable[[Scheduler], T]) -> T:
        """See `Service.see`."""
        return await self._service.see(look)

    async def here(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work`, called on the service's event loop, gives: one that goes on when the kernel manager's does not.
        From any event loop. Raises `Unavailable`."""
        return await ask_on(self._service.loop, work)

    @property
    def closers(self) -> set[Callable[[], Awaitable[None]]]:
        """See `Service.closers`; for the service's loop alone."""
        return self._service.closers

    async def spec(self, node: str) -> NodeSpec:
        """See `Service.spec`."""
        return await self._service.see(lambda _: self._service.spec(node))

    async def settled(self) -> None:
        """See `Service.settled`."""
        await ask_on(self._service.loop, lambda: self._service.settled())

    async def ended(self, allocation: str) -> None:
        """Where this lease may be the last, wait until the allocation ended: its undo must not be cut off.

        Raises `NotFound`.
        """
        while self._embedded:
            now = await self.see(lambda scheduler: scheduler.get(allocation))
            if now.state is State.ENDED:
                return
            await self.ask(partial(_next, allocation, now.version))

    async def close(self) -> None:
        """Let go. The last one to let go of an embedded service closes it."""
        embedded, self._embedded = self._embedded, False
        if not embedded:
            return
        if self._service.loop.is_closed():
            _let_go()  # nothing to wait for; and an interpreter that exits has no other threads any more
        else:
            await asyncio.to_thread(_let_go)


async def lease() -> Lease:
    """Hold on to the service that kernels started on the running event loop use; without any, open one in a thread.

    Called by the provisioner when a kernel starts. Raises what `open_service` raises.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _EXPECTED_WITHIN
    while _expected and of_loop(loop) is None and loop.time() < deadline:  # noqa: ASYNC110  (over in a moment)
        await asyncio.sleep(0.05)
    service = of_loop(loop) or _current
    if service is not None:
        return Lease(service, embedded=False)
    pool = ThreadPoolExecutor(1, "gpufit-lease")
    holding = pool.submit(_hold)
    pool.shutdown(wait=False)
    try:
        return Lease(await asyncio.wrap_future(holding), embedded=True)
    except asyncio.CancelledError:
        holding.add_done_callback(_unwanted)
        raise


def _unwanted(holding: Future[Service]) -> None:
    """Let go of what nobody waits for any more. Not here: this may be an event loop's thread."""
    if not holding.cancelled() and holding.exception() is None:
        threading.Thread(target=_let_go, name="gpufit-lease").start()


def _hold() -> Service:
    global _embedded, _leases
    with _lock:
        if _embedded is None:
            _embedded = ThreadedService().start()
        _leases += 1
        return _embedded.service


def _let_go() -> None:
    global _embedded, _leases
    with _lock:
        _leases -= 1
        if _leases == 0 and _embedded is not None:
            embedded, _embedded = _embedded, None
            embedded.close()


async def _next(allocation: str, version: int, scheduler: Scheduler) -> Allocation:
    return await scheduler.changed(allocation, version, timeout=5.0)


def _forget_in_child() -> None:
    """A forked child has no thread of its parent's."""
    global _embedded, _leases, _current, _lock
    _embedded, _leases, _current, _lock = None, 0, None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)

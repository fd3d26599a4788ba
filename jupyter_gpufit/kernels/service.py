"""All of it put together: poller, cache, launchers, scheduler and kernel host. Who uses which: `leases.py`."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_core.paths import jupyter_data_dir
from traitlets.config import Config

from .. import inventory as inventories
from ..cluster.cache import Cache
from ..cluster.poller import Poller
from ..diagnosis import Diagnosis, Tell
from ..errors import StoreError
from ..inventory import NodeSpec
from ..jobs.host import LocalJobHost
from ..jobs.transfers import Transfers
from ..launching.base import make_launcher
from ..models import Node, State
from ..scheduling.api import Scheduler
from ..scheduling.needs import KernelHost
from ..scheduling.scheduler import LocalScheduler
from ..scheduling.store import MEMORY
from .adopt import OwnKernelHost, ServerKernelHost
from .notices import Notices
from .threaded import LoopThread, ask_on

__all__ = ["Service", "ThreadedService", "default_owner", "default_store", "of_loop", "open_service"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

_FIRST_REPORTS = 5.0  # s; the longest that a first placement waits for nodes that have not said anything so far


class Service:
    """What `open_service` opened. Lives on the event loop that it was opened on."""

    def __init__(
        self,
        scheduler: LocalScheduler,
        cache: Cache,
        poller: Poller,
        host: KernelHost,
        owner: str,
        jobs: LocalJobHost,
        transfers: Transfers,
    ) -> None:
        self.scheduler: Scheduler = scheduler
        self.host = host
        self.transfers = transfers
        self.owner = owner
        """Whose allocations those are that kernels make by themselves."""
        self.loop = asyncio.get_running_loop()
        self.closers: set[Callable[[], Awaitable[None]]] = set()
        """What else has to be closed on this loop, at the latest when the service is."""
        self._scheduler, self._cache, self._poller, self._jobs = scheduler, cache, poller, jobs
        self._notices = Notices(host.connection_info if isinstance(host, ServerKernelHost) else lambda kernel_id: None)
        scheduler.subscribe(self._notices.follow)

    @property
    def inventory_error(self) -> str | None:
        """Why `gpufit.toml` as it is now is not in force."""
        return self._poller.inventory_error

    def on_node_change(self, callback: Callable[[str, Node | None], None]) -> Callable[[], None]:
        """Call back with every node now, and each that changes, until the returned function is called."""
        return self._cache.on_change(callback)

    def spec(self, node: str) -> NodeSpec:
        """The node's entry in the inventory. Raises `NotFound`."""
        return self._cache.spec(node)

    async def examine(self, node: str, deep: bool, tell: Tell) -> Diagnosis:
        """Look at one node; see `doctor.examine`. Raises `NotFound`."""
        from .doctor import examine  # it imports docker, for which a server need not wait when it starts

        return await examine(self.spec(node), deep=deep, owner=self.owner, tell=tell)

    async def settled(self, within: float = _FIRST_REPORTS) -> None:
        """Wait until every node has reported, or failed to; at most `within` seconds. Before that nothing would fit."""
        heard = asyncio.Event()
        stop = self._cache.on_change(lambda *_: heard.set())
        try:
            async with asyncio.timeout(within):
                while self._cache.unheard():
                    heard.clear()
                    await heard.wait()
        except TimeoutError:
            return  # selection will say of these that they have not reported yet
        finally:
            stop()

    async def ask(self, question: Callable[[Scheduler], Awaitable[T]]) -> T:
        """What `question` of the scheduler gives. From any event loop; cancelling it cancels the question."""
        return await ask_on(self.loop, lambda: question(self.scheduler))

    async def see(self, look: Callable[[Scheduler], T]) -> T:
        """Likewise, for what the scheduler answers without waiting."""
        return await ask_on(self.loop, lambda: _now(look, self.scheduler))

    async def close(self, keep: bool = False) -> None:
        """Release what this scheduler holds, and stop everything. On the service's own loop. `keep`: leave running what
        the next scheduler can take back; its kernels then are no longer in this process's kernel manager."""
        async with AsyncExitStack() as undo:  # from the last to the first, whatever one of them raises
            # A kernel that was about to start must find this service, and be told that it is closed.
            undo.callback(_by_loop.pop, self.loop, None)
            undo.callback(self._jobs.close)
            undo.push_async_callback(self._poller.stop)
            if isinstance(self.host, ServerKernelHost):
                if keep:  # those that were still being taken back
                    undo.push_async_callback(self._let_go, self.host, self._kept())
                undo.push_async_callback(self.host.close)
            undo.push_async_callback(self._notices.close)
            undo.push_async_callback(self._scheduler.close, release=not keep)
            if keep and isinstance(self.host, ServerKernelHost):
                undo.push_async_callback(self._let_go, self.host, self._kept())
            undo.push_async_callback(self.transfers.close)
            while self.closers:
                await self.closers.pop()()

    def _kept(self) -> list[str]:
        """The kernels that a stop lets go on."""
        allocations = self.scheduler.allocations()
        return [one.kernel_id for one in allocations if one.state is State.RUNNING and one.kernel_id is not None]

    async def _let_go(self, host: ServerKernelHost, kernels: list[str]) -> None:
        for kernel_id in kernels:
            await host.let_go(kernel_id)


async def open_service(
    inventory: str | Path | None = None,
    *,
    host: KernelHost | None = None,
    store: Path | Literal[":memory:"] = ":memory:",
    embedded: bool = False,
    keep: bool = False,
    owner: str | None = None,
    log: logging.Logger | None = None,
    config: Config | None = None,
) -> Service:
    """Open the cluster of `inventory` (default: as `inventory.find` finds it) on the running event loop.

    `host` runs the kernels of allocations (`None`: kernels of our own); `store` is a directory for the ledger, which
    then survives this process: what a server before this one held is taken back by then, what a program did
    (`embedded`) is removed. `keep`: if this is cancelled, what was taken back goes on. `config`: traitlets'
    (`LocalScheduler.…`). Called by the server extension, and by `ThreadedService`. An inventory that cannot be read is
    no error here: see `Service.inventory_error`.
    """
    host = OwnKernelHost() if host is None else host
    cache = Cache()
    poller = Poller(cache, find=lambda: inventories.find(inventory))
    config = config or Config()
    jobs = LocalJobHost(store, lambda: cache.inventory.nodes, log=log, config=config)
    scheduler = LocalScheduler(
        cache, make_launcher, host, jobs=jobs, store=store, embedded=embedded, log=log, config=config
    )
    transfers = Transfers(
        scheduler, cache.spec, store, upload_limit=jobs.upload_limit, download_limit=jobs.outputs_limit
    )
    service = Service(scheduler, cache, poller, host, owner or default_owner(), jobs, transfers)
    try:
        await poller.start()
        await scheduler.open()
        _by_loop[service.loop] = service
        await scheduler.restored()
    except BaseException:
        await service.close(keep)
        raise
    return service


def default_store() -> Path:
    """The directory for ledgers, in Jupyter's data."""
    return Path(jupyter_data_dir()) / "gpufit"


def default_owner() -> str:
    """The hub's user, or the system's."""
    return os.environ.get("JUPYTERHUB_USER") or getpass.getuser()


class ThreadedService:
    """A `Service` on an event loop in a daemon thread: for callers that have no loop that lasts.

        with ThreadedService(inventory=path) as gpus:
            gpus.call(lambda scheduler: scheduler.nodes())                              # waits for the answer
            await gpus.acall(lambda scheduler: scheduler.request(request, gpus.owner))  # in any event loop

    Questions are asked in the service's thread. Closing releases all that is held; the interpreter's exit closes, too.
    """

    def __init__(self, inventory: str | None = None, **options: Any) -> None:
        """`options` are those of `open_service`. Starts nothing so far."""
        self._options = {"inventory": inventory, "store": default_store(), "embedded": True, **options}
        self._thread = LoopThread("gpufit service")
        self._service: Service | None = None

    def start(self) -> Self:
        """Open it, and wait for what the nodes report first: up to some seconds. Raises what `open_service` raises."""
        if self._service is None:
            self._thread.start(at_exit=self.close)
            try:
                self._service = self._thread.call(self._open)
            except BaseException:
                self._thread.stop()
                raise
        return self

    @overload
    def call(self, question: Callable[[Scheduler], Awaitable[T]], timeout: float | None = None) -> T: ...

    @overload
    def call(self, question: Callable[[Scheduler], T], timeout: float | None = None) -> T: ...

    def call(self, question: Callable[[Scheduler], Any], timeout: float | None = None) -> Any:
        """What `question` of the scheduler gives. Waits; when it is interrupted, or `timeout` seconds have passed
        (`TimeoutError`), the question is cancelled. Not from the service's own thread."""
        service = self.service
        return self._thread.call(lambda: _now_or_later(question, service.scheduler), timeout)

    @overload
    async def acall(self, question: Callable[[Scheduler], Awaitable[T]]) -> T: ...

    @overload
    async def acall(self, question: Callable[[Scheduler], T]) -> T: ...

    async def acall(self, question: Callable[[Scheduler], Any]) -> Any:
        """Likewise, without blocking the event loop it is called on."""
        return await self.service.ask(lambda scheduler: _now_or_later(question, scheduler))

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result of `coroutine`, run in the service's thread. As `call`."""
        return self._thread.call(lambda: coroutine, timeout)

    def close(self) -> None:
        """Release what is held, and stop. Idempotent. Blocks until then."""
        service, self._service = self._service, None
        try:
            if service is not None:
                self._thread.call(service.close)
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for any thread

    @property
    def service(self) -> Service:
        """Its methods are for its own thread, except `ask`."""
        if self._service is None:
            raise RuntimeError("the service has not been started, or is closed")
        return self._service

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The service's event loop."""
        return self.service.loop

    @property
    def scheduler(self) -> Scheduler:
        """For use in the service's thread alone."""
        return self.service.scheduler

    @property
    def owner(self) -> str:
        """See `Service.owner`."""
        return self.service.owner

    @property
    def inventory_error(self) -> str | None:
        """See `Service.inventory_error`."""
        return self.service.inventory_error

    # --- kernels of its allocations: in the service's thread (`run`)

    def kernel_client(self, kernel_id: str) -> AsyncKernelClient:
        """A client of that kernel; its channels are not started. Raises `NotFound`."""
        return self._kernels.client(kernel_id)

    async def kernel_alive(self, kernel_id: str) -> bool:
        """Whether that kernel runs."""
        return await self._kernels.alive(kernel_id)

    async def interrupt(self, kernel_id: str) -> None:
        """Interrupt that kernel, child processes too. Raises `NotFound`."""
        await self._kernels.interrupt(kernel_id)

    @property
    def _kernels(self) -> OwnKernelHost:
        host = self.service.host
        if not isinstance(host, OwnKernelHost):
            raise RuntimeError("the kernels of this service are run by somebody else")
        return host

    async def _open(self) -> Service:
        try:
            service = await open_service(**self._options)
        except StoreError as error:  # a home that cannot be written is no reason to do without GPUs
            _log.warning("%s. Should this program be killed, what it holds may stay.", error.message)
            service = await open_service(**{**self._options, "store": MEMORY})
        await service.settled()
        return service


_by_loop: dict[asyncio.AbstractEventLoop, Service] = {}


def of_loop(loop: asyncio.AbstractEventLoop) -> Service | None:
    """The service that is open on that event loop. Called by `leases.lease`."""
    return _by_loop.get(loop)


async def _now(look: Callable[[Scheduler], T], scheduler: Scheduler) -> T:
    return look(scheduler)


async def _now_or_later(question: Callable[[Scheduler], Any], scheduler: Scheduler) -> Any:
    answer = question(scheduler)
    return await answer if inspect.isawaitable(answer) else answer


os.register_at_fork(after_in_child=_by_loop.clear)  # a forked child has no thread of its parent's

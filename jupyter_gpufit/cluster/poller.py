"""Stage A: ask every node on its own monitoring period, and take up changes of `gpufit.toml`.

    gpufit.toml ──look, every 2 s──→ cache.set_inventory
    each node: one asyncio task ──fetch──→ cache.reported | cache.failed ──pause (jitter, back-off)──→ again

One event loop, no thread per node. Every fetch has its own deadline and every node its own task, so that what a node
does delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from .. import inventory as inventories
from ..errors import GpufitError, InvalidValue, InventoryError, NodeUnreachable
from ..inventory import Inventory, NodeSpec
from ..models import Claim, Report
from ..reporting.simulated_spec import parse_simulated
from ..reporting.source import LocalSource, ReportSource, SimulatedSource
from .cache import Cache

__all__ = ["Poller", "load", "make_source", "pause"]

_log = logging.getLogger(__name__)

LOOK_EVERY: Final = 2.0
"""Seconds between looks at the inventory file."""
_LONGEST_PAUSE: Final = 60.0
_GRACE: Final = 0.5
"""Seconds a source may take beyond the timeout it was given, before it is cut off."""

MakeSource = Callable[[NodeSpec, Callable[[], Sequence[Claim]]], ReportSource]
_Sight = tuple[str, int, int, int] | tuple[str] | None
"""What a look at the file saw: its path, mtime, size and inode; the path alone if it cannot be seen; or no file."""
_UNSEEN: Final[_Sight] = ("",)


def make_source(spec: NodeSpec, claims: Callable[[], Sequence[Claim]]) -> ReportSource:
    """What `spec.report` names. `claims` is what is held on the node: on a simulated one it has its effect. The model
    store of a node that is this machine is looked through by us; that of any other by its reporter.

    Raises `InvalidValue` for a simulation that cannot be made. Called by the poller.
    """
    if spec.report == "local":
        return LocalSource(models=spec.models)
    if spec.report.startswith("simulated:"):
        return SimulatedSource(spec.name, spec.report, claims, spec.models)
    from .http import HttpSource  # aiohttp: a tenth of a second for who has none of these

    return HttpSource(spec)


def load(path: Path | None) -> Inventory:
    """`inventory.load`, and whether what it says to simulate can be. Raises `InventoryError`. Called by the poller.

    (Here, since what can be simulated is known to the reporting room, and the inventory is left of that.)
    """
    inventory = inventories.load(path)
    for spec in inventory.nodes:
        if spec.report.startswith("simulated:"):
            try:
                parse_simulated(spec.report)
            except InvalidValue as error:
                place = f"{inventory.path}: [[node]] {spec.name!r}: report = {spec.report!r}"
                raise InventoryError(
                    f"{place}: {error.message}", file=inventory.path, node=spec.name, key="report"
                ) from None
    return inventory


def pause(period: float, failures: int, luck: float) -> float:
    """Seconds from the start of one poll to the start of the next, after `failures` failed ones in a row.

    The period while all is well and after a first failure; then doubled each time, up to a minute (or the period, if
    that is longer). `luck`, from 0 to 1, spreads it by ±10 %, so that nodes do not fall into step.
    """
    backed_off = min(period * 2.0 ** min(max(0, failures - 1), 16), max(period, _LONGEST_PAUSE))
    return backed_off * (0.9 + 0.2 * luck)


class Poller:
    """Keeps a `Cache` up to date. `start` and `stop` are idempotent; used from one event loop, by the server extension.

    `find`, `load` and `source` are stood in for by tests; `find` also by whoever has an `--inventory`.
    """

    def __init__(
        self,
        cache: Cache,
        find: Callable[[], Path | None] = inventories.find,
        *,
        load: Callable[[Path | None], Inventory] = load,
        source: MakeSource = make_source,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self._cache = cache
        self._find, self._load, self._source = find, load, source
        self._look_every = look_every
        self._seen: _Sight = None
        self._looked = False
        self._looking = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._polls: dict[str, tuple[NodeSpec, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.inventory_error: str | None = None
        """Why the inventory as it is now is not in force (the one before it is); `None`: it is."""

    async def start(self) -> None:
        """Read the inventory and begin to poll. A broken inventory raises nothing: see `inventory_error`."""
        if self._watcher is not None:
            return
        self._watcher = asyncio.create_task(self._watch(), name="gpufit inventory")
        try:
            await self.look()
            self._follow(self._cache.inventory)  # after a `stop`, a look at an unchanged file does not
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop polling and close all sources. The cache keeps what it knows."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        self._follow(Inventory(nodes=()))
        if self._ending:
            await asyncio.wait(self._ending)

    # --- the inventory

    async def look(self) -> None:
        """Look at the inventory file now; take it up if it changed. Called by `start`, and then every two seconds."""
        async with self._looking:
            try:
                inventory = await asyncio.to_thread(self._read)
            except InventoryError as error:
                self._complain(error.message)
                return
            if inventory is not None:
                self.inventory_error = None
                self._cache.set_inventory(inventory)
                if self._watcher is not None:
                    self._follow(inventory)

    def _read(self) -> Inventory | None:
        """The inventory if there is a new one (in a thread: disks can be slow, and the local engine too)."""
        path = self._find()
        sight = _sight(path)
        if self._looked and sight == self._seen:
            return None
        # Noted before it is read: a change while we read is then seen at the next look.
        looked, self._looked, self._seen = self._looked, True, sight
        if path is None and looked and self._cache.inventory.path is not None:
            raise InventoryError(f"{self._cache.inventory.path}: is gone; the nodes it described stay until it is back")
        return self._load(path)

    def _complain(self, message: str) -> None:
        self.inventory_error = message
        _log.error("the inventory is not taken up: %s", message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_every)
            try:
                await self.look()
            except Exception as error:  # a fault of ours, or of the file system: the next look may do better
                _log.exception("looking at the inventory failed")
                self.inventory_error = f"looking at the inventory failed: {error}"
                self._seen = _UNSEEN

    # --- the nodes

    def _follow(self, inventory: Inventory) -> None:
        """Have one task per node of `inventory`, made for its present entry."""
        specs = {spec.name: spec for spec in inventory.nodes}
        for name, (spec, task) in list(self._polls.items()):
            if name not in specs or _ways_to_ask(spec) != _ways_to_ask(specs[name]):
                del self._polls[name]
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        for name, spec in specs.items():
            if name not in self._polls:
                self._polls[name] = spec, asyncio.create_task(self._poll(spec), name=f"gpufit poll {name}")

    async def _poll(self, spec: NodeSpec) -> None:
        """Ask one node, again and again, until cancelled (or, for a source that swallows that, until replaced)."""
        name, loop = spec.name, asyncio.get_running_loop()
        mine = self._polls[name]
        source: ReportSource | None = None
        stale: asyncio.TimerHandle | None = None
        try:
            await asyncio.sleep(random.random() * min(spec.monitor_period, 0.2))
            while self._polls.get(name) is mine:
                began, failures = loop.time(), 0
                try:
                    source = source or self._source(spec, lambda: self._cache.claims(name))
                    report = await self._ask(source, spec)
                except GpufitError as error:
                    failures = self._cache.failed(name, error.message)
                else:
                    if self._polls.get(name) is not mine:
                        break
                    self._cache.reported(name, report)
                    if stale is not None:
                        stale.cancel()
                    # A little late rather than a little early: nobody calls again.
                    left = max(0.0, self._cache.stale_in(name) or 0.0) + 0.02
                    stale = loop.call_later(left, self._cache.refresh, name)
                rest = began + pause(spec.monitor_period, failures, random.random()) - loop.time()
                await asyncio.sleep(max(rest, spec.monitor_period / 10))
        finally:
            if stale is not None:
                stale.cancel()
            if source is not None:
                await _close(source, name)

    async def _ask(self, source: ReportSource, spec: NodeSpec) -> Report:
        """One report, in time. Raises `GpufitError` whatever is wrong."""
        try:
            async with asyncio.timeout(spec.timeout + _GRACE):
                return await source.fetch(spec.timeout)
        except GpufitError:
            raise
        except TimeoutError:
            raise NodeUnreachable(f"{spec.report} did not answer within {spec.timeout:g} s") from None
        except Exception as error:  # a fault in a source: this node's alone
            _log.exception("asking node %s failed", spec.name)
            raise NodeUnreachable(f"asking {spec.report} failed: {error!r}") from None


async def _close(source: ReportSource, name: str) -> None:
    try:
        async with asyncio.timeout(5):
            await source.close()
    except Exception:  # it is given up anyway
        _log.exception("closing the source of node %s failed", name)


def _sight(path: Path | None) -> _Sight:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return (str(path),)
    return str(path), status.st_mtime_ns, status.st_size, status.st_ino


def _ways_to_ask(spec: NodeSpec) -> tuple[object, ...]:
    """The parts of an entry that a polling task depends on."""
    timing = spec.monitor_period, spec.timeout, spec.stale_after
    return spec.report, spec.report_token_file, timing, spec.docker, spec.models

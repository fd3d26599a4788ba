"""Finds what carries our label and belongs to no live allocation, and removes it. Others' units are left alone.

Such things are there when a server was killed in the middle of a launch, when a node did not answer while we undid one,
and when an allocation was given up because its node was lost and the node comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Sequence

from ..errors import GpufitError, LaunchError
from ..models import Claim, Unit
from .fleet import Fleet

__all__ = ["Reaper"]

_AGAIN = 30.0  # s; after a try that failed


class Reaper:
    """Made by the scheduler; used on its event loop.

    `belongs(node, claim, unit)`: whether a live allocation of ours is meant to have that (unit `None`: any) there.
    """

    def __init__(
        self,
        fleet: Fleet,
        ours: Container[str],
        belongs: Callable[[str, Claim, Unit | None], bool],
        log: logging.Logger,
        grace: float,
    ) -> None:
        self._fleet, self._ours, self._belongs, self._log, self._grace = fleet, ours, belongs, log, grace
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hurry: dict[str, asyncio.Event] = {}
        self._asked: set[str] = set()  # nodes to be visited (again: one that is being visited may have been passed by)
        self._closed = False

    def look(self, node: str, claims: Sequence[Claim]) -> None:
        """This is what runs on `node` now: if there is something to remove, do so after a grace time."""
        if any(self._orphan(node, claim) for claim in claims):
            self.visit(node)

    def visit(self, node: str) -> None:
        """There may be something to remove on `node`, as soon as it answers."""
        self._asked.add(node)
        if node not in self._tasks and not self._closed:
            task = self._tasks[node] = asyncio.get_running_loop().create_task(self._reap(node))
            task.add_done_callback(lambda _: self._tasks.pop(node, None))

    def heard(self, node: str) -> None:
        """`node` answers again: what is to be done there need not wait any longer."""
        if node in self._hurry:
            self._hurry[node].set()

    async def close(self) -> None:
        """Stop looking."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    def _orphan(self, node: str, claim: Claim, unit: Unit | None = None) -> bool:
        return claim.scheduler in self._ours and not self._belongs(node, claim, unit)

    async def _reap(self, node: str) -> None:
        level, hurry = logging.WARNING, asyncio.Event()
        self._hurry[node] = hurry
        try:
            await asyncio.sleep(self._grace)
            while self._fleet.known(node) is not None:
                hurry.clear()
                self._asked.discard(node)
                try:
                    await self._reap_now(node)
                    if node not in self._asked:
                        return
                    await asyncio.sleep(self._grace)
                    continue
                except GpufitError as error:
                    self._log.log(level, "what may be left of ours on %s could not be removed yet: %s", node, error)
                except Exception:
                    self._log.exception("what is left of ours on %s could not be removed", node)
                level = logging.DEBUG
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN):
                        await hurry.wait()
        finally:
            del self._hurry[node]

    async def _reap_now(self, node: str) -> None:
        with self._fleet.use(node) as slot:
            launcher = await self._fleet.opened(slot)
            stuck: GpufitError | None = None
            for unit, claim in await launcher.units():
                if self._orphan(node, claim, unit):
                    self._log.warning("removing %s on %s: no allocation of ours has it", unit.name, node)
                    try:
                        await launcher.stop(unit)
                    except LaunchError as error:  # it cannot be removed; that is no reason to leave the others
                        stuck = error
            if stuck is not None:
                raise stuck

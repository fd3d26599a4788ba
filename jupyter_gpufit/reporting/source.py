"""What can be asked for a node's report: this machine's NVML, or a simulated node; and what is in the model store of
either, which is a directory of this machine. (HTTP is the cluster's.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from ..models import Claim, Report
from .model_store import ModelStore
from .sampler import Sampler
from .simulated import SimulatedNode
from .simulated_spec import SimulatedSpec

__all__ = ["LocalSource", "ReportSource", "SimulatedSource"]


class ReportSource(Protocol):
    """Used from one event loop, which it never blocks."""

    async def fetch(self, timeout: float) -> Report:
        """The report, within `timeout` seconds. What is wrong with the node is said in the report's `error`.

        Called once per monitoring period: by the agent, or by the cluster's poller for a node without one.
        """

    async def close(self) -> None:
        """Let go of what it holds. Idempotent."""


class LocalSource:
    """This machine, by NVML in a child process that lives from the first `fetch` to `close`.

    `models`: the directory of its model store, if it has one.
    """

    def __init__(self, sampler: Sampler | None = None, models: str | os.PathLike[str] | None = None) -> None:
        self._sampler = sampler or Sampler()
        self._store = None if models is None else ModelStore(models)

    async def fetch(self, timeout: float) -> Report:
        """See `ReportSource`. Without a new report in time it is the last one, with its `age`."""
        if self._store is not None:
            self._store.models()  # begins to look through it while NVML is read
        return await _with_models(await self._sampler.fetch(timeout), self._store)

    async def close(self) -> None:
        """End the child."""
        if self._store is not None:
            self._store.close()
        await self._sampler.close()


class SimulatedSource:
    """A simulated node, on which the allocations in `claims()` have their effect. A model store of it is a real one."""

    def __init__(
        self,
        node: str,
        spec: SimulatedSpec | str,
        claims: Callable[[], Sequence[Claim]] = lambda: (),
        models: str | os.PathLike[str] | None = None,
    ) -> None:
        """Raises `InvalidValue` if `spec` describes nothing that can be simulated."""
        self._node, self._claims = SimulatedNode(node, spec), claims
        self._store = None if models is None else ModelStore(models)

    async def fetch(self, timeout: float) -> Report:
        """See `ReportSource`."""
        return await _with_models(self._node.report(self._claims(), time.time()), self._store)

    async def close(self) -> None:
        """Look at the model store no more."""
        if self._store is not None:
            self._store.close()


async def _with_models(report: Report, store: ModelStore | None) -> Report:
    return report if store is None else replace(report, models=await store.first_models())

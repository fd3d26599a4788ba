"""What can be asked for a node's report: this machine's NVML, or a simulated node. (HTTP is the cluster's.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..models import Claim, Report
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
    """This machine, by NVML in a child process that lives from the first `fetch` to `close`."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._sampler = sampler or Sampler()

    async def fetch(self, timeout: float) -> Report:
        """See `ReportSource`. Without a new report in time it is the last one, with its `age`."""
        return await self._sampler.fetch(timeout)

    async def close(self) -> None:
        """End the child."""
        await self._sampler.close()


class SimulatedSource:
    """A simulated node, on which the allocations in `claims()` have their effect."""

    def __init__(
        self, node: str, spec: SimulatedSpec | str, claims: Callable[[], Sequence[Claim]] = lambda: ()
    ) -> None:
        """Raises `InvalidValue` if `spec` describes nothing that can be simulated."""
        self._node, self._claims = SimulatedNode(node, spec), claims

    async def fetch(self, timeout: float) -> Report:
        """See `ReportSource`."""
        return self._node.report(self._claims(), time.time())

    async def close(self) -> None:
        """Nothing to let go of."""

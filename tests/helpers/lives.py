"""One allocation's life in the ledger, from event to event: for tests of the state machine."""

from __future__ import annotations

from typing import Any

from jupyter_gpufit.models import Placement, Request, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Ledger, Limits
from jupyter_gpufit.scheduling.events import Event, Instruction

__all__ = ["HERE", "LIMITS", "Life", "kinds"]

LIMITS = Limits(
    attempts=3, launch_within=60, ready_within=100, restart_within=30, kernel_within=10, lost_after=600, retry_first=1
)
HERE = Placement(node="n1", gpus=("G0", "G1"), memory=(8, 8))


class Life:
    """One allocation, `x`, from event to event, at a time that only moves when told."""

    def __init__(self, hosted: bool = True, ledger: Ledger | None = None, **wishes: Any) -> None:
        self.ledger = ledger or Ledger("sched", LIMITS)
        self.now = 1000.0
        kernel = None if hosted else "kernel-of-somebody"
        self.out = self.ledger.handle(
            ev.Requested(id="x", name="train", owner="me", request=Request(gpus=2, **wishes), kernel_id=kernel),
            self.now,
        )
        self.entry = self.ledger.entries["x"]

    def __call__(self, event: type[Event], **fields: Any) -> list[Instruction]:
        self.out = self.ledger.handle(event(id="x", **fields), self.now)
        return self.work

    def wake(self, seconds: float) -> list[Instruction]:
        self.now += seconds
        return self(ev.Woken)

    @property
    def work(self) -> list[Instruction]:
        """What there is to do, besides saying it."""
        return [what for what in self.out if not isinstance(what, ev.Save | ev.Notify | ev.Publish | ev.Wake)]

    @property
    def it(self):
        return self.entry.allocation

    @property
    def held(self) -> dict[str, int]:
        return {uuid: size for claim in self.ledger.claims("n1") for uuid, size in claim.gpus.items()}

    def prepare(self) -> Unit:
        [prepare] = self(ev.Placed, placement=HERE)
        return self.prepared(prepare)

    def prepared(self, prepare: Instruction) -> Unit:
        assert isinstance(prepare, ev.Prepare)
        unit = Unit(id=f"U{self.entry.units}", name=prepare.launch.name, node="n1", allocation="x")
        self(ev.Prepared, unit=unit)
        return unit

    def run(self) -> Unit:
        unit = self.prepare()
        self(ev.LaunchAsked)
        self(ev.UnitStarted, ports=(1, 2, 3, 4, 5))
        self(ev.KernelReady, kernel_id="k")
        if self.entry.hosted:
            self(ev.KernelStarted, kernel_id="k")
        assert self.it.state is State.RUNNING
        return unit


def kinds(instructions: list[Instruction]) -> list[type[Instruction]]:
    return [type(what) for what in instructions]

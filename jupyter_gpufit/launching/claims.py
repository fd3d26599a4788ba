"""Which claims on a node's GPUs, cores and memory fit together, and which of the containers there make one. Pure.

The protocol (both launchers follow it): make the unit with its claim, not started; read all claims of the node; if one
clashes with ours, remove ours and let the scheduler select again; else start. Whoever claimed second is sure to see
the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..cluster.effective import asked_of_host
from ..errors import ClaimLost
from ..memory import compare, format_memory
from ..models import Claim
from .machine import Machine

__all__ = ["STALE_AFTER", "check", "conflicts", "crowded", "holds"]

STALE_AFTER = 300.0
"""Seconds, by the engine's clock, after which a container that was made and never started is ignored: its scheduler
died."""

_HOLDING = frozenset({"running", "paused", "restarting"})


def holds(state: str, age: float) -> bool:
    """Whether a container in this state (Docker's word), made `age` seconds ago, claims its GPUs."""
    return state in _HOLDING or (state == "created" and age < STALE_AFTER)


def conflicts(mine: Claim, others: Iterable[Claim], totals: Mapping[str, int] | None = None) -> dict[str, list[Claim]]:
    """For each GPU of `mine` that `others` hold in a way that does not fit together with it: their claims.

    On one GPU, two claims fit together only if both are shared and all shared ones together have room in what the GPU
    has (`totals`, bytes by uuid; a GPU not named there is taken to have enough). GPUs are compared by uuid alone: two
    MIG instances of one card are two GPUs.
    """
    rivals = list(others)
    clashes: dict[str, list[Claim]] = {}
    for uuid, wanted in mine.gpus.items():
        holders = [claim for claim in rivals if uuid in claim.gpus]
        alone = [claim for claim in holders if not (mine.shared and claim.shared)]
        taken = sum(claim.gpus[uuid] for claim in holders)
        if alone:
            clashes[uuid] = alone
        elif holders and totals and uuid in totals and taken + wanted > totals[uuid]:
            clashes[uuid] = holders
    return clashes


def crowded(mine: Claim, others: Iterable[Claim], machine: Machine) -> dict[str, str]:
    """What of the machine (`cores`, `RAM`) does not suffice for `mine` beside what `others` asked for, each with a
    sentence that says so. What is not known of it is taken to be enough."""
    rivals = [claim for claim in others if claim.allocation != mine.allocation]
    cpus, ram = asked_of_host(rivals)
    short = {}
    if mine.cpus and cpus and machine.cpus is not None and round(cpus + mine.cpus - machine.cpus, 2) > 0:
        who = _names(claim for claim in rivals if claim.cpus)
        short["cores"] = f"{cpus:g} of its {machine.cpus:g} cores are held by {who}, {mine.cpus:g} asked"
    if mine.ram and ram and machine.ram is not None and ram + mine.ram > machine.ram:
        who = _names(claim for claim in rivals if claim.ram)
        left, asked = compare(max(0, machine.ram - ram), mine.ram)
        short["RAM"] = f"{left} of its RAM is left beside {who}, {asked} asked"
    return short


def check(
    mine: Claim, others: Iterable[Claim], totals: Mapping[str, int] | None, node: str, machine: Machine | None = None
) -> None:
    """Raises `ClaimLost`, saying who holds what, if `mine` does not fit together with `others` on `node`."""
    rivals = list(others)
    clashes, short = conflicts(mine, rivals, totals), crowded(mine, rivals, machine or Machine())
    if not (clashes or short):
        return
    parts = list(short.values())
    for uuid, holders in clashes.items():
        shared = mine.shared and all(claim.shared for claim in holders)
        room = f", and has no {format_memory(mine.gpus[uuid])} left to share" if shared else ""
        parts.append(f"{uuid} is held by {_names(holders)}{room}")
    raise ClaimLost(f"another scheduler was faster on {node}: {'; '.join(parts)}", gpus=sorted(clashes))


def _names(claims: Iterable[Claim]) -> str:
    names = {f"allocation {claim.allocation} of {claim.owner or 'nobody'}" for claim in claims}
    return ", ".join(sorted(names)) or "nobody"

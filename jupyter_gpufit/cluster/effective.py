"""What of a node's GPUs is really left: the report, less what allocations hold. Pure.

    remaining memory   what NVML calls free, less what allocations reserved there and do not use yet
    idle               healthy, no allocation holds it, and no foreign process computes on it
    shareable          held by shared allocations alone, and no foreign process computes on it
    claimed, foreign   who has the memory: what allocations hold in all, and what foreign processes use

A process is *foreign* on a GPU unless it belongs to an allocation that holds that GPU. What a report still shows of
units that have ended since it was sampled is not there any more. Wherever something is not known, the answer errs to
the side of less memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..models import Claim, Gpu, GpuProcess

__all__ = ["asked_of_host", "effective", "left_of", "same_container", "used_by_each"]

_SHORT_ID = 12
"""Hex digits of a container id as `docker ps` shows it; fewer identify nothing."""


def effective(reported: Sequence[Gpu], claims: Iterable[Claim], past: Iterable[Claim] = ()) -> tuple[Gpu, ...]:
    """`reported`, the GPUs of one node, as they are for selection while `claims` hold.

    Several claims of one allocation (the ledger's, the engine's) count once: the greatest size each GPU is claimed
    with, the containers and pids of all. `past`: claims given up since the sample was taken, which happens when what
    ran for them is confirmed gone. What it sets: `memory_free`, `idle`, `allocatable` (with `reason`), `allocations`,
    `shareable`, `memory_claimed`, `memory_foreign`; and `processes`, `memory_used` where `past` tells. Called by the
    cache with each report, and whenever the claims change.
    """
    holdings = _holdings(claims)
    if any(gpu.processes for gpu in reported) and (ended := _holdings(past)):
        reported = [_without(gpu, ended, holdings) for gpu in reported]
    parents = {gpu.parent for gpu in reported if gpu.parent is not None}
    present = {gpu.uuid for gpu in reported}
    return tuple(_effective(gpu, holdings, present, parents) for gpu in reported)


class _Holding(Struct):
    """One allocation, as all the claims of it together tell."""

    allocation: str
    gpus: dict[str, int]
    cards: dict[str, str]
    containers: set[str]
    pids: set[int]
    shared: bool

    def owns(self, process: GpuProcess) -> bool:
        return process.pid in self.pids or any(same_container(process.container, own) for own in self.containers)


def _holdings(claims: Iterable[Claim]) -> list[_Holding]:
    """The claims, one `_Holding` per allocation, in a fixed order."""
    by_allocation: dict[str, _Holding] = {}
    for claim in claims:
        held = by_allocation.setdefault(claim.allocation, _Holding(claim.allocation, {}, {}, set(), set(), True))
        for uuid, size in claim.gpus.items():
            held.gpus[uuid] = max(size, held.gpus.get(uuid, 0))
        held.cards |= claim.cards
        held.pids |= claim.pids
        held.shared &= claim.shared
        if claim.container:
            held.containers.add(claim.container)
    return [by_allocation[allocation] for allocation in sorted(by_allocation)]


def _effective(gpu: Gpu, holdings: Sequence[_Holding], present: set[str], parents: set[str]) -> Gpu:
    on_it = [held for held in holdings if gpu.uuid in held.gpus]
    around = [held for held in holdings if held not in on_it and _holds_around(held, gpu, present)]
    reason = _not_allocatable(gpu, parents)
    # A reporter may know that a GPU is in use and not by whom (no list of processes): then somebody unknown uses it.
    strangers = [process for process in gpu.processes if not _owner(process, on_it)]
    somebody = not gpu.idle and not gpu.processes
    foreign = bool(strangers) or somebody
    free = reason is None and not foreign
    return replace(
        gpu,
        memory_free=_memory_free(gpu, on_it),
        idle=free and not on_it and not around,
        shareable=free and bool(on_it) and not around and all(held.shared for held in on_it),
        allocatable=reason is None,
        reason=reason,
        allocations=tuple(held.allocation for held in holdings if held in on_it or held in around),
        memory_claimed=sum(held.gpus[gpu.uuid] for held in on_it),
        memory_foreign=None if somebody or gpu.memory_free is None else _memory_of(strangers),
    )


def _without(gpu: Gpu, ended: Sequence[_Holding], holdings: Sequence[_Holding]) -> Gpu:
    """`gpu` without the processes that ran for what has `ended`, and for none of `holdings`; their memory is free."""
    gone = [process for process in gpu.processes if _owner(process, ended) and not _owner(process, holdings)]
    if not gone:
        return gpu
    left = tuple(process for process in gpu.processes if process not in gone)
    free, used = gpu.memory_free, gpu.memory_used
    if gpu.memory_total is not None and free is not None:
        # Not more than is in use at all: the two may have been read at different moments.
        back = min(sum(process.memory or 0 for process in gone), max(0, gpu.memory_total - free))
        free, used = free + back, None if used is None else max(0, used - back)
    return replace(gpu, processes=left, idle=gpu.idle or not left, memory_free=free, memory_used=used)


def _memory_free(gpu: Gpu, on_it: Sequence[_Holding]) -> int | None:
    """Bytes free there, less what the holders have reserved and do not use yet. `None`: unknown.

    An own process whose use is unknown counts as using nothing yet: the whole reservation is still to come. If the own
    processes' sum is more than the GPU says is used, the two were read at different moments: the difference is about to
    be used and counts as such, so that a reservation never comes out smaller than it is.
    """
    if gpu.memory_free is None:
        return None
    still_to_come, own = 0, 0
    for held in on_it:
        uses = sum(process.memory or 0 for process in gpu.processes if _owner(process, on_it) is held)
        still_to_come += max(0, held.gpus[gpu.uuid] - uses)
        own += uses
    if gpu.memory_total is not None:
        still_to_come += max(0, own - max(0, gpu.memory_total - gpu.memory_free))
    return max(0, gpu.memory_free - still_to_come)


def _memory_of(processes: Iterable[GpuProcess]) -> int | None:
    """Bytes they use together. `None`: of one of them it is not known."""
    uses = [process.memory for process in processes]
    return None if None in uses else sum(filter(None, uses))


def _owner(process: GpuProcess, on_it: Sequence[_Holding]) -> _Holding | None:
    return next((held for held in on_it if held.owns(process)), None)


def _holds_around(held: _Holding, gpu: Gpu, present: set[str]) -> bool:
    """Whether `held` keeps others off `gpu` without naming it: it holds the MIG parent of `gpu`, or a MIG instance that
    was made of `gpu` or of its parent and is not reported any more (the card of an instance is its parent)."""
    if gpu.parent is not None and gpu.parent in held.gpus:
        return True
    ancestors = {gpu.uuid, gpu.parent}
    return any(uuid not in present and held.cards.get(uuid, uuid) in ancestors for uuid in held.gpus)


def _not_allocatable(gpu: Gpu, parents: set[str]) -> str | None:
    """Why nothing may be placed on `gpu`, whoever holds it: what its reporter says, and what follows from the rest."""
    if not gpu.allocatable:
        return gpu.reason or "its reporter says that it cannot be allocated"
    if gpu.health in ("unhealthy", "lost"):
        return gpu.reason or f"it is {gpu.health}"
    if gpu.uuid in parents:
        return "it is divided into MIG instances; ask for one of those"
    if gpu.memory_total is None or gpu.memory_free is None:
        return "its memory is unknown"
    return None


def used_by_each(reported: Sequence[Gpu], claims: Iterable[Claim]) -> dict[str, dict[str, int | None]]:
    """Bytes that the processes of each allocation use of each GPU that its node `reported`, while `claims` hold there.

    `None`: that is not known. Nor is it where something uses a GPU that cannot be told from what is its own: there is
    no list of processes, or one that names no container of any; or what runs for it is not known yet. Called by the
    cache, once per report, for all.
    """
    holdings = _holdings(claims)
    owned = [(gpu, [(process, _owner(process, holdings)) for process in gpu.processes]) for gpu in reported]
    containers = any(process.container for gpu in reported for process in gpu.processes)

    def used(own: _Holding, gpu: Gpu, processes: Sequence[tuple[GpuProcess, _Holding | None]]) -> int | None:
        if not processes:
            return 0 if gpu.idle else None
        tells = bool(own.pids or (own.containers and containers))
        if not tells and any(owner is None for _, owner in processes):
            return None
        return _memory_of(process for process, owner in processes if owner is own)

    return {own.allocation: {gpu.uuid: used(own, gpu, on_it) for gpu, on_it in owned} for own in holdings}


def asked_of_host(claims: Iterable[Claim]) -> tuple[float, int]:
    """Cores, and bytes of the machine's own memory, that the allocations of `claims` asked for together. Several claims
    of one allocation count once: the most that one of them says."""
    cpus: dict[str, float] = {}
    ram: dict[str, int] = {}
    for claim in claims:
        if claim.cpus > 0 or claim.ram > 0:  # nothing is less than nothing, whatever others write into theirs
            cpus[claim.allocation] = max(claim.cpus, cpus.get(claim.allocation, 0.0))
            ram[claim.allocation] = max(claim.ram, ram.get(claim.allocation, 0))
    return sum(cpus.values()), sum(ram.values())


def left_of(cpus: float | None, ram: int | None, claims: Iterable[Claim]) -> tuple[float | None, int | None]:
    """What is left of that many cores and bytes while `claims` hold; of what is not known, that is not, either."""
    cores, size = asked_of_host(claims)
    return (
        None if cpus is None else round(max(0.0, cpus - cores), 2),
        None if ram is None else max(0, ram - size),
    )


def same_container(reported: str | None, own: str) -> bool:
    """Whether two ids of containers are of the same one; either may be shortened, or in capitals."""
    if reported is None:
        return False
    short, long = sorted((reported.strip().lower(), own.strip().lower()), key=len)
    return short == long or (len(short) >= _SHORT_ID and long.startswith(short))

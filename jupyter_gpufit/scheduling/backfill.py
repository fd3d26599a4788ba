"""Whether a request may go before one that waits: only if that does not delay it (EASY backfill). Pure.

    Outlook ─ starts ─→ per node, when the one that waits would start there, as what runs reaches its time limit
            ─ Guard ──→ is that still so with the later one placed? (with its own time limit, if it has one)
            ─ frees ──→ what has to end for the one that waits to start, to tell it

Where no start is known (what runs has no time limits), nobody can say what delays it: then `Guard` names the nodes on
which the later one might, and the scheduler bounds how often that may be.

All is asked of the stages of selection themselves, on the nodes as they would be then. What the nodes will be like is
known as far as allocations go: programs that others run there are taken to go on, GPUs that are broken to stay so, and
nodes that are not usable now to stay away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ..cluster.effective import left_of, same_container
from ..models import Claim, Gpu, GpuProcess, Node, Request
from .candidates import permits, possible
from .fit import NOTHING, walk
from .host import asks, lacks
from .policies import Policy

__all__ = ["Guard", "Outlook", "Start", "could_use", "frees", "starts"]


@dataclass(frozen=True)
class Outlook:
    """The nodes now, and when what is held there will have been given back."""

    nodes: Mapping[str, Node]
    """In the effective view."""
    claims: Mapping[str, Sequence[Claim]]
    """Node → all that is claimed there; an allocation may be there twice (as the ledger and as the engine tell)."""
    ends: Mapping[str, float]
    """Allocation → the moment; one that is not there holds on for nobody knows how long."""
    now: float
    policy: Policy

    def placed(self, claim: Claim, node: Node, end: float | None) -> Outlook:
        """With `claim` held on the node, which then looks like `node`, until `end`."""
        ends = {**self.ends} if end is None else {**self.ends, claim.allocation: end}
        claims = {**self.claims, node.name: (*self.claims.get(node.name, ()), claim)}
        return replace(self, nodes={**self.nodes, node.name: node}, claims=claims, ends=ends)

    def without(self, node: Node, gone: Iterable[str]) -> Node:
        """`node` once the allocations `gone` are."""
        ended = set(gone)
        claims = self.claims.get(node.name, ())
        gpus = tuple(_without(gpu, ended, claims) if ended.intersection(gpu.allocations) else gpu for gpu in node.gpus)
        cpus, ram = left_of(node.cpus, node.ram, (claim for claim in claims if claim.allocation not in ended))
        return msgspec.structs.replace(node, gpus=gpus, cpus_free=cpus, ram_free=ram)

    def holders(self, node: Node, request: Request) -> list[str]:
        """The allocations that may be in the way of `request` there: they hold GPUs, or, if it asks for any, cores or
        memory of the machine."""
        on_gpus = (id for gpu in node.gpus for id in gpu.allocations)
        claims = self.claims.get(node.name, ()) if asks(request) else ()
        return list(dict.fromkeys([*on_gpus, *(claim.allocation for claim in claims if claim.cpus or claim.ram)]))

    def fits(self, node: Node, request: Request) -> bool:
        """Whether the request could go on that node."""
        return bool(walk((node,), request, self.policy, NOTHING)[-1].passed)


@dataclass(frozen=True)
class Start:
    """Where one that waits could start, and when."""

    node: str
    at: float | None
    """`None`: not known."""
    after: tuple[str, ...]
    """The allocations that have to end for that."""


def could_use(outlook: Outlook, request: Request, exclude: Mapping[str, str]) -> list[Node]:
    """The nodes that the request could get some time: usable, permitted, and enough if they were empty."""
    return [node for node in outlook.nodes.values() if node.name not in exclude and _could(outlook, node, request)]


def starts(outlook: Outlook, request: Request, nodes: Iterable[Node]) -> dict[str, float]:
    """When the request could start on each of `nodes`, if nothing else is started; those where it is known."""
    found = {node.name: _start(outlook, node, request) for node in nodes}
    return {name: at for name, at in found.items() if at is not None}


class Guard:
    """Keeps the place of one that waits, `request`, against those that come after it. For one moment.

    `exclude`: the nodes that it may not use.
    """

    def __init__(self, outlook: Outlook, request: Request, exclude: Mapping[str, str]) -> None:
        self._outlook, self._request = outlook, request
        usable = could_use(outlook, request, exclude)
        self._starts = starts(outlook, request, usable)
        self.start = min(self._starts.values(), default=None)
        """When it starts at the latest; `None`: not known."""
        self.nodes = frozenset(node.name for node in usable)
        """Those it could get some time. What goes elsewhere never delays it."""

    def delayed(self, claim: Claim, node: Node, end: float | None) -> bool:
        """Whether it might start later if `claim` were held until `end` on that node, which then looks like `node`.

        (If its start is not known: whether the node is one that it could get.)
        """
        if node.name not in self.nodes:
            return False
        if self.start is None:
            return True
        if any(at <= self.start for name, at in self._starts.items() if name != node.name):
            return False
        then = _start(self._outlook.placed(claim, node, end), node, self._request)
        return then is None or then > self.start


def frees(outlook: Outlook, request: Request, exclude: Mapping[str, str]) -> Start | None:
    """What has to end for the request to start: where that will be first, or, if no start is known, where the least has
    to end. `None`: whatever allocations end, it will not be enough."""
    usable = could_use(outlook, request, exclude)
    known = starts(outlook, request, usable)
    if known:
        name = min(known, key=lambda name: (known[name], name))
        gone = {id for id, end in outlook.ends.items() if end <= known[name]}
        return Start(name, known[name], _needed(outlook, outlook.nodes[name], request, gone))
    found = []
    for node in usable:
        holders = set(outlook.holders(node, request))
        if outlook.fits(outlook.without(node, holders), request):
            found.append(Start(node.name, None, _needed(outlook, node, request, holders)))
    return min(found, key=lambda start: (len(start.after), start.node), default=None)


def _could(outlook: Outlook, node: Node, request: Request) -> bool:
    if node.reason is not None or permits(node, request) is not None:
        return False
    if asks(request):
        empty = msgspec.structs.replace(node, cpus_free=node.cpus, ram_free=node.ram)
        if lacks(empty, request) is not None:
            return False
    well = [(gpu, memory) for gpu, memory in possible(node, request) or () if gpu.allocatable]
    return outlook.policy.could(request, well)


def _start(outlook: Outlook, node: Node, request: Request) -> float | None:
    """When the request fits on the node for the first time, as what is held there ends one after the other."""
    ends = {id: outlook.ends[id] for id in outlook.holders(node, request) if id in outlook.ends}
    if outlook.fits(node, request):
        return outlook.now
    for at in sorted(set(ends.values())):
        then = outlook.without(node, [id for id, end in ends.items() if end <= at])
        if outlook.fits(then, request):
            return at
    return None


def _needed(outlook: Outlook, node: Node, request: Request, gone: set[str]) -> tuple[str, ...]:
    """Those of `gone` without whose end the request would not fit on the node even if all the others end."""
    on_it = [id for id in outlook.holders(node, request) if id in gone]
    needed = list(on_it)
    for id in on_it:
        fewer = [other for other in needed if other != id]
        if outlook.fits(outlook.without(node, fewer), request):
            needed = fewer
    return tuple(needed)


def _without(gpu: Gpu, gone: set[str], claims: Sequence[Claim]) -> Gpu:
    left = tuple(id for id in gpu.allocations if id not in gone)
    ended = [claim for claim in claims if claim.allocation in gone]
    others = tuple(process for process in gpu.processes if not any(_owns(claim, process) for claim in ended))
    staying = [claim for claim in claims if claim.allocation in left]
    foreign = any(not any(_owns(claim, process) for claim in staying) for process in others)
    free = gpu.memory_free
    if free is not None and gpu.memory_total is not None:
        if left or foreign:
            given_back = {claim.allocation: claim.gpus.get(gpu.uuid, 0) for claim in ended}
            free = min(gpu.memory_total, free + sum(given_back.values()))
        else:
            free = gpu.memory_total
    return msgspec.structs.replace(
        gpu,
        allocations=left,
        processes=others,
        memory_free=free,
        idle=gpu.allocatable and not left and not foreign,
        shareable=gpu.allocatable and bool(left) and not foreign and all(claim.shared for claim in staying),
    )


def _owns(claim: Claim, process: GpuProcess) -> bool:
    return process.pid in claim.pids or (
        claim.container is not None and same_container(process.container, claim.container)
    )

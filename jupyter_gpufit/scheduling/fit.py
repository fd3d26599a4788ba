"""Selection (stages B and C): which node, and which of its GPUs, a request gets. Works on what is known; asks no node.

    nodes, request ─ walk ─→ four Stages ─→ Decision          `select`: any nodes, once
                   ─ Index.select ───────→ Decision           `index.py`: the same decision from arrays kept up to date

Pure: no clock, no I/O; a decision is a function of its input, whatever the order of the nodes. How a decision is put to
people is `explain.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import InvalidValue, NeverFits, NoFit, NotPlaced
from ..models import Node, Placement, Request
from . import explain as _explain
from .candidates import Pool, left_out, permits, pool_of, possible
from .host import asks, cores_to_have, ram_to_have
from .policies import Policy, find

if TYPE_CHECKING:
    from .index import Index

__all__ = ["Decision", "Index", "Nearest", "Stage", "select"]

NOTHING: Mapping[str, str] = MappingProxyType({})

TITLES = (
    ("enough", "enough idle GPUs, with enough free memory in total"),
    ("apart", "GPUs that are not bound to one and the same card"),
    ("order", ""),  # as the policy has it
    ("fits", "each GPU has the memory asked of it"),
)


@dataclass(frozen=True)
class Stage:
    """What one of the four stages of selection made of the nodes that reached it: each is in exactly one of the two."""

    number: int
    name: str
    """`enough`, `apart`, `order` or `fits`."""
    title: str
    """What the stage asks, for people."""
    passed: tuple[str, ...]
    """Names of the nodes that passed: by name in stages 1 and 2, in stage 3's order in 3 and 4."""
    rejected: Mapping[str, str]
    """Node → why it did not pass, for people. Stage 1 also has the nodes not looked at; stage 3 rejects none."""


@dataclass(frozen=True)
class Nearest:
    """What would fit now instead of what was asked: as many GPUs with less memory, or else fewer GPUs."""

    node: str
    gpus: int
    memory: int
    """Bytes on each."""
    cpus: float | None = None
    """Cores, as asked; likewise `ram`."""
    ram: int | None = None

    def __str__(self) -> str:
        asked = Request(gpus=self.gpus, memory=self.memory, cpus=self.cpus, ram=self.ram)
        return f"{asked.describe()} would fit now, on {self.node}"


@dataclass(frozen=True, eq=False, repr=False)
class Decision:
    """The answer of selection, with its reasons. The latter are worked out when first looked at, from the nodes as they
    were when the decision was made.

    In a notebook, and as `str`, it is a table of all nodes and why each was or was not chosen.
    """

    request: Request
    rules: Policy
    """The policy it was made by."""
    placement: Placement | None
    """Node, GPUs and the bytes to reserve on each; `None`: no node fits."""
    target: Node | None
    """The chosen node."""
    pages: tuple[tuple[Node, ...], ...]
    """The nodes it was made on, in portions: to keep these as they were need not cost a pass over all of them."""
    excluded: Mapping[str, str]
    """Nodes the caller left out, with the reason."""
    in_order: Callable[[], tuple[str, ...]] | None = None
    """What gives `fitting` where it is known without a walk through the stages."""

    @property
    def policy(self) -> str:
        """Name of the policy it was made by."""
        return self.rules.name

    @property
    def node(self) -> str | None:
        """Name of the chosen node; `None`: no node fits."""
        return None if self.placement is None else self.placement.node

    @property
    def gpus(self) -> tuple[str, ...]:
        """Uuids of the chosen GPUs, aligned with the request's memory entries; under `claim` its others follow."""
        return () if self.placement is None else self.placement.gpus

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes it was made on."""
        return tuple(chain.from_iterable(self.pages))

    @cached_property
    def fitting(self) -> tuple[str, ...]:
        """Names of all nodes that would do, in the policy's order: the chosen one first."""
        return self.stages[-1].passed if self.in_order is None else self.in_order()

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The four stages, with what passed and what did not, and why."""
        return walk(self.nodes, self.request, self.rules, self.excluded)

    @cached_property
    def never(self) -> bool:
        """Whether no node could ever satisfy the request, however empty: by the number of its GPUs, their cards and the
        memory they have in total, by the machine's cores and RAM, and by the request's own filters.

        Nodes that are not usable now, or excluded, count with the GPUs last known of them. A node that was never heard
        from and a GPU of unknown memory might be anything, so they count as able to.
        """
        return self.node is None and not any(_could(node, self.request, self.rules) for node in self.nodes)

    @cached_property
    def nearest(self) -> Nearest | None:
        """If no node fits: what would fit now instead; `None` if that is nothing at all."""
        return None if self.node is not None else _nearest(self)

    @cached_property
    def short(self) -> str:
        """If only cores or RAM of the machine keep the request from GPUs: where the most of that is to be had, and what
        is missing there, in a sentence; else empty."""
        return "" if self.node is not None or not asks(self.request) else _short(self)

    def explain(self, stages: bool = True) -> dict[str, Any]:
        """All of the decision as JSON types. `details["stages"]` of a refusal is its `stages`.

        Without `stages` they are an empty list, and nobody walks all nodes: for whoever asks with each key pressed.
        """
        return _explain.as_json(self, stages)

    def summary(self) -> str:
        """The decision in one or two sentences for people."""
        return _explain.summary(self)

    def table(self) -> list[dict[str, Any]]:
        """A row for each node: `node`, `stage` (the one that rejected it, or `None`), `why`; the chosen one first, then
        the others that fit in stage 3's order, then those that came furthest."""
        return _explain.rows(self)

    def refusal(self) -> NotPlaced:
        """The error to raise when no node fits: `NeverFits` or `NoFit`, with summary and stages. For the scheduler.

        Raises `ValueError` if one does.
        """
        if self.node is not None:
            raise ValueError(f"the request was placed, on {self.node}; there is nothing to refuse")
        kind = NeverFits if self.never else NoFit
        details = self.explain()
        return kind(self.summary(), stages=details["stages"], nearest=details["nearest"])

    def __str__(self) -> str:
        return _explain.as_text(self)

    def __repr__(self) -> str:
        return f"<Decision {self.policy}: {self.request.describe()} → {self.node or 'no node'}>"

    def _repr_html_(self) -> str:
        return _explain.as_html(self)


def select(
    nodes: Iterable[Node], request: Request, policy: str | Policy = "best-fit", exclude: Mapping[str, str] = NOTHING
) -> Decision:
    """Which of `nodes` the request gets, by the policy. `exclude`: nodes to leave out, with a reason for people.

    Raises `InvalidValue` for an unknown policy and for two nodes of one name. For many decisions on the same nodes keep
    an `Index`.
    """
    policy = find(policy)
    nodes = tuple(nodes)
    by_name = {node.name: node for node in nodes}
    if len(by_name) < len(nodes):
        twice = sorted(name for name in by_name if sum(node.name == name for node in nodes) > 1)
        raise InvalidValue(f"two nodes have the name {twice[0]!r}; names of nodes have to be unique")
    stages = walk(nodes, request, policy, exclude)
    fitting = stages[-1].passed
    target = by_name[fitting[0]] if fitting else None
    placement = None if target is None else policy.place(pool_of(target, request))
    decision = Decision(request, policy, placement, target, (nodes,), dict(exclude))
    vars(decision)["stages"] = stages
    return decision


def walk(nodes: Iterable[Node], request: Request, policy: Policy, exclude: Mapping[str, str]) -> tuple[Stage, ...]:
    """Take all nodes through the four stages of the patent, writing down why each was rejected."""
    nodes = tuple(nodes)
    rejected: tuple[dict[str, str], ...] = ({}, {}, {}, {})
    first: list[Pool] = []
    for node in sorted(nodes, key=lambda node: node.name):
        if (reason := left_out(node, request, exclude)) is None:
            reason = policy.enough(pool := pool_of(node, request))
        if reason is None:
            first.append(pool)
        else:
            rejected[0][node.name] = reason

    second = _passing(first, policy.apart, rejected[1])
    ordered = second
    if len(second) > 1:
        ordered = sorted(second, key=_in_order(policy, nodes, request))  # stable, so ties stay in the order of names
    fitting = _passing(ordered, policy.fits, rejected[3])
    return tuple(
        Stage(number, name, title or policy.by, tuple(pool.node.name for pool in passed), MappingProxyType(why))
        for number, ((name, title), passed, why) in enumerate(
            zip(TITLES, (first, second, ordered, fitting), rejected, strict=True), start=1
        )
    )


def _in_order(
    policy: Policy, nodes: Sequence[Node], request: Request
) -> Callable[[Pool], tuple[tuple[int, int], bool]]:
    """Stage 3's key, but for the name."""
    order = policy.ordering(nodes, request)
    return lambda pool: (order(pool), not pool.has_model)


def _passing(pools: list[Pool], verdict: Any, rejected: dict[str, str]) -> list[Pool]:
    passed = []
    for pool in pools:
        if (reason := verdict(pool)) is None:
            passed.append(pool)
        else:
            rejected[pool.node.name] = reason
    return passed


def _could(node: Node, request: Request, policy: Policy) -> bool:
    """Whether the node, empty and well, might satisfy the request."""
    if permits(node, request) is not None:
        return False
    gpus = possible(node, request)
    return gpus is None or policy.could(request, gpus)


def _nearest(decision: Decision) -> Nearest | None:
    """As many GPUs as asked with the most memory that fits; else as many as fit with the memory asked."""
    request, policy = decision.request, decision.rules
    of_host = request.cpus, request.host_memory
    pools = [pool_of(node, request) for node in decision.nodes if left_out(node, request, decision.excluded) is None]
    # By `order`, not `ordering`: what placing costs where the request does not fit is nothing that a policy would know.
    pools = [pool for pool in pools if pool.gpus]
    pools.sort(key=lambda pool: (policy.order(pool), not pool.has_model, pool.node.name))
    offered = [(memory, pool.node.name) for pool in pools if (memory := policy.offer(pool, request.gpus))]
    if offered:
        memory, node = max(offered, key=lambda offer: offer[0])  # of several, the first in that order
        return Nearest(node, request.gpus, memory, *of_host)
    asked, count, node = max(request.sizes), 0, ""
    for pool in pools:
        while (memory := policy.offer(pool, count + 1)) is not None and memory >= asked:
            count, node = count + 1, pool.node.name
    return Nearest(node, count, asked, *of_host) if count else None


def _short(decision: Decision) -> str:
    asked, bare = decision.request, msgspec.structs.replace(decision.request, cpus=None, ram=None)

    def most(node: Node) -> tuple[float, int, str]:
        cores, ram = min(asked.cpus or 0.0, cores_to_have(node)), min(asked.host_memory or 0, ram_to_have(node))
        return -cores, -ram, node.name

    for node in sorted(decision.nodes, key=most):
        if walk((node,), bare, decision.rules, decision.excluded)[-1].passed:
            return f"The GPUs would fit now, on {node.name}: {left_out(node, asked, decision.excluded)}."
    return ""


def __getattr__(name: str) -> Any:
    # `Index` lives next door with numpy, which a one-off `select` does not need.
    if name == "Index":
        from .index import Index

        return Index
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

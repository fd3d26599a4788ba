"""Cores and memory of the machine around the GPUs: what a request asks, what a node can give. Pure.

    Node, Request ─ forbids ─→ why it can never be had there     (more than one allocation may have)
                  ─ lacks ───→ why it cannot be had there now    (more than others left)

What of a machine is not known is never enough, but may be so later: it is no reason why never.
"""

from __future__ import annotations

from ..memory import compare, format_memory
from ..models import Node, Request

__all__ = ["SLACK", "asks", "cores_to_have", "forbids", "lacks", "ram_to_have"]

SLACK = 1e-6
"""Cores by which a sum of fractions may be off."""
UNKNOWN = -1


def asks(request: Request) -> bool:
    """Whether it asks anything of the machine in particular."""
    return request.cpus is not None or request.ram is not None


def forbids(node: Node, request: Request) -> str | None:
    """Why one allocation can never have that much of the machine; `None` if it can, or if how much there is is not
    known."""
    if (cores := request.cpus) is not None:
        if node.cpus is not None and cores > node.cpus + SLACK:
            return f"it has {_cores(node.cpus)}, {cores:g} asked"
        if node.cpus_limit is not None and cores > node.cpus_limit + SLACK:
            return f"it gives {_cores(node.cpus_limit)} at most, {cores:g} asked"
    if (asked := request.host_memory) is not None:
        if node.ram is not None and asked > node.ram:
            return "it has {} of RAM, {} asked".format(*compare(node.ram, asked))
        if node.ram_limit is not None and asked > node.ram_limit:
            return "it gives {} of RAM at most, {} asked".format(*compare(node.ram_limit, asked))
    return None


def lacks(node: Node, request: Request) -> str | None:
    """Why that much of the machine is not to be had now; `None` if it is. Unknown is never enough."""
    if (cores := request.cpus) is not None:
        if (free := node.cpus_free) is None:
            return f"how many cores it has is not known (yet), {cores:g} asked"
        if cores > free + SLACK:
            of_all = "" if node.cpus is None else f" of its {_cores(node.cpus)}"
            return f"{free:g}{of_all or (' core' if free == 1 else ' cores')} free, {cores:g} asked"
    if (asked := request.host_memory) is not None:
        if (left := node.ram_free) is None:
            return f"how much RAM it has is not known (yet), {format_memory(asked)} asked"
        if asked > left:
            has, wants = compare(left, asked)
            of_all = "" if node.ram is None else f"its {format_memory(node.ram)} of "
            return f"{has} of {of_all}RAM free, {wants} asked"
    return None


def cores_to_have(node: Node) -> float:
    """The most that an allocation can ask for now; less than nothing if that is not known."""
    if node.cpus_free is None:
        return UNKNOWN
    return min(cores for cores in (node.cpus_free, node.cpus, node.cpus_limit) if cores is not None)


def ram_to_have(node: Node) -> int:
    """Bytes, likewise."""
    if node.ram_free is None:
        return UNKNOWN
    return min(ram for ram in (node.ram_free, node.ram, node.ram_limit) if ram is not None)


def _cores(cores: float) -> str:
    return f"{cores:g} {'core' if cores == 1 else 'cores'}"

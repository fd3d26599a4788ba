"""What a request asks of the machine around the GPUs: cores and memory of the host. Pure; for the potentials.

`Node` and `Request` need not say anything of it: then it is not known, and not asked. Read here and nowhere else.
"""

from __future__ import annotations

from ..memory import format_memory
from ..models import Node, Request

__all__ = ["cores_asked", "cores_free", "lacks", "ram_asked", "ram_free"]


def cores_free(node: Node) -> float | None:
    """Cores that no allocation holds; `None`: not known."""
    return getattr(node, "cpus", None)


def ram_free(node: Node) -> int | None:
    """Bytes of host memory that no allocation holds; `None`: not known."""
    return getattr(node, "ram", None)


def cores_asked(request: Request) -> float | None:
    """`None`: none in particular."""
    return getattr(request, "cpus", None)


def ram_asked(request: Request) -> int | None:
    """Bytes; `None`: none in particular."""
    return getattr(request, "ram", None)


def lacks(node: Node, request: Request) -> str | None:
    """Why the node's host is too small for the request now; `None` if it is not. Unknown is never enough."""
    if (cores := cores_asked(request)) is not None:
        if (free := cores_free(node)) is None:
            return f"how many cores it has is not known, {cores:g} asked"
        if free < cores:
            return f"it has {free:g} cores free, {cores:g} asked"
    if (ram := ram_asked(request)) is not None:
        if (left := ram_free(node)) is None:
            return f"how much host memory it has is not known, {format_memory(ram)} asked"
        if left < ram:
            return f"it has {format_memory(left)} of host memory free, {format_memory(ram)} asked"
    return None

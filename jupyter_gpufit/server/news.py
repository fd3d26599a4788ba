"""What there is to tell of the nodes: what changed since it was told last, weighty changes before light ones. Pure.

    Cluster ─ node, or None (it is gone) ─→ saw ─→ turn: whose turn it is ─→ take ─→ nodes to show, names to remove

On a large cluster every gauge moves with every report: a thousand nodes that report each second would be megabytes a
second for each front end, all of it temperatures. So nodes of which only gauges moved take turns, so many each time;
everything else that changes has its turn at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from ..models import Gpu, Node

__all__ = ["News"]

_GAUGES = frozenset({"utilization", "temperature", "power"})

_weighty = attrgetter(*(name for name in Gpu.__struct_fields__ if name not in _GAUGES))
_light = attrgetter(*_GAUGES)
_around = attrgetter(*(name for name in Node.__struct_fields__ if name not in ("gpus", "age")))


class News:
    """Made by `Events`."""

    def __init__(self) -> None:
        self._told: dict[str, Node] = {}
        self._weighty: dict[str, Node] = {}
        self._light: dict[str, Node] = {}  # who has waited longest comes first
        self._gone: dict[str, None] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._weighty or self._light or self._gone)

    def saw(self, name: str, node: Node | None) -> None:
        """The node is like that now. A report that says what the one before said, but for its age, is no news."""
        told = self._told.get(name)
        if node is None:
            self._forget(name)
            if told is not None:
                self._gone[name] = None
        elif told is None or _is_other(node, told):
            self._forget(name)
            self._weighty[name] = node
        elif any(_light(gpu) != _light(before) for gpu, before in zip(node.gpus, told.gpus, strict=True)):
            self._weighty.pop(name, None)
            self._gone.pop(name, None)
            self._light[name] = node
        else:
            self._forget(name)

    def turn(self, most_light: int) -> list[str]:
        """The nodes whose turn it is: all that are gone or have weighty news, and `most_light` of the others."""
        return [*self._gone, *self._weighty, *list(self._light)[:most_light]]

    def take(self, names: Iterable[str]) -> tuple[list[Node], list[str]]:
        """Those of the nodes that there still is news of, as they are now, and those that are gone. Told by that."""
        changed, removed = [], []
        for name in names:
            node = self._weighty.get(name) or self._light.get(name)
            if node is not None:
                self._told[name] = node
                changed.append(node)
            elif name in self._gone:
                del self._told[name]
                removed.append(name)
            self._forget(name)
        return changed, removed

    def _forget(self, name: str) -> None:
        for some in (self._weighty, self._light, self._gone):
            some.pop(name, None)


def _is_other(node: Node, told: Node) -> bool:
    """Whether more than gauges and age has changed."""
    return (
        _around(node) != _around(told)
        or len(node.gpus) != len(told.gpus)
        or any(_weighty(gpu) != _weighty(before) for gpu, before in zip(node.gpus, told.gpus, strict=True))
    )

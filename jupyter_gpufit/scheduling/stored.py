"""Whether some node has the model that a request names: if none has, it was misspelt, or is something else. Pure."""

from __future__ import annotations

import difflib
import heapq
import shlex
from collections.abc import Iterable

from ..errors import InvalidValue
from ..models import Node, Request
from ..naming import short_model
from .candidates import has_model, has_store, model_glob

__all__ = ["unknown_model"]

_MOST_NAMES = 8
_MOST_LOOKED_AT = 1000
"""Of more names (a thousand nodes may have a thousand each), these are compared and told."""
_ALIKE = 0.6


def unknown_model(nodes: Iterable[Node], request: Request) -> InvalidValue | None:
    """Why the request's `model` cannot be meant: no node of `nodes` has it. `None`: one has, or it names none, or some
    node has not told what is in its model store. Called by the scheduler before anything is placed."""
    wish, nodes = request.model, list(nodes)
    if wish is None or not nodes:
        return None
    known = [has_model(node, wish) for node in nodes]
    if True in known or None in known:
        return None
    names = sorted({model.name for node in nodes for model in node.models or ()})
    hint = _hint(nodes, wish, names)
    return InvalidValue(f"no node has a model {wish!r} in its model store; {hint}", models=names[:_MOST_LOOKED_AT])


def _hint(nodes: list[Node], wish: str, names: list[str]) -> str:
    """What else may be meant; if nothing is near, what there is."""
    kinds = {gpu.model for node in nodes for gpu in node.gpus if gpu.model}
    if wish.strip() and (meant := sorted({short_model(kind) for kind in kinds if model_glob(wish)(kind)})):
        there = ", ".join(meant[:_MOST_NAMES])
        return f"did you mean --gpu-model {shlex.quote(wish)} (there are GPUs of model {there})?"
    if near := _near(wish, names):
        return f"did you mean {near!r}?"
    if names:
        more = len(names) - _MOST_NAMES
        return f"there are {', '.join(names[:_MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"
    if any(map(has_store, nodes)):
        return "they are all empty"
    return "no node has one (in the inventory: models = DIRECTORY)"


def _near(wish: str, names: list[str]) -> str | None:
    """The name that is nearest, in any case of letters; or the only one that it is a part of."""
    lower = {name.lower(): name for name in _likely(wish, names)}
    if near := difflib.get_close_matches(wish.lower(), lower, n=1, cutoff=_ALIKE):
        return lower[near[0]]
    parts = [name for name in names if wish.strip() and wish.lower() in name.lower()]
    return parts[0] if len(parts) == 1 else None


def _likely(wish: str, names: list[str]) -> list[str]:
    """Those that are about as long, if there are too many to compare them all."""
    return heapq.nsmallest(_MOST_LOOKED_AT, names, key=lambda name: abs(len(name) - len(wish)))

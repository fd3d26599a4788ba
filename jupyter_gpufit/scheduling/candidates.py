"""What a request may use of a node: the filters, and the node's candidate GPUs as a `Pool`.

    Node, Request ─ left_out ─→ a reason, or Pool (its candidate GPUs) ─→ policies

Pure. A *candidate* is a GPU the request may use now: allocatable, of known memory, of the asked model, and idle (or,
for a shared request, held by shared allocations alone).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property, lru_cache

from ..models import Gpu, Node, Request
from ..naming import short_model
from .host import forbids, lacks

__all__ = [
    "MOST_MEMORY",
    "Pool",
    "by_index",
    "glob",
    "has_model",
    "has_store",
    "is_literal",
    "left_out",
    "lends",
    "model_glob",
    "permits",
    "pool_of",
    "possible",
    "writable",
]

MOST_MEMORY = 2**52
"""Bytes (4 PiB). More than this on one GPU is a broken report, not memory; sums of it still fit in 64 bits."""

_MOST_NAMES = 5
_WILD = re.compile(r"[*?\[]")


@lru_cache(maxsize=512)
def glob(pattern: str, ignore_case: bool = False) -> Callable[[str], object]:
    """A function that matches whole names with the shell pattern; by default `A` is not `a`, on any platform."""
    return re.compile(translate(pattern), re.IGNORECASE if ignore_case else 0).match


def model_glob(pattern: str) -> Callable[[str], object]:
    """A function that matches models of GPUs, in any case, by their name or by what they are called (`short_model`).
    Without a wildcard, the pattern is a part of it: nobody asks for an A100 by its full name."""
    match = glob(f"*{pattern}*" if is_literal(pattern) else pattern, True)
    return lambda model: match(model) or match(short_model(model))


def is_literal(pattern: str) -> bool:
    """Whether the pattern has no wildcard, so that it matches itself alone."""
    return _WILD.search(pattern) is None


def by_index(gpu: Gpu) -> tuple[int, str]:
    """The order of GPUs within a node: by index, and by uuid for MIG instances, which have their parent's index."""
    return gpu.index, gpu.uuid


def lends(gpu: Gpu, shared: bool) -> bool:
    """Whether the GPU takes part in selection: idle, or (for a shared request) held by shared allocations alone.

    Unknown is not zero, and impossible is not either: a GPU whose free memory is unknown, negative or beyond
    `MOST_MEMORY` never takes part.
    """
    return (
        (gpu.idle or (shared and gpu.shareable))
        and gpu.allocatable
        and gpu.memory_free is not None
        and 0 <= gpu.memory_free <= MOST_MEMORY
    )


def model_matches(gpu: Gpu, request: Request) -> bool:
    """Whether the GPU is of the asked model."""
    return request.gpu_model is None or model_glob(request.gpu_model)(gpu.model) is not None


def has_store(node: Node) -> bool:
    """Whether the node has a model store."""
    return node.model_store or node.models is not None


def has_model(node: Node, name: str) -> bool | None:
    """Whether the node's model store has the model; `None`: what is in it has not been told (yet)."""
    if node.models is None:
        return None if node.model_store else False
    return any(model.name == name for model in node.models)


def writable(node: Node) -> bool:
    """Whether the node has a model store that a request may ask to write to."""
    return node.models_write and has_store(node)


def permits(node: Node, request: Request) -> str | None:
    """Why the person's own wishes leave this node out, now and ever (its name, its labels, its model store, cores or
    RAM that it never has for one); `None` if they do not."""
    if request.node is not None and not glob(request.node)(node.name):
        verb = "is not" if is_literal(request.node) else "does not match"
        return f"its name {verb} {request.node!r}"
    for label, value in request.labels.items():
        if label not in node.labels:
            return f"it has no label {label!r}, {value!r} asked"
        if node.labels[label] != value:
            return f"its label {label!r} is {node.labels[label]!r}, {value!r} asked"
    if request.require_model and request.model is not None and has_model(node, request.model) is False:
        return f"it does not have model {request.model!r} ({_in_store(node)})"
    if request.write_models and not writable(node):
        return "its model store may not be written to" if has_store(node) else "it has no model store to write to"
    return forbids(node, request)


def _in_store(node: Node) -> str:
    if not has_store(node):
        return "it has no model store"
    names = sorted(model.name for model in node.models or ())
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"it has {shown}" if names else "its model store is empty"


def left_out(node: Node, request: Request, exclude: Mapping[str, str]) -> str | None:
    """Why the node is not looked at: the person's wishes, its model of GPU, not usable, it has not told what is in its
    model store, too few cores or too little RAM left, excluded; `None` if it is."""
    if (reason := permits(node, request)) is not None:
        return reason
    if request.gpu_model is not None and node.gpus and not any(model_matches(gpu, request) for gpu in node.gpus):
        models = ", ".join(sorted({gpu.model or "unknown" for gpu in node.gpus}))
        return f"no GPU of model {request.gpu_model!r} (it has {models})"
    if node.reason is not None:
        return f"not usable: {node.reason}"
    if request.require_model and request.model is not None and has_model(node, request.model) is None:
        return f"it has not told which models it has, {request.model!r} asked"
    return lacks(node, request) or exclude.get(node.name)


@dataclass(frozen=True)
class Pool:
    """The candidate GPUs of one node for one request, by index. What policies judge."""

    node: Node
    request: Request
    gpus: tuple[Gpu, ...]

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Bytes free on each of `gpus`."""
        return tuple(gpu.memory_free or 0 for gpu in self.gpus)

    @property
    def has_model(self) -> bool:
        """Whether the node is known to have the model that the request would like to find there."""
        return self.request.model is not None and has_model(self.node, self.request.model) is True

    @cached_property
    def total(self) -> int:
        """Bytes free on all of them."""
        return sum(self.free)

    @cached_property
    def cards(self) -> int:
        """Number of physical cards they are on."""
        return len({gpu.card for gpu in self.gpus})

    @property
    def kind(self) -> str:
        """What its GPUs are called in an explanation; the words follow a number."""
        word = "idle or shareable" if self.request.shared else "idle"
        return f"{word} {'GPU' if len(self.gpus) == 1 else 'GPUs'}"

    @property
    def which(self) -> str:
        """The model asked, as it follows "idle GPUs" in an explanation; empty if none was."""
        return "" if self.request.gpu_model is None else f" of model {self.request.gpu_model!r}"

    @property
    def out_of_order(self) -> str:
        """The GPUs that a person would count and selection does not, with the reason; empty if there are none."""
        parents = {gpu.parent for gpu in self.node.gpus}
        broken = [
            f"{gpu.uuid} is left out: {why}"
            for gpu in sorted(self.node.gpus, key=by_index)
            if gpu.uuid not in parents and model_matches(gpu, self.request) and (why := _why_not(gpu)) is not None
        ]
        return "".join(f"; {each}" for each in broken)


def pool_of(node: Node, request: Request) -> Pool:
    """The node's candidate GPUs for the request. Whether the node is usable at all is `left_out`'s to say."""
    shared = request.shared
    gpus: Iterable[Gpu] = (gpu for gpu in node.gpus if lends(gpu, shared))
    if request.gpu_model is not None:
        gpus = (gpu for gpu in gpus if model_matches(gpu, request))
    return Pool(node, request, tuple(sorted(gpus, key=by_index)))


def _why_not(gpu: Gpu) -> str | None:
    """Why the GPU cannot be allocated whoever asks; `None` if it can, or if it is merely held."""
    if not gpu.allocatable:
        return gpu.reason or "not allocatable"
    if gpu.memory_free is None:
        return "its free memory is unknown"
    if not 0 <= gpu.memory_free <= MOST_MEMORY:
        return f"it reports {gpu.memory_free} bytes free, which cannot be"
    return None


def possible(node: Node, request: Request) -> Sequence[tuple[Gpu, int]] | None:
    """The GPUs the request could use on this node if it were empty and well, with the bytes each would have.

    `None` when that cannot be told: the node was never heard from, or its last word named no GPU and a fault. Memory
    that is unknown might be any; a model that is unknown might be the one asked. A MIG parent never lends itself.
    """
    if not node.gpus and (node.reason is not None or node.age is None):
        return None
    parents = {gpu.parent for gpu in node.gpus}
    return [
        (gpu, MOST_MEMORY if gpu.memory_total is None else gpu.memory_total)
        for gpu in sorted(node.gpus, key=by_index)
        if gpu.uuid not in parents and (not gpu.model or model_matches(gpu, request))
    ]

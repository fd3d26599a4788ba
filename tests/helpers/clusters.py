"""Small clusters and requests for hypothesis, made so that ties, shared cards and near misses are common."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import strategies as st

from jupyter_gpufit.models import Gpu, Node, Request, StoredModel

GIB = 2**30
EXAMPLES = int(os.environ.get("GPUFIT_EXAMPLES", "60"))
"""Clusters tried by each test. 60 is enough to catch a careless change; after a bold one run with 5000."""
SIZES = st.sampled_from([0, 5, 10, 10, 16, 20, 40])
RAM = 2**26
MODELS = ("NVIDIA A100", "NVIDIA H100", "Tesla T4")
STORED = ("bert", "llama-7b", "mistral-7b")


@st.composite
def gpus_of(draw: st.DrawFn, name: str, most: int = 6) -> tuple[Gpu, ...]:
    """The GPUs of a node: some on one card, some held, some broken, some of unknown memory."""
    count = draw(st.integers(0, most))
    alike = draw(st.booleans())
    cards = draw(st.sampled_from([("own",), ("own", "own", "left", "right"), ("left", "right"), ("left",)]))
    common = draw(st.sampled_from(MODELS))
    gpus = []
    for index in range(count):
        uuid = f"GPU-{name}-{index}"
        free = draw(st.one_of(SIZES, st.integers(0, 40)))
        gpus.append(
            Gpu(
                uuid=uuid,
                index=index,
                model=common if alike else draw(st.sampled_from(MODELS)),
                memory_total=draw(st.sampled_from([40, 80, None])),
                memory_free=draw(st.sampled_from([free, free, free, free, free, None])),
                card=uuid if (card := draw(st.sampled_from(cards))) == "own" else f"{name}-{card}",
                idle=(idle := draw(st.sampled_from([True, True, True, False]))),
                shareable=not idle and draw(st.booleans()),
                allocatable=draw(st.sampled_from([True] * 7 + [False])),
                numa=draw(st.sampled_from([None, 0, 1])),
                links=tuple(f"GPU-{name}-{peer}" for peer in draw(st.sets(st.integers(0, most), max_size=2))),
            )
        )
    return tuple(draw(st.permutations(gpus)))


def stores() -> st.SearchStrategy[dict[str, Any]]:
    """What a node says of its model store: nothing (it has none), not yet, or what is in it."""
    told = st.sets(st.sampled_from(STORED)).map(
        lambda names: {"models": tuple(StoredModel(name=name) for name in sorted(names))}
    )
    kinds = st.one_of(st.just({}), st.just({"model_store": True}), told, told)
    return st.tuples(kinds, st.booleans()).map(lambda pair: pair[0] | {"models_write": pair[1]})


@st.composite
def hosts(draw: st.DrawFn) -> dict[str, Any]:
    """What is known of the machine itself: mostly all or nothing, with little free, so that near misses are common."""
    fields: dict[str, Any] = {}
    for what, unit in (("cpus", 0.5), ("ram", RAM)):
        known = {"": draw(st.integers(4, 8)), "_free": draw(st.integers(0, 8)), "_limit": draw(st.integers(2, 8))}
        told = [(), ("", "_free"), ("", "_free"), ("", "_free", "_limit"), ("_limit",), ("_free",)]
        kept = draw(st.sampled_from(told))
        fields |= {what + part: known[part] * unit for part in kept}
    return fields


@st.composite
def node_named(draw: st.DrawFn, name: str) -> Node:
    return Node(
        name=name,
        gpus=draw(gpus_of(name)),
        labels=draw(st.dictionaries(st.sampled_from(["room", "rack"]), st.sampled_from(["a", "b"]))),
        reason=draw(st.sampled_from([None] * 6 + ["no report for 31 s"])),
        age=draw(st.sampled_from([1.0, 1.0, None])),
        **draw(stores()),
        **draw(hosts()),
    )


NAMES = ("n1", "n2", "n10", "gpu01", "gpu02", "a")
some_node = st.sampled_from(NAMES).flatmap(node_named)


@st.composite
def clusters(draw: st.DrawFn, most: int = 6) -> list[Node]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=most))
    return [draw(node_named(name)) for name in names]


@st.composite
def requests(draw: st.DrawFn, most: int = 4, **fixed: Any) -> Request:
    count = draw(st.integers(1, most))
    memory = draw(st.one_of(SIZES, st.lists(SIZES, min_size=count, max_size=count).map(tuple)))
    wishes: dict[str, Any] = {
        "shared": draw(st.booleans()),
        "share_card": draw(st.sampled_from([False, False, True])),
        "gpu_model": draw(st.sampled_from([None, None, None, "*a100*", "*100", "?esla*"])),
        "node": draw(st.sampled_from([None, None, None, "n*", "n1", "gpu0[2-9]", "nowhere"])),
        "model": (model := draw(st.sampled_from([None, None, *STORED, "none"]))),
        "require_model": model is not None and draw(st.booleans()),
        "write_models": draw(st.sampled_from([False, False, False, True])),
        "cpus": draw(st.sampled_from([None, None, None, 1, 2.5, 4])),
        "ram": draw(st.sampled_from([None, None, None, 2 * RAM, 5 * RAM])),
        "labels": draw(st.sampled_from([{}, {}, {}, {"room": "a"}, {"room": "b", "rack": "a"}, {"floor": "2"}])),
    }
    return Request(gpus=count, memory=memory, **wishes | fixed)

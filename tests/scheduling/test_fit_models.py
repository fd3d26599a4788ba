"""The models in the nodes' model stores: a wish among equals, a filter, and a name that cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpufit import Decision, Gpu, Node, Request
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import StoredModel
from jupyter_gpufit.scheduling import fit
from jupyter_gpufit.scheduling.candidates import MOST_MEMORY
from jupyter_gpufit.scheduling.stored import unknown_model

GIB = 2**30
LLAMA = "llama-7b"


def node(name: str, *has: str, gpus: int = 2, **fields: Any) -> Node:
    """A node with the models that it `has` in its store."""
    devices = (
        Gpu(uuid=f"GPU-{name}-{at}", index=at, model="NVIDIA A100-SXM4-40GB", memory_total=40 * GIB, memory_free=GIB)
        for at in range(gpus)
    )
    models = tuple(StoredModel(name=model) for model in has)
    return Node(name=name, gpus=tuple(devices), age=1.0, **{"models": models} | fields)


def without(name: str, **fields: Any) -> Node:
    """A node without a model store."""
    return node(name, models=None, **fields)


def untold(name: str, **fields: Any) -> Node:
    """A node that has not told yet what is in its model store."""
    return node(name, models=None, model_store=True, **fields)


def select(nodes: list[Node], request: Request, *args: Any) -> Decision:
    """`fit.select`, checked against the index."""
    decision = fit.select(nodes, request, *args)
    assert fit.Index(nodes).select(request, *args).explain() == decision.explain()
    return decision


WISH = Request(model=LLAMA)
MUST = Request(model=LLAMA, require_model=True)


@pytest.mark.parametrize("policy", ["best-fit", "claim"])
def test_a_wish_decides_among_equals_before_the_name(policy: str) -> None:
    nodes = [without("a"), untold("b"), node("c", "bert"), node("d", LLAMA), node("e", "bert", LLAMA)]
    decision = select(nodes, WISH, policy)
    assert decision.fitting == ("d", "e", "a", "b", "c")
    assert decision.stages[2].passed == decision.fitting
    assert select(nodes, Request(), policy).node == "a"


def test_a_fuller_node_comes_before_one_that_has_the_model() -> None:
    assert select([node("a", LLAMA, gpus=2), node("b", gpus=1)], WISH).node == "b"
    assert select([node("a", LLAMA, gpus=2), node("b", gpus=1)], MUST).node == "a"


def test_what_was_chosen_is_said_to_have_it_or_not() -> None:
    assert select([node("a", LLAMA)], WISH).summary() == f"1 GPU: a, GPU 0, which has model {LLAMA!r}."
    assert select([node("a")], WISH).summary() == f"1 GPU: a, GPU 0, which does not have model {LLAMA!r}."
    told = select([untold("a")], WISH).summary()
    assert told == f"1 GPU: a, GPU 0, which has not told whether it has model {LLAMA!r}."
    table = select([node("a", gpus=1), node("b", LLAMA)], WISH).table()
    assert [row["why"] for row in table] == ["chosen: GPU 0", "fits too; number 2 in the order; it has the model"]


@pytest.mark.parametrize(
    ("where", "why", "never"),
    [
        (node("n", "mistral-7b"), f"it does not have model {LLAMA!r} (it has mistral-7b)", True),
        (node("n"), f"it does not have model {LLAMA!r} (its model store is empty)", True),
        (without("n"), f"it does not have model {LLAMA!r} (it has no model store)", True),
        (node("n", *"gfedcba"), f"it does not have model {LLAMA!r} (it has a, b, c, d, e and 2 more)", True),
        (untold("n"), f"it has not told which models it has, {LLAMA!r} asked", False),
        (untold("n", reason="unreachable"), "not usable: unreachable", False),
    ],
)
def test_only_nodes_that_have_the_model(where: Node, why: str, never: bool) -> None:
    decision = select([where], MUST)
    assert (decision.stages[0].rejected, decision.never) == ({"n": why}, never)
    assert f"on a node that has model {LLAMA!r}" in decision.summary()


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (node("n", models_write=False), "its model store may not be written to"),
        (untold("n", models_write=False), "its model store may not be written to"),
        (without("n"), "it has no model store to write to"),
    ],
)
def test_only_nodes_whose_store_may_be_written_to(where: Node, why: str) -> None:
    decision = select([where], Request(write_models=True))
    assert decision.stages[0].rejected == {"n": why}
    assert decision.never
    assert "on a node whose model store may be written to" in decision.summary()
    assert select([where, node("m"), untold("o")], Request(write_models=True)).fitting == ("m", "o")


def test_what_would_fit_instead_has_the_model_too() -> None:
    nodes = [node("a", gpus=3), node("b", LLAMA), node("c", "bert")]
    assert select(nodes, Request(gpus=4, model=LLAMA, require_model=True)).nearest.node == "b"
    assert select(nodes[1:], Request(gpus=2, memory=MOST_MEMORY, model="bert")).nearest.node == "c"


def test_the_index_follows_what_is_in_the_stores() -> None:
    nodes = {name: node(name) for name in "abc"}
    index = fit.Index(nodes.values())

    def check(expected: str | None) -> None:
        assert index.select(MUST).node == fit.select(nodes.values(), MUST).node == expected
        assert index.select(WISH).fitting == fit.select(nodes.values(), WISH).fitting

    def change(changed: Node) -> None:
        nodes[changed.name] = changed
        index.update(changed)

    check(None)
    change(node("b", LLAMA))
    check("b")
    change(node("a", LLAMA))
    check("a")
    change(replace(nodes["a"], reason="stale"))
    check("b")
    change(node("a"))
    before = index.select(WISH)
    change(untold("b"))
    assert before.fitting == ("b", "a", "c"), "as it was when it was decided"
    check(None)
    change(node("b", LLAMA))
    index.remove("b")
    del nodes["b"]
    check(None)
    change(node("d"))  # in the row of b
    check(None)
    change(replace(nodes["d"], models_write=False))
    for name in "acd":
        assert index.select(Request(write_models=True, node=f"{name}*")).node == (None if name == "d" else name)


def test_models_that_are_asked_for_do_not_fill_the_index() -> None:
    index = fit.Index([node("a", LLAMA)])
    for number in range(1000):
        assert index.select(Request(model=f"model-{number}", require_model=True)).node is None
    assert len(index._facts) <= 64
    assert index.select(MUST).node == "a"


# --- a name that cannot be meant


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("lama-7b", "did you mean 'llama-7b'?"),
        ("LLAMA-7B", "did you mean 'llama-7b'?"),
        ("stable", "did you mean 'stable-diffusion-xl-base'?"),
        ("A100", "did you mean --gpu-model A100 (there are GPUs of model A100-40GB)?"),
        ("*A100*", "did you mean --gpu-model '*A100*' (there are GPUs of model A100-40GB)?"),
        ("qwen", "there are bert, llama-7b, stable-diffusion-xl-base"),
        ("", "there are bert, llama-7b, stable-diffusion-xl-base"),
    ],
)
def test_a_model_that_no_node_has(asked: str, hint: str) -> None:
    nodes = [node("a", "bert", LLAMA), node("b", "bert", "stable-diffusion-xl-base"), without("c")]
    error = unknown_model(nodes, Request(model=asked))
    assert isinstance(error, InvalidValue)
    assert error.message == f"no node has a model {asked!r} in its model store; {hint}"
    assert error.details == {"models": ["bert", LLAMA, "stable-diffusion-xl-base"]}


def test_a_model_where_there_are_none() -> None:
    assert "they are all empty" in str(unknown_model([node("a"), without("b")], WISH))
    assert "(in the inventory: models = DIRECTORY)" in str(unknown_model([without("a")], WISH))
    many = unknown_model([node("a", *(f"m{at:02}" for at in range(50)))], Request(model="qwen"))
    assert str(many).endswith("there are m00, m01, m02, m03, m04, m05, m06, m07 and 42 more")


def test_of_very_many_models_some_are_told() -> None:
    nodes = [node(f"n{at}", *(f"other-model-{at}-{number}" for number in range(100))) for at in range(30)]
    error = unknown_model([*nodes, node("z", LLAMA)], Request(model="lama-7b"))
    assert error is not None
    assert error.message.endswith(f"did you mean {LLAMA!r}?")
    assert len(error.details["models"]) == 1000
    assert "and 2993 more" in str(unknown_model([*nodes, node("z", LLAMA)], Request(model="qwen")))


def test_a_model_that_some_node_has_or_may_have() -> None:
    assert unknown_model([without("a"), node("b", LLAMA, reason="stale")], WISH) is None
    assert unknown_model([node("a"), untold("b")], WISH) is None
    assert unknown_model([node("a")], Request()) is None
    assert unknown_model([], WISH) is None, "that there are no nodes is said elsewhere"

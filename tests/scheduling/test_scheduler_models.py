"""The scheduler, asked for models of the nodes' model stores."""

from __future__ import annotations

import pytest
from helpers.fakes import node
from helpers.lab import Lab

from jupyter_gpufit.errors import InvalidValue, NeverFits, NoFit
from jupyter_gpufit.models import Request, State, StoredModel

BERT, LLAMA = StoredModel(name="bert"), StoredModel(name="llama-7b")


async def test_a_model_that_no_node_has_is_refused_whoever_asks_for_what() -> None:
    async with Lab(node("a", 2, models=(BERT, LLAMA)), node("b", 2)) as lab:
        for refused in (
            lab.request(model="lama-7b", name="mine", wait="1h"),
            lab.submit(model="lama-7b", name="mine", sweep={"lr": ["1", "2"]}),
        ):
            with pytest.raises(InvalidValue, match=r"no node has a model 'lama-7b' .*did you mean 'llama-7b'"):
                await refused
        with pytest.raises(InvalidValue, match="no node has a model 'qwen'"):
            lab.scheduler.explain(Request(model="qwen"))
        assert lab.scheduler.allocations(ended=True) == []
        assert (await lab.running(model="llama-7b", name="mine")).node == "a", "nothing holds the name"


async def test_the_wish_and_the_condition() -> None:
    async with Lab(node("a", 2), node("b", 2, models=(LLAMA,)), node("c", 1, models=(BERT,))) as lab:
        assert (await lab.running(gpus=2, model="llama-7b")).node == "b"
        with pytest.raises(NoFit):
            await lab.request(model="llama-7b", require_model=True)
        assert (await lab.running(gpus=2, model="llama-7b")).node == "a", "it is a wish"
        with pytest.raises(NeverFits):
            await lab.request(gpus=2, model="bert", require_model=True)
        with pytest.raises(NeverFits, match="model store may be written"):
            await lab.request(gpus=3, write_models=True)


async def test_one_that_needs_a_model_waits_until_it_is_known_where_it_is() -> None:
    async with Lab(node("a", 2, models=(BERT,)), node("b", 2, model_store=True)) as lab:
        asked = await lab.request(model="llama-7b", require_model=True, wait="1h")
        assert asked.state is State.PENDING
        lab.cluster.put(node("b", 2, model_store=True, models=(LLAMA,)))
        assert (await lab.until(asked.id, "running")).node == "b"

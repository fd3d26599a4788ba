"""The policies that go by what placing costs, what they learn from requests, and what parts of GPUs are worth."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from helpers import oracle
from helpers.clusters import EXAMPLES, NAMES, clusters, node_named, requests
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit import Gpu, Node, Request, select
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.scheduling import mix as mixes
from jupyter_gpufit.scheduling.fit import Index
from jupyter_gpufit.scheduling.mix import FEW, NOTHING, Mix, demand
from jupyter_gpufit.scheduling.potentials import Balance, Fragmentation, Potential
from jupyter_gpufit.scheduling.terrain import FINEST, Rooms, Terrain
from jupyter_gpufit.scheduling.worth import WHOLE, worth

GIB = 2**30


def node(name: str, *free: int, model: str = "A100", **fields: object) -> Node:
    """GPUs of 40 GiB: one that is not all free is shared."""
    gpus = tuple(
        Gpu(
            uuid=f"{name}{at}",
            index=at,
            model=model,
            memory_total=40 * GIB,
            memory_free=size * GIB,
            idle=size == 40,
            shareable=0 < size < 40,
        )
        for at, size in enumerate(free)
    )
    return Node(name=name, gpus=gpus, **fields)


def mix_of(*requests: Request, times: int = 40) -> Mix:
    mix = Mix()
    for _ in range(times):
        for request in requests:
            mix.count(request)
    return mix


def part(size: int, **fields: object) -> Request:
    return Request(memory=size * GIB, shared=True, **fields)


# --- worth


def test_what_nothing_fits_into_is_worth_nothing_and_a_whole_gpu_is_worth_one() -> None:
    values = worth({500: 3.0})
    assert (values[0], values[499], values[500], values[999], values[WHOLE]) == pytest.approx((0, 0, 0.5, 0.5, 1))
    values = worth({600: 1.0, 400: 1.0})
    assert values[400] + values[600] == pytest.approx(1)
    # Of 600 there are fewer than of 400: GPUs with two of 400 are needed anyway, so a part of 400 is worth half of one.
    assert worth({600: 1.0, 400: 9.0})[400] == pytest.approx(0.5)


def test_without_parts_they_are_worth_what_they_are() -> None:
    assert worth({})[250] == worth({WHOLE: 5.0, 0: 1.0, WHOLE + 1: 2.0})[250] == pytest.approx(0.25)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.dictionaries(st.integers(50, 999), st.floats(0.01, 100), min_size=1, max_size=6))
def test_more_is_never_worth_less_and_no_filling_of_a_gpu_more_than_it(parts: dict[int, float]) -> None:
    values = worth(parts)
    assert (values[1:] >= values[:-1]).all()
    assert values[WHOLE] == pytest.approx(1)
    for filling in combinations_with_replacement(parts, 2):
        if sum(filling) <= WHOLE:
            assert sum(values[size] for size in filling) <= 1 + 1e-9


# --- mix and demand


def test_old_requests_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "HALF", 10)
    mix = mix_of(Request(gpus=8), times=10)
    before = sum(mix.counts.values())
    for _ in range(10):
        mix.count(Request())
    eight, one = (next(count for shape, count in mix.counts.items() if shape.gpus == gpus) for gpus in (8, 1))
    assert eight == pytest.approx(before / 2)
    assert one == pytest.approx(before)


def test_a_mix_can_be_kept_and_what_is_none_is_refused() -> None:
    mix = mix_of(part(10, cpus=4), Request(gpus=8, gpu_model="*A100*"))
    again = Mix.decode(mix.encode())
    assert again.seen == mix.seen == 80
    assert again.counts == pytest.approx(mix.counts)
    assert demand(again, [node("a", 40)]).blocks == demand(mix, [node("a", 40)]).blocks
    with pytest.raises(InvalidValue, match="the mix of requests cannot be read"):
        Mix.decode(b"{}")


def test_the_rarest_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "MOST_SHAPES", 20)
    mix = mix_of(Request(gpus=8))
    for size in range(100):
        mix.count(Request(memory=size, shared=True))
    assert len(mix.counts) <= 20
    assert max(mix.counts, key=mix.counts.__getitem__).gpus == 8


def test_a_few_requests_tell_nothing_and_later_it_is_learned_now_and_then() -> None:
    mix = mix_of(Request(), times=FEW - 1)
    assert demand(mix, [node("a", 40)]) is NOTHING
    assert not mix.due(0)
    mix.count(Request())
    assert mix.due(0)
    assert demand(mix, [node("a", 40)]) is not NOTHING
    assert demand(mix, []) is NOTHING
    assert not mix.due(mix.seen)


def test_gpus_that_more_may_be_of_are_sought_after_more() -> None:
    nodes = [node("a", 40, 40, model="A100"), node("b", 40, 40, 40, 40, 40, 40, model="T4")]
    found = demand(mix_of(Request(gpu_model="A100"), Request()), nodes)
    price = {kind.model: value for kind, value in found.prices.items()}
    assert price == pytest.approx({"A100": 0.5 * 8 / 2 + 0.5, "T4": 0.5}, rel=1e-3)


def test_what_wants_several_whole_gpus_is_a_block() -> None:
    found = demand(mix_of(Request(gpus=4, cpus=8), Request(), part(20, gpus=2)), [node("a", 40, 40, 40, 40)])
    assert [(block.gpus, block.cores) for block in found.blocks] == [(4, 8.0)]
    assert found.blocks[0].part == pytest.approx(4 / 6, rel=1e-3)


# --- the policies


def policies() -> list[Potential]:
    mix = mix_of(Request(gpus=2, memory=10), Request(memory=10, shared=True), Request(gpu_model="A100", gpus=3))
    like = [
        Gpu(uuid=f"{model}{at}", index=0, model=model, memory_total=40)
        for model in ("NVIDIA A100", "Tesla T4")
        for at in range(3)
    ]
    nodes = [Node(name="n", gpus=tuple(like))]
    return [kind for policy in (Balance(), Fragmentation()) for kind in (policy, policy.learned(mix, nodes))]


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes=clusters(), data=st.data())
def test_the_index_decides_as_a_fresh_look_does(nodes: list[Node], data: st.DataObject) -> None:
    index, now = Index(nodes), {node.name: node for node in nodes}
    known = policies()
    for name in data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), label="changed nodes"):
        if name in now and data.draw(st.booleans(), label=f"remove {name}"):
            del now[name]
            index.remove(name)
        else:
            now[name] = data.draw(node_named(name))
            index.update(now[name])
        request, policy = data.draw(requests()), data.draw(st.sampled_from(known))
        expected = select(now.values(), request, policy)
        assert index.select(request, policy).explain() == expected.explain()
        assert set(expected.fitting) == set(select(now.values(), request, "best-fit").fitting)


def test_a_policy_that_learned_takes_over_the_terrain_of_the_one_before() -> None:
    nodes = [node("a", 40, 20), node("b", 40, 40)]
    index = Index(nodes)
    index.select(part(10), Balance())
    assert index._terrain is None, "with nothing known there is none"
    policy = Balance().learned(mix_of(Request()), nodes)
    index.select(part(10), policy)
    before = index._terrain
    learned = policy.learned(mix_of(part(10), Request(gpus=2)), nodes)
    assert index.select(part(10), learned).node == select(nodes, part(10), learned).node
    assert before is not None
    assert index._terrain == (learned, before[1])


@pytest.mark.parametrize("policy", [Balance(), Fragmentation()])
def test_what_is_left_is_to_be_of_use(policy: Potential) -> None:
    # Of 28, 8 would be left, which is too little for anybody; of 32, 12 would, which most ask for.
    nodes = [node("a", 28), node("b", 32)]
    assert select(nodes, part(20), "best-fit").node == "a"
    learned = policy.learned(mix_of(part(20), *[part(12)] * 9), nodes)
    assert select(nodes, part(20), learned).node == "b"


def test_what_few_may_use_is_used_first() -> None:
    nodes = [node("a", 40, 40, model="A100"), node("b", 40, 40, model="T4")]
    learned = Balance().learned(mix_of(Request(gpu_model="A100"), Request()), nodes)
    assert select(nodes, Request(), "best-fit").node == "a"
    assert select(nodes, Request(), learned).node == "b"


def test_room_for_requests_for_several_is_kept() -> None:
    nodes = [node("a", 40, 40, 40, 40), node("b", 40, 40, 40, 20, 20, 20)]
    learned = Balance().learned(mix_of(Request(gpus=4), Request()), nodes)
    assert select(nodes, Request(), learned).node == "b"


def test_gpus_are_worth_less_without_cores() -> None:
    nodes = [node("a", 40, 40, cpus_free=64), node("b", 40, 40, cpus_free=4)]
    learned = Balance().learned(mix_of(Request(cpus=8), Request(cpus=2)), nodes)
    assert select(nodes, Request(cpus=2), learned).node == "b"


def test_the_title_of_stage_three_says_what_it_goes_by() -> None:
    nodes = [node("a", 40)]
    policies = ("best-fit", "balance", Balance().learned(mix_of(Request()), nodes))
    fullest, unknown, learned = (select(nodes, Request(), policy).stages[2].title for policy in policies)
    assert fullest == "the fullest node first: fewest idle GPUs, then least free memory"
    assert unknown == f"{fullest} (until more is known of what people ask for)"
    assert learned == "the node first where it costs least of what others could use"


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes=clusters(), request=requests(), name=st.sampled_from(["balance", "fragmentation"]))
def test_with_nothing_known_the_order_is_that_of_best_fit(nodes: list[Node], request: Request, name: str) -> None:
    expected = select(nodes, request, "best-fit")
    for found in (select(nodes, request, name), Index(nodes).select(request, name)):
        assert (found.placement, found.fitting) == (expected.placement, expected.fitting)


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes=clusters(), data=st.data())
def test_a_policy_that_was_prepared_decides_as_a_fresh_look_does(nodes: list[Node], data: st.DataObject) -> None:
    known, index, now = policies(), Index(nodes), {node.name: node for node in nodes}
    index.select(data.draw(requests()), data.draw(st.sampled_from(known)))
    policy = data.draw(st.sampled_from(known))
    ready = index.prepare()(policy)
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=6), label="changed meanwhile"):
        if name in now and data.draw(st.booleans(), label=f"remove {name}"):
            del now[name]
            index.remove(name)
        else:
            now[name] = data.draw(node_named(name))
            index.update(now[name])
    ready()
    request = data.draw(requests())
    assert index.select(request, policy).explain() == select(now.values(), request, policy).explain()


def test_what_was_prepared_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(f"n{at:03}", 40, 20) for at in range(100)]
    index, mix = Index(nodes), mix_of(part(10), Request(gpus=2))
    policy = Balance().learned(mix, nodes)
    index.select(part(10), policy)
    again = Balance().learned(mix, nodes)
    index.prepare()(again)()
    seen: list[int] = []
    height = Balance.height

    def counted(self: Balance, rooms: Rooms, tables: Any) -> Any:
        seen.append(len(rooms.cores))
        return height(self, rooms, tables)

    monkeypatch.setattr(Balance, "height", counted)
    assert index.select(part(10), again).node == "n000"
    assert seen == []
    index.update(node("n050", 40, 10))
    assert index.select(part(10), again).node == "n050"
    assert seen == [1, 1], "one node, before and after"
    index.update(node("n050", 40, 10))
    index.select(part(10), again)
    assert seen == [1, 1], "a report that says nothing new"


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes=clusters(), request_=requests())
def test_placing_costs_what_the_formulas_say(nodes: list[Node], request_: Request) -> None:
    able = [at for at, one in enumerate(nodes) if oracle.best_fit([one], request_) is not None]
    for policy in policies():
        if not policy.knows:
            continue
        if isinstance(policy, Balance):
            policy = Balance(policy.demand, replace(policy.setting, least=0))  # which would tell a hair's breadth apart
        prices = oracle.prices(nodes, policy)
        keys = Terrain(policy, enumerate(nodes)).costs(request_, np.array(able, dtype=np.intp))
        for key, at in zip(keys.tolist(), able, strict=True):
            assert key / FINEST == pytest.approx(oracle.cost(nodes[at], request_, policy, prices), abs=1e-6)

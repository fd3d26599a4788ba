"""Selection against the literal reading of the patent, on clusters that hypothesis makes up."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import chain, combinations

import msgspec
import pytest
from helpers import oracle
from helpers.clusters import EXAMPLES, NAMES, clusters, requests, some_node
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit import Node, Request, select
from jupyter_gpufit.models import StoredModel
from jupyter_gpufit.scheduling.fit import Index

POLICIES = ("claim", "best-fit")
thorough = settings(max_examples=EXAMPLES, deadline=None)


def gpus_by_uuid(nodes: list[Node], name: str) -> dict:
    return {gpu.uuid: gpu for node in nodes if node.name == name for gpu in node.gpus}


@pytest.mark.parametrize("policy", POLICIES)
@thorough
@given(nodes=clusters(), request_=requests())
def test_the_node_is_that_of_the_literal_reading(policy: str, nodes: list[Node], request_: Request) -> None:
    assert select(nodes, request_, policy).node == oracle.ORACLES[policy](nodes, request_)


@pytest.mark.parametrize("policy", POLICIES)
@thorough
@given(nodes=clusters(), request_=requests())
def test_the_index_decides_the_same_with_the_same_reasons(policy: str, nodes: list[Node], request_: Request) -> None:
    decision, whole = Index(nodes).select(request_, policy), select(nodes, request_, policy).explain()
    assert decision.explain(stages=False) == whole | {"stages": []}
    assert decision.explain() == whole


@thorough
@given(nodes=clusters(), request_=requests())
def test_wherever_claim_finds_a_node_best_fit_finds_one(nodes: list[Node], request_: Request) -> None:
    if select(nodes, request_, "claim").node is not None:
        assert select(nodes, request_, "best-fit").node is not None


@thorough
@given(nodes=clusters(), request_=requests())
def test_best_fit_takes_the_first_node_that_can_and_its_tightest_gpus(nodes: list[Node], request_: Request) -> None:
    able = {
        node.name: choices
        for node in nodes
        if oracle.considered(node, request_)
        and (choices := list(oracle.every_choice(oracle.usable(node.gpus, request_), request_)))
    }
    decision = select(nodes, request_)
    if not able:
        assert decision.node is None
        assert decision.placement is None
        assert decision.gpus == ()
        return

    by_name = {node.name: node for node in nodes}
    assert decision.node == min(able, key=lambda name: oracle.stage_three(by_name[name], request_))
    known = gpus_by_uuid(nodes, decision.node)
    chosen = [known[uuid] for uuid in decision.gpus]
    assert tuple(chosen) in able[decision.node]  # aligned with the sizes, on cards of their own
    assert sum(oracle.free(chosen)) == min(sum(oracle.free(choice)) for choice in able[decision.node])
    assert decision.placement.memory == request_.sizes


@pytest.mark.parametrize("policy", POLICIES)
@thorough
@given(nodes=clusters(), request_=requests(), out=st.sets(st.sampled_from(NAMES), max_size=2))
def test_the_fitting_nodes_are_those_that_would_do_alone_in_order(
    policy: str, nodes: list[Node], request_: Request, out: set[str]
) -> None:
    """Of the index, with the nodes filled in one by one, and of a walk; against a selection on each node alone."""

    alone = [node for node in nodes if node.name not in out and oracle.ORACLES[policy]([node], request_) is not None]
    expected = tuple(node.name for node in sorted(alone, key=lambda node: oracle.stage_three(node, request_)))
    exclude = dict.fromkeys(out, "not this one")
    index = Index([node for node in nodes if node.name in out])
    for name in out & {node.name for node in nodes}:  # so that rows are used again
        index.remove(name)
    for node in nodes:
        index.update(node)
    decision = index.select(request_, policy, exclude)
    for node in nodes[1:]:
        index.remove(node.name)
    assert decision.fitting == expected, "as the nodes were when it was decided"
    assert select(nodes, request_, policy, exclude).fitting == expected
    assert expected[:1] == (() if decision.node is None else (decision.node,))


@thorough
@given(nodes=clusters(), request_=requests())
def test_claim_mounts_every_idle_gpu_the_asked_ones_first(nodes: list[Node], request_: Request) -> None:
    decision = select(nodes, request_, "claim")
    if decision.node is None:
        return
    known = gpus_by_uuid(nodes, decision.node)
    idle = oracle.usable(list(known.values()), request_)
    assert sorted(decision.gpus) == sorted(gpu.uuid for gpu in idle)
    asked = tuple(known[uuid] for uuid in decision.gpus[: request_.gpus])
    assert asked in set(oracle.every_choice(idle, request_))
    rest = len(idle) - request_.gpus
    assert decision.placement.memory == request_.sizes + (min(request_.sizes),) * rest
    for uuid, size in zip(decision.gpus, decision.placement.memory, strict=True):
        assert known[uuid].memory_free >= size


@pytest.mark.parametrize("policy", POLICIES)
@thorough
@given(nodes=clusters(), request_=requests(), data=st.data())
def test_a_decision_is_a_function_of_its_input(policy: str, nodes: list[Node], request_: Request, data) -> None:
    shuffled = data.draw(st.permutations(nodes))
    assert select(shuffled, request_, policy).explain() == select(nodes, request_, policy).explain()


@pytest.mark.parametrize("policy", POLICIES)
@thorough
@given(nodes=clusters(), request_=requests())
def test_each_node_passes_or_is_rejected_with_a_reason_at_every_stage_it_reaches(
    policy: str, nodes: list[Node], request_: Request
) -> None:
    decision = select(nodes, request_, policy)
    assert [stage.number for stage in decision.stages] == [1, 2, 3, 4]
    reaching = {node.name for node in nodes}
    for stage in decision.stages:
        passed, rejected = set(stage.passed), set(stage.rejected)
        assert len(stage.passed) == len(passed)
        assert passed | rejected == reaching
        assert not passed & rejected
        assert all(reason.strip() for reason in stage.rejected.values())
        reaching = passed
    assert decision.stages[2].rejected == {}
    assert decision.node == (decision.stages[3].passed[0] if decision.stages[3].passed else None)

    rows = decision.table()
    assert sorted(row["node"] for row in rows) == sorted(node.name for node in nodes)
    assert json.loads(json.dumps(decision.explain())) == decision.explain()
    for row in rows:
        assert row["node"] in str(decision)
        assert row["why"] in str(decision)


@pytest.mark.parametrize("policy", POLICIES)
@thorough
@given(nodes=clusters(), request_=requests())
def test_what_is_said_to_fit_nearest_does_fit(policy: str, nodes: list[Node], request_: Request) -> None:
    decision = select(nodes, request_, policy)
    nearest = decision.nearest
    if decision.node is not None:
        assert nearest is None
        return

    def fits(gpus: int, memory: int) -> bool:
        return select(nodes, with_(request_, gpus, memory), policy).node is not None

    if nearest is None:
        assert not any(fits(gpus, max(request_.sizes)) for gpus in range(1, request_.gpus + 1))
        return
    assert fits(nearest.gpus, nearest.memory)
    if nearest.gpus == request_.gpus:
        assert not fits(nearest.gpus, nearest.memory + 1)
    else:
        assert nearest.memory == max(request_.sizes)
        assert not fits(nearest.gpus + 1, nearest.memory)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(node=some_node, request_=requests(shared=False))
def test_never_is_said_only_where_no_state_of_the_node_serves(policy: str, node: Node, request_: Request) -> None:
    """ "However empty": any of its GPUs may be idle and the others not, and an unknown memory may be any."""
    decision = select([node], request_, policy)
    if node.model_store and request_.require_model:  # it may be any, and so the one asked
        node = msgspec.structs.replace(node, models=(StoredModel(name=request_.model),))
    node = msgspec.structs.replace(node, **{f"{what}_free": most_of(node, what) for what in ("cpus", "ram")})
    if not oracle.considered(msgspec.structs.replace(node, reason=None), request_):
        assert decision.never
    elif not node.gpus and (node.age is None or node.reason is not None):
        assert not decision.never
    else:
        uuids = [gpu.uuid for gpu in node.gpus]
        subsets = chain.from_iterable(combinations(uuids, size) for size in range(len(uuids) + 1))
        ever = any(select([emptied(node, subset)], request_, policy).node is not None for subset in subsets)
        assert decision.never == (not ever)


def most_of(node: Node, what: str) -> float:
    """All of it that there is and that one may have; a lot if it is not known, as it may be that."""
    known = [getattr(node, what), getattr(node, f"{what}_limit")]
    return min((most for most in known if most is not None), default=2**40)


def emptied(node: Node, idle: Collection[str]) -> Node:
    """The node in good health, with just these GPUs idle and nothing in their memory."""
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            idle=gpu.uuid in idle,
            allocatable=True,
            memory_free=1000 if gpu.memory_total is None else gpu.memory_total,
        )
        for gpu in node.gpus
    )
    return msgspec.structs.replace(node, gpus=gpus, reason=None)


def with_(request: Request, gpus: int, memory: int) -> Request:
    return msgspec.structs.replace(request, gpus=gpus, memory=memory)

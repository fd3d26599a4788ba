"""The index, changed node by node, decides as a fresh look at the same nodes does."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.clusters import EXAMPLES, NAMES, clusters, node_named, requests
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jupyter_gpufit import Gpu, Node, Request, select
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.scheduling.fit import Index

GIB = 2**30


@settings(max_examples=EXAMPLES, deadline=None)
@given(nodes=clusters(), data=st.data())
def test_any_changes_leave_it_as_if_it_was_made_fresh(nodes: list[Node], data: st.DataObject) -> None:
    index = Index(nodes)
    now = {node.name: node for node in nodes}
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=8), label="changed nodes"):
        if name in now and data.draw(st.booleans(), label=f"remove {name}"):
            del now[name]
            index.remove(name)
        else:
            now[name] = data.draw(node_named(name))
            index.update(now[name])
        assert len(index) == len(now)
        assert {node.name: node for node in index.nodes} == now
        request = data.draw(requests())
        exclude = data.draw(st.dictionaries(st.sampled_from(NAMES), st.just("not this one"), max_size=2))
        for policy in ("claim", "best-fit"):
            expected = select(now.values(), request, policy, exclude).explain()
            assert index.select(request, policy, exclude).explain() == expected


def node(name: str, *free: int, **fields: object) -> Node:
    gpus = tuple(
        Gpu(uuid=f"GPU-{name}-{at}", index=at, memory_total=80 * GIB, memory_free=size * GIB)
        for at, size in enumerate(free)
    )
    return Node(name=name, gpus=gpus, **fields)


def test_a_decision_explains_the_nodes_as_they_were() -> None:
    index = Index([node("n1", 40, 40), node("n2", 10, 10)])
    request = Request(gpus=2, memory="16GiB")
    decision = index.select(request)
    expected = select([node("n1", 40, 40), node("n2", 10, 10)], request).explain()
    index.update(node("n1", 0))
    index.remove("n2")
    assert decision.explain() == expected
    assert index.select(request).node is None


def test_removing_what_is_not_there_is_quiet_and_an_empty_index_finds_nothing() -> None:
    index = Index()
    index.remove("n1")
    assert "n1" not in index
    assert index.select(Request()).node is None
    index.update(node("n1", 1))
    assert "n1" in index
    index.remove("n1")
    assert index.select(Request()).node is None
    assert index.nodes == ()


def test_nodes_of_all_sizes_and_impossible_reports_live_together() -> None:
    nodes = [node("many", *([30] * 300)), node("none"), node("one", 20), node("three", 30, 30, 30)]
    broken = Gpu(uuid="GPU-broken", index=0, memory_free=2**80)
    less = Gpu(uuid="GPU-less", index=1, memory_free=-1)
    nodes.append(Node(name="broken", gpus=(broken, less)))
    index = Index(nodes)
    for gpus, expected in ((1, "one"), (2, "three"), (200, "many"), (301, None)):
        request = Request(gpus=gpus, memory="16GiB")
        assert index.select(request).node == expected == select(nodes, request).node
    assert index.select(Request(node="broken")).node is None
    assert "cannot be" in index.select(Request(node="broken")).stages[0].rejected["broken"]


def test_many_labels_and_values_come_and_go() -> None:
    index = Index()
    for number in range(100):
        index.update(node(f"n{number:03}", 8, labels={"host": f"n{number:03}", f"key{number}": "x"}))
    assert index.select(Request(labels={"host": "n077"})).node == "n077"
    assert index.select(Request(labels={"key42": "x"})).node == "n042"
    index.update(node("n042", 8, labels={"host": "other"}))
    assert index.select(Request(labels={"key42": "x"})).node is None
    assert index.select(Request(labels={"host": "other"})).node == "n042"


def test_models_that_no_gpu_has_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpufit.scheduling.index.MOST_MODELS", 10)
    nodes = {one.name: one for one in (node("n1", 8, 8), node("n2", 8), node("n3", 8, 8, 8))}
    index = Index(nodes.values())
    index.remove("n3")
    del nodes["n3"]
    for number in range(50):
        gpus = tuple(replace(gpu, model=f"model {number} {gpu.index}") for gpu in nodes["n1"].gpus)
        nodes["n1"] = replace(nodes["n1"], gpus=gpus)
        index.update(nodes["n1"])
        assert len(index._models) <= 12
        for wanted in (f"model {number} 1", f"model {number - 1} *", "*A100*", "a100", f"L {number} 1".lower()):
            request = Request(gpu_model=wanted)
            assert index.select(request).gpus == select(nodes.values(), request).gpus


def test_a_node_that_takes_the_row_of_a_removed_one_has_none_of_its_labels() -> None:
    index = Index([node("n1", 8, labels={"room": "a"})])
    index.remove("n1")
    index.update(node("n2", 8))
    assert index.select(Request(labels={"room": "a"})).node is None


def test_cards_count_whatever_the_neighbours_in_the_arrays_look_like() -> None:
    halves = tuple(Gpu(uuid=f"GPU-h{at}", index=at, memory_free=9, card="c") for at in range(2))
    index = Index([node("plain", 9, 9), Node(name="halves", gpus=halves)])
    asked = Request(gpus=2, node="h*")
    assert index.select(asked).node is None
    index.update(node("plain", 8, 8))
    assert index.select(asked).node is None
    index.update(node("halves", 9, 9))
    assert index.select(asked).node == "halves"
    index.update(Node(name="halves", gpus=halves))
    index.remove("plain")
    assert index.select(asked).node is None
    index.remove("halves")
    index.update(node("host", 9, 9))
    assert index.select(asked).node == "host"


def test_an_unknown_policy_is_named_with_those_there_are() -> None:
    with pytest.raises(InvalidValue, match=r"no policy 'worst-fit'; use one of balance, best-fit"):
        Index().select(Request(), "worst-fit")


def test_importing_the_package_loads_no_numpy() -> None:
    code = "import sys, jupyter_gpufit; assert not {'numpy', 'pandas', 'docker', 'pynvml'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

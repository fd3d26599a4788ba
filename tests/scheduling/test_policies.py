"""Policies are small objects with a name, and new ones can be added."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_gpufit import Gpu, Node, Request, select
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.scheduling import policies
from jupyter_gpufit.scheduling.candidates import Pool
from jupyter_gpufit.scheduling.fit import Index
from jupyter_gpufit.scheduling.policies import POLICIES, BestFit, Policy, find, names, register


class EmptiestFirst(BestFit):
    """The other way round in stage 3; without a form for arrays."""

    name = "emptiest-first"

    def order(self, pool: Pool) -> tuple[int, int]:
        count, total = super().order(pool)
        return -count, -total

    def screen(self, columns: object, request: Request) -> None:
        return None


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Policy:
    monkeypatch.setattr(policies, "POLICIES", dict(POLICIES))
    policy = EmptiestFirst()
    register(policy)
    return policy


NODES = [
    Node(name=name, gpus=tuple(Gpu(uuid=f"{name}{at}", index=at, memory_free=10) for at in range(count)))
    for name, count in (("a", 2), ("b", 4), ("c", 3))
]


def test_a_registered_policy_works_by_name_in_select_and_index(registered: Policy) -> None:
    for decision in (
        select(NODES, Request(gpus=2), "emptiest-first"),
        Index(NODES).select(Request(gpus=2), "emptiest-first"),
    ):
        assert decision.node == "b"
        assert decision.policy == "emptiest-first"
        assert decision.stages[2].passed == ("b", "c", "a")


def test_a_policy_object_works_without_being_registered() -> None:
    decision = Index(NODES).select(Request(gpus=2), EmptiestFirst())
    assert decision.node == "b"
    assert decision.stages[3].passed == ("b", "c", "a")


def test_names_are_unique_and_unknown_ones_refused(registered: Policy) -> None:
    with pytest.raises(InvalidValue, match="there is a policy 'emptiest-first' already"):
        register(EmptiestFirst())
    Taken = type("Taken", (BestFit,), {"name": "balance"})
    with pytest.raises(InvalidValue, match="there is a policy 'balance' already"):
        register(Taken())
    known = "balance, best-fit, claim, emptiest-first, fragmentation"
    with pytest.raises(InvalidValue, match=f"there is no policy 'worst'; use one of {known}$"):
        find("worst")
    with pytest.raises(InvalidValue, match="there is no policy None"):
        find(None)


def test_the_two_readings_of_the_patent_are_there() -> None:
    assert names() == ["balance", "best-fit", "claim", "fragmentation"]
    for name in names():
        assert find(name).name == name
        assert find(name) is find(name)


@pytest.mark.parametrize("name", ["balance", "fragmentation"])
def test_the_potentials_work_by_name_in_select_and_index(name: str) -> None:
    once, kept = select(NODES, Request(), name), Index(NODES).select(Request(), name)
    assert once.policy == kept.policy == name
    assert once.node is not None
    assert once.explain() == kept.explain()
    assert once.stages[2].title.endswith("(until more is known of what people ask for)")


def test_only_the_potentials_need_numpy() -> None:
    code = """
import sys
from jupyter_gpufit import Gpu, Node, Request, select
nodes = [Node(name="a", gpus=(Gpu(uuid="G", index=0, memory_total=40, memory_free=40),))]
assert select(nodes, Request()).node == select(nodes, Request(), "claim").node == "a"
assert "numpy" not in sys.modules
assert select(nodes, Request(), "balance").policy == "balance"
assert "numpy" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)

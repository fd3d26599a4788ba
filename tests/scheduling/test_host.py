"""Cores and RAM of the machine around the GPUs: whether a request can have them, and what is said where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpufit import Decision, Gpu, Node, Request
from jupyter_gpufit.errors import NeverFits, NoFit
from jupyter_gpufit.scheduling import fit
from jupyter_gpufit.scheduling.potentials import Balance

GIB = 2**30


def node(name: str, gpus: int = 1, **host: Any) -> Node:
    """A node with so many GPUs, 16 cores and 64 GiB, if nothing else is said."""
    devices = (Gpu(uuid=f"{name}-{at}", index=at, memory_total=40 * GIB, memory_free=40 * GIB) for at in range(gpus))
    cpus, ram = host.get("cpus", 16), host.get("ram", 64 * GIB)
    known = {"cpus": cpus, "cpus_free": cpus, "ram": ram, "ram_free": ram}
    return Node(name=name, gpus=tuple(devices), age=1.0, **known | host)


def select(nodes: list[Node], request: Request, *args: Any) -> Decision:
    """`fit.select`, checked against the index."""
    decision = fit.select(nodes, request, *args)
    assert fit.Index(nodes).select(request, *args).explain() == decision.explain()
    return decision


UNKNOWN = {"cpus": None, "cpus_free": None, "ram": None, "ram_free": None}


@pytest.mark.parametrize(
    ("asked", "host", "why", "never"),
    [
        ({"cpus": 8}, {"cpus_free": 4}, "4 of its 16 cores free, 8 asked", False),
        ({"cpus": 0.5}, {"cpus_free": 0.25}, "0.25 of its 16 cores free, 0.5 asked", False),
        ({"cpus": 2}, {"cpus": None, "cpus_free": 1}, "1 core free, 2 asked", False),
        ({"cpus": 500}, {}, "it has 16 cores, 500 asked", True),
        ({"cpus": 2}, {"cpus": 1, "cpus_free": 0}, "it has 1 core, 2 asked", True),
        ({"cpus": 9}, {"cpus_limit": 8}, "it gives 8 cores at most, 9 asked", True),
        ({"cpus": 9}, UNKNOWN | {"cpus_limit": 8}, "it gives 8 cores at most, 9 asked", True),
        ({"cpus": 1}, UNKNOWN, "how many cores it has is not known (yet), 1 asked", False),
        ({"ram": "32GiB"}, {"ram_free": 8 * GIB}, "8 GiB of its 64 GiB of RAM free, 32 GiB asked", False),
        ({"ram": "32GiB"}, {"ram": None, "ram_free": 8 * GIB}, "8 GiB of RAM free, 32 GiB asked", False),
        (
            {"ram": GIB + 1},
            {"ram_free": GIB},
            "1073741824 bytes of its 64 GiB of RAM free, 1073741825 bytes asked",
            False,
        ),
        ({"ram": "65GiB"}, {}, "it has 64 GiB of RAM, 65 GiB asked", True),
        ({"ram": "33GiB"}, {"ram_limit": 32 * GIB}, "it gives 32 GiB of RAM at most, 33 GiB asked", True),
        ({"ram": "1GiB"}, UNKNOWN, "how much RAM it has is not known (yet), 1 GiB asked", False),
        ({"cpus": 1}, {"cpus_free": 0, "reason": "no report"}, "not usable: no report", False),
    ],
)
@pytest.mark.parametrize("policy", ["best-fit", "claim", Balance()])
def test_a_machine_that_is_too_small_is_left_out_with_the_reason(
    policy: Any, asked: dict[str, Any], host: dict[str, Any], why: str, never: bool
) -> None:
    decision = select([node("n", **host)], Request(**asked), policy)
    assert decision.stages[0].rejected == {"n": why}
    assert decision.never is never
    assert isinstance(decision.refusal(), NeverFits if never else NoFit)


def test_what_is_just_enough_is_enough_and_sums_of_fractions_may_be_off() -> None:
    one = node("n", cpus_free=4, ram_free=8 * GIB)
    assert select([one], Request(cpus=4, ram="8GiB")).node == "n"
    assert select([replace(one, cpus_free=1 - 0.9)], Request(cpus=0.1)).node == "n"  # it is 0.09999999999999998
    assert select([one], Request(cpus=4.01)).node is None


def test_who_asks_nothing_of_the_machine_gets_gpus_where_nothing_of_it_is_known_or_left() -> None:
    assert select([node("n", **UNKNOWN)], Request()).node == "n"
    assert select([node("n", cpus_free=0, ram_free=0)], Request()).node == "n"


def test_the_fullest_node_whose_machine_can_is_taken() -> None:
    nodes = [node("a", cpus_free=2), node("b", 2, ram_free=GIB), node("c", 3), node("d", 4)]
    assert select(nodes, Request(cpus=4, ram="4GiB")).fitting == ("c", "d")
    assert select(nodes, Request(cpus=2)).fitting == ("a", "b", "c", "d")
    assert select(nodes, Request(cpus=4, node="a")).node is None
    assert select(nodes, Request(cpus=4, node="b")).node == "b"


def test_what_would_fit_instead_is_where_the_machine_can() -> None:
    nodes = [node("a", 8, cpus_free=2), node("b", 2)]
    nearest = select(nodes, Request(gpus=4, memory="8GiB", cpus=4)).nearest
    assert nearest is not None
    assert (nearest.node, nearest.gpus) == ("b", 2)
    assert str(nearest) == "2 GPUs with 8 GiB each, 4 CPUs would fit now, on b"
    assert select(nodes[:1], Request(gpus=4, memory="8GiB", cpus=4)).nearest is None


def test_where_only_the_machine_is_too_small_that_is_said() -> None:
    fewest, more = node("a", 2, cpus_free=1, ram_free=0), node("b", 4, cpus_free=3.5)
    for asked, said in (
        ({"cpus": 4}, "The GPUs would fit now, on b: 3.5 of its 16 cores free, 4 asked."),
        ({"cpus": 1, "ram": "65GiB"}, "The GPUs would fit now, on b: it has 64 GiB of RAM, 65 GiB asked."),
        ({"cpus": 4, "gpus": 4}, "The GPUs would fit now, on b: 3.5 of its 16 cores free, 4 asked."),
        ({"cpus": 4, "gpus": 5}, ""),
        ({"cpus": 3, "gpus": 5}, ""),
        ({"cpus": 1}, ""),
        ({"gpus": 5}, ""),
    ):
        decision = select([fewest, more, node("c", 8, reason="no report")], Request(**asked))
        assert decision.short == said
        assert decision.summary().endswith(said or ".")
    assert select([fewest, more], Request(cpus=3, gpus=5)).summary().endswith(" 4 GPUs, 3 CPUs would fit now, on b.")


def test_never_is_said_in_words_that_name_what_was_asked() -> None:
    decision = select([node("a"), node("b", cpus=64)], Request(cpus=500))
    assert str(decision.refusal()).startswith("No node of this cluster could ever give 1 GPU, 500 CPUs, however empty.")


def test_the_index_keeps_up() -> None:
    index, asked = fit.Index(node(f"n{at:02}", cpus_free=0) for at in range(40)), Request(cpus=4, ram="1GiB")
    assert index.select(asked).node is None
    index.update(node("n33"))
    assert index.select(asked).node == "n33"
    index.update(node("n33", ram_free=0))
    assert index.select(asked).node is None
    index.remove("n07")
    index.update(node("other"))
    assert index.select(asked).node == "other"

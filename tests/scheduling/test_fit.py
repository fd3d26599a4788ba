"""What a decision says: reasons, filters, never, the table."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from typing import Any

import pytest

from jupyter_gpufit import Decision, Gpu, Node, Placement, Request
from jupyter_gpufit.errors import InvalidValue, NeverFits, NoFit
from jupyter_gpufit.scheduling import fit

GIB = 2**30


def select(nodes: list[Node], request: Request, *args: Any, **options: Any) -> Decision:
    """`fit.select`, checked against the index: every example here is one for both."""
    decision = fit.select(nodes, request, *args, **options)
    assert fit.Index(nodes).select(request, *args, **options).explain() == decision.explain()
    return decision


def gpu(name: str, free: float | None, **fields: Any) -> Gpu:
    known = {"index": int(name[-1]), "model": "NVIDIA A100-SXM4-40GB", "memory_total": 40 * GIB}
    return Gpu(uuid=f"GPU-{name}", memory_free=None if free is None else int(free * GIB), **known | fields)


def node(name: str, *free: float, **fields: Any) -> Node:
    return Node(name=name, gpus=tuple(gpu(f"{name}-{at}", size) for at, size in enumerate(free)), age=1.0, **fields)


def reason(asked: Request, where: Node, policy: str = "best-fit", **options: Any) -> tuple[int, str]:
    """The stage that rejects `where`, and why."""
    decision = select([where], asked, policy, **options)
    [(number, why)] = [(stage.number, why) for stage in decision.stages for why in stage.rejected.values()]
    return number, why


def test_two_gpus_on_the_fullest_node_that_fits() -> None:
    nodes = [node("big", *[40] * 8), node("small", 40, 24, 20), node("cut", 40, 11.25)]
    decision = select(nodes, Request(gpus=2, memory="16GiB"))
    assert decision.node == "small"
    assert decision.gpus == ("GPU-small-1", "GPU-small-2")
    assert decision.placement == Placement(node="small", gpus=decision.gpus, memory=(16 * GIB, 16 * GIB))
    assert decision.policy == "best-fit"
    assert decision.stages[2].passed == ("cut", "small", "big")
    assert decision.stages[3].passed == ("small", "big")
    assert decision.stages[3].rejected == {"cut": "GPU-cut-1 has 11.2 GiB free, 16 GiB asked"}
    assert not decision.never
    assert decision.nearest is None


def test_claim_mounts_all_of_the_first_node_whose_every_gpu_fits() -> None:
    nodes = [node("big", *[40] * 8), node("small", 40, 24, 20), node("cut", 40, 11.25)]
    decision = select(nodes, Request(gpus=2, memory="16GiB"), "claim")
    assert decision.node == "small"
    assert decision.gpus == ("GPU-small-1", "GPU-small-2", "GPU-small-0")
    assert decision.placement.memory == (16 * GIB,) * 3


def mig(name: str, per_card: int, *free: float) -> Node:
    gpus = (gpu(f"{name}-{at}", size, card=f"card{at // per_card}") for at, size in enumerate(free))
    return Node(name=name, gpus=tuple(gpus), age=1.0)


@pytest.mark.parametrize("policy", ["best-fit", "claim"])
@pytest.mark.parametrize(
    ("asked", "where", "stage", "why"),
    [
        (Request(gpus=3), node("n", 40, 40), 1, "2 idle GPUs, 3 asked"),
        (Request(gpus=2), node("n", 40), 1, "1 idle GPU, 2 asked"),
        (Request(gpus=2), node("n"), 1, "0 idle GPUs, 2 asked"),
        (Request(gpus=2, shared=True), node("n", 1), 1, "1 idle or shareable GPU, 2 asked"),
        (Request(gpus=2, gpu_model="*a100*"), node("n", 1), 1, "1 idle GPU of model '*a100*', 2 asked"),
        (Request(memory="16GiB"), node("n", 11.25), 1, "GPU-n-0 has 11.2 GiB free, 16 GiB asked"),
        (Request(gpus=2, memory="30G"), node("n", 40, 9), 1, "its 2 idle GPUs have 49 GiB free in total, 60 GiB asked"),
        (Request(gpus=2, memory="16G"), node("n", 40, 9), 4, "GPU-n-1 has 9 GiB free, 16 GiB asked"),
        (Request(gpus=3), mig("n", 2, 9, 9, 9, 9), 2, "its 4 idle GPUs are on 2 cards, 3 asked"),
        (Request(gpus=2), mig("n", 9, 9, 9, 9), 2, "its 3 idle GPUs are on 1 card, 2 asked"),
        (Request(memory=16 * GIB), node("n", 16 - 2**-30), 1, "GPU-n-0 has 15.9 GiB free, 16 GiB asked"),
        (Request(memory=16 * GIB + 1), node("n", 16), 1, "GPU-n-0 has 17179869184 bytes free, 17179869185 bytes asked"),
    ],
)
def test_a_rejected_node_gets_a_reason_that_a_person_can_read(policy, asked, where, stage, why) -> None:
    assert reason(asked, where, policy) == (stage, why)


def test_reasons_where_the_policies_differ() -> None:
    asked = Request(gpus=2, memory="16GiB")
    assert reason(asked, node("n", 15, 15, 1)) == (
        1,
        "the 2 freest of its 3 idle GPUs have 30 GiB free in total, 32 GiB asked",
    )
    assert reason(Request(memory="16GiB"), node("n", 9, 9)) == (
        1,
        "the freest of its 2 idle GPUs has 9 GiB free, 16 GiB asked",
    )
    assert reason(asked, node("n", 40, 40, 8), "claim") == (4, "GPU-n-2 has 8 GiB free, 16 GiB asked")
    one = "its 2 idle GPUs are on one and the same card"
    assert reason(Request(), mig("n", 2, 9, 9), "claim") == (2, one)
    assert select([mig("n", 2, 9, 9)], Request()).node == "n"


def test_one_idle_gpu_is_not_bound_to_another_so_claim_takes_it() -> None:
    assert select([node("n", 40)], Request(memory="16GiB"), "claim").gpus == ("GPU-n-0",)


def test_several_gpus_of_one_card_only_when_the_request_says_so() -> None:
    where = mig("n", 4, 20, 10, 10, 5)
    assert select([where], Request(gpus=2, memory="10G")).node is None
    decision = select([where], Request(gpus=2, memory="10G", share_card=True))
    assert decision.gpus == ("GPU-n-1", "GPU-n-2")


def test_each_size_gets_its_gpu() -> None:
    decision = select([node("n", 10, 40, 20)], Request(gpus=3, memory=("8G", "15G", "40G")))
    assert decision.gpus == ("GPU-n-0", "GPU-n-2", "GPU-n-1")


def test_a_shared_request_joins_others_where_memory_fits() -> None:
    held = gpu("n-0", 10, idle=False, shareable=True)
    where = Node(name="n", gpus=(held, gpu("n-1", 40), gpu("n-2", 40, idle=False)))
    assert select([where], Request(memory="8G")).gpus == ("GPU-n-1",)
    assert select([where], Request(memory="8G", shared=True)).gpus == ("GPU-n-0",)
    assert select([where], Request(memory="16G", shared=True)).gpus == ("GPU-n-1",)
    assert select([where], Request(gpus=3, shared=True)).node is None


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"node": "other"}, "its name is not 'other'"),
        ({"node": "other*"}, "its name does not match 'other*'"),
        ({"node": "GPU01"}, "its name is not 'GPU01'"),
        ({"labels": {"room": "b13"}}, "its label 'room' is 'b12', 'b13' asked"),
        ({"labels": {"room": "b12", "rack": "1"}}, "it has no label 'rack', '1' asked"),
        ({"gpu_model": "H100"}, "no GPU of model 'H100' (it has NVIDIA A100-SXM4-40GB)"),
        ({"gpu_model": "SXM4*"}, "no GPU of model 'SXM4*' (it has NVIDIA A100-SXM4-40GB)"),
        ({"gpu_model": "*H100*"}, "no GPU of model '*H100*' (it has NVIDIA A100-SXM4-40GB)"),
    ],
)
def test_what_the_person_wished_leaves_nodes_out_for_good(wish: dict[str, Any], why: str) -> None:
    where = node("gpu01", 40, labels={"room": "b12"})
    assert reason(Request(**wish), where) == (1, why)
    assert select([where], Request(**wish)).never


@pytest.mark.parametrize(
    "wish", [{"node": "gpu0?"}, {"labels": {"room": "b12"}}, {"gpu_model": "*a100*"}, {"gpu_model": "a100"}]
)
def test_wishes_that_are_met(wish: dict[str, Any]) -> None:
    assert select([node("gpu01", 40, labels={"room": "b12", "rack": "1"})], Request(**wish)).node == "gpu01"


def test_only_gpus_of_the_asked_model_are_taken_on_a_mixed_node() -> None:
    where = Node(name="n", gpus=(gpu("n-0", 20, model="Tesla T4"), gpu("n-1", 40)))
    assert select([where], Request(memory="8G", gpu_model="*A100*")).gpus == ("GPU-n-1",)


def test_nodes_that_are_not_usable_or_excluded_say_why() -> None:
    stale = node("n", 40, reason="its last report is 41 s old")
    assert reason(Request(), stale) == (1, "not usable: its last report is 41 s old")
    assert reason(Request(), node("n", 40), exclude={"n": "its engine did not answer"}) == (
        1,
        "its engine did not answer",
    )
    assert not select([stale], Request()).never
    assert not select([node("n", 40)], Request(), exclude={"n": "not now"}).never


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (gpu("n-1", 40, allocatable=False, reason="it fell off the bus (Xid 79)"), "it fell off the bus (Xid 79)"),
        (gpu("n-1", None), "its free memory is unknown"),
        (gpu("n-1", -1), f"it reports {-GIB} bytes free, which cannot be"),
    ],
)
def test_a_gpu_that_is_broken_or_unknown_is_never_taken_and_says_why(broken: Gpu, why: str) -> None:
    where = Node(name="n", gpus=(gpu("n-0", 10), broken))
    assert reason(Request(gpus=2), where) == (1, f"1 idle GPU, 2 asked; GPU-n-1 is left out: {why}")
    assert select([where], Request()).gpus == ("GPU-n-0",)


def test_a_mig_parent_is_neither_taken_nor_counted_nor_complained_of() -> None:
    parent = gpu("n-0", 40, allocatable=False, reason="MIG is on: its instances are allocated")
    part = gpu("n-1", 10, parent="GPU-n-0", card="GPU-n-0", memory_total=10 * GIB)
    where = Node(name="n", gpus=(parent, part))
    assert reason(Request(gpus=2), where) == (1, "1 idle GPU, 2 asked")
    assert select([where], Request(memory="20G")).never  # the 40 GiB are the parent's


def test_never_is_judged_by_what_the_nodes_could_be() -> None:
    busy = Node(name="n", gpus=(gpu("n-0", 0, idle=False), gpu("n-1", 3, idle=False)), age=1.0)
    for policy in ("best-fit", "claim"):
        assert not select([busy], Request(gpus=2, memory="40G"), policy).never
        assert select([busy], Request(gpus=2, memory="41G"), policy).never
        assert select([busy], Request(gpus=3), policy).never
        assert select([mig("m", 2, 1, 1, 1)], Request(gpus=3), policy).never
        assert select([], Request(), policy).never
    assert not select([mig("m", 2, 1, 1, 1)], Request(gpus=3, share_card=True)).never


def test_a_node_never_heard_from_and_unknown_memory_cannot_rule_a_request_out() -> None:
    large = Request(gpus=64, memory="1TiB")
    silent = Node(name="silent", reason="no report yet")
    assert not select([silent], large).never
    assert select([silent], Request(gpus=64, node="other")).never
    assert not select([Node(name="fault", age=3.0, reason="driver/library mismatch")], large).never
    assert select([Node(name="empty", age=3.0)], large).never
    lost = gpu("n-0", None, memory_total=None, allocatable=False, reason="lost", model="")
    assert not select([Node(name="n", gpus=(lost,), age=1.0)], Request(memory="1TiB", gpu_model="*H100*")).never


def test_never_under_claim_lets_the_small_gpus_be_the_busy_ones() -> None:
    small = gpu("n-2", 5, memory_total=5 * GIB)
    where = Node(name="n", gpus=(gpu("n-0", 40), gpu("n-1", 40), small), age=1.0)
    decision = select([where], Request(gpus=2, memory="16G"), "claim")
    assert decision.node is None
    assert not decision.never


def test_never_under_claim_looks_at_the_cards_of_the_gpus_that_are_large_enough() -> None:
    asked = Request(gpus=2, memory="16G", share_card=True)
    large = (gpu("n-0", 40, card="x"), gpu("n-1", 40, card="x"))
    assert select([Node(name="n", gpus=large, age=1.0)], asked, "claim").never
    assert not select([Node(name="n", gpus=large, age=1.0)], asked).never
    small = gpu("n-2", 5, card="y", memory_total=5 * GIB)
    assert select([Node(name="n", gpus=(*large, small), age=1.0)], asked, "claim").never
    other = gpu("n-2", 5, card="y")
    assert not select([Node(name="n", gpus=(*large, other), age=1.0)], asked, "claim").never


def test_what_would_fit_instead() -> None:
    nodes = [node("a", 11.25, 40), node("b", 12, 13, 14)]
    decision = select(nodes, Request(gpus=2, memory="16G"))
    assert str(decision.nearest) == "2 GPUs with 13 GiB each would fit now, on b"
    assert select(nodes, Request(gpus=2, memory=13 * GIB)).node == "b"
    fewer = select(nodes, Request(gpus=4, memory="12G"))
    assert str(fewer.nearest) == "3 GPUs with 12 GiB each would fit now, on b"
    assert select(nodes, Request(memory="99G", node="nowhere")).nearest is None
    assert select([mig("n", 2, 9, 9)], Request(memory="16G"), "claim").nearest is None  # bound to one card
    assert select([mig("n", 2, 9)], Request(memory="16G"), "claim").nearest.memory == 9 * GIB


def test_the_summary_and_the_error_tell_not_now_from_never() -> None:
    nodes = [node("a", 10, 10)]
    now = select(nodes, Request(gpus=2, memory="16G"))
    assert now.summary() == "No node has 2 GPUs with 16 GiB each now. 2 GPUs with 10 GiB each would fit now, on a."
    assert type(now.refusal()) is NoFit
    assert now.refusal().details["stages"] == now.explain()["stages"]
    never = select(nodes, Request(gpus=2, memory="80G", gpu_model="*A100*"))
    assert never.summary().startswith(
        "No node of this cluster could ever give 2 GPUs with 80 GiB each of model '*A100*', however empty."
    )
    assert type(never.refusal()) is NeverFits
    assert select([], Request()).summary() == "1 GPU: the cluster has no nodes."
    fits = select(nodes, Request(memory="8G"))
    assert fits.summary() == "1 GPU with 8 GiB: a, GPU 0."
    with pytest.raises(ValueError, match="was placed, on a"):
        fits.refusal()


def test_a_name_of_a_node_that_is_misspelt_is_said() -> None:
    nodes = [node("atlas", 10, 10), node("zeus", 10)]
    refusal = select(nodes, Request(node="atlsa")).refusal()
    assert type(refusal) is NeverFits
    assert "There is no node 'atlsa'; did you mean 'atlas'?" in refusal.message
    assert "There is no node 'q'." in select(nodes, Request(node="q")).summary()
    assert "There is no node" not in select(nodes, Request(node="q*")).summary(), "a pattern is no name"
    assert "There is no node" not in select(nodes, Request(node="zeus", memory="99G")).summary()


def test_chosen_gpus_are_shown_by_index_and_mig_instances_by_uuid() -> None:
    three = select([node("a", 9, 40, 40, 40)], Request(gpus=3, memory="16G"))
    assert three.summary() == "3 GPUs with 16 GiB each: a, GPUs 1, 2 and 3."
    assert three.gpus == ("GPU-a-1", "GPU-a-2", "GPU-a-3"), "programs get uuids"
    mixed = select([node("a", 40, 9)], Request(gpus=2, memory=["4G", "16G"]))
    assert mixed.summary().endswith("a, GPUs 1 and 0."), "in the order of what was asked of each"
    parts = tuple(gpu(f"MIG-{at}", 9, parent="GPU-0", card="GPU-0") for at in range(2))
    instance = select([Node(name="n", gpus=parts, age=1.0)], Request(memory="4G"))
    assert instance.summary() == "1 GPU with 4 GiB: n, GPU-MIG-0."


def test_the_table_has_the_chosen_node_first_and_the_hopeless_last() -> None:
    nodes = [node("d", 9), node("c", 40, 9), node("b", 40, 40, 40), node("a", 40, 40)]
    decision = select(nodes, Request(gpus=2, memory="16G"))
    assert decision.table() == [
        {"node": "a", "stage": None, "why": "chosen: GPUs 0 and 1"},
        {"node": "b", "stage": None, "why": "fits too; number 2 in the order"},
        {"node": "c", "stage": 4, "why": "GPU-c-1 has 9 GiB free, 16 GiB asked"},
        {"node": "d", "stage": 1, "why": "1 idle GPU, 2 asked"},
    ]
    assert str(decision).splitlines()[2:] == [
        "node  stage  why",
        "a     fits   chosen: GPUs 0 and 1",
        "b     fits   fits too; number 2 in the order",
        "c     4      GPU-c-1 has 9 GiB free, 16 GiB asked",
        "d     1      1 idle GPU, 2 asked",
    ]
    assert repr(decision) == "<Decision best-fit: 2 GPUs with 16 GiB each → a>"


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_html_table_escapes_what_nodes_and_people_wrote() -> None:
    page = Cells()
    where = node("n", 40, reason="<script>alert(1)</script>")
    page.feed(select([where], Request(node="<b>*", gpu_model="&"))._repr_html_())
    page.feed(select([where], Request())._repr_html_())
    assert page.tags == {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert "not usable: <script>alert(1)</script>" in page.texts
    assert "its name does not match '<b>*'" in page.texts


def test_long_tables_are_cut_where_they_are_shown() -> None:
    decision = select([node(f"n{at}", 40) for at in range(250)], Request(gpus=2))
    assert len(decision.table()) == 250
    assert str(decision).endswith("... and 50 more nodes")
    assert "... and 50 more nodes" in decision._repr_html_()


def test_the_order_is_by_idle_gpus_then_by_memory_then_by_name() -> None:
    nodes = [node("a", 40, 40), node("b", 30, 40), node("c", 40, 30), node("d", 20, 20, 20)]
    assert select(nodes, Request(memory="8G")).stages[2].passed == ("b", "c", "a", "d")
    assert select(nodes, Request(memory="8G", gpu_model="*a100*")).node == "b"


def test_ties_go_to_the_first_by_name_and_names_have_to_be_unique() -> None:
    assert select([node("n2", 40), node("n10", 40), node("n3", 40)], Request()).node == "n10"
    with pytest.raises(InvalidValue, match="two nodes have the name 'n2'"):
        select([node("n2", 40), node("n2", 10)], Request())


def test_a_decision_cannot_be_changed() -> None:
    decision = select([node("n", 40)], Request())
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.placement = None
    with pytest.raises(TypeError):
        decision.stages[0].rejected["n"] = "because"

"""Backfill against an oracle: the nodes as reports and claims would make them at each moment to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jupyter_gpufit.cluster.effective import effective, left_of
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import Claim, Gpu, GpuProcess, Node, Request
from jupyter_gpufit.scheduling.backfill import Guard, Outlook, frees
from jupyter_gpufit.scheduling.fit import select
from jupyter_gpufit.scheduling.policies import find

PATIENT = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
BEST_FIT = find("best-fit")
NOW = 1000.0


def reported(name: str, gpus: int, foreign: Iterable[int] = ()) -> Node:
    """An empty node with 8 cores; on the GPUs `foreign` somebody else computes, on 4 of 16 GiB."""
    busy = set(foreign)
    return Node(
        name=name,
        age=0.0,
        cpus=8,
        cpus_free=8,
        gpus=tuple(
            Gpu(
                uuid=f"{name}-{i}",
                index=i,
                memory_total=16 * GiB,
                memory_free=(12 if i in busy else 16) * GiB,
                idle=i not in busy,
                processes=(GpuProcess(pid=1, memory=4 * GiB),) if i in busy else (),
            )
            for i in range(gpus)
        ),
    )


def held(node: Node, claims: Sequence[Claim]) -> Node:
    """`node` while `claims` hold: what the cluster's cache makes of it."""
    cpus, ram = left_of(node.cpus, node.ram, claims)
    return replace(node, gpus=effective(node.gpus, claims), cpus_free=cpus, ram_free=ram)


def claim(id: str, node: str, gpus: Mapping[int, int], shared: bool = False, cpus: float = 0) -> Claim:
    sizes = {f"{node}-{i}": size * GiB for i, size in gpus.items()}
    return Claim(allocation=id, scheduler="s", gpus=sizes, shared=shared, cpus=cpus)


def outlook(raw: Mapping[str, Node], claims: Mapping[str, list[Claim]], ends: Mapping[str, float]) -> Outlook:
    nodes = {name: held(node, claims[name]) for name, node in raw.items()}
    return Outlook(nodes, claims, ends, NOW, BEST_FIT)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, Node], dict[str, list[Claim]], dict[str, float]]:
    """One or two nodes that are mostly full, who holds what there, and until when (for most of them)."""
    raw, claims, ends = {}, {}, {}
    for name in "ab"[: draw(st.integers(1, 2))]:
        count = draw(st.integers(2, 4))
        raw[name] = reported(name, count, {0} if draw(st.integers(0, 5)) == 5 else ())
        claims[name] = []
        free = [gpu.index for gpu in raw[name].gpus if gpu.idle]
        keeps = draw(st.integers(0, 2))
        while len(free) > keeps:
            taken = [free.pop() for _ in range(draw(st.integers(1, len(free) - keeps)))]
            shared = draw(st.booleans())
            for holder in range(draw(st.integers(1, 2)) if shared else 1):
                id = f"{name}{len(claims[name])}-{holder}"
                sizes = dict.fromkeys(taken, draw(st.integers(0, 8)))
                claims[name].append(claim(id, name, sizes, shared, draw(st.sampled_from([0, 0, 1, 2.5, 4]))))
                if draw(st.booleans()):  # the engine tells of it, too
                    claims[name].append(claims[name][-1])
                if draw(st.integers(0, 5)):
                    ends[id] = NOW + draw(st.integers(1, 5))
    return raw, claims, ends


def requests(gpus: st.SearchStrategy[int]) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        gpus=gpus,
        memory=st.sampled_from([0, 4 * GiB, 8 * GiB, 14 * GiB]),
        shared=st.booleans(),
        node=st.sampled_from([None, None, None, "a"]),
        cpus=st.sampled_from([None, None, 1, 4, 7.5]),
    )


heads, later_ones = requests(st.integers(2, 4)), requests(st.integers(1, 2))


def start(
    raw: Mapping[str, Node], claims: Mapping[str, list[Claim]], ends: Mapping[str, float], asked: Request
) -> float:
    """The oracle: the first moment at which selection finds a node, as one claim ends after the other."""
    for now in sorted({NOW, *ends.values()}):
        nodes = [
            held(node, [each for each in claims[name] if ends.get(each.allocation, now + 1) > now])
            for name, node in raw.items()
        ]
        if select(nodes, asked).node is not None:
            return now
    return float("inf")


@PATIENT
@given(clusters(), heads, later_ones, st.none() | st.integers(0, 6))
def test_the_first_is_delayed_exactly_when_it_would_start_later(cluster, head, later, lasts) -> None:
    raw, claims, ends = cluster
    view = outlook(raw, claims, ends)
    decision = select(view.nodes.values(), later)
    assume(decision.placement is not None)
    where = decision.placement
    without = start(raw, claims, ends, head)
    assume(NOW < without < float("inf"))

    mine = Claim(
        allocation="later",
        scheduler="s",
        gpus=dict(zip(where.gpus, where.memory, strict=True)),
        shared=later.shared,
        cpus=later.cpus or 0,
    )
    after = {name: [*held_there, *([mine] if name == where.node else [])] for name, held_there in claims.items()}
    until = ends if lasts is None else ends | {"later": NOW + lasts}
    with_it = start(raw, after, until, head)

    guard = Guard(view, head, {})
    assert guard.start == without
    node = held(raw[where.node], after[where.node])
    assert guard.delayed(mine, node, None if lasts is None else NOW + lasts) == (with_it > without)


@PATIENT
@given(clusters(), heads)
def test_what_frees_it_does_and_no_less_would(cluster, asked) -> None:
    raw, claims, ends = cluster
    view = outlook(raw, claims, ends)
    assume(select(view.nodes.values(), asked).node is None)
    found = frees(view, asked, {})
    if found is None:
        for name, node in raw.items():
            assert select([held(node, [])], asked).node is None, f"{name} empty"
        return
    assert found.after

    def fits(gone: set[str]) -> bool:
        there = [each for each in claims[found.node] if each.allocation not in gone]
        return select([held(raw[found.node], there)], asked).node is not None

    assert fits(set(found.after))
    for id in found.after:
        assert not fits(set(found.after) - {id})
    if found.at is not None:
        assert found.at == start(raw, claims, ends, asked)
        assert all(ends[id] <= found.at for id in found.after)


@PATIENT
@given(clusters(), heads, st.data())
def test_a_node_it_can_never_use_delays_it_never(cluster, head, data) -> None:
    raw, claims, ends = cluster
    view = outlook(raw, claims, ends)
    left_out = data.draw(st.sets(st.sampled_from(sorted(raw))))
    guard = Guard(view, head, dict.fromkeys(left_out, "it may not"))
    for name in raw:
        whole = claim("later", name, dict.fromkeys(range(len(raw[name].gpus)), 1))
        empty = select([held(reported(name, len(raw[name].gpus)), [])], head).node
        if name in left_out or empty is None:
            assert name not in guard.nodes
            assert not guard.delayed(whole, held(raw[name], [*claims[name], whole]), None)
        else:
            assert name in guard.nodes


def test_what_runs_on_a_gpu_ends_with_its_allocation() -> None:
    """Its memory comes back with it, also what it used beyond its claim; what others use there does not."""
    container = "c" * 64
    own = claim("mine", "a", {0: 0, 1: 2})
    own = replace(own, container=container)
    uses = (GpuProcess(pid=7, memory=10 * GiB, container=container[:12]),)
    node = reported("a", 2, foreign={1})
    first, second = node.gpus
    node = replace(
        node,
        gpus=(
            replace(first, memory_free=6 * GiB, processes=uses, idle=False),
            replace(second, memory_free=2 * GiB, processes=(*uses, *second.processes)),
        ),
    )
    view = outlook({"a": node}, {"a": [own]}, {"mine": NOW + 1})
    first, second = view.without(view.nodes["a"], ["mine"]).gpus
    assert (first.idle, first.memory_free, first.processes) == (True, 16 * GiB, ())
    assert (second.idle, [process.pid for process in second.processes]) == (False, [1])
    assert Guard(view, Request(memory="14GiB"), {}).start == NOW + 1
    assert Guard(view, Request(gpus=2), {}).start is None


def test_a_broken_gpu_and_a_node_that_is_away_keep_no_place() -> None:
    node = reported("a", 2)
    broken = replace(node, gpus=(replace(node.gpus[0], allocatable=False, reason="lost"), node.gpus[1]))
    for there in (broken, replace(node, reason="it does not answer")):
        assert Guard(Outlook({"a": there}, {}, {}, NOW, BEST_FIT), Request(gpus=2), {}).nodes == frozenset()

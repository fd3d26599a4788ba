"""What is really left of a node's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jupyter_gpufit.cluster.effective import effective
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import Claim, Gpu, GpuProcess

PATIENT = settings(deadline=None)  # the machine may be busy with other things

BOX = "0123456789abcdef" * 4


def gpu(uuid: str = "GPU-1", **keys: Any) -> Gpu:
    usual: dict[str, Any] = {"uuid": uuid, "index": 0, "memory_total": 40 * GiB, "memory_free": 40 * GiB}
    return Gpu(**usual | keys)


def claim(allocation: str = "a", size: int = 16 * GiB, uuid: str = "GPU-1", **keys: Any) -> Claim:
    usual: dict[str, Any] = {"allocation": allocation, "scheduler": "s", "gpus": {uuid: size}}
    return Claim(**usual | keys)


def one(reported: Gpu, *claims: Claim) -> Gpu:
    (seen,) = effective([reported], claims)
    return seen


def used(*processes: GpuProcess, **keys: Any) -> Gpu:
    """A GPU as NVML shows it while `processes` run: their memory is not free."""
    total = sum(process.memory or 0 for process in processes)
    return gpu(memory_free=40 * GiB - total, memory_used=total, processes=processes, idle=not processes, **keys)


# --- examples, one rule each


def test_nothing_held_nothing_running() -> None:
    seen = one(gpu())
    assert seen == replace(gpu(), idle=True, shareable=False, memory_foreign=0)


def test_a_reservation_counts_from_the_moment_it_is_made() -> None:
    seen = one(gpu(), claim())
    assert (seen.memory_free, seen.idle, seen.shareable, seen.allocations) == (24 * GiB, False, False, ("a",))


def test_own_use_is_not_counted_twice() -> None:
    held = claim(container=BOX)
    for use in (0, 1 * GiB, 15 * GiB, 16 * GiB):
        assert one(used(GpuProcess(pid=7, memory=use, container=BOX)), held).memory_free == 24 * GiB, use
    assert one(used(GpuProcess(pid=7, memory=20 * GiB, container=BOX)), held).memory_free == 20 * GiB, (
        "more than reserved"
    )


def test_use_of_others_counts_as_used() -> None:
    seen = one(used(GpuProcess(pid=7, memory=10 * GiB)), claim(shared=True, container=BOX))
    assert seen.memory_free == (40 - 10 - 16) * GiB
    assert not seen.shareable, "a foreign process computes on it"
    alone = one(used(GpuProcess(pid=7, memory=10 * GiB)))
    assert (alone.memory_free, alone.idle) == (30 * GiB, False)


@pytest.mark.parametrize("reported", [BOX, BOX.upper(), BOX[:12], BOX[:12].upper(), f" {BOX} "])
def test_a_container_is_known_by_its_id_however_it_is_written(reported: str) -> None:
    process = GpuProcess(pid=7, memory=4 * GiB, container=reported)
    for own in (BOX, BOX.upper(), BOX[:12]):
        seen = one(used(process), claim(shared=True, container=own))
        assert (seen.memory_free, seen.shareable) == (24 * GiB, True)


@pytest.mark.parametrize("reported", [None, "", BOX[:11], BOX[:11] + "x", BOX[:-1] + "x", "f" * 64])
def test_another_container_is_foreign(reported: str | None) -> None:
    seen = one(used(GpuProcess(pid=7, memory=4 * GiB, container=reported)), claim(shared=True, container=BOX))
    assert (seen.memory_free, seen.shareable) == (20 * GiB, False)


def test_a_local_process_is_known_by_its_pid() -> None:
    seen = one(
        used(GpuProcess(pid=7, memory=4 * GiB), GpuProcess(pid=8, memory=2 * GiB)), claim(pids=frozenset({7, 8}))
    )
    assert seen.memory_free == 24 * GiB


def test_a_process_whose_memory_is_unknown_counts_as_using_nothing_yet() -> None:
    reported = gpu(memory_free=30 * GiB, processes=(GpuProcess(pid=7, container=BOX),), idle=False)
    assert one(reported, claim(container=BOX)).memory_free == 14 * GiB


def test_an_allocation_named_by_ledger_and_engine_counts_once() -> None:
    ledger, engine = claim(owner="me"), claim(container=BOX)
    process = GpuProcess(pid=7, memory=4 * GiB, container=BOX)
    for claims in ((ledger, engine), (engine, ledger)):
        seen = one(used(process), *claims)
        assert (seen.memory_free, seen.allocations) == (24 * GiB, ("a",))


def test_of_two_sizes_of_one_allocation_the_greater_counts() -> None:
    for claims in ((claim(size=2 * GiB), claim(size=GiB)), (claim(size=GiB), claim(size=2 * GiB))):
        assert one(gpu(), *claims).memory_free == 38 * GiB


def test_processes_that_use_more_than_is_used_are_about_to() -> None:
    """Memory and processes were read at different moments: 10 GiB more are on their way."""
    reported = gpu(processes=(GpuProcess(pid=7, memory=10 * GiB, container=BOX),), idle=False)
    assert one(reported, claim(container=BOX)).memory_free == 24 * GiB


def test_a_restart_with_two_containers_of_one_allocation_counts_once() -> None:
    old, new = claim(container=BOX), claim(container="f" * 64)
    processes = (GpuProcess(pid=7, memory=4 * GiB, container=BOX), GpuProcess(pid=8, memory=GiB, container="f" * 64))
    assert one(used(*processes), old, new).memory_free == 24 * GiB


def test_a_process_of_ours_on_a_gpu_that_we_do_not_hold_is_foreign_there() -> None:
    elsewhere = replace(used(GpuProcess(pid=7, memory=4 * GiB, container=BOX)), uuid="GPU-2")
    _, seen = effective([gpu(), elsewhere], [claim(container=BOX)])
    assert (seen.idle, seen.memory_free) == (False, 36 * GiB)


def test_shareable_only_while_all_holders_share() -> None:
    assert one(gpu(), claim("a", GiB, shared=True), claim("b", GiB, shared=True)).shareable
    assert not one(gpu(), claim("a", GiB, shared=True), claim("b", GiB)).shareable
    assert not one(gpu()).shareable, "it is idle: nobody holds it"


def test_never_below_zero_and_unknown_stays_unknown() -> None:
    assert one(gpu(memory_free=GiB), claim()).memory_free == 0
    seen = one(gpu(memory_free=None), claim())
    assert (seen.memory_free, seen.allocatable, seen.reason) == (None, False, "its memory is unknown")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"allocatable": False, "reason": "Xid 79"}, "Xid 79"),
        ({"allocatable": False}, "its reporter says"),
        ({"health": "lost"}, "it is lost"),
        ({"health": "unhealthy", "reason": "ECC"}, "ECC"),
        ({"memory_total": None}, "memory is unknown"),
    ],
)
def test_what_cannot_be_allocated_is_neither_idle_nor_shareable(keys: dict[str, Any], reason: str) -> None:
    for claims in ((), (claim(shared=True),)):
        seen = one(gpu(**keys), *claims)
        assert (seen.idle, seen.shareable, seen.allocatable) == (False, False, False)
        assert reason in (seen.reason or "")


def test_busy_without_a_process_to_show_for_it_is_foreign() -> None:
    """Where NVML cannot list processes, the reporter still may know that the GPU is in use."""
    assert not one(gpu(idle=False)).idle
    assert not one(gpu(idle=False), claim(shared=True)).shareable


def test_a_mig_parent_is_never_allocatable_and_a_claim_on_it_blocks_its_instances() -> None:
    parent = gpu("GPU-1")
    part = gpu("MIG-1", parent="GPU-1", card="GPU-1", memory_total=5 * GiB, memory_free=5 * GiB)
    other = gpu("GPU-2")
    seen_parent, seen_part, _ = effective([parent, part, other], [])
    assert (seen_parent.allocatable, seen_part.idle) == (False, True)
    _, seen_part, seen_other = effective([parent, part, other], [claim(shared=True)])
    assert (seen_part.idle, seen_part.shareable, seen_part.allocations) == (False, False, ("a",))
    assert seen_other.idle


def test_a_claim_on_an_instance_leaves_its_siblings_alone() -> None:
    parts = [gpu(f"MIG-{n}", parent="GPU-1", card="GPU-1") for n in (1, 2)]
    for reported in ([gpu("GPU-1"), *parts], parts):
        held, sibling = effective(reported, [claim(uuid="MIG-1", cards={"MIG-1": "GPU-1"})])[-2:]
        assert (held.idle, sibling.idle, sibling.allocations) == (False, True, ())


def test_an_instance_cannot_be_shared_while_somebody_holds_its_parent() -> None:
    part = gpu("MIG-1", parent="GPU-1")
    assert one(part, claim("a", uuid="MIG-1", shared=True)).shareable
    seen = one(part, claim("a", uuid="MIG-1", shared=True), claim("b", uuid="GPU-1", shared=True))
    assert (seen.shareable, seen.allocations) == (False, ("a", "b"))


def test_a_claim_on_an_instance_that_is_gone_blocks_what_was_made_of_its_card() -> None:
    """Somebody changed the MIG layout under an allocation: its card is not free before it ends."""
    gone = claim(uuid="MIG-9", cards={"MIG-9": "GPU-1"})
    whole, other = effective([gpu("GPU-1"), gpu("GPU-2")], [gone])
    assert (whole.idle, whole.allocations, other.idle) == (False, ("a",), True)


def test_two_gpus_of_one_board_do_not_block_each_other() -> None:
    reported = [gpu("GPU-1", card="board"), gpu("GPU-2", card="board")]
    cards = {"GPU-1": "board", "GPU-2": "board"}
    assert [seen.idle for seen in effective(reported, [claim(cards=cards)])] == [False, True]
    assert effective(reported[1:], [claim(cards=cards)])[0].idle, "also when the claimed one is not reported"


# --- who has the memory


def test_what_is_claimed_counts_whether_it_is_used_or_not() -> None:
    assert one(gpu()).memory_claimed == 0
    ledger, engine = claim(owner="me"), claim(container=BOX)
    for use in (0, GiB, 20 * GiB):
        seen = one(used(GpuProcess(pid=7, memory=use, container=BOX)), ledger, engine)
        assert (seen.memory_claimed, seen.memory_foreign) == (16 * GiB, 0), use
    shared = [claim(name, size * GiB, shared=True) for name, size in (("a", 3), ("b", 5))]
    assert one(gpu(), *shared, claim("c", uuid="GPU-2")).memory_claimed == 8 * GiB


def test_what_strangers_use_is_foreign() -> None:
    ours, theirs, others = (
        GpuProcess(pid=7, memory=4 * GiB, container=BOX),
        GpuProcess(pid=8, memory=2 * GiB),
        GpuProcess(pid=9, memory=GiB, container="f" * 64),
    )
    seen = one(used(ours, theirs, others), claim(container=BOX))
    assert (seen.memory_claimed, seen.memory_foreign) == (16 * GiB, 3 * GiB)
    assert one(used(ours)).memory_foreign == 4 * GiB, "nobody holds it"
    assert without(used(ours, theirs), claim(container=BOX)).memory_foreign == 2 * GiB, "ours has ended since"


def test_what_strangers_use_may_be_unknown() -> None:
    strangers = (GpuProcess(pid=7), GpuProcess(pid=8, memory=GiB))
    assert one(gpu(processes=strangers, idle=False)).memory_foreign is None
    assert one(gpu(idle=False)).memory_foreign is None, "in use, by nobody knows whom"
    assert one(gpu(memory_free=None)).memory_foreign is None, "nothing is known of its memory"
    ours = GpuProcess(pid=7, container=BOX)
    assert one(gpu(processes=(ours,), idle=False), claim(container=BOX)).memory_foreign == 0


# --- what ended since the sample was taken


def without(reported: Gpu, *past: Claim, claims: Sequence[Claim] = ()) -> Gpu:
    (seen,) = effective([reported], claims, past)
    return seen


def test_what_ended_since_is_there_no_more() -> None:
    ours = GpuProcess(pid=7, memory=16 * GiB, container=BOX)
    seen = without(used(ours), claim(container=BOX))
    assert seen == without(gpu(memory_used=0))
    assert (seen.idle, seen.memory_free, seen.memory_used, seen.processes) == (True, 40 * GiB, 0, ())
    assert without(used(GpuProcess(pid=7, memory=16 * GiB)), claim(pids=frozenset({7}))).idle


def test_of_what_ended_only_its_own_is_forgotten() -> None:
    ours, theirs = (GpuProcess(pid=7, memory=8 * GiB, container=box) for box in (BOX, BOX[::-1]))
    seen = without(used(ours, theirs), claim(container=ours.container))
    assert (seen.idle, seen.memory_free, seen.processes) == (False, 32 * GiB, (theirs,))


def test_what_still_runs_for_somebody_has_not_ended() -> None:
    """A process's allocation says less than before, such as when another of its processes ended."""
    ours = GpuProcess(pid=7, memory=8 * GiB)
    before, now = claim(pids=frozenset({7, 8})), claim(pids=frozenset({7}))
    assert without(used(ours), before, claims=[now]) == one(used(ours), now)


def test_no_more_memory_comes_back_than_was_in_use() -> None:
    ours = GpuProcess(pid=7, memory=16 * GiB, container=BOX)
    seen = without(gpu(memory_free=30 * GiB, memory_used=10 * GiB, processes=(ours,)), claim(container=BOX))
    assert (seen.memory_free, seen.memory_used) == (40 * GiB, 0)
    unknown = GpuProcess(pid=7, container=BOX)
    seen = without(gpu(memory_free=30 * GiB, processes=(unknown,), idle=False), claim(container=BOX))
    assert (seen.idle, seen.memory_free) == (True, 30 * GiB), "how much it was is not known: less, until it is"


def test_a_gpu_that_cannot_be_had_is_not_had_for_that() -> None:
    ours = GpuProcess(pid=7, memory=GiB, container=BOX)
    seen = without(used(ours, allocatable=False, health="unhealthy", reason="Xid 79"), claim(container=BOX))
    assert (seen.idle, seen.allocatable, seen.reason) == (False, False, "Xid 79")


# --- properties

uuids = st.sampled_from(["GPU-1", "GPU-2", "GPU-3"])
sizes = st.integers(0, 48 * GiB)
containers = st.sampled_from([None, "a" * 64, "a" * 12, "A" * 64, "b" * 64, "c" * 12])
processes = st.builds(GpuProcess, pid=st.integers(1, 6), memory=st.none() | sizes, container=containers)
gpus = st.builds(
    lambda uuid, total, free, running, idle, health: gpu(
        uuid,
        memory_total=total,
        memory_free=None if free is None else int(free * (40 * GiB if total is None else total)),
        processes=tuple(running),
        idle=idle,
        health=health,
    ),
    uuids,
    st.none() | sizes,
    st.none() | st.floats(0, 1),
    st.lists(processes, max_size=4, unique_by=lambda process: process.pid),
    st.booleans(),
    st.sampled_from(["ok", "ok", "ok", "unknown", "unhealthy", "lost"]),
)
reports = st.lists(gpus, max_size=3, unique_by=lambda each: each.uuid)
claims = st.lists(
    st.builds(
        Claim,
        allocation=st.sampled_from("abcd"),
        scheduler=st.just("s"),
        gpus=st.dictionaries(uuids, sizes, min_size=1),
        shared=st.booleans(),
        container=containers,
        pids=st.frozensets(st.integers(1, 6), max_size=2),
    ),
    max_size=4,
)


@PATIENT
@given(reports, claims)
def test_bounds(reported: Sequence[Gpu], held: Sequence[Claim]) -> None:
    for before, after in zip(reported, effective(reported, held), strict=True):
        assert after.uuid == before.uuid
        if before.memory_free is None:
            assert after.memory_free is None
        else:
            assert after.memory_free is not None
            assert 0 <= after.memory_free <= before.memory_free
        assert after.allocatable == (after.reason is None)
        assert not (after.idle and after.shareable)
        assert not ((after.idle or after.shareable) and (not after.allocatable or after.memory_free is None))
        assert (after.idle and bool(after.allocations)) is False
        assert set(after.allocations) == {each.allocation for each in held if before.uuid in each.gpus}


@PATIENT
@given(reports, claims)
def test_whoever_holds_a_gpu_can_have_all_that_was_reserved(reported: Sequence[Gpu], held: Sequence[Claim]) -> None:
    """What is left, with all reservations on top, is never more than the GPU has, whatever processes say they use."""
    for after in effective(reported, held):
        reserved: dict[str, int] = {}
        for each in held:
            reserved[each.allocation] = max(reserved.get(each.allocation, 0), each.gpus.get(after.uuid, 0))
        assert after.memory_claimed == sum(reserved.values())
        if after.memory_free and after.memory_total is not None:
            assert after.memory_free + sum(reserved.values()) <= after.memory_total


@PATIENT
@given(reports, claims, claims)
def test_more_claims_never_leave_more(reported: Sequence[Gpu], some: Sequence[Claim], more: Sequence[Claim]) -> None:
    """For allocations of which nothing runs yet: any placement possible with them was possible without."""
    more = [replace(each, container=None, pids=frozenset(), allocation=f"new-{each.allocation}") for each in more]
    for few, many in zip(effective(reported, some), effective(reported, [*some, *more]), strict=True):
        assert (many.memory_free or 0) <= (few.memory_free or 0)
        assert few.idle or not many.idle
        assert few.idle or few.shareable or not many.shareable


@PATIENT
@given(reports, claims, st.randoms())
def test_the_order_of_claims_and_who_said_them_makes_no_difference(
    reported: Sequence[Gpu], held: list[Claim], random: Any
) -> None:
    shuffled = held + [each for each in held if random.random() < 0.5]
    random.shuffle(shuffled)
    assert effective(reported, shuffled) == effective(reported, held)


@PATIENT
@given(reports, claims, st.integers(0, 2), st.integers(0, 16 * GiB))
def test_an_allocation_using_what_it_reserved_changes_nothing(
    reported: Sequence[Gpu], held: Sequence[Claim], at: int, use: int
) -> None:
    """As an own process takes memory that was reserved, free memory falls and what is effective stays."""
    for before in reported[at : at + 1]:
        ours = claim("mine", 16 * GiB, before.uuid, pids=frozenset({1000}))
        if before.memory_total is None or before.memory_free is None or before.memory_free < use:
            continue
        if sum(process.memory or 0 for process in before.processes) > before.memory_total - before.memory_free:
            continue  # its memory and its processes were read at different moments
        running = (*before.processes, GpuProcess(pid=1000, memory=use))
        after = replace(before, memory_free=before.memory_free - use, processes=running, idle=False)
        if not before.idle and not before.processes:
            continue
        (first,), (second,) = effective([before], [*held, ours]), effective([after], [*held, ours])
        assert (first.memory_free, first.shareable) == (second.memory_free, second.shareable)

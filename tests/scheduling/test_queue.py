"""Those that wait for GPUs: their order, who may go before them, what they are told, and how they leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.fakes import GIB, node
from helpers.lab import Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.errors import ClaimLost, Forbidden, LaunchError, NeverFits, NoFit
from jupyter_gpufit.inventory import Inventory, Quota
from jupyter_gpufit.models import Allocation, EndReason, Node, Queued, Request, State


async def waits(lab: Lab, **wishes: Any) -> Allocation:
    """One that is asked for, and has to wait."""
    asked = await lab.request(**{"wait": "1h"} | wishes)
    assert asked.state is State.PENDING
    assert asked.queue is not None
    return asked


def standing(lab: Lab, asked: Allocation) -> Queued:
    queue = lab.scheduler.get(asked.id).queue
    assert queue is not None
    return queue


async def settled(lab: Lab) -> None:
    """Until nothing is left to be looked at."""
    await eventually(lambda: lab.scheduler._room is None and lab.scheduler._telling is None)


# --- the order


async def test_priority_comes_first_and_then_age() -> None:
    async with Lab(node("a", 1)) as lab:
        holder = await lab.running(name="holder")
        names = ("late", "old", "young", "urgent", "very-urgent")
        for name, priority in zip(names, (-1, 0, 0, 5, 100), strict=True):
            await waits(lab, name=name, priority=priority)
        await settled(lab)
        order = ["very-urgent", "urgent", "old", "young", "late"]
        places = {each.name: each.queue.position for each in lab.scheduler.allocations() if each.queue}
        assert places == {name: position for position, name in enumerate(order, 1)}
        ran = []
        while order:
            await lab.end(holder.id)
            holder = lab.scheduler.get(order.pop(0))
            await lab.until(holder.id, "running")
            ran.append(holder.name)
            assert [each.name for each in lab.scheduler.allocations() if each.state is State.RUNNING] == [holder.name]
        assert ran == ["very-urgent", "urgent", "old", "young", "late"]


async def test_one_that_comes_in_the_moment_of_a_release_does_not_go_first() -> None:
    async with Lab(node("a", 1)) as lab:
        holder = await lab.running()
        first = await waits(lab)
        gone = asyncio.Event()
        lab.scheduler.subscribe(lambda each: gone.set() if each.state is State.ENDED else None)
        await lab.scheduler.release(holder.id)
        await gone.wait()
        with pytest.raises(NoFit):
            await lab.request()
        assert lab.scheduler.get(first.id).node == "a"


async def test_a_fresh_one_of_higher_priority_does_go_first() -> None:
    async with Lab(node("a", 2)) as lab:
        await lab.running(gpus=1)
        await waits(lab, gpus=2)
        assert (await lab.request(gpus=1, priority=1)).node == "a"


# --- backfill


async def test_with_time_limits_only_what_ends_before_goes_first() -> None:
    """2 GPUs; one is held for an hour more, and the head needs both."""
    async with Lab(node("a", 2)) as lab:
        holder = await lab.running(time="1h", name="holder")
        head = await waits(lab, gpus=2)
        assert standing(lab, head).start == holder.expires
        with pytest.raises(NoFit) as refused:
            await lab.request(time="2h")
        assert "1 request waits before this one" in refused.value.message
        assert refused.value.details["before"] == 1
        with pytest.raises(NoFit):
            await lab.request()  # no limit: longer than any
        with pytest.raises(NoFit):
            await lab.request(time=3600)  # its start takes time, too
        assert (await lab.request(time="50m", name="short")).node == "a"
        assert standing(lab, head).start == holder.expires, "not a second later"
        assert lab.scheduler._ledger.entries[head.id].overtaken == 0


async def test_what_does_not_need_the_place_of_the_first_goes_first() -> None:
    """3 GPUs; the head needs two: once the holder is gone, one is left over."""
    async with Lab(node("a", 3)) as lab:
        await lab.running(gpus=2, time="1h")
        await waits(lab, gpus=2)
        assert (await lab.request()).node == "a"


async def test_a_second_one_does_not_take_what_the_first_left_over() -> None:
    async with Lab(node("a", 4)) as lab:
        await lab.running(gpus=2, time="1h")
        head = await waits(lab, gpus=3)
        assert (await lab.request()).node == "a"
        with pytest.raises(NoFit):
            await lab.request()
        assert standing(lab, head).start is not None


async def test_memory_counts_not_only_gpus() -> None:
    async with Lab(node("a", 1, memory=16 * GIB)) as lab:
        await lab.running(shared=True, memory="8GiB", time="1h")
        await waits(lab, shared=True, memory="12GiB")
        with pytest.raises(NoFit):
            await lab.request(shared=True, memory="6GiB")
        assert (await lab.request(shared=True, memory="4GiB")).node == "a"


async def test_it_goes_to_another_node_instead() -> None:
    """Selection prefers the fuller node a, where the head's place is; b will do."""
    async with Lab(node("a", 2), node("b", 3)) as lab:
        await lab.running(time="1h", node="a")
        await lab.running(gpus=1, time="2h", node="b")
        await waits(lab, gpus=2, node="a")
        there = await lab.request()
        assert there.node == "b"


async def test_a_node_that_the_first_can_never_use_is_free_for_all() -> None:
    async with Lab(node("a", 2), node("small", 1)) as lab:
        await lab.running(gpus=1, node="a")
        head = await waits(lab, gpus=2)
        assert (await lab.request(node="small")).node == "small"
        assert (lab.scheduler._ledger.entries[head.id].overtaken) == 0


async def test_a_node_that_does_not_answer_keeps_no_place() -> None:
    async with Lab(node("a", 2), node("b", 2)) as lab:
        await lab.running(gpus=1, node="a", time="1h")
        await lab.running(gpus=1, node="b", time="3h")
        head = await waits(lab, gpus=2)
        assert standing(lab, head).frees.endswith("on a ends")
        lab.cluster.set_trouble("a", "its engine does not answer")
        await eventually(lambda: standing(lab, head).frees.endswith("on b ends"))
        with pytest.raises(NoFit):
            await lab.request(time="4h")


async def test_without_time_limits_overtakes_are_bounded() -> None:
    async with Lab(node("a", 2), overtakes=3) as lab:
        holder = await lab.running()
        head = await waits(lab, gpus=2)
        for _ in range(3):
            other = await lab.running()
            await lab.end(other.id)
        with pytest.raises(NoFit, match="1 request waits before this one"):
            await lab.request()
        later = await waits(lab)
        assert standing(lab, later).position == 2
        assert "before this one" in standing(lab, later).missing
        await lab.end(holder.id)
        assert (await lab.until(head.id, "running")).gpus
        assert lab.scheduler.get(later.id).state is State.PENDING


async def test_nobody_starves_however_many_small_ones_keep_coming() -> None:
    async with Lab(node("a", 4), overtakes=5) as lab:
        small = [await lab.running() for _ in range(3)]
        head = await waits(lab, gpus=4)
        before = 0
        for _ in range(30):
            try:
                small.append(await lab.running())
                before += 1
            except NoFit:
                pass
            await lab.end(small.pop(0).id)
            if not small:
                break
        assert before == 5
        await lab.until(head.id, "running")


async def test_of_those_that_wait_a_later_one_that_delays_nobody_goes_first() -> None:
    async with Lab(node("a", 2), node("b", 1)) as lab:
        holder = await lab.running(gpus=1, node="a", time="1h")
        other = await lab.running(node="b")
        head = await waits(lab, gpus=2)
        await lab.running(node="a", time="10m")
        small = await waits(lab, gpus=1, name="small")
        await lab.end(other.id)
        assert (await lab.until(small.id, "running")).node == "b"
        assert standing(lab, head).position == standing(lab, head).of == 1
        assert standing(lab, head).start == holder.expires


async def test_what_another_scheduler_holds_ends_as_its_labels_say() -> None:
    async with Lab(node("a", 2)) as other, Lab(of=other) as lab:
        theirs = await other.running(owner="bob", time="1h")
        [container] = lab.engines["a"].containers.values()
        await eventually(lambda: "a" in lab.scheduler._fleet.seen())
        head = await waits(lab, gpus=2)
        assert standing(lab, head).start == container.claim.expires
        assert standing(lab, head).frees == "it can start when an allocation of 'bob' on a ends"
        with pytest.raises(NoFit):
            await lab.request(time="2h")
        assert (await lab.request(time="30m")).node == "a"
        await other.end(theirs.id)


async def test_the_dry_run_knows_who_waits() -> None:
    async with Lab(node("a", 2), overtakes=0) as lab:
        await lab.running()
        assert lab.scheduler.explain(Request()).node == "a"
        head = await waits(lab, gpus=2)
        refused = lab.scheduler.explain(Request())
        assert refused.node is None
        assert "waits before this one" in str(refused)
        assert lab.scheduler.explain(Request(priority=1)).node == "a"
        await lab.end(head.id)
        assert lab.scheduler.explain(Request()).node == "a"


# --- what is told


async def test_one_that_waits_is_told_where_it_stands_what_is_missing_and_what_helps() -> None:
    async with Lab(node("a", 2)) as lab:
        one = await lab.running(name="one")
        await lab.running(name="two")
        asked = await waits(lab, gpus=2, wait=600)
        queue = standing(lab, asked)
        assert (queue.position, queue.of, queue.until) == (1, 1, asked.created + 600)
        assert queue.missing == "No node has 2 GPUs now."
        assert queue.frees == "it can start when 'one' and 'two' on a end"
        assert queue.start is None
        assert asked.message == queue.missing
        assert asked.public()["queue"]["position"] == 1
        await lab.end(one.id)
        await eventually(lambda: standing(lab, asked).frees == "it can start when 'two' on a ends")
        second = await waits(lab, gpus=2)
        assert standing(lab, second).frees.endswith("on a ends, and those before it have started")
        await eventually(lambda: standing(lab, asked).of == 2)
        assert standing(lab, second).position == 2
        await lab.end(asked.id)
        await eventually(lambda: standing(lab, second).position == standing(lab, second).of == 1)
        assert lab.scheduler.get(asked.id).queue is None


async def test_somebody_elses_allocation_is_not_called_by_its_name() -> None:
    async with Lab(node("a", 1)) as lab:
        await lab.running(owner="you", name="secret-project")
        asked = await waits(lab)
        assert standing(lab, asked).frees == "it can start when an allocation of 'you' on a ends"


async def test_what_no_end_of_an_allocation_gives_is_said() -> None:
    busy = replace(node("a", 1), gpus=tuple(replace(gpu, idle=False) for gpu in node("a", 1).gpus))
    async with Lab(busy) as lab:
        asked = await waits(lab)
        assert standing(lab, asked).frees.startswith("even when all allocations end it does not fit")


async def test_it_is_told_only_when_something_changed() -> None:
    async with Lab(node("a", 1), node("b", 1)) as lab:
        await lab.running(name="holder", time="1h", node="a")
        asked = await waits(lab, node="a")
        await settled(lab)
        version = lab.scheduler.get(asked.id).version
        for memory in (10, 11, 12):
            lab.cluster.put(node("b", 1, memory=memory * GIB))
            await settled(lab)
        assert lab.scheduler.get(asked.id).version == version


# --- leaving


async def test_a_fault_of_ours_in_the_selection_for_one_does_not_keep_the_others_waiting() -> None:
    async with Lab(node("a", 1)) as lab:
        holder = await lab.running()
        wrong, other = await waits(lab, name="wrong"), await waits(lab)
        await settled(lab)
        choose = lab.scheduler._choose

        def broken(entry, *more):
            return choose(entry, *more) if entry.id != wrong.id else 1 // 0

        lab.scheduler._choose = broken
        await lab.end(holder.id)
        ended = await lab.until(wrong.id, "ended")
        assert (ended.reason, ended.message) == (EndReason.REJECTED, "selection failed; the server's log says why")
        await lab.until(other.id, "running")


async def test_it_is_refused_when_it_has_waited_for_as_long_as_it_said() -> None:
    async with Lab(node("a", 1)) as lab:
        await lab.running(name="holder")
        asked = await waits(lab, wait=0.3)
        ended = await lab.until(asked.id, "ended")
        assert ended.reason is EndReason.REJECTED
        assert ended.message == "waited 0 s; No node has 1 GPU now."
        assert ended.queue is None


async def test_the_kernel_that_waits_in_it_is_told_so() -> None:
    async with Lab(node("a", 1)) as lab:
        await lab.running(name="holder")
        asked = await lab.request(kernel_id="foreign", wait=0.3)
        with pytest.raises(NoFit, match="waited 0 s; No node has 1 GPU now"):
            await lab.scheduler.prepared(asked.id)


async def test_it_is_cancelled_while_it_tries_again_after_a_lost_claim() -> None:
    async with Lab(node("a", 1), pause=lambda attempt: 60.0) as lab:
        lab.script.fail("prepare:made", ClaimLost("another scheduler was faster"))
        asked = await lab.request(wait="1h")
        entry = lab.scheduler._ledger.entries[asked.id]
        await eventually(lambda: entry.allocation.node is None)
        assert not entry.waiting
        await lab.scheduler.release(asked.id)
        assert (await lab.until(asked.id, "ended")).reason is EndReason.CANCELLED
        assert lab.held("a") == set()


async def test_cancelling_the_first_lets_the_next_go() -> None:
    async with Lab(node("a", 2)) as lab:
        await lab.running(time="1h")
        head = await waits(lab, gpus=2)
        later = await waits(lab, time="2h")
        assert standing(lab, later).missing.startswith("1 GPU would fit now, on a, but 1 request waits before")
        ended = await lab.scheduler.release(head.id)
        assert (ended.state, ended.reason) == (State.ENDED, EndReason.CANCELLED)
        await lab.until(later.id, "running")


async def test_one_that_lost_its_claim_keeps_its_place() -> None:
    """Another scheduler is faster, and holds the GPU from then on: it waits, as old as it is."""
    free = node("a", 1)
    async with Lab(free) as lab:
        taken = replace(free, gpus=tuple(replace(gpu, idle=False) for gpu in free.gpus))
        lab.script.call("prepare:made", lambda: lab.cluster.put(taken))
        lab.script.fail("prepare:made", ClaimLost("another scheduler was faster"))
        asked = await lab.request(wait="1h")
        later = await waits(lab)
        await eventually(lambda: lab.scheduler.get(asked.id).queue is not None)
        await settled(lab)
        assert (standing(lab, asked).position, standing(lab, later).position) == (1, 2)
        lab.cluster.put(free)
        await lab.until(asked.id, "running")
        assert lab.scheduler.get(asked.id).created == asked.created
        assert lab.scheduler.get(later.id).state is State.PENDING


# --- quotas


def allow(lab: Lab, **limits: Any) -> None:
    lab.cluster.inventory = Inventory(nodes=(), all_quota=Quota(**limits))


async def test_a_quota_of_gpus() -> None:
    async with Lab(node("a", 8)) as lab:
        allow(lab, gpus=3)
        await lab.running(gpus=2, name="mine")
        with pytest.raises(Forbidden) as refused:
            await lab.request(gpus=2)
        assert refused.value.message == (
            "you hold 2 GPUs ('mine'), and your quota is 3 GPUs at once: 2 GPUs more would be too many; "
            "release what you do not need, or ask with --wait 10m (`wait`) to wait until you hold less"
        )
        with pytest.raises(Forbidden, match="4 GPUs are asked, and your quota is 3 GPUs at once"):
            await lab.request(gpus=4, wait="10m")
        with pytest.raises(NeverFits):  # no use waiting for it
            await lab.request(gpus=2, memory="1TiB", wait="10m")
        assert (await lab.request(gpus=1)).node == "a"
        assert (await lab.request(gpus=3, owner="you")).node == "a", "everybody has their own"
        assert len(lab.scheduler.allocations(ended=True)) == 3, "of what is refused nothing is left"


async def test_a_quota_of_allocations() -> None:
    async with Lab(node("a", 8)) as lab:
        allow(lab, allocations=2)
        one = await lab.running(name="one")
        await lab.running(name="two")
        with pytest.raises(Forbidden, match=r"you hold 2 \('one', 'two'\), and your quota is 2 allocations at once"):
            await lab.request()
        await lab.end(one.id)
        await lab.running()


async def test_a_quota_of_time_wait_and_priority() -> None:
    async with Lab(node("a", 8)) as lab:
        allow(lab, time=7200.0, wait=600.0, priority=2)
        for wishes, says in (
            ({"time": "3h"}, "--time 3 h is asked, and your quota is 2 h at most"),
            ({"wait": "1h"}, "--wait 1 h is asked, and your quota is 10 m at most"),
            ({"priority": 3}, "priority 3 is asked, and your quota is 2 at most"),
        ):
            with pytest.raises(Forbidden, match=says):
                await lab.request(**wishes)  # type: ignore[arg-type]
        granted = await lab.running(wait="10m", priority=2)
        assert granted.request.time == 7200, "nobody holds anything for longer by not saying how long"
        assert granted.expires is not None


async def test_a_start_that_fails_gives_its_quota_back() -> None:
    async with Lab(node("a", 8)) as lab:
        allow(lab, gpus=1, allocations=1)
        for _ in range(3):
            lab.script.fail("start:running", LaunchError("it failed"))
            asked = await lab.request()
            with pytest.raises(Forbidden):
                await lab.request()
            assert (await lab.until(asked.id, "ended")).reason is EndReason.FAILED
        await lab.running()


async def test_what_another_scheduler_holds_for_them_counts() -> None:
    async with Lab(node("a", 8)) as other, Lab(of=other) as lab:
        allow(lab, gpus=2)
        theirs = [await other.running(owner=owner, gpus=gpus) for owner, gpus in (("me", 2), ("you", 3))]
        await eventually(lambda: len(lab.scheduler._fleet.seen().get("a", ())) == 2)
        with pytest.raises(Forbidden, match=r"you hold 2 GPUs \(1 of another server\)"):
            await lab.request()
        for each in theirs:
            await other.end(each.id)
        await lab.running()


async def test_over_quota_it_waits_and_holds_nobody_up() -> None:
    async with Lab(node("a", 4)) as lab:
        allow(lab, gpus=2)
        mine = await lab.running(gpus=2, name="mine")
        asked = await waits(lab, gpus=2)
        assert standing(lab, asked).missing.startswith("you hold 2 GPUs ('mine')")
        assert standing(lab, asked).frees == "it can start as soon as you hold less"
        yours = await lab.running(owner="you", gpus=2)
        assert yours.node == "a"
        await lab.end(mine.id)
        await lab.until(asked.id, "running")


async def test_two_that_wait_for_quota_get_it_one_after_the_other() -> None:
    async with Lab(node("a", 4)) as lab:
        allow(lab, gpus=1)
        mine = await lab.running()
        first, second = await waits(lab), await waits(lab)
        await lab.end(mine.id)
        await lab.until(first.id, "running")
        await settled(lab)
        assert lab.scheduler.get(second.id).state is State.PENDING
        await lab.end(first.id)
        await lab.until(second.id, "running")


async def test_a_quota_that_is_made_smaller_ends_what_can_no_longer_be_had() -> None:
    async with Lab(node("a", 4)) as lab:
        await lab.running(gpus=4)
        asked = await waits(lab, gpus=4)
        allow(lab, gpus=2)
        lab.scheduler._make_room()
        ended = await lab.until(asked.id, "ended")
        assert ended.reason is EndReason.REJECTED
        assert "your quota is 2 GPUs at once" in ended.message


async def test_policy_claim_mounts_no_more_than_the_quota() -> None:
    async with Lab(node("a", 4), node("b", 2), policy="claim") as lab:
        allow(lab, gpus=3)
        blocker = await lab.request(owner="you", node="b")
        with pytest.raises(NoFit) as refused:
            await lab.request()
        assert "your quota is 3 GPUs at once" in str(refused.value.details["stages"])
        await lab.end(blocker.id)
        assert len((await lab.request()).gpus) == 2


async def test_what_never_fits_does_not_wait_and_delays_nobody() -> None:
    async with Lab(node("a", 2)) as lab:
        with pytest.raises(NeverFits):
            await lab.request(gpus=3, wait="1h")
        await lab.running()
        big = await waits(lab, gpus=2)
        lab.cluster.put(node("a", 1))
        await settled(lab)
        assert standing(lab, big).missing.startswith("No node of this cluster could ever give 2 GPUs")
        lab.cluster.put(node("b", 1))
        await lab.running(node="b")


# --- many that wait


async def test_those_that_ask_for_the_same_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Lab(node("a", 2), node("b", 1)) as lab:
        holder = await lab.running(gpus=2)
        await lab.running(node="b")
        await settled(lab)
        asked: list[str | None] = []
        select = lab.scheduler._fleet.index.select

        def counted(request: Any, *others: Any) -> Any:
            asked.append(request.describe())
            return select(request, *others)

        monkeypatch.setattr(lab.scheduler._fleet.index, "select", counted)
        alike = [await waits(lab, gpus=2, name=f"alike-{n}", time=f"{n + 1}h") for n in range(10)]
        other = await waits(lab, gpus=1, node="b")
        assert asked == ["2 GPUs", "1 GPU"], "nothing has changed in between"
        await settled(lab)
        assert len(asked) == 2, "nor by their waiting"
        assert [standing(lab, each).position for each in (*alike, other)] == list(range(1, 12))
        assert standing(lab, alike[0]).frees == f"it can start when {holder.name!r} on a ends"
        assert standing(lab, alike[9]).frees.endswith("and those before it have started")
        await lab.end(holder.id)
        await lab.until(alike[0].id, "running")
        await settled(lab)
        assert standing(lab, alike[1]).position == 1
        assert standing(lab, alike[1]).frees == "it can start when 'alike-0' on a ends"


async def test_gauges_are_no_reason_to_look_at_those_that_wait() -> None:
    def holding(load: int, free: int) -> Node:
        held, idle = node("a", 2).gpus
        held = replace(held, idle=False, utilization=load, memory_free=free)
        return replace(node("a", 2), gpus=(held, idle))

    async with Lab(holding(3, GIB)) as lab:
        asked = await waits(lab, gpus=2)
        await settled(lab)
        before = lab.scheduler._changes
        lab.cluster.put(holding(97, 2 * GIB))
        assert lab.scheduler._changes == before
        assert lab.scheduler._room is not None, "but it may be told something else, some time"
        lab.cluster.put(node("a", 2))
        assert lab.scheduler._changes > before
        await lab.until(asked.id, "running")

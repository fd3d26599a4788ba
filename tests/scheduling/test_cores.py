"""Cores and RAM that allocations asked for: they count from the moment they are reserved until they are given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import GIB, node
from helpers.lab import Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.errors import GpufitError, NeverFits, NoFit
from jupyter_gpufit.models import Allocation, Claim, EndReason, Node, Request, State
from jupyter_gpufit.scheduling.backfill import Guard, Outlook, frees
from jupyter_gpufit.scheduling.fleet import overlay
from jupyter_gpufit.scheduling.policies import find


def large(name: str = "a", gpus: int = 4, **more: Any) -> Node:
    """A node with more GPUs than cores for them: 8 cores, 64 GiB."""
    return node(name, gpus, **{"cpus": 8.0, "ram": 64 * GIB} | more)


def why(error: GpufitError, name: str = "a") -> str:
    """What selection says of the node."""
    [said] = [stage["rejected"][name] for stage in error.details["stages"] if name in stage["rejected"]]
    return said


async def waits(lab: Lab, **wishes: Any) -> Allocation:
    asked = await lab.request(**{"wait": "1h"} | wishes)
    assert (asked.state, asked.queue is not None) == (State.PENDING, True)
    return asked


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"cpus": 6}, {"cpus": 2.5}, "2 of its 8 cores free, 2.5 asked"),
        ({"ram": "40GiB"}, {"ram": "25GiB"}, "24 GiB of its 64 GiB of RAM free, 25 GiB asked"),
    ],
)
async def test_a_reservation_counts_from_the_moment_it_is_made(first: Any, second: Any, said: str) -> None:
    async with Lab(large()) as lab:
        gate = lab.script.hold("prepare")
        asked = await lab.request(**first)
        with pytest.raises(NoFit) as refused:
            await lab.request(**second)
        assert said in why(refused.value)
        await lab.request()  # which asks for none in particular
        gate.open()
        await lab.until(asked.id, "running")
        [shown] = lab.cluster.nodes()
        left = (8 - first.get("cpus", 0), 24 * GIB if "ram" in first else 64 * GIB)
        assert (shown.cpus_free, shown.ram_free) == left, "once, though the ledger tells of it, and the engine"
        with pytest.raises(NoFit):
            await lab.request(**second)
        await lab.end(asked.id)
        await lab.running(**second)


async def test_its_launcher_is_told_and_its_claim_says_it() -> None:
    async with Lab(large()) as lab:
        asked = await lab.running(cpus=2.5, ram="3GiB")
        await lab.running()
        launches = [launch for launcher in lab.launchers for launch in launcher.launches]
        assert [(launch.cpus, launch.ram) for launch in launches] == [(2.5, 3 * GIB), (None, None)]
        claims = {claim.allocation: (claim.cpus, claim.ram) for claim in lab.cluster.claims("a")}
        assert claims.pop(asked.id) == (2.5, 3 * GIB)
        assert list(claims.values()) == [(0, 0)]


async def test_one_that_waits_for_cores_alone_is_told_for_which_and_gets_them() -> None:
    async with Lab(large()) as lab:
        holder = await lab.running(name="holder", cpus=6, time="2h")
        await lab.running(name="other", cpus=1)
        waiting = await waits(lab, cpus=4)
        assert waiting.queue is not None
        assert waiting.queue.missing == "No node has 1 GPU, 4 CPUs now."
        assert waiting.queue.frees == "it can start when 'holder' on a ends"
        assert waiting.queue.start == lab.scheduler.get(holder.id).expires
        await lab.end(holder.id)
        await lab.until(waiting.id, "running")


async def test_what_would_delay_it_does_not_go_before_it() -> None:
    async with Lab(large()) as lab:
        await lab.running(cpus=6, time="1h")
        waiting = await waits(lab, cpus=7)
        with pytest.raises(NoFit, match="1 request waits before this one"):
            await lab.request(cpus=2)  # for ever, and then there are 6
        await lab.running(cpus=1)
        await lab.running(cpus=1, time="10m")
        await lab.running()
        assert lab.scheduler.get(waiting.id).state is State.PENDING


async def test_cores_that_another_scheduler_gives_back_wake_it() -> None:
    async with Lab(large()) as one, Lab(of=one) as other:
        theirs = await other.running(name="theirs", owner="ben", cpus=5)
        with pytest.raises(NoFit):
            await one.request(cpus=4)
        waiting = await waits(one, cpus=4)
        assert waiting.queue is not None
        assert waiting.queue.frees == "it can start when an allocation of 'ben' on a ends"
        await other.end(theirs.id)
        await one.until(waiting.id, "running")


@pytest.mark.parametrize("patient", [False, True])
async def test_of_two_schedulers_at_once_one_is_later(patient: bool) -> None:
    """Both reserve, each another GPU; the one that sees at the engine that the cores are not enough asks again."""
    there = large(gpus=2)
    small, big = there.gpus
    there = replace(there, gpus=(small, replace(big, memory_total=32 * GIB, memory_free=32 * GIB)))
    async with Lab(there) as one, Lab(of=one) as other:
        one.engines["a"].machine = (8.0, 64 * GIB)
        gate = one.script.hold("prepare")
        first = await one.request(cpus=5, **({"wait": "1h"} if patient else {}))
        await gate.arrived.wait()
        second = await other.running(memory="20GiB", cpus=5)
        assert {*first.gpus, *second.gpus} == {"GPU-a-0", "GPU-a-1"}
        gate.open()
        await eventually(lambda: "5 CPUs now" in one.scheduler.get(first.id).message)
        if not patient:
            ended = await one.until(first.id, "ended")
            assert ended.reason is EndReason.REJECTED
            assert f"5 of its 8 cores are held by allocation {second.id} of me, 5 asked" in ended.message
        await other.end(second.id)
        if patient:
            await one.until(first.id, "running")


async def test_the_count_outlives_the_server(tmp_path: Path) -> None:
    dead = Lab(large(), store=tmp_path)
    await dead.__aenter__()
    kept = await dead.running(cpus=6, ram="60GiB")
    await dead.kill()
    async with Lab(of=dead, store=tmp_path) as lab:
        [shown] = lab.cluster.nodes()
        assert (shown.cpus_free, shown.ram_free) == (2, 4 * GIB)
        with pytest.raises(NoFit):
            await lab.request(cpus=3)
        await lab.until(kept.id, "running")
        await lab.end(kept.id)
        await lab.running(cpus=3)


async def test_a_machine_of_which_nothing_is_known_is_waited_for() -> None:
    async with Lab(node("a", 2)) as lab:
        await lab.running()  # as long as none are asked for
        with pytest.raises(NoFit) as refused:
            await lab.request(cpus=1)
        assert "how many cores it has is not known (yet), 1 asked" in why(refused.value)
        waiting = await waits(lab, cpus=1, ram="1GiB")
        assert waiting.queue is not None
        assert "the size of its machine is not known" in waiting.queue.frees
        await eventually(lambda: lab.launchers[0].on_host is not None)
        assert lab.launchers[0].on_host is not None
        lab.launchers[0].on_host(4.0, 8 * GIB)
        await lab.until(waiting.id, "running")
        with pytest.raises(NeverFits):
            await lab.request(cpus=5)


async def test_a_limit_that_is_lowered_counts_at_once_and_leaves_alone_what_runs() -> None:
    async with Lab(large()) as lab:
        running = await lab.running(cpus=6)
        waiting = await waits(lab, cpus=4)
        lab.cluster.put(large(cpus_limit=2.0))
        with pytest.raises(NeverFits) as refused:
            await lab.request(cpus=4)
        assert "it gives 2 cores at most, 4 asked" in why(refused.value)

        def told() -> str:
            queue = lab.scheduler.get(waiting.id).queue
            return "" if queue is None else queue.frees

        await eventually(lambda: told().startswith("the cluster has become smaller since it was asked for: "))
        assert lab.scheduler.get(running.id).state is State.RUNNING
        lab.cluster.put(large())
        await eventually(lambda: told() == f"it can start when {running.name!r} on a ends")
        await lab.end(running.id)
        await lab.until(waiting.id, "running")


async def test_a_launcher_that_was_replaced_says_nothing_more_of_the_machine() -> None:
    async with Lab(node("a")) as lab:
        await eventually(lambda: bool(lab.launchers) and lab.launchers[0].on_host is not None)
        old = lab.launchers[0].on_host
        assert old is not None
        old(4.0, None)
        assert lab.cluster.nodes()[0].cpus == 4
        spec = lab.cluster.spec("a")
        lab.cluster.put(node("a"), type(spec)(name="a", docker="tcp://elsewhere:2375", insecure=True))
        assert lab.cluster.nodes()[0].cpus is None, "it may be another machine"
        old(4.0, None)
        assert lab.cluster.nodes()[0].cpus is None


# --- the parts


def held(allocation: str, cpus: float, gpu: str = "GPU-a-0") -> Claim:
    return Claim(allocation=allocation, scheduler="s", gpus={gpu: 0}, cpus=cpus)


def test_an_overlay_counts_each_allocation_once() -> None:
    mine, theirs = held("mine", 3), held("theirs", 2)
    for shown in (8.0, 6.0, 5.0, 3.0):  # none of them, theirs, mine, both
        seen = overlay(large(cpus_free=shown), [mine], [theirs, mine])
        assert seen.cpus_free == min(shown, 3)
    assert overlay(large(cpus_free=8.0), [held("mine", 9)]).cpus_free == 0
    assert overlay(large(cpus=None, cpus_free=None), [mine]).cpus_free is None


def test_one_whose_gpu_is_not_reported_any_more_still_holds_its_cores() -> None:
    there = large(gpus=2, cpus_free=2.0)
    view = Outlook({"a": there}, {"a": [held("lost", 6, "GPU-gone")]}, {"lost": 1060.0}, 1000.0, find("best-fit"))
    asked = Request(gpus=1, cpus=4)
    assert Guard(view, asked, {}).start == 1060
    found = frees(view, asked, {})
    assert found is not None
    assert found.after == ("lost",)
    assert Guard(view, Request(gpus=1), {}).start == 1000

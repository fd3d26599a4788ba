"""The scheduler over a fake engine, kernel host and cluster: what people and provisioners see."""

from __future__ import annotations

import asyncio

import pytest
from helpers.fakes import GIB, POINTS_TO_GONE, POINTS_TO_RUNNING, node
from helpers.lab import QUICK, Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.errors import (
    Cancelled,
    Conflict,
    ImageRefused,
    InvalidValue,
    LaunchError,
    NeverFits,
    NodeUnreachable,
    NoFit,
    NotFound,
    Unavailable,
)
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.models import Allocation, EndReason, Request, State

# --- request, run, release


async def test_a_request_is_answered_with_its_placement_and_runs_soon() -> None:
    async with Lab(node("a", 2), node("b", 4)) as lab:
        gate = lab.script.hold("prepare")
        allocation = await lab.request(gpus=2, memory="8GiB", name="train")
        assert (allocation.state, allocation.node, allocation.name) == (State.STARTING, "a", "train")
        assert allocation.gpus == ("GPU-a-0", "GPU-a-1")
        assert lab.held("a") == {"GPU-a-0", "GPU-a-1"}
        await gate.arrived.wait()
        gate.open()
        running = await lab.until(allocation.id, "running")
        assert running.kernel_id in lab.host.kernels
        [box] = lab.engines["a"].containers.values()
        assert box.state == "running"
        assert box.launch.gpus == {"GPU-a-0": 8 * GIB, "GPU-a-1": 8 * GIB}
        assert box.launch.cards == {"GPU-a-0": "GPU-a-0", "GPU-a-1": "GPU-a-1"}
        assert box.launch.totals == {"GPU-a-0": 16 * GIB, "GPU-a-1": 16 * GIB}
        assert box.launch.scheduler == lab.scheduler.id

        released = await lab.scheduler.release(allocation.id)
        assert released.state is State.STOPPING
        ended = await lab.until(allocation.id, "ended")
        assert ended.reason is EndReason.RELEASED
        assert lab.engines["a"].containers == {}
        assert lab.held("a") == set()
        assert lab.host.kernels == {}
        assert (await lab.scheduler.release(allocation.id)).state is State.ENDED


async def test_the_points_of_a_life_are_passed_in_their_order() -> None:
    """So that the tests that break it at each of them break it everywhere."""
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        assert tuple(lab.script.seen) == POINTS_TO_RUNNING
        lab.script.seen.clear()
        await lab.end(allocation.id)
        assert tuple(point for point in lab.script.seen if point != "logs") == POINTS_TO_GONE


async def test_requests_at_once_never_get_the_same_gpu() -> None:
    async with Lab(node("a", 4), node("b", 3)) as lab:
        answers = await asyncio.gather(*(lab.request(owner=f"o{i}") for i in range(20)), return_exceptions=True)
        granted = [answer for answer in answers if isinstance(answer, Allocation)]
        refused = [answer for answer in answers if not isinstance(answer, Allocation)]
        assert len({answer.gpus for answer in granted}) == len(granted) == 7
        assert all(type(answer) is NoFit for answer in refused)
        for answer in granted:
            await lab.until(answer.id, "running")


async def test_shared_requests_join_where_memory_fits() -> None:
    async with Lab(node("a", 1, memory=16 * GIB)) as lab:
        first = await lab.running(memory="6GiB", shared=True)
        second = await lab.running(memory="6GiB", shared=True)
        assert first.gpus == second.gpus
        with pytest.raises(NoFit):
            await lab.request(memory="6GiB", shared=True)
        with pytest.raises(NoFit):
            await lab.request(memory="1GiB")


async def test_a_refusal_says_why_and_leaves_nothing() -> None:
    async with Lab(node("a", 2), node("b", 1)) as lab:
        await lab.running(gpus=2)
        with pytest.raises(NoFit) as refused:
            await lab.request(gpus=2)
        assert {why for stage in refused.value.details["stages"] for why in stage["rejected"]} == {"a", "b"}
        with pytest.raises(NeverFits):
            await lab.request(gpus=5)
        assert len(lab.scheduler.allocations(ended=True)) == 1
        assert lab.scheduler.explain(Request(gpus=2)).node is None


async def test_the_policy_is_the_inventorys_unless_configured() -> None:
    async with Lab(node("a", 4)) as lab:
        lab.cluster.inventory = Inventory(nodes=(), policy="claim")
        assert len((await lab.request(gpus=2)).gpus) == 4
    async with Lab(node("a", 4), policy="best-fit") as lab:
        lab.cluster.inventory = Inventory(nodes=(), policy="claim")
        assert len((await lab.request(gpus=2)).gpus) == 2
    async with Lab(node("a"), policy="nonsense") as lab:
        with pytest.raises(InvalidValue, match="nonsense"):
            await lab.request()


# --- names, lookups, changes


async def test_names_are_unique_among_what_one_holds() -> None:
    async with Lab(node("a", 8)) as lab:
        first = await lab.running(name="train")
        with pytest.raises(Conflict, match="'train' already") as conflict:
            await lab.request(name="train")
        assert conflict.value.details["allocation"] == first.id
        other = await lab.running(owner="you", name="train")
        assert lab.scheduler.get("train", "me").id == first.id
        assert lab.scheduler.get("train", "you").id == other.id
        assert lab.scheduler.get(first.id).id == first.id
        with pytest.raises(NotFound, match="train"):
            lab.scheduler.get(first.id, "you")
        await lab.scheduler.release(first.id)
        again = await lab.request(name="train")  # as soon as the one before is ending
        assert lab.scheduler.get("train", "me").id == again.id
        await lab.until(first.id, "ended")
        await lab.end(again.id)
        assert lab.scheduler.get("train", "me").id == again.id, "the latest, when none is live"


async def test_made_up_names_are_readable_and_unique() -> None:
    async with Lab(node("a", 8)) as lab:
        made = [await lab.request() for _ in range(8)]
        assert len({each.name for each in made}) == 8
        assert all(each.name.replace("-", "").isalnum() for each in made)


async def test_allocations_are_listed_by_owner_and_the_ended_ones_on_demand() -> None:
    async with Lab(node("a", 4), keep_ended=2) as lab:
        mine = [await lab.running() for _ in range(2)]
        yours = await lab.running(owner="you")
        assert [each.id for each in lab.scheduler.allocations("me")] == [each.id for each in mine]
        assert len(lab.scheduler.allocations()) == 3
        for each in (*mine, yours):
            await lab.end(each.id)
        assert lab.scheduler.allocations() == []
        assert [each.id for each in lab.scheduler.allocations(ended=True)] == [mine[1].id, yours.id]
        with pytest.raises(NotFound):
            lab.scheduler.get(mine[0].id)
        with pytest.raises(NotFound):
            lab.scheduler.get(mine[0].name)


async def test_changed_waits_for_a_greater_version_and_no_longer_than_asked() -> None:
    async with Lab(node("a")) as lab:
        gate = lab.script.hold("prepare")
        allocation = await lab.request()
        assert await lab.scheduler.changed(allocation.id, allocation.version, 0.05) == allocation
        assert await lab.scheduler.changed(allocation.id, allocation.version - 1, 10) == allocation
        waiting = asyncio.create_task(lab.scheduler.changed(allocation.id, allocation.version, 10))
        await asyncio.sleep(0)
        gate.open()
        assert (await waiting).version > allocation.version
        with pytest.raises(NotFound):
            await lab.scheduler.changed("nobody", 0, 1)


async def test_subscribers_get_every_change_in_order_and_do_not_harm_each_other() -> None:
    async with Lab(node("a")) as lab:
        seen: list[Allocation] = []

        def broken(_: Allocation) -> None:
            raise RuntimeError("a subscriber's own fault")

        lab.scheduler.subscribe(broken)
        end = lab.scheduler.subscribe(seen.append)
        allocation = await lab.running()
        await lab.end(allocation.id)
        await asyncio.sleep(0)
        versions = [each.version for each in seen]
        assert versions == list(range(1, len(versions) + 1))
        assert [state for i, each in enumerate(seen) if (state := each.state) != (i and seen[i - 1].state)] == [
            State.STARTING,
            State.RUNNING,
            State.STOPPING,
            State.ENDED,
        ]
        end()
        await lab.running()
        assert len(seen) == len(versions)


async def test_logs_are_kept_after_the_end_up_to_a_limit() -> None:
    async with Lab(node("a"), keep_logs=40) as lab:
        allocation = await lab.running()
        [box] = lab.engines["a"].containers.values()
        box.logs = "one\ntwo\n"
        assert (await lab.scheduler.logs(allocation.id)).text == "one\ntwo\n"
        assert (await lab.scheduler.logs(allocation.id, 1)).text == "two\n"
        box.logs = "x" * 100 + "\nlast\n"
        await lab.end(allocation.id)
        assert (await lab.scheduler.logs(allocation.id, 1)).text == "last\n"
        assert len((await lab.scheduler.logs(allocation.id)).text) == 40
        with pytest.raises(NotFound):
            await lab.scheduler.logs("nobody")


# --- images


def spec(name: str, image: str = "base:1", images: tuple[str, ...] = (), **more: object) -> NodeSpec:
    return NodeSpec(name=name, docker="unix:///nowhere", image=image, images=images, **more)  # type: ignore[arg-type]


async def test_a_node_that_does_not_allow_the_image_is_no_candidate() -> None:
    specs = (spec("a"), spec("b", images=("lab/*",)), NodeSpec(name="c"))
    async with Lab(node("a", 1), node("b", 4), node("c", 1, launcher="process"), specs=specs) as lab:
        allocation = await lab.running(image="lab/torch:2")
        assert allocation.node == "b"
        assert lab.launchers[1].launches[0].image == "lab/torch:2"
        stage = lab.scheduler.explain(Request(image="lab/torch:2")).stages[0]
        assert "base:1" in stage.rejected["a"]
        assert "process" in stage.rejected["c"]
        assert (await lab.running(image="base:1")).node == "a"
        with pytest.raises(ImageRefused, match="'evil:1'"):
            await lab.request(image="evil:1")
        lab.cluster.put(node("a", 1), spec("a", images=("evil:*",)))
        assert lab.scheduler.explain(Request(image="evil:1")).excluded.keys() == {"b", "c"}


# --- start fails


@pytest.mark.parametrize("point", POINTS_TO_RUNNING)
@pytest.mark.parametrize(
    "error", [LaunchError("no space left", logs="some\nlines\n"), RuntimeError("a bug"), NodeUnreachable("no answer")]
)
async def test_a_failure_at_any_point_of_a_start_is_undone_and_said(point: str, error: Exception) -> None:
    async with Lab(node("a")) as lab:
        lab.script.fail(point, *[error] * 9)
        subscribed: list[Allocation] = []
        lab.scheduler.subscribe(subscribed.append)
        allocation = await lab.request()
        ended = await lab.until(allocation.id, "ended")
        assert ended.reason in (EndReason.FAILED, EndReason.REJECTED)
        assert str(error) in ended.message
        assert lab.engines["a"].containers == {}
        assert lab.held("a") == set()
        await asyncio.sleep(0)
        assert subscribed[-1] == ended
        lab.script._failures.clear()
        await lab.running()  # its GPUs are free again


async def test_a_start_on_a_node_that_does_not_answer_goes_elsewhere() -> None:
    async with Lab(node("a", 1), node("b", 2)) as lab:
        lab.engines["a"].reachable = False
        allocation = await lab.running()
        assert allocation.node == "b"
        lab.engines["a"].reachable = True


async def test_a_unit_that_dies_while_starting_says_its_last_words() -> None:
    async with Lab(node("a")) as lab:
        gate = lab.script.hold("kernel:launched")
        allocation = await lab.request()
        await gate.arrived.wait()
        [unit] = lab.engines["a"].containers
        lab.engines["a"].crash(unit, sentence="it ended with exit code 1", logs="no module named torch\n")
        ended = await lab.until(allocation.id, "ended")
        assert ended.message.startswith("it ended with exit code 1; its last lines were:\n")
        assert ended.message.endswith("no module named torch")
        assert "no module named torch" in (await lab.scheduler.logs(allocation.id)).text
        assert lab.scheduler.exit_code(allocation.id) == 1
        assert lab.scheduler.describe_exit(allocation.id).startswith("it ended with exit code 1")


# --- release, close and cancellation at every point


@pytest.mark.parametrize("point", POINTS_TO_RUNNING)
async def test_release_at_any_point_of_a_start_undoes_it(point: str) -> None:
    async with Lab(node("a")) as lab:
        gate = lab.script.hold(point)
        allocation = await lab.request()
        await gate.arrived.wait()
        assert (await lab.scheduler.release(allocation.id)).state is State.STOPPING
        ended = await lab.until(allocation.id, "ended")
        assert ended.reason is EndReason.CANCELLED
        assert lab.engines["a"].containers == {}
        assert lab.held("a") == set()
        await lab.running()


@pytest.mark.parametrize("point", POINTS_TO_GONE)
async def test_a_failure_at_any_point_of_a_release_is_tried_again(point: str) -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        lab.script.fail(point, NodeUnreachable("no answer"), RuntimeError("a bug"))
        assert (await lab.end(allocation.id)).reason is EndReason.RELEASED
        assert lab.engines["a"].containers == {}
        lab.host.kernels.clear()  # what a host does with a kernel that it fails to stop is its own affair


@pytest.mark.parametrize("point", [*POINTS_TO_RUNNING, *POINTS_TO_GONE])
async def test_closing_at_any_point_leaves_nothing(point: str) -> None:
    async with Lab(node("a"), stop_within=0.3) as lab:
        gate = lab.script.hold(point)
        allocation = await lab.request()
        if point in POINTS_TO_GONE:
            await lab.until(allocation.id, "running")
            await lab.scheduler.release(allocation.id)
        await gate.arrived.wait()
        asyncio.get_running_loop().call_later(0.05, gate.open)
        await lab.scheduler.close()
        assert lab.engines["a"].containers == {}
    with pytest.raises(Unavailable, match="not open"):
        await lab.request()


async def test_closing_releases_what_runs_or_leaves_it() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        await lab.scheduler.close()
        assert lab.scheduler.get(allocation.id).message == "the Jupyter server was stopped"
    lab = Lab(node("a"))
    async with lab:
        kept = await lab.running()
        gate = lab.script.hold("prepare:made")
        await lab.request()
        await gate.arrived.wait()
        await lab.scheduler.close(release=False)
        [box] = lab.engines["a"].containers.values()
        assert box.claim.allocation == kept.id
        lab.engines["a"].containers.clear()
        lab.host.kernels.clear()
        lab.cluster.set_claims("ledger", "a", ())


async def test_closing_does_not_wait_for_ever_for_a_node_that_is_gone() -> None:
    lab = Lab(node("a"), stop_within=0.2)
    async with lab:
        await lab.running()
        lab.engines["a"].reachable = False
        await lab.scheduler.close()
        assert len(lab.engines["a"].containers) == 1
        lab.engines["a"].containers.clear()
        lab.cluster.set_claims("ledger", "a", ())


# --- with a kernel of somebody else (a provisioner's)


async def test_a_provisioner_goes_through_prepared_launch_and_ready() -> None:
    async with Lab(node("a"), host=False) as lab:
        allocation = await lab.request(kernel_id="k1")
        unit = await lab.scheduler.prepared(allocation.id)
        assert unit.allocation == allocation.id
        assert await lab.scheduler.prepared(allocation.id) == unit
        endpoint = await lab.scheduler.launch(allocation.id, ["python"], {}, {})
        assert endpoint.ports == unit.inner_ports
        assert lab.scheduler.get(allocation.id).state is State.STARTING
        assert (await lab.scheduler.ready(allocation.id, "k1")).state is State.RUNNING
        assert lab.scheduler.exit_code(allocation.id) is None
        with pytest.raises(Conflict, match="a kernel already"):
            await lab.scheduler.prepared(allocation.id)
        with pytest.raises(Conflict, match="no unit that waits"):
            await lab.scheduler.launch(allocation.id, ["python"], {}, {})
        await lab.scheduler.stop_unit(allocation.id)
        assert lab.scheduler.exit_code(allocation.id) == 137
        await lab.scheduler.release(allocation.id, kernel_gone=True)
        assert lab.scheduler.get(allocation.id).state is State.ENDED
        with pytest.raises(Conflict, match="runs no kernels"):
            await lab.request()


async def test_prepared_raises_what_went_wrong() -> None:
    async with Lab(node("a")) as lab:
        lab.script.fail("prepare", ImageRefused("its ipykernel is too old", image="x"))
        allocation = await lab.request(kernel_id="k1")
        with pytest.raises(ImageRefused, match="too old") as refused:
            await lab.scheduler.prepared(allocation.id)
        assert refused.value.details == {"image": "x"}
        with pytest.raises(ImageRefused):  # later, too
            await lab.scheduler.prepared(allocation.id)

        gate = lab.script.hold("prepare")
        allocation = await lab.request(kernel_id="k1")
        waiting = asyncio.create_task(lab.scheduler.prepared(allocation.id))
        await gate.arrived.wait()
        await lab.scheduler.release(allocation.id)
        with pytest.raises(Cancelled, match="cancelled"):
            await waiting
        with pytest.raises(NotFound):
            await lab.scheduler.prepared("nobody")


async def test_a_launch_that_fails_raises_and_ends_it() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.request(kernel_id="k1")
        await lab.scheduler.prepared(allocation.id)
        lab.script.fail("start:running", LaunchError("it exited with 1", logs="why\n"))
        with pytest.raises(LaunchError, match="exited with 1") as failed:
            await lab.scheduler.launch(allocation.id, ["python"], {}, {})
        assert failed.value.details == {"logs": "why\n"}
        ended = await lab.until(allocation.id, "ended")
        assert (ended.reason, ended.message) == (
            EndReason.FAILED,
            "it exited with 1; its last lines were:\nwhy",
        )
        assert (await lab.scheduler.logs(allocation.id)).text == "why\n"


async def test_release_during_a_launch_tells_the_launching_caller() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.request(kernel_id="k1")
        await lab.scheduler.prepared(allocation.id)
        gate = lab.script.hold("start:running")
        launching = asyncio.create_task(lab.scheduler.launch(allocation.id, ["python"], {}, {}))
        await gate.arrived.wait()
        await lab.scheduler.release(allocation.id)
        with pytest.raises(Cancelled):
            await launching
        await lab.until(allocation.id, "ended")


async def test_a_launch_whose_caller_is_cancelled_is_undone() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.request(kernel_id="k1")
        await lab.scheduler.prepared(allocation.id)
        gate = lab.script.hold("start:running")
        launching = asyncio.create_task(lab.scheduler.launch(allocation.id, ["python"], {}, {}))
        await gate.arrived.wait()
        launching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launching
        assert (await lab.until(allocation.id, "ended")).reason is EndReason.CANCELLED
        assert lab.engines["a"].containers == {}


async def test_failed_ends_it() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.external()
        await lab.scheduler.failed(allocation.id, "it died too often")
        ended = await lab.until(allocation.id, "ended")
        assert (ended.reason, ended.message.split(";")[0]) == (EndReason.FAILED, "it died too often")


# --- restarts and deaths


async def test_a_restart_keeps_node_gpus_and_ports() -> None:
    async with Lab(node("a"), node("b", 4)) as lab:
        allocation = await lab.external(gpus=2)
        first = lab.scheduler.get(allocation.id).unit
        assert first is not None
        await lab.scheduler.stop_unit(allocation.id)
        assert lab.engines["a"].containers == {}
        assert lab.held("a") == set(allocation.gpus)
        await lab.scheduler.stop_unit(allocation.id)  # quiet if there is none
        second = await lab.scheduler.restart_unit(allocation.id)
        assert second.id != first.id
        assert second.name != first.name
        assert second.inner_ports == first.inner_ports
        endpoint = await lab.scheduler.launch(allocation.id, ["python"], {}, {})
        assert endpoint.ports == first.inner_ports
        again = await lab.scheduler.ready(allocation.id, "foreign")
        assert (again.state, again.gpus, again.node) == (State.RUNNING, allocation.gpus, "a")
        third = await lab.scheduler.restart_unit(allocation.id)  # stops by itself
        assert [box.unit for box in lab.engines["a"].containers.values()] == [third]


async def test_a_death_that_nobody_repairs_ends_it_with_its_reason() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        [unit] = lab.engines["a"].containers
        lab.engines["a"].crash(unit, 137, "killed for memory: limit 16 GiB", logs="loading\n")
        dead = lab.scheduler.get(allocation.id)
        assert (dead.state, dead.message) == (State.RUNNING, "killed for memory: limit 16 GiB")
        assert lab.scheduler.exit_code(allocation.id) == 137
        assert lab.scheduler.describe_exit(allocation.id) == "killed for memory: limit 16 GiB"
        assert lab.held("a")
        ended = await lab.until(allocation.id, "ended")
        assert ended.reason is EndReason.FAILED
        assert ended.message.startswith("killed for memory: limit 16 GiB; nobody restarted it")
        assert ended.message.endswith("loading")


async def test_a_death_that_is_repaired_in_time_goes_on() -> None:
    async with Lab(node("a"), limits=replace(QUICK, restart_within=30)) as lab:
        allocation = await lab.external()
        [unit] = lab.engines["a"].containers
        lab.engines["a"].crash(unit, 1, logs="the first one's\n")
        await lab.scheduler.stop_unit(allocation.id)
        assert (await lab.scheduler.logs(allocation.id, 1)).text == "the first one's\n"
        await lab.scheduler.restart_unit(allocation.id, "it crashed")
        assert lab.scheduler.exit_code(allocation.id) is None
        await lab.scheduler.launch(allocation.id, ["python"], {}, {})
        again = await lab.scheduler.ready(allocation.id, "foreign")
        assert (again.state, again.message) == (State.RUNNING, "it crashed")
        [unit] = lab.engines["a"].containers
        lab.engines["a"].containers[unit].logs = ""
        lab.engines["a"].crash(unit, 1)
        await lab.scheduler.stop_unit(allocation.id)
        assert (await lab.scheduler.logs(allocation.id)).text == "", "not those of the one before"


async def test_a_restart_that_fails_ends_it_and_says_why() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.external()
        lab.script.fail("prepare", LaunchError("disk full"))
        with pytest.raises(LaunchError, match="disk full"):
            await lab.scheduler.restart_unit(allocation.id)
        ended = await lab.until(allocation.id, "ended")
        assert (ended.reason, ended.message) == (EndReason.FAILED, "disk full")


async def test_stop_and_restart_on_a_node_that_does_not_answer_raise_and_may_be_tried_again() -> None:
    async with Lab(node("a"), limits=replace(QUICK, restart_within=30)) as lab:
        allocation = await lab.external()
        lab.engines["a"].reachable = False
        with pytest.raises(NodeUnreachable):
            await lab.scheduler.stop_unit(allocation.id)
        with pytest.raises(NodeUnreachable):
            await lab.scheduler.restart_unit(allocation.id)
        await lab.scheduler.interrupt(allocation.id)  # never raises
        assert lab.scheduler.get(allocation.id).state is State.RUNNING
        lab.engines["a"].reachable = True
        await lab.scheduler.restart_unit(allocation.id)


async def test_interrupt_reaches_the_unit_and_never_raises() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        await lab.scheduler.interrupt(allocation.id)
        assert lab.script.seen[-1] == "interrupt"
        lab.script.fail("interrupt", RuntimeError("a bug"))
        await lab.scheduler.interrupt(allocation.id)
        await lab.scheduler.interrupt("nobody")


# --- time


async def test_an_allocation_ends_when_its_time_is_over() -> None:
    now = [1000.0]
    async with Lab(node("a"), clock=lambda: now[0]) as lab:
        allocation = await lab.running(time="2h")
        assert allocation.expires == 1000 + 7200
        now[0] += 7199
        lab.scheduler._alarms.check()
        assert lab.scheduler.get(allocation.id).state is State.RUNNING
        now[0] += 1
        lab.scheduler._alarms.check()
        ended = await lab.until(allocation.id, "ended")
        assert (ended.reason, ended.message) == (EndReason.EXPIRED, "its time of 2 h is over")


async def test_time_runs_by_itself() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.request(time=0.3)
        assert (await lab.until(allocation.id, "ended")).reason is EndReason.EXPIRED


async def test_a_request_may_wait_until_something_ends() -> None:
    async with Lab(node("a", 2)) as lab:
        first = await lab.running(gpus=2)
        waiting = await lab.request(gpus=1, wait="10m", name="patience")
        later = await lab.request(gpus=2, wait=0.3)
        assert waiting.state is later.state is State.PENDING
        assert "a" in waiting.message or "GPU" in waiting.message
        await lab.scheduler.release(first.id)
        assert (await lab.until(waiting.id, "running")).node == "a"
        ended = await lab.until(later.id, "ended")
        assert ended.reason is EndReason.REJECTED
        gone = await lab.request(gpus=2, wait="10m")
        await lab.scheduler.release(gone.id)
        assert lab.scheduler.get(gone.id).reason is EndReason.CANCELLED


# --- nodes come, go, change


async def test_nodes_are_taken_up_and_dropped_as_they_come_and_go() -> None:
    async with Lab(node("a", 1)) as lab:
        with pytest.raises(NeverFits):
            await lab.request(gpus=2)
        lab.cluster.put(node("b", 2))
        allocation = await lab.running(gpus=2)
        assert allocation.node == "b"
        lab.cluster.remove("b")
        with pytest.raises(NeverFits):
            await lab.request(gpus=2)
        still = lab.scheduler.get(allocation.id)
        assert still.state is State.RUNNING, "what runs on a node that left the inventory goes on"
        assert not lab.launchers[1].closed
        await lab.end(allocation.id)
        assert lab.engines["b"].containers == {}
        await asyncio.sleep(0)
        assert lab.launchers[1].closed


async def test_a_changed_entry_gets_a_new_launcher_and_what_runs_goes_on() -> None:
    async with Lab(node("a", 2), specs=(spec("a"),)) as lab:
        allocation = await lab.running()
        gate = lab.script.hold("prepare:made")
        starting = await lab.request()
        await gate.arrived.wait()
        lab.cluster.put(node("a", 2), spec("a", stale_after=99.0, timeout=9.0, idle_after=99.0, idle_warning=9.0))
        assert len(lab.launchers) == 1, "no launcher cares"
        lab.cluster.put(node("a", 2), spec("a", image="base:2"))
        assert len(lab.launchers) == 2
        await asyncio.sleep(0.01)
        assert not lab.launchers[0].closed, "somebody is in the middle of using it"
        gate.open()
        await lab.until(starting.id, "running")
        assert lab.launchers[0].closed
        await lab.end(allocation.id)
        assert lab.scheduler.get(starting.id).state is State.RUNNING


async def test_a_launcher_that_cannot_be_opened_is_said_when_it_is_needed() -> None:
    class Broken(Lab):
        def _launcher(self, spec: NodeSpec):
            launcher = super()._launcher(spec)

            async def no(*_: object) -> None:
                raise InvalidValue("docker is 'tcp://a:2375' without TLS; say insecure = true if that is meant")

            launcher.open = no
            return launcher

    async with Broken(node("a")) as lab:
        allocation = await lab.request()
        ended = await lab.until(allocation.id, "ended")
        assert "insecure = true" in ended.message


async def test_a_stale_view_of_the_cluster_does_not_lead_to_a_gpu_held_twice() -> None:
    async with Lab(node("a", 2)) as lab:
        lab.cluster.set_claims = lambda *_: None  # a cluster that never learns of reservations
        await lab.request()
        await lab.request()
        lab.scheduler._fleet._changed("a", node("a", 2))  # the report of before
        with pytest.raises(NoFit):
            await lab.request()


async def test_an_image_where_there_are_none() -> None:
    plain = NodeSpec(name="a")
    async with Lab(node("a"), specs=(plain,)) as lab:
        with pytest.raises(ImageRefused) as refused:
            await lab.request(image="lab/x")
        assert refused.value.message == (
            "image 'lab/x' cannot be used: a runs plain processes, without images; leave the image out"
        )
    docker = NodeSpec(name="b", docker="ssh://b", image="lab/b", images=("ok/*",))
    async with Lab(node("a"), node("b"), specs=(plain, docker)) as lab:
        with pytest.raises(ImageRefused) as refused:
            await lab.request(image="lab/x")
        assert refused.value.message == (
            "no node allows the image 'lab/x' (b: it allows only the images lab/b, ok/*); "
            "ask for one that is allowed, or leave the image out"
        )


# --- nodes that do not answer, units that do not go


async def test_nothing_is_placed_where_the_engine_does_not_answer_until_it_does() -> None:
    async with Lab(node("a"), node("b", 4)) as lab:
        running = await lab.running(gpus=1)
        assert running.node == "a"
        await eventually(lambda: all(launcher.on_trouble for launcher in lab.launchers))
        [launcher] = [launcher for launcher in lab.launchers if launcher.node == "a"]
        launcher.on_trouble("its Docker engine does not answer since noon: Connection refused")
        assert lab.scheduler.nodes()[0].reason == "its Docker engine does not answer since noon: Connection refused"
        decision = lab.scheduler.explain(Request(gpus=1))
        assert decision.node == "b"
        assert "Connection refused" in decision.stages[0].rejected["a"]
        with pytest.raises(NoFit, match="No node has"):
            await lab.request(gpus=1, node="a")
        assert lab.scheduler.get(running.id).state is State.RUNNING
        waiting = await lab.request(gpus=1, node="a", wait=60)
        assert waiting.state is State.PENDING
        launcher.on_trouble(None)
        assert (await lab.until(waiting.id, "running")).node == "a"
        assert lab.scheduler.get(running.id).state is State.RUNNING


async def test_what_was_said_of_an_engine_is_not_said_of_the_next_one() -> None:
    async with Lab(node("a")) as lab:
        await eventually(lambda: lab.launchers[0].on_trouble is not None)
        old = lab.launchers[0]
        old.on_trouble("its Docker engine does not answer")
        lab.cluster.put(node("a"), NodeSpec(name="a", docker="ssh://elsewhere"))
        assert lab.scheduler.nodes()[0].reason is None
        old.on_trouble("its Docker engine does not answer")
        assert lab.scheduler.nodes()[0].reason is None, "the old launcher has no say any more"


async def test_a_node_whose_launcher_cannot_be_opened_says_so() -> None:
    class Broken(Lab):
        def _launcher(self, spec: NodeSpec):
            raise InvalidValue("docker is of no use")

    async with Broken(node("a")) as lab:
        assert lab.scheduler.nodes()[0].reason == "docker is of no use"
        with pytest.raises(NoFit):
            await lab.request()


async def test_gpus_of_a_node_that_does_not_answer_stay_reserved_until_it_does() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        lab.engines["a"].reachable = False
        await lab.scheduler.release(allocation.id)
        while "does not answer" not in lab.scheduler.get(allocation.id).message:
            await lab.scheduler.changed(allocation.id, lab.scheduler.get(allocation.id).version, 5)
        assert lab.held("a") == set(allocation.gpus)
        with pytest.raises(NoFit):
            await lab.request(gpus=2)
        lab.engines["a"].reachable = True
        ended = await lab.until(allocation.id, "ended")
        assert (ended.reason, ended.message) == (EndReason.RELEASED, "")


async def test_a_node_that_comes_back_after_it_was_given_up_is_cleaned() -> None:
    async with Lab(node("a"), limits=replace(QUICK, lost_after=0.1)) as lab:
        allocation = await lab.running()
        lab.engines["a"].reachable = False
        lab.launchers[0].on_trouble("its engine does not answer")
        lab.cluster.put(replace(node("a"), reporting=False))
        ended = await lab.end(allocation.id)
        assert ended.reason is EndReason.NODE_LOST
        assert len(lab.engines["a"].containers) == 1
        lab.engines["a"].reachable = True
        lab.launchers[0].on_trouble(None)
        await eventually(lambda: not lab.engines["a"].containers)


async def test_a_unit_that_cannot_be_removed_blocks_its_gpus_visibly() -> None:
    async with Lab(node("a")) as lab:
        allocation = await lab.running()
        [unit] = lab.engines["a"].containers
        lab.engines["a"].stuck.add(unit)
        await lab.scheduler.release(allocation.id)
        while "cannot be removed" not in lab.scheduler.get(allocation.id).message:
            await lab.scheduler.changed(allocation.id, lab.scheduler.get(allocation.id).version, 5)
        assert lab.held("a")
        lab.engines["a"].stuck.clear()
        await lab.until(allocation.id, "ended")


async def test_a_host_that_hangs_does_not_keep_the_gpus() -> None:
    async with Lab(node("a"), kernel_stop_within=0.1) as lab:
        allocation = await lab.running()
        lab.script.hold("kernel:stop")
        await lab.end(allocation.id)
        lab.host.kernels.clear()


# --- other schedulers on the same engines


async def test_claims_of_others_are_respected_and_two_that_collide_both_get_on() -> None:
    async with Lab(node("a", 2)) as one, Lab(of=one) as two:
        one.may_leave = True
        first = await one.running()
        second = await two.running()
        assert first.gpus != second.gpus
        with pytest.raises(NoFit):
            await two.request()
        await one.end(first.id)
        await two.running()


async def test_two_schedulers_hammering_one_engine_never_hold_a_gpu_twice_and_both_get_on() -> None:
    """The engine asserts at every change that no two running units have one GPU."""
    labs = [Lab(node("a", 3)), None]
    async with labs[0] as one:
        one.may_leave = True
        async with Lab(of=one, pause=None) as two:
            done = {id(one): 0, id(two): 0}

            async def hammer(lab: Lab, owner: str) -> None:
                while done[id(lab)] < 10:
                    try:
                        allocation = await lab.request(owner=owner, gpus=2)
                    except NoFit:
                        await asyncio.sleep(0.005)
                        continue
                    while (now := lab.scheduler.get(allocation.id)).state not in (State.RUNNING, State.ENDED):
                        await lab.scheduler.changed(now.id, now.version, 5)
                    if now.state is State.RUNNING:
                        done[id(lab)] += 1
                        await lab.end(allocation.id)
                    else:
                        assert now.reason is EndReason.REJECTED, now

            async with asyncio.timeout(60):
                await asyncio.gather(*(hammer(lab, owner) for lab in (one, two) for owner in "xy"))
            assert min(done.values()) >= 10
        assert one.engines["a"].containers == {}


async def test_a_lost_claim_is_tried_again_until_it_is_given_up() -> None:
    async with Lab(node("a", 1)) as one, Lab(of=one) as two:
        one.may_leave = True
        two.cluster.set_claims = lambda *_: None  # does not see others before it has created its container
        held = await one.running()
        allocation = await two.request()
        ended = await two.until(allocation.id, "ended")
        assert ended.reason is EndReason.REJECTED
        assert held.id in ended.message
        assert len(two.launchers[0].launches) == QUICK.attempts
        assert [box.claim.allocation for box in one.engines["a"].containers.values()] == [held.id]


async def test_only_our_own_orphans_are_removed() -> None:
    async with Lab(node("a", 4)) as one, Lab(of=one) as two:
        one.may_leave = True
        await one.running()
        mine = await two.running()
        [box] = [box for box in two.engines["a"].containers.values() if box.claim.allocation == mine.id]
        orphan = replace(box.unit, id="orphan", allocation="forgotten")
        claim = replace(box.claim, allocation="forgotten", gpus={"GPU-a-3": 1}, container="orphan")
        two.engines["a"].containers["orphan"] = type(box)(orphan, box.launch, claim, "exited")
        before = set(two.engines["a"].containers)
        two.engines["a"].changed()
        await eventually(lambda: "orphan" not in two.engines["a"].containers)
        assert set(two.engines["a"].containers) == before - {"orphan"}


async def test_what_becomes_an_orphan_while_others_are_removed_is_removed_too() -> None:
    async with Lab(node("a", 2)) as lab:
        first, second = await lab.running(), await lab.running()
        orphans, reaper = {second.id}, lab.scheduler._reaper
        reaper._belongs = lambda node, claim, unit: claim.allocation not in orphans
        gate = lab.script.hold("stop")
        reaper.visit("a")
        await gate.arrived.wait()
        orphans.add(first.id)  # which was looked at already
        reaper.visit("a")
        gate.open()
        await eventually(lambda: not lab.engines["a"].containers)


async def test_what_went_wrong_before_a_start_that_succeeded_is_not_said_of_its_end() -> None:
    async with Lab(node("a"), node("b")) as lab:
        lab.script.fail("prepare", NodeUnreachable("node 'a' does not answer"))
        made = await lab.running()
        await lab.scheduler.failed(made.id, "its kernel is broken")
        with pytest.raises(LaunchError, match="its kernel is broken"):
            await lab.scheduler.prepared(made.id)

"""Jobs over a fake engine and job host: asked for, run, retried, moved; and taken up by the next server."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from helpers.fakes import JOB_TO_GONE, JOB_TO_RUNNING, node
from helpers.lab import QUICK, Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.errors import (
    Conflict,
    Forbidden,
    GpufitError,
    InvalidValue,
    LaunchError,
    NeverFits,
    NodeUnreachable,
    NoFit,
    StoreError,
)
from jupyter_gpufit.inventory import Inventory, NodeSpec, Quota
from jupyter_gpufit.models import Allocation, EndReason, Job, Request, State
from jupyter_gpufit.scheduling.api import Scheduler


async def log_of(lab: Lab, id: str, after: str = "") -> str:
    return (await lab.scheduler.logs(id, after=after)).text


async def ended(lab: Lab, id: str) -> Allocation:
    return await lab.until(id, "ended")


# --- one that goes well


async def test_a_job_runs_without_a_kernel_and_ends_with_its_outputs() -> None:
    async with Lab(node("a", 2, model_store=True)) as lab:
        job = await lab.job(gpus=2, name="lr", write_models=True)
        assert tuple(lab.script.seen) == ("job:check", *JOB_TO_RUNNING)
        assert (job.kernel_id, job.attempt, job.request.wait) == (None, 1, 86400.0)
        box = lab.box(job.id)
        assert (box.launch.workspace, box.launch.write_models, box.launch.kernel) == (True, True, None)
        [started] = lab.jobs.started
        assert (started.attempt, started.gpus) == (1, job.gpus)
        box.logs += "epoch 1\n"
        lab.script.seen.clear()
        lab.ends(job.id, logs="epoch 2\n")
        over = await ended(lab, job.id)
        assert tuple(lab.script.seen) == JOB_TO_GONE
        assert (over.reason, over.exit_code, over.outputs) == (EndReason.FINISHED, 0, "/home/me/outputs/lr")
        assert over.message == "finished after 0 s; its outputs are in /home/me/outputs/lr"
        assert await log_of(lab, job.id) == "kernel started\nepoch 1\nepoch 2\n"
        assert lab.jobs.kept == {}


async def test_a_folder_is_mounted_only_where_the_node_has_it() -> None:
    specs = (
        NodeSpec(name="a", docker="unix:///a", shared=("/home",)),
        NodeSpec(name="b", docker="unix:///b", shared=("/srv",)),
    )
    async with Lab(node("a"), node("b"), specs=specs) as lab:
        here = await lab.job(folder="/home/me", node="a")
        there = await lab.job(folder="/home/me", node="b")
        kernel = await lab.running(folder="/home/me", node="a")
        assert [lab.box(one.id).launch.folder for one in (here, there, kernel)] == ["/home/me", None, "/home/me"]


async def test_one_that_ends_while_it_starts_has_ended_by_itself() -> None:
    async with Lab(node("a")) as lab:
        gate = lab.script.hold("start:running")
        [job] = await lab.submit(run="echo hello")
        await gate.arrived.wait()
        lab.ends(job.id, logs="hello\n")
        gate.open()
        over = await ended(lab, job.id)
        assert over.reason is EndReason.FINISHED
        assert (await log_of(lab, job.id)).endswith("hello\n")


async def test_a_job_has_no_kernel_that_could_be_attached() -> None:
    async with Lab(node("a")) as lab:
        job = await lab.job(name="train")
        scheduler: Scheduler = lab.scheduler
        for ask in (
            scheduler.prepared(job.id),
            scheduler.launch(job.id, [], {}, {}),
            scheduler.ready(job.id, "k"),
            scheduler.restart_unit(job.id),
        ):
            with pytest.raises(Conflict, match="'train' is a job: no kernel runs in it"):
                await ask
        await scheduler.stop_unit(job.id)
        assert lab.scheduler.get(job.id).state is State.RUNNING
        with pytest.raises(InvalidValue, match="gpufit train"):
            await lab.request(job=Job(run="train.py"))
        with pytest.raises(InvalidValue, match="no job in the request"):
            await scheduler.submit(Request(), "me")


# --- asking


async def test_a_sweep_is_a_job_for_each_point() -> None:
    async with Lab(node("a", 2)) as lab:
        jobs = await lab.submit(name="s", sweep={"lr": ["1e-3", "1e-4"], "seed": ["1", "2"]})
        assert [job.name for job in jobs] == ["s-1", "s-2", "s-3", "s-4"]
        points = [job.request.job.sweep for job in jobs if job.request.job is not None]
        assert points[:2] == [{"lr": "1e-3", "seed": "1"}, {"lr": "1e-3", "seed": "2"}]
        assert [job.request.job.turn for job in jobs if job.request.job is not None] == [0, 1, 2, 3]
        assert lab.jobs.kept.keys() == {job.id for job in jobs}
        assert [job.state is State.PENDING for job in jobs] == [False, False, True, True]
        assert jobs[2].queue is not None
        for job in jobs:
            await lab.until(job.id, "running")
            lab.ends(job.id)
            await ended(lab, job.id)


async def test_a_sweep_is_all_or_nothing() -> None:
    async with Lab(node("a", 2)) as lab:
        with pytest.raises(NoFit):
            await lab.submit(name="s", wait=0, sweep={"lr": ["1", "2", "3"]})
        for name in ("s-1", "s-2"):
            over = await ended(lab, lab.scheduler.get(name).id)
            assert (over.reason, over.message) == (EndReason.CANCELLED, "'s-3' of the same sweep was refused")
        assert (lab.jobs.kept, lab.jobs.started) == ({}, [])
        await lab.job(name="s-2")
        with pytest.raises(Conflict, match="'s-2' already"):
            await lab.submit(name="s", sweep={"lr": ["1", "2"]})
        with pytest.raises(NeverFits):
            await lab.submit(gpus=3, sweep={"lr": ["1", "2"]})
        with pytest.raises(InvalidValue, match="257 jobs, and 256 is the most"):
            await lab.submit(sweep={"seed": [str(seed) for seed in range(257)]})
        with pytest.raises(InvalidValue, match="no values for 'lr'"):
            await lab.submit(sweep={"lr": []})
        with pytest.raises(InvalidValue, match="twice"):
            await lab.submit(sweep={"lr": ["1", "1"]})
        with pytest.raises(InvalidValue, match="cannot be used"):
            await lab.submit(name="n" * 62, sweep={"lr": ["1", "2"]})
        assert len(lab.scheduler.allocations()) == 1
        assert len(lab.jobs.kept) == 1


async def test_what_cannot_be_checked_in_is_not_asked_for() -> None:
    async with Lab(node("a", 2)) as lab:
        lab.script.fail("job:check", InvalidValue("there is no train.py"))
        with pytest.raises(InvalidValue, match=r"no train\.py"):
            await lab.submit()
        assert (lab.scheduler.allocations(ended=True), lab.jobs.kept) == ([], {})
        # The name is taken while files are copied.
        gate = lab.script.hold("job:check")
        asked = asyncio.create_task(lab.submit(name="train"))
        await gate.arrived.wait()
        await lab.running(name="train")
        gate.open()
        with pytest.raises(Conflict, match="'train' already"):
            await asked
        assert lab.jobs.kept == {}


async def test_a_job_waits_as_long_as_its_owner_may() -> None:
    async with Lab(node("a")) as lab:
        lab.cluster.inventory = Inventory(nodes=(), all_quota=Quota(wait=3600.0))
        [job] = await lab.submit()
        assert job.request.wait == 3600.0
        with pytest.raises(Forbidden):
            await lab.submit(wait="2h")
    async with Lab(node("a", 1)) as lab:
        await lab.running()
        with pytest.raises(NoFit):
            await lab.submit(wait=0)
        assert lab.jobs.kept == {}


# --- attempts


async def test_retries_have_one_log_and_the_outputs_of_the_last() -> None:
    async with Lab(node("a")) as lab:
        job = await lab.job(job={"retries": 1})
        first = lab.box(job.id)
        seen = await lab.scheduler.logs(job.id)
        assert (seen.text, seen.over) == ("kernel started\n", False)
        lab.ends(job.id, 3, logs="first\n")
        await eventually(lambda: len(lab.jobs.started) == 2 and lab.scheduler.get(job.id).progress is None)
        assert lab.jobs.collected == [first.unit.id]
        second = lab.box(job.id)
        assert (second.unit.name == first.unit.name, lab.jobs.started[1].attempt) == (False, 2)
        assert lab.scheduler.get(job.id).message == "failed with exit code 3 after 0 s (attempt 1 of 2)"
        assert lab.scheduler.get(job.id).gpus == job.gpus
        more = await lab.scheduler.logs(job.id, after=seen.mark)
        assert more.text == "first\nkernel started\n"
        assert (await lab.scheduler.logs(job.id, tail=2)).text == more.text
        assert (await lab.scheduler.logs(job.id, after=more.mark)) == replace(more, text="")
        lab.ends(job.id, 4, logs="second\n")
        over = await ended(lab, job.id)
        assert (over.reason, over.exit_code, over.attempt) == (EndReason.FAILED, 4, 2)
        assert over.message.splitlines()[-1] == "second"
        last = await lab.scheduler.logs(job.id, after=more.mark)
        assert (last.text, last.over) == ("second\n", True)
        assert await log_of(lab, job.id) == "kernel started\nfirst\nkernel started\nsecond\n"


async def test_outputs_that_do_not_come_home_are_no_reason_to_keep_the_gpus() -> None:
    async with Lab(node("a")) as lab:
        job = await lab.job()
        lab.script.fail("job:collect", LaunchError("its outputs were not brought home: 80 GiB"))
        lab.ends(job.id)
        over = await ended(lab, job.id)
        assert (over.reason, over.outputs) == (EndReason.FINISHED, None)
        assert over.message.endswith("; its outputs were not brought home: 80 GiB")
        job = await lab.job()
        lab.script.fail("job:collect", ZeroDivisionError())
        lab.ends(job.id)
        assert "the server's log says why" in (await ended(lab, job.id)).message


@pytest.mark.parametrize("error", [NodeUnreachable("no answer"), StoreError("cannot write: No space left on device")])
async def test_outputs_wait_for_a_node_that_answers_and_for_room_here(error: GpufitError) -> None:
    async with Lab(node("a")) as lab:
        job = await lab.job(name="lr")
        lab.script.fail("job:collect", error, error)
        lab.ends(job.id)
        over = await ended(lab, job.id)
        assert (over.reason, over.outputs) == (EndReason.FINISHED, "/home/me/outputs/lr")


async def test_a_job_whose_node_restarted_starts_again_there() -> None:
    async with Lab(node("a")) as lab:
        job = await lab.job()
        lab.ends(job.id, 137, with_node=True)
        await eventually(lambda: len(lab.jobs.started) == 2)
        await eventually(lambda: lab.box(job.id).state == "running")
        assert (await lab.until(job.id, "running")).node == "a"


async def test_a_job_whose_node_is_lost_runs_elsewhere() -> None:
    limits = replace(QUICK, lost_after=0.05)
    async with Lab(node("a"), node("b"), limits=limits) as lab:
        job = await lab.job(node="*")
        assert job.node == "a"
        left = lab.box(job.id)
        lab.engines["a"].reachable = False
        lab.cluster.put(replace(node("a"), reporting=False))
        [launcher] = [each for each in lab.launchers if each.node == "a"]
        assert launcher.on_trouble is not None
        launcher.on_trouble("no answer")
        await eventually(lambda: lab.scheduler.get(job.id).node == "b")
        now = await lab.until(job.id, "running")
        assert (now.attempt, lab.held("a")) == (2, set())
        lab.engines["a"].reachable = True
        launcher.on_trouble(None)
        await eventually(lambda: lab.engines["a"].containers == {})
        assert left.unit.id not in lab.jobs.collected
        lab.ends(job.id)
        assert (await ended(lab, job.id)).reason is EndReason.FINISHED


async def test_what_is_left_of_a_job_on_a_node_that_gets_it_again_is_removed() -> None:
    limits = replace(QUICK, lost_after=0.05, forgive_after=0.05)
    async with Lab(node("a"), limits=limits) as lab:
        job = await lab.job()
        left = lab.box(job.id)
        lab.engines["a"].reachable = False
        lab.cluster.put(replace(node("a"), reporting=False))
        [launcher] = lab.launchers
        assert launcher.on_trouble is not None
        launcher.on_trouble("no answer")
        await eventually(lambda: lab.scheduler.get(job.id).state is State.PENDING)
        looked, made = lab.script.hold("units"), lab.script.hold("prepare:made")
        lab.engines["a"].reachable = True
        lab.cluster.put(node("a"))
        launcher.on_trouble(None)
        await looked.arrived.wait()
        await made.arrived.wait()
        looked.open()
        await asyncio.sleep(0)
        await eventually(lambda: not lab.scheduler._reaper._tasks)
        assert left.unit.id in lab.engines["a"].containers, "it cannot be told from the new one now"
        made.open()
        now = await lab.until(job.id, "running")
        await eventually(lambda: left.unit.id not in lab.engines["a"].containers)
        assert (now.unit != left.unit, lab.box(job.id).unit) == (True, now.unit)
        lab.ends(job.id)
        await ended(lab, job.id)


async def test_outputs_come_home_from_a_node_that_has_left_the_inventory() -> None:
    async with Lab(node("a"), node("b")) as lab:
        job = await lab.job(name="lr", node="a")
        lab.cluster.remove("a")
        lab.ends(job.id)
        over = await ended(lab, job.id)
        assert (over.reason, over.outputs) == (EndReason.FINISHED, "/home/me/outputs/lr")


async def test_one_that_is_released_is_halted_and_its_outputs_come_home() -> None:
    async with Lab(node("a")) as lab:
        job = await lab.job(name="lr")
        lab.script.seen.clear()
        over = await lab.end(job.id)
        assert tuple(lab.script.seen) == JOB_TO_GONE
        assert (over.reason, over.outputs, over.exit_code) == (EndReason.RELEASED, "/home/me/outputs/lr", None)


async def test_released_in_the_pause_between_two_attempts() -> None:
    async with Lab(node("a"), limits=replace(QUICK, again_first=60.0, again_most=60.0)) as lab:
        job = await lab.job(job={"retries": 3})
        lab.ends(job.id, 1)
        await eventually(lambda: lab.engines["a"].containers == {} and lab.scheduler.get(job.id).unit is None)
        assert lab.held("a")
        assert (await lab.end(job.id)).reason is EndReason.RELEASED


# --- other servers


@pytest.mark.parametrize("release", [True, False])
async def test_a_job_goes_on_when_its_server_stops(tmp_path: Path, release: bool) -> None:
    before = Lab(node("a", 2), store=tmp_path)
    await before.scheduler.open()
    job = await before.job(name="lr")
    starting = before.script.hold("job:start")
    [second] = await before.submit()
    await starting.arrived.wait()
    [third] = await before.submit()
    assert third.state is State.PENDING
    await before.scheduler.close(release=release)
    [box] = before.engines["a"].containers.values()
    assert (box.state, box.claim.allocation) == ("running", job.id), "what was half-made is undone"
    box.logs += "meanwhile\n"
    async with Lab(of=before, store=tmp_path) as lab:
        assert lab.scheduler.get(job.id).state is State.RUNNING
        await lab.scheduler.restored()
        await lab.until(second.id, "running")
        assert await log_of(lab, job.id) == "kernel started\nmeanwhile\n"
        lab.ends(job.id)
        assert (await ended(lab, job.id)).outputs == "/home/me/outputs/lr"
        await lab.until(third.id, "running")
        for id in (second.id, third.id):
            lab.ends(id)
            await ended(lab, id)
        assert lab.jobs.kept == {}
    async with Lab(of=lab, store=tmp_path) as lab:
        assert await log_of(lab, job.id) == "kernel started\nmeanwhile\n", "kept on disk"
        assert (await lab.scheduler.logs(job.id)).over


async def test_one_that_ended_while_no_server_was_there(tmp_path: Path) -> None:
    before = Lab(node("a"), store=tmp_path)
    await before.scheduler.open()
    job = await before.job(job={"retries": 1})
    await before.kill()
    before.ends(job.id, 0, logs="done\n")
    async with Lab(of=before, store=tmp_path) as lab:
        over = await ended(lab, job.id)
        assert (over.reason, over.message.split(";")[0]) == (EndReason.FINISHED, "finished")
        assert (await log_of(lab, job.id)).endswith("done\n")


@pytest.mark.parametrize("point", [*JOB_TO_RUNNING, *JOB_TO_GONE])
async def test_killed_at_any_point_the_job_is_finished_by_the_next_server(tmp_path: Path, point: str) -> None:
    dead = Lab(node("a", 2), store=tmp_path)
    await dead.scheduler.open()
    if point in JOB_TO_GONE:
        job = await dead.job(name="lr")
        gate = dead.script.hold(point)
        dead.ends(job.id, 0, logs="done\n")
    else:
        gate = dead.script.hold(point)
        [job] = await dead.submit(name="lr")
    await gate.arrived.wait()
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        if point in JOB_TO_RUNNING:
            now = await lab.until(job.id, "running")
            assert (now.attempt, len(lab.engines["a"].containers)) == (1, 1)
            await eventually(lambda: lab.scheduler.get(job.id).progress is None)
            lab.ends(job.id, 0, logs="done\n")
        over = await ended(lab, job.id)
        if point == "stop:gone":  # all that was to be done is done, but nobody wrote it down
            assert over.reason is EndReason.FINISHED
        else:
            assert (over.reason, over.outputs) == (EndReason.FINISHED, "/home/me/outputs/lr")
        assert (await log_of(lab, job.id)).endswith("done\n")


@pytest.mark.parametrize("point", ["start:running", "job:started"])
@pytest.mark.parametrize("over", [False, True])
async def test_killed_before_it_is_written_down_that_it_runs_it_does_not_run_twice(
    tmp_path: Path, point: str, over: bool
) -> None:
    dead = Lab(node("a", 2), store=tmp_path)
    await dead.scheduler.open()
    gate = dead.script.hold(point)
    [job] = await dead.submit(name="lr")
    await gate.arrived.wait()
    await dead.kill()
    if over:
        dead.ends(job.id, 0, logs="done\n")
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        if not over:
            await lab.until(job.id, "running")
            lab.ends(job.id, 0, logs="done\n")
        end = await ended(lab, job.id)
        assert (end.reason, end.attempt, end.outputs) == (EndReason.FINISHED, 1, "/home/me/outputs/lr")
        assert (len(lab.engines["a"].history), lab.jobs.started) == (1, [])
        assert await log_of(lab, job.id) == "kernel started\ndone\n"


async def test_killed_in_the_pause_between_two_attempts(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path, limits=replace(QUICK, again_first=60.0, again_most=60.0))
    await dead.scheduler.open()
    job = await dead.job(job={"retries": 1})
    dead.ends(job.id, 1, logs="first\n")
    await eventually(lambda: dead.engines["a"].containers == {} and dead.scheduler.get(job.id).unit is None)
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        await eventually(lambda: bool(lab.jobs.started))
        assert lab.jobs.started[0].attempt == 2
        await eventually(lambda: lab.box(job.id).state == "running")
        await eventually(lambda: lab.scheduler.get(job.id).progress is None)
        lab.ends(job.id, 0)
        await ended(lab, job.id)
        assert await log_of(lab, job.id) == "kernel started\nfirst\nkernel started\n"


async def test_a_server_that_goes_on_takes_up_what_another_leaves(tmp_path: Path) -> None:
    lab = Lab(node("a", 3), store=tmp_path, adopt_every=0.02)
    async with lab:
        mine = await lab.job(name="mine")
        dead = Lab(of=lab, store=tmp_path, adopt_every=0)
        await dead.scheduler.open()
        runs, over = await dead.job(name="runs"), await dead.job(name="over", job={"retries": 1})
        [waits] = await dead.submit(name="waits", gpus=2)
        gpus = runs.gpus
        lab.jobs.kept |= dead.jobs.kept  # it is on disk
        told: list[str] = []
        lab.scheduler.subscribe(lambda allocation: told.append(allocation.id))
        assert [one.id for one in lab.scheduler.allocations()] == [mine.id], "not while it is in use"
        await dead.kill()
        dead.ends(over.id, 0, logs="done\n")
        await eventually(lambda: runs.id in told)
        assert (await ended(lab, over.id)).reason is EndReason.FINISHED
        assert (await log_of(lab, over.id)).endswith("done\n")
        now = lab.scheduler.get(runs.id)
        assert (now.state, now.gpus, now.attempt) == (State.RUNNING, gpus, 1)
        assert lab.scheduler.get(waits.id).state is State.PENDING
        lab.ends(runs.id)
        await ended(lab, runs.id)
        await lab.until(waits.id, "running")
        for id in (mine.id, waits.id):
            lab.ends(id)
            await ended(lab, id)


async def test_what_another_left_half_made_is_started_and_a_unit_of_nobody_removed(tmp_path: Path) -> None:
    lab = Lab(node("a", 2), store=tmp_path, adopt_every=0.02)
    async with lab:
        dead = Lab(of=lab, store=tmp_path, adopt_every=0)
        await dead.scheduler.open()
        gate = dead.script.hold("prepare:made")
        [job] = await dead.submit(name="half")
        await gate.arrived.wait()
        lab.jobs.kept |= dead.jobs.kept
        await dead.kill()
        await eventually(lambda: job.id in {one.id for one in lab.scheduler.allocations()})
        await lab.until(job.id, "running")
        assert len(lab.engines["a"].containers) == 1
        lab.ends(job.id)
        await ended(lab, job.id)


async def test_a_server_that_ends_while_it_takes_up_leaves_it_to_the_next(tmp_path: Path) -> None:
    first = Lab(node("a", 2), store=tmp_path, adopt_every=0.01)
    await first.scheduler.open()
    dead = Lab(of=first, store=tmp_path, adopt_every=0)
    await dead.scheduler.open()
    job = await dead.job(name="lr")
    await dead.kill()
    go_on, looked = threading.Event(), threading.Event()
    first.scheduler._store._thread.submit(lambda: (looked.set(), go_on.wait()))  # a disk that hangs
    await eventually(looked.is_set)
    await eventually(lambda: first.scheduler._store._thread._work_queue.qsize() > 0)  # it looks, or has
    closing = asyncio.create_task(first.scheduler.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    async with Lab(of=dead, store=tmp_path) as lab:
        await lab.scheduler.restored()
        assert lab.scheduler.get(job.id).state is State.RUNNING
        lab.ends(job.id)
        await ended(lab, job.id)


@pytest.mark.parametrize("where", ["embedded", "memory"])
async def test_without_a_next_server_a_job_ends_with_its_program(tmp_path: Path, where: str) -> None:
    options = {"store": tmp_path, "embedded": True} if where == "embedded" else {}
    async with Lab(node("a"), **options) as lab:
        job = await lab.job(name="lr")
        await lab.scheduler.close()
        over = lab.scheduler.get(job.id)
        assert (over.state, over.reason, over.outputs) == (State.ENDED, EndReason.RELEASED, "/home/me/outputs/lr")


async def test_what_is_kept_stays_until_the_allocation_is_forgotten(tmp_path: Path) -> None:
    async with Lab(node("a"), store=tmp_path, keep_ended=1) as lab:
        first = await lab.running()
        lab.scheduler.keep(first.id, "usage", b"1")
        lab.scheduler.keep("nobody", "usage", b"1")
        await lab.end(first.id)
        assert await lab.scheduler.kept(first.id, "usage") == b"1"
    async with Lab(of=lab, store=tmp_path, keep_ended=1) as lab:
        assert await lab.scheduler.kept(first.id, "usage") == b"1"
        assert await lab.scheduler.kept("nobody", "usage") is None
        await lab.end((await lab.running()).id)
        assert await lab.scheduler.kept(first.id, "usage") is None

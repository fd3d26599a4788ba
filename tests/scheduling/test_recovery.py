"""What a scheduler that died left: what goes on, what is queued again, what is ended; and nothing is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from helpers.fakes import node
from helpers.lab import Lab, eventually
from helpers.lives import HERE, LIMITS, Life

from jupyter_gpufit.errors import LaunchError, NodeUnreachable
from jupyter_gpufit.models import EndReason, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Entry, Ledger
from jupyter_gpufit.scheduling.events import Failure, Instruction


class Next:
    """The ledger of the scheduler that comes after the one of `life`."""

    def __init__(self, life: Life, now: float = 2000, remembered: bool = False) -> None:
        self.ledger = Ledger("another id", LIMITS)
        self.now = now
        remember = {"x"} if remembered else set()
        self.out = self.ledger.restore([life.entry], now, "the server died", remember)

    def __call__(self, event: type[ev.Event], **fields: object) -> list[Instruction]:
        self.out = self.ledger.handle(event(id="x", **fields), self.now)
        return self.work

    @property
    def entry(self) -> Entry:
        return self.ledger.entries["x"]

    @property
    def work(self) -> list[Instruction]:
        return [what for what in self.out if not isinstance(what, ev.Publish | ev.Save | ev.Notify | ev.Wake)]


@pytest.mark.parametrize("step", ["placed", "prepared", "running", "stopping"])
def test_what_cannot_go_on_stays_reserved_until_it_is_gone(step: str) -> None:
    life = Life()
    if step == "placed":
        life(ev.Placed, placement=HERE)
    elif step == "prepared":
        life.prepare()
    else:
        life.run()
    if step == "stopping":
        life(ev.ReleaseAsked, message="enough")
    after = Next(life, remembered=step != "running")
    assert after.work == [ev.StopUnit(id="x", node="n1", unit=None)]
    assert any(isinstance(what, ev.Publish) for what in after.out)
    [claim] = after.ledger.claims("n1")
    assert (claim.gpus, claim.scheduler) == ({"G0": 8, "G1": 8}, "another id")
    after(ev.UnitGone)
    ended = after.entry.allocation
    assert (ended.state, after.ledger.claims("n1")) == (State.ENDED, [])
    expected = (EndReason.RELEASED, "enough") if step == "stopping" else (EndReason.FAILED, "the server died")
    assert (ended.reason, ended.message) == expected


def test_a_running_one_whose_kernel_is_remembered_goes_on() -> None:
    life = Life(time="1h")
    life.run()
    unit, before = life.entry.unit, life.it
    after = Next(life, now=life.now + 100, remembered=True)
    assert unit is not None
    assert after.work == [ev.TakeBack(id="x", unit=unit)]
    assert after.entry.allocation == before, "nothing of it has changed"
    [claim] = after.ledger.claims("n1")
    assert (claim.gpus, claim.container) == ({"G0": 8, "G1": 8}, unit.id)
    assert any(isinstance(what, ev.Publish) for what in after.out)
    after(ev.TakenBack, kernel_id=before.kernel_id)
    assert after.entry.state is State.RUNNING
    # Its time goes on where it was.
    after.now = float(before.expires or 0) + 1
    assert after(ev.Woken) == [ev.StopKernel(id="x", kernel_id=before.kernel_id)]
    assert after.entry.allocation.reason is EndReason.EXPIRED


def test_one_whose_time_was_over_meanwhile_ends_in_good_order() -> None:
    life = Life(time="1h")
    life.run()
    after = Next(life, now=life.now + 7200, remembered=True)
    assert after(ev.Woken) == [], "its kernel is being taken back: that comes first"
    assert after.entry.state is State.STOPPING
    assert after(ev.TakenBack, kernel_id="k") == [ev.StopKernel(id="x", kernel_id="k")]


@pytest.mark.parametrize("how", ["restarting", "stopped"])
def test_one_that_was_being_restarted_is_half_made(how: str) -> None:
    life = Life()
    life.run()
    life(ev.StopAsked if how == "stopped" else ev.RestartAsked)
    if how == "restarting":
        life(ev.UnitGone)
    after = Next(life, remembered=True)
    assert after.work == [ev.StopUnit(id="x", node="n1", unit=None)]


def test_one_that_had_been_restarted_goes_on_though_it_has_not_answered() -> None:
    life = Life()
    life.run()
    life(ev.RestartAsked)
    [prepare] = life(ev.UnitGone)
    assert isinstance(prepare, ev.Prepare)
    second = Unit(id="U2", name=prepare.launch.name, node="n1", allocation="x")
    life(ev.Prepared, unit=second)
    life(ev.LaunchAsked)
    life(ev.UnitStarted, ports=(1, 2, 3, 4, 5))
    after = Next(life, remembered=True)
    assert after.work == [ev.TakeBack(id="x", unit=second)]
    # A restart after that makes a unit with a name that none before it can have.
    after(ev.TakenBack, kernel_id="k")
    after(ev.RestartAsked)
    [again] = after(ev.UnitGone)
    assert isinstance(again, ev.Prepare)
    assert int(again.launch.name.rpartition("-")[2]) > int(prepare.launch.name.rpartition("-")[2]) + 1
    assert again.launch.host_ports == (1, 2, 3, 4, 5)


def test_one_that_cannot_be_taken_back_ends_with_the_reason() -> None:
    life = Life()
    life.run()
    after = Next(life, remembered=True)
    after(ev.TakeBackFailed, failure=Failure.ERROR, message="there is no kernel 'gpufit' here")
    assert after.entry.allocation.message == "its kernel could not be taken back: there is no kernel 'gpufit' here"
    after(ev.KernelStopped)
    after(ev.UnitGone)
    assert (after.entry.state, after.entry.allocation.reason) == (State.ENDED, EndReason.FAILED)
    assert after.ledger.claims("n1") == []


def test_a_release_while_it_is_taken_back_waits_for_that() -> None:
    life = Life()
    life.run()
    after = Next(life, remembered=True)
    assert after(ev.ReleaseAsked) == []
    assert after(ev.TakenBack, kernel_id="k") == [ev.StopKernel(id="x", kernel_id="k")]


def test_a_unit_that_is_gone_is_as_one_that_died_while_we_watched() -> None:
    life = Life()
    life.run()
    after = Next(life, remembered=True)
    after(ev.UnitExited, unit="U1", message="its container was removed")
    after(ev.TakenBack, kernel_id="k")
    assert after.entry.allocation.message == "its container was removed"
    assert after.entry.state is State.RUNNING
    assert [type(what) for what in after(ev.RestartAsked)] == [ev.StopUnit]


def test_a_request_that_was_queued_is_queued_for_the_rest_of_its_time() -> None:
    life = Life(wait="10m")
    life(ev.NotPlaced, message="nothing fits")
    began = life.now
    after = Next(life, now=began + 300)
    assert after.work == []
    assert (after.entry.state, after.entry.allocation.created) == (State.PENDING, began)
    assert after.ledger.queue() == [after.entry]
    assert after.ledger.retry_waiting(after.now) == [ev.Place(id="x", attempt=0)]
    after(ev.NotPlaced, message="nothing fits")
    after.now = began + 599
    after(ev.Woken)
    assert after.entry.state is State.PENDING
    after.now = began + 600
    after(ev.Woken)
    assert (after.entry.state, after.entry.allocation.reason) == (State.ENDED, EndReason.REJECTED)


def test_a_queued_request_of_a_kernel_that_died_with_the_server_has_nothing_to_undo() -> None:
    life = Life(hosted=False, wait="1h")
    life(ev.NotPlaced, message="nothing fits")
    after = Next(life)
    assert after.entry.state is State.ENDED
    assert after.entry.allocation.message == "the server died"
    after.ledger.forget("x")
    assert after.ledger.entries == {}


# --- the scheduler, over fakes


async def test_a_kernel_is_taken_back_and_goes_on(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=2)
    [unit] = dead.engines["a"].containers
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    async with lab:
        gate = lab.script.hold("kernel:back")
        assert lab.scheduler.get(before.id).state is State.RUNNING
        assert lab.scheduler.resuming(before.id)
        assert lab.held("a") == set(before.gpus)
        restored = lab.scheduler.restored()
        gate.open()
        await restored
        assert not lab.scheduler.resuming(before.id)
        assert lab.host.taken_back == [before.kernel_id]
        assert lab.script.seen[:1] == ["take_over"], "its unit comes before its kernel"
        now = lab.scheduler.get(before.id)
        assert (now.id, now.kernel_id, now.gpus, now.expires) == (
            before.id,
            before.kernel_id,
            before.gpus,
            before.expires,
        )
        assert list(lab.engines["a"].containers) == [unit]
        await lab.end(before.id)


async def test_a_server_that_goes_on_takes_back_what_waited_for_another_in_vain(tmp_path: Path) -> None:
    async with Lab(node("a"), store=tmp_path, adopt_every=0.02, outlive=0.05) as lab:
        dead = Lab(of=lab, store=tmp_path, adopt_every=0)
        await dead.scheduler.open()
        before = await dead.running(gpus=1)
        starting = dead.script.hold("kernel:prepared")
        half = await dead.request(gpus=1)
        await starting.arrived.wait()
        await dead.kill()
        await eventually(lambda: lab.host.taken_back == [before.kernel_id])
        await lab.scheduler.restored()
        now = lab.scheduler.get(before.id)
        assert (now.state, now.gpus, now.kernel_id) == (State.RUNNING, before.gpus, before.kernel_id)
        assert (await lab.until(half.id, "ended")).reason is EndReason.FAILED
        await lab.end(before.id)


async def test_a_unit_that_ended_meanwhile_is_told_of(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    [unit] = dead.engines["a"].containers
    await dead.kill()
    dead.engines["a"].crash(unit, sentence="killed for memory")
    async with Lab(of=dead, store=tmp_path) as lab:
        await lab.scheduler.restored()
        await eventually(lambda: lab.scheduler.get(before.id).message == "killed for memory")
        ended = await lab.until(before.id, "ended")  # nobody restarts it
        assert "nobody restarted it" in ended.message


async def test_a_node_that_came_back_while_no_server_ran_is_not_unreachable_any_more(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    dead.launchers[0].on_trouble("no answer")
    assert dead.scheduler.get(before.id).unreachable_since is not None
    await dead.kill()
    async with Lab(of=dead, store=tmp_path) as lab:
        await lab.scheduler.restored()
        now = lab.scheduler.get(before.id)
        assert (now.state, now.unreachable_since, now.message) == (State.RUNNING, None, "")
        await lab.end(before.id)


async def test_a_kernel_manager_that_does_not_take_it_back_in_time_is_said_in_words(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path, kernel_stop_within=0.1)
    lab.may_leave = False
    lab.script.hold("kernel:back")
    async with lab:
        ended = await lab.until(before.id, "ended")
        assert "could not be taken back: the kernel manager did not do it within" in ended.message


async def test_a_unit_that_cannot_be_taken_over_now_does_not_keep_its_kernel(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    lab.script.fail("take_over", NodeUnreachable("no answer"))
    async with lab:
        await lab.scheduler.restored()
        assert lab.scheduler.get(before.id).state is State.RUNNING
        assert lab.script.seen.count("take_over") == 2


async def test_what_the_host_cannot_take_back_is_ended_and_removed(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    lab.may_leave = False
    lab.script.fail("kernel:back", LaunchError("there is no such kernel"))
    async with lab:
        ended = await lab.until(before.id, "ended")
        assert ended.message.startswith("its kernel could not be taken back: there is no such kernel")
        assert lab.scheduler.recall(before.id) is None, "nothing secret is kept of what ended"


async def test_keep_leaves_what_runs_and_what_waits_to_the_next_one(tmp_path: Path) -> None:
    lab = Lab(node("a"), store=tmp_path)
    await lab.scheduler.open()
    before = await lab.running(gpus=1)
    half = lab.script.hold("prepare:made")
    starting = await lab.request(gpus=1)
    await half.arrived.wait()
    waiting = await lab.request(gpus=2, wait="10m")
    await lab.scheduler.close(release=False)
    assert len(lab.engines["a"].containers) == 1
    async with Lab(of=lab, store=tmp_path) as again:
        await again.scheduler.restored()
        assert again.host.taken_back == [before.kernel_id]
        assert again.scheduler.get(starting.id).reason is EndReason.CANCELLED
        assert again.scheduler.get(waiting.id).state is State.PENDING
        assert again.scheduler.get(waiting.id).created == waiting.created
        await again.end(before.id)
        assert (await again.until(waiting.id, "running")).gpus == ("GPU-a-0", "GPU-a-1")


@pytest.mark.parametrize("how", ["kept", "killed", "released"])
async def test_one_that_ends_while_it_takes_back_leaves_that_to_the_next(how: str, tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path)
    gate = lab.script.hold("kernel:back")
    await lab.scheduler.open()
    await gate.arrived.wait()
    if how == "killed":
        await lab.kill()
    elif how == "kept":
        await lab.scheduler.close(release=False)
    else:
        closing = asyncio.create_task(lab.scheduler.close())
        await eventually(lambda: lab.scheduler.get(before.id).state is State.STOPPING)
        gate.open()
        await closing
    async with Lab(of=lab, store=tmp_path) as again:
        await again.scheduler.restored()
        now = again.scheduler.get(before.id)
        assert now.state is (State.ENDED if how == "released" else State.RUNNING)
        assert again.host.taken_back == ([] if how == "released" else [before.kernel_id])
        assert len(again.engines["a"].containers) == (0 if how == "released" else 1)


async def test_an_embedded_one_keeps_a_ledger_and_takes_nothing_back(tmp_path: Path) -> None:
    dead = Lab(node("a"), store=tmp_path, embedded=True)
    await dead.scheduler.open()
    before = await dead.running(gpus=1)
    assert dead.scheduler.recall(before.id) is None
    await dead.kill()
    lab = Lab(of=dead, store=tmp_path, embedded=True)
    lab.may_leave = False
    async with lab:
        ended = await lab.until(before.id, "ended")
        assert (ended.reason, lab.engines["a"].containers) == (EndReason.FAILED, {})


async def test_an_embedded_one_leaves_a_dead_servers_alone_and_a_server_sweeps_both(tmp_path: Path) -> None:
    server = Lab(node("a"), store=tmp_path)
    await server.scheduler.open()
    mine = await server.running(gpus=1)
    await server.kill()
    program = Lab(of=server, store=tmp_path, embedded=True)
    await program.scheduler.open()
    assert program.scheduler.allocations(ended=True) == []
    theirs = await program.running(gpus=1)
    await program.kill()
    assert len(server.engines["a"].containers) == 2
    async with Lab(of=server, store=tmp_path) as again:
        await again.scheduler.restored()
        assert again.scheduler.get(mine.id).state is State.RUNNING
        assert (await again.until(theirs.id, "ended")).reason is EndReason.FAILED
        assert len(server.engines["a"].containers) == 1


async def test_nothing_is_remembered_after_the_end(tmp_path: Path) -> None:
    async with Lab(node("a"), store=tmp_path) as lab:
        made = await lab.running(gpus=1)
        lab.scheduler.remember(made.id, b"a-secret-key-of-a-kernel", "more")
        assert lab.scheduler.recall(made.id, "more") == b"a-secret-key-of-a-kernel"
        await lab.scheduler._store.flush()
        assert b"a-secret-key" in on_disk(tmp_path)
        await lab.end(made.id)
        assert lab.scheduler.recall(made.id, "more") is None
        lab.scheduler.remember(made.id, b"a-secret-key-too-late", "more")
        await lab.scheduler._store.flush()
        await eventually(lambda: b"a-secret-key" not in on_disk(tmp_path))  # deleted, and not only marked so


def on_disk(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())

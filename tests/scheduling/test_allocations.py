"""The state machine, life by life: which instructions each event leads to."""

from __future__ import annotations

import pytest
from helpers.lives import HERE, LIMITS, Life, kinds

from jupyter_gpufit.models import EndReason, Placement, Progress, Request, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Ledger, Overcommitted
from jupyter_gpufit.scheduling.events import Failure, Work

# --- the usual life


def test_a_hosted_life_from_request_to_end() -> None:
    life = Life(time="2h")
    assert life.work == [ev.Place(id="x", attempt=0)]
    [prepare] = life(ev.Placed, placement=HERE, cards={"G0": "c0"}, totals={"G0": 40})
    assert isinstance(prepare, ev.Prepare)
    assert prepare.node == "n1"
    assert prepare.launch.gpus == {"G0": 8, "G1": 8}
    assert (prepare.launch.cards, prepare.launch.totals) == ({"G0": "c0"}, {"G0": 40})
    # the reservation is told before anything is done about it
    assert kinds(life.out)[:3] == [ev.Publish, ev.Save, ev.Notify]
    assert life.held == {"G0": 8, "G1": 8}
    assert (life.it.state, life.it.node, life.it.gpus) == (State.STARTING, "n1", ("G0", "G1"))

    life(ev.Progressed, progress=Progress(phase="pulling", current=1, total=2))
    assert kinds(life.out) == [ev.Notify], "progress is shown, and not worth the disk"
    assert life.it.progress == Progress(phase="pulling", current=1, total=2)

    unit = Unit(id="U", name=prepare.launch.name, node="n1", allocation="x")
    assert life(ev.Prepared, unit=unit) == [ev.StartKernel(id="x")]
    assert life(ev.LaunchAsked) == [ev.StartUnit(id="x", unit=unit)]
    life(ev.UnitStarted, ports=(1, 2, 3, 4, 5))
    assert life.it.progress == Progress(phase="connecting")
    life(ev.KernelReady, kernel_id="k")
    assert life.it.state is State.STARTING, "its kernel manager does not list it yet"
    life.now += 7
    life(ev.KernelStarted, kernel_id="k")
    assert (life.it.state, life.it.kernel_id, life.it.progress) == (State.RUNNING, "k", None)
    assert life.it.expires == 1007 + 7200, "the time runs from when it can be used"

    assert life(ev.ReleaseAsked) == [ev.StopKernel(id="x", kernel_id="k")]
    assert (life.it.state, life.it.reason) == (State.STOPPING, EndReason.RELEASED)
    assert life(ev.KernelStopped) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    assert life.held == {"G0": 8, "G1": 8}, "held until it is confirmed gone"
    life(ev.UnitGone)
    assert (life.it.state, life.it.ended, life.it.unit) == (State.ENDED, 1007, None)
    assert life.held == {}
    assert kinds(life.out) == [ev.Publish, ev.Save, ev.Notify]
    assert life(ev.ReleaseAsked) == []
    assert life.out == []


def test_with_a_kernel_of_somebody_else_no_kernel_is_started() -> None:
    life = Life(hosted=False)
    life.prepare()
    assert life.work == []
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    life(ev.KernelReady, kernel_id="kernel-of-somebody")
    assert life.it.state is State.RUNNING


def test_every_version_is_greater_than_the_one_before_and_said() -> None:
    life = Life()
    versions = [life.it.version]
    life(ev.Placed, placement=HERE)
    for event, fields in [
        (ev.Prepared, {"unit": Unit(id="U", name="u", node="n1", allocation="x")}),
        (ev.LaunchAsked, {}),
        (ev.UnitStarted, {}),
        (ev.KernelReady, {"kernel_id": "k"}),
        (ev.ReleaseAsked, {}),
    ]:
        versions.append(life.it.version)
        life(event, **fields)
        changed = life.it.version != versions[-1]
        assert changed == any(isinstance(what, ev.Notify) for what in life.out)
    assert versions == sorted(versions)


# --- refusal, waiting, other schedulers


def test_a_refused_request_leaves_nothing() -> None:
    life = Life()
    life(ev.NotPlaced, message="no")
    assert life.out == []
    assert life.ledger.entries == {}


def test_waiting_keeps_the_place_until_there_is_room_or_time_is_over() -> None:
    life = Life(wait="10m")
    life(ev.NotPlaced, message="nothing fits")
    assert (life.it.state, life.it.message) == (State.PENDING, "nothing fits")
    assert life.ledger.retry_waiting(life.now) == [ev.Place(id="x", attempt=0)]
    assert life.ledger.retry_waiting(life.now) == [], "one at a time"
    life(ev.NotPlaced, message="nothing fits")
    assert life.wake(599) == []
    assert life.it.state is State.PENDING
    life.wake(1)
    assert (life.it.state, life.it.reason) == (State.ENDED, EndReason.REJECTED)
    assert life.it.message == "waited 10 m; nothing fits"


def test_one_that_waits_is_placed_when_there_is_room() -> None:
    life = Life(wait=30)
    life(ev.NotPlaced, message="nothing fits")
    life.ledger.retry_waiting(life.now)
    life.prepare()
    assert life.ledger.retry_waiting(life.now) == []
    assert life.wake(31) == []
    assert life.it.state is State.STARTING


def test_what_can_never_fit_does_not_wait() -> None:
    life = Life(wait="10m")
    life(ev.NotPlaced, message="never", never=True)
    assert life.ledger.entries == {}


def test_a_lost_claim_is_placed_again_and_given_up_after_so_many() -> None:
    life = Life()
    for attempt in (1, 2):
        life(ev.Placed, placement=HERE)
        assert life.held
        again = life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="taken by another")
        assert again == [ev.Place(id="x", attempt=attempt)]
        assert life.held == {}, "between two tries nothing is held"
        assert (life.it.state, life.it.node) == (State.STARTING, None)
    life(ev.Placed, placement=HERE)
    life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="taken by another")
    assert (life.it.state, life.it.reason) == (State.ENDED, EndReason.REJECTED)
    assert life.held == {}


def test_nothing_fits_after_a_lost_claim_is_tried_again_as_the_other_may_yield() -> None:
    life = Life()
    life(ev.Placed, placement=HERE)
    life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="taken")
    assert life(ev.NotPlaced, message="nothing fits") == [ev.Place(id="x", attempt=2)]
    assert life(ev.NotPlaced, message="nothing fits") == []
    assert (life.it.reason, life.it.message) == (EndReason.REJECTED, "taken; then nothing fits")


def test_a_node_that_does_not_answer_is_avoided() -> None:
    life = Life()
    life(ev.Placed, placement=HERE)
    again = life(ev.PrepareFailed, failure=Failure.UNREACHABLE, message="n1 does not answer")
    assert again == [ev.Place(id="x", attempt=1, avoid=("n1",))]


def test_overcommitment_is_refused_and_changes_nothing() -> None:
    ledger = Ledger("sched", LIMITS)
    ledger.handle(ev.Requested(id="y", name="y", owner="me", request=Request(gpus=1, shared=True)), 0)
    ledger.handle(ev.Placed(id="y", placement=Placement(node="n1", gpus=("G1",), memory=(1,))), 0)
    life = Life(ledger=ledger)
    with pytest.raises(Overcommitted, match="G1"):
        life(ev.Placed, placement=HERE)
    assert life.it.state is State.PENDING
    assert Work.PLACE in life.entry.busy
    shared = Life(ledger=Ledger("sched", LIMITS), shared=True)
    shared.ledger.handle(ev.Requested(id="y", name="y", owner="me", request=Request(gpus=1, shared=True)), 0)
    shared.ledger.handle(ev.Placed(id="y", placement=Placement(node="n1", gpus=("G1",), memory=(1,))), 0)
    assert kinds(shared(ev.Placed, placement=HERE)) == [ev.Prepare]


# --- failing starts


@pytest.mark.parametrize("failure", [Failure.ERROR, Failure.UNEXPECTED])
def test_a_failed_preparation_ends_it(failure: Failure) -> None:
    life = Life()
    life(ev.Placed, placement=HERE)
    work = life(ev.PrepareFailed, failure=failure, message="no space left on n1")
    if failure is Failure.UNEXPECTED:  # who knows what is there: look, by its label
        assert work == [ev.StopUnit(id="x", node="n1", unit=None)]
        life(ev.UnitGone)
    assert (life.it.state, life.it.reason, life.it.message) == (State.ENDED, EndReason.FAILED, "no space left on n1")
    assert life.held == {}


def test_a_failed_start_waits_for_the_kernel_manager_and_then_removes_the_unit() -> None:
    life = Life()
    unit = life.prepare()
    life(ev.LaunchAsked)
    assert life(ev.UnitStartFailed, failure=Failure.ERROR, message="it exited with 1", logs="a\nb\n") == []
    assert life(ev.KernelStartFailed, failure=Failure.ERROR, message="start failed") == [
        ev.StopUnit(id="x", node="n1", unit=unit)
    ]
    life(ev.UnitGone, logs="a\nb\nc\n")
    assert (life.it.state, life.it.reason) == (State.ENDED, EndReason.FAILED)
    assert life.it.message == "it exited with 1; its last lines were:\na\nb"


def test_a_kernel_host_that_does_not_come_back_is_cancelled_and_then_left_behind() -> None:
    life = Life()
    unit = life.prepare()
    life(ev.LaunchAsked)
    life(ev.UnitStartFailed, failure=Failure.ERROR, message="no")
    assert life.wake(10) == [ev.Cancel(id="x", work=Work.START_KERNEL)]
    assert life.wake(10) == [ev.StopUnit(id="x", node="n1", unit=unit)]


def test_a_unit_that_dies_before_its_kernel_answers_ends_it() -> None:
    life = Life(hosted=False)
    unit = life.prepare()
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    assert life(ev.UnitExited, unit="another", message="killed") == []
    assert life(ev.UnitExited, unit=unit.id, message="killed") == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life(ev.UnitGone, logs="last words\n")
    assert (life.it.reason, life.it.message) == (EndReason.FAILED, "killed; its last lines were:\nlast words")


def test_a_prepared_unit_that_nobody_launches_does_not_hold_its_gpus_for_ever() -> None:
    life = Life(hosted=False)
    life.prepare()
    assert life.wake(59) == []
    assert kinds(life.wake(1)) == [ev.StopUnit]
    life(ev.UnitGone)
    assert (life.it.reason, life.held) == (EndReason.FAILED, {})
    assert "1 m" in life.it.message


def test_a_kernel_that_never_answers_is_given_up() -> None:
    life = Life(hosted=False)
    life.prepare()
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    assert kinds(life.wake(100)) == [ev.StopUnit]
    assert life.it.reason is EndReason.FAILED


# --- release at every moment


@pytest.mark.parametrize("work", [Work.PLACE, Work.PREPARE, Work.START_KERNEL, Work.START_UNIT])
def test_release_cancels_what_is_under_way_and_waits_for_its_undoing(work: Work) -> None:
    life = Life()
    failure = {"failure": Failure.CANCELLED, "message": "it was cancelled"}
    if work is Work.PLACE:
        assert life(ev.ReleaseAsked) == [ev.Cancel(id="x", work=Work.PLACE)]
        assert life.it.state is State.STOPPING
        assert life(ev.NotPlaced, message="cancelled") == []
    elif work is Work.PREPARE:
        life(ev.Placed, placement=HERE)
        assert life(ev.ReleaseAsked) == [ev.Cancel(id="x", work=Work.PREPARE)]
        assert life.held
        assert life(ev.PrepareFailed, **failure) == [ev.StopUnit(id="x", node="n1", unit=None)]
        life(ev.UnitGone)
    elif work is Work.START_KERNEL:
        unit = life.prepare()
        assert life(ev.ReleaseAsked) == [ev.Cancel(id="x", work=Work.START_KERNEL)]
        assert life(ev.KernelStartFailed, **failure) == [ev.StopUnit(id="x", node="n1", unit=unit)]
        life(ev.UnitGone)
    else:
        unit = life.prepare()
        life(ev.LaunchAsked)
        both = [ev.Cancel(id="x", work=Work.START_KERNEL), ev.Cancel(id="x", work=Work.START_UNIT)]
        assert life(ev.ReleaseAsked) == both
        assert life(ev.KernelStartFailed, **failure) == []
        assert life(ev.UnitStartFailed, **failure) == [ev.StopUnit(id="x", node="n1", unit=unit)]
        life(ev.UnitGone)
    assert (life.it.state, life.it.reason, life.held) == (State.ENDED, EndReason.CANCELLED, {})


def test_a_cancellation_that_comes_too_late_stops_what_was_made() -> None:
    life = Life()
    life(ev.Placed, placement=HERE)
    life(ev.ReleaseAsked)
    unit = Unit(id="U", name="u", node="n1", allocation="x")
    assert life(ev.Prepared, unit=unit) == [ev.StopUnit(id="x", node="n1", unit=unit)]


def test_the_host_may_have_the_unit_stopped_while_it_winds_up_a_start() -> None:
    """`KernelHost.start`, cancelled, waits for `stop_unit`, while the ending waits for it: no deadlock."""
    life = Life()
    unit = life.prepare()
    life(ev.LaunchAsked)
    life(ev.ReleaseAsked)
    life(ev.StopAsked)
    assert life(ev.UnitStartFailed, failure=Failure.CANCELLED, message="") == [
        ev.StopUnit(id="x", node="n1", unit=unit)
    ]
    life(ev.UnitGone)
    assert life.it.unit is None
    life(ev.KernelStartFailed, failure=Failure.CANCELLED, message="")
    assert life.it.state is State.ENDED


def test_release_from_within_the_stop_of_its_kernel() -> None:
    """What a provisioner does in `KernelHost.stop`: has the unit stopped, then releases; `StopKernel` is under way."""
    life = Life()
    unit = life.run()
    assert life(ev.ReleaseAsked) == [ev.StopKernel(id="x", kernel_id="k")]
    assert life(ev.StopAsked) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life(ev.UnitGone)
    assert life(ev.ReleaseAsked, kernel_gone=True) == []
    assert life.it.state is State.STOPPING
    assert life(ev.KernelStopped) == []
    assert life.it.state is State.ENDED


def test_a_kernel_that_its_manager_shuts_down_is_not_shut_down_again() -> None:
    life = Life()
    life.run()
    life(ev.StopAsked)
    life(ev.UnitGone)
    life(ev.ReleaseAsked, kernel_gone=True, message="its kernel was shut down")
    assert life.work == []
    assert (life.it.state, life.it.reason) == (State.ENDED, EndReason.RELEASED)


# --- death, restart


def test_a_restart_has_the_same_gpus_and_ports_and_another_unit_name() -> None:
    life = Life(time=5000)
    first = life.run()
    held = life.held
    assert life(ev.StopAsked) == [ev.StopUnit(id="x", node="n1", unit=first)]
    life(ev.UnitGone)
    assert (life.it.state, life.it.unit, life.held) == (State.RUNNING, None, held)
    [prepare] = life(ev.RestartAsked)
    assert isinstance(prepare, ev.Prepare)
    assert (prepare.launch.host_ports, prepare.launch.gpus) == ((1, 2, 3, 4, 5), held)
    assert prepare.launch.name != first.name
    second = life.prepared(prepare)
    assert life.work == [], "whoever restarts runs the kernel"
    life(ev.LaunchAsked)
    assert life.work == [ev.StartUnit(id="x", unit=second)]
    life(ev.UnitStarted, ports=(1, 2, 3, 4, 5))
    life(ev.KernelReady, kernel_id="k")
    assert (life.it.state, life.it.message, life.it.expires) == (State.RUNNING, "", 6000)
    assert life.wake(4999) == []
    assert kinds(life.wake(1)) == [ev.StopKernel]
    assert life.it.reason is EndReason.EXPIRED


def test_a_restart_without_a_stop_stops_first() -> None:
    life = Life()
    first = life.run()
    assert life(ev.RestartAsked) == [ev.StopUnit(id="x", node="n1", unit=first)]
    assert kinds(life(ev.UnitGone)) == [ev.Prepare]
    assert life(ev.RestartAsked) == [], "it is under way"


def test_a_dead_kernel_is_waited_for_and_then_ends_it() -> None:
    life = Life()
    unit = life.run()
    life(ev.UnitExited, unit=unit.id, message="killed for memory: limit 16 GiB")
    assert (life.it.state, life.it.message) == (State.RUNNING, "killed for memory: limit 16 GiB")
    assert life.wake(29) == []
    assert life.wake(1) == [ev.StopKernel(id="x", kernel_id="k")]
    assert life(ev.KernelStopped) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life(ev.UnitGone, logs="MemoryError\n")
    assert life.it.reason is EndReason.FAILED
    assert life.it.message == (
        "killed for memory: limit 16 GiB; nobody restarted it within 30 s; its last lines were:\nMemoryError"
    )


def test_a_dead_kernel_that_is_restarted_in_time_goes_on() -> None:
    life = Life()
    unit = life.run()
    life(ev.UnitExited, unit=unit.id, message="it died")
    life.wake(20)
    life(ev.StopAsked)
    life(ev.UnitGone)
    [prepare] = life(ev.RestartAsked)
    life.prepared(prepare)
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    life(ev.KernelReady, kernel_id="k")
    assert life.wake(1000) == []
    assert (life.it.state, life.it.message) == (State.RUNNING, "")


def test_a_restart_whose_claim_is_lost_tries_for_the_same_gpus_and_then_ends() -> None:
    life = Life()
    life.run()
    life(ev.StopAsked)
    life(ev.UnitGone)
    [prepare] = life(ev.RestartAsked)
    assert isinstance(prepare, ev.Prepare)
    assert prepare.attempt == 0
    for attempt in (1, 2):
        [again] = life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="taken")
        assert isinstance(again, ev.Prepare)
        assert (again.attempt, again.launch.gpus) == (attempt, prepare.launch.gpus)
    assert kinds(life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="taken")) == [ev.StopKernel]
    assert life.it.reason is EndReason.REJECTED


def test_a_restart_on_a_node_that_does_not_answer_may_be_tried_again() -> None:
    life = Life()
    life.run()
    life(ev.StopAsked)
    life(ev.UnitGone)
    life(ev.RestartAsked)
    for pause in (1, 2):  # a moment's silence is nothing
        assert life(ev.PrepareFailed, failure=Failure.UNREACHABLE, message="n1 does not answer") == []
        assert life.wake(pause) == [ev.StopUnit(id="x", node="n1", unit=None)]
        assert kinds(life(ev.UnitGone)) == [ev.Prepare]
    assert life(ev.PrepareFailed, failure=Failure.UNREACHABLE, message="n1 does not answer") == []
    assert not life.entry.restarting
    assert life.held
    # what that try may have left is removed first
    assert life(ev.RestartAsked) == [ev.StopUnit(id="x", node="n1", unit=None)]
    assert kinds(life(ev.UnitGone)) == [ev.Prepare]


def test_there_is_nothing_to_restart_while_it_waits_for_a_place() -> None:
    life = Life(wait="1h")
    life(ev.Placed, placement=HERE)
    life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="taken")
    for _ in range(2):
        life(ev.NotPlaced, message="nothing fits")
    assert life.entry.waiting
    assert life(ev.RestartAsked) == []
    assert life(ev.StopAsked) == []
    life.ledger.retry_waiting(life.now)
    life.prepare()


def test_stop_asked_during_a_restart_cancels_it_and_keeps_the_gpus() -> None:
    life = Life()
    life.run()
    life(ev.RestartAsked)
    life(ev.UnitGone)
    assert life(ev.StopAsked) == [ev.Cancel(id="x", work=Work.PREPARE)]
    assert life(ev.PrepareFailed, failure=Failure.CANCELLED, message="") == []
    assert (life.it.state, life.it.unit) == (State.RUNNING, None)
    assert life.held
    assert kinds(life.wake(30)) == [ev.StopKernel]


def test_how_a_kernel_died_is_told_until_somebody_ends_the_next_one() -> None:
    life = Life()
    unit = life.run()
    life(ev.UnitExited, unit=unit.id, message="killed for memory")
    assert life.it.message == "killed for memory"
    life(ev.StopAsked)
    life(ev.UnitGone)
    told = "killed for memory; its last lines were:\nout of memory"
    [prepare] = life(ev.RestartAsked, died=told)
    assert life.it.message == told
    life.prepared(prepare)
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    life(ev.KernelReady, kernel_id="k")
    assert (life.it.state, life.it.message, life.it.progress) == (State.RUNNING, told, None)
    life(ev.StopAsked)
    assert life.it.message == ""
    life(ev.UnitGone)
    life.wake(30)
    assert life.it.message == "its kernel was stopped; nobody restarted it within 30 s"


def test_a_restart_by_hand_has_no_death_to_tell_of() -> None:
    life = Life()
    life.run()
    life(ev.StopAsked)
    life(ev.UnitGone)
    [prepare] = life(ev.RestartAsked)
    life.prepared(prepare)
    life(ev.LaunchAsked)
    life(ev.UnitStarted)
    life(ev.KernelReady, kernel_id="k")
    assert (life.it.state, life.it.message) == (State.RUNNING, "")


def test_a_failed_launch_of_a_restart_ends_it() -> None:
    life = Life()
    life.run()
    life(ev.RestartAsked)
    [prepare] = life(ev.UnitGone)
    life.prepared(prepare)
    life(ev.LaunchAsked)
    assert life(ev.UnitStartFailed, failure=Failure.ERROR, message="it exited") == [
        ev.StopKernel(id="x", kernel_id="k")
    ]
    assert life.it.reason is EndReason.FAILED


# --- what does not go away


def test_a_node_that_does_not_answer_keeps_its_gpus_reserved_until_it_does() -> None:
    life = Life(hosted=False)
    unit = life.run()
    life(ev.ReleaseAsked)
    life(ev.KernelStopped)
    for pause in (1, 2, 4, 8, 16, 30, 30):
        assert life(ev.StopFailed, failure=Failure.UNREACHABLE, message="n1 does not answer") == []
        assert life.held
        assert "n1 does not answer" in life.it.message
        assert life.wake(pause - 0.5) == []
        assert life.wake(0.5) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life(ev.UnitGone)
    assert (life.it.state, life.it.reason, life.it.message) == (State.ENDED, EndReason.RELEASED, "")


def test_a_unit_that_cannot_be_removed_blocks_its_gpus_visibly_and_for_as_long_as_it_takes() -> None:
    life = Life(hosted=False)
    life.run()
    life(ev.ReleaseAsked)
    life(ev.KernelStopped)
    for _ in range(50):
        life(ev.StopFailed, failure=Failure.ERROR, message="device or resource busy")
        assert kinds(life.wake(30)) == [ev.StopUnit]
    assert life.it.state is State.STOPPING
    assert "device or resource busy" in life.it.message
    assert life.held

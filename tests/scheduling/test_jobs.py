"""The life of a job in the ledger, from event to event."""

from __future__ import annotations

import pytest
from helpers.lives import HERE, LIMITS, Life, kinds

from jupyter_gpufit.models import EndReason, Job, Progress, Request, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Ledger
from jupyter_gpufit.scheduling.entries import SWEEP_GAP
from jupyter_gpufit.scheduling.events import Failure, Instruction


class JobLife(Life):
    """... of a job: `retries`, and what else it is, go into `job`."""

    def __init__(self, retries: int = 0, env: dict[str, str] | None = None, **wishes: object) -> None:
        super().__init__(job=Job(run="train.py", retries=retries, env=env or {}), **{"wait": 3600, **wishes})

    def run(self) -> Unit:
        unit = self.prepare()
        assert self.work == [ev.RunJob(id="x", unit=unit)]
        assert self(ev.UnitStarted) == []
        assert self.it.state is State.RUNNING
        return unit

    def exits(self, code: int, message: str = "", **how: bool) -> list[Instruction]:
        assert self.entry.unit is not None
        message = message or f"ended with exit code {code}"
        return self(ev.UnitExited, unit=self.entry.unit.id, code=code, message=message, **how)

    def gone(self, **fields: str) -> list[Instruction]:
        return self(ev.UnitGone, **fields)

    def again(self) -> Unit:
        """Its next attempt, from the moment in which nothing is left of the one before."""
        assert self.gone() == []
        [prepare] = self.wake(LIMITS.again_most)
        unit = self.prepared(prepare)
        assert self.work == [ev.RunJob(id="x", unit=unit)]
        self(ev.UnitStarted)
        return unit


def test_a_job_runs_and_ends_by_itself() -> None:
    life = JobLife(time="1d")
    unit = life.run()
    assert (life.it.kernel_id, life.it.attempt, life.it.started) == (None, 1, 1000.0)
    assert life.it.expires == 1000.0 + 86400
    life.now += 7380
    assert life.exits(0) == [ev.StopUnit(id="x", node="n1", unit=unit, collect=True)]
    assert (life.it.state, life.it.reason, life.it.exit_code) == (State.STOPPING, EndReason.FINISHED, 0)
    life(ev.Progressed, progress=Progress(phase="collecting", current=1))
    assert life.it.progress is not None
    life.gone(logs="done\n", outputs="/home/me/outputs/train")
    assert (life.it.state, life.it.outputs) == (State.ENDED, "/home/me/outputs/train")
    assert life.it.message == "finished after 2 h 3 m; its outputs are in /home/me/outputs/train"
    assert life.held == {}


def test_what_a_kernel_manager_says_means_nothing_to_a_job() -> None:
    life = JobLife()
    life.run()
    before = life.it
    for event, fields in (
        (ev.StopAsked, {}),
        (ev.RestartAsked, {}),
        (ev.LaunchAsked, {}),
        (ev.KernelReady, {"kernel_id": "k"}),
        (ev.KernelFailed, {"message": "no"}),
    ):
        assert life(event, **fields) == []
    assert life.it == before


def test_one_that_fails_says_how_with_its_last_lines() -> None:
    life = JobLife()
    life.run()
    life.now += 12
    [stop] = life.exits(3)
    assert isinstance(stop, ev.StopUnit)
    assert stop.collect
    life.gone(logs="Traceback\nValueError: lr\n", said="its outputs are not here: no room on this machine")
    assert (life.it.reason, life.it.exit_code) == (EndReason.FAILED, 3)
    assert life.it.message.splitlines() == [
        "failed with exit code 3 after 12 s; its outputs are not here: no room on this machine; its last lines were:",
        "Traceback",
        "ValueError: lr",
    ]


def test_retries_on_the_same_gpus_with_a_pause_that_grows() -> None:
    life = JobLife(retries=2, time="1h")
    first = life.run()
    expires = life.it.expires
    life.now += 12
    assert life.exits(1) == [ev.StopUnit(id="x", node="n1", unit=first, collect=True)]
    assert (life.it.state, life.held) == (State.RUNNING, {"G0": 8, "G1": 8})
    assert life.it.message == "failed with exit code 1 after 12 s (attempt 1 of 3)"
    assert life.gone(outputs="/o") == []
    assert life.wake(LIMITS.again_first - 0.1) == []
    [prepare] = life.wake(0.1)
    assert isinstance(prepare, ev.Prepare)
    assert (prepare.launch.workspace, prepare.launch.gpus) == (True, {"G0": 8, "G1": 8})
    second = life.prepared(prepare)
    assert second.name != first.name
    assert life.it.attempt == 2
    life(ev.UnitStarted)
    assert (life.it.expires, life.it.started) == (expires, 1000.0), "its time is that of all attempts"
    life.exits(137, "killed for memory: limit 16 GiB")
    assert life.it.message.endswith("(attempt 2 of 3): killed for memory: limit 16 GiB")
    life.gone()
    assert life.wake(LIMITS.again_first * 2 - 0.1) == []
    [prepare] = life.wake(0.1)
    life.prepared(prepare)
    life(ev.UnitStarted)
    life.now += 5
    life.exits(3)
    life.gone()
    assert (life.it.state, life.it.reason, life.it.attempt) == (State.ENDED, EndReason.FAILED, 3)
    assert life.it.message == "failed with exit code 3 after 5 s (attempt 3 of 3); its outputs are in /o"


def test_what_its_image_lacks_no_retry_brings() -> None:
    life = JobLife(retries=5)
    life.run()
    life.exits(90, "image 'a' has no torchrun; use one with PyTorch")
    life.gone()
    assert life.it.reason is EndReason.FAILED
    assert life.it.message.endswith(": image 'a' has no torchrun; use one with PyTorch")


def test_an_end_of_its_node_is_no_failure_of_its_own() -> None:
    life = JobLife()
    life.run()
    life.exits(137, "ended when its engine was started anew", with_node=True)
    assert life.it.state is State.RUNNING
    life.again()
    assert life.it.attempt == 2
    life.exits(1)
    life.gone()
    assert life.it.reason is EndReason.FAILED, "this one is"


def test_released_between_two_attempts_it_ends_at_once() -> None:
    life = JobLife(retries=1)
    life.run()
    life.exits(1)
    life.gone()
    assert life(ev.ReleaseAsked) == []
    assert (life.it.state, life.it.reason, life.held) == (State.ENDED, EndReason.RELEASED, {})
    assert life.wake(100) == []


def test_released_while_outputs_come_home_it_ends_with_them() -> None:
    life = JobLife()
    life.run()
    life.exits(0)
    assert life(ev.ReleaseAsked) == []
    life.gone(outputs="/o")
    assert (life.it.reason, life.it.message) == (EndReason.FINISHED, "finished after 0 s; its outputs are in /o")


def test_a_running_one_that_is_released_ends_in_good_order() -> None:
    life = JobLife()
    unit = life.run()
    assert life(ev.ReleaseAsked) == [ev.StopUnit(id="x", node="n1", unit=unit, collect=True)]
    life.gone(outputs="/o")
    assert (life.it.reason, life.it.message) == (EndReason.RELEASED, "its outputs are in /o")


def test_one_that_was_not_started_leaves_no_outputs() -> None:
    life = JobLife()
    life(ev.Placed, placement=HERE)
    assert life(ev.ReleaseAsked) == [ev.Cancel(id="x", work=ev.Work.PREPARE)]
    unit = Unit(id="U", name="u", node="n1", allocation="x")
    assert life(ev.Prepared, unit=unit) == [ev.StopUnit(id="x", node="n1", unit=unit)]
    life.gone()
    assert (life.it.state, life.it.reason) == (State.ENDED, EndReason.CANCELLED)


@pytest.mark.parametrize("how", ["fails", "unreachable", "server dies", "released"])
def test_a_later_attempt_that_did_not_come_to_run_brings_no_outputs_home(how: str) -> None:
    """It was being given those of the attempts before: what there is of them may be cut off in the middle."""
    life = JobLife(retries=3)
    life.run()
    life.exits(1)
    life.gone(outputs="/o")
    [prepare] = life.wake(LIMITS.again_most)
    unit = life.prepared(prepare)
    if how == "server dies":
        after = Next(life)
        assert after.work == [ev.TakeBack(id="x", unit=unit)]
        [stop] = after(ev.TakenBack, kernel_id=None)
    elif how == "released":
        life(ev.ReleaseAsked)
        [stop] = life(ev.UnitStartFailed, failure=Failure.CANCELLED, message="it was cancelled")
    else:
        failure = Failure.ERROR if how == "fails" else Failure.UNREACHABLE
        [stop] = life(ev.UnitStartFailed, failure=failure, message="cut off")
    assert stop == ev.StopUnit(id="x", node="n1", unit=None if how == "server dies" else unit)


def test_its_variables_are_forgotten_with_its_end() -> None:
    life = JobLife(env={"TOKEN": "secret"})
    life.run()
    assert life.it.request.job is not None
    assert life.it.request.job.env == {"TOKEN": "secret"}
    life.exits(0)
    life.gone()
    assert life.it.request.job.env == {"TOKEN": ""}


def test_where_no_node_will_have_it_it_waits() -> None:
    life = JobLife()
    life(ev.Placed, placement=HERE)
    for _ in range(LIMITS.attempts - 1):
        life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="another was faster")
        life(ev.Placed, placement=HERE)
    life(ev.PrepareFailed, failure=Failure.CLAIM_LOST, message="another was faster")
    while life.work:
        life(ev.NotPlaced, message="nothing is free")
    assert (life.it.state, life.entry.waiting) == (State.PENDING, True)


def test_the_rest_of_a_sweep_waits_behind_its_first_that_does() -> None:
    ledger = Ledger("sched", LIMITS)
    asked = Request(wait=99, job=Job(run="train.py"))
    out = ledger.handle(ev.Requested(id="b", name="b", owner="me", request=asked, behind="nothing is free"), 1000.0)
    assert kinds(out) == [ev.Save, ev.Notify, ev.Wake]
    entry = ledger.entries["b"]
    assert (entry.waiting, entry.allocation.message, entry.allocation.version) == (True, "nothing is free", 1)
    assert kinds(ledger.retry_waiting(1000.0)) == [ev.Place]


@pytest.mark.parametrize("how", ["unfit", "unreachable", "silent"])
def test_a_node_that_cannot_start_it_is_left(how: str) -> None:
    life = JobLife()
    unit = life.prepare()
    if how == "unfit":
        work = life(ev.UnitStartFailed, failure=Failure.UNFIT, message="no room on n1")
    else:  # it may run there: that is found out before it is placed elsewhere, if the node can be asked
        work = life(ev.UnitStartFailed, failure=Failure.UNREACHABLE, message="no room on n1")
        assert (work, life.held) == ([ev.StopUnit(id="x", node="n1", unit=unit, collect=True)], {"G0": 8, "G1": 8})
        if how == "unreachable":
            work = life.gone()
        for _ in range(3 if how == "silent" else 0):
            assert kinds(work) == [ev.StopUnit]
            work = life(ev.StopFailed, failure=Failure.UNREACHABLE, message="no answer") or life.wake(1)
            work = work or life.wake(LIMITS.retry_most)
    assert work == [ev.Clean(id="x", node="n1"), ev.Place(id="x", attempt=1, avoid=("n1",))]
    assert (life.it.state, life.it.node, life.held) == (State.PENDING, None, {})
    life(ev.NotPlaced, message="nothing is free")
    assert life.it.message == "no room on n1; it waits for another node; nothing is free"
    assert life.entry.deadlines["wait"] == 1000 + 3600, "for as long as it said"
    assert life.entry.failures == 0


def test_one_that_cannot_be_started_has_failed() -> None:
    life = JobLife(retries=1)
    life.prepare()
    [stop] = life(ev.UnitStartFailed, failure=Failure.ERROR, message="train.py is gone", logs="gone")
    assert isinstance(stop, ev.StopUnit)
    assert life.it.state is State.STARTING
    life.gone()
    [prepare] = life.wake(LIMITS.again_most)
    life.prepared(prepare)
    life(ev.UnitStartFailed, failure=Failure.ERROR, message="train.py is gone", logs="gone")
    life.gone()
    assert (life.it.reason, life.it.message) == (
        EndReason.FAILED,
        "train.py is gone; its last lines were:\ngone",
    )


def test_when_its_node_is_lost_it_waits_for_another_in_its_old_place() -> None:
    life = JobLife(wait=1, time="1h")
    life.run()
    life.now += 100
    life(ev.NodeSilent, why="no answer")
    assert "its job is kept, and started elsewhere after 10 m" in life.it.message
    work = life.wake(LIMITS.lost_after)
    assert work == [ev.Clean(id="x", node="n1"), ev.Place(id="x", attempt=1, avoid=("n1",))]
    assert (life.it.state, life.it.node, life.it.unit, life.held) == (State.PENDING, None, None, {})
    why = "node 'n1' did not answer for 10 m, and counts as lost"
    assert life.it.message == f"{why}; it waits for another node"
    life(ev.NotPlaced, message="nothing is free", never=True)
    assert life.entry.deadlines["wait"] == life.now + LIMITS.requeue_wait
    assert life.entry.rank == (0, 1000.0)
    assert "n1" in life.it.message
    elsewhere = ev.Placed(id="x", placement=HERE.__class__(node="n2", gpus=("H0", "H1"), memory=(8, 8)))
    life.out = life.ledger.handle(elsewhere, life.now)
    [prepare] = life.work
    life.prepared(prepare)
    life(ev.UnitStarted)
    assert (life.it.state, life.it.node, life.it.attempt) == (State.RUNNING, "n2", 2)
    assert life.it.message == why, "nobody else says why it is the second attempt"
    assert life.it.expires == life.now + 3600, "a time that nothing came of does not count"
    assert life.it.started == 1000.0


def test_one_whose_node_is_lost_while_it_is_stopped_there_goes_when_that_is_given_up() -> None:
    life = JobLife(retries=1)
    unit = life.run()
    life.exits(1)
    life(ev.NodeSilent, why="no answer")
    assert life.wake(LIMITS.lost_after) == [ev.Cancel(id="x", work=ev.Work.STOP_UNIT)]
    assert life.it.state is State.RUNNING
    assert kinds(life(ev.StopFailed, failure=Failure.CANCELLED, message="it was cancelled")) == [ev.Clean, ev.Place]
    assert life.it.state is State.PENDING
    assert life(ev.UnitExited, unit=unit.id, code=1, message="late") == []


def test_what_is_said_of_a_lost_node_while_it_is_left_does_not_follow_to_the_next_one() -> None:
    life = JobLife(retries=1, time="1h")
    life.run()
    life.exits(1)
    life(ev.NodeSilent, why="no answer")
    life.wake(LIMITS.lost_after)
    life(ev.NodeSilent, why="no route")  # before the work that was cut off there has come back
    life(ev.ExtendAsked, seconds=60)
    life(ev.StopFailed, failure=Failure.CANCELLED, message="it was cancelled")
    elsewhere = ev.Placed(id="x", placement=HERE.__class__(node="n2", gpus=("H0", "H1"), memory=(8, 8)))
    life.out = life.ledger.handle(elsewhere, life.now)
    [prepare] = life.work
    life.prepared(prepare)
    life(ev.UnitStarted)
    assert life.wake(LIMITS.lost_after) == []
    assert (life.it.state, life.it.node) == (State.RUNNING, "n2")


def test_nodes_that_will_not_have_it_do_not_make_it_wait_for_longer() -> None:
    life = JobLife(wait=1)
    life.run()
    life(ev.NodeSilent, why="no answer")
    life.wake(LIMITS.lost_after)
    over = life.now + LIMITS.requeue_wait
    life(ev.NotPlaced, message="nothing is free")
    life.now += 1000
    life.prepare()
    life(ev.UnitStartFailed, failure=Failure.UNFIT, message="its disk is full")
    life(ev.NotPlaced, message="nothing is free")
    assert life.entry.deadlines["wait"] == over


def test_released_while_it_leaves_a_lost_node_what_may_be_left_there_is_known() -> None:
    life = JobLife(retries=1)
    life.run()
    life.exits(1)
    life(ev.NodeSilent, why="no answer")
    life.wake(LIMITS.lost_after)
    assert life(ev.ReleaseAsked) == [ev.Clean(id="x", node="n1")]
    life(ev.StopFailed, failure=Failure.CANCELLED, message="it was cancelled")
    life.wake(LIMITS.retry_most)
    assert (life.it.state, life.it.reason, life.held) == (State.ENDED, EndReason.RELEASED, {})


def test_one_whose_time_is_over_in_the_moment_its_node_is_lost_begins_anew() -> None:
    life = JobLife(time=LIMITS.lost_after)
    life.run()
    life(ev.NodeSilent, why="no answer")
    assert kinds(life.wake(LIMITS.lost_after)) == [ev.Clean, ev.Place]
    assert life.it.expires is None


def test_one_that_waits_for_a_stop_tries_that_again_and_again() -> None:
    life = JobLife(retries=1)
    life.run()
    life.exits(1)
    for _ in range(20):
        assert life(ev.StopFailed, failure=Failure.UNREACHABLE, message="no answer") == []
        [stop] = life.wake(LIMITS.retry_most)
        assert isinstance(stop, ev.StopUnit)
        assert stop.collect
    life.again()
    assert life.it.state is State.RUNNING


def test_an_attempt_whose_unit_cannot_be_removed_is_counted_once() -> None:
    life = JobLife(retries=1)
    unit = life.run()
    life.exits(1)
    life(ev.StopFailed, failure=Failure.UNREACHABLE, message="no answer")
    assert life(ev.UnitExited, unit=unit.id, code=1, message="ended with exit code 1") == [], "told of it again"
    assert (life.it.state, life.entry.failures) == (State.RUNNING, 1)
    [stop] = life.wake(LIMITS.retry_most)
    assert isinstance(stop, ev.StopUnit)


def test_a_node_that_will_not_have_its_next_attempt_is_left() -> None:
    life = JobLife(retries=1)
    life.run()
    life.exits(1)
    life.gone()
    life.wake(LIMITS.again_most)
    work = life(ev.PrepareFailed, failure=Failure.UNFIT, message="its disk is full")
    assert kinds(work) == [ev.Clean, ev.Place]
    assert life.it.message == "its disk is full; it waits for another node"


# --- the queue


def test_jobs_of_a_sweep_let_others_go_between() -> None:
    ledger = Ledger("sched", LIMITS)
    for turn in range(3):
        job = Job(run="train.py", turn=turn)
        asked = ev.Requested(id=f"s{turn}", name=f"s{turn}", owner="me", request=Request(wait=99, job=job))
        ledger.handle(asked, 1000.0)
        ledger.handle(ev.NotPlaced(id=f"s{turn}", message="nothing is free"), 1000.0)
    ledger.handle(ev.Requested(id="k", name="k", owner="you", request=Request(wait=99)), 1000.0 + SWEEP_GAP - 1)
    ledger.handle(ev.NotPlaced(id="k", message="nothing is free"), 1000.0 + SWEEP_GAP - 1)
    assert [entry.id for entry in ledger.queue()] == ["s0", "k", "s1", "s2"]


# --- after a server that died or stopped


class Next(JobLife):
    """What the next server makes of it."""

    def __init__(self, life: JobLife, jobs: bool = True) -> None:
        self.ledger = Ledger("another id", LIMITS)
        self.now = life.now + 50
        self.out = self.ledger.restore([life.entry], self.now, "the server died", jobs=jobs)
        self.entry = self.ledger.entries["x"]


def test_a_running_one_goes_on() -> None:
    life = JobLife(time="1h")
    unit, before = life.run(), life.it
    after = Next(life)
    assert after.work == [ev.TakeBack(id="x", unit=unit)]
    assert after.it == before
    assert after(ev.TakenBack, kernel_id=None) == []
    assert after.it.state is State.RUNNING
    assert after.exits(0) == [ev.StopUnit(id="x", node="n1", unit=unit, collect=True)]
    after.gone()
    assert after.it.message == "finished after 50 s"


def test_one_that_ended_meanwhile_is_found_so() -> None:
    life = JobLife()
    unit = life.run()
    after = Next(life)
    assert after.exits(0) == [], "as soon as it is taken up"
    assert after(ev.TakenBack, kernel_id=None) == [ev.StopUnit(id="x", node="n1", unit=unit, collect=True)]
    after.gone()
    assert (after.it.reason, after.it.message) == (EndReason.FINISHED, "finished"), "nobody knows when"


@pytest.mark.parametrize("trouble", ["", "a fault"])
def test_one_that_failed_meanwhile_starts_again_when_it_is_taken_up(trouble: str) -> None:
    life = JobLife(retries=1)
    unit = life.run()
    after = Next(life)
    assert after.exits(1) == [], "one thing at a time"
    if trouble:
        work = after(ev.TakeBackFailed, failure=Failure.UNEXPECTED, message=trouble)
    else:
        work = after(ev.TakenBack, kernel_id=None)
    assert work == [ev.StopUnit(id="x", node="n1", unit=unit, collect=True)]
    after.again()
    assert (after.it.attempt, after.entry.failures) == (2, 1)


def test_one_that_cannot_be_taken_up_starts_again() -> None:
    life = JobLife()
    life.run()
    after = Next(life)
    [stop] = after(ev.TakeBackFailed, failure=Failure.UNEXPECTED, message="a fault")
    assert isinstance(stop, ev.StopUnit)
    after.again()
    assert after.it.message == "it could not be taken up: a fault"


@pytest.mark.parametrize("step", ["placed", "prepared", "starting", "again", "pause", "prepared again"])
def test_what_was_half_made_is_made_anew(step: str) -> None:
    life = JobLife(retries=3)
    if step == "placed":
        life(ev.Placed, placement=HERE)
    elif step in ("prepared", "starting"):
        life.prepare()
    else:
        life.run()
        life.exits(1)
        if step != "again":
            life.gone()
        if step == "prepared again":
            [prepare] = life.wake(LIMITS.again_most)
            life.prepared(prepare)
    state, attempt = life.it.state, life.it.attempt
    if step in ("starting", "prepared again"):  # cut off by the end of the server, which told of it
        assert life(ev.UnitStartFailed, failure=Failure.CANCELLED, message="it was cancelled") == []
    elif step == "placed":
        assert life(ev.PrepareFailed, failure=Failure.CANCELLED, message="it was cancelled") == []
    after = Next(life)
    if after.work == [ev.TakeBack(id="x", unit=life.entry.unit)]:  # who knows: it is looked at first
        assert after.exits(1) == [], "of what is not known to have run"
        after(ev.TakenBack, kernel_id=None)
    [stop] = after.work
    assert isinstance(stop, ev.StopUnit)
    assert (stop.unit, after.it.state, after.held) == (None, state, {"G0": 8, "G1": 8})
    work = after.gone() or after.wake(LIMITS.again_most)
    [prepare] = work
    after.prepared(prepare)
    after(ev.UnitStarted)
    assert after.it.state is State.RUNNING
    assert after.it.attempt == (attempt if step == "prepared again" else max(1, attempt + (state is State.RUNNING)))


@pytest.mark.parametrize("step", ["first", "again"])
def test_one_that_was_started_and_nobody_wrote_it_down_goes_on(step: str) -> None:
    life = JobLife(retries=3)
    if step == "first":
        life.prepare()
    else:
        life.run()
        life.exits(1)
        life.gone()
        [prepare] = life.wake(LIMITS.again_most)
        life.prepared(prepare)
    unit = life.it.unit
    after = Next(life)
    assert after.work == [ev.TakeBack(id="x", unit=unit)]
    assert after(ev.UnitStarted) == []
    assert (after.it.state, after.it.attempt) == (State.RUNNING, 1 if step == "first" else 2)
    assert after.exits(0) == []
    stop = ev.StopUnit(id="x", node="n1", unit=unit, collect=True)
    assert after(ev.TakenBack, kernel_id=None) == [stop]
    after.gone()
    assert (after.it.reason, after.it.message) == (EndReason.FINISHED, "finished")


def test_a_queued_one_waits_on() -> None:
    life = JobLife()
    life(ev.NotPlaced, message="nothing is free")
    after = Next(life)
    assert (after.work, after.it.state, after.entry.waiting) == ([], State.PENDING, True)
    assert after.entry.deadlines["wait"] == 1000 + 3600


def test_a_queued_one_whose_wait_is_over_waits_for_the_first_reports() -> None:
    life = JobLife(wait=10)
    life(ev.NotPlaced, message="nothing is free")
    after = Next(life)
    after.out = after.ledger.retry_waiting(after.now)
    after(ev.NotPlaced, message="nothing is free")
    assert after.it.state is State.PENDING
    after.wake(60)
    assert (after.it.state, after.it.reason) == (State.ENDED, EndReason.REJECTED)


def test_one_that_has_finished_ends_with_its_outputs() -> None:
    life = JobLife()
    life.run()
    life.exits(0)
    after = Next(life)
    assert after.work == [ev.StopUnit(id="x", node="n1", unit=None, collect=True)]
    after.gone(outputs="/o")
    assert (after.it.reason, after.it.exit_code) == (EndReason.FINISHED, 0)
    assert after.it.message == "finished after 0 s; its outputs are in /o"


def test_where_jobs_end_with_their_program_one_is_ended() -> None:
    life = JobLife()
    life.run()
    after = Next(life, jobs=False)
    assert kinds(after.work) == [ev.StopUnit]
    assert (after.it.state, after.it.message) == (State.STOPPING, "the server died")
    waits = JobLife()
    waits(ev.NotPlaced, message="nothing is free")
    after = Next(waits, jobs=False)
    assert (after.it.state, after.it.message) == (State.ENDED, "the server died")

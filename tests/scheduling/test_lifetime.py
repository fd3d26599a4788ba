"""Time limits in the state machine: what is said beforehand, what more time does, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpufit.models import Allocation, EndReason, Placement, Request, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Ledger, Limits
from jupyter_gpufit.scheduling.events import Event, Instruction

START = 1_000_000.0  # 13:46:40 UTC
UNIT = Unit(id="U1", name="u", node="n1", allocation="x")


class Life:
    """One allocation that runs since `START`, at a time that moves when told."""

    def __init__(self, running: bool = True, **wishes: Any) -> None:
        self.ledger = Ledger("sched", Limits())
        self.now = START
        self.out: list[Instruction] = []
        self.alarms: set[float] = set()
        self(ev.Requested, name="train", owner="me", request=Request(**wishes), kernel_id="k")
        self.entry = self.ledger.entries["x"]
        if running:
            self.run()

    def run(self) -> None:
        self(ev.Placed, placement=Placement(node="n1", gpus=("G0",), memory=(8,)))
        self(ev.Prepared, unit=UNIT)
        self(ev.LaunchAsked)
        self(ev.UnitStarted)
        self(ev.KernelReady, kernel_id="k")
        assert self.it.state is State.RUNNING

    def __call__(self, event: type[Event], **fields: Any) -> None:
        self.out = self.ledger.handle(event(id="x", **fields), self.now)
        self.alarms |= {what.at for what in self.out if isinstance(what, ev.Wake)}

    def until(self, moment: float) -> list[float]:
        """Let time pass, as the scheduler's alarm clock does; when it was warned."""
        warned = []
        while due := [at for at in self.alarms if at <= moment]:
            self.now = min(due)
            self.alarms.discard(self.now)
            before = self.it.warning
            self(ev.Woken)
            if self.it.warning not in ("", before):
                assert any(isinstance(what, ev.Notify) for what in self.out), "nobody is told"
                warned.append(self.now)
        self.now = moment
        return warned

    @property
    def it(self) -> Allocation:
        return self.entry.allocation


# --- warnings


def test_it_is_warned_ten_and_two_minutes_before_it_ends() -> None:
    life = Life(time="2h")
    end = START + 7200
    assert life.until(end - 1) == [end - 600, end - 120]
    assert life.it.state is State.RUNNING
    assert (life.it.warning_kind, life.it.warning_at) == ("time", end)
    life.until(end)
    assert (life.it.state, life.it.reason) == (State.STOPPING, EndReason.EXPIRED)
    assert life.it.message == "its time of 2 h is over"
    assert life.it.warning == "", "what it warned of has come"


def test_a_warning_says_what_when_and_what_to_do() -> None:
    life = Life(time="2h")
    life.until(START + 6600)
    assert life.it.warning == (
        "allocation 'train' ends in 10 m, at 15:46 UTC, when its time of 2 h is over: save what you need, or ask for "
        "more time with %gpufit extend train 1h"
    )
    life.until(START + 7080)
    assert "in 2 m, at 15:46 UTC" in life.it.warning
    assert life.it.public()["warning"] == life.it.warning
    assert not {"warning_kind", "warning_at"} & life.it.public().keys()


@pytest.mark.parametrize(
    ("time", "warned"),
    [("10m1s", [1, 481]), ("10m", [480]), ("121s", [1]), ("2m", []), ("30s", []), (None, [])],
)
def test_what_lies_before_the_start_is_not_warned_of(time: str | None, warned: list[float]) -> None:
    life = Life(time=time)
    assert life.until(START + 100_000) == [START + each for each in warned]
    assert (life.it.state is State.RUNNING) == (time is None)


def test_an_alarm_that_comes_late_warns_once_with_what_is_left() -> None:
    life = Life(time="2h")
    life.alarms = {START + 7200 - 60}  # a machine that slept
    assert life.until(START + 7199) == [START + 7140]
    assert "ends in 1 m" in life.it.warning


def test_time_is_warned_of_while_it_is_restarting() -> None:
    life = Life(time="20m")
    life(ev.StopAsked)
    life(ev.UnitGone)
    life(ev.RestartAsked)
    assert life.until(START + 600) == [START + 600]


# --- more time


def test_more_time_is_counted_from_when_it_would_end_and_takes_the_warning_back() -> None:
    life = Life(time="1h")
    end = START + 3600
    life.until(end - 300)
    assert life.it.warning
    life(ev.ExtendAsked, seconds=1800.0)
    assert (life.it.warning, life.it.warning_kind, life.it.warning_at) == ("", "", None)
    assert (life.it.expires, life.it.request.time) == (end + 1800, 5400)
    assert life.until(end + 1799) == [end + 1200, end + 1680]
    life.until(end + 1800)
    assert life.it.reason is EndReason.EXPIRED
    assert life.it.message == "its time of 1 h 30 m is over"


def test_whoever_asks_for_a_little_more_is_not_warned_of_it_at_once() -> None:
    life = Life(time="1h")
    end = START + 3600
    life.until(end - 300)
    life(ev.ExtendAsked, seconds=60.0)
    assert life.until(end) == [end + 60 - 120]
    life(ev.ExtendAsked, seconds=30.0)
    assert life.until(end + 89) == [], "90 s are left, and less than 2 m were when it was asked for"
    assert life.it.state is State.RUNNING
    life.until(end + 90)
    assert life.it.reason is EndReason.EXPIRED


def test_before_it_runs_more_time_is_more_of_what_it_will_have() -> None:
    life = Life(running=False, time="1h")
    life(ev.ExtendAsked, seconds=1800.0)
    assert (life.it.expires, life.it.request.time) == (None, 5400)
    life.now += 50
    life.run()
    assert life.it.expires == START + 50 + 5400


def test_one_without_a_limit_or_that_ends_gets_no_more() -> None:
    life = Life()
    life(ev.ExtendAsked, seconds=60.0)
    assert (life.it.expires, life.it.request.time, life.out) == (None, None, [])
    life = Life(time="1h")
    life(ev.ReleaseAsked)
    life(ev.ExtendAsked, seconds=60.0)
    assert life.it.request.time == 3600


def test_a_taken_back_one_is_warned_of_what_was_due_meanwhile() -> None:
    """What `recovery.py` does with one that a dead server left: it is armed again, at whatever time it is by then."""
    life = Life(time="2h")
    life.entry.deadlines.clear()
    life.alarms.clear()
    life.now = START + 7200 - 300
    life.ledger._now, life.ledger._out = life.now, []
    life.ledger._arm_time(life.entry)
    life.alarms |= {what.at for what in life.ledger._out if isinstance(what, ev.Wake)}
    assert life.until(life.now) == [START + 6600]


# --- doing nothing


def test_idleness_is_warned_of_and_activity_takes_that_back() -> None:
    life = Life()
    life(ev.Idled, until=START + 600)
    assert life.it.warning == (
        "allocation 'train' is released in 10 m, at 13:56 UTC: its kernel and its GPUs have nothing to do. To keep it, "
        "run a cell in it"
    )
    assert (life.it.warning_kind, life.it.warning_at) == ("idle", START + 600)
    life(ev.Stirred)
    assert (life.it.warning, life.it.warning_kind, life.it.warning_at) == ("", "", None)
    assert life.until(START + 10_000) == []
    life(ev.ReleaseAsked, reason=EndReason.IDLE, message="it did nothing")
    assert (life.it.state, life.it.reason, life.it.message) == (State.STOPPING, EndReason.IDLE, "it did nothing")


def test_activity_does_not_take_back_that_time_runs_out() -> None:
    life = Life(time="1h")
    life.until(START + 3000)
    life(ev.Stirred)
    assert life.it.warning_kind == "time"


def test_what_does_not_run_is_not_idle() -> None:
    life = Life(running=False)
    life(ev.Idled, until=START + 600)
    assert life.it.warning == ""

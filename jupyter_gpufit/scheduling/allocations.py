"""The allocation state machine: events in, instructions out (`events.py` lists both).

    pending ──→ starting ──→ running ──→ stopping ──→ ended
       Place       Prepare      (restarts   StopKernel
                   StartKernel   happen     StopUnit
                   StartUnit     in here)

Pure: no asyncio, no docker, no clock (every event comes with the moment it happened), no randomness. One `Ledger` holds
all allocations of a scheduler, because what one of them holds decides what the others may have.

How an ending goes is the same from everywhere: cancel what is under way; when that has come back, stop the kernel; then
stop the unit, again and again until it is confirmed gone; only then is it ended and are its GPUs free. So a GPU is
reserved from the moment of placement until nothing can be running on it any more.

Here is what follows from each event while an allocation starts, runs and ends. Beside it: `queueing.py` (where it goes,
and what waits), `jobs.py` (allocations without a kernel), `lifetime.py` (time limits), `outages.py` (nodes that do not
answer), `recovery.py` (what a scheduler that died left). The steps that events lead to are in `steps.py`, the accounts
in `bookkeeping.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..durations import format_duration
from ..models import EndReason, Progress, State
from . import events as ev
from .entries import UNIT_WORK, Entry, Limits, Overcommitted, with_lines
from .events import Event, Failure, Instruction, Work
from .jobs import KERNELS
from .recovery import Recovery

__all__ = ["Entry", "Ledger", "Limits", "Overcommitted"]

_MOMENTS = ("created", "started", "expires", "unreachable_since", "warning_at")
"""Of an allocation, those that move with the clock."""


class Ledger(Recovery):
    """All allocations of one scheduler (`entries`), and what they hold on each node (`claims`).

    Made and fed by the scheduler only. An entry that ended stays until `forget`.
    """

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """What to do about `event`, which happened at `now` (Unix time). One for no live allocation means nothing.

        Raises `Overcommitted`, and then has changed nothing.
        """
        self._now, self._out = now, []
        if isinstance(event, ev.Requested):
            self._requested(event)
            return self._out
        entry = self.entries.get(event.id)
        if entry is None or entry.state is State.ENDED:
            return []
        if entry.job is not None and isinstance(event, KERNELS):
            return []
        if isinstance(event, ev.Placed) and entry.live:
            self._check_free(entry, event.placement)
        work, react = _HANDLERS[type(event)]
        if work is not None:
            entry.busy.discard(work)
        before = entry.allocation
        if entry.moving and work is not None:
            self._go_elsewhere(entry)
        else:
            react(self, entry, event)
        if entry.id in self.entries:
            self._show_outages(entry)
            self._report(entry, before, save=not isinstance(event, ev.Progressed | ev.Ranked))
        return self._out

    def clock_set(self, by: float, now: float) -> list[Instruction]:
        """The clock was set by so many seconds, to `now`: what lies ahead stays as far ahead as it was."""
        out: list[Instruction] = []
        for entry in self.entries.values():
            if entry.state is State.ENDED:
                continue
            self._now, self._out = now, []
            before = entry.allocation
            entry.deadlines = {what: at + by for what, at in entry.deadlines.items()}
            entry.placed_at, entry.warned_until = entry.placed_at + by, entry.warned_until + by
            entry.began, entry.wait_until = (at and at + by for at in (entry.began, entry.wait_until))
            moments = {key: getattr(before, key) for key in _MOMENTS}
            self._set(entry, **{key: at + by for key, at in moments.items() if at is not None})
            if entry.deadlines:
                self._out.append(ev.Wake(id=entry.id, at=min(entry.deadlines.values())))
            self._show_outages(entry)
            self._report(entry, before)
            out += self._out
        return out

    # --- starting: unit, kernel, answer

    def _progressed(self, entry: Entry, event: ev.Progressed) -> None:
        if (Work.PREPARE in entry.busy and entry.live) or (entry.job is not None and entry.busy & UNIT_WORK):
            self._set(entry, progress=event.progress)

    def _prepared(self, entry: Entry, event: ev.Prepared) -> None:
        entry.launched = entry.restarting = entry.unsure = False
        entry.trouble, entry.tries = "", 0
        self._set(entry, unit=event.unit)
        if not entry.live:  # the cancellation came too late
            self._wind_down(entry)
        elif entry.stop_wanted:
            self._stop_unit(entry)
        elif entry.job is not None:
            self._run_job(entry, event.unit)
        else:
            self._set(entry, progress=Progress(phase="starting"))
            self._deadline(entry, "launch", self.limits.launch_within)
            if entry.hosted and not entry.kernel_up and Work.START_KERNEL not in entry.busy:
                self._begin(entry, Work.START_KERNEL, ev.StartKernel(id=entry.id))

    def _prepare_failed(self, entry: Entry, event: ev.PrepareFailed) -> None:
        lost, unreachable = event.failure is Failure.CLAIM_LOST, event.failure is Failure.UNREACHABLE
        elsewhere = lost or unreachable or event.failure is Failure.UNFIT
        undone = event.failure in (Failure.CLAIM_LOST, Failure.ERROR, Failure.UNFIT)
        entry.trouble, entry.unsure = event.message, not undone
        if not entry.live:
            self._wind_down(entry)
        elif entry.stop_wanted:
            self._vacant(entry)
        elif elsewhere and entry.state is State.STARTING and entry.places < self.limits.attempts:
            self._place_elsewhere(entry, event)
        elif lost and entry.state is State.RUNNING and entry.tries < self.limits.attempts:
            self._prepare(entry)  # a kernel that restarts keeps its GPUs: the other one may yield
        elif unreachable and self._waits_for_node(entry):
            pass
        elif entry.job is not None and event.failure is Failure.CANCELLED:
            entry.unsure = True  # by the end of this scheduler: the next one starts it
        elif entry.job is not None and elsewhere:
            self._move(entry, event.message)
        elif unreachable and entry.state is State.RUNNING:
            self._set(entry, message=event.message)
            self._vacant(entry)
        else:
            self._end(entry, _why(event.failure), event.message)

    def _place_elsewhere(self, entry: Entry, event: ev.PrepareFailed) -> None:
        """Nothing of it was started; what an unreachable node may keep of it is found by its label, and removed."""
        if event.failure is not Failure.CLAIM_LOST and entry.allocation.node is not None:
            entry.avoid = (*entry.avoid, entry.allocation.node)
        entry.contended = event.failure is Failure.CLAIM_LOST
        self._forget_silence(entry)
        entry.unsure, entry.cards, entry.broken = False, {}, {}
        progress = Progress(phase="placing", message=event.message)
        self._set(entry, node=None, gpus=(), memory=(), totals=(), progress=progress)
        self._place(entry)

    def _launch_asked(self, entry: Entry, event: ev.LaunchAsked) -> None:
        if entry.live and entry.prepared and entry.unit is not None:
            entry.launched = True
            entry.deadlines.pop("launch", None)
            self._begin(entry, Work.START_UNIT, ev.StartUnit(id=entry.id, unit=entry.unit))

    def _unit_started(self, entry: Entry, event: ev.UnitStarted) -> None:
        entry.ports = event.ports or entry.ports
        if not entry.live:
            self._wind_down(entry)
        elif entry.stop_wanted:
            self._stop_unit(entry)
        elif entry.job is not None:
            self._job_runs(entry)
        elif entry.state is State.STARTING:
            self._set(entry, progress=Progress(phase="connecting"))
            self._deadline(entry, "ready", self.limits.ready_within)
        else:
            self._set(entry, progress=Progress(phase="connecting"), message=entry.died)

    def _unit_start_failed(self, entry: Entry, event: ev.UnitStartFailed) -> None:
        if not entry.live:
            self._wind_down(entry)
        elif entry.stop_wanted:
            self._stop_unit(entry)
        elif entry.job is not None:
            self._job_not_started(entry, event)
        else:
            self._end(entry, _why(event.failure), with_lines(event.message, event.logs), patient=True)

    def _kernel_start_failed(self, entry: Entry, event: ev.KernelStartFailed) -> None:
        if entry.live:
            self._end(entry, _why(event.failure), event.message)
        else:
            self._wind_down(entry)

    def _ready(self, entry: Entry, event: ev.KernelStarted | ev.KernelReady | ev.TakenBack) -> None:
        if entry.job is not None:
            self._taken_up(entry)
            return
        entry.kernel_up = True
        self._set(entry, kernel_id=event.kernel_id)
        if not entry.live:
            self._wind_down(entry)
            return
        if entry.state is State.STARTING and Work.START_KERNEL in entry.busy:
            return  # it answers, but its kernel manager does not list it yet: `KernelStarted` comes in a moment
        entry.deadlines.pop("ready", None)
        if entry.state is State.STARTING:
            self._set(entry, state=State.RUNNING, message="", progress=None)
            self._begin_time(entry)
        elif "restart" not in entry.deadlines and not entry.restarting:
            self._set(entry, message=entry.died, progress=None)

    # --- running: death and restart

    def _kernel_failed(self, entry: Entry, event: ev.KernelFailed) -> None:
        self._end(entry, EndReason.FAILED, event.message, patient=True)

    def _unit_exited(self, entry: Entry, event: ev.UnitExited) -> None:
        if entry.unit is None or entry.unit.id != event.unit or not entry.live or entry.busy & UNIT_WORK:
            return  # not ours any more, or the work under way finds out by itself
        if entry.job is not None and (entry.restarting or not entry.began):
            pass  # this attempt is over, its unit could not be removed so far; or it is just being taken up
        elif entry.job is not None:
            self._job_exited(entry, event)
        elif entry.state is State.STARTING:
            self._end(entry, EndReason.FAILED, event.message, patient=True)
        else:  # the kernel manager may restart it
            self._set(entry, message=event.message)
            self._deadline(entry, "restart", self.limits.restart_within)

    def _stop_asked(self, entry: Entry, event: ev.StopAsked) -> None:
        entry.restarting = False
        if entry.live:
            entry.deadlines.pop("retry", None)
        if "restart" not in entry.deadlines:  # nothing has died now: somebody wants it gone
            self._forget_death(entry)
        entry.stop_wanted = entry.unit is not None or bool(entry.busy & UNIT_WORK)
        if not entry.live:  # from within `KernelHost.start` or `stop`: the unit may go before they come back
            self._wind_down(entry)
        elif entry.busy & UNIT_WORK:
            self._cancel(entry, Work.PREPARE, Work.START_UNIT)
        elif entry.unit is not None or entry.unsure:
            self._stop_unit(entry)
        elif entry.allocation.node is not None and "restart" not in entry.deadlines:
            self._vacant(entry)  # a restart that waited for its node is given up

    def _forget_death(self, entry: Entry) -> None:
        if entry.died and entry.allocation.message == entry.died:
            self._set(entry, message="")
        entry.died = ""

    def _restart_asked(self, entry: Entry, event: ev.RestartAsked) -> None:
        starts = entry.busy & {Work.PREPARE, Work.START_UNIT, Work.PLACE}
        if not entry.live or entry.allocation.node is None or starts:
            return  # there is nothing to restart, or it is under way
        entry.restarting, entry.tries, entry.patience = True, 0, 0
        for what in ("restart", "retry"):
            entry.deadlines.pop(what, None)
        entry.died = event.died
        self._set(entry, message=event.died, progress=Progress(phase="creating", message="restarting"))
        if Work.STOP_UNIT in entry.busy:
            return
        if entry.unit is not None or entry.unsure:
            self._stop_unit(entry)
        else:
            self._prepare(entry)

    def _used(self, entry: Entry, event: ev.Used) -> None:
        self._set(entry, usage=event.usage)

    def _over_used(self, entry: Entry, event: ev.OverUsed) -> None:
        if event.message and entry.live:
            self._warn(entry, "memory", event.message)
        else:
            self._unwarn(entry, "memory")

    # --- stopping

    def _release_asked(self, entry: Entry, event: ev.ReleaseAsked) -> None:
        if event.kernel_gone:
            entry.kernel_up = False
        reason = event.reason
        if reason is EndReason.RELEASED and entry.state in (State.PENDING, State.STARTING):
            reason = EndReason.CANCELLED
        self._end(entry, reason, event.message)

    def _kernel_stopped(self, entry: Entry, event: ev.KernelStopped) -> None:
        self._wind_down(entry)

    def _unit_gone(self, entry: Entry, event: ev.UnitGone) -> None:
        entry.deadlines.pop("retry", None)
        entry.stop_failures = 0
        entry.unsure = entry.launched = entry.stop_wanted = False
        self._set(entry, unit=None)
        if event.outputs is not None:
            self._set(entry, outputs=event.outputs)
        if not entry.live:
            said = entry.said if entry.job is None else self._last_word(entry, event)
            failed = entry.allocation.reason is EndReason.FAILED
            self._set(entry, message=with_lines(said, event.logs) if failed else said)
            self._wind_down(entry)
        elif entry.job is not None:
            self._next_attempt(entry)
        elif entry.restarting:
            self._prepare(entry)
        else:
            self._vacant(entry)

    # --- time

    def _woken(self, entry: Entry, event: ev.Woken) -> None:
        due = {what for what, at in entry.deadlines.items() if at <= self._now}
        for what in due:
            del entry.deadlines[what]
        if "lost" in due:
            self._lost(entry)
            if entry.job is not None and entry.live:
                due = set()  # it begins anew elsewhere, and so does its time
        if not entry.live:
            if "kernel" in due and Work.START_KERNEL in entry.busy:
                self._insist(entry)
            self._wind_down(entry)
        for what, react in _DUE.items():
            if what in due and entry.live:
                react(self, entry)
        if entry.deadlines:
            self._out.append(ev.Wake(id=entry.id, at=min(entry.deadlines.values())))

    def _not_restarted(self, entry: Entry) -> None:
        if entry.allocation.unreachable_since is not None or entry.busy & UNIT_WORK:  # nobody could, or is at it
            self._deadline(entry, "restart", self.limits.restart_within)
            return
        died, within = entry.allocation.message or "its kernel was stopped", self.limits.restart_within
        self._end(entry, EndReason.FAILED, f"{died}; nobody restarted it within {format_duration(within)}")

    def _not_launched(self, entry: Entry) -> None:
        within = self.limits.launch_within
        self._end(entry, EndReason.FAILED, f"no kernel was started in it within {format_duration(within)}")

    def _not_ready(self, entry: Entry) -> None:
        within = self.limits.ready_within
        self._end(entry, EndReason.FAILED, f"its kernel did not answer within {format_duration(within)}")


def _why(failure: Failure) -> EndReason:
    """Why an allocation ended whose start failed like this for good."""
    if failure is Failure.CLAIM_LOST:
        return EndReason.REJECTED
    return EndReason.CANCELLED if failure is Failure.CANCELLED else EndReason.FAILED


_HANDLERS: dict[type[Event], tuple[Work | None, Callable[[Ledger, Entry, Any], None]]] = {
    # event: the work that has come back with it, and what follows
    ev.Placed: (Work.PLACE, Ledger._placed),
    ev.NotPlaced: (Work.PLACE, Ledger._not_placed),
    ev.Ranked: (None, Ledger._ranked),
    ev.Progressed: (None, Ledger._progressed),
    ev.Prepared: (Work.PREPARE, Ledger._prepared),
    ev.PrepareFailed: (Work.PREPARE, Ledger._prepare_failed),
    ev.LaunchAsked: (None, Ledger._launch_asked),
    ev.UnitStarted: (Work.START_UNIT, Ledger._unit_started),
    ev.UnitStartFailed: (Work.START_UNIT, Ledger._unit_start_failed),
    ev.KernelStarted: (Work.START_KERNEL, Ledger._ready),
    ev.KernelStartFailed: (Work.START_KERNEL, Ledger._kernel_start_failed),
    ev.KernelReady: (None, Ledger._ready),
    ev.TakenBack: (Work.TAKE_BACK, Ledger._ready),
    ev.TakeBackFailed: (Work.TAKE_BACK, Ledger._take_back_failed),
    ev.KernelFailed: (None, Ledger._kernel_failed),
    ev.UnitExited: (None, Ledger._unit_exited),
    ev.StopAsked: (None, Ledger._stop_asked),
    ev.RestartAsked: (None, Ledger._restart_asked),
    ev.ReleaseAsked: (None, Ledger._release_asked),
    ev.ExtendAsked: (None, Ledger._extend_asked),
    ev.Idled: (None, Ledger._idled),
    ev.Stirred: (None, Ledger._stirred),
    ev.Used: (None, Ledger._used),
    ev.OverUsed: (None, Ledger._over_used),
    ev.KernelStopped: (Work.STOP_KERNEL, Ledger._kernel_stopped),
    ev.UnitGone: (Work.STOP_UNIT, Ledger._unit_gone),
    ev.StopFailed: (Work.STOP_UNIT, Ledger._stop_failed),
    ev.NodeSilent: (None, Ledger._node_silent),
    ev.NodeHeard: (None, Ledger._node_heard),
    ev.GpusChanged: (None, Ledger._gpus_changed),
    ev.Woken: (None, Ledger._woken),
}

_DUE: dict[str, Callable[[Ledger, Entry], None]] = {
    # deadline: what follows when it has passed, for one that is live; in this order
    "wait": Ledger._waited_long,
    "expire": Ledger._expired,
    "warn": Ledger._warned,
    "restart": Ledger._not_restarted,
    "launch": Ledger._not_launched,
    "ready": Ledger._not_ready,
    "retry": Ledger._retry,
    "again": Ledger._attempt,
    "forgive": Ledger._forgiven,
}

"""The part of the state machine for allocations that run a job: no kernel, nobody who watches, and an end of its own.

    prepared ─→ RunJob ─→ running ─→ UnitExited ─┬─ 0 ───────────────────────────────→ ends `finished`
                  ↑                              ├─ else, retries left ─┐ StopUnit    → else ends `failed`
                  └── Prepare ←── a pause ←──────┴─ with its node ──────┘ (outputs come home)

    its node is lost, or will not have it again ─→ pending, in its old place in the queue, for another node

Its GPUs stay its own between two attempts on one node. A server that stops or dies leaves it alone, in whatever state
it is: what runs goes on, what was being started is removed and started anew, unless it runs after all (`recovery.py`).
"""

from __future__ import annotations

from ..durations import format_duration
from ..models import EndReason, Progress, State, Unit
from . import events as ev
from .entries import Entry, with_lines
from .events import Failure, Work
from .lifetime import Lifetime

__all__ = ["KERNELS", "Jobs"]

KERNELS = (ev.LaunchAsked, ev.KernelReady, ev.KernelFailed, ev.StopAsked, ev.RestartAsked)
"""What only a kernel manager says; of a job it means nothing."""

_UNUSABLE = 90  # exit code, with a sentence, of what is missing in an image: another attempt would not find it, either


class Jobs(Lifetime):
    """Base of `Ledger`."""

    # --- an attempt

    def _run_job(self, entry: Entry, unit: Unit) -> None:
        entry.launched, entry.began = True, 0.0
        self._set(entry, attempt=entry.starts + 1, progress=Progress(phase="starting"))
        self._begin(entry, Work.START_UNIT, ev.RunJob(id=entry.id, unit=unit))

    def _job_runs(self, entry: Entry) -> None:
        entry.began, entry.moved, entry.wait_until = self._now, "", 0.0
        entry.starts += 1
        entry.unsure = False
        first = entry.state is State.STARTING
        self._set(entry, state=State.RUNNING, message=entry.died, progress=None)
        if first:
            self._begin_time(entry)

    def _job_not_started(self, entry: Entry, event: ev.UnitStartFailed) -> None:
        if event.failure is Failure.CANCELLED:
            return  # by the end of this scheduler: the next one starts it
        if event.failure is Failure.UNFIT:
            self._move(entry, event.message)
        elif event.failure is Failure.UNREACHABLE:  # it may run there all the same: not to run twice, look first
            entry.leaving = event.message
            self._start_again(entry, event.message)
        else:
            self._attempt_failed(entry, event.message, event.logs)

    def _job_exited(self, entry: Entry, event: ev.UnitExited) -> None:
        after = self._took(entry)
        self._set(entry, exit_code=event.code)
        if event.code == 0:
            self._end(entry, EndReason.FINISHED, f"finished{after}")
        elif event.with_node:
            self._start_again(entry, f"its node stopped it{after}: {event.message}")
        else:
            how = "" if event.message.endswith(f"exit code {event.code}") else f": {event.message}"
            failed = f"failed with exit code {event.code}{after}"
            final = event.code == _UNUSABLE and bool(how)
            self._attempt_failed(entry, f"{failed}{self._of_how_many(entry)}{how}", final=final)

    def _attempt_failed(self, entry: Entry, message: str, logs: str = "", final: bool = False) -> None:
        assert entry.job is not None
        entry.failures += 1
        if final or entry.failures > entry.job.retries:
            self._end(entry, EndReason.FAILED, with_lines(message, logs))
        else:
            self._start_again(entry, message)

    def _took(self, entry: Entry) -> str:
        """How long the attempt took, as far as that is known: not if it ended while no server was there."""
        known = entry.began and Work.TAKE_BACK not in entry.busy
        return f" after {format_duration(self._now - entry.began)}" if known else ""

    def _of_how_many(self, entry: Entry) -> str:
        """Which attempt it is, if there may be several. (Those that others are to blame for are not counted.)"""
        assert entry.job is not None
        attempt = entry.allocation.attempt
        of = attempt + entry.job.retries - entry.failures
        return f" (attempt {attempt} of {of})" if of > 1 else ""

    # --- and the next one

    def _start_again(self, entry: Entry, why: str) -> None:
        """On the same GPUs, when nothing of the attempt before is left there."""
        entry.restarting, entry.tries, entry.patience, entry.died = True, 0, 0, why
        entry.stop_failures = 0
        self._set(entry, message=why, progress=Progress(phase="collecting", message="it is started again"))
        if not entry.busy & {Work.STOP_UNIT, Work.TAKE_BACK}:
            self._stop_unit(entry)

    def _taken_up(self, entry: Entry, trouble: str = "") -> None:
        """It runs on in the hands of this scheduler, unless it has ended meanwhile."""
        if not entry.live:
            self._wind_down(entry)
        elif entry.restarting or not entry.began:  # this attempt is over; or it was made, and not started
            entry.restarting = True
            self._stop_unit(entry)
        elif trouble:
            self._start_again(entry, f"it could not be taken up: {trouble}")

    def _next_attempt(self, entry: Entry) -> None:
        """Nothing is left of what was there."""
        if entry.leaving:
            self._move(entry, entry.leaving)
            return
        entry.restarting = True
        if not entry.died:  # a server died while it started
            self._attempt(entry)
            return
        self._set(entry, progress=Progress(phase="creating", message="it is started again"))
        pause = self.limits.again_first * 2 ** min(max(entry.allocation.attempt, 1) - 1, 16)
        self._deadline(entry, "again", min(self.limits.again_most, pause))

    def _attempt(self, entry: Entry) -> None:
        """The pause between two attempts is over."""
        if entry.allocation.node is not None:
            self._prepare(entry)

    # --- elsewhere

    def _move(self, entry: Entry, why: str) -> None:
        """Give up the node that it is on; what is left there is removed when it answers."""
        entry.moving, entry.deadlines = why, {}
        self._cancel(entry, *entry.busy)
        self._go_elsewhere(entry)

    def _go_elsewhere(self, entry: Entry) -> None:
        """As soon as nothing is under way for it: it waits for GPUs again, in its old place."""
        now = entry.allocation
        if entry.busy or now.node is None:
            return
        self._out.append(ev.Clean(id=entry.id, node=now.node))
        ran = entry.starts > 0
        entry.moved, entry.died = f"{entry.moving}; it waits for another node", entry.moving if ran else ""
        entry.moving = entry.leaving = ""
        entry.avoid = tuple(dict.fromkeys((*entry.avoid, now.node)))
        entry.deadlines = {}  # what was said of its node meanwhile must not reach it on the next one
        entry.unsure = entry.launched = entry.restarting = False
        entry.cards, entry.totals, entry.broken, entry.ports = {}, {}, {}, ()
        entry.tries = entry.patience = entry.stop_failures = 0
        entry.places = 1
        entry.silence = entry.shown = ""
        if ran and not entry.wait_until:  # nodes that will not have it, one after the other, do not make it longer
            entry.wait_until = self._now + self.limits.requeue_wait
        self._unwarn(entry)
        self._set(
            entry,
            state=State.PENDING,
            node=None,
            gpus=(),
            memory=(),
            totals=(),
            unit=None,
            expires=None,
            unreachable_since=None,
            message=entry.moved,
            progress=Progress(phase="placing", message=entry.moved),
        )
        entry.trouble = entry.moved
        self._place(entry)

    # --- its end

    def _last_word(self, entry: Entry, event: ev.UnitGone) -> str:
        """Why it ends, and what became of its outputs."""
        outputs = entry.allocation.outputs
        about = event.said or (f"its outputs are in {outputs}" if outputs is not None else "")
        return "; ".join(part for part in (entry.said, about) if part)

"""The part of the state machine for what breaks on a node: an engine that is silent, a GPU that is lost, a unit that
cannot be removed.

    NodeSilent ─→ shown (`unreachable_since`), nothing is given up ─┬─→ NodeHeard: everything goes on
                                                                    └─→ `lost_after` without engine and reporter: ends
    GpusChanged ─→ shown, and warned of once; the GPU stays the allocation's, and is not offered to others
    StopFailed ─→ tried again and again; its GPUs stay reserved, visibly
"""

from __future__ import annotations

import re

from ..durations import format_duration, format_moment
from ..models import EndReason, Progress
from . import events as ev
from .entries import UNIT_WORK, Entry
from .events import Failure
from .jobs import Jobs

__all__ = ["Outages"]

_DOUBTFUL = 3
"""So often a restart is tried on a node of which nobody has said that it is unreachable; and so often such a node is
asked to remove what a job that goes elsewhere may have left there."""
_ITS_MOMENT = re.compile(r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")  # of a launcher's words; ours has it, too


class Outages(Jobs):
    """Base of `Ledger`."""

    # --- a node's engine is silent

    def _node_silent(self, entry: Entry, event: ev.NodeSilent) -> None:
        if entry.allocation.node is None:
            return
        entry.silence = _ITS_MOMENT.sub("", event.why)
        if entry.allocation.unreachable_since is None:
            self._set(entry, unreachable_since=self._now)
        if event.reporting:  # the machine is there, and its containers may be, too
            entry.deadlines.pop("lost", None)
        elif "lost" not in entry.deadlines:
            self._deadline(entry, "lost", self.limits.lost_after)

    def _node_heard(self, entry: Entry, event: ev.NodeHeard) -> None:
        if entry.allocation.unreachable_since is None:
            return
        self._forget_silence(entry)
        if "restart" in entry.deadlines:  # nobody could restart it so far
            self._deadline(entry, "restart", self.limits.restart_within)
        if entry.deadlines.pop("retry", None) is not None:
            if entry.live:
                self._retry(entry)
            else:
                self._wind_down(entry)

    def _forget_silence(self, entry: Entry) -> None:
        entry.silence, entry.tries = "", 0
        entry.deadlines.pop("lost", None)
        self._set(entry, unreachable_since=None)

    def _lost(self, entry: Entry) -> None:
        """Neither engine nor reporter of its node has answered for too long: end it without asking them."""
        since = entry.allocation.unreachable_since
        silent = format_duration(round(self._now - (self._now if since is None else since)))
        message = (
            f"node {entry.allocation.node!r} did not answer for {silent}; "
            "what may still run there is removed when it is back"
        )
        entry.unsure = False
        self._set(entry, unit=None)  # whoever waits for it to be stopped need not
        if entry.live and entry.job is not None:
            self._move(entry, f"node {entry.allocation.node!r} did not answer for {silent}, and counts as lost")
            return
        if entry.live:
            self._end(entry, EndReason.NODE_LOST, message)
            return
        kept = f"{entry.said}; " if entry.said else ""
        entry.deadlines.pop("retry", None)
        self._set(entry, reason=EndReason.NODE_LOST, message=f"{kept}{message}")
        self._wind_down(entry)

    def _waits_for_node(self, entry: Entry) -> bool:
        """Whether a restart that failed because its node does not answer goes on when it does."""
        entry.patience += 1
        if not entry.restarting or (entry.allocation.unreachable_since is None and entry.patience >= _DOUBTFUL):
            return False
        self._set(entry, progress=Progress(phase="creating", message="restarting as soon as the node answers"))
        self._pause(entry, entry.patience)
        return True

    def _retry(self, entry: Entry) -> None:
        """The next try of a restart."""
        if not entry.restarting or entry.busy & UNIT_WORK:
            return
        if entry.unit is not None or entry.unsure:
            self._stop_unit(entry)
        else:
            self._prepare(entry)

    def _pause(self, entry: Entry, failures: int) -> None:
        seconds = self.limits.retry_first * 2 ** min(failures - 1, 16)
        self._deadline(entry, "retry", min(self.limits.retry_most, seconds))

    # --- a GPU is broken

    def _gpus_changed(self, entry: Entry, event: ev.GpusChanged) -> None:
        more = [uuid for uuid in event.broken if uuid not in entry.broken]
        entry.broken = dict(event.broken)
        if entry.live and more:
            self._warn(entry, "gpu", f"allocation {entry.allocation.name!r}: {_about_gpus(entry.broken)}")
        elif not entry.broken:
            self._unwarn(entry, "gpu")

    # --- a unit cannot be removed

    def _stop_failed(self, entry: Entry, event: ev.StopFailed) -> None:
        entry.stop_failures += 1
        entry.trouble, entry.stop_wanted = event.message, False
        if entry.live:
            if entry.job is not None:  # nobody else starts it again
                if entry.leaving and entry.stop_failures >= _DOUBTFUL:
                    self._move(entry, entry.leaving)
                    return
                self._set(entry, progress=Progress(phase="collecting", message=event.message))
                self._pause(entry, entry.stop_failures)
                return
            if event.failure is Failure.UNREACHABLE and self._waits_for_node(entry):
                return
            self._set(entry, message=event.message)  # whoever asked for it is told, and may ask again
            self._vacant(entry)
        elif entry.allocation.reason is EndReason.NODE_LOST:
            self._wind_down(entry)
        else:
            kept = f"{entry.said}; " if entry.said else ""
            blocked = "its GPUs stay reserved until its unit is confirmed gone"
            self._set(entry, message=f"{kept}{blocked}: {event.message}")
            self._pause(entry, entry.stop_failures)

    # --- and how it is shown

    def _show_outages(self, entry: Entry) -> None:
        """Have the message of a live one say what is wrong with its node and GPUs, unless it says something else."""
        parts, since = [], entry.allocation.unreachable_since
        if since is not None:
            it, else_ = ("kernel", "given up") if entry.job is None else ("job", "started elsewhere")
            kept = f"the machine still reports, so its {it} is kept"
            if "lost" in entry.deadlines:
                kept = f"its {it} is kept, and {else_} after {format_duration(self.limits.lost_after)}"
            parts.append(
                f"node {entry.allocation.node!r} unreachable since {format_moment(since)}: {entry.silence}; {kept}"
            )
        if entry.broken:
            parts.append(_about_gpus(entry.broken))
        said, entry.shown = entry.shown, "; ".join(parts)
        shows = entry.shown or entry.died
        if entry.live and entry.allocation.message in ("", said, entry.died) and entry.allocation.message != shows:
            self._set(entry, message=shows)


def _about_gpus(broken: dict[str, str]) -> str:
    """A sentence on GPUs that somebody holds."""
    it, are = ("it", "it is") if len(broken) == 1 else ("them", "they are")
    return (
        f"{'; '.join(f'GPU {uuid} is {why}' for uuid, why in sorted(broken.items()))}; what runs on {it} may fail or "
        f"be wrong: release, and request again ({are} not given to anybody before healthy)"
    )

"""The part of the state machine that begins things: the steps an allocation takes, whatever event led to them.

    place → prepare a unit → … → end: wind down, one step at a time, until nothing is left

What event leads to which step is in `allocations.py`.
"""

from __future__ import annotations

from ..models import EndReason, Launch, Progress, State, without_secrets
from . import events as ev
from .bookkeeping import Books
from .entries import CANCELLABLE, UNIT_WORK, Entry
from .events import Work

__all__ = ["Steps"]


class Steps(Books):
    """Base of `Ledger`."""

    def _place(self, entry: Entry) -> None:
        self._begin(entry, Work.PLACE, ev.Place(id=entry.id, attempt=entry.places, avoid=entry.avoid))
        entry.places += 1

    def _prepare(self, entry: Entry) -> None:
        now = entry.allocation
        assert now.node is not None
        entry.units += 1
        entry.tries += 1
        lifetime = now.request.time
        launch = Launch(
            allocation=now.id,
            scheduler=self.scheduler,
            owner=now.owner,
            name=f"gpufit-{now.name}-{now.id}-{entry.units}",
            gpus=dict(zip(now.gpus, now.memory, strict=True)),
            shared=now.request.shared,
            image=now.request.image,
            kernel=now.kernel_id,
            expires=now.expires or (None if lifetime is None else self._now + float(lifetime)),
            host_ports=entry.ports,
            cards=entry.cards,
            totals=entry.totals,
            outlive=self.limits.outlive if entry.job is None else self.limits.outlive_jobs,
            folder=now.request.folder,
            workspace=entry.job is not None,
            write_models=now.request.write_models,
            cpus=now.request.cpus,
            ram=now.request.host_memory,
        )
        self._set(entry, progress=Progress(phase="creating"))
        # the pause before a try elsewhere is `Place`'s; a restart has no `Place`
        attempt = entry.tries - 1 if now.state is State.RUNNING else 0
        if entry.job is not None:  # the next scheduler may go on with it, and has to know which names are taken
            self._out.append(ev.Save(id=entry.id))
        self._begin(entry, Work.PREPARE, ev.Prepare(id=entry.id, launch=launch, node=now.node, attempt=attempt))

    def _vacant(self, entry: Entry) -> None:
        """It holds its GPUs and has no unit that is any use: somebody restarts it soon, or it ends."""
        entry.stop_wanted = entry.restarting = False
        self._set(entry, progress=None)
        self._deadline(entry, "restart", self.limits.restart_within)

    def _stop_unit(self, entry: Entry) -> None:
        assert entry.allocation.node is not None
        entry.deadlines.pop("launch", None)
        unit = None if entry.unsure else entry.unit
        # A later attempt is given what those before it brought home. If it did not come to run, that may have been cut
        # off in the middle, and must not replace what is home.
        collect = entry.job is not None and entry.launched and (entry.began > 0 or entry.starts == 0)
        stop = ev.StopUnit(id=entry.id, node=entry.allocation.node, unit=unit, collect=collect)
        self._begin(entry, Work.STOP_UNIT, stop)

    def _end(self, entry: Entry, reason: EndReason, message: str, patient: bool = False) -> None:
        """Begin to end it. `patient`: its `KernelHost.start` is about to come back by itself."""
        if not entry.live:
            return
        if entry.moving and entry.allocation.node is not None:
            self._out.append(ev.Clean(id=entry.id, node=entry.allocation.node))
        entry.restarting, entry.waiting, entry.said, entry.moving = False, False, message, ""
        entry.deadlines = {what: at for what, at in entry.deadlines.items() if what == "lost"}
        self._set(entry, state=State.STOPPING, reason=reason, message=message, progress=None, queue=None)
        self._unwarn(entry)
        self._cancel(entry, *CANCELLABLE - ({Work.START_KERNEL} if patient else set()))
        if Work.START_KERNEL in entry.busy:
            entry.kernel_cancelled = not patient
            self._deadline(entry, "kernel", self.limits.kernel_within)
        self._wind_down(entry)

    def _wind_down(self, entry: Entry) -> None:
        """The next step of an ending."""
        there = entry.allocation.reason is not EndReason.NODE_LOST  # else nobody could be asked to stop anything
        if there and entry.stop_wanted and entry.unit is not None and not entry.busy & UNIT_WORK:
            self._stop_unit(entry)  # `KernelHost.start` or `stop` waits for it
        elif entry.busy or "retry" in entry.deadlines:
            pass
        elif entry.kernel_up and entry.allocation.kernel_id is not None:
            entry.kernel_up = False
            self._begin(entry, Work.STOP_KERNEL, ev.StopKernel(id=entry.id, kernel_id=entry.allocation.kernel_id))
        elif there and entry.allocation.node is not None and (entry.unit is not None or entry.unsure):
            self._stop_unit(entry)
        else:
            entry.deadlines = {}
            self._set(
                entry,
                state=State.ENDED,
                ended=self._now,
                progress=None,
                unit=None,
                unreachable_since=None,
                request=without_secrets(entry.allocation.request),
            )

    def _insist(self, entry: Entry) -> None:
        """`KernelHost.start` does not come back: cancel it; if that does not help either, go on without it."""
        if entry.kernel_cancelled:
            entry.busy.discard(Work.START_KERNEL)
        else:
            entry.kernel_cancelled = True
            self._cancel(entry, Work.START_KERNEL)
            self._deadline(entry, "kernel", self.limits.kernel_within)

"""`%gpufit panel`, what it does: asks the server on one thread of its own, so that nothing of the kernel waits for it.

    edit, request, attach, …   from any thread (which one front ends send a click to, nobody chose); return at once
    the thread                 does one after the other, looks again now and then, and hands out a `Shown`
    close                      ends it

It looks often while something moves or somebody is at it, and seldom otherwise.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..durations import format_duration, parse_duration
from ..errors import GpufitError, NotFound
from ..kernels.extended import extended
from ..models import Gpu, Node, State
from .client import Client, Json, has_ended, is_running
from .panel import DryRun, Form, Row, Shown, cluster_line, dry_run, read, row_of
from .panelloop import Loop, Pace, Task
from .show import describe

__all__ = ["Desk", "Panel"]

_log = logging.getLogger(__name__)
_MOST_ENDED = 3  # of those that ended while the panel was there
_ENDED_SHOWN = 600.0  # s


class Desk(Protocol):
    """What of the notebook a panel acts on. Called in the panel's thread."""

    def client(self) -> Client:
        """May take its time. Raises a `GpufitError`."""

    def note(self) -> str:
        """Why the client is not the expected one; else empty."""

    @property
    def here(self) -> Json | None:
        """What the notebook's cells run on; `None`: the local kernel."""

    @property
    def busy(self) -> bool:
        """Whether a cell runs."""

    def attach(self, allocation: Json) -> tuple[str, bool]:
        """As `%gpufit attach`: the sentence on it, and whether the notebook leaves this kernel (and so the panel)."""

    def detach(self) -> str:
        """As `%gpufit detach`."""

    def leave_allocation(self, allocation: Json) -> None:
        """Cells run in the local kernel, if they ran on this one."""


class Panel:
    """State and actions, from `start` on. `show` is called in its thread with what is to be seen, when that changes."""

    def __init__(self, desk: Desk, show: Callable[[Shown], None], form: Form | None = None, pace: Pace | None = None):
        self.form = form or Form()
        self.nodes: list[Node] = []
        self.held: list[Json] = []
        self.inventory_error: str | None = None
        """What was found last; replaced as a whole, never changed."""
        self._desk, self._show, self._pace = desk, show, pace or Pace()
        self._shown = Shown(form=self.form)
        self._gpus: dict[str, Gpu] = {}
        self._ended: deque[Json] = deque(maxlen=_MOST_ENDED)
        self._about: Json | None = None
        self._wanted: str | None = None
        self._dry: DryRun | None = None
        self._said, self._said_of, self._failed, self._trouble = "", "", False, ""
        self._of = ""
        self._forms = 0
        self._looked, self._cluster_at, self._touched = 0.0, 0.0, time.monotonic()
        self._writing = threading.Lock()
        self._known = False
        self._first = threading.Event()
        self._loop = Loop("gpufit-panel", self._perform)

    def start(self) -> None:
        """Begin to look, and to show."""
        self.wake()
        self._loop.start()

    # --- from any thread

    @property
    def shown(self) -> Shown:
        """What is to be seen now."""
        return self._shown

    @property
    def closed(self) -> bool:
        return self._loop.closed

    def ready(self, within: float) -> bool:
        """Wait until the server has answered for the first time, or has failed to."""
        return self._first.wait(within)

    def edit(self, **fields: Any) -> None:
        """Somebody writes in the form."""
        with self._writing:
            self.form = dataclasses.replace(self.form, **fields)
        self._touched = time.monotonic()
        self._loop.due(Task("try", self._try), self._touched + self._pace.typing, later=True)

    def request(self) -> None:
        """Ask for what the form says."""
        self._do(Task("request", self._request))

    def take_over(self) -> None:
        """Write the nearest request that would fit into the form."""
        self._do(Task("take over", self._take_over))

    def attach(self, id: str) -> None:
        """Have the notebook's cells run there, as soon as that can be."""
        self._do(Task("attach", lambda: self._attach(id), id))

    def detach(self, id: str = "") -> None:
        """Have them run in the local kernel; forget what was to be attached."""
        self._do(Task("detach", self._detach, id))

    def release(self, id: str) -> None:
        """Give an allocation back."""
        self._do(Task("release", lambda: self._release(id), id))

    def extend(self, id: str, span: str) -> None:
        """Give it more time; `span` as it was written."""
        self._do(Task("extend", lambda: self._extend(id, span), id))

    def wake(self) -> None:
        """Something may have changed: look soon."""
        self._loop.due(Task("look", self._look, self._wanted or ""), self._looked + self._pace.apart)

    def close(self, wait: bool = True) -> None:
        """Ask no more. Idempotent. A question that is on its way is waited for, if at all, for a second."""
        self._loop.close(wait)
        self._first.set()

    def _do(self, task: Task) -> None:
        self._touched = time.monotonic()
        self._loop.put(task)

    # --- the thread

    def _perform(self, task: Task) -> None:
        self._of = task.of
        try:
            task.run()
        except GpufitError as problem:
            self._say(problem.message, failed=True)
        except Exception as problem:  # whatever it is, it is no reason to be silent for ever
            _log.debug("%%gpufit panel: %s", task.what, exc_info=True)
            self._say(f"The panel failed ({type(problem).__name__}: {problem}); try again", failed=True)
        if task.what == "look":
            self._first.set()
        self._publish()

    def _publish(self) -> None:
        now, here = time.time(), self._desk.here
        rows = [self._row(one, now, here) for one in (*self.held, *self._ended)]
        about = self._about or {}
        _, wrong = read(self.form)
        shown = Shown(
            cluster=self._cluster_line(),
            where=(
                "This notebook's cells run in its local kernel."
                if here is None
                else f"This notebook's cells run on {describe(here)}. Its local kernel is kept."
            ),
            here=here is not None,
            form=self.form,
            forms=self._forms,
            wrong=wrong,
            dry=None if wrong else self._dry,
            rows=tuple(rows),
            said=self._said,
            said_of=self._said_of,
            failed=self._failed,
            trouble=self._trouble,
            images=tuple(about.get("images") or ()),
            image=str(about.get("image") or ""),
            time="" if about.get("time") is None else format_duration(float(about["time"])),
            note=self._desk.note(),
        )
        if shown != self._shown and not self._loop.closed:
            self._shown = shown
            try:
                self._show(shown)
            except Exception:  # whoever shows it is broken, or ends: nobody would see anything more
                _log.debug("%%gpufit panel cannot be shown", exc_info=True)
                self.close()

    def _row(self, one: Json, now: float, here: Json | None) -> Row:
        on_it = here is not None and here["id"] == one["id"]
        return row_of(one, self._gpus, now, here=on_it, wanted=self._wanted == one["id"])

    def _cluster_line(self) -> str:
        if not self._known:
            return "" if self._trouble else Shown().cluster
        if self.inventory_error:
            return f"{cluster_line(self.nodes)} The inventory cannot be used as it is: {self.inventory_error}"
        return cluster_line(self.nodes)

    def _say(self, text: str, *, failed: bool = False, now: bool = False) -> None:
        """`now`: before what follows, which may take its time."""
        self._said, self._said_of, self._failed = text, self._of, failed
        if now:
            self._publish()

    # --- looking

    def _look(self) -> None:
        started = time.monotonic()
        try:
            self._look_around(self._desk.client(), started)
            self._trouble = ""
        except GpufitError as problem:
            self._trouble = problem.message
        finally:
            moving = any(one["state"] not in (State.RUNNING, State.ENDED) for one in self.held)
            recent = started - self._touched < self._pace.lately
            pace = self._pace.moving if moving else self._pace.watched if recent else self._pace.idle
            self._looked = time.monotonic()
            self._loop.due(Task("look", self._look, self._wanted or ""), self._looked + pace)

    def _look_around(self, client: Client, now: float) -> None:
        if self._about is None:
            try:
                self._about = client.about()
            except NotFound:  # an older server
                self._about = {}
        held = client.allocations()
        gone = {one["id"] for one in self.held} - {one["id"] for one in held}
        # (What only comes along leaves the cluster as it was, of which there may be much to send.)
        changed = {(one["id"], one["state"]) for one in held} != {(one["id"], one["state"]) for one in self.held}
        for one in self.held:
            if one["id"] in gone:
                self._ended.append(_last_of(client, one))
                if self._said_of == one["id"]:
                    self._said = ""  # its row says it all
        self.held = held
        fresh = now >= self._cluster_at
        if fresh or changed:
            self.nodes, self.inventory_error = client.cluster()
            self._gpus = {gpu.uuid: gpu for node in self.nodes for gpu in node.gpus}
            self._cluster_at = now + self._pace.cluster
            self._known = True
        self._keep_ended(time.time())
        try:
            self._go_on_attaching(client)
        except GpufitError as problem:
            self._say(problem.message, failed=True)
        if fresh or changed or now - self._touched < self._pace.lately:
            self._try()

    def _keep_ended(self, now: float) -> None:
        while self._ended and now - (self._ended[0].get("ended") or now) > _ENDED_SHOWN:
            self._ended.popleft()

    def _try(self) -> None:
        """The dry run. The form may be written in meanwhile; then there is another one."""
        form = self.form
        request, wrong = read(form)
        if wrong or request is None:
            self._dry = None
            return
        if self._shown.form != form:
            if not self._said_of:
                self._said = ""
            self._dry = DryRun(None, "Looking where this would go …")
            self._publish()
        client = self._desk.client()
        try:
            decision = client.explain(request, stages=False)
            if decision.get("node") is None:
                decision = client.explain(request)  # with the reason of every node
        except GpufitError as problem:
            self._dry = DryRun(None, problem.message)
            return
        self._dry = dry_run(decision, form, request, self._gpus)

    # --- what is asked for

    def _request(self) -> None:
        request, wrong = read(self.form)
        if wrong or request is None:
            self._say("The form cannot be asked for as it is; it says where.", failed=True)
            return
        self._say(f"Asking for {request.describe()} …", now=True)
        allocation = self._desk.client().request(request)
        self.held = [*self.held, allocation]
        name = allocation["name"]
        self._say(
            f"{name!r} waits for GPUs."
            if allocation.get("queue")
            else f"{name!r} has been granted; attach the notebook to run its cells there"
            + ("." if is_running(allocation) else " once it runs.")
        )
        self.wake()

    def _take_over(self) -> None:
        if self._dry is not None and self._dry.offer is not None:
            with self._writing:
                self.form = self._dry.offer
            self._forms += 1
            self._say("")
            self._try()

    def _attach(self, id: str) -> None:
        self._wanted = id
        allocation = self._desk.client().get(id)
        if not is_running(allocation) and not has_ended(allocation):
            self._say(f"The notebook is attached to {allocation['name']!r} once that runs.")
        self._go_on_attaching(self._desk.client())

    def _go_on_attaching(self, client: Client) -> None:
        """Attach to what is wanted, if that can be by now."""
        if self._wanted is None:
            return
        here = self._desk.here
        if here is not None and here["id"] == self._wanted:
            self._wanted = None
            return
        try:
            allocation = client.get(self._wanted)
        except NotFound:
            self._wanted = None
            raise
        name = allocation["name"]
        if has_ended(allocation) or allocation["state"] == State.STOPPING:
            self._wanted = None
            why = allocation.get("message") or allocation.get("reason") or "it has ended"
            self._say(f"The notebook cannot be attached to {name!r}: {why}", failed=True)
        elif is_running(allocation) and self._desk.busy:
            self._say(f"The notebook is attached to {name!r} once the cell that runs is done.")
        elif is_running(allocation):
            self._wanted = None
            self._say(f"Attaching to {name!r} …", now=True)
            said, leaves = self._desk.attach(allocation)
            self._say(said)
            if leaves:
                self.close()

    def _detach(self) -> None:
        self._wanted, wanted = None, self._wanted
        here = self._desk.here
        if here is None:
            self._say("The notebook's cells go on running in its local kernel." if wanted else "")
        elif self._desk.busy:
            self._say(
                f"A cell runs on {here['name']!r}; detach when it is done, or interrupt it.",
                failed=True,
            )
        else:
            self._say(self._desk.detach())

    def _release(self, id: str) -> None:
        client = self._desk.client()
        allocation = client.get(id)
        if self._wanted == id:
            self._wanted = None
        # While a cell runs there, that cell tells what became of it.
        if not self._desk.busy:
            self._desk.leave_allocation(allocation)
        self._replace(client.release(id))
        self._say(f"Releasing {describe(allocation)}.")
        self.wake()

    def _extend(self, id: str, span: str) -> None:
        allocation = self._desk.client().extend(id, parse_duration(span))
        self._replace(allocation)
        self._say(extended(allocation, time.time()))
        self.wake()

    def _replace(self, allocation: Json) -> None:
        """It is like this by now."""
        self.held = [allocation if one["id"] == allocation["id"] else one for one in self.held]


def _last_of(client: Client, allocation: Json) -> Json:
    """How it ended, as far as the scheduler still knows."""
    try:
        return client.get(allocation["id"])
    except GpufitError:
        return {**allocation, "state": State.ENDED.value}

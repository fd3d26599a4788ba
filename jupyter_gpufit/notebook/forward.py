"""While a notebook is attached and not swapped: every cell that the local kernel gets runs on the allocation.

`shell.transform_cell` is wrapped (not `input_transformers_cleanup`: that is also asked whether a cell is complete): a
cell becomes the call that `%%gpufit` on its first line would have made of it. Lines of `%gpufit` stay, and so does what
front ends run for themselves (silent, or outside the history).

`In` has what was written. `Out` and `_` are the remote kernel's; the two kernels' counters are kept the same.
"""

from __future__ import annotations

import ast
import contextlib
import threading
import time
import uuid
from typing import Any

from ..errors import GpufitError
from ..models import EndReason
from .asides import Asides, question
from .cells import RemoteError, Reply, evaluate, run_cell
from .channels import Channel
from .client import Client, Json, is_running, latest
from .messages import KernelGone
from .outputs import Outputs, outputs_of
from .segments import split

__all__ = ["AllocationLost", "Forwarder", "Link"]

_RELEASED = (EndReason.RELEASED.value, EndReason.CANCELLED.value, None)
_IDLE_CLOSE = 60.0  # s without a cell, after which the connection is closed: the server counts it as somebody watching
# A kernel keeps the first mark that it is given.
_MARK = "get_ipython().__dict__.setdefault('_gpufit_mark', %r)"
# What it knows of a `release` or `detach` that it was asked for before (`kernels/bootstrap`) is over.
_BACK = "get_ipython().__dict__.pop('_gpufit_leaving', None)"
_FRESH = 1.0  # s from the question whether the allocation is there until its cell is sent; then it is asked again
_NEWS = 2.0  # s in which the scheduler learns why a kernel died


class AllocationLost(GpufitError):
    """What the cell was to run on, or ran on, is not there any more."""

    code = "allocation-lost"
    status = 409

    def _render_traceback_(self) -> list[str]:
        return [f"AllocationLost: {self.message}"]


class Link:
    """The way from here to the kernel of one allocation: opened when needed, closed when idle for long."""

    def __init__(self, client: Client, allocation: Json, shell: Any, outputs: Outputs | None = None) -> None:
        self.client = client
        self.allocation = allocation
        self.outputs = outputs_of(shell) if outputs is None else outputs
        self._shell = shell
        self._channel: Channel | None = None
        self._mark = ""
        self._count = 0
        self._seen = 0.0  # when the server was asked last
        self._timer: threading.Timer | None = None
        self._used = 0.0
        self._use = threading.RLock()

    @property
    def well(self) -> bool:
        """Whether it is open, and will have told if the kernel is not there any more."""
        channel = self._channel
        return channel is not None and channel.well

    def look(self, *, anew: bool = False) -> Json:
        """The allocation as it is, or unless `anew` was a moment ago. Raises a `GpufitError`."""
        if anew or not self.well or time.monotonic() - self._seen >= _FRESH:
            self.allocation = latest(self.client, self.allocation)
            self._seen = time.monotonic()
        return self.allocation

    def open(self) -> Channel:
        """The channel, connected. Raises `KernelGone` if the kernel is not the one that it was, or a `GpufitError`."""
        if self._channel is None:
            self._channel = self.client.channel(self.allocation)
            self._recognise(self._channel)
        return self._channel

    def run(self, code: str) -> Reply:
        """Run a cell there. Raises `AllocationLost` if the kernel dies."""
        with self._use:
            try:
                channel = self.open()
                self._count_on(channel)
                reply = run_cell(channel, code, self.outputs)
            except KernelGone as gone:
                raise self._gone(gone) from None
            finally:
                self._start_timer()
            self._count = (reply.count or self._count) + 1
            self._seen = 0.0  # asked again for the next cell, lest that is sent to what has been released since
        return reply

    def evaluate(self, code: str, expressions: dict[str, str]) -> dict[str, str]:
        """See `cells.evaluate`. Raises `AllocationLost` if the kernel dies."""
        with self._use:
            try:
                return evaluate(self.open(), code, self.outputs, expressions)
            except KernelGone as gone:
                raise self._gone(gone) from None
            finally:
                self._start_timer()

    def ask(self, kind: str, content: Json) -> Json | None:
        """The reply to a question that is no cell; `None` if there is none at once."""
        if not self._use.acquire(blocking=False):
            return None
        try:
            return None if self._channel is None else question(self._channel, kind, content)
        except KernelGone:
            self._drop()  # the next cell will find out, and say it
            return None
        finally:
            self._use.release()

    def close(self) -> None:
        """Idempotent."""
        with self._use:
            self._stop_timer()
            self._drop()

    def _gone(self, gone: KernelGone) -> AllocationLost:
        self._drop()
        self._mark = ""  # told once
        return AllocationLost(self._why(gone))

    def _drop(self) -> None:
        if (channel := self._channel) is not None:
            self._channel = None
            channel.close()

    def _recognise(self, channel: Channel) -> None:
        """A kernel that was started anew while nobody listened must not pass for the one that has the variables."""
        following = self._number() + 1
        mark = self._mark or uuid.uuid4().hex
        try:
            found = evaluate(channel, _count(following), self.outputs, {"mark": _MARK % mark})["mark"]
        except RemoteError:
            return  # not an IPython: it has no place to keep a mark, and counts for itself
        before, self._mark, self._count = self._mark, ast.literal_eval(found), following
        if before and self._mark != before:
            raise KernelGone("the kernel died since the last cell")

    def _count_on(self, channel: Channel) -> None:
        """Let the remote kernel's counter go on where the local one is, so that [n] and Out[n] agree."""
        here = self._number()
        if here > self._count:
            with contextlib.suppress(RemoteError):
                evaluate(channel, _count(here), self.outputs, {})
            self._count = here

    def _number(self) -> int:
        """Of the local cell that runs."""
        return int(self._shell.displayhook.prompt_count)

    def _why(self, gone: KernelGone) -> str:
        """What happened, in a sentence for whoever waits for the cell."""
        name, node = self.allocation["name"], self.allocation.get("node")
        where = f"{name!r} on {node}" if node else f"{name!r}"
        try:
            now = self._news()
        except GpufitError as problem:
            return f"{gone.message} (allocation {where}), and nobody can say why: {problem.message}"
        self.allocation = now
        if is_running(now):
            told, log = _parted(str(now.get("message") or ""))
            return (
                f"{gone.message} (allocation {where}{': ' * bool(told)}{told}). It starts anew on the same GPUs; its "
                f"variables are gone, so run the cells that made them again{log}"
            )
        return _lost(now)

    def _news(self) -> Json:
        """The allocation once it is known why its kernel died: as soon as it is being restarted, or has ended."""
        over = time.monotonic() + _NEWS
        now = self.client.changed(self.allocation["id"], self.allocation["version"], _NEWS)
        while is_running(now) and not now.get("progress") and (left := over - time.monotonic()) > 0:
            now = self.client.changed(now["id"], now["version"], left)
        return now

    def _start_timer(self) -> None:
        self._used = time.monotonic()
        if self._timer is None:
            self._set_timer(_IDLE_CLOSE)

    def _set_timer(self, seconds: float) -> None:
        # One for many cells: it is a thread, and takes longer to start than a cell is sent.
        self._timer = threading.Timer(seconds, self._idle)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _idle(self) -> None:
        if not self._use.acquire(blocking=False):
            self._set_timer(_IDLE_CLOSE)
            return
        try:
            self._timer = None
            if self._channel is None or self._channel.keep:
                return
            if (left := self._used + _IDLE_CLOSE - time.monotonic()) > 0:
                self._set_timer(left)
            else:
                self._drop()
        finally:
            self._use.release()


class Forwarder:
    """Sends the cells of one shell to an allocation, from `start` to `stop`."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._link: Link | None = None
        self._single: Link | None = None
        self._moves = threading.RLock()  # a panel attaches in a thread of its own
        self._lost: str | None = None
        self._forwarded_cell = False
        self._asides = Asides(shell, lambda kind, content: link.ask(kind, content) if (link := self._link) else None)
        self._transformed: tuple[tuple[str, int, bool], str] | None = None

    @property
    def allocation(self) -> Json | None:
        """What the notebook's cells run on; `None`: the local kernel."""
        link = self._link
        return None if link is None else link.allocation

    def look(self) -> Json | None:
        """Likewise, as it is or was a moment ago. Raises a `GpufitError`."""
        link = self._link
        return None if link is None else link.look()

    def start(self, client: Client, allocation: Json) -> None:
        """From the next cell on. Raises a `GpufitError` if the kernel cannot be reached."""
        with self._moves:
            self.stop()
            link = Link(client, allocation, self._shell)
            try:
                link.open()
                with contextlib.suppress(RemoteError):
                    link.evaluate(_BACK, {})
            except BaseException:
                link.close()
                raise
            self._link = link
            self._lost = None
            self._shell.transform_cell = self._transform
            self._asides.install()

    def close(self) -> None:
        """Stop, and leave the shell as it was."""
        self.stop()
        self._end_single()
        self._shell.__dict__.pop("transform_cell", None)  # the class has the original

    def stop(self) -> None:
        """Cells run in the local kernel again. Idempotent."""
        with self._moves:
            link, self._link = self._link, None
            if link is not None:
                self._asides.remove()
                link.close()

    def link_to(self, client: Client, allocation: Json) -> tuple[Link, bool]:
        """A link to run single cells on that allocation, and whether it is for such alone: then the caller says with
        `done` that the cell is."""
        link = self._link
        if link is not None and link.allocation["id"] == allocation["id"]:
            return link, False
        single = self._single
        if single is None or single.client is not client or single.allocation["id"] != allocation["id"]:
            single = None
        if single is None or not single.well:  # connecting takes longer than most cells do
            self._end_single()
            single = self._single = Link(client, allocation, self._shell)
        single.allocation = allocation
        return single, True

    def done(self, link: Link, *, last: bool) -> None:
        """A single cell is done; `last`: no other one will follow on that allocation."""
        if last or not link.well:
            link.close()

    def _end_single(self) -> None:
        single, self._single = self._single, None
        if single is not None:
            single.close()

    def runs_here(self) -> bool:
        """Whether a piece of a forwarded cell has to run here: a `%gpufit` before it in the same cell stopped the
        forwarding. Raises `AllocationLost` if the allocation was lost before the cell."""
        lost, self._lost = self._lost, None
        if lost is not None:
            raise AllocationLost(lost)
        return self._forwarded_cell and self._link is None

    def remember(self) -> None:
        """Called while a forwarded cell runs: let `In` have what was written, not the call that it became."""
        history = getattr(self._shell, "history_manager", None)
        if (
            self._forwarded_cell
            and history is not None
            and len(history.input_hist_raw) == len(history.input_hist_parsed)
        ):
            history.input_hist_parsed[-1] = history.input_hist_raw[-1]

    # --- called by IPython in place of `shell.transform_cell`

    def _transform(self, cell: str) -> str:
        # A kernel asks twice for each cell. What is found out at first must hold for the second time, too.
        asked = (cell, self._shell.execution_count, self._is_internal())
        if self._transformed is None or self._transformed[0] != asked:
            self._transformed = (asked, self._transform_anew(cell, internal=asked[2]))
        return self._transformed[1]

    def _transform_anew(self, cell: str, *, internal: bool) -> str:
        plain = type(self._shell).transform_cell
        self._forwarded_cell = False
        link = self._link
        if link is None or internal:
            return str(plain(self._shell, cell))
        segments = split(cell, automagic=bool(getattr(self._shell, "automagic", False)))
        if all(segment.local for segment in segments):
            return str(plain(self._shell, cell))
        self._look(link)
        if self._link is None and self._lost is None:
            return str(plain(self._shell, cell))
        self._forwarded_cell = True
        return "".join(
            str(plain(self._shell, segment.code))
            if segment.local
            else f"get_ipython().run_cell_magic('gpufit', '', {segment.code!r})\n"
            for segment in segments
        )

    def _is_internal(self) -> bool:
        """Whether the front end runs this for itself (a variable inspector, a debugger), and not the person."""
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return False
        content = (kernel.get_parent("shell") or {}).get("content") or {}
        return bool(content.get("silent")) or content.get("store_history") is False

    def _look(self, link: Link) -> None:
        """See whether the allocation is still there: it may have been released elsewhere, or have ended by itself."""
        try:
            now = link.look(anew=True)
        except GpufitError:
            return  # the cell itself will find out, and say so
        if is_running(now):
            return
        self.stop()
        if now.get("reason") in _RELEASED:
            text = f"{now['name']!r} has been released: this notebook's cells run in its local kernel again.\n"
            link.outputs.stream("stderr", text)
        else:
            self._lost = _lost(now)


def run_here(shell: Any, code: str) -> None:
    """Run a piece of a cell in the local kernel, as the rest of that cell."""
    source = type(shell).transform_cell(shell, code)
    tree = shell.compile.ast_parse(source, filename=shell.compile.cache(source, shell.execution_count, raw_code=code))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(shell.compile(tree, "<cell>", "exec"), shell.user_global_ns, shell.user_ns)
    if last is not None:  # "single" shows its value, as the last expression of a cell does
        exec(shell.compile(ast.Interactive([last]), "<cell>", "single"), shell.user_global_ns, shell.user_ns)


def _count(number: int) -> str:
    """Code that gives the next cell of the kernel there a number; never a smaller one than it would have."""
    return f"get_ipython().execution_count = max({number}, get_ipython().execution_count)"


def _lost(allocation: Json) -> str:
    sentence, log = _parted(str(allocation.get("message") or allocation.get("reason") or allocation["state"]))
    return (
        f"allocation {allocation['name']!r} is not there any more ({sentence.rstrip('.')}). "
        f"From the next cell on this notebook runs in its local kernel; %gpufit request gets GPUs again{log}"
    )


def _parted(message: str) -> tuple[str, str]:
    """The sentence of an allocation's message, and below it, if there are any, the last lines that its unit printed."""
    sentence, _, log = message.partition("\n")
    return sentence.partition("; its last lines")[0], f"\nIts last lines:\n{log}" if log else ""

"""One display that follows an allocation while it starts or ends: what it does, how far the pull is, for how long."""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from html import escape
from typing import Any

from ..durations import format_duration
from ..memory import format_memory
from .client import LONGEST_WAIT, Client, Json

__all__ = ["Progress", "doing", "follow", "fraction", "standing"]

_OFTEN = 0.1  # s between two updates of the display

_PHASES = {
    "placing": "waiting for GPUs",
    "pulling": "pulling the image",
    "creating": "setting it up",
    "uploading": "copying its files there",
    "starting": "starting",
    "connecting": "waiting for the kernel",
    "collecting": "bringing its outputs home",
}
_STATES = {"pending": "asked", "stopping": "giving everything back"}


def sentence(allocation: Json, seconds: float) -> str:
    """What the allocation is doing now, in one line."""
    where = f" on {allocation['node']}" if allocation.get("node") else ""
    return f"{allocation['name']}{where}: {doing(allocation, time.time())}, {seconds:.0f} s"


def doing(allocation: Json, now: float) -> str:
    """Likewise, without saying who."""
    progress = allocation.get("progress") or {}
    phase = str(progress.get("phase") or "")
    state = str(allocation["state"])
    what: str = _PHASES.get(phase, phase) or _STATES.get(state, state)
    current, total = progress.get("current"), progress.get("total")
    if current is not None:
        what += f" {format_memory(current)}" + (f" of {format_memory(total)}" if total else "")
    if queue := allocation.get("queue"):
        what = f"{_PHASES['placing']}, {standing(queue, now)}"
    elif (message := progress.get("message")) and message != what:
        what += f" ({message})"
    return what


def standing(queue: Json, now: float) -> str:
    """Where one that waits stands, what is missing, and what would help: `Queued` for people."""
    words = [f"number {queue['position']} of {queue['of']} in the queue"]
    words += [text.rstrip(".") for text in (queue.get("missing"), queue.get("frees")) if text]
    if (start := queue.get("start")) is not None:
        words[-1] += f", in {format_duration(max(1.0, start - now))} at the latest"
    words.append(f"it waits for up to {format_duration(max(0.0, queue['until'] - now))} more")
    return "; ".join(words)


def fraction(allocation: Json) -> float | None:
    """How much of a pull is done, if that is known."""
    progress = allocation.get("progress") or {}
    current, total = progress.get("current"), progress.get("total")
    return min(current / total, 1.0) if current is not None and total else None


class Progress:
    """The display. In a notebook one output that is updated; in a terminal one line that is rewritten."""

    def __init__(self, shell: Any = None) -> None:
        """Without a shell (command line) it writes to stderr, and only if that is a terminal."""
        self._shell = shell
        self._kernel = hasattr(shell, "kernel")
        self._id: str | None = None
        self._shown = ""
        self._phase = ("", "")
        self._at = 0.0
        self._since = time.monotonic()

    def show(self, allocation: Json) -> None:
        """Show how it is now: each phase, and bytes not more often than one can see."""
        text = sentence(allocation, time.monotonic() - self._since)
        phase = (str(allocation["state"]), str((allocation.get("progress") or {}).get("phase")))
        if text != self._shown and (phase != self._phase or time.monotonic() - self._at >= _OFTEN):
            self._phase = phase
            self._put(text, fraction(allocation))

    def tell(self, text: str, current: int | None, total: int | None) -> None:
        """Likewise, of something else than an allocation: bytes that are copied."""
        if text != self._shown and time.monotonic() - self._at >= _OFTEN:
            self._put(text, min(current / total, 1.0) if current is not None and total else None)

    def done(self, text: str) -> None:
        """The last word, which stays."""
        self._put(text, None, last=True)

    def _put(self, text: str, part: float | None, last: bool = False) -> None:
        self._at = time.monotonic()
        before, self._shown = self._shown, text
        if self._kernel:
            bar = "" if part is None else f"<progress value='{part:.3f}' style='width:20em'></progress> "
            update, self._id = self._id is not None, self._id or f"gpufit-{uuid.uuid4().hex}"
            self._shell.display_pub.publish(
                data={"text/plain": text, "text/html": f"<div>{bar}{escape(text)}</div>"},
                metadata={},
                transient={"display_id": self._id},
                update=update,
            )
            return
        target = sys.stdout if self._shell is not None else sys.stderr
        if target.isatty():
            width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be rewritten
            line = text if last or len(text) <= width else text[: width - 1] + "…"
            target.write("\r" + line.ljust(min(len(before), width)) + ("\n" if last else ""))
            target.flush()
        elif last:
            target.write(text + "\n")


def follow(client: Client, allocation: Json, until: Any, progress: Progress) -> Json:
    """Show an allocation's progress until `until(allocation)` is true; the allocation as it is then."""
    while not until(allocation):
        progress.show(allocation)
        # Time passes on the display even while nothing changes.
        allocation = client.changed(allocation["id"], allocation["version"], timeout=min(1.0, LONGEST_WAIT))
    return allocation

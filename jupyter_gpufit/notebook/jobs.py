"""Jobs, and files of allocations, for people: what is said of them, logs that are followed, transfers that are watched.

Shared by the magics and the command line. A Ctrl-C raises `Interrupted` with a sentence: what goes on, and what not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..errors import Conflict, InvalidValue, NodeUnreachable, NotFound
from ..memory import format_memory
from ..models import EndReason
from .cells import Interrupted
from .client import LONGEST_WAIT, Client, Json, has_ended, is_live, is_running, latest
from .progress import Progress, follow
from .show import describe, message_of

__all__ = ["carry", "check_kernel", "code_of", "ended", "folder_here", "follow_log", "sent"]

_PATIENCE = 1.0  # s before a node that did not answer is asked again


def check_kernel(allocation: Json) -> None:
    """Raises `Conflict` for a job: nothing but itself runs there."""
    if allocation.get("job"):
        name = allocation["name"]
        raise Conflict(f"{name!r} is a job, and no cells can run there; %gpufit logs -f {name} shows what it prints")


def folder_here() -> str:
    """The folder that this program is in. Raises `InvalidValue` if there is none any more."""
    try:
        return os.getcwd()
    except OSError:
        raise InvalidValue("the folder that this runs in is gone; go to another one with os.chdir, or cd") from None


def sent(allocation: Json, prompt: str) -> str:
    """One line on a job that was just asked for: where it is, or its place in the queue, and how to follow it.

    `prompt` is what a command begins with (`%gpufit`).
    """
    name = allocation["name"]
    point = ", ".join(f"{key}={value}" for key, value in allocation["job"]["sweep"].items())
    what = f"{name!r}" + (f" ({point})" if point else "")
    if queue := allocation.get("queue"):
        where = f"waits for GPUs, number {queue['position']} of {queue['of']} in the queue"
    elif allocation.get("node"):
        where = f"starts on {allocation['node']}"
    else:
        where = "waits for GPUs"  # its place in the queue is not known yet
    return f"{what} {where}. Follow it: {prompt} logs -f {name}"


def ended(allocation: Json) -> str:
    """The last sentence on one that has ended: why, and where its outputs are."""
    reason = str(allocation.get("reason") or "ended")
    message = message_of(allocation)
    if reason in (EndReason.FINISHED, EndReason.FAILED) and message:
        said = f"{allocation['name']!r} {message}"  # "finished after 2 h"
    else:
        said = f"{allocation['name']!r} has ended ({reason})" + (f": {message}" if message else "")
    words = [said if said.endswith(".") else f"{said}."]
    outputs = allocation.get("outputs")
    if outputs and outputs not in message:
        words.append(f"Its outputs are in {outputs}")
    return " ".join(words)


def code_of(allocation: Json) -> int:
    """The exit code for who waited for a job: its own; 1 if something else ended it."""
    if allocation.get("reason") == EndReason.FINISHED:
        return 0
    code = allocation.get("exit_code") if allocation.get("reason") == EndReason.FAILED else None
    return int(code) if code else 1


def follow_log(
    client: Client, allocation: Json, progress: Progress, prompt: str, tail: int, tell: Callable[[str], None]
) -> Json:
    """Print what it prints, until it has ended; the allocation as it is then. `tell` is given what is said of it.

    Ctrl-C ends the following alone.
    """
    name = allocation["name"]
    try:
        return _follow_log(client, allocation, progress, tail, tell)
    except KeyboardInterrupt:
        if has_ended(allocation):
            raise
        raise Interrupted(
            f"{name!r} goes on, and is no longer followed. Again: {prompt} logs -f {name}; "
            f"to end it: {prompt} release {name}"
        ) from None


def _follow_log(client: Client, allocation: Json, progress: Progress, tail: int, tell: Callable[[str], None]) -> Json:
    def waits(now: Json) -> bool:
        return is_live(now) and not is_running(now)

    if waits(allocation):
        allocation = follow(client, allocation, lambda now: not waits(now), progress)
        progress.done(f"{describe(allocation)} is {'over' if has_ended(allocation) else 'running'}.")
    mark, told = "", ""
    while True:
        try:
            log = client.log(allocation["id"], tail=None if mark else tail, after=mark, wait=LONGEST_WAIT)
        except NodeUnreachable:
            if has_ended(latest(client, allocation)):
                raise
            time.sleep(_PATIENCE)  # it may be back in a moment
            continue
        mark = log["mark"]
        if log["logs"]:
            sys.stdout.write(log["logs"])
            sys.stdout.flush()
        if log["over"]:
            return latest(client, allocation)
        if not log["logs"]:
            allocation = latest(client, allocation)
            message = message_of(allocation)
            if message not in ("", told) and is_live(allocation):  # why it is started again, or waits
                told = message
                tell(f"{allocation['name']!r}: {message}")


def carry(client: Client, allocation: Json, do: str, folder: str, paths: Sequence[str], progress: Progress) -> Json:
    """Copy files, with one display that follows; the transfer as it is when it is done. Raises `Conflict` if it failed.

    Ctrl-C cancels it.
    """
    name = allocation["name"]
    doing = f"uploading to {name!r}" if do == "upload" else f"downloading from {name!r}"
    with ThreadPoolExecutor(1, "gpufit-transfer") as asking:
        # In a thread, because a Ctrl-C must not come between its beginning and our learning of it.
        begun = asking.submit(client.transfer, allocation["id"], do, folder, paths)
        try:
            transfer = _watched(client, begun.result(), doing, progress)
        except KeyboardInterrupt:
            client.cancel_transfer(begun.result()["id"])
            what = "what was copied by then is there" if do == "upload" else "what was copied by then is here"
            progress.done(f"Cancelled {doing}; {what}.")
            raise Interrupted(f"{doing} was cancelled") from None
    if transfer["failed"]:
        progress.done(f"{doing[0].upper()}{doing[1:]} failed.")
        raise Conflict(transfer["message"])
    progress.done(transfer["message"] or f"{doing[0].upper()}{doing[1:]} is done.")
    return transfer


def _watched(client: Client, transfer: Json, doing: str, progress: Progress) -> Json:
    """The transfer as it is when it is done."""
    try:
        while not transfer["done"]:
            current, total = transfer["current"], transfer["total"]
            size = (
                ""
                if current is None
                else f" {format_memory(current)}" + (f" of {format_memory(total)}" if total else "")
            )
            progress.tell(f"{doing}:{size or ' ' + (transfer['message'] or 'begun')}", current, total)
            transfer = client.transferred(transfer["id"], transfer["version"])
    except NotFound:
        raise Conflict(f"{doing} was cut off: the server was started again; run this once more") from None
    return transfer

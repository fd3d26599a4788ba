"""Wait for GPUs, and for their return, with one display that follows. A Ctrl-C leaves nothing held in secret."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from ..errors import Conflict, GpufitError, NotFound, NotPlaced
from ..models import EndReason, Request
from .client import Client, Json, has_ended, is_live, is_running, latest
from .outputs import outputs_of
from .progress import Progress, follow
from .show import describe, explanation

__all__ = ["give_back", "granted", "is_what_is_asked", "obtain", "submit", "until_ended", "until_running"]


def obtain(client: Client, shell: Any, request: Request) -> Json:
    """A running allocation for `request`. Ctrl-C cancels it; nothing is held then."""
    (allocation,) = _granted(client, shell, lambda: [client.request(request)])
    return until_running(client, shell, allocation, cancel=True)


def submit(client: Client, shell: Any, request: Request, sweep: Mapping[str, Sequence[str]]) -> list[Json]:
    """The allocations of the request's job, placed or queued. Ctrl-C cancels all of them."""
    return _granted(client, shell, lambda: client.submit(request, sweep))


def _granted(client: Client, shell: Any, ask: Callable[[], list[Json]]) -> list[Json]:
    try:
        return granted(client, shell, ask)
    except NotPlaced as refused:
        outputs_of(shell).display({"data": explanation(refused.details).bundle(), "metadata": {}})
        raise


def granted(client: Client, shell: Any, ask: Callable[[], list[Json]]) -> list[Json]:
    """What `ask` gets. Ctrl-C gives all of it back, as soon as it is known. `shell`: as of `Progress`."""
    with ThreadPoolExecutor(1, "gpufit-request") as asking:
        # In a thread, because a Ctrl-C must not come between what was granted and our learning of it.
        answer = asking.submit(ask)
        try:
            return answer.result()
        except KeyboardInterrupt:
            answer.add_done_callback(partial(_take_back, client))  # whatever else is pressed now
            for allocation in answer.result():
                until_ended(client, shell, allocation, f"Cancelled {allocation['name']!r}; nothing is held.")
            raise


def _take_back(client: Client, answer: Future[list[Json]]) -> None:
    """What a request was granted that nobody wants any more."""
    if answer.exception() is None:
        for allocation in answer.result():
            client.release(allocation["id"])


def until_running(client: Client, shell: Any, allocation: Json, *, cancel: bool = False) -> Json:
    """Wait until it runs. Raises `Conflict` if it ends instead."""
    if is_running(allocation):
        return allocation
    progress = Progress(shell)
    try:
        allocation = follow(client, allocation, lambda now: is_running(now) or has_ended(now), progress)
    except BaseException:
        if cancel:
            give_back(client, shell, allocation, f"Cancelled {allocation['name']!r}; nothing is held.", progress)
        raise
    if is_running(allocation):
        progress.done(f"{describe(allocation)} is running.")
        return allocation
    why = allocation.get("message") or allocation.get("reason") or "it gives no reason"
    progress.done(f"{allocation['name']!r} did not start.")
    if allocation.get("reason") == EndReason.FAILED and (logs := _last_words(client, allocation)):
        print(logs, file=sys.stderr)
    raise Conflict(f"allocation {allocation['name']!r} did not start: {why}")


def _last_words(client: Client, allocation: Json) -> str:
    try:
        return client.logs(allocation["id"], 50).strip()
    except GpufitError:
        return ""  # it is about another error; this one would only hide it


def give_back(
    client: Client, shell: Any, allocation: Json, said: str | None = None, progress: Progress | None = None
) -> None:
    """Release it, whatever the person presses meanwhile; then wait for the end, as long as they let us."""
    for attempt in (1, 2):
        try:
            client.release(allocation["id"])
            break
        except KeyboardInterrupt:
            if attempt == 2:
                raise
        except NotFound:
            return
    until_ended(client, shell, allocation, said, progress)


def until_ended(
    client: Client, shell: Any, allocation: Json, said: str | None, progress: Progress | None = None
) -> Json:
    """Wait until everything it held is given back, and say so; the allocation as it is then."""
    progress = progress or Progress(shell)
    with contextlib.suppress(NotFound):  # ended so long ago that it is forgotten
        allocation = follow(client, latest(client, allocation), has_ended, progress)
    progress.done(said or f"Released {describe(allocation)}.")
    return allocation


def is_what_is_asked(allocation: Json, request: Request) -> bool:
    """Whether it has the size that `request` asks for, and does not contradict it."""
    asked = allocation.get("request") or {}
    return bool(
        not allocation.get("job")
        and sorted(allocation["memory"]) == sorted(request.sizes)
        and (request.name is None or request.name == allocation["name"])
        and (request.cpus is None or request.cpus == asked.get("cpus"))
        and (request.ram is None or request.ram == asked.get("ram"))
        and (request.image is None or request.image == allocation.get("image"))
        and (not request.write_models or bool(asked.get("write_models")))
        and (not request.require_model or (asked.get("require_model") and asked.get("model") == request.model))
        and is_live(allocation)
    )

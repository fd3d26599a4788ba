"""What one person may have: a request against their quota (`[quota]` in gpufit.toml) and what they hold. Pure.

    admit     what no waiting would change: more than the quota altogether   → `Forbidden`
    excess    what only stands in the way because of what they hold now      → a sentence, until they hold less

Nothing is counted separately: what somebody holds is read from the live allocations each time, so what a start that
failed had taken is back with its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..durations import format_duration
from ..errors import Forbidden
from ..inventory import Quota
from ..models import Request

__all__ = ["Holding", "admit", "excess"]

_MOST_NAMES = 4


class Holding(Struct, frozen=True, kw_only=True):
    """Something that somebody holds, or is about to."""

    gpus: int
    name: str = ""
    """Empty: one of another scheduler (another Jupyter server)."""


def admit(request: Request, quota: Quota) -> Request:
    """The request as the quota allows it: with the quota's time if it asks for none. Raises `Forbidden` if it is more
    than the quota, whatever its owner holds. Called by the scheduler with each new request."""
    if quota.gpus is not None and request.gpus > quota.gpus:
        raise _forbidden(
            "gpus", request.gpus, quota.gpus, f"{_gpus(request.gpus)} are asked", f"{_gpus(quota.gpus)} at once"
        )
    if quota.allocations == 0:
        raise _forbidden("allocations", 1, 0, "an allocation is asked", "none at all")
    for what in ("time", "wait"):
        asked, most = getattr(request, what), getattr(quota, what)
        if asked is not None and most is not None and asked > most:
            spans = format_duration(asked), format_duration(most)
            said = spans if spans[0] != spans[1] else (f"{asked:g} s", f"{most:g} s")
            raise _forbidden(what, asked, most, f"--{what} {said[0]} is asked", f"{said[1]} at most")
    if quota.priority is not None and request.priority > quota.priority:
        raise _forbidden(
            "priority",
            request.priority,
            quota.priority,
            f"priority {request.priority} is asked",
            f"{quota.priority} at most",
        )
    if request.time is None and quota.time is not None:
        return msgspec.structs.replace(request, time=quota.time)
    return request


def excess(asked: int, quota: Quota, held: Sequence[Holding]) -> str | None:
    """Why its owner cannot have `asked` GPUs now, in a sentence for people; `None`: they can."""
    gpus = sum(each.gpus for each in held)
    if quota.gpus is not None and gpus + asked > quota.gpus:
        more = f"{_gpus(asked)} more" if gpus else _gpus(asked)
        most = f"{_gpus(quota.gpus)} at once"
        return f"you hold {_gpus(gpus)}{_names(held)}, and your quota is {most}: {more} would be too many"
    if quota.allocations is not None and len(held) >= quota.allocations:
        noun = "allocation" if quota.allocations == 1 else "allocations"
        return f"you hold {len(held)}{_names(held)}, and your quota is {quota.allocations} {noun} at once"
    return None


def _forbidden(what: str, asked: float, most: float, said: str, limit: str) -> Forbidden:
    return Forbidden(
        f"{said}, and your quota is {limit}; ask for less (the quota is in gpufit.toml, {what} under [quota])",
        quota=what,
        asked=asked,
        most=most,
    )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _names(held: Sequence[Holding]) -> str:
    names = [repr(each.name) for each in held if each.name]
    if elsewhere := len(held) - len(names):
        names.append("1 of another server" if elsewhere == 1 else f"{elsewhere} of other servers")
    if len(names) > _MOST_NAMES:
        names = [*names[: _MOST_NAMES - 1], f"{len(names) - _MOST_NAMES + 1} more"]
    return f" ({', '.join(names)})" if names else ""

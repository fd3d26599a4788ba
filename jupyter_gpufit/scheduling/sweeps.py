"""What is asked for when somebody asks for a job with a list of parameters: one job for each combination. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..errors import InvalidValue
from ..inventory import Quota
from ..models import Request

__all__ = ["named", "patient", "spread"]

MOST_JOBS = 256
"""Of one sweep; more of them are a script's work."""
_WAIT = 86400.0  # s; nobody watches a job, so it waits for GPUs unless it says that it does not


def patient(request: Request, quota: Quota) -> Request:
    """A job's request with how long it waits, if it does not say: a day, or as long as the quota allows."""
    if request.wait is not None:
        return request
    return replace(request, wait=_WAIT if quota.wait is None else min(_WAIT, quota.wait))


def spread(request: Request, sweep: Mapping[str, Sequence[str]]) -> list[Request]:
    """The requests of a sweep, in order: the last parameter varies first. Without one it is the request alone.

    Raises `InvalidValue`.
    """
    assert request.job is not None
    if not sweep:
        return [replace(request, job=replace(request.job, turn=0))]
    for name, values in sweep.items():
        if isinstance(values, str) or not values:
            raise InvalidValue(f"the sweep has no values for {name!r}; write it like {name}=1,2,3")
        if len(set(values)) < len(values):
            raise InvalidValue(f"the sweep has a value of {name!r} twice ({', '.join(values)}); give each once")
    if (count := math.prod(map(len, sweep.values()))) > MOST_JOBS:
        raise InvalidValue(f"the sweep would be {count} jobs, and {MOST_JOBS} is the most at once; give fewer values")
    points = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    return [replace(request, job=replace(request.job, sweep=point, turn=at)) for at, point in enumerate(points)]


def named(requests: Sequence[Request], name: str) -> list[str]:
    """What their allocations are called: by `name`, numbered if there are several."""
    return [name] if len(requests) == 1 else [f"{name}-{number}" for number in range(1, len(requests) + 1)]

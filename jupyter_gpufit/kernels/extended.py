"""What is said of an allocation that was given more time: in its own kernel, in a local one, in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..durations import format_clock, format_duration

__all__ = ["extended"]


def extended(allocation: Mapping[str, Any], now: float) -> str:
    """The sentence, for an allocation as REST shows it. `now` is Unix time."""
    name, lifetime, expires = allocation["name"], format_duration(allocation["time"]), allocation["expires"]
    if expires is None:
        return f"{name!r} has {lifetime} from when it runs."
    at = format_clock(expires)
    return f"{name!r} has {lifetime} now: it ends in {format_duration(max(0.0, expires - now))}, at {at}."

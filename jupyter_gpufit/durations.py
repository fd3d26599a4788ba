"""Spans of time, to and from people. Inside, a duration is a `float` of seconds."""

from __future__ import annotations

import re
import time

from .errors import InvalidValue

__all__ = ["format_clock", "format_duration", "format_moment", "parse_duration"]

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*", re.IGNORECASE | re.ASCII)
_LONGEST = 10 * 366 * 86400.0


def parse_duration(value: str | int | float) -> float:
    """Seconds meant by `value`: `"90s"`, `"10m"`, `"2h"`, `"1d12h"`, or a number of seconds.

    Raises `InvalidValue` for anything else, for zero or less, and for more than ten years.
    """
    hint = "write it like '90s', '10m', '2h' or '1d12h'"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidValue(f"{value!r} is not a duration; {hint}")
    if isinstance(value, str) and len(value) > 64:
        raise InvalidValue(f"{value[:20]!r}… is not a duration; {hint}")
    if isinstance(value, str):
        text, seconds, at = value.strip(), 0.0, 0
        if text[:1] == "-" and _PART.match(text[1:].lstrip()):
            raise InvalidValue(f"{value!r} is negative; {hint}")
        while match := _PART.match(text, at):
            seconds += float(match[1]) * _SECONDS[match[2].lower()]
            at = match.end()
        if not text or at != len(text):
            raise InvalidValue(f"{value!r} is not a duration; {hint}")
    else:
        seconds = float(value)
    if not 0 < seconds <= _LONGEST:  # also false for NaN
        raise InvalidValue(f"{value!r} is not a possible duration; {hint}")
    return seconds


def format_moment(moment: float) -> str:
    """Unix time for people, wherever they are: `"2026-03-01 09:30:12 UTC"`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def format_clock(moment: float) -> str:
    """Unix time for people, where the day is plain: `"09:30 UTC"`."""
    return time.strftime("%H:%M UTC", time.gmtime(moment))


def format_duration(seconds: float | None) -> str:
    """`seconds` for people, in its two largest units: `"1 h 12 m"`, `"45 s"`, `"?"` if unknown."""
    if seconds is None:
        return "?"
    left = round(abs(seconds))
    sign = "-" if seconds < 0 and left else ""
    parts: list[tuple[int, str]] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
        if len(parts) == 2:
            break
    return sign + (" ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s")

"""Spans of time, to and from people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.durations import format_duration, parse_duration
from jupyter_gpufit.errors import InvalidValue

PATIENT = settings(deadline=None)  # the machine may be busy with other things

DECADE = 10 * 366 * 86400


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("1d12h", 129600.0),
        (" 1d 12 h ", 129600.0),
        ("1.5H", 5400.0),
        ("500ms", 0.5),
        ("1w", 604800.0),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_what_people_write(value: str | float, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    ["", "5", "5 minutes", "h", "-5s", "0s", "5s!", "1e3s", "999999w", 0, -1, math.nan, math.inf, True, None, [5]],
)
def test_what_cannot_be_meant(value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_duration(value)  # type: ignore[arg-type]
    assert repr(value) in caught.value.message
    assert "'90s'" in caught.value.message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0 s"),
        (0.4, "0 s"),
        (45, "45 s"),
        (60, "1 m"),
        (4320, "1 h 12 m"),
        (3605, "1 h"),
        (90061, "1 d 1 h"),
        (-90, "-1 m 30 s"),
    ],
)
def test_shown_to_people(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@PATIENT
@given(st.floats(0.5, DECADE))
def test_what_is_shown_reads_back_as_nearly_the_same(seconds: float) -> None:
    shown = format_duration(seconds)
    if shown != "0 s":
        # Two units: what is left out is less than one of the smaller unit.
        assert abs(parse_duration(shown) - seconds) <= max(1, seconds / 24)


@PATIENT
@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except InvalidValue:
        return
    assert 0 < seconds <= DECADE

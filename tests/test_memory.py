"""Sizes of memory, to and from people."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.memory import GiB, format_memory, parse_memory

PATIENT = settings(deadline=None)  # the machine may be busy with other things


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16GiB", 16 * 2**30),
        ("16G", 16 * 2**30),
        ("16Gi", 16 * 2**30),
        ("16GB", 16 * 10**9),
        (" 16 gib ", 16 * 2**30),
        ("0.5g", 2**29),
        (".5T", 2**39),
        ("1.B", 1),
        ("500MB", 500 * 10**6),
        ("3k", 3072),
        ("3KB", 3000),
        ("1024B", 1024),
        ("1024 b", 1024),
        ("0", 0),
        ("0.0", 0),
        (7, 7),
        ("0.1GB", 10**8),
        ("1.9B", 1),
    ],
)
def test_what_people_write(text: str | int, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "value", ["", "G", "16 Gigs", "16GiB2", "-1", "1e9", "0x10", "１６G", "16G\n16G", "9" * 30 + "GiB", -1, 2**61]
)
def test_what_cannot_be_meant(value: str | int) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_memory(value)
    assert repr(value) in caught.value.message
    assert "16GiB" in caught.value.message


@pytest.mark.parametrize(
    ("text", "meant"), [("16", "16GiB"), (" 0.5 ", "0.5GiB"), ("40960", "40960MiB"), ("17179869184", "17179869184B")]
)
def test_a_number_alone_is_no_size(text: str, meant: str) -> None:
    """`--memory 16` would be 16 bytes: every GPU has those, and nobody means it."""
    with pytest.raises(InvalidValue) as caught:
        parse_memory(text)
    assert caught.value.message == f"{text!r} has no unit; write {meant!r}"
    assert parse_memory(meant) > 0


@pytest.mark.parametrize("text", ["-5GiB", "-1", " - 3 G"])
def test_less_than_nothing_is_said_to_be_negative(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"is negative; write a size of memory like '16GiB'"):
        parse_memory(text)


@pytest.mark.parametrize("value", [True, 1.5, None, b"1G", ["1G"]])
def test_other_types(value: object) -> None:
    with pytest.raises(InvalidValue, match="int of bytes"):
        parse_memory(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (16 * GiB, "16 GiB"),
        (int(11.29 * GiB), "11.2 GiB"),
        (16 * GiB - 1, "15.9 GiB"),
        (2**40, "1 TiB"),
        (-GiB, "-1 GiB"),
    ],
)
def test_shown_to_people(size: int | None, text: str) -> None:
    assert format_memory(size) == text


@PATIENT
@given(st.integers(0, 2**60))
def test_a_size_shown_is_never_more_than_there_is(size: int) -> None:
    """What `format_memory` says, `parse_memory` reads back as no more, and as not much less."""
    back = parse_memory(format_memory(size))
    assert back <= size
    assert size - back <= max(size // 10, 1)


@PATIENT
@given(st.integers(0, 2**60), st.integers(0, 2**60))
def test_shown_sizes_keep_their_order(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert parse_memory(format_memory(less)) <= parse_memory(format_memory(more))


@PATIENT
@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        size = parse_memory(text)
    except InvalidValue:
        return
    assert 0 <= size <= 2**60

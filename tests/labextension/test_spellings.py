"""The lab extension reads and writes sizes, durations and moments as the package does.

`spellings.json` is what both must make of a text; `labextension/src/__tests__/format.spec.ts` holds the other
side to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.durations import format_clock, format_duration, format_moment, parse_duration
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.memory import format_memory, parse_memory

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "spellings.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("parse", "row"),
    [
        *((parse_memory, row) for row in TABLE["sizes"]["read"]),
        *((parse_duration, row) for row in TABLE["durations"]["read"]),
    ],
)
def test_read(parse: Any, row: list[Any]) -> None:
    try:
        answer = [row[0], parse(row[0])]
    except InvalidValue as error:
        answer = [row[0], None, str(error)]
    assert answer == row


@pytest.mark.parametrize(
    ("form", "row"),
    [
        *((format_memory, row) for row in TABLE["sizes"]["written"]),
        *((format_duration, row) for row in TABLE["durations"]["written"]),
        *((format_moment, row) for row in TABLE["moments"]),
        *((format_clock, row) for row in TABLE["clocks"]),
    ],
)
def test_written(form: Any, row: list[Any]) -> None:
    assert form(row[0]) == row[1]

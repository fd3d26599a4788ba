"""The `%gpufit` lines that the lab extension writes ask for exactly the request they were written from.

`lines.json` is what both must make of it; `labextension/src/request/__tests__/asking.spec.ts` holds the writing side to
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.models import Request
from jupyter_gpufit.notebook.grammar import parse_line, request_of

TABLE: list[dict[str, Any]] = json.loads((Path(__file__).parent / "lines.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["line"])
def test_a_line_asks_for_its_request(row: dict[str, Any]) -> None:
    magic, _, line = row["line"].partition(" ")
    verb, options = parse_line(line)
    assert (magic, verb) == ("%gpufit", "request")
    assert request_of(options) == Request(**row["request"])

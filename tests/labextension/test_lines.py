"""The `%gpufit` lines that the lab extension writes ask for exactly the request they were written from.

`lines.json` is what both must make of it; `labextension/src/request/__tests__/asking.spec.ts` holds the writing side to
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.models import Request, decode, encode
from jupyter_gpufit.notebook.grammar import parse_line
from jupyter_gpufit.notebook.options import request_of, submission_of

TABLE: list[dict[str, Any]] = json.loads((Path(__file__).parent / "lines.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["line"])
def test_a_line_asks_for_its_request(row: dict[str, Any]) -> None:
    magic, _, line = row["line"].partition(" ")
    verb, options = parse_line(line)
    assert (magic, verb) == ("%gpufit", "train" if "job" in row["request"] else "request")
    if verb == "request":
        assert request_of(options) == Request(**row["request"])
        return
    # Of a job's variables the page knows the names only: whoever runs the line has their values.
    here = dict.fromkeys(row.get("env", ()), "their own")
    job = {key: value for key, value in row["request"]["job"].items() if key != "sweep"}
    request, sweep = submission_of(options, "/home/ada", here)
    assert request.body() == decode(encode(row["request"] | {"job": job, "folder": "/home/ada"}), Request).body()
    assert request.job is not None
    assert request.job.env == here
    assert sweep == {name: [value] for name, value in row["request"]["job"].get("sweep", {}).items()}

"""The tests that docs/faults.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_fault_of_the_page_has_its_test() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "faults.md").read_text())
    assert len(named) > 15
    missing = [f"{file}::{test}" for file, test in named if not re.search(rf"def {test}\(", (ROOT / file).read_text())]
    assert missing == []

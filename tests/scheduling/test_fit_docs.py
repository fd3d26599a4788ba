"""The examples in docs/selection.md give what they say."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_page_on_selection() -> None:
    page = Path(__file__).parents[2] / "docs" / "selection.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried > 8
    assert failed == 0

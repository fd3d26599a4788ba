"""`bench/run.py`: what it keeps of a benchmark, and makes of that."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
MADE_UP = """
import json, sys
print(json.dumps({"figure": "made.up/floor", "ratio": 1.2, "goal": {"ratio": 1.15}}))
print(json.dumps({"figure": "made.up", "ms": 1234.5}))
print("a warning", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """The module, with a directory of its own and one benchmark that is made up."""
    found = runpy.run_path(str(BENCH / "run.py"))
    here = {"KEPT": tmp_path / "results", "RESULTS": tmp_path / "RESULTS.md"}
    found["run"].__globals__.update(here)
    (tmp_path / "made_up.py").write_text(MADE_UP)
    return SimpleNamespace(**found | here)


def part(bench: Any, tmp_path: Path, code: int) -> Any:
    return bench.Part((str(tmp_path / "made_up.py"), str(code)), "What is made up.")


def test_what_a_benchmark_printed_is_kept_with_where_it_ran(bench: Any, tmp_path: Path) -> None:
    assert bench.run("polling", part(bench, tmp_path, 0))
    about, figures = bench.kept("polling")
    assert [figure["figure"] for figure in figures] == ["made.up/floor", "made.up"]
    assert about["packages"]["numpy"]
    text = bench.results()
    assert "| made.up/floor | ratio 1.2 | ratio ≤ 1.15 | missed |" in text
    assert "| made.up | ms 1,234.5 |  |  |" in text
    assert about["machine"] in text


def test_one_that_cannot_run_here_leaves_what_there_was(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("polling", part(bench, tmp_path, 0))
    before = bench.kept("polling")
    assert bench.run("polling", part(bench, tmp_path, bench.SKIPPED))
    assert bench.kept("polling") == before
    assert "polling: not run here: a warning" in capsys.readouterr().err


def test_one_that_fails_is_told_and_not_kept(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not bench.run("polling", part(bench, tmp_path, 1))
    assert bench.kept("polling") is None
    assert "a warning" in capsys.readouterr().err


def test_results_are_those_of_the_files_beside_them() -> None:
    """Nobody edits RESULTS.md."""
    found = runpy.run_path(str(BENCH / "run.py"))
    assert (BENCH / "RESULTS.md").read_text(encoding="utf-8") == found["results"]()
    for file in (BENCH / "results").glob("*.jsonl"):
        assert file.stem in found["ALL"]
        assert all(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def test_the_readme_quotes_only_what_was_measured() -> None:
    """Each row of its table names a figure of RESULTS.md and one of its values, and says that value."""
    found = runpy.run_path(str(BENCH / "run.py"))
    figures = {figure["figure"]: figure for name in found["ALL"] if (kept := found["kept"](name)) for figure in kept[1]}
    readme = (BENCH.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| \**([\d.,]+)\**(?: [^|]*)? \| `(\S+)`, (\w+) \|$", readme, re.MULTILINE)
    assert len(rows) >= 5
    for told, figure, key in rows:
        assert float(told.replace(",", "")) == figures[figure][key], figure

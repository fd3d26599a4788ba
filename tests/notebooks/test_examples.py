"""The example notebooks run on the demo's cluster, and hold what they gave when they were run last."""

from __future__ import annotations

import importlib.util
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
import pytest

HERE = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
RUN_ELSEWHERE = "quickstart"  # tests/cli/test_demo.py, in a session of a real server
FAILS = "raises-exception"


def execute(path: Path, directory: Path) -> Any:
    spec = importlib.util.spec_from_file_location("notebooks_execute", HERE / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.execute(path, directory)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> list[str]:
    """What sort of thing it gave; how many pieces a stream came in is chance."""
    given = [output.get("name") or output.output_type for output in cell.outputs]
    return [kind for kind, _ in groupby(given)]


def test_there_are_five() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["cells", "cluster", "fit", "quickstart", "training"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_is_short_says_what_it_shows_and_holds_what_it_gave(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    title, _, about = notebook.cells[0].source.partition("\n\n")
    assert title.startswith("# ")
    assert about.count(".") >= 1
    assert len(about) < 200, "one sentence"
    assert len(notebook.cells) <= 20
    assert all(len(cell.source.splitlines()) <= 40 for cell in notebook.cells)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    for cell in code(notebook):
        assert "stderr" not in kinds(cell)
        assert ("error" in kinds(cell)) == (FAILS in cell.metadata.get("tags", [])), cell.source
    assert "/tmp/" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem != RUN_ELSEWHERE], ids=lambda path: path.stem)
def test_each_runs_and_gives_what_it_holds(path: Path, tmp_path: Path) -> None:
    ran = execute(path, tmp_path)
    for before, now in zip(code(nbformat.read(path, as_version=4)), code(ran), strict=True):
        assert kinds(now) == kinds(before), now.source
    claims = tmp_path / "claims"
    assert not claims.exists() or not list(claims.glob("*.json")), "all is given back"

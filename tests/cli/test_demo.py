"""`jupyter gpufit demo`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from jupyter_gpufit.cli.app import main
from jupyter_gpufit.cli.demo import NODES, _browser_at, _without_outputs, quick_start

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_check_goes_through_the_quick_start(capsys: Captured) -> None:
    assert main(["demo", "--check"]) == 0
    out = capsys.readouterr().out
    assert "[1] %load_ext jupyter_gpufit" in out
    assert "FAILED" not in out
    assert "cells ran, on 2 kernels; nothing is held." in out


def test_what_others_got_is_not_shown_as_if_it_was_got_here() -> None:
    stored = nbformat.read(quick_start(), as_version=4)
    shown = nbformat.reads(_without_outputs(quick_start().read_text("utf-8")), as_version=4)
    assert any(cell.get("outputs") for cell in stored.cells)
    assert not any(cell.get("outputs") for cell in shown.cells)
    assert [cell.source for cell in shown.cells] == [cell.source for cell in stored.cells]


def test_check_ends_non_zero_when_a_cell_fails(tmp_path: Path, capsys: Captured) -> None:
    work = tmp_path / "work"
    (work / "notebooks").mkdir(parents=True)
    cells = [
        new_code_cell(cell) for cell in ("print('fine')", "%load_ext jupyter_gpufit\n%gpufit request 99", "never = 1")
    ]
    nbformat.write(new_notebook(cells=cells), work / "notebooks" / "quickstart.ipynb")
    (work / "gpufit.toml").write_text(inventory := NODES + "\n[quota]\ngpus = 200\n", "utf-8")
    assert main(["demo", "--check", "--json", "--dir", str(work)]) == 1
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["ok"] for step in steps] == [True, False]
    assert "could ever give 99 GPUs" in steps[1]["output"]
    assert (work / "gpufit.toml").read_text("utf-8") == inventory  # what somebody wrote there is not written over


def test_the_browsers_words_do_not_tell_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with _browser_at("http://127.0.0.1:1/lab?token=hush"):
        (url,) = opened
        assert "hush" not in url
        page = Path(url.removeprefix("file://"))
        assert "url=http://127.0.0.1:1/lab?token=hush" in page.read_text("utf-8")
        assert page.stat().st_mode & 0o077 == 0
    assert not page.exists()


def test_ctrl_c_ends_the_server_and_removes_its_directory(tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab")
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpufit.cli.app", "demo", "--no-browser"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
        assert "/lab/tree/quickstart.ipynb?token=" in line
        (directory,) = tmp_path.glob("gpufit-demo-*")
        info = json.loads(next((tmp_path / "runtime").glob("jpserver-*.json")).read_text())
        shown = {path.name for path in Path(info["root_dir"]).iterdir()}
        assert shown - {".ipynb_checkpoints"} == {"quickstart.ipynb"}
        server = int(next((tmp_path / "runtime").glob("jpserver-*.json")).stem.split("-")[1])
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()
    assert process.wait(60) == 0
    assert not directory.exists()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{server}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)

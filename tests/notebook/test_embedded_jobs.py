"""The embedded client's jobs and files: a real process on a simulated GPU, with nobody's server."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.notebooks import interrupt_the_wait

from jupyter_gpufit.errors import Conflict, GpufitError, InvalidValue, NotFound
from jupyter_gpufit.models import Job, Request
from jupyter_gpufit.notebook.cells import Interrupted
from jupyter_gpufit.notebook.client import EmbeddedClient, embedded
from jupyter_gpufit.notebook.jobs import carry, code_of, ended, folder_here, follow_log, sent
from jupyter_gpufit.notebook.progress import Progress

NODES = """
[defaults]
docker = "process"
[[node]]
name = "one"
report = "simulated:2xT4-16GB"
"""
FIT = """
import os, sys
print("hello from", os.environ["GPUFIT_NAME"], *sys.argv[1:])
with open(os.path.join(os.environ["GPUFIT_OUTPUTS"], "out.txt"), "w") as file:
    file.write(os.environ["KEY"])
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedClient]:
    home = tmp_path_factory.mktemp("home")
    (home / "gpufit.toml").write_text(NODES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUFIT_CLAIMS_DIR", str(home / "claims"))
        patch.setenv("JUPYTER_DATA_DIR", str(home / "data"))
        made = embedded(str(home / "gpufit.toml"))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fit.py").write_text(FIT)
    return tmp_path


def follow(client: EmbeddedClient, one: dict[str, Any]) -> dict[str, Any]:
    return follow_log(client, one, Progress(), "%gpufit", 200, print)


def test_a_job_and_a_sweep_from_start_to_end(
    client: EmbeddedClient, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(name="fit", folder=str(folder), job=Job(run="fit.py", args=("a b",), env={"KEY": "hunter2"}))
    made = client.submit(request, {"lr": ["1", "2"]})
    assert [one["name"] for one in made] == ["fit-1", "fit-2"]
    assert sent(made[1], "%gpufit") == "'fit-2' (lr=2) starts on one. Follow it: %gpufit logs -f fit-2"
    for one in made:
        over = follow(client, one)
        point = one["job"]["sweep"]["lr"]
        assert capsys.readouterr().out.splitlines()[-1] == f"hello from {one['name']} a b --lr={point}"
        assert (over["state"], over["reason"], over["exit_code"], code_of(over)) == ("ended", "finished", 0, 0)
        assert (folder / "outputs" / one["name"] / "out.txt").read_text() == "hunter2"
        assert str(folder / "outputs" / one["name"]) in ended(over)
        assert "hunter2" not in str(over) + client.logs(one["id"])
        log = client.log(one["id"], after="", wait=4)
        assert log["over"]
        assert client.log(one["id"], after=log["mark"], wait=4) == {"logs": "", "mark": log["mark"], "over": True}
        assert client.usage(one["id"])["gpus"][0]["uuid"] == one["gpus"][0]
    assert client.allocations() == []


def test_ctrl_c_while_a_transfer_is_being_begun_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Mock()
    slow.transfer.return_value = {"id": "t", "done": False}
    interrupt_the_wait(monkeypatch)
    with pytest.raises(Interrupted, match="uploading to 'k' was cancelled"):
        carry(slow, {"id": "i", "name": "k"}, "upload", "/", ["a"], Progress())
    slow.cancel_transfer.assert_called_once_with("t")


@pytest.mark.parametrize(
    ("wishes", "error", "said"),
    [
        ({"job": Job(run="fti.py")}, InvalidValue, "did you mean fit.py"),
        ({"job": Job(run="../fit.py")}, InvalidValue, "../fit.py"),
        ({"job": Job(run="fit.py"), "folder": "/nowhere/at/all"}, InvalidValue, "/nowhere/at/all"),
        ({"job": Job(run="fit.py"), "model": "llama", "require_model": True}, InvalidValue, "llama"),
        ({"job": None}, InvalidValue, "no job"),
    ],
)
def test_what_cannot_be_meant_leaves_nothing(
    client: EmbeddedClient, folder: Path, wishes: dict[str, Any], error: type[GpufitError], said: str
) -> None:
    with pytest.raises(error, match=said):
        client.submit(Request(**{"folder": str(folder), **wishes}), {})
    assert client.allocations() == []


def test_files_of_a_running_job(client: EmbeddedClient, folder: Path) -> None:
    (made,) = client.submit(Request(name="long", folder=str(folder), job=Job(run="exec sleep 600")), {})
    try:
        while made["state"] != "running":
            made = client.changed(made["id"], made["version"])
        with pytest.raises(Conflict, match="already"):
            client.submit(Request(name="long", folder=str(folder), job=Job(run="fit.py", env={"KEY": ""})), {})
        transfer = carry(client, made, "upload", str(folder), ["fit.py"], Progress())
        assert (transfer["done"], transfer["failed"]) == (True, False)
        with pytest.raises(InvalidValue, match=r"\.\./x"):
            carry(client, made, "upload", str(folder), ["../x"], Progress())
        with pytest.raises(NotFound):
            client.transferred("nobody", 0)
        with pytest.raises(NotFound):
            client.cancel_transfer("nobody")
    finally:
        client.release(made["id"])
    while client.get("long")["state"] != "ended":
        time.sleep(0.02)


def test_a_folder_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidValue, match="is gone"):
        folder_here()


def test_a_terminal_shows_one_line_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = Progress()
    progress.tell("uploading: 1 B of 2 B", 1, 2)
    progress.done("Done.")
    assert terminal.getvalue().count("\n") == 1

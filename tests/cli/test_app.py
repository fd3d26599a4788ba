"""`jupyter gpufit …`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jupyter_gpufit
from jupyter_gpufit.cli.app import main
from jupyter_gpufit.cli.demo import NODES, DemoServer
from jupyter_gpufit.notebook.client import RestClient

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's Jupyter servers."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "gpufit.toml"
    path.write_text(NODES)
    return str(path)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    home = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        with DemoServer(home / "work", lab=False) as server:
            yield server


@pytest.fixture
def server(demo: DemoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The demo's server is the one that runs."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(demo.directory.parent / "runtime"))
    yield
    assert main(["release", "--all"]) == 0


def test_version_and_help(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == jupyter_gpufit.__version__
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for verb in ("nodes", "gpus", "request", "explain", "allocations", "extend", "release", "logs", "reporter", "demo"):
        assert verb in out
    assert main(["request", "--help"]) == 0
    assert "16GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("frobnicate", "there is no 'frobnicate'; there are: nodes, gpus, request"),
        ("alocations", "there is no 'alocations'; did you mean allocations?"),
        ("attach train", "'attach' is about a notebook, and works only in one: %gpufit attach NAME"),
        ("detach", "'detach' is about a notebook, and works only in one: %gpufit detach;"),
        ("--json frobnicate", "there is no 'frobnicate'"),
        ("request 2 --memroy 16GiB", "no option --memroy; did you mean --memory?"),
        ("request 2 --memory 16Q", "'16Q' is not a size of memory"),
        ("request 0", "gpus is 0"),
        ("release", "name the allocation to release"),
        ("extend train", "the following arguments are required: SPAN"),
        ("extend train soon", "'soon' is not a duration"),
        ("allocations --inventory x.toml", "an allocation lives in a Jupyter server"),
        ("nodes --server ftp://x", "'ftp://x' is not the address of a Jupyter server"),
    ],
)
def test_mistakes_end_with_2_and_a_sentence(line: str, said: str, capsys: Captured) -> None:
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("jupyter gpufit: ")
    assert captured.out == ""


def test_without_a_server_it_can_look(inventory: str, capsys: Captured) -> None:
    assert main(["nodes", "--inventory", inventory]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split() == ["node", "GPUs", "idle", "most", "free", "note"]
    assert "unhealthy: Xid 79" in table
    assert main(["nodes", "--json", "--inventory", inventory]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)] == ["atlas", "brook", "cedar", "dune"]
    assert main(["gpus", "--json", "--inventory", inventory]) == 0
    gpus = json.loads(capsys.readouterr().out)
    assert {gpu["node"] for gpu in gpus} == {"atlas", "brook", "cedar", "dune"}
    assert main(["gpus", "--inventory", inventory]) == 0
    assert "busy" in capsys.readouterr().out
    assert main(["explain", "2", "--memory", "16GiB", "--inventory", inventory]) == 0
    assert "chosen" in capsys.readouterr().out
    assert main(["explain", "9", "--memory", "16GiB", "--json", "--inventory", inventory]) == 1
    assert json.loads(capsys.readouterr().out)["node"] is None


def test_an_allocation_needs_a_server(capsys: Captured) -> None:
    assert main(["request", "1"]) == 1
    assert "no running Jupyter server with jupyter_gpufit was found" in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys: Captured) -> None:
    assert main(["nodes", "--server", "http://127.0.0.1:9/"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_broken_inventory_is_said(tmp_path: Path, capsys: Captured) -> None:
    """In a process of its own, because what is logged counts, too."""
    path = tmp_path / "broken.toml"
    path.write_text("[[node]]\nname = 3\n")
    command = [sys.executable, "-m", "jupyter_gpufit.cli.app", "nodes", "--inventory", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"jupyter gpufit: the inventory cannot be used: {path}")


@pytest.mark.parametrize("verb", [[], ["gpus"], ["explain", "1"]])
def test_a_missing_inventory_is_said_by_every_verb(verb: list[str], tmp_path: Path, capsys: Captured) -> None:
    assert main([*verb, "--inventory", str(tmp_path / "none.toml")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "none.toml: cannot be read" in captured.err


def test_without_a_verb_it_says_what_is_held_and_what_there_is(inventory: str, capsys: Captured) -> None:
    assert main(["--inventory", inventory]) == 0
    out = capsys.readouterr().out
    assert out.startswith("You hold no GPUs.\n")
    assert "atlas" in out
    assert "unhealthy: Xid 79" in out


def test_options_may_come_before_the_verb(inventory: str, capsys: Captured) -> None:
    assert main(["--json", "--inventory", inventory, "nodes"]) == 0
    assert [node["name"] for node in json.loads(capsys.readouterr().out)] == ["atlas", "brook", "cedar", "dune"]
    assert main(["--json", "--inventory", inventory]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["allocations"], len(status["nodes"])) == ([], 4)


@pytest.mark.usefixtures("server")
def test_the_life_of_an_allocation(capsys: Captured) -> None:
    assert main(["request", "2", "--memory", "16GiB", "--name", "cli", "--json"]) == 0
    captured = capsys.readouterr()
    assert "is running; in a notebook: %gpufit attach cli" in captured.err
    allocation = json.loads(captured.out)
    assert (allocation["state"], allocation["name"], allocation["node"]) == ("running", "cli", "atlas")
    assert main(["allocations"]) == 0
    assert "cli" in capsys.readouterr().out
    assert main([]) == 0
    assert "cli" in capsys.readouterr().out.split("\n\n")[0]
    assert main(["gpus"]) == 0
    assert f"held by {allocation['id']}" in capsys.readouterr().out
    assert main(["logs", "cli"]) == 0
    assert main(["logs", "cli", "--json"]) == 0
    assert "logs" in json.loads(capsys.readouterr().out[-10_000:].partition("{")[2].join(["{", ""]))
    assert main(["request", "2", "--name", "cli"]) == 1
    assert "cli" in capsys.readouterr().err
    assert main(["release", "cli"]) == 0
    assert "Released 'cli'" in capsys.readouterr().out
    assert main(["allocations", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["allocations", "--ended"]) == 0
    assert "ended (released)" in capsys.readouterr().out
    assert main(["extend", "cli", "1h"]) == 1
    assert "'cli' is ended" in capsys.readouterr().err
    assert main(["release", "nobody"]) == 1
    assert "nobody" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
def test_more_time(capsys: Captured) -> None:
    assert main(["request", "1", "--name", "short", "--time", "1h"]) == 0
    capsys.readouterr()
    assert main(["extend", "short", "90m"]) == 0
    assert capsys.readouterr().out.startswith("'short' has 2 h 30 m now: it ends in 2 h ")
    assert main(["extend", "short", "1h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time"] == 3.5 * 3600
    assert main(["extend", "nobody", "1h"]) == 1
    assert "nobody" in capsys.readouterr().err
    assert main(["release", "short"]) == 0


@pytest.mark.usefixtures("server")
def test_what_does_not_fit_is_said_node_by_node(capsys: Captured) -> None:
    assert main(["request", "4", "--memory", "60GiB"]) == 1
    err = capsys.readouterr().err
    assert "3 idle GPUs, 4 asked" in err
    assert main(["request", "40", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "never-fits"


def test_a_token_is_needed_and_the_address_may_be_as_jupyter_prints_it(
    demo: DemoServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = demo.server.url
    assert main(["nodes", "--server", url, "--token", "wrong"]) == 1
    assert "does not accept this token" in capsys.readouterr().err
    assert main(["nodes", "--server", f"{url}lab?token={demo.server.token}"]) == 0
    monkeypatch.setenv("GPUFIT_TOKEN", demo.server.token)
    assert main(["nodes", "--server", url]) == 0


@pytest.mark.usefixtures("server")
def test_ctrl_c_while_it_waits_takes_the_request_back(demo: DemoServer, capsys: Captured) -> None:
    client = RestClient(demo.server)
    assert main(["request", "3", "--node", "atlas", "--name", "all"]) == 0
    line = ["request", "1", "--node", "atlas", "--wait", "10m", "--name", "next"]
    # In a session of its own, so that the signal reaches it alone.
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpufit.cli.app", *line], stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while "next" not in {one["name"] for one in client.allocations()}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    place = client.get("next")["queue"]
    assert (place["position"], place["of"], place["frees"]) == (1, 1, "it can start when 'all' on atlas ends")
    assert main(["allocations"]) == 0
    assert "pending (1 of 1 waiting)" in capsys.readouterr().out
    time.sleep(0.2)  # until it has read the answer and follows the allocation
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Cancelled 'next'; nothing is held." in err.decode()
    assert [one["name"] for one in client.allocations()] == ["all"]

"""`jupyter gpufit …`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.notebooks import interrupt_the_wait

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
    verbs = (
        "nodes gpus request explain allocations extend release train logs usage upload download models reporter demo"
    )
    for verb in verbs.split():
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
        ("request --cpus 0", "cpus is 0; ask for more than 0"),
        ("train fit.py --ram 3", "'3' has no unit; write '3GiB'"),
        ("release", "name the allocation to release"),
        ("train", "the following arguments are required: WHAT"),
        ("train fit.py --lr 1", "there is no option --lr; what the script itself gets comes last, after --"),
        ("train python fit.py", "there is a word too many: put a command"),
        ("train fit.py --env KEY=hunter2 --retries x", "'x' is not a number of times"),
        ("train fit.py --follow --json", "--json and --follow"),
        ("logs fit -f --json", "--json and --follow"),
        ("train fit.py --wait 0x", "'0x' is not a duration"),
        ("request 1 --wait 0", "'0' is not a duration"),
        ("train fit.py --env NOT_SET_HERE", "there is no variable NOT_SET_HERE here"),
        ("logs a -- b", "only `train` runs something"),
        ("upload", "the following arguments are required: PATH"),
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
    assert "hunter2" not in captured.err


def test_without_a_server_it_can_look(inventory: str, capsys: Captured) -> None:
    assert main(["nodes", "--inventory", inventory]) == 0
    table = capsys.readouterr().out
    assert " ".join(table.splitlines()[0].split()) == "node GPUs idle most free CPUs free RAM free note"
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
    assert main(["explain", "--cpus", "0.5", "--ram", "256MiB", "--inventory", inventory]) == 0
    assert "1 GPU, 0.5 CPUs, 256 MiB RAM" in capsys.readouterr().out
    assert main(["explain", "--cpus", "4096", "--inventory", inventory]) == 1
    assert "4096 asked" in capsys.readouterr().out
    assert main(["--inventory", inventory, "--json"]) == 0
    assert all(node["cpus_free"] == node["cpus"] for node in json.loads(capsys.readouterr().out)["nodes"])
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


FIT = """
import os, sys
print("attempt", os.environ["GPUFIT_ATTEMPT"], *sys.argv[1:], len(os.environ["KEY"]), flush=True)
open(os.environ["GPUFIT_OUTPUTS"] + "/model.txt", "a").write("x")
sys.exit(0 if os.environ["GPUFIT_ATTEMPT"] == "2" else 3)
"""


@pytest.mark.usefixtures("server")
def test_a_job_from_the_terminal_ends_with_its_own_exit_code(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fit.py").write_text(FIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", "hunter2")
    line = ["train", "fit.py", "-m", "8GiB", "--name", "fit", "--env", "KEY", "--follow", "--", "--lr", "1"]
    assert main(line) == 3
    captured = capsys.readouterr()
    assert captured.out == "attempt 1 --lr 1 7\n"
    assert "'fit' starts on " in captured.err
    assert "'fit' failed with exit code 3" in captured.err
    assert main(["train", "fit.py", "--name", "again", "--retries", "1", "--env", "KEY", "--follow"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "attempt 1 7\nattempt 2 7\n"
    outputs = tmp_path / "outputs" / "again" / "model.txt"
    assert f"outputs are in {outputs.parent}" in captured.err
    assert outputs.read_text() == "xx"
    assert main(["logs", "-f", "again"]) == 0
    assert capsys.readouterr().out == "attempt 1 7\nattempt 2 7\n"
    assert main(["usage", "fit"]) == 0
    assert capsys.readouterr().out.startswith("GPU")
    assert main(["allocations", "--ended", "--json"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert [one["exit_code"] for one in json.loads(text) if one["name"] in ("fit", "again")] == [3, 0]


@pytest.mark.usefixtures("server")
def test_ctrl_c_ends_the_following_and_not_the_job(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RestClient, "log", interrupted)
        assert main(["train", "exec sleep 600", "--name", "sleeps", "-f"]) == 130
    err = capsys.readouterr().err
    assert "'sleeps' goes on, and is no longer followed. Again: jupyter gpufit logs -f sleeps; to end it: " in err
    assert main(["allocations"]) == 0
    assert "runs exec sleep 600" in capsys.readouterr().out
    assert main(["release", "sleeps"]) == 0
    assert "Released 'sleeps'" in capsys.readouterr().out


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("line", [["train", "exec sleep 600", "--wait", "0", "--sweep", "a=1"], ["request", "1"]])
def test_ctrl_c_while_the_server_makes_it_leaves_nothing(
    line: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [word.replace("sleep 600", "sleep 60{a}") for word in line]
    with monkeypatch.context() as patch:
        interrupt_the_wait(patch)
        assert main([*line, "--name", "late"]) == 130
    assert "Cancelled 'late'; nothing is held." in capsys.readouterr().err
    assert main(["allocations", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train fti.py", "there is no fti.py in {here}; did you mean fit.py?"),
        ("train ../fit.py", "../fit.py"),
        ("train link.py", "link.py is not in {here}, but a link to"),
        ("train fit.py --model llama --require-model", "llama"),
        ("train fit.py -n 99", "99"),
        ("train 'x' --sweep lr=1,2", "{{lr}}"),
        ("train fit.py --name taken", "taken"),
        ("upload ../fit.py --to taken", "../fit.py"),
        ("upload link.py --to taken", "link.py"),
        ("upload nothing.txt --to taken", "nothing.txt"),
        ("download ../../x --from taken", "../../x"),
        ("upload fit.py --to nobody", "nobody"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    line: str, said: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere.py").write_text("")
    (tmp_path / "here" / "fit.py").write_text("import time; time.sleep(600)")
    (tmp_path / "here" / "link.py").symlink_to(tmp_path / "elsewhere.py")
    monkeypatch.chdir(tmp_path / "here")
    if "taken" in line:
        assert main(["request", "--name", "taken"]) == 0
    capsys.readouterr()
    assert main(shlex.split(line)) in (1, 2)
    captured = capsys.readouterr()
    *_, sentence = captured.err.splitlines()
    assert sentence.startswith("jupyter gpufit: ")
    assert said.format(here=tmp_path / "here") in sentence
    assert "Traceback" not in captured.err
    assert main(["allocations", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in held] == (["taken"] if "taken" in line else [])


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
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Cancelled 'next'; nothing is held." in err.decode()
    assert [one["name"] for one in client.allocations()] == ["all"]

"""`jupyter gpufit bench policies`, as it is called; and on what a real server recorded."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.requests import sample

from jupyter_gpufit.cli.app import main
from jupyter_gpufit.cli.demo import DemoServer
from jupyter_gpufit.scheduling import policies

Captured = pytest.CaptureFixture[str]
EIGHT = "2*8xA100-40GB"
DOCS = Path(__file__).parents[2] / "docs" / "policies.md"
NODES = """
[defaults]
monitor_period = "1s"
[[node]]
name = "ada"
report = "simulated:4xA100-40GB"
[[node]]
name = "bob"
report = "simulated:2xA100-40GB"
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's Jupyter servers, and nothing recorded."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))


@pytest.fixture
def few(tmp_path: Path) -> str:
    path = tmp_path / "few.jsonl"
    sample(path, 120)
    return str(path)


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "gpufit.toml"
    path.write_text(NODES)
    return str(path)


def bench(*words: str) -> int:
    return main(["bench", "policies", *words])


def as_json(capsys: Captured, *words: str) -> dict[str, Any]:
    assert bench("--json", *words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_example_of_the_page_is_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Of the policies that are found by sums of many terms only nearly: the last digit of one of these may be another
    on another processor, and what follows from that, too."""
    monkeypatch.chdir(tmp_path)
    sample(Path("requests.jsonl"))
    example = re.search(r"^    \$ (jupyter gpufit .*)\n((?:    .*\n|\n)+)", DOCS.read_text(), re.MULTILINE)
    assert example
    assert main(example[1].split()[2:]) == 0
    printed, shown = capsys.readouterr().out.splitlines(), [line[4:] for line in example[2].rstrip().splitlines()]
    for found, expected in ((_certain(printed), _certain(shown)), (_served(printed), _nearly(_served(shown)))):
        assert found == expected, "put this into docs/policies.md:\n" + "\n".join(printed)


def _certain(lines: list[str]) -> list[str]:
    text = " ".join("\n".join(lines).split("\n\n")[0].split())
    cells = [" ".join(line.split()) for line in lines]
    begin = next(at for at, line in enumerate(cells) if line.startswith("policy at once"))
    rows = cells[begin : begin + 1 + len(policies.names())]
    rows = [row if re.match("policy|best-fit|claim", row) else row.partition(" ")[0] for row in rows]
    return [text, *rows]


def _served(lines: list[str]) -> dict[str, float]:
    """GPU hours."""
    rows = [re.split(" {2,}", line) for line in lines]
    return {row[0]: float(row[6]) for row in rows if row[0] in policies.names()}


def _nearly(hours: dict[str, float]) -> dict[str, Any]:
    assert hours.keys() == set(policies.names())
    return {policy: pytest.approx(served, rel=0.02) for policy, served in hours.items()}


def test_on_the_machines_of_an_inventory(few: str, inventory: str, capsys: Captured) -> None:
    found = as_json(capsys, few, "--inventory", inventory)
    assert (found["requests"], found["nodes"], found["gpus"], found["in_use"]) == (120, 2, 6, "best-fit")
    assert found["never_fit"] > 0  # those for eight
    assert [one["policy"] for one in found["policies"]] == ["best-fit", "balance", "claim", "fragmentation"]
    for one in found["policies"]:
        assert one["requests"] == 120 - found["never_fit"]
        assert one["served_gpu_hours"] + one["refused_gpu_hours"] == pytest.approx(
            sum(found["policies"][0][key] for key in ("served_gpu_hours", "refused_gpu_hours"))
        )
    assert bench(few, "--inventory", inventory) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "120 requests in " in said
    assert "on 2 nodes with 6 GPUs" in said
    assert f"{found['never_fit']} could never run on these nodes" in said
    assert "best-fit (in use)" in said
    assert found["verdict"]["text"] in said


def test_it_says_what_lifetimes_are_made_of(tmp_path: Path, capsys: Captured) -> None:
    first = '{"schema":1,"line":"asked","id":"x","asked":1,"gpus":1,"memory":0}\n'
    (tmp_path / "one").write_text(first)
    assert bench(str(tmp_path / "one"), "--nodes", "1xT4-16GB") == 0
    assert "they get their time limit, or an hour if they have none." in " ".join(capsys.readouterr().out.split())
    (tmp_path / "one").write_text(
        first
        + first.replace('"x"', '"y"')
        + '{"schema":1,"line":"ended","id":"y","ended":9,"state":"ended","placed":1}'
    )
    assert bench(str(tmp_path / "one"), "--nodes", "1xT4-16GB") == 0
    assert "they get the median of those with as many, or their" in " ".join(capsys.readouterr().out.split())


def test_the_policy_in_use_comes_first(few: str, inventory: str, capsys: Captured) -> None:
    Path(inventory).write_text('policy = "balance"\n' + NODES)
    found = as_json(capsys, few, "--inventory", inventory)
    assert (found["in_use"], found["policies"][0]["policy"]) == ("balance", "balance")
    assert {one["policy"] for one in found["policies"]} == set(policies.names())


def test_more_load_on_fewer_machines_serves_less(few: str, capsys: Captured) -> None:
    usual = as_json(capsys, few, "--nodes", EIGHT)
    faster = as_json(capsys, "--load", "4", few, "--nodes", EIGHT)
    smaller = as_json(capsys, few, "--nodes", "8xA100-40GB")
    more = as_json(capsys, few, "--nodes", EIGHT, "--nodes", "30*8xA100-40GB")
    served = [found["policies"][0]["served_gpu_hours"] for found in (usual, faster, smaller, more)]
    assert served[0] > served[1]
    assert served[0] > served[2]
    assert served[3] == pytest.approx(sum(usual["policies"][0][f"{w}_gpu_hours"] for w in ("served", "refused")))
    assert "at this load it does not matter" in more["verdict"]["text"]
    assert (more["nodes"], more["gpus"], more["in_use"]) == (32, 256, None)


def test_of_several_people_together(few: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "bob").mkdir()
    sample(tmp_path / "bob" / "requests.jsonl", 50, seed=2)
    text = (tmp_path / "bob" / "requests.jsonl").read_text().replace('"id": "r', '"id": "b')
    (tmp_path / "bob" / "requests.jsonl").write_text(text + '{"half')
    found = as_json(capsys, few, str(tmp_path / "bob"), str(tmp_path / "bob" / "requests.jsonl"), "--nodes", EIGHT)
    assert (found["requests"], found["lines_broken"]) == (170, 1)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("bench", 2, "the following arguments are required: WHAT"),
        ("bench policy", 2, "'policy'"),
        ("bench policies --laod 2", 2, "did you mean --load?"),
        ("bench policies --load 0 {few}", 2, "'0' is no factor; give a number from 0.01 to 100"),
        ("bench policies --load nan {few}", 2, "'nan' is no factor"),
        ("bench policies {few} --nodes 8xFOO", 2, "'FOO'"),
        ("bench policies {few} --nodes 0*8xA100-40GB", 2, "--nodes '0*8xA100-40GB': '0*8xA100-40GB' does not describe"),
        ("bench policies {few} --nodes 5000*1xT4-16GB", 2, "more than 2000 nodes"),
        ("bench policies {few} --nodes 1xT4-16GB --inventory x.toml", 2, "leave --inventory and --server out"),
        ("bench policies {few} --inventory nowhere.toml", 1, "nowhere.toml: cannot be read"),
        ("bench policies nowhere.jsonl", 1, "nowhere.jsonl: cannot be read: No such file"),
        ("bench policies " + 300 * "x", 1, "x: cannot be read: File name too long"),
        ("bench policies", 1, "so far: a server writes requests.jsonl there as requests are made"),
        ("bench policies {empty}", 1, "no request is recorded in"),
        ("bench policies {odd} --nodes 1xT4-16GB", 1, "1 line that is broken and 1 line of another version"),
        ("bench policies {large} --nodes 1xT4-16GB", 1, "none of the 1 requests could ever run on these nodes"),
    ],
)
def test_mistakes_end_with_a_sentence(
    line: str, code: int, said: str, few: str, tmp_path: Path, capsys: Captured
) -> None:
    files = {"few": few}
    for name, text in {
        "empty": "",
        "odd": '{"schema":\n{"schema":9,"line":"x"}\n',
        "large": '{"schema":1,"line":"asked","id":"x","asked":1,"gpus":9,"memory":0}\n',
    }.items():
        files[name] = str(tmp_path / name)
        Path(files[name]).write_text(text)
    assert main(line.format(**files).split()) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.startswith("jupyter gpufit: ")
    assert captured.out == ""


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    """On a terminal, where it says how far it is."""
    sample(tmp_path / "requests.jsonl", 8000, per_day=300)
    command = [sys.executable, "-m", "jupyter_gpufit.cli.app", "bench", "policies", str(tmp_path / "requests.jsonl")]
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [*command, "--nodes", "20*8xA100-40GB"], stdout=subprocess.PIPE, stderr=end, start_new_session=True
    )
    os.close(end)
    said = b""
    try:
        while b"replaying with best-fit: " not in said:
            said += os.read(terminal, 1000)
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        while chunk := _read(terminal):
            said += chunk
    finally:
        process.kill()
        os.close(terminal)
    assert (process.returncode, out) == (130, b"")
    assert said.endswith(b"\r\033[Kjupyter gpufit: interrupted\r\n")
    assert b"Traceback" not in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1000)
    except OSError:  # nobody has its other end any more
        return b""


def test_what_a_real_server_recorded_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    store = tmp_path / "data" / "gpufit"
    with _Usual(tmp_path / "work", lab=False):
        for number in range(2):
            assert main(["request", "2", "--memory", "16GiB", "--name", f"secret{number}"]) == 0
        assert main(["request", "8", "--wait", "1s"]) == 1  # the largest node is mostly used by others
        assert main(["request", "64"]) == 1
        assert main(["explain", "3"]) == 0
        assert main(["release", "secret0"]) == 0
        _until_recorded(store / "requests.jsonl", 7)
        capsys.readouterr()
        with_server = as_json(capsys)
        assert main(["release", "--all"]) == 0
    assert (with_server["nodes"], with_server["in_use"], with_server["requests"]) == (4, "best-fit", 4)
    assert with_server["never_fit"] == 1
    assert with_server["lifetimes"] == {"known": 1, "guessed": 3}
    assert "too few to tell" in with_server["verdict"]["text"]
    text = (store / "requests.jsonl").read_text()
    assert "secret" not in text
    assert stat.S_IMODE((store / "requests.jsonl").stat().st_mode) == 0o600
    ended = [json.loads(line) for line in text.splitlines() if '"ended"' in line]
    assert sorted(line["reason"] for line in ended) == ["never-fits", "rejected", "released", "released"]
    # Without the server, whose kernels have ended with it.
    monkeypatch.setenv("GPUFIT_INVENTORY", str(tmp_path / "work" / "gpufit.toml"))
    capsys.readouterr()
    without = as_json(capsys)
    assert (without["nodes"], without["lifetimes"]) == (4, {"known": 2, "guessed": 2})
    shutil.rmtree(store)
    assert bench() == 1
    assert f"nothing is recorded in {store} so far" in capsys.readouterr().err


class _Usual(DemoServer):
    """With the store where everybody has it."""

    def _command(self) -> list[str]:
        return [word for word in super()._command() if not word.startswith("--GpufitExtension.store")]


def _until_recorded(path: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "nothing"
        time.sleep(0.05)

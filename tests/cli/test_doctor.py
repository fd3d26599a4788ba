"""`jupyter gpufit doctor`, as it is called. What it finds on real engines: tests/cluster/test_doctor.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyter_gpufit.cli.app import main
from jupyter_gpufit.cli.doctor import lines
from jupyter_gpufit.diagnosis import CHECKS, Diagnosis, right, unchecked, wrong
from jupyter_gpufit.kernels.bootstrap import look
from jupyter_gpufit.launching.directory import ClaimsDirectory

Captured = pytest.CaptureFixture[str]
NODES = """
[[node]]
name = "good"
report = "simulated:2xT4-16GB"
[[node]]
name = "sick"
report = "simulated:4xT4-16GB?fault=3:unhealthy"
"""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "gpufit.toml"
    path.write_text(NODES)
    return str(path)


def test_what_is_wrong_is_said_with_what_mends_it(inventory: str, capsys: Captured) -> None:
    assert main(["doctor", "--inventory", inventory]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    nodes = {text.partition(":")[0]: text for text in said.out.split("\n\n")}
    assert nodes["good"].startswith("good: 5 checks, nothing wrong\n")
    assert nodes["sick"].startswith("sick: 1 of 5 checks wrong\n")
    assert re.search(r"WRONG +report +1 of 4 GPUs cannot be used", nodes["sick"])
    assert "→ nvidia-smi -q    # on that machine\n" in nodes["sick"]
    assert "without a Docker engine (likewise engine, api, runtime, image)" in " ".join(nodes["good"].split())
    assert re.search(r"right +ports +kernels there are reached at 127.0.0.1, all 5 channels", nodes["good"])


def test_deep_and_as_json(inventory: str, capsys: Captured) -> None:
    assert main(["doctor", "--inventory", inventory, "--node", "goo*", "--deep", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["node"], found["deep"], found["done"]) == ("good", True, True)
    assert [check["check"] for check in found["checks"]] == list(CHECKS)
    verdicts = {check["check"]: check["verdict"] for check in found["checks"]}
    assert {verdicts[name] for name in ("tls", "engine", "api", "runtime", "image")} == {"not-checked"}
    assert verdicts["gpu"] == verdicts["kernel"] == "right"
    assert ClaimsDirectory().records("good") == []


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["--node", "gpu*"], 2, "--node 'gpu*' is no node; there are: good, sick"),
        (["--server", "http://x/"], 2, "leave --server out"),
        (["--inventory", "nowhere.toml"], 1, "nowhere.toml: cannot be read"),
        (["--depp"], 2, "did you mean --deep?"),
    ],
)
def test_mistakes(line: list[str], code: int, said: str, inventory: str, capsys: Captured) -> None:
    assert main(["doctor", "--inventory", inventory, *line]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_ctrl_c_leaves_nothing(inventory: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jupyter_gpufit.cli.app", "doctor", "--inventory", inventory, "--deep"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    claims, deadline = ClaimsDirectory(), time.monotonic() + 60
    while not claims.records("good"):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.decode()) == (130, "jupyter gpufit: interrupted\n")
    assert claims.records("good") == claims.records("sick") == []


def test_lines_are_short_and_what_is_to_be_copied_is_whole() -> None:
    fix = "docker " + "x" * 200
    checks = (right("reporter", "it answers"), wrong("engine", "no " * 60, fix), unchecked("api", ""))
    first, *rest = lines(Diagnosis(node="n", checks=checks))
    assert first == "n: 1 of 2 checks wrong"
    assert f"{' ' * 26}→ {fix}" in rest
    assert all(len(line) <= 100 for line in rest if fix not in line)


def test_what_a_unit_says_of_a_driver(tmp_path: Path) -> None:
    """Against the stand-in of NVIDIA's library, as the reporter's tests have it."""
    from standins import nvml
    from standins.nvml import StandinGpu

    gpus = tmp_path / "gpus"
    nvml.write(gpus, [StandinGpu("GPU-a"), StandinGpu("GPU-b")])
    command = [sys.executable, look.__file__, "-", "--", "-c", "print('and on')"]
    environment = os.environ | nvml.environment(nvml.build(tmp_path), gpus)
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(said[0].removeprefix(look.SAYS))["gpus"] == ["GPU-a", "GPU-b"]
    assert said[1:] == ["and on"]

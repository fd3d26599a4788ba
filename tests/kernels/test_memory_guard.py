"""The memory guard, as it runs in a unit: in Pythons of its own, with a stand-in for PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_gpufit.kernels.bootstrap import contents
from jupyter_gpufit.kernels.bootstrap.guard import guard_env, guard_files
from jupyter_gpufit.kernels.bootstrap.memory_guard import hand_on
from jupyter_gpufit.models import Allocation, Request

GIB = 2**30
MIB = 2**20
TORCH = """
import json, os
if os.environ.get("STANDIN") == "broken":
    raise OSError("libcuda.so.1 is missing")
_calls, set_to, state = [], {}, {"initialized": False, "current": 0}
if os.environ.get("STANDIN") != "old":
    def _lazy_call(call, **more):
        call() if state["initialized"] else _calls.append(call)
def init():
    state["initialized"] = True
    for call in _calls:
        call()
def device_count(): return int(os.environ.get("DEVICES", "2"))
def current_device(): return state["current"]
def set_device(at): state["current"] = at
def get_device_properties(at):
    class Properties:
        name = "stand-in"
        if os.environ.get("STANDIN") != "nameless":
            uuid = ["2", "1"][at]
    return Properties
def set_per_process_memory_fraction(part, at):
    assert state["initialized"], "the guard may not initialise CUDA"
    if os.environ.get("STANDIN") == "refusing":
        raise RuntimeError("not here")
    set_to[at], state["current"] = part, at
"""
LOOK = """
import json, os, sys
import torch
before = dict(torch.cuda.set_to)
torch.cuda.init()
assert torch.cuda.state["current"] == 0
print(json.dumps([before, torch.cuda.set_to]))
"""


def granted(*asked: int, total: int = 16 * GIB, gpus: int | None = None) -> Allocation:
    return Allocation(
        id="a1",
        name="train",
        owner="ada",
        request=Request(gpus=gpus or len(asked)),
        created=0.0,
        gpus=tuple(f"GPU-{at + 1}" for at in range(len(asked))),
        memory=asked,
        totals=(total,) * len(asked),
    )


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A gpufit directory, with a torch beside it."""
    for name, content in guard_files().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "site" / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").write_text("from torch import cuda\n")
    (tmp_path / "site" / "torch" / "cuda" / "__init__.py").write_text(TORCH)
    return tmp_path


def env(unit: Path, allocation: Allocation, **more: str) -> dict[str, str]:
    """As of a job: what the guard hands on to what is started."""
    made = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(unit / "site"),
        "GPUFIT_GPUS": ",".join(allocation.gpus),
        **guard_env(allocation),
        **more,
    }
    code = "import sys; sys.path.append(sys.argv[1]); import gpufit_memory_guard, json, os\n"
    code += "gpufit_memory_guard.hand_on(os.environ); print(json.dumps(dict(os.environ)))"
    printed = subprocess.run(
        [sys.executable, "-c", code, str(unit / "guard")], env=made, capture_output=True, text=True, check=True
    ).stdout
    handed: dict[str, str] = json.loads(printed)
    return handed


def seen(unit: Path, allocation: Allocation, code: str = LOOK, **more: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env(unit, allocation, **more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def part(asked: float, total: int = 16) -> float:
    return round((asked * GIB - 256 * MIB) / (total * GIB), 4)


# --- what is to be kept to


def test_only_where_less_than_all_was_asked_for() -> None:
    assert guard_env(granted(4 * GIB, 8 * GIB)) == {
        "GPUFIT_MEMORY_FRACTIONS": f"{part(4):.4f},{part(8):.4f}",
        "GPUFIT_MEMORY_FRACTION": f"{part(4):.4f}",
    }
    assert guard_env(granted(4 * GIB, 16 * GIB))["GPUFIT_MEMORY_FRACTIONS"] == f"{part(4):.4f},"
    assert guard_env(granted(16 * GIB)) == {}
    assert guard_env(granted(0, 0)) == {}, "nothing was asked"
    assert guard_env(granted(4 * GIB, total=0)) == {}, "it is not known how much there is"
    assert guard_env(granted(4 * GIB, 4 * GIB, gpus=1))["GPUFIT_MEMORY_FRACTIONS"] == f"{part(4):.4f},"
    assert guard_env(replace(granted(4 * GIB), totals=())) == {}, "one of a store before this version"
    assert 0 < float(guard_env(granted(1))["GPUFIT_MEMORY_FRACTION"]) < 0.001


def test_what_frameworks_read() -> None:
    known = guard_env(granted(4 * GIB))
    environ = dict(known)
    hand_on(environ)
    assert environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == f"{part(4):.4f}"
    assert environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    again = dict(environ)
    hand_on(again)
    assert again == environ
    theirs = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9", "TF_FORCE_GPU_ALLOW_GROWTH": "false", "PYTHONPATH": "/app"}
    environ = known | theirs
    hand_on(environ)
    assert environ.pop("PYTHONPATH").endswith(f"{os.pathsep}/app")
    assert environ == known | {key: value for key, value in theirs.items() if key != "PYTHONPATH"}


@pytest.mark.parametrize(
    "without", [{}, {"GPUFIT_MEMORY_FRACTIONS": "0.5", "GPUFIT_MEMORY_GUARD": "0"}, {"GPUFIT_MEMORY_FRACTIONS": "all"}]
)
def test_switched_off_or_nothing_to_keep_to(without: dict[str, str]) -> None:
    environ = dict(without)
    hand_on(environ)
    assert environ == without


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"GPUFIT_MEMORY_GUARD": "0"},
        {"GPUFIT_MEMORY_GUARD": "Off"},
        {"XLA_CLIENT_MEM_FRACTION": "0.9"},
        {"TF_FORCE_GPU_ALLOW_GROWTH": "0"},
    ],
)
def test_a_shell_does_the_same(unit: Path, more: dict[str, str]) -> None:
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": "/app", **guard_env(granted(4 * GIB)), **more}
    (unit / "job.sh").write_text('. "${0%/*}/guard/guard.sh"\nexec env -0\n')
    printed = subprocess.run(["/bin/sh", str(unit / "job.sh")], env=known, capture_output=True, text=True, check=True)
    shell = dict(line.split("=", 1) for line in printed.stdout.split("\0") if line)
    python = env(unit, granted(4 * GIB), **(more | {"PYTHONPATH": "/app"}))
    kept = set(known) | {"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"}
    assert {k: v for k, v in shell.items() if k in kept} == {k: v for k, v in python.items() if k in kept}


# --- PyTorch


def test_pytorch_is_limited_when_cuda_begins_and_not_before(unit: Path) -> None:
    before, after = seen(unit, granted(4 * GIB, 4 * GIB))
    assert before == {}
    assert after == {"0": part(4), "1": part(4)}


def test_each_gpu_by_its_name(unit: Path) -> None:
    """CUDA may count them in another order than they were granted in."""
    sizes = granted(4 * GIB, 8 * GIB)
    assert seen(unit, sizes)[1] == {"0": part(8), "1": part(4)}
    assert seen(unit, sizes, CUDA_VISIBLE_DEVICES="GPU-1,GPU-2")[1] == {"0": part(4), "1": part(8)}
    assert seen(unit, sizes, STANDIN="nameless")[1] == {"0": part(4), "1": part(4)}, "the least, where it is not known"
    assert seen(unit, granted(4 * GIB, 16 * GIB))[1] == {"1": part(4)}, "one that is all its own has no limit"


def test_one_process_per_gpu_touches_no_other(unit: Path) -> None:
    both = granted(4 * GIB, 4 * GIB)
    assert seen(unit, both, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")[1] == {"1": part(4)}
    assert seen(unit, both, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")[1] == {"0": part(4), "1": part(4)}


@pytest.mark.parametrize("kind", ["old", "refusing"])
def test_a_pytorch_that_cannot_be_limited_runs_all_the_same(unit: Path, kind: str) -> None:
    assert seen(unit, granted(4 * GIB), STANDIN=kind)[1] == {}


def test_an_import_that_fails_fails_as_ever(unit: Path) -> None:
    code = "import json\ntry:\n    import torch\nexcept OSError as error:\n    print(json.dumps(str(error)))"
    assert "libcuda" in seen(unit, granted(4 * GIB), code, STANDIN="broken")


def test_switched_off(unit: Path) -> None:
    assert seen(unit, granted(4 * GIB), GPUFIT_MEMORY_GUARD="0")[1] == {}
    late = LOOK.replace("import torch\n", "os.environ['GPUFIT_MEMORY_GUARD'] = '0'\nimport torch\n")
    assert seen(unit, granted(4 * GIB), late)[1] == {}, "also in the program itself"


def test_processes_that_are_started_in_it_are_limited_too(unit: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOOK!r}], check=True)"
    assert seen(unit, granted(4 * GIB), code)[1] == {"0": part(4), "1": part(4)}


def test_what_is_no_pytorch_is_imported_as_ever(unit: Path) -> None:
    code = "import json, sys, colorsys\nprint(json.dumps(['torch' in sys.modules, 'guard' in str(sys.path)]))"
    assert seen(unit, granted(4 * GIB), code) == [False, False]


# --- sitecustomize


def test_the_images_own_sitecustomize_runs_too(unit: Path) -> None:
    (unit / "site" / "sitecustomize.py").write_text("import sys; mine = 1; sys.theirs = __file__")
    code = "import json, sys, sitecustomize; print(json.dumps([sys.theirs, sitecustomize.mine]))"
    assert seen(unit, granted(4 * GIB), code) == [str(unit / "site" / "sitecustomize.py"), 1]
    assert seen(unit, granted(4 * GIB))[1] == {"0": part(4), "1": part(4)}


def test_one_of_theirs_that_fails_is_told_as_ever(unit: Path) -> None:
    (unit / "site" / "sitecustomize.py").write_text("raise ValueError('theirs')")
    told = []
    for variables in (env(unit, granted(4 * GIB)), {"PYTHONPATH": str(unit / "site")}):
        done = subprocess.run([sys.executable, "-c", "print(1)"], env=variables, capture_output=True, text=True)
        told.append((done.returncode, done.stdout, done.stderr))
    assert told[0] == told[1]
    assert "ValueError: theirs" in told[0][2]


def test_a_python_that_is_too_old_for_it_still_starts(unit: Path) -> None:
    (unit / "guard" / "gpufit_memory_guard.py").write_text("this is no Python")
    code = "print(2)"
    variables = {"PYTHONPATH": os.pathsep.join([str(unit / "guard"), str(unit / "site")])}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("2\n", "")


# --- in a kernel


def test_a_kernel_and_what_it_starts_keep_to_it(unit: Path) -> None:
    for name, content in contents.files("kernel-1.json", b"{}").items():
        (unit / name).parent.mkdir(parents=True, exist_ok=True)
        (unit / name).write_bytes(content)
    again = f"import subprocess; subprocess.run([sys.executable, '-c', {LOOK!r}], check=True)"
    (unit / "site" / "xkernel.py").write_text(f"{LOOK}\nsys.stdout.flush(); {again}\n")
    words = contents.command(["python3", "-m", "xkernel", "-f", "{connection_file}"], "kernel-1.json")
    command = [word.replace("{gpufit}", str(unit)).replace("{python}", sys.executable) for word in words]
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(unit / "site"), **guard_env(granted(4 * GIB, 4 * GIB))}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    limited = [{}, {"0": part(4), "1": part(4)}]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [limited, limited], done.stderr

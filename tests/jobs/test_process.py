"""Jobs in real processes: scripts, commands, notebooks, torchrun; what they print, write, and end with."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.jobs import contents
from jupyter_gpufit.jobs.host import LocalJobHost
from jupyter_gpufit.launching.process import ProcessLauncher
from jupyter_gpufit.launching.supervisor import RUNNING
from jupyter_gpufit.models import Job, Request

from .conftest import Run, granted, notebook, outputs_of

PATIENCE = 60.0
SPEC = NodeSpec(name="here", report="simulated:2xA100-40GB")


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launcher, ends = ProcessLauncher(SPEC), asyncio.Queue()
    await launcher.open(lambda *end: ends.put_nowait(end), lambda claims: None)
    try:
        yield Run(launcher, SPEC, LocalJobHost(tmp_path / "store", lambda: [SPEC]), ends)
    finally:
        for local in [local for local in RUNNING.values() if local.unit.node == "here"]:
            await launcher.stop(local.unit)
        await launcher.close()


# --- scripts ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, json, helper
print("args", sys.argv[1:], "in", os.getcwd(), helper.WORD)
keys = ("GPUFIT_JOB", "GPUFIT_NAME", "GPUFIT_GPUS", "TOKEN", "GPUFIT_SWEEP", "GPUFIT_ATTACHED", "CUDA_VISIBLE_DEVICES")
print(json.dumps({key: os.environ.get(key) for key in keys}))
print("main is", __name__, sys.path[0] == os.getcwd())
with open(os.path.join(os.environ["GPUFIT_OUTPUTS"], "model.txt"), "w") as file:
    file.write("trained")
sys.exit(3)
"""


async def test_a_script(run: Run, folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("WORD = 'helped'")
    code, text, home = await run(folder, "train.py", args=("a b",), env={"TOKEN": "s3"}, sweep={"lr": "1e-3"})
    assert code == 3, text
    first, second, third = text.splitlines()
    assert first == f"args ['a b', '--lr=1e-3'] in {folder} helped"
    assert json.loads(second) == {
        "GPUFIT_JOB": "1",
        "GPUFIT_NAME": "train",
        "GPUFIT_GPUS": "GPU-1,GPU-2",
        "TOKEN": "s3",
        "GPUFIT_SWEEP": '{"lr": "1e-3"}',
        "GPUFIT_ATTACHED": None,
        "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
    }
    assert third == "main is __main__ True"
    assert home == str(folder / "outputs/train")
    assert (Path(home) / "model.txt").read_text() == "trained"


async def test_a_script_whose_name_has_a_space(run: Run, folder: Path) -> None:
    (folder / "my train.py").write_text("print('it ran')")
    assert await run(folder, "'my train.py'") == (0, "it ran\n", None)


async def test_a_script_is_told_to_stop(run: Run, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import signal, sys, time\n"
        "def save(*_):\n    print('saved')\n    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up')\n"
        "time.sleep(1000)\n"
    )
    await run.begin(folder, "train.py")
    await run.says("up\n")  # at once, though nothing flushes
    await run.launcher.halt(run.unit, PATIENCE)
    code, text, home = await run.ended()
    assert (code, text, home) == (7, "up\nsaved\n", None)


async def test_a_script_that_is_gone_meanwhile(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text("")
    start = run.launcher.start

    async def late(*args: Any) -> Any:
        (folder / "train.py").unlink()
        return await start(*args)

    monkeypatch.setattr(run.launcher, "start", late)
    assert await run(folder, "train.py") == (90, f"gpufit: there is no train.py in {folder}\n", None)


# --- commands ---------------------------------------------------------------------------------------------------------


async def test_a_command(run: Run, folder: Path) -> None:
    line = 'echo "$PWD" {lr} "$TOKEN" ${HOME:+home} | tee "$GPUFIT_OUTPUTS/said"; exit 5'
    code, text, home = await run(folder, line, env={"TOKEN": "it's $HOME"}, sweep={"lr": "a b"})
    assert (code, text) == (5, f"{folder} a b it's $HOME home\n")
    assert (Path(str(home)) / "said").read_text() == text


async def test_a_command_with_arguments(run: Run, folder: Path) -> None:
    assert (await run(folder, "printf '%s.'", args=("a b", "$c")))[:2] == (0, "a b.$c.")


async def test_a_command_is_told_to_stop_with_all_that_it_started(run: Run, folder: Path) -> None:
    (folder / "train.py").write_text(
        "import signal, sys, time\n"
        "def save(*_):\n    print('saved')\n    sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('up')\n"
        "time.sleep(1000)\n"
    )
    await run.begin(folder, f"true && {sys.executable} train.py; echo last $?")
    await run.says("up\n")
    await run.launcher.halt(run.unit, PATIENCE)
    code, text, _ = await run.ended()
    assert code == 128 + signal.SIGTERM  # the shell's
    assert text == "up\nsaved\n"


async def test_a_command_without_a_folder(run: Run, tmp_path: Path) -> None:
    code, text, home = await run(None, 'pwd; echo 1 > "$GPUFIT_OUTPUTS/x"')
    assert code == 0
    assert text.strip().endswith("/work")
    assert home == str(tmp_path / "store/outputs/train")
    assert (Path(home) / "x").read_text() == "1\n"


# --- notebooks --------------------------------------------------------------------------------------------------------


async def test_a_notebook(run: Run, folder: Path) -> None:
    notebook(
        folder,
        "print('first', flush=True)",
        "lr, name = 1, 'x'",
        "print('lr', lr, type(lr).__name__, name)",
        "import os; os.path.basename(os.getcwd()), os.environ['GPUFIT_JOB']",
        tags={1: "parameters"},
        kernelspec={"name": "gpufit", "language": "python", "display_name": "GPUs"},
    )
    code, text, home = await run(folder, "run.ipynb", sweep={"lr": "1e-3", "name": "adam"})
    assert (code, text) == (0, "first\nlr 0.001 float adam\n('project', '1')\n"), text
    assert outputs_of(f"{home}/run.ipynb") == ["first\n", "", "", "lr 0.001 float adam\n", "('project', '1')"]
    assert json.loads((folder / "run.ipynb").read_text())["cells"][0]["outputs"] == []


async def test_a_notebook_that_asks_for_gpus_itself(run: Run, folder: Path) -> None:
    cells = (
        "%gpufit release",
        "%load_ext jupyter_gpufit",
        "%gpufit request 4 --memory 2GiB",
        "%%gpufit other --push x\nprint('here')",
    )
    notebook(folder, *cells, "%gpufit release")
    code, text, _ = await run(folder, "run.ipynb")
    assert code == 0, text
    said = "nothing to do, this notebook runs as a job on 2 GPUs with 1 GiB each on here."
    release = f"%gpufit release: {said}\n"  # also before anything was loaded
    assert text == f"{release}%gpufit request: {said}\nhere\n{release}"


async def test_an_error_in_a_notebook(run: Run, folder: Path) -> None:
    notebook(folder, "x = 1", "def f(): return 1 / 0\nf()", "print('never')", kernelspec={"name": "python3"})
    code, text, home = await run(folder, "run.ipynb")
    assert code == 1
    assert "ZeroDivisionError: division by zero" in text
    assert "\x1b" not in text
    assert "never" not in text
    assert text.count("Traceback") == 1
    assert outputs_of(f"{home}/run.ipynb") == ["", "ZeroDivisionError", ""]


async def test_a_notebook_is_told_to_stop(run: Run, folder: Path) -> None:
    notebook(folder, "print('one')", "import time; print('two', flush=True); time.sleep(1000)")
    await run.begin(folder, "run.ipynb")
    await run.says("two\n")
    await run.launcher.halt(run.unit, PATIENCE)
    code, text, home = await run.ended()
    assert code == 128 + signal.SIGTERM
    assert "the notebook as it is by now is saved" in text
    assert outputs_of(f"{home}/run.ipynb") == ["one\n", "two\n"]


async def test_a_kernel_that_dies(run: Run, folder: Path) -> None:
    notebook(folder, "import os; os._exit(4)")
    code, text, home = await run(folder, "run.ipynb")
    assert code == 1
    assert "gpufit: the notebook's kernel died" in text
    assert outputs_of(f"{home}/run.ipynb") == [""]


async def test_a_language_that_is_not_there(run: Run, folder: Path) -> None:
    notebook(folder, "1", kernelspec={"name": "julia-1.9", "language": "julia"})
    code, text, _ = await run(folder, "run.ipynb")
    assert code == 90
    assert (
        "gpufit: node here, where plain processes run, has no kernel 'julia-1.9' for this notebook; there are:" in text
    )


# --- torchrun ---------------------------------------------------------------------------------------------------------


async def test_torchrun(run: Run, folder: Path) -> None:
    (folder / "torchrun").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (folder / "torchrun").chmod(0o755)
    (folder / "train.py").write_text("")
    code, text, _ = await run(
        folder, "train.py", args=("--epochs", "1"), launcher="torchrun", env={"PATH": f"{folder}:/usr/bin:/bin"}
    )
    assert (code, text) == (0, "--standalone|--nproc-per-node|2|train.py|--epochs|1|")


async def test_torchrun_as_a_module(run: Run, folder: Path) -> None:
    package = folder / "site/torch/distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text("import sys; print(sys.argv[1:])")
    (folder / "train.py").write_text("")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "site")}
    code, text, _ = await run(folder, "train.py", launcher="torchrun", env=environment)
    assert (code, text) == (0, "['--standalone', '--nproc-per-node', '2', 'train.py']\n")


@pytest.mark.parametrize(
    ("cpus", "launcher", "env", "threads"),
    [
        (7, "torchrun", {}, "3"),
        (1, "torchrun", {}, "1"),
        (7, "torchrun", {"OMP_NUM_THREADS": "2"}, "2"),
        (None, "torchrun", {}, None),  # torchrun says 1
        (7, None, {}, None),  # its unit says 7
    ],
)
def test_each_process_of_torchrun_gets_its_share_of_the_cores(
    cpus: float | None, launcher: str | None, env: dict[str, str], threads: str | None
) -> None:
    job = Job(run="train.py", launcher=launcher, env=env)
    allocation = granted(Request(gpus=2, cpus=cpus, job=job))
    told = json.loads(contents.files(allocation, job, "train.py", "image x")["job.json"])
    assert told["env"].get("OMP_NUM_THREADS") == threads


async def test_without_torchrun(run: Run, folder: Path) -> None:
    (folder / "train.py").write_text("")
    code, text, home = await run(folder, "train.py", launcher="torchrun", env={"PATH": "/usr/bin:/bin"})
    assert (code, home) == (90, None)
    assert text == (
        f"gpufit: node here, where plain processes run, has no torchrun for {sys.executable}; "
        "use one with PyTorch, or leave --launcher out\n"
    )

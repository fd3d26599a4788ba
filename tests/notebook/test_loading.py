"""`%load_ext jupyter_gpufit`: quick, harmless, undone by `%unload_ext`; and in a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from helpers.notebooks import TESTS

LOADED = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_line_magic("load_ext", "jupyter_gpufit")
heavy = {"pandas", "numpy", "docker", "requests", "pynvml", "jupyter_server", "jupyter_client", "aiohttp", "ipywidgets"}
print("heavy:", sorted(heavy & set(sys.modules) - before))
print("magics:", "gpufit" in shell.magics_manager.magics["line"], "gpufit" in shell.magics_manager.magics["cell"])
shell.run_line_magic("reload_ext", "jupyter_gpufit")
shell.run_line_magic("unload_ext", "jupyter_gpufit")
kept = "gpufit" in shell.magics_manager.magics["line"]
print("after:", kept, "_gpufit" in shell.__dict__, "transform_cell" in shell.__dict__)
"""


def python(*arguments: str, stdin: str | None = None, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_loading_is_quick_and_undone(tmp_path: Path) -> None:
    out = python("-c", LOADED, IPYTHONDIR=str(tmp_path))
    assert "heavy: []" in out
    assert "magics: True True" in out
    assert "after: False False False" in out


def test_in_a_kernel_of_an_allocation_it_is_that_kernels_magic(tmp_path: Path) -> None:
    environment = {
        "GPUFIT_ATTACHED": "1",
        "GPUFIT_NAME": "train",
        "GPUFIT_GPUS": "GPU-1",
        "GPUFIT_MEMORY": str(2**30),
        "GPUFIT_NODE": "n1",
    }
    code = LOADED.partition("heavy =")[0] + 'shell.run_line_magic("gpufit", "")'
    out = python("-c", code, IPYTHONDIR=str(tmp_path), **environment)
    assert "This kernel holds 1 GPU with 1 GiB on n1" in out


def test_in_a_terminal(tmp_path: Path) -> None:
    cells = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
from helpers.notebooks import KernelClient
from jupyter_gpufit.notebook import magics
held = KernelClient(); magics.load(get_ipython()); get_ipython()._gpufit._connect = lambda shell: (held, None)
import os; home = os.getpid()
%gpufit request 2 --memory 16GiB --name train
import os; print('same', os.getpid() == {{'home': 0}}.get('home'), 'home' in globals())
for i in range(2):
    print('line', i)

6 * 7
_ + 1
print('asked', input('who? '))
Ada
1 / 0
%gpufit
%gpufit reqest
%gpufit release
print('back', os.getpid() == home)
"""
    out = python(
        "-m",
        "IPython",
        "--simple-prompt",
        "--no-banner",
        "--colors=NoColor",
        "--HistoryManager.enabled=False",
        "--TerminalInteractiveShell.confirm_exit=False",
        stdin=cells,
        IPYTHONDIR=str(tmp_path),
    )
    assert "'train': 2 GPUs with 16 GiB each on n1 is running." in out
    assert "same False False" in out
    assert "line 0\nline 1" in out
    assert re.search(r"Out\[\d+\]: 42", out)
    assert re.search(r"Out\[\d+\]: 43", out)
    assert "asked Ada" in out
    assert "ZeroDivisionError" in out
    assert "jupyter_gpufit/notebook" not in out
    assert "run on 'train'" in out
    assert "UsageError: %gpufit has no 'reqest'; did you mean request?" in out
    assert "Released 'train'" in out
    assert "back True" in out

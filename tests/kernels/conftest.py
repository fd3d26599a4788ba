"""A simulated cluster of plain processes on this machine, and kernels on it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpufit.launching.directory import ClaimsDirectory

KERNELSPEC = Path(__file__).parents[2] / "kernelspec"
INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"
[[node]]
name = "small"
report = "simulated:2xT4-16GB"
[[node]]
name = "large"
report = "simulated:4xA100-40GB"
"""


@pytest.fixture
def cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """gpufit.toml of two simulated nodes, in force for whatever looks for one; kernelspec `gpufit` as it is in this
    repository. At the end nothing may be left of what ran there."""
    inventory = tmp_path / "gpufit.toml"
    inventory.write_text(INVENTORY)
    kernels = tmp_path / "share" / "kernels" / "gpufit"
    shutil.copytree(KERNELSPEC, kernels)
    claims = tmp_path / "claims"
    monkeypatch.setenv("GPUFIT_INVENTORY", str(inventory))
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(claims))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    for name in [name for name in os.environ if name.startswith("GPUFIT_") and name.split("_")[1] not in ("INVENTORY", "CLAIMS")]:
        monkeypatch.delenv(name)
    before = claims_held(claims)
    yield inventory
    deadline = time.monotonic() + 30
    while (left := claims_held(claims)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert before == left == []


@pytest.fixture
def held(cluster_file: Path, tmp_path: Path) -> Callable[[], list[str]]:
    """The uuids of all GPUs that units hold now, as their own claims say (not as our ledger thinks)."""
    return lambda: claims_held(tmp_path / "claims")


def claims_held(directory: Path) -> list[str]:
    records = [record for place in ("small", "large", "") for record in ClaimsDirectory(directory).records(place)]
    return sorted(uuid for record in records for uuid in record.claim.gpus)

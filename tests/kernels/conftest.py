"""A simulated cluster of plain processes on this machine, and kernels on it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.launching.directory import ClaimsDirectory, Record

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


class Cluster:
    """Two simulated nodes. Everything that looks for an inventory in `environment` finds them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "gpufit.toml"
        self.file.write_text(INVENTORY)
        self.claims = directory / "claims"
        self.environment = {
            "GPUFIT_INVENTORY": str(self.file),
            "GPUFIT_CLAIMS_DIR": str(self.claims),
            "JUPYTER_PATH": str(directory / "share"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
            "JUPYTER_DATA_DIR": str(directory / "data"),
            "JUPYTER_CONFIG_DIR": str(directory / "config"),
            "IPYTHONDIR": str(directory / "ipython"),
        }
        # Kernelspec `gpufit` as it is in this repository, not as it was when the package was installed.
        shutil.copytree(KERNELSPEC, directory / "share" / "kernels" / "gpufit")

    def kernelspec(self, name: str, program: str = "", **config: Any) -> str:
        """One like ours with other config, and with a kernel that is `program` if there is one. Returns its name."""
        spec = json.loads((KERNELSPEC / "kernel.json").read_text())
        spec["metadata"]["kernel_provisioner"]["config"] |= config
        if program:
            programs = self.directory / "programs"
            programs.mkdir(exist_ok=True)
            (programs / f"program_{name}.py").write_text(program)
            spec["argv"] = ["{python}", "-m", f"program_{name}", "-f", "{connection_file}"]
            spec["env"] = {"PYTHONPATH": str(programs)}
        directory = self.directory / "share" / "kernels" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "kernel.json").write_text(json.dumps(spec))
        return name

    def records(self) -> list[Record]:
        return [record for place in ("small", "large") for record in ClaimsDirectory(self.claims).records(place)]

    def held(self) -> list[str]:
        """Uuids of the GPUs that units hold now, as their own claims say (not as our ledger thinks)."""
        return sorted(uuid for record in self.records() for uuid in record.claim.gpus)

    def kernel_pids(self) -> list[int]:
        """Of the kernels that run now."""
        found = []
        for record in self.records():
            for pid in record.claim.pids:
                try:
                    if b"launch.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
                except OSError:
                    continue  # it ended
        return found

    def nothing_left(self) -> None:
        """Nothing may run or be held (after a moment)."""
        deadline = time.monotonic() + 30
        while self.held() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.held() == []


def in_force(cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GPUFIT_")]:
        patch.delenv(name)
    for name, value in cluster.environment.items():
        patch.setenv(name, value)


@pytest.fixture
def cluster_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """In force for this test. At its end nothing may be left of what ran there."""
    cluster = Cluster(tmp_path)
    in_force(cluster, monkeypatch)
    yield cluster
    cluster.nothing_left()


@pytest.fixture
def cluster_file(cluster_here: Cluster) -> Path:
    """Its gpufit.toml."""
    return cluster_here.file


@pytest.fixture
def held(cluster_here: Cluster) -> Callable[[], list[str]]:
    """See `Cluster.held`."""
    return cluster_here.held


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """In force for all tests of a module."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as patch:
        in_force(cluster, patch)
        yield cluster
        cluster.nothing_left()

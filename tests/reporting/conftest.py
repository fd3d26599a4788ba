"""A machine with stand-in GPUs: what is tested here runs the real NVML bindings, in the real child process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from helpers.reporting import PATIENCE, Machine
from standins import nvml

from jupyter_gpufit.models import Report
from jupyter_gpufit.reporting.sampler import Sampler


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Shows its GPUs to every process started from now on."""
    file = tmp_path / "gpus"
    for name, value in nvml.environment(nvml_library, file).items():
        monkeypatch.setenv(name, value)
    return Machine(file)


@pytest.fixture
async def sampler(machine: Machine) -> AsyncIterator[Sampler]:
    sampler = Sampler(PATIENCE, PATIENCE)
    yield sampler
    await sampler.close()


@pytest.fixture
def read(sampler: Sampler) -> Callable[[], Awaitable[Report]]:
    """`await read()`: a fresh report of `machine`."""

    async def fetch() -> Report:
        report = await sampler.fetch(PATIENCE)
        assert report.error is None, report.error
        return report

    return fetch

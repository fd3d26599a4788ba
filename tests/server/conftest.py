"""A Jupyter server with the extension, over make-believe parts (`office`), or over the real ones on simulated GPUs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.jupyterserver import directories, server_here
from helpers.office import MakeOffice, Office, Parts

from jupyter_gpufit.server import extension as extension_module

SIMULATED = """
[defaults]
docker = "process"
monitor_period = "250ms"
[[node]]
name = "small"
report = "simulated:2xT4-16GB"
[[node]]
name = "large"
report = "simulated:4xA100-40GB"
labels = { room = "b12" }
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in directories(tmp_path).items():
        monkeypatch.setenv(name, value)
    for name in ("GPUFIT_INVENTORY", "JUPYTERHUB_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))


@pytest.fixture
def make_office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeOffice:
    @asynccontextmanager
    async def make(
        config: Mapping[str, Mapping[str, Any]] | None = None, parts: Parts | None = None, **options: Any
    ) -> AsyncIterator[Office]:
        parts = parts or Parts()
        monkeypatch.setattr(extension_module, "open_service", parts.open)
        settings = {"GpufitExtension": {"owner": "ada"}, **(config or {})}
        async with server_here(tmp_path, settings, extension=True, **options) as here, here.front() as front:
            yield Office(here, front, parts)

    return make


@pytest.fixture
async def office(make_office: MakeOffice) -> AsyncIterator[Office]:
    async with make_office() as made:
        yield made


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    """gpufit.toml of two simulated nodes."""
    inventory = tmp_path / "gpufit.toml"
    inventory.write_text(SIMULATED)
    return inventory

"""Shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fuzzing import register_profiles

register_profiles()

pytest_plugins = ["cluster.fixtures"]


@pytest.fixture(scope="session", autouse=True)
def _data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test does not say otherwise: ledgers of schedulers go there, and not among the person's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield

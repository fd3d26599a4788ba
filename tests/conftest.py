"""Shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fuzzing import register_profiles

register_profiles()

# For whatever the tests start, as pyproject.toml has it for the tests themselves.
_LIGHTER = str(Path(__file__).with_name("lighter"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_LIGHTER, os.environ.get("PYTHONPATH"))))

pytest_plugins = ["cluster.fixtures"]


@pytest.fixture(scope="session", autouse=True)
def _data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test does not say otherwise: ledgers of schedulers go there, and not among the person's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


_LONG = ("crash", "ui", "cluster")
"""Directories whose tests wait for engines and pages, the longest first."""
_LONG_WITHIN = 0.7


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the long ones over the first part of a run: then few of them go on at a time, and at the end no worker is
    alone with one. Those that are asked to look for hours have them (a limit of time looks like a failure they found).
    """
    if config.getoption("--hypothesis-profile", None) in ("long", "longest"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))
    files = list(dict.fromkeys(item.path for item in items))
    place = {file: file.relative_to(Path(__file__).parent).parts[0] for file in files}
    long = sorted((file for file in files if place[file] in _LONG), key=lambda file: _LONG.index(place[file]))
    short = [file for file in files if place[file] not in _LONG]
    turns = {file: _LONG_WITHIN * number / len(long) for number, file in enumerate(long)}
    turns |= {file: number / len(short) for number, file in enumerate(short)}
    items.sort(key=lambda item: turns[item.path])

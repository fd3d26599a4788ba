"""The fixtures, as a pytest plugin: ``cluster``, ``engine``, ``tls_engine``, ``kernel_image``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from . import image
from .engines import Cluster, Engine, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses an engine is marked ``docker``."""
    for item in items:
        if {"cluster", "engine", "tls_engine"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.docker)


def _need_engines() -> None:
    reason = missing()
    if reason and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"Docker engines: {reason}")
    if reason:
        pytest.skip(f"Docker engines: {reason}")


@pytest.fixture(scope="session")
def kernel_image() -> str:
    """The name of the kernel image that every engine has. Variants: ``image.variant(client, name)``."""
    return image.BASE


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    _need_engines()
    with Cluster(["gpu01", "gpu02", "gpu03"]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _engine() -> Iterator[Engine]:
    _need_engines()
    with Cluster(["gpu01"]) as cluster:
        yield cluster["gpu01"]


@pytest.fixture(scope="session")
def _tls_engine() -> Iterator[Engine]:
    _need_engines()
    with Cluster(["secure"], tls=True) as cluster:
        yield cluster["secure"]


# The engines live as long as the session; each test gets them clean, and leaves them so.


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """Three engines, ``gpu01`` to ``gpu03``."""
    yield _cluster
    _cluster.reset()


@pytest.fixture
def engine(_engine: Engine) -> Iterator[Engine]:
    """One engine, ``gpu01``, apart from the cluster."""
    yield _engine
    _engine.reset()


@pytest.fixture
def tls_engine(_tls_engine: Engine) -> Iterator[Engine]:
    """One engine that wants a client certificate on its TCP port."""
    yield _tls_engine
    _tls_engine.reset()

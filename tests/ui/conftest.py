"""A browser, a Jupyter server for each module, and the notebook page in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.engines import Engine
from helpers.browser import Notebook, chromium, lab_server, missing
from helpers.jupyter import JupyterServer, until
from helpers.machines import machines
from playwright.sync_api import BrowserContext


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(600))  # a browser on a busy machine takes its time


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    """One for all tests of a module."""
    if (reason := missing()) and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"browser: {reason}")
    elif reason:
        pytest.skip(f"browser: {reason}")
    with chromium() as made:
        # Tall: what is below the edge is not there for a click.
        context = made.new_context(viewport={"width": 1300, "height": 1500})
        yield context
        context.close()


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: `$GPUFIT_SCREENSHOTS`, for somebody who wants to look at them."""
    place = Path(os.environ.get("GPUFIT_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """A Jupyter server on the cluster of the module's `INVENTORY`, with its `OPTIONS`, if it has some. (Where the
    cluster is a real engine, the module has a `server` of its own.)"""
    options = getattr(request.module, "OPTIONS", ())
    with lab_server(tmp_path_factory.mktemp("lab"), request.module.INVENTORY, *options) as server:
        yield server


@pytest.fixture
def engine_server(engine: Engine, kernel_image: str, tmp_path: Path) -> Iterator[JupyterServer]:
    """A Jupyter server here; a real engine and its reporter there."""
    with machines([engine], tmp_path, kernel_image) as inventory, lab_server(tmp_path, inventory.read_text()) as server:
        yield server


@pytest.fixture
def notebook(browser: BrowserContext, server: JupyterServer, screenshots: Path) -> Iterator[Notebook]:
    """A page. Afterwards nothing runs on the server, and nothing is held."""
    page = browser.new_page()
    yield Notebook(page, server, screenshots)
    page.close()
    clear(server)


@pytest.fixture(scope="module")
def launcher_page(browser: BrowserContext, server: JupyterServer, screenshots: Path) -> Iterator[Notebook]:
    page = browser.new_page()
    yield Notebook(page, server, screenshots).open_launcher()
    page.close()


@pytest.fixture
def launcher(launcher_page: Notebook) -> Iterator[Notebook]:
    """A page without a notebook: one for all tests of a module that use it, since to load it is most of what they cost.

    Afterwards nothing runs on the server, and nothing is held. Filters and the like are as the test leaves them.
    """
    yield launcher_page
    clear(launcher_page.server)


def clear(server: JupyterServer) -> None:
    """End all that runs on the server, and all that is held."""
    for session in server.get("api/sessions"):
        server.delete(f"api/sessions/{session['id']}")
    for allocation in server.get("gpufit/api/v1/allocations")["allocations"]:
        server.delete(f"gpufit/api/v1/allocations/{allocation['id']}")
    until(lambda: server.get("gpufit/api/v1/allocations")["allocations"] == [])
    for kernel in server.kernels():
        server.delete(f"api/kernels/{kernel['id']}")

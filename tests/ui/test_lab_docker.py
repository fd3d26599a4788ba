"""The main job in a browser, with a real Docker engine on another host (a network namespace), and its own reporter."""

from __future__ import annotations

import pytest
from cluster.engines import Engine
from helpers.browser import LOCAL, REMOTE, Notebook
from helpers.jupyter import JupyterServer
from helpers.sidebar import Sidebar

WHERE = """import os, socket
print(os.environ['NVIDIA_VISIBLE_DEVICES'], socket.gethostname())"""


@pytest.fixture
def server(engine_server: JupyterServer) -> JupyterServer:
    return engine_server


def test_from_the_sidebar_into_a_container_and_back(engine: Engine, notebook: Notebook) -> None:
    """By mouse: request, attach, a cell, detach, release."""
    notebook.page.set_viewport_size({"width": 1900, "height": 1100})
    notebook.open("mouse.ipynb", "home = 'here'", WHERE)
    notebook.run(0)
    notebook.until(lambda: notebook.ran([0]), "the local kernel")
    sidebar = Sidebar(notebook, width=420)
    form = sidebar.form
    form.field("GPUs").fill("2")
    form.field("Memory per GPU").fill("16GiB")
    form.field("Name").fill("train")
    form.button("Attach mouse.ipynb").click()
    notebook.until(lambda: notebook.idle_in(REMOTE), "the page to follow")
    notebook.run(1)
    notebook.until(lambda: notebook.ran([1]), "the cell")
    [allocation] = notebook.allocations()
    [container] = engine.client().containers.list()
    uuids, hostname = notebook.output(1).split()
    assert sorted(uuids.split(",")) == sorted(allocation["gpus"])
    assert len(allocation["gpus"]) == 2
    assert set(allocation["gpus"]) < set(engine.gpu_uuids)
    assert container.id.startswith(hostname)
    chip = notebook.page.locator(".jp-NotebookPanel-toolbar .jp-GpuFit-chipButton")
    assert chip.inner_text().endswith("· gpu01")
    notebook.picture("docker-sidebar")

    chip.click()
    notebook.page.locator(".jp-GpuFit-menu .lm-Menu-item").filter(has_text="Detach").click()
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    assert notebook.do("home").strip() == "'here'"
    assert [one.id for one in engine.client().containers.list()] == [container.id], "it is still held"

    sidebar.card("train").press("Release")
    notebook.accept()
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    assert engine.client().containers.list(all=True, ignore_removed=True) == []

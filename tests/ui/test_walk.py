"""The walk of docs/lab.md: from the page that `make lab` opens to a cell on two GPUs, and back; with the mouse
alone, and with keys alone.

`make pictures` stores the pictures that the document shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.browser import LOCAL, REMOTE, Notebook
from helpers.jupyter import JupyterServer
from helpers.jupyterserver import directories
from helpers.sidebar import Sidebar
from playwright.sync_api import BrowserContext, Locator

from jupyter_gpufit.cli.demo import NOTEBOOK, DemoServer

WHERE = 5
"""The quick start's code cell that prints which GPUs it sees."""
CELL = 9
"""Its number among all cells."""
NARROW = 300  # px
GiB = 2**30


class Demo(JupyterServer):
    """The server of `jupyter gpufit demo`, which somebody else starts and stops."""

    def __init__(self, demo: DemoServer) -> None:
        self.root, self.url, self.token = demo.root, demo.server.url, demo.server.token


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    home = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in directories(home).items():
            patch.setenv(name, value)
        patch.setenv("JUPYTERLAB_SETTINGS_DIR", str(home / "settings"))
        patch.setenv("JUPYTERLAB_WORKSPACES_DIR", str(home / "workspaces"))
        with DemoServer(home / "demo", lab=True) as demo:
            yield Demo(demo)


@pytest.fixture
def notebook(browser: BrowserContext, server: JupyterServer, tmp_path: Path) -> Iterator[Notebook]:
    """The page as `make lab` opens it."""
    page = browser.new_page()
    page.set_viewport_size({"width": 1440, "height": 900})
    place = Path(os.environ.get("GPUFIT_PICTURES", tmp_path))
    place.mkdir(parents=True, exist_ok=True)
    notebook = Notebook(page, server, place)
    notebook.path = NOTEBOOK
    page.goto(f"{server.url}lab/tree/{NOTEBOOK}?reset&token={server.token}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel")
    yield notebook
    page.close()
    for session in server.get("api/sessions"):
        server.delete(f"api/sessions/{session['id']}")


def test_with_the_mouse_alone(notebook: Notebook) -> None:
    page = notebook.page
    notebook.picture("mouse-1-the-page")

    page.locator('.lm-TabBar-tab[data-id="filebrowser"]').click()  # more room for the notebook
    sidebar = Sidebar(notebook, width=NARROW)
    form = sidebar.form
    form.button("One GPU more").click()
    memory = form.field("Memory per GPU")
    _slide(notebook, form.root.get_by_role("slider"), memory.input_value, "16GiB")
    notebook.until(lambda: "2 × A100" in form.verdict(), "the dry run")
    notebook.picture("mouse-2-a-request")

    form.button(re.compile("^Attach")).click()
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    [allocation] = notebook.allocations()
    assert (len(allocation["gpus"]), allocation["memory"]) == (2, [16 * GiB] * 2)
    assert form.outcome() or allocation["node"] in page.locator("#jp-gpufit-sidebar").inner_text()
    notebook.picture("mouse-3-attached")

    notebook.editor(WHERE).click()
    page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="run"]').click()
    notebook.until(lambda: notebook.ran([WHERE]), "the cell to have run")
    assert set(notebook.output(WHERE).split()) >= set(allocation["gpus"])
    notebook.picture("mouse-4-a-cell-on-two-gpus")

    sidebar.root.get_by_role("button", name=re.compile("^Release")).first.click()
    notebook.accept()
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    notebook.picture("mouse-5-given-back")


def test_with_keys_alone(notebook: Notebook) -> None:
    press, write = notebook.page.keyboard.press, notebook.page.keyboard.type

    def choose(words: str, command: str) -> None:
        press("Control+Shift+C")
        notebook.page.locator(".lm-CommandPalette-input:focus").wait_for()
        write(words)
        chosen = notebook.page.locator(f'.lm-CommandPalette-item.lm-mod-active[data-command="{command}"]')
        chosen.wait_for()

    choose("request gpus", "gpufit:request")
    notebook.picture("keys-1-the-palette")
    press("Enter")
    dialog = notebook.page.locator(".jp-Dialog")
    dialog.wait_for()
    write("2")
    press("Tab")
    write("16GiB")
    notebook.picture("keys-2-a-request")
    press("Enter")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    [allocation] = notebook.allocations()
    assert (len(allocation["gpus"]), allocation["memory"]) == (2, [16 * GiB] * 2)

    # The focus is in the notebook again, at its first cell.
    for _ in range(CELL):
        press("ArrowDown")
    press("Shift+Enter")
    notebook.until(lambda: notebook.ran([WHERE]), "the cell to have run")
    assert set(notebook.output(WHERE).split()) >= set(allocation["gpus"])
    notebook.picture("keys-3-a-cell-on-two-gpus")

    choose("release gpus", "gpufit:release")
    press("Enter")
    dialog.wait_for()
    notebook.picture("keys-4-a-question")
    press("Enter")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    notebook.picture("keys-5-given-back")


def _slide(notebook: Notebook, slider: Locator, shown: Callable[[], str], wanted: str) -> None:
    """Drag it, as a hand does, until what is wanted is shown."""
    box = slider.bounding_box()
    assert box is not None
    mouse, y = notebook.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + 8, y)
    mouse.down()
    seen = []
    for x in range(8, int(box["width"])):
        mouse.move(box["x"] + x, y)
        notebook.page.wait_for_timeout(20)
        seen.append(shown())
        if seen[-1] == wanted:
            break
    mouse.up()
    assert shown() == wanted, f"on the way were {seen}"

"""What a notebook runs on, as a person sees and changes it: chip, notifications, Running panel, status bar, drag.

Attaching is immediate: the page's own looks at its sessions (every ten seconds) are taken away here, so that whatever
is followed is followed by event.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from helpers.browser import LOCAL, REMOTE, Notebook
from helpers.sidebar import Sidebar
from playwright.sync_api import Locator

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]
name = "brook"
report = "simulated:4xA100-40GB"
"""
# The page's looks at sessions, kernels, terminals; not what waits for an answer, which is much shorter or longer.
NO_LOOKS = """
const later = window.setTimeout;
window.setTimeout = (run, ms, ...rest) => (ms >= 9000 && ms <= 20000 ? 0 : later(run, ms, ...rest));
"""


@pytest.fixture(autouse=True)
def wide(notebook: Notebook) -> None:
    """Enough for all that a chip says, beside a sidebar."""
    notebook.page.set_viewport_size({"width": 1900, "height": 1100})


class Chip:
    """The chip in the notebook's toolbar."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook, self.page = notebook, notebook.page
        self.button = self.page.locator(".jp-NotebookPanel-toolbar .jp-GpuFit-chipButton")

    def text(self) -> str:
        return self.button.inner_text()

    def choose(self, entry: str | re.Pattern[str]) -> None:
        """Open the menu by mouse, and click."""
        self.button.click()
        self.page.locator(".jp-GpuFit-menu .lm-Menu-item").filter(has_text=entry).click()


def held(notebook: Notebook, **more: Any) -> dict[str, Any]:
    """An allocation of two GPUs that runs."""
    server = notebook.server
    made = server.post("gpufit/api/v1/allocations", {"gpus": 2, "memory": "16GiB", "name": "train", **more})

    def running() -> bool:
        return bool(server.get(f"gpufit/api/v1/allocations/{made['id']}")["state"] == "running")

    notebook.until(running, "the allocation")
    found: dict[str, Any] = server.get(f"gpufit/api/v1/allocations/{made['id']}")
    return found


def toast(notebook: Notebook, text: str) -> Locator:
    """The notification that says so, once it is there."""
    found = notebook.page.locator(".Toastify__toast").filter(has_text=text)
    found.first.wait_for()
    return found.first


def notices(notebook: Notebook) -> list[str]:
    """All notifications that have not been dismissed, by the bell in the status bar."""
    bell = notebook.page.locator(".jp-Notification-Status [role=button]")
    bell.click()
    listed = notebook.page.locator(".jp-Notification-List-Item")
    listed.first.wait_for()
    texts = listed.all_inner_texts()
    bell.click()
    return texts


def kernelspec_in_file(notebook: Notebook) -> str:
    return str(json.loads((notebook.server.root / notebook.path).read_text())["metadata"]["kernelspec"]["name"])


def unsaved(notebook: Notebook) -> bool:
    return notebook.page.locator("#jp-main-dock-panel .lm-TabBar-tab.jp-mod-dirty").count() > 0


def save(notebook: Notebook) -> None:
    notebook.page.keyboard.press("Control+s")
    notebook.until(lambda: not unsaved(notebook), "the notebook to be saved")


def test_attach_by_the_chip_and_back_at_once_with_all_variables(notebook: Notebook) -> None:
    notebook.page.add_init_script(NO_LOOKS)
    notebook.open("chip.ipynb", "home = 'here'")
    notebook.run(0)
    notebook.until(lambda: notebook.ran([0]), "the cell")
    save(notebook)
    chip = Chip(notebook)
    assert chip.text() == "No GPU"
    held(notebook, time="1h12m30s")

    chip.choose("Attach to train · 2 × A100-40GB · brook")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the page to follow")
    assert re.fullmatch(r"2 × A100-40GB · brook · 1 h 1\d m left", chip.text())
    toast(notebook, "Its local kernel is kept, with its variables")
    assert not unsaved(notebook), "nobody has changed the notebook"
    notebook.picture("chip-attached")
    assert "brook" in notebook.do("import os; os.environ['GPUFIT_NODE']")
    save(notebook)
    assert kernelspec_in_file(notebook) == "python3", "a colleague without GPUs opens it as ever"

    # Back, by the keyboard.
    chip.button.focus()
    notebook.page.keyboard.press("Enter")
    notebook.page.keyboard.press("Enter")  # the first entry
    notebook.until(lambda: notebook.idle_in(LOCAL), "the page to follow back")
    assert chip.text() == "No GPU"
    toast(notebook, 'is back on its local kernel, with its variables. "train" still holds 2 GPUs.')
    assert not unsaved(notebook)
    assert notebook.do("home").strip() == "'here'"
    save(notebook)
    assert kernelspec_in_file(notebook) == "python3"
    assert [one["name"] for one in notebook.allocations()] == ["train"]

    # And by cells. One that is run right after a release runs, too, wherever the page is by then.
    notebook.do("%load_ext jupyter_gpufit")
    notebook.do("%gpufit attach train")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the page to follow")
    release, after = notebook.write("%gpufit release"), notebook.write("globals().get('home', 'nothing')")
    notebook.run(release)
    notebook.until(lambda: notebook.ran([release]), "the release")
    notebook.run(after)
    notebook.until(lambda: notebook.ran([after]), "the cell to have run")
    assert notebook.output(after).strip() in ("'here'", "'nothing'")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel")
    assert notebook.do("home").strip() == "'here'"
    toast(notebook, '"train" is released.')
    told = "\n".join(notices(notebook))
    assert "detach to go back" not in told, "what offers what can no longer be done is taken back"
    assert "still holds" not in told

    # What ends by itself says why.
    held(notebook, time="20s")
    Chip(notebook).choose(re.compile("^Attach to train"))
    notebook.until(lambda: notebook.idle_in(REMOTE), "the page to follow")
    said = toast(notebook, "is back on its local kernel, with its variables.")
    assert '"train": its time of 20 s is over.' in said.inner_text()
    notebook.picture("chip-expired")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel")
    assert notebook.do("home").strip() == "'here'"


def test_drag_an_allocation_into_a_notebook_and_release_it_in_the_running_panel(notebook: Notebook) -> None:
    notebook.open("drag.ipynb", "home = 'here'")
    allocation = held(notebook)
    page = notebook.page
    status = page.locator(".jp-GpuFit-statusItem")
    notebook.until(lambda: status.inner_text() == "GPUs: 2 held · 2 of 4 free", "the status bar")
    status.click()
    sidebar = Sidebar(notebook)
    card = sidebar.root.locator(f'[data-allocation="{allocation["id"]}"]').first
    start, end = card.bounding_box(), notebook.cells.nth(0).bounding_box()
    assert start is not None
    assert end is not None
    page.mouse.move(start["x"] + 16, start["y"] + 12)
    page.mouse.down()
    page.mouse.move(start["x"] - 40, start["y"] + 40, steps=4)
    page.mouse.move(end["x"] + 200, end["y"] + 10, steps=4)
    page.mouse.up()
    notebook.until(lambda: notebook.cells.count() == 2, "the cell")
    line = "%gpufit request 2 --memory 16GiB --name train"
    assert notebook.editor(0).inner_text().split("\n") == ["%load_ext jupyter_gpufit", line]
    notebook.run(0)
    notebook.until(lambda: notebook.idle_in(REMOTE), "it to come back to that allocation")
    assert [one["id"] for one in notebook.allocations()] == [allocation["id"]]

    page.locator('.lm-TabBar-tab[data-id="jp-running-sessions"]').click()
    row = page.locator(".jp-RunningSessions-item").filter(has_text="train: 2 × A100")
    row.hover()
    notebook.picture("chip-running")
    row.get_by_title("Release").click()
    notebook.accept()
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    notebook.until(lambda: row.count() == 0, "the row to go")
    notebook.until(lambda: status.inner_text() == "GPUs: 4 of 4 free", "the status bar")

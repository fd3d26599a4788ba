"""JupyterLab in a real browser, as a person uses it: menus, clicks, keys, and what is to be read on the page.

with chromium() as browser:
    notebook = Notebook(browser.new_page(), server).open("a.ipynb")
    notebook.run_all()
    notebook.until(lambda: notebook.ran(range(4)))
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers.jupyter import JupyterServer
from helpers.jupyterserver import directories
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Error, Locator, Page, sync_playwright

__all__ = ["CHROMIUM", "LOCAL", "REMOTE", "Notebook", "chromium", "lab_server", "missing"]

CHROMIUM = Path("/usr/bin/chromium")
KERNELSPEC = Path(__file__).parents[2] / "kernelspec"
LOCAL, REMOTE = "Python 3 (ipykernel)", "Python 3 on GPUs (gpufit)"
WITHIN = 90.0  # s; two slow cores, shared with others
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def missing() -> str | None:
    """Why there can be no browser here, or None."""
    return None if CHROMIUM.exists() else f"needs {CHROMIUM} (apt-get install chromium)"


@contextmanager
def chromium() -> Iterator[Browser]:
    """While it is open, no asyncio loop can run in this thread: open it for one module, not for the whole run."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(_QUIET))
        try:
            yield browser
        finally:
            browser.close()


def _settings(home: Path) -> dict[str, str]:
    """Environment of a JupyterLab that asks nobody for news, and keeps every cell on the page."""
    settings: dict[str, dict[str, Any]] = {
        "notebook-extension/tracker": {"windowingMode": "none"},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }
    for name, values in settings.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    return {"JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces")}


class Notebook:
    """The notebook that a page shows."""

    def __init__(self, page: Page, server: JupyterServer, screenshots: Path) -> None:
        self.page, self.server, self._screenshots = page, server, screenshots
        self.path = ""
        page.set_default_timeout(WITHIN * 1000)

    def open(self, path: str, *cells: str, front: str = "lab/tree") -> Notebook:
        """Write a notebook of these cells, and wait for its local kernel. `front`: `notebooks` for Notebook 7."""
        metadata = {"kernelspec": {"name": "python3", "display_name": LOCAL, "language": "python"}}
        content = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=metadata)
        nbformat.write(content, self.server.root / path)
        self.path = path
        self._go(f"{front}/{path}")
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self.until(lambda: self.idle_in(LOCAL), "the local kernel")
        return self

    def open_launcher(self) -> Notebook:
        """No notebook yet: the page on which one chooses a kernel."""
        self._go("lab")
        self.page.wait_for_selector(".jp-Launcher")
        return self

    def _go(self, path: str) -> None:
        self.page.goto(f"{self.server.url}{path}?reset&token={self.server.token}")

    # --- what a person does

    def menu(self, menu: str, command: str) -> None:
        """Choose an entry of the menu bar."""
        self.page.locator(".lm-MenuBar-itemLabel").get_by_text(menu, exact=True).click()
        self.page.locator(f'.lm-Menu-item[data-command="{command}"]').first.click()

    def accept(self) -> None:
        """The dialog's button that means yes."""
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def run_all(self) -> None:
        """Run > Run All Cells."""
        self.menu("Run", "runmenu:run-all")

    def run(self, number: int) -> None:
        """Click into a cell, and Ctrl-Enter."""
        self.editor(number).click()
        self.page.keyboard.press("Control+Enter")

    def write(self, code: str) -> int:
        """Type a new cell, at the end; its number."""
        number = self.cells.count()
        self.editor(number - 1).click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("b")
        self.until(lambda: self.cells.count() == number + 1, "a new cell")
        self.editor(number).click()
        self.page.keyboard.insert_text(code)  # not key by key: the editor would indent, and close brackets
        return number

    def do(self, code: str) -> str:
        """Type a new cell, run it; its output once it ran."""
        number = self.write(code)
        self.page.keyboard.press("Control+Enter")
        self.until(lambda: self.ran([number]), f"{code!r} to have run")
        return self.output(number)

    def reply(self, text: str) -> None:
        """Answer the `input()` of the cell that runs."""
        self.page.locator(".jp-Stdin-input").fill(text)
        self.page.locator(".jp-Stdin-input").press("Enter")

    def delete_last(self) -> None:
        """Delete the last cell."""
        number = self.cells.count()
        self.editor(number - 1).click()
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("d")
        self.page.keyboard.press("d")
        self.until(lambda: self.cells.count() == number - 1, "the cell to go")

    def dismiss(self) -> None:
        """Say yes to all dialogs, if there are any (a kernel that died has one), or close those that only tell."""
        answers = self.page.locator(".jp-Dialog .jp-mod-accept, .jp-Dialog .jp-mod-reject")
        while answers.count():
            with contextlib.suppress(Error):  # it has gone by itself, as one about a lost connection may
                answers.last.click(timeout=2000)
            self.page.wait_for_timeout(100)

    # --- what a person sees

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell")

    def editor(self, number: int) -> Locator:
        return self.cells.nth(number).locator(".cm-content")

    def output(self, number: int) -> str:
        """The text of a cell's outputs."""
        return "\n".join(self.cells.nth(number).locator(".jp-OutputArea-output").all_inner_texts())

    def prompts(self) -> list[str]:
        """`[3]:`, `[*]:` or `[ ]:` of each cell."""
        return self.page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").all_inner_texts()

    def ran(self, numbers: Iterable[int]) -> bool:
        """Whether these cells have run to their end."""
        prompts = self.prompts()
        return all(re.fullmatch(r"\[\d+\]:", prompts[number]) for number in numbers)

    def kernel(self) -> str:
        """The kernel's name, in the notebook's toolbar."""
        return self.page.locator(".jp-NotebookPanel-toolbar .jp-Toolbar-kernelName").inner_text()

    def idle_in(self, kernel: str) -> bool:
        """Whether the page shows that kernel, connected and idle."""
        indicator = self.page.locator(".jp-NotebookPanel-toolbar .jp-Notebook-ExecutionIndicator")
        return self.kernel() == kernel and indicator.get_attribute("data-status") == "idle"

    def completions(self, beginning: str) -> list[str]:
        """What Tab proposes for a beginning, typed into a new cell (which is gone again afterwards)."""
        self.write(beginning)
        found: list[str] = []
        while not found:
            self.page.keyboard.press("Tab")  # a completer that is not there yet hears nothing
            with contextlib.suppress(AssertionError):
                shown = self.page.locator(".jp-Completer .jp-Completer-match")
                found = self.until(shown.all_inner_texts, "completions", within=2)
        self.page.keyboard.press("Escape")
        self.delete_last()
        return found

    def until(self, condition: Callable[[], Any], what: str = "", within: float = WITHIN) -> Any:
        """The first true value of `condition`. The page lives on meanwhile. Fails with a picture of it."""
        deadline = time.monotonic() + within
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within:.0f} s: {what or condition}; {self._as_it_is()}")
            self.page.wait_for_timeout(100)
        return value

    def picture(self, name: str) -> None:
        """A screenshot, for people (`GPUFIT_SCREENSHOTS` says where they go)."""
        self.page.screenshot(path=self._screenshots / f"{name}.png")

    def _as_it_is(self) -> str:
        name = f"failed-{os.environ.get('PYTEST_CURRENT_TEST', 'test').rpartition('::')[2].split()[0]}"
        try:
            self.picture(name)
            text = self.page.locator("#jp-main-dock-panel, #main-panel").first.inner_text(timeout=5000)
        except Error as problem:
            text = str(problem)
        return f"see {self._screenshots / name}.png; the page says:\n{text[-3000:]}"

    # --- what the server knows

    def allocations(self) -> list[dict[str, Any]]:
        """Those that have not ended."""
        found: list[dict[str, Any]] = self.server.get("gpufit/api/v1/allocations")["allocations"]
        return found

    def ended(self) -> dict[str, Any]:
        """The allocation that ended last."""
        found = self.server.get("gpufit/api/v1/allocations?ended=1")["allocations"]
        return max((one for one in found if one["state"] == "ended"), key=lambda one: float(one["created"]))

    def session_kernel(self) -> str:
        """The name of the kernel that the server says this notebook has, whatever the page shows by now."""
        sessions = self.server.get("api/sessions")
        return next((one["kernel"]["name"] for one in sessions if one["path"] == self.path), "")


@contextmanager
def lab_server(home: Path, inventory: str, *arguments: str) -> Iterator[JupyterServer]:
    """A Jupyter server with JupyterLab, of which nothing is seen elsewhere, and that sees nothing from elsewhere.

    `arguments`: of its command line.
    """
    file = home / "gpufit.toml"
    file.write_text(inventory)
    shutil.copytree(KERNELSPEC, home / "share" / "kernels" / "gpufit")
    environment = directories(home) | _settings(home)
    environment |= {
        "GPUFIT_INVENTORY": str(file),
        "GPUFIT_CLAIMS_DIR": str(home / "claims"),
        "JUPYTER_PATH": str(home / "share"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("GPUFIT_", "JUPYTER", "JPY_")):
                patch.delenv(name)
        server = JupyterServer(home / "root", environment, "--KernelRestarter.time_to_dead=0.5", *arguments, lab=True)
    with server:
        yield server

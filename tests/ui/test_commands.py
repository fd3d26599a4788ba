"""Settings while the page is open, the sidebar's frame, commands by the keyboard alone, and Notebook 7."""

from __future__ import annotations

import re

import pytest
from helpers.browser import LOCAL, REMOTE, Notebook
from helpers.sidebar import Sidebar
from playwright.sync_api import Error, Locator, expect

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]
name = "brook"
report = "simulated:2xA100-40GB"
"""
OPTIONS = ("--LabApp.expose_app_in_browser=True",)  # as extensions have it


def choose(notebook: Notebook, command: str) -> None:
    """A command from the palette, by the keyboard."""
    keyboard, palette = notebook.page.keyboard, notebook.page.locator(".lm-CommandPalette:visible")
    keyboard.press("Control+Shift+C")
    expect(palette.locator("input")).to_be_focused()
    keyboard.insert_text(command)
    expect(palette.locator(".lm-mod-active .lm-CommandPalette-itemLabel")).to_have_text(command)
    keyboard.press("Enter")


def toast(notebook: Notebook, text: str) -> Locator:
    return notebook.page.locator(".Toastify__toast", has_text=text)


def test_settings_hold_as_soon_as_they_change(launcher: Notebook) -> None:
    page = launcher.page
    gpus, status = Sidebar(launcher).form.field("GPUs"), page.locator(".jp-GpuFit-statusItem")
    expect(gpus).to_have_value("1")
    expect(status).to_be_visible()
    page.evaluate("jupyterapp.commands.execute('settingeditor:open', { query: 'GPUs' })")
    editor = page.locator(".jp-SettingsPanel")
    number = editor.get_by_role("spinbutton").first
    shown = editor.get_by_role("checkbox", name=re.compile("status bar"))
    number.fill("2")
    shown.uncheck()
    expect(gpus).to_have_value("2")
    expect(status).to_be_hidden()
    number.fill("1")
    shown.check()
    expect(gpus).to_have_value("1")
    expect(status).to_be_visible()


def test_other_extensions_get_what_commands_do(launcher: Notebook) -> None:
    call = "([id, args]) => jupyterapp.commands.execute(id, args)"
    allocation = launcher.page.evaluate(call, ["gpufit:request", {"gpus": 1, "memory": "1GiB", "name": "called"}])
    assert [one["name"] for one in launcher.allocations()] == [allocation["name"]] == ["called"]
    with pytest.raises(Error, match='There is no allocation "caled"; there is "called"'):
        launcher.page.evaluate(call, ["gpufit:release", {"allocation": "caled"}])
    expect(toast(launcher, 'There is no allocation "caled"')).to_be_visible()
    released = launcher.page.evaluate(call, ["gpufit:release", {"allocation": "called", "confirm": False}])
    assert released["id"] == allocation["id"]


def test_the_sidebar_keeps_what_is_open_and_how_high_it_is(launcher: Notebook) -> None:
    page, sidebar = launcher.page, Sidebar(launcher)
    titles = sidebar.root.locator(".jp-AccordionPanel-title")
    cluster = sidebar.root.locator(".jp-GpuFit-cluster")
    before = height(cluster)
    titles.nth(1).focus()
    page.keyboard.press("Enter")
    expect(titles.nth(1)).to_have_attribute("aria-expanded", "false")
    launcher.until(lambda: height(cluster) > before + 100, "the cluster to take what the form had")
    page.wait_for_timeout(1500)  # the layout is saved a second after it changes
    page.goto(page.url.replace("reset&", "").replace("?reset", "?"))
    sidebar.root.wait_for()
    expect(titles.nth(1)).to_have_attribute("aria-expanded", "false")
    expect(titles.nth(0)).to_have_attribute("aria-expanded", "true")


def height(locator: Locator) -> float:
    box = locator.bounding_box()
    return box["height"] if box else 0.0


def test_by_the_keyboard_alone_from_a_request_to_its_release(notebook: Notebook) -> None:
    notebook.open("keys.ipynb", "1 + 1")
    page, keyboard = notebook.page, notebook.page.keyboard
    choose(notebook, "Request GPUs…")
    dialog = page.locator(".jp-Dialog")
    expect(dialog.get_by_label("GPUs")).to_be_focused()
    keyboard.insert_text("two")
    keyboard.press("Enter")
    said = "'two' is no number of GPUs; write a whole number from 1 to 1024"
    expect(dialog.get_by_label("GPUs")).to_have_accessible_description(said)
    keyboard.insert_text("2")
    for text in ("16GiB", "30m"):
        keyboard.press("Tab")
        keyboard.insert_text(text)
    keyboard.press("Enter")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the notebook to be attached")
    [held] = notebook.allocations()
    assert held["memory"] == [2**34, 2**34]

    choose(notebook, "Extend Time of GPUs…")
    expect(dialog.get_by_role("textbox")).to_be_focused()
    keyboard.press("Enter")  # one hour
    expect(toast(notebook, f'"{held["name"]}" ends at')).to_be_visible()
    [extended] = notebook.allocations()
    assert extended["expires"] - held["expires"] == pytest.approx(3600, abs=1)

    choose(notebook, "Detach from GPUs")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel")
    choose(notebook, "Attach to GPUs…")  # there is one only: nothing is asked
    notebook.until(lambda: notebook.idle_in(REMOTE), "the notebook to be attached again")

    choose(notebook, "Show GPUs")
    notebook.until(lambda: page.evaluate("document.activeElement.closest('#jp-gpufit-sidebar') !== null"), "the focus")
    choose(notebook, "Release GPUs…")
    expect(dialog.get_by_role("button", name="Release")).to_be_focused()
    keyboard.press("Enter")
    notebook.until(lambda: notebook.allocations() == [], "the release")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel")


def test_notebook_7(notebook: Notebook) -> None:
    """The same surfaces, but for the status bar."""
    code = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'none'))"
    notebook.open("seven.ipynb", code, front="notebooks")
    page, keyboard = notebook.page, notebook.page.keyboard
    expect(page.locator(".jp-GpuFit-chipButton")).to_be_visible()
    choose(notebook, "Request GPUs…")
    expect(page.locator(".jp-Dialog").get_by_label("GPUs")).to_be_focused()
    keyboard.press("Enter")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the notebook to be attached")
    choose(notebook, "Show GPUs")
    [held] = notebook.allocations()
    sidebar = page.locator("#jp-gpufit-sidebar")
    expect(sidebar.get_by_text(held["name"], exact=True).first).to_be_visible()
    notebook.picture("notebook-7")
    notebook.run(0)
    notebook.until(lambda: notebook.output(0).strip() == ",".join(held["gpus"]), "the cell to run on the GPU")
    sidebar.get_by_role("button", name=re.compile("^Logs")).first.click()
    choose(notebook, "Release GPUs…")
    expect(page.locator(".jp-Dialog").get_by_role("button", name="Release")).to_be_focused()
    keyboard.press("Enter")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel")
    notebook.until(lambda: notebook.allocations() == [], "the release")

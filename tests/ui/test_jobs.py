"""Jobs in the sidebar: a script is sent from the file browser, and runs where nobody has to watch it."""

from __future__ import annotations

from helpers.browser import Notebook
from helpers.sidebar import Sidebar
from playwright.sync_api import expect

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]
name = "brook"
report = "simulated:2xA100-40GB"
"""
SCRIPT = """
import os, pathlib, sys, time
print("\\x1b[32mepoch 1\\x1b[0m", os.environ["FLAVOUR"], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("epoch 2", flush=True)
pathlib.Path(os.environ["GPUFIT_OUTPUTS"], "weights.txt").write_text("trained")
"""


def test_a_script_from_the_file_browser_to_its_outputs(launcher: Notebook) -> None:
    page, root = launcher.page, launcher.server.root
    folder = root / "deep"
    folder.mkdir()
    (folder / "my train.py").write_text(SCRIPT)
    go = root / "go on"
    sidebar = Sidebar(launcher, 400)

    # From the menu of the file to the form, which says where it would go.
    browser = page.locator("#filebrowser")
    browser.locator(".jp-DirListing-item", has_text="deep").dblclick()
    browser.locator(".jp-DirListing-item", has_text="my train.py").click(button="right")
    page.locator('.lm-Menu-item[data-command="gpufit:train"]').click()
    form = sidebar.form
    expect(form.field("What runs")).to_be_focused()
    expect(form.field("What runs")).to_have_value("'my train.py'")
    expect(form.field("Folder")).to_have_value("deep")
    form.field("Arguments").fill(f"'{go}'")
    form.button("Set a variable").click()
    form.field("Name of variable 1").fill("FLAVOUR")
    form.field("Value of variable 1").fill("vanilla")
    form.field("Name").fill("fit")
    launcher.until(lambda: "brook" in form.verdict(), "where it would go")
    launcher.picture("job-form")
    form.button("Start the job").click()

    # It runs; its log is followed as it comes.
    card = sidebar.card("fit")
    launcher.until(lambda: "running" in card.text(), f"it to run; {form.outcome()}")
    assert "'my train.py'" in card.text()
    assert "with FLAVOUR set" in card.text()
    expect(form.root.get_by_label("Value of variable 1")).to_have_count(0)
    assert not card.button("New notebook").count()
    assert card.button("Stop").count()
    card.press("Logs")
    log = page.get_by_role("region", name="What it printed")
    expect(log).to_contain_text("epoch 1 vanilla")
    expect(log.locator(".ansi-green-fg")).to_have_text("epoch 1")
    launcher.picture("job-runs")
    go.touch()
    expect(log).to_contain_text("epoch 2")

    # It ends: with its outputs, and with all that it printed.
    launcher.until(lambda: "exit code 0" in card.text(), "the end")
    assert "finished" in card.text()
    outputs = folder / "outputs" / "fit"
    assert str(outputs) in card.text()
    assert (outputs / "weights.txt").read_text() == "trained"
    expect(log).to_have_text("epoch 1 vanilla\nepoch 2\n")
    expect(page.get_by_label("Follow")).to_be_disabled()
    launcher.picture("job-ended")

    # Whoever comes later finds it, until it is dismissed.
    page.goto(page.url.replace("reset&", "").replace("?reset", "?"))
    launcher.until(lambda: "finished" in card.text(), "the job that ended before the page came")
    with page.expect_response(lambda answer: "jupyter-gpufit:dismissed" in (answer.request.post_data or "")):
        card.press("Dismiss")
        launcher.until(lambda: not card.root.count(), "the card to go")
    with page.expect_response(lambda answer: "ended=1" in answer.url):
        page.reload()
    launcher.until(lambda: "You hold no GPUs." in sidebar.root.inner_text(), "the page")
    assert not card.root.count()

"""The sidebar's *My allocations*: JupyterLab in a browser, on a simulated cluster."""

from __future__ import annotations

from typing import Any

from helpers.browser import REMOTE, Notebook
from helpers.sidebar import Card, Sidebar

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]
name = "atlas"
report = "simulated:8xA100-80GB?load=0-4:60GiB@95%"

[[node]]
name = "brook"
report = "simulated:2xA100-40GB"
"""


def ask(notebook: Notebook, name: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """Ask for GPUs as somebody does who is not on this page."""
    body = {"gpus": gpus, "memory": "16GiB", "name": name} | more
    allocation: dict[str, Any] = notebook.server.post("gpufit/api/v1/allocations", body)
    return allocation


def says(notebook: Notebook, card: Card, *words: str) -> None:
    notebook.until(lambda: all(word in card.text() for word in words), f"{words} on the card; it says {card.text()!r}")


def test_from_elsewhere_to_the_card_to_a_notebook_and_back_by_mouse(notebook: Notebook) -> None:
    notebook.page.set_viewport_size({"width": 1700, "height": 1500})  # the notebook's toolbar needs its room, too
    notebook.open("cards.ipynb", "home = 'here'", "import os; os.environ['GPUFIT_NODE']")
    sidebar = Sidebar(notebook, 300)
    notebook.until(lambda: "You hold no GPUs." in sidebar.root.inner_text(), "nothing")
    sidebar.root.get_by_role("button", name="Request GPUs").click()
    notebook.until(lambda: sidebar.form.root.evaluate("node => node.contains(document.activeElement)"), "the form")

    allocation = ask(notebook, "train", 2, time="2h")
    card = sidebar.card("train")
    says(notebook, card, "running", "2 × A100-40GB, 16 GiB each on brook", "1 h 5")
    notebook.picture("card")
    card.press("Attach cards.ipynb")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    says(notebook, card, "cards.ipynb")
    notebook.until(lambda: not card.button("Attach cards.ipynb").count(), "it cannot be attached twice")
    assert "brook" in notebook.do("os = __import__('os'); os.environ['GPUFIT_NODE']")

    card.press("Extend")
    card.field("More time").fill("tomorrow")
    card.field("More time").press("Enter")
    says(notebook, card, "'tomorrow' is not a duration; write it like '90s', '10m', '2h' or '1d12h'")
    notebook.picture("card-extend")
    card.field("More time").fill("30m")
    card.field("More time").press("Enter")
    says(notebook, card, "2 h 2")
    assert notebook.allocations()[0]["time"] == 9000

    card.press("Logs")
    logs = notebook.page.locator(".jp-GpuFit-logs")
    notebook.until(lambda: "printed nothing" in logs.inner_text() or logs.locator("pre").count(), "the log")
    notebook.picture("logs")
    notebook.page.locator(".lm-TabBar-tabLabel", has_text="cards.ipynb").first.click()

    card.press("Copy line")
    notebook.until(lambda: card.button("Copied").count(), "it to be copied")
    notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    line = "%gpufit request 2 --memory 16GiB --name train --time 2h30m"
    assert notebook.page.evaluate("navigator.clipboard.readText()") == line

    card.press("Detach")
    notebook.until(lambda: notebook.session_kernel() == "python3", "the local kernel to be back")
    says(notebook, card, "Attach cards.ipynb")
    assert [one["id"] for one in notebook.allocations()] == [allocation["id"]]


def test_the_queue_and_a_release_by_keyboard_alone(launcher: Notebook) -> None:
    sidebar = Sidebar(launcher, 600)
    ask(launcher, "first", 2)
    says(launcher, sidebar.card("first"), "running")
    ask(launcher, "second", 2, memory="30GiB", node="brook", wait="10m")
    ask(launcher, "third", 2, memory="30GiB", node="brook", wait="10m")
    says(launcher, sidebar.card("second"), "pending", "Number 1 of 2 in the queue", "'first' on brook ends")
    says(launcher, sidebar.card("third"), "Number 2 of 2 in the queue", "Waits until")
    launcher.picture("queue")

    # Shift-Tab from the last button of all to the first card's, as who has no mouse does.
    keys, page = launcher.page.keyboard, launcher.page
    sidebar.card("first").button("Logs").focus()
    while page.evaluate("document.activeElement.dataset.action") != "release":
        keys.press("Tab")
    keys.press("Enter")
    dialog = page.locator(".jp-Dialog")
    launcher.until(lambda: "variables are lost" in dialog.inner_text(), "the question")
    launcher.picture("release")
    keys.press("Escape")
    dialog.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.dataset.action") == "release"
    keys.press("Enter")
    answer = dialog.locator(".jp-mod-warn")
    launcher.until(lambda: answer.count() and answer.evaluate("node => node === document.activeElement"), "a dialog")
    keys.press("Enter")
    says(launcher, sidebar.card("first"), "released")
    launcher.until(lambda: _focused(sidebar, "first"), "the focus to stay on that card")
    says(launcher, sidebar.card("second"), "running", "brook")
    says(launcher, sidebar.card("third"), "Number 1 of 1 in the queue", "'second' on brook ends")

    # A request is taken back without a question; and the card can be dismissed.
    sidebar.card("third").button("Cancel").focus()
    keys.press("Enter")
    says(launcher, sidebar.card("third"), "cancelled")
    sidebar.card("third").button("Dismiss").focus()
    keys.press("Enter")
    launcher.until(lambda: not sidebar.card("third").root.count(), "the card to go")
    launcher.until(lambda: page.evaluate("document.activeElement.closest('.jp-GpuFit-holding') !== null"), "the focus")


def _focused(sidebar: Sidebar, name: str) -> bool:
    return bool(sidebar.card(name).root.evaluate("node => node.contains(document.activeElement)"))


def test_what_ends_says_why_and_can_be_asked_for_again(launcher: Notebook) -> None:
    sidebar = Sidebar(launcher, 300)
    ask(launcher, "long", time="124s", node="atlas")
    card = sidebar.card("long")
    says(launcher, card, "running", "ends in 2 m", "save what you need")
    launcher.picture("warned")
    card.press("Extend")
    launcher.page.keyboard.press("Enter")  # the hour that is proposed
    launcher.until(lambda: "save what you need" not in card.text() and "1 h 1 m left" in card.text(), "more time")

    ask(launcher, "short", 2, time="10s")
    card = sidebar.card("short")
    says(launcher, card, "running", "on brook")
    says(launcher, card, "time is over", "its time of 10 s is over")

    # Somebody else has taken the GPUs meanwhile: the server's sentence, and a way on once they are free.
    taken = ask(launcher, "taken", 2, node="brook")
    says(launcher, sidebar.card("taken"), "running")
    blocker = ask(launcher, "blocker", 2, node="atlas")
    says(launcher, sidebar.card("blocker"), "running")
    card.press("Ask again")
    launcher.until(lambda: "no node" in card.error().lower(), "why not")
    launcher.picture("not-again")
    for one in (taken, blocker):
        launcher.server.delete(f"gpufit/api/v1/allocations/{one['id']}")
    says(launcher, sidebar.card("taken"), "released")
    says(launcher, sidebar.card("blocker"), "released")
    card.press("Ask again")
    says(launcher, card, "running", "on brook")
    assert {one["name"] for one in launcher.allocations()} == {"short", "long"}
    sidebar.root.get_by_role("button", name="Dismiss all").click()
    gone = [sidebar.card("taken").root, sidebar.card("blocker").root]
    launcher.until(lambda: not any(root.count() for root in gone), "the cards to go")

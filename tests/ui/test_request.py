"""The sidebar's form: what is asked, where it would go while one types, and what comes of it."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
from helpers.browser import REMOTE, Notebook
from helpers.sidebar import Sidebar

INVENTORY = """
[defaults]
monitor_period = "250ms"

[[node]]  # five of its eight GPUs are somebody else's
name = "atlas"
docker = "process"
report = "simulated:8xA100-80GB?load=0-4:60GiB@95%"

[[node]]
name = "brook"
docker = "process"
report = "simulated:2xA100-40GB"

[[node]]  # nobody answers there; but with it there are images to choose from
name = "coral"
docker = "tcp://127.0.0.1:9"
insecure = true
image = "lab:1"
report = "simulated:1xL4-24GB"
"""
WHERE = "import os; print(os.environ['GPUFIT_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"


def test_while_one_types_it_is_told_where_that_would_go_or_why_nowhere(notebook: Notebook) -> None:
    notebook.open("train.ipynb", "1")
    sidebar = Sidebar(notebook, width=300)
    form = sidebar.form
    gpus, memory = form.field("GPUs"), form.field("Memory per GPU")
    gpus.fill("2")
    memory.fill("16GiB")
    notebook.until(lambda: form.verdict() == "brook: 2 × A100-40GB, the tightest of 2 that fit", "the dry run")
    notebook.picture("request-fits")

    memory.fill("16QiB")
    said = "'16QiB' is not a size of memory; write it like '16GiB', '16G' or '500MB'"
    notebook.until(lambda: said in form.root.inner_text(), "what is wrong")
    assert memory.get_attribute("aria-invalid") == "true"
    assert form.button("Attach train.ipynb").is_disabled()
    notebook.picture("request-mistake")

    memory.fill("60GiB")
    gpus.fill("9")
    never = "No node of this cluster could ever give 9 GPUs with 60 GiB each, however empty."
    notebook.until(lambda: never in form.verdict(), "the dry run to say never")
    assert form.button("Wait for it").count() == 0

    gpus.fill("4")
    notebook.until(lambda: "No node has 4 GPUs with 60 GiB each now." in form.verdict(), "the dry run to say no")
    form.root.get_by_text("Why, node by node").click()
    notebook.until(lambda: "atlas: 3 idle GPUs, 4 asked" in form.verdict(), "the reasons")
    notebook.picture("request-full")
    form.button("Take 3 GPUs with 60 GiB each on atlas").click()
    notebook.until(lambda: "atlas: 3 × A100-80GB, the only one that fits" in form.verdict(), "what was taken over")
    assert (gpus.input_value(), memory.input_value()) == ("3", "60GiB")
    assert notebook.allocations() == [], "nothing was asked so far but how it would be"

    # A start that fails, since its kernel is killed (as by the machine that has no memory left).
    form.field("Name").fill("wrong")
    form.button("Attach train.ipynb").click()
    [wrong] = notebook.until(notebook.allocations, "the request")
    notebook.until(lambda: _kill(wrong["id"]) or "wrong failed: " in form.outcome(), "the failure")
    assert "SIGKILL" in form.outcome()
    notebook.picture("request-failed")

    form.field("Image").fill("lab:2")
    notebook.until(lambda: "no node allows the image 'lab:2'" in form.verdict(), "the refusal")

    # What was written is still there when the page comes again; the name, which was for one, is not.
    notebook.page.wait_for_timeout(1500)
    notebook.page.reload()
    form = Sidebar(notebook).form
    notebook.until(lambda: form.field("Image").input_value() == "lab:2", "the form to be as it was")
    assert [form.field(name).input_value() for name in ("GPUs", "Name")] == ["3", ""]


def test_a_new_notebook_by_mouse_alone_then_moved_to_more_gpus_then_in_the_queue_for_more(notebook: Notebook) -> None:
    notebook.page.set_viewport_size({"width": 1900, "height": 1500})  # the notebook's toolbar needs its room, too
    notebook.open_launcher()
    form = Sidebar(notebook, width=600).form
    assert form.button("Attach this notebook").is_disabled()
    assert "No notebook is open" in form.root.inner_text()
    notebook.until(lambda: "brook: 1 × A100-40GB, the tightest of 2 that fit" in form.verdict(), "the dry run")
    form.button("New notebook").dblclick()
    notebook.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the new notebook to be on its GPU")
    node, uuid = notebook.do(WHERE).split()
    [first] = notebook.allocations()  # not two
    assert (node, [uuid]) == (first["node"], first["gpus"])

    form.button("One GPU more").click()
    notebook.until(lambda: "atlas: 2 × A100-80GB" in form.verdict(), "the dry run")
    moves = f"Untitled.ipynb runs on {first['name']}; it would move to the new GPUs, and {first['name']} stays held."
    notebook.until(lambda: moves in form.root.inner_text(), "what a press does")
    notebook.picture("request-moves")
    form.button("Attach Untitled.ipynb").click()
    notebook.until(lambda: "runs on atlas" in form.outcome(), "the allocation")
    [second] = [one for one in notebook.allocations() if one["id"] != first["id"]]
    assert (second["node"], len(second["gpus"])) == ("atlas", 2)
    notebook.until(lambda: notebook.server.get("api/sessions")[0]["kernel"]["id"] == second["kernel_id"], "the swap")

    form.field("GPUs").fill("5")
    notebook.until(lambda: "No node has 5 GPUs" in form.verdict(), "the dry run to say no")
    form.button("New notebook").click()
    notebook.until(lambda: "No node has 5 GPUs" in form.outcome(), "the refusal")
    notebook.picture("request-refused")
    form.button("Wait for it").click()
    notebook.until(lambda: "It would wait for up to 10 m." in form.verdict(), "the dry run")
    form.field("Name").fill("later")
    form.button("Attach Untitled.ipynb").click()
    notebook.until(lambda: "later waits: it is number 1 of 1 in the queue." in form.outcome(), "its place in the queue")
    notebook.picture("request-queued")


def test_cores_and_ram_by_keys_alone_then_on_the_card_and_at_the_node(notebook: Notebook) -> None:
    notebook.open("sized.ipynb", "1")
    sidebar = Sidebar(notebook, width=600)
    form, keys = sidebar.form, notebook.page.keyboard
    more = form.root.locator("summary", has_text="More")
    more.focus()
    keys.press("Enter")
    keys.press("Tab")
    assert form.field("CPUs").evaluate("field => field === document.activeElement")
    keys.type("4096")
    notebook.until(lambda: "No node has 1 GPU with 8 GiB, 4096 CPUs now." in form.verdict(), "the dry run to say no")
    keys.press("Control+a")
    keys.type("4097")
    mistake = "'4097' is no number of cores; write one such as 8 or 0.5, at most 4096"
    notebook.until(lambda: mistake in form.root.inner_text(), "what is wrong")
    described = form.field("CPUs").get_attribute("aria-describedby")
    assert notebook.page.locator(f"[id='{described}']").inner_text() == mistake
    notebook.picture("request-cpus-mistake")
    keys.press("Control+a")
    keys.type("1")
    keys.press("Tab")
    keys.type("1GiB")
    notebook.until(lambda: "the tightest of 2 that fit" in form.verdict(), "the dry run")
    form.field("Name").fill("sized")
    form.button("Attach sized.ipynb").press("Enter")
    notebook.until(lambda: "1 CPU, 1 GiB RAM" in sidebar.card("sized").text(), "the card")
    told = notebook.until(lambda: _held(notebook, "sized"), "the kernel")
    assert (told["request"]["cpus"], told["request"]["ram"]) == (1, 2**30)
    cluster = sidebar.cluster
    cluster.button(told["node"]).press("Enter")
    cores, ram = notebook.server.get(f"gpufit/api/v1/nodes/{told['node']}")["cpus"], " GiB free"
    details = cluster.details(told["node"])
    notebook.until(lambda: f"{cores - 1:g} of {cores:g} free" in details.inner_text(), "what is left of the machine")
    assert ram in details.inner_text()
    notebook.picture("request-cpus-node")


def _held(notebook: Notebook, name: str) -> Any:
    return next((one for one in notebook.allocations() if one["name"] == name and one["state"] == "running"), None)


def _kill(allocation: str) -> None:
    """`kill -9` what runs in an allocation."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("GPUFIT_ALLOCATION") == allocation:
                process.kill()

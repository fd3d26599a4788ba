"""`%gpufit panel` as a person uses it: JupyterLab in a browser, on a simulated cluster."""

from __future__ import annotations

from helpers.browser import LOCAL, REMOTE, Notebook
from playwright.sync_api import Locator

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]
name = "atlas"
report = "simulated:4xA100-80GB?load=0-1:60GiB@95%"

[[node]]
name = "brook"
report = "simulated:2xA100-40GB"
"""
BEFORE = "panel => getComputedStyle(panel, '::before').content"
WHERE = "import os; print(os.environ['GPUFIT_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"


def test_from_the_form_to_a_cell_on_two_gpus_and_back(notebook: Notebook) -> None:
    notebook.open("panel.ipynb", "home = 'here'", "%load_ext jupyter_gpufit\n%gpufit panel", WHERE)
    notebook.run(0)
    notebook.run(1)
    panel = notebook.page.locator(".gpufit-panel")
    says(notebook, panel, "2 nodes, 6 GPUs: 4 idle.", "brook: 1 × A100-40GB, tightest of 2 that fit")
    notebook.picture("panel-open")

    # What is typed is tried, and what is wrong in it is said where it is.
    field(panel, "GPUs").fill("3")
    field(panel, "Memory").fill("16QiB")
    says(notebook, panel, "'16QiB' is not a size of memory")
    notebook.picture("panel-wrong")
    field(panel, "Memory").fill("16GiB")
    says(notebook, panel, "No node has 3 GPUs with 16 GiB each now.", "2 GPUs with 16 GiB each would fit now, on brook")
    notebook.picture("panel-nowhere")
    panel.get_by_role("button", name="Take 2 GPUs with 16 GiB each").click()
    says(notebook, panel, "brook: 2 × A100-40GB, tightest of 2 that fit")
    assert field(panel, "GPUs").input_value() == "2"

    field(panel, "Time limit").fill("2h")
    panel.get_by_role("button", name="Request", exact=True).click()
    says(notebook, panel, "2 GPUs with 16 GiB each on brook", "running · 1 h 5")
    [allocation] = notebook.allocations()
    assert allocation["time"] == 7200
    panel.get_by_role("button", name="Extend by").click()
    says(notebook, panel, "has 3 h now")
    notebook.picture("panel-running")

    # The notebook goes there; what stays of the panel tells how to come back.
    panel.get_by_role("button", name="Attach", exact=True).click()
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    assert panel.count() == 0
    left = notebook.output(1)
    assert "This notebook runs on" in left
    assert "%gpufit detach" in left
    assert "Error" not in left
    notebook.picture("panel-attached")
    notebook.run(2)
    notebook.until(lambda: notebook.ran([2]), "the cell to have run")
    assert notebook.output(2).split() == ["brook", ",".join(allocation["gpus"])]
    assert "works in the local kernel" in notebook.do("%gpufit panel")

    notebook.do("%gpufit detach")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    assert notebook.do("home").strip() == "'here'"
    notebook.run(1)
    panel = notebook.page.locator(".gpufit-panel")
    says(notebook, panel, "running · 2 h 5")
    panel.get_by_role("button", name="Release").click()
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    says(notebook, panel, "ended (released)", "brook: 2 × A100-40GB")
    notebook.picture("panel-released")

    # Without its kernel it is not a form any more, and says so.
    notebook.menu("Kernel", "kernelmenu:restart")
    notebook.accept()
    notebook.until(lambda: "kernel is gone" in panel.evaluate(BEFORE), "the panel to be given up")
    notebook.picture("panel-gone")
    assert notebook.do("6 * 7").strip() == "42", "(a server refuses to end a kernel that it is starting anew)"


def field(panel: Locator, label: str) -> Locator:
    return panel.get_by_label(label, exact=True)


def says(notebook: Notebook, panel: Locator, *texts: str) -> None:
    """Wait until all this is to be read in the panel."""
    for text in texts:
        notebook.until(
            lambda text=text: panel.count() and text in panel.first.inner_text(), f"the panel to say {text!r}"
        )

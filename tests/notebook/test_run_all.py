"""*Run All* without a server: nbclient and papermill, over a scheduler of the notebook's own and simulated GPUs."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from helpers.notebooks import LocalKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]
INVENTORY = """
[[node]]
name = "big"
report = "simulated:4xA100-40GB"

[[node]]
name = "small"
report = "simulated:2xA100-40GB"
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = tmp_path / "gpufit.toml"
    inventory.write_text(INVENTORY)
    monkeypatch.setenv("GPUFIT_INVENTORY", str(inventory))
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def run_all(*cells: str, **options: object) -> NotebookNode:
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3", timeout=120, **options).execute()
    return notebook


def text(cell: NotebookNode) -> str:
    found = []
    for output in cell.outputs:
        found.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(found)


def kernels_of_allocations() -> list[int]:
    """Processes that carry an allocation in their environment, of this machine's tests."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("GPUFIT_INVENTORY") == os.environ["GPUFIT_INVENTORY"]
                and process.pid != os.getpid()
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def none_left() -> bool:
    """Whether they all go: the kernel that released them may still be about to end."""
    deadline = time.monotonic() + 60
    while kernels_of_allocations() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not kernels_of_allocations()


def test_every_cell_after_the_request_runs_on_the_allocation() -> None:
    notebook = run_all(
        "%load_ext jupyter_gpufit\nimport os\nhome = os.getpid()",
        "%gpufit request 2 --memory 16GiB --name train",
        "import os\nprint(os.getpid())",
        "print(os.environ['CUDA_VISIBLE_DEVICES'])",
        "'home' in globals()",
        "%load_ext jupyter_gpufit",
        "%gpufit request 2 --memory 16GiB --name train",
        "from IPython.display import display, HTML\ndisplay(HTML('<b>rich</b>'))",
        "%gpufit release",
        "print(os.getpid() == home)",
        "df = %gpufit gpus\nprint(len(df), int(df['idle'].sum()))",
    )
    _, request, remote, visible, known, _, again, rich, _, local, table = notebook.cells
    assert "'train': 2 GPUs with 16 GiB each on small is running." in text(request)
    assert re.fullmatch(r"\d+\n", text(remote))
    assert re.fullmatch(r"GPU-[-0-9a-f]+,GPU-[-0-9a-f]+\n", text(visible))
    assert text(known) == "False"
    assert "nothing to do" in text(again)
    assert rich.outputs[0].data["text/html"] == "<b>rich</b>"
    assert text(local) == "True\n"
    assert text(table) == "6 6\n"
    assert none_left()


def test_an_error_there_stops_run_all_and_nothing_is_left_behind() -> None:
    with pytest.raises(CellExecutionError, match=r"ZeroDivisionError.*division by zero"):
        run_all("%load_ext jupyter_gpufit", "%gpufit request 1 --memory 1GiB", "1 / 0", "never = 1")
    assert none_left()


def test_what_never_fits_stops_run_all_with_the_reason() -> None:
    with pytest.raises(CellExecutionError, match=r"could ever give 9 GPUs"):
        run_all("%load_ext jupyter_gpufit", "%gpufit request 9 --memory 1GiB")


def test_a_kernel_that_ends_gives_everything_back() -> None:
    run_all("%load_ext jupyter_gpufit", "%gpufit request 1 --memory 1GiB", "x = 1")
    assert none_left()


def test_the_quick_start() -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    assert text(notebook.cells[-1]) == '("the notebook\'s own kernel", False)'


def test_a_kernel_that_is_killed_takes_its_allocations_along() -> None:
    kernel = LocalKernel()
    try:
        assert kernel.run("%load_ext jupyter_gpufit").ok
        assert kernel.run("%gpufit request 1 --memory 1GiB").ok
        remote = int(kernel.run("__import__('os').getpid()").value())
        local = kernel.manager.provisioner.pid
        assert remote != local
        os.kill(local, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while psutil.pid_exists(remote):
            assert time.monotonic() < deadline, "its allocation's kernel goes on"
            time.sleep(0.1)
    finally:
        kernel.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_papermill(tmp_path: Path) -> None:
    import papermill

    notebook = papermill.execute_notebook(
        str(ROOT / "notebooks" / "quickstart.ipynb"),
        str(tmp_path / "out.ipynb"),
        progress_bar=False,
        kernel_name="python3",
    )
    assert "([0, 1, 4, 9, 16], False)" in "".join(text(cell) for cell in notebook.cells if cell.cell_type == "code")

"""Whole notebooks on kernel `gpufit` with no Jupyter server about: nbclient and papermill."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from jupyter_gpufit.errors import GpufitError

SEEN = "import os; print(len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')), os.environ['GPUFIT_NODE'])"


def notebook(*cells: str) -> Any:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"name": "gpufit", "display_name": "gpufit", "language": "python"}
    return made


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def execute(made: Any, **options: Any) -> Any:
    return NotebookClient(made, kernel_name="gpufit", timeout=60, **options).execute()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert [thread.name for thread in threading.enumerate() if "gpufit" in thread.name] == []


def test_nbclient(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    done = execute(notebook(SEEN, "x = 20", "%load_ext jupyter_gpufit\n%gpufit", "x + 1"))
    assert printed(done.cells[0]) == "1 small\n"
    assert "This kernel holds 1 GPU with 1 GiB on small" in printed(done.cells[2])
    assert done.cells[3].outputs[0]["data"]["text/plain"] == "21"
    assert held() == []


def test_one_notebook_after_the_other_each_in_a_loop_of_its_own(
    cluster_file: Path, held: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, node in ((2, "small"), (3, "large")):
        monkeypatch.setenv("GPUFIT_GPUS", str(count))
        made = notebook(SEEN)
        asyncio.run(NotebookClient(made, kernel_name="gpufit", timeout=60).async_execute())
        assert printed(made.cells[0]) == f"{count} {node}\n"
        assert held() == []


def test_two_notebooks_at_once_share_the_cluster_and_no_gpu(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    uuids = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(0.5)"
    first, second = notebook(uuids), notebook(uuids)

    async def both() -> None:
        clients = [NotebookClient(made, kernel_name="gpufit", timeout=60) for made in (first, second)]
        await asyncio.gather(*(client.async_execute() for client in clients))

    asyncio.run(both())
    assert printed(first.cells[0]) != printed(second.cells[0])
    assert held() == []


def test_papermill(cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]]) -> None:
    nbformat.write(notebook("n = 1", SEEN, "print(n)"), tmp_path / "in.ipynb")
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", parameters={"n": 5}, kernel_name="gpufit", progress_bar=False
    )
    assert any("1 small" in printed(cell) for cell in done.cells)
    assert held() == []


def test_a_failing_cell_gives_the_gpus_back(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(notebook("1 / 0"))
    assert held() == []


def test_a_kernel_that_dies_gives_the_gpus_back(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    with pytest.raises(DeadKernelError):
        execute(notebook("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert held() == []


def test_what_does_not_fit_says_so(
    cluster_file: Path, held: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUFIT_GPUS", "5")
    with pytest.raises(GpufitError) as caught:
        execute(notebook("1"))
    assert "5" in caught.value.message
    assert caught.value.code == "never-fits"
    assert held() == []


def test_what_cannot_be_meant_says_so(cluster_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFIT_MEMORY", "16Gobs")
    with pytest.raises(GpufitError, match="GPUFIT_MEMORY"):
        execute(notebook("1"))


def test_a_time_limit_ends_the_notebook_and_gives_the_gpus_back(
    cluster_file: Path, held: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUFIT_TIME", "2s")
    with pytest.raises(DeadKernelError):
        execute(notebook("import time; time.sleep(120)"))
    assert held() == []

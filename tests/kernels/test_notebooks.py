"""Whole notebooks on kernel `gpufit` with no Jupyter server about: nbclient and papermill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from helpers.cells import run_cell
from jupyter_client.manager import KernelManager, start_new_async_kernel, start_new_kernel
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
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gpufit service")] == []


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
    assert caught.value.message.splitlines()[1:] == ["large: 4 idle GPUs, 5 asked", "small: 2 idle GPUs, 5 asked"]
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


def wait_for_end(manager: KernelManager) -> None:
    deadline = time.monotonic() + 60
    while manager.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_release_in_a_kernel_of_a_kernel_manager_without_an_event_loop(
    cluster_file: Path, held: Callable[[], list[str]]
) -> None:
    manager, client = start_new_kernel(kernel_name="gpufit")
    try:
        assert len(held()) == 1
        assert "given back" in run_cell(client, "%gpufit release").stdout
        wait_for_end(manager)
        assert held() == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


async def test_release_in_a_kernel_of_an_asynchronous_kernel_manager(
    cluster_file: Path, held: Callable[[], list[str]]
) -> None:
    manager, client = await start_new_async_kernel(kernel_name="gpufit")
    try:
        assert len(held()) == 1
        await client.execute_interactive("%gpufit release", output_hook=lambda _: None)
        async with asyncio.timeout(60):
            while await manager.is_alive():  # noqa: ASYNC110  (it has no event for it)
                await asyncio.sleep(0.05)
        assert held() == []
    finally:
        client.stop_channels()
        await manager.shutdown_kernel()


def test_release_after_a_restart(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    manager, client = start_new_kernel(kernel_name="gpufit")
    try:
        before = held()
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=60)
        assert held() == before
        run_cell(client, "%gpufit release")
        wait_for_end(manager)
        assert held() == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def test_release_in_the_last_cell_of_a_notebook(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    done = execute(notebook("x = 20", "%gpufit release"))
    assert "given back" in printed(done.cells[1])
    assert held() == []


def test_an_inventory_that_cannot_be_used_is_named(cluster_file: Path) -> None:
    cluster_file.write_text("[[node]]\nname = 3\n")
    with pytest.raises(GpufitError, match=r"the inventory cannot be used as it is: .*gpufit\.toml"):
        execute(notebook("1"))


@pytest.fixture
def leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What units leave in the directory for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return lambda: sorted(path.name for path in (tmp_path / "tmp").glob("gpufit-*"))


def test_jupyter_run_says_nothing_of_its_own_and_leaves_nothing(
    cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]], leftovers: Callable[[], list[str]]
) -> None:
    """Its kernel is shut down as the interpreter exits, after the service has ended."""
    (tmp_path / "program.py").write_text(SEEN)
    command = [sys.executable, "-m", "jupyter", "run", "--kernel", "gpufit", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 small\n", "")
    assert held() == []
    assert leftovers() == []


def test_nothing_is_left_of_one_that_is_killed(
    cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]], leftovers: Callable[[], list[str]]
) -> None:
    (tmp_path / "program.py").write_text("print('begun', flush=True)\nimport time; time.sleep(300)")
    command = [sys.executable, "-m", "jupyter", "run", "--kernel", "gpufit", str(tmp_path / "program.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert len(leftovers()) == 1
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while held() or leftovers():
        assert time.monotonic() < deadline, leftovers()
        time.sleep(0.05)

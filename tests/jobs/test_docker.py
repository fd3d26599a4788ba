"""Jobs in containers of a real engine, whose files are copied there and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.jobs.host import LocalJobHost
from jupyter_gpufit.jobs.transfers import Transfers
from jupyter_gpufit.launching.docker import DockerLauncher
from jupyter_gpufit.models import State

from .conftest import OneUnit, Run, done, notebook, outputs_of, text_of

pytestmark = pytest.mark.docker
TRAIN = """
import os, pathlib, sys
outputs = pathlib.Path(os.environ["GPUFIT_OUTPUTS"])
before = outputs.joinpath("state").read_text() if outputs.joinpath("state").exists() else ""
print(os.getcwd(), outputs, sys.argv[1:], repr(before), pathlib.Path("data/x").read_text(), os.environ["TOKEN"])
print([path.name for path in pathlib.Path("/gpufit").iterdir() if "json" in path.name])
outputs.joinpath("state").write_text(before + os.environ["GPUFIT_ATTEMPT"])
outputs.joinpath("latest").symlink_to("/outputs/state") if not before else None
sys.exit(0 if before else 1)
"""


@pytest.fixture
async def run(engine: Any, kernel_image: str, tmp_path: Path) -> AsyncIterator[Run]:
    spec = NodeSpec(name=engine.name, docker=engine.url, insecure=True, image=kernel_image, pull="never")
    launcher, ends = DockerLauncher(spec), asyncio.Queue()
    await launcher.open(lambda *end: ends.put_nowait(end), lambda claims: None)
    try:
        made = Run(launcher, spec, LocalJobHost(tmp_path / "store", lambda: [spec]), ends)
        made.gpus = engine.gpu_uuids[:2]
        yield made
    finally:
        await launcher.close()


async def test_a_script_twice_then_a_notebook_and_a_command(run: Run, folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)
    (folder / "data").mkdir()
    (folder / "data/x").write_text("42")
    options = {"env": {"TOKEN": "s3 'cr\"3t"}, "sweep": {"lr": "1e-3"}}
    first = await run(folder, "train.py", **options)
    assert first == (1, "/work /outputs ['--lr=1e-3'] '' 42 s3 'cr\"3t\n[]\n", str(folder / "outputs/train"))
    second = await run(folder, "train.py", attempt=2, id="j1", **options)
    assert second[0] == 0, second[1]
    assert text_of(folder / "outputs/train") == {"state": "12", "latest": "12"}
    assert os.stat(folder / "outputs/train/state").st_uid == os.geteuid()

    cells = ("%load_ext jupyter_gpufit", "%%gpufit other\nimport os\nprint(os.getcwd(), lr)", "1 / 0")
    notebook(folder, *cells)
    code, text, home = await run(folder, "run.ipynb", id="j2", sweep={"lr": "0.5"})
    assert (code, home) == (1, str(folder / "outputs/train-2")), text
    assert text.startswith("/work 0.5\n")
    assert "ZeroDivisionError" in text
    assert outputs_of(f"{home}/run.ipynb") == ["", "", "/work 0.5\n", "ZeroDivisionError"]

    code, text, home = await run(folder, "train.py", id="j3", launcher="torchrun")
    assert (code, home) == (90, None)
    assert text.startswith(f"gpufit: image {run.spec.image} has no torchrun for /usr/bin/python3; ")

    code, text, _ = await run(None, 'echo "$PWD $GPUFIT_OUTPUTS"; exit 3', id="j4")
    assert (code, text) == (3, "/work /outputs\n")


async def test_files_for_what_runs(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data/x").write_text("42")
    wait = "until [ -s data/x ]; do sleep 0.1; done"
    await run.begin(None, f"{wait}; mkdir new; cat data/x > new/y; mv new runs; sleep 1000")
    running = msgspec.structs.replace(run.allocation, state=State.RUNNING)
    transfers = Transfers(OneUnit(run.launcher, running, run.unit), lambda node: run.spec, tmp_path / "store")
    sent = await done(transfers, transfers.begin(running, "upload", str(folder), ["data"]))
    assert (sent.failed, sent.message) == (False, f"1 file (2 B) copied to train on {run.spec.name}")
    missing = await done(transfers, transfers.begin(running, "download", str(folder), ["nothing"]))
    assert missing.failed
    assert "nothing" in missing.message
    while (await done(transfers, transfers.begin(running, "download", str(folder), ["runs/y", "/work/data"]))).failed:
        pass  # it is not there yet
    assert text_of(folder) == {"data/x": "42", "runs/y": "42"}
    await run.launcher.stop(run.unit)

"""Jobs from submit to their end, by all the rooms together, in real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.kernels.service import Service, open_service
from jupyter_gpufit.models import Allocation, EndReason, State

from .conftest import asked, names_in, text_of

PATIENCE = 60.0
TRAIN = """
import json, os, pathlib, sys, time
state = pathlib.Path(os.environ["GPUFIT_OUTPUTS"], "state.json")
steps = json.loads(state.read_text()) if state.exists() else []
print("from", len(steps), flush=True)
for step in range(len(steps), 4):
    steps.append(os.environ["GPUFIT_ATTEMPT"])
    state.write_text(json.dumps(steps))
    if step == 1 and "--fail" in sys.argv:
        sys.exit("no more")
    while step == 1 and os.path.exists("wait"):
        time.sleep(0.05)
"""


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[Service]:
    service = await open_service(tmp_path / "gpufit.toml", store=tmp_path / "store", keep=True)
    try:
        await service.settled()
        yield service
    finally:
        await service.close(keep=True)


async def until(service: Service, id: str, *states: State) -> Allocation:
    async with asyncio.timeout(PATIENCE):
        now = await service.scheduler.changed(id, -1, PATIENCE)
        while now.state not in states:
            now = await service.scheduler.changed(id, now.version, PATIENCE)
    return now


@pytest.fixture(autouse=True)
def here(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFIT_CLAIMS_DIR", str(tmp_path / "claims"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "gpufit.toml").write_text('[[node]]\nname = "here"\nreport = "simulated:2xA100-40GB"\n')
    (folder / "train.py").write_text(TRAIN)


async def test_a_job_that_fails_goes_on_from_its_checkpoint(tmp_path: Path, folder: Path) -> None:
    async with opened(tmp_path) as service:
        request = asked(folder, "train.py", args=("--fail",), retries=1)
        [made] = await service.scheduler.submit(request, "ann")
        ended = await until(service, made.id, State.ENDED)
        assert (ended.reason, ended.exit_code, ended.attempt) == (EndReason.FINISHED, 0, 2), ended.message
        assert ended.outputs == str(folder / "outputs" / ended.name)
        assert text_of(Path(ended.outputs)) == {"state.json": '["1", "1", "2", "2"]'}
        log = await service.scheduler.logs(made.id)
        assert log.text.splitlines() == ["from 0", "no more", "from 2"]
    assert names_in(tmp_path / "store/jobs") == []


async def test_a_job_outlives_its_server(tmp_path: Path, folder: Path) -> None:
    (folder / "wait").write_text("")
    async with opened(tmp_path) as service:
        [made] = await service.scheduler.submit(asked(folder, "train.py"), "ann")
        await until(service, made.id, State.RUNNING)
        while "from 0" not in (await service.scheduler.logs(made.id)).text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (folder / "wait").unlink()
    async with opened(tmp_path) as service:
        ended = await until(service, made.id, State.ENDED)
        assert (ended.reason, ended.exit_code, ended.attempt) == (EndReason.FINISHED, 0, 1), ended.message
        assert text_of(folder / "outputs") == {f"{ended.name}/state.json": '["1", "1", "1", "1"]'}
        assert (await service.scheduler.logs(made.id)).text == "from 0\n"


async def test_a_sweep_and_what_is_refused(tmp_path: Path, folder: Path) -> None:
    async with opened(tmp_path) as service:
        with pytest.raises(InvalidValue, match=r"did you mean train\.py"):
            await service.scheduler.submit(asked(folder, "trian.py"), "ann")
        assert service.scheduler.allocations(ended=True) == []
        assert names_in(folder) == ["train.py"]
        request = asked(folder, 'echo {lr} > "$GPUFIT_OUTPUTS/lr"')
        made = await service.scheduler.submit(request, "ann", {"lr": ["1e-3", "a b"]})
        for one in made:
            assert (await until(service, one.id, State.ENDED)).reason is EndReason.FINISHED
        assert sorted(text_of(folder / "outputs").values()) == ["1e-3\n", "a b\n"]

"""NVML hangs, crashes and answers nonsense in its process; there is an answer all the same, and one child at most."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.reporting import PATIENCE, Machine, children, gone, until
from standins import nvml
from standins.nvml import GIB, StandinGpu

from jupyter_gpufit.models import Report
from jupyter_gpufit.reporting.sampler import Sampler

GOOD = StandinGpu("GPU-a", memory_used=GIB)
HANGS = StandinGpu("GPU-a", faults={"memory": "hang"})
CRASHES = StandinGpu("GPU-a", faults={"memory": "crash"})


@pytest.fixture
async def impatient(machine: Machine) -> AsyncIterator[Sampler]:
    """Takes a child for hung as soon as a machine with one slow core allows."""
    sampler = Sampler(answer_within=1.0, open_within=PATIENCE)
    yield sampler
    await sampler.close()
    assert children(os.getpid()) == []


async def recovered(sampler: Sampler) -> Report:
    """The next report without an error; meanwhile there is never more than one child."""
    for _ in range(int(PATIENCE / 0.1)):
        report = await sampler.fetch(PATIENCE)
        assert len(children(os.getpid())) <= 1
        if report.error is None:
            return report
        await asyncio.sleep(0.1)
    raise AssertionError(report.error)


async def test_a_hung_child_leaves_the_last_report_its_age_and_the_reason(machine: Machine, impatient: Sampler) -> None:
    machine.has(GOOD)
    good = await impatient.fetch(PATIENCE)
    hung = impatient.pid
    assert hung is not None
    machine.has(HANGS)
    at_once = await impatient.fetch(0.05)
    assert at_once.gpus == good.gpus
    assert at_once.age > 0
    report = await impatient.fetch(PATIENCE)
    assert report.gpus == good.gpus
    assert report.age >= 1.0
    assert "did not answer within 1 s" in (report.error or "")
    assert gone(hung)
    machine.has(GOOD)
    report = await recovered(impatient)
    assert impatient.pid not in (None, hung)
    assert report.age < 60
    assert report.gpus == good.gpus


async def test_report_answers_at_once_while_nvml_hangs(machine: Machine, impatient: Sampler) -> None:
    machine.has(GOOD)
    good = await impatient.fetch(PATIENCE)
    machine.has(HANGS)
    read = asyncio.create_task(impatient.fetch(PATIENCE))
    ages = []
    while not read.done():
        assert impatient.report().gpus == good.gpus
        ages.append(impatient.report().age)
        await asyncio.sleep(0.02)
    assert len(ages) > 5, "the loop went on meanwhile"
    assert ages == sorted(ages)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV])
async def test_a_dead_child_is_replaced(machine: Machine, impatient: Sampler, number: signal.Signals) -> None:
    machine.has(GOOD)
    good = await impatient.fetch(PATIENCE)
    dead = impatient.pid
    assert dead is not None
    os.kill(dead, number)
    await until(lambda: gone(dead), "the child ends")
    report = await impatient.fetch(PATIENCE)
    assert number.name in (report.error or "")
    assert report.gpus == good.gpus
    assert (await recovered(impatient)).gpus == good.gpus


async def test_nvml_crashes_its_process(machine: Machine, impatient: Sampler) -> None:
    machine.has(CRASHES)
    report = await impatient.fetch(PATIENCE)
    assert "SIGABRT" in (report.error or "")
    assert report.gpus == (), "nothing was ever read"
    machine.has(GOOD)
    assert [gpu.uuid for gpu in (await recovered(impatient)).gpus] == ["GPU-a"]


async def test_restarts_back_off(machine: Machine, impatient: Sampler) -> None:
    machine.has(CRASHES)
    pids = set()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        read = asyncio.create_task(impatient.fetch(PATIENCE))
        while not read.done():
            pids |= {impatient.pid}
            await asyncio.sleep(0.005)
        assert read.result().error
    assert 1 <= len(pids - {None}) <= 4, "0.5, 1, 2 s apart, however often one asks"


async def test_faults_are_remembered_across_children(machine: Machine, impatient: Sampler) -> None:
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-b"))
    await impatient.fetch(PATIENCE)
    machine.has(CRASHES)
    await impatient.fetch(PATIENCE)
    machine.has(StandinGpu("GPU-a"))
    report = await recovered(impatient)
    assert {gpu.uuid: gpu.health for gpu in report.gpus} == {"GPU-a": "ok", "GPU-b": "lost"}


async def test_a_child_that_cannot_be_killed_is_not_replaced(machine: Machine) -> None:
    def in_the_driver(process: Process) -> None:
        """SIGKILL has no effect on a process that waits in the driver."""

    sampler = Sampler(answer_within=1.0, open_within=PATIENCE, kill=in_the_driver)
    try:
        machine.has(GOOD)
        good = await sampler.fetch(PATIENCE)
        stuck = sampler.pid
        assert stuck is not None
        machine.has(HANGS)
        for _ in range(3):
            report = await sampler.fetch(PATIENCE)
            assert "cannot be killed" in (report.error or "")
            assert report.gpus == good.gpus
            assert children(os.getpid()) == [stuck]
        machine.has(GOOD)
        os.kill(stuck, signal.SIGKILL)  # the driver lets it go
        await until(lambda: gone(stuck), "the child ends")
        assert (await recovered(sampler)).gpus == good.gpus
        assert sampler.pid not in (None, stuck)
    finally:
        sampler._kill = Process.kill
        await sampler.close()


async def test_many_ask_at_once_and_there_is_one_child(machine: Machine, sampler: Sampler) -> None:
    machine.has(GOOD)
    reports = await asyncio.gather(*(sampler.fetch(PATIENCE) for _ in range(20)))
    assert len({report.time for report in reports}) == 1
    assert len(children(os.getpid())) == 1


async def test_giving_up_on_an_answer_does_not_spoil_the_next(machine: Machine, sampler: Sampler) -> None:
    machine.has(GOOD)
    await sampler.fetch(PATIENCE)
    machine.has(StandinGpu("GPU-a", faults={"memory": "slow:200"}))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sampler.fetch(PATIENCE), 0.05)
    machine.has(StandinGpu("GPU-b"))
    await sampler.fetch(PATIENCE)
    assert "GPU-b" in {gpu.uuid for gpu in (await sampler.fetch(PATIENCE)).gpus}


async def test_close_ends_a_hung_child_and_may_come_twice(machine: Machine) -> None:
    machine.has(HANGS)
    sampler = Sampler(PATIENCE, PATIENCE)
    report = await sampler.fetch(0.5)
    assert "not been read yet" in (report.error or "")
    await until(lambda: sampler.pid is not None, "a child is started")
    pid = sampler.pid
    assert pid is not None
    await sampler.close()
    await sampler.close()
    assert gone(pid)
    with pytest.raises(RuntimeError):
        await sampler.fetch(1)


async def test_what_nvml_prints_does_not_get_between_the_answers(
    machine: Machine, sampler: Sampler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pynvml\n"
        "count = pynvml.nvmlDeviceGetCount\n"
        "def talkative():\n"
        "    os.write(1, b'NVML: hello\\n')\n"
        "    return count()\n"
        "pynvml.nvmlDeviceGetCount = talkative\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    machine.has(GOOD)
    for _ in range(2):
        assert (await sampler.fetch(PATIENCE)).error is None


async def test_a_child_that_answers_nonsense(
    machine: Machine, impatient: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = (sys.executable, "-c", "input(); print('{\"report\": 1}', flush=True); input()")
    monkeypatch.setattr("jupyter_gpufit.reporting.sampler._COMMAND", fake)
    report = await impatient.fetch(PATIENCE)
    assert "does not answer with a reading" in (report.error or "")
    monkeypatch.undo()


async def test_a_program_in_the_working_directory_is_not_run(
    machine: Machine, impatient: Sampler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('wrong file')")
    monkeypatch.chdir(tmp_path)
    machine.has(GOOD)
    assert (await impatient.fetch(PATIENCE)).error is None


@pytest.mark.parametrize("gpu", [GOOD, HANGS], ids=["at rest", "hung"])
async def test_the_child_dies_with_its_parent(machine: Machine, gpu: StandinGpu) -> None:
    machine.has(gpu)
    code = (
        "import asyncio\n"
        "from jupyter_gpufit.reporting.sampler import Sampler\n"
        "async def main():\n"
        "    sampler = Sampler(600, 600)\n"
        "    await sampler.fetch(1)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        await until(lambda: children(parent.pid), "a child is started")
        (child,) = children(parent.pid)
        await asyncio.sleep(0.5)  # so that it hangs by now, if it is to
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: gone(child), "the child follows")


def test_importing_the_room_loads_no_nvml() -> None:
    code = (
        "import sys, jupyter_gpufit.reporting.agent, jupyter_gpufit.reporting.source, jupyter_gpufit.cli.reporter\n"
        "assert 'pynvml' not in sys.modules\n"
        "import jupyter_gpufit.reporting.child\n"
        "assert 'pynvml' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


async def test_a_library_replaced_by_an_update_is_noticed(
    machine: Machine, sampler: Sampler, nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "lib"
    here.mkdir()
    shutil.copy(nvml_library / nvml.LIBRARY, here)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(here))
    machine.has(GOOD)
    good = await sampler.fetch(PATIENCE)
    pid = sampler.pid
    shutil.copy(nvml_library / nvml.LIBRARY, here / "new")
    (here / "new").replace(here / nvml.LIBRARY)
    machine.has(GOOD, faults={"init": "error:18"})  # what was open before does not feel it
    await sampler.fetch(PATIENCE)
    report = await sampler.fetch(PATIENCE)
    assert "different versions" in (report.error or "")
    assert sampler.pid == pid
    machine.has(GOOD)
    assert (await sampler.fetch(PATIENCE)).gpus == good.gpus


async def test_nvml_is_opened_anew_to_see_a_lost_gpu_come_back(
    machine: Machine, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpufit.reporting.sampler._REOPEN_AFTER", 0.0)
    machine.has(GOOD, StandinGpu("GPU-b"))
    await sampler.fetch(PATIENCE)
    machine.has(GOOD, faults={"init": "error:18"})
    report = await sampler.fetch(PATIENCE)
    assert [gpu.health for gpu in report.gpus] == ["ok", "lost"]
    assert report.error is None, "it was not opened anew before"
    report = await sampler.fetch(PATIENCE)
    assert "different versions" in (report.error or ""), "it was opened anew now"

"""A supervisor waits for the next unit of this machine's launchers, and holds nothing and nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from jupyter_gpufit.launching import process, spare, supervise
from jupyter_gpufit.launching.directory import Process
from jupyter_gpufit.launching.supervisor import RUNNING

SAYS_UP = "import time; print('up', flush=True); time.sleep(1000)"
# A server of its own: has a spare one, prints its pid, and waits to be killed. Its child, a fork, outlives it.
SERVER = """
import os, time
from jupyter_gpufit.launching import spare
spare.use("somebody")
spare.make()
if os.fork() == 0:
    time.sleep(5)
    os._exit(0)
print(spare._spare.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SPARE_AFTER", 0.0)


@pytest.fixture
def server():
    """A server that has a spare one; and that one."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as child:
        yield child, Process.of(int(child.stdout.readline()))
        child.kill()


def waiting() -> list[int]:
    """Supervisors of this process that are no unit's."""
    units = {unit.pid for unit in RUNNING.values()}
    found = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child.pid for child in found if supervise.__file__ in child.cmdline() and child.pid not in units]


async def test_the_next_unit_has_the_one_that_waits_and_another_comes(processes, eventually):
    async with processes.opened() as watched:
        (first,) = await eventually(waiting, "one that waits")
        unit = await watched.prepare("GPU-0")
        assert RUNNING[unit.id].pid == first
        await watched.run(unit, SAYS_UP)
        await watched.said(unit, "up")
        (second,) = await eventually(waiting, "another one")
        assert second != first
        await watched.launcher.stop(unit)
        assert Process.of(first) is None
    assert not waiting()
    await processes.clean()


async def test_launchers_share_it_until_the_last_is_closed(processes, eventually):
    async with processes.opened() as one:
        await eventually(waiting, "one that waits")
        async with processes.opened():
            await one.launcher.close()
            assert len(waiting()) == 1
    assert not waiting()


async def test_units_that_come_at_the_same_time_do_not_wait_for_one(processes, eventually):
    async with processes.opened() as watched:
        await eventually(waiting, "one that waits")
        units = [await watched.prepare(uuid) for uuid in processes.uuids]
        assert len({RUNNING[unit.id].pid for unit in units}) == len(units)
        for unit in units:
            await watched.launcher.stop(unit)
    await processes.clean()


async def test_one_that_was_killed_is_not_taken(processes, eventually):
    async with processes.opened() as watched:
        (killed,) = await eventually(waiting, "one that waits")
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: Process.of(killed) is None, "it to end")
        unit = await watched.prepare("GPU-0")
        await watched.run(unit, SAYS_UP)
        await watched.said(unit, "up")
        await watched.launcher.stop(unit)
    await processes.clean()


async def test_it_ends_with_its_server_however_that_ends(server, eventually):
    child, waits = server
    assert waits.lives
    child.kill()
    await eventually(lambda: not waits.lives, "it to end")


def test_nobody_uses_one_and_there_is_none():
    spare.make()
    assert not waiting()

"""What only local processes have to get right: nothing outlives the server, and schedulers know of each other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys

import psutil
import pytest

from jupyter_gpufit.errors import ClaimLost, ImageRefused, LaunchError
from jupyter_gpufit.launching import supervise
from jupyter_gpufit.launching.base import environment
from jupyter_gpufit.launching.directory import ClaimsDirectory, Process, Record, read_claims
from jupyter_gpufit.launching.ports import Ports
from jupyter_gpufit.launching.supervisor import RUNNING
from jupyter_gpufit.models import Claim, Unit

SLEEP = "import time; print('up', flush=True); time.sleep(1000)"
DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(1234567)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(1234567)
"""
# A server of its own: prepares and starts a unit, prints its supervisor's pid, and waits to be killed.
SERVER = """
import asyncio, sys
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.launching.ports import Ports
from jupyter_gpufit.launching.supervisor import RUNNING
from jupyter_gpufit.models import Launch
async def main():
    launcher = make_launcher(NodeSpec(name="here", report="simulated:4xA100-40GB"))
    await launcher.open(print, lambda claims: None)
    launch = Launch(allocation="theirs", scheduler="s9", owner="bob", name="theirs-1", gpus={"GPU-0": 1})
    unit = await launcher.prepare(launch, lambda progress: None)
    await launcher.start(unit, ["{python}", "-c", sys.argv[1]], {"secret": b"x"}, {})
    while "up" not in "".join(piece.text for piece in await launcher.logs(unit)):
        await asyncio.sleep(0.02)
    print(RUNNING[unit.id].pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def living(pids) -> list[int]:
    return [pid for pid in pids if Process.of(pid)]


@pytest.fixture
def server(processes):
    """A server with a unit whose daemon has left it; yields the server and the pids of all that belongs to it."""
    child = subprocess.Popen([sys.executable, "-c", SERVER, DAEMON], stdout=subprocess.PIPE)
    with child:
        supervisor = int(child.stdout.readline())
        unit = supervise.descendants(supervisor)[supervisor]
        assert len(unit) == 2
        yield child, {supervisor, *unit}
        child.kill()
    for pid in living([supervisor, *unit]):  # only when the test failed
        os.kill(pid, signal.SIGKILL)


# --- kill -9 of any one process ---------------------------------------------------------------------------------------


async def test_kill_9_of_the_server_ends_its_units_and_frees_their_gpus(processes, server, eventually):
    child, pids = server
    assert [claim.allocation for claim in read_claims("here")] == ["theirs"]
    child.kill()
    await eventually(lambda: not living(pids), "all it had started to be gone")
    assert read_claims("here") == []
    await processes.clean()


async def test_kill_9_of_the_supervisor_ends_its_unit(processes, server, eventually):
    _, (supervisor, *unit) = server[0], sorted(server[1])  # the oldest
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not living(unit), "what it had started to be gone")
    await processes.clean()


async def test_the_supervisor_killed_is_an_end_like_others(processes):
    async with processes.opened() as watched:
        unit = await watched.prepare("GPU-0")
        await watched.run(unit, DAEMON)
        await watched.said(unit, "up")
        os.kill(RUNNING[unit.id].pid, signal.SIGKILL)
        code, sentence = await watched.ended(unit)
        assert (code, "supervisor" in sentence) == (137, True)
        await processes.clean()
        await watched.launcher.stop(unit)
        assert await watched.printed(unit) == ""


async def test_a_supervisor_that_hangs_is_killed_at_stop(processes, monkeypatch):
    monkeypatch.setattr("jupyter_gpufit.launching.process.STOP_WITHIN", 0.3)
    async with processes.opened() as watched:
        unit = await watched.prepare("GPU-0")
        await watched.run(unit, DAEMON)
        await watched.said(unit, "up")
        os.kill(RUNNING[unit.id].pid, signal.SIGSTOP)
        monkeypatch.undo()
        monkeypatch.setattr("jupyter_gpufit.launching.process.STOP_WITHIN", 3)
        await watched.launcher.stop(unit)
        assert unit.id not in RUNNING


# --- what it runs -----------------------------------------------------------------------------------------------------


async def test_it_runs_in_a_session_of_its_own_with_its_gpus_in_order(processes):
    async with processes.opened(models="/srv/models", workdir="/") as watched:
        unit = await watched.prepare("GPU-3", "GPU-1")
        code = (
            "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'],"
            f"os.environ['GPUFIT_MODELS'], os.getcwd(), os.getsid(0) == os.getpid()); {SLEEP}"
        )
        await watched.run(unit, code, CUDA_VISIBLE_DEVICES="all of them")
        assert (await watched.said(unit, "up")).splitlines()[0] == "GPU-3,GPU-1 PCI_BUS_ID /srv/models / True"
        directory = RUNNING[unit.id].directory
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        await watched.launcher.stop(unit)


def test_the_environment_is_an_allow_list():
    source = {"PATH": "/bin", "LC_ALL": "C", "JUPYTERHUB_API_TOKEN": "x", "JPY_PARENT_PID": "1", "AWS_SECRET": "x"}
    assert environment(source) == {"PATH": "/bin", "LC_ALL": "C"}


async def test_what_it_prints_is_kept_up_to_a_limit(processes, monkeypatch):
    monkeypatch.setattr("jupyter_gpufit.launching.supervisor.LOG_SIZE", 10_000)
    async with processes.opened() as watched:
        unit = await watched.prepare()
        await watched.run(unit, f"for n in range(20_000): print('line', n)\n{SLEEP}")
        logs = await watched.said(unit, "up")
        assert len(logs) <= 10_000
        assert logs.splitlines()[-100:] == [*(f"line {n}" for n in range(19_901, 20_000)), "up"]
        await watched.launcher.stop(unit)


async def test_memory_that_children_share_counts_once(processes):
    async with processes.opened(ram=200 * 2**20) as watched:
        unit = await watched.prepare()
        code = """
import os, time
block = b"x" * (100 * 2**20)
for _ in range(4):
    if os.fork() == 0:
        time.sleep(1000)
time.sleep(1.2)
"""
        await watched.run(unit, code + SLEEP)
        await watched.said(unit, "up")
        await watched.launcher.stop(unit)


async def test_an_image_makes_no_sense_here(processes):
    async with processes.opened() as watched:
        with pytest.raises(ImageRefused, match="has no images"):
            await watched.prepare(image="other/image:1")


async def test_a_new_launcher_takes_up_the_units_of_the_one_before(processes):
    async with processes.opened() as before:
        unit = await before.prepare("GPU-0")
        await before.run(unit, "import sys, time; print('up', flush=True); time.sleep(0.5); sys.exit(4)")
    async with processes.opened(ram=2**40) as after:  # the inventory has changed
        assert await after.ended(unit) == (4, "ended with exit code 4")
        await after.launcher.stop(unit)
    assert before.exits == []


def test_ports_are_held_for_the_kernel_and_for_nobody_else():
    one, two = Ports(), Ports()
    try:
        assert len({*one.numbers, *two.numbers}) == 10
        with pytest.raises(LaunchError, match=str(one.numbers[2])):
            Ports(wanted=one.numbers[2:])
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", one.numbers[0]))
        with socket.socket() as kernel:  # as ZeroMQ does it
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kernel.bind(("127.0.0.1", one.numbers[0]))
            kernel.listen()
        numbers = one.numbers
        one.close()
        one = Ports(wanted=numbers)
        assert one.numbers == numbers
    finally:
        one.close()
        two.close()


# --- claims -----------------------------------------------------------------------------------------------------------


def record(place: str = "here", *, unit: str = "u1", holder: Process | None = None, gpu: str = "GPU-0") -> Record:
    return Record(
        unit=Unit(id=unit, name=unit, node="here", allocation=unit),
        claim=Claim(allocation=unit, scheduler="s1", gpus={gpu: 1}),
        place=place,
        holder=holder or Process.of(os.getpid()),
    )


def test_a_dead_holder_claims_nothing_and_is_removed(tmp_path):
    directory = ClaimsDirectory(tmp_path / "claims")
    me = Process.of(os.getpid())
    directory.claim(record(unit="dead", holder=Process(me.pid, me.start - 1)), {})  # an earlier process with our pid
    directory.claim(record(unit="new"), {})
    assert [found.unit.id for found in directory.records("here")] == ["new"]
    assert [path.name for path in directory.path.glob("*")] == ["new.json"]


def test_simulated_nodes_are_machines_of_their_own(tmp_path):
    directory = ClaimsDirectory(tmp_path / "claims")
    directory.claim(record("node1", unit="u1"), {})
    directory.claim(record("node2", unit="u2"), {})
    with pytest.raises(ClaimLost):
        directory.claim(record("node2", unit="u3"), {})
    assert [claim.allocation for claim in read_claims("node2", directory.path)] == ["u2"]


def test_all_users_may_write_there_and_remove_only_their_own(tmp_path):
    directory = ClaimsDirectory(tmp_path / "claims")
    old = os.umask(0o077)
    try:
        directory.claim(record(), {})
    finally:
        os.umask(old)
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o1777
    assert stat.S_IMODE(directory.file("u1").stat().st_mode) == 0o644


def test_what_is_no_record_is_left_alone(tmp_path):
    directory = ClaimsDirectory(tmp_path / "claims")
    directory.claim(record(), {})
    (directory.path / "other.json").write_text("{}")
    assert len(directory.records("here")) == 1
    assert (directory.path / "other.json").exists()


def test_a_directory_that_cannot_be_used_says_what_to_do(tmp_path):
    (tmp_path / "claims").write_text("a file")
    with pytest.raises(LaunchError, match="GPUFIT_CLAIMS_DIR"):
        ClaimsDirectory(tmp_path / "claims").claim(record(), {})


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "claims").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError):
        ClaimsDirectory(tmp_path / "claims").claim(record(), {})
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_claims_name_the_living_processes_of_a_unit(processes, eventually):
    async with processes.opened() as watched:
        unit = await watched.prepare("GPU-0")
        await watched.run(unit, DAEMON)
        await watched.said(unit, "up")
        (claim,) = read_claims("here")
        assert len(claim.pids) == 2
        assert all("1234567" in " ".join(psutil.Process(pid).cmdline()) for pid in claim.pids)
        await eventually(lambda: watched.claims[-1][0].pids == claim.pids, "the launcher to tell them")
        await watched.launcher.stop(unit)


# --- the supervisor by itself -----------------------------------------------------------------------------------------


def test_it_ends_when_asked_to_by_a_signal(tmp_path):
    (tmp_path / "unit").mkdir()
    config = {"directory": str(tmp_path / "unit"), "record": str(tmp_path / "r"), "log": str(tmp_path / "unit/log")}
    config |= {"log_size": 1000, "ram": None, "outlive": 0}
    command = [sys.executable, "-I", "-S", supervise.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        start = {"do": "start", "argv": [sys.executable, "-c", DAEMON], "env": {}, "cwd": None}
        for message in ({"do": "begin", **config}, start):
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        pid = json.loads(process.stdout.readline())["pid"]
        process.terminate()
        assert [json.loads(line)["event"] for line in process.stdout] == ["gone"]
    assert not living([pid])
    assert not (tmp_path / "unit").exists()


def test_descendants_ends_with_the_living():
    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo; wait"], stdout=subprocess.PIPE, process_group=0) as shell:
        shell.stdout.readline()
        below = supervise.descendants(shell.pid)[shell.pid]
        assert [psutil.Process(pid).name() for pid in below] == ["sleep"]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert supervise.descendants(shell.pid)[shell.pid] == set()


async def test_a_command_arrives_whole_however_little_the_pipe_takes_at_once(processes):
    async with processes.opened() as watched:
        unit = await watched.prepare("GPU-0")
        line = RUNNING[unit.id]._line
        write = line.write
        line.write = lambda data: write(data[:1000])
        await watched.run(unit, f"print('u' + 'p', flush=True); {'#' * 100_000}")
        await watched.said(unit, "up")
        await watched.launcher.stop(unit)
        await processes.clean()

"""A local unit that outlives its server is taken over by the next one, or ends by itself when none comes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpufit.errors import NodeUnreachable
from jupyter_gpufit.launching import line, supervise
from jupyter_gpufit.launching.directory import ClaimsDirectory, Process
from jupyter_gpufit.models import Unit, decode, encode
from jupyter_gpufit.scheduling.needs import KILLED

# A server of its own: prepares and starts a unit, prints it, and waits to be killed.
SERVER = """
import asyncio, json, os, sys
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.launching.supervisor import RUNNING
from jupyter_gpufit.models import Launch, encode
async def main(outlive, code):
    launcher = make_launcher(NodeSpec(name="here", report="simulated:4xA100-40GB"))
    await launcher.open(print, lambda claims: None)
    ram = int(os.environ.get("RAM", 0)) or None
    launch = Launch(
        allocation="a", scheduler="s1", owner="bob", name="theirs-1", gpus={"GPU-0": 1}, outlive=outlive, ram=ram
    )
    unit = await launcher.prepare(launch, lambda progress: None)
    if code:
        await launcher.start(unit, ["{python}", "-c", code], {}, {})
        while "up" not in "".join(piece.text for piece in await launcher.logs(unit)):
            await asyncio.sleep(0.02)
    print(json.dumps([RUNNING[unit.id].pid, encode(unit).decode()]), flush=True)
    await asyncio.sleep(1000)
asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
"""
TAKES_OVER = """
import asyncio, sys
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Unit, decode
async def main(unit):
    launcher = make_launcher(NodeSpec(name="here", report="simulated:4xA100-40GB"))
    await launcher.open(print, lambda claims: None)
    await launcher.take_over(decode(unit, Unit))
    print("taken", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main(sys.argv[1]))
"""
TALKS = "import signal, time; print('up', flush=True)\nwhile True: time.sleep(0.05); print('on', flush=True)"


class Left:
    """A server with one unit."""

    def __init__(self, outlive: float, code: str, errors: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(outlive), code],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(Path(os.environ["GPUFIT_CLAIMS_DIR"]).parent)},
        )
        assert self.process.stdout is not None
        self.supervisor, unit = json.loads(self.process.stdout.readline())
        self.unit: Unit = decode(unit, Unit)
        self.pids = {self.supervisor, *supervise.descendants(self.supervisor)[self.supervisor]}

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait()

    @property
    def directory(self) -> Path:
        """The unit's own."""
        return Path(ClaimsDirectory().record(self.unit.id).directory)

    @property
    def living(self) -> set[int]:
        return {pid for pid in self.pids if Process.of(pid)}


def taken_over_and_killed(unit: Unit) -> None:
    with subprocess.Popen([sys.executable, "-c", TAKES_OVER, encode(unit).decode()], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"taken\n"
        server.kill()


@pytest.fixture
def left(processes) -> Iterator[type[Left]]:
    made: list[Left] = []

    class Made(Left):
        def __init__(self, outlive: float = 600, code: str = TALKS, errors: int | None = None) -> None:
            super().__init__(outlive, code, errors)
            made.append(self)

    yield Made
    for one in made:
        one.kill()
        one.process.stdout.close()
        for pid in one.living:  # only when the test failed
            os.kill(pid, signal.SIGKILL)


async def test_the_next_server_goes_on_with_it(left, processes, eventually):
    server = left()
    server.kill()
    assert server.living == server.pids, "all of it goes on"
    async with processes.opened() as next_one:
        launcher, unit = next_one.launcher, server.unit
        assert next_one.held == {"a"}, "its GPU stays claimed meanwhile"
        await launcher.take_over(unit)
        assert launcher.exit_code(unit) is None
        printed = len(await next_one.printed(unit))
        assert printed, "what it printed before is there"
        for _ in range(200):
            if len(await next_one.printed(unit)) > printed:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("it prints no more")
        await launcher.take_over(unit)  # again: nothing to do
        await launcher.stop(unit)
        assert launcher.exit_code(unit) == KILLED
        assert server.living == set()
    await processes.clean()


async def test_its_log_goes_on_where_the_server_before_had_read(left, processes, eventually):
    server = left(code="import time\nfor n in range(10**6): print(n, 'up', flush=True); time.sleep(0.01)")
    log = sorted(server.directory.glob("log.*"))[0]
    await eventually(lambda: log.stat().st_size > 100, "some lines")
    read = log.read_text()[: log.read_text().index("9 up") + 5]
    server.kill()
    async with processes.opened() as next_one:
        await next_one.launcher.take_over(server.unit)
        rest = await next_one.printed(server.unit, after=f"{len(read):020d}")
        assert rest.startswith("10 up\n")
        await next_one.launcher.halt(server.unit, 5)
        assert next_one.launcher.exit_code(server.unit) == 128 + signal.SIGTERM
        assert next_one.exits == []
        await next_one.launcher.stop(server.unit)
    await processes.clean()


async def test_its_end_is_news_for_the_server_that_took_it_over(left, processes, eventually):
    server = left()
    server.kill()
    async with processes.opened() as next_one:
        await next_one.launcher.take_over(server.unit)
        main = (server.pids - {server.supervisor}).pop()
        os.kill(main, signal.SIGTERM)
        await eventually(lambda: next_one.exits, "its end to be told")
        [(unit, code, sentence)] = next_one.exits
        assert (unit.id, code) == (server.unit.id, 128 + signal.SIGTERM)
        assert "SIGTERM" in sentence
        await next_one.launcher.stop(server.unit)
    await processes.clean()


async def test_one_that_ended_while_nobody_watched(left, processes, eventually):
    server = left(
        code="import time; print('up', flush=True); time.sleep(0.5); print('last words', flush=True); exit(7)"
    )
    server.kill()
    await eventually(lambda: len(server.living) == 1, "the unit to end")
    async with processes.opened() as next_one:
        await next_one.launcher.take_over(server.unit)
        await eventually(lambda: next_one.launcher.exit_code(server.unit) == 7, "its exit code")
        assert "last words" in await next_one.printed(server.unit)
        await next_one.launcher.stop(server.unit)
    await processes.clean()


async def test_killed_again_and_again(left, processes):
    """Each server takes it over from the one before, the last one stops it."""
    server = left()
    server.kill()
    for _ in range(2):
        await asyncio.to_thread(taken_over_and_killed, server.unit)
        assert server.living == server.pids
    async with processes.opened() as last:
        await last.launcher.stop(server.unit)  # it need not be taken over first
        assert server.living == set()
    await processes.clean()


async def test_a_living_servers_unit_is_not_taken_away(left, processes, monkeypatch):
    monkeypatch.setattr(line, "LET_IN_WITHIN", 0.3)
    server = left()
    async with processes.opened() as other:
        with pytest.raises(NodeUnreachable, match="does not answer"):
            await other.launcher.take_over(server.unit)
        assert other.launcher.exit_code(server.unit) is None, "what cannot be asked is not dead"
        assert server.living == server.pids
        server.kill()
        await other.launcher.take_over(server.unit)
        await other.launcher.stop(server.unit)
    await processes.clean()


async def test_its_memory_is_watched_by_what_it_had_asked_for(left, processes, monkeypatch, tmp_path):
    monkeypatch.setenv("RAM", str(128 * 2**20))
    go = tmp_path / "go"
    code = "import os, time; print('up', flush=True)"
    code += f"\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\nx = b'x' * (400 * 2**20); time.sleep(1000)"
    server = left(code=code)
    server.kill()
    async with processes.opened(ram=2**40) as after:
        await after.launcher.take_over(server.unit)
        [claim] = after.claims[-1]
        assert claim.ram == 128 * 2**20
        go.touch()
        assert await after.ended(server.unit) == (KILLED, "killed for memory: limit 128 MiB")
        await after.launcher.stop(server.unit)


async def test_what_others_write_of_a_unit_leads_nowhere(left, processes, tmp_path):
    """The directory of claims is everybody's: a record made up by somebody else must not be followed."""
    server = left()
    server.kill()
    claims = ClaimsDirectory()
    theirs = json.loads(claims.file(server.unit.id).read_bytes()) | {"directory": str(tmp_path)}
    (claims.path / "0.json").write_text(json.dumps(theirs))
    assert claims.record(server.unit.id).directory not in ("", str(tmp_path))
    if os.geteuid() == 0:  # who else can give files away
        os.chown(claims.file(server.unit.id), 65534, -1)
        assert claims.record(server.unit.id) is None
        os.chown(claims.file(server.unit.id), 0, -1)
    (claims.path / "0.json").unlink()
    async with processes.opened() as next_one:
        await next_one.launcher.stop(server.unit)
        assert server.living == set()
    await processes.clean()


async def test_whoever_reads_what_the_server_says_is_told_of_its_end(left, processes):
    """A shell's pipe: it must not stay open for as long as a job."""
    server = left(errors=subprocess.PIPE)
    server.kill()
    with server.process.stderr as errors:
        errors.read()
    assert server.living == server.pids
    async with processes.opened() as next_one:
        await next_one.launcher.take_over(server.unit)
        await next_one.launcher.stop(server.unit)
    await processes.clean()


@pytest.mark.parametrize("code", [TALKS, "print('up', flush=True)", ""], ids=["running", "ended", "prepared"])
async def test_the_next_server_knows_whether_it_was_started(left, processes, code):
    server = left(code=code)
    server.kill()
    async with processes.opened() as next_one:
        await next_one.launcher.take_over(server.unit)
        assert await next_one.launcher.was_started(server.unit) is bool(code)
        await next_one.launcher.stop(server.unit)
        assert not await next_one.launcher.was_started(server.unit)
    await processes.clean()


@pytest.mark.parametrize("code", [TALKS, ""], ids=["running", "prepared"])
async def test_without_another_server_it_ends_in_time(left, processes, eventually, code):
    server = left(outlive=1.0, code=code)
    server.kill()
    await eventually(lambda: server.living == set(), "all of it to end by itself")
    async with processes.opened() as late:
        await late.launcher.take_over(server.unit)
        assert late.launcher.exit_code(server.unit) == KILLED
        await late.launcher.stop(server.unit)
    await processes.clean()


async def test_killed_together_with_its_supervisor(left, processes, eventually):
    """As `pkill -9 python` does: what the unit had forked, and its directory (keys are in it), go with the claim."""
    forks = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'],"
    server = left(code=f"{forks} start_new_session=True)\n{TALKS}")
    assert len(server.pids) == 3
    directory = server.directory
    assert directory.is_dir()
    server.kill()
    os.kill(server.supervisor, signal.SIGKILL)
    await eventually(lambda: not Process.of(server.supervisor), "it to be gone")
    async with processes.opened() as next_one:
        await next_one.launcher.take_over(server.unit)
        assert next_one.launcher.exit_code(server.unit) == KILLED
        assert await next_one.launcher.units() == []
        assert server.living == set()
        assert not directory.exists()
    await processes.clean()

"""What is recorded of requests, for `jupyter gpufit bench policies`: whole lines, nothing of whose they are."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.fakes import node
from helpers.lab import Lab, eventually
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpufit.errors import InvalidValue, NeverFits, NoFit
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.models import Request
from jupyter_gpufit.scheduling import recording
from jupyter_gpufit.scheduling.recording import BEFORE, FILE, MOST_LINE, Recorded, Recorder, append, files, read

IMAGE = NodeSpec(name="").image
LOG = logging.getLogger(__name__)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / FILE).read_text().splitlines()]


def recorded(directory: Path) -> tuple[Recorded, ...]:
    history = read(files(directory))
    assert (history.broken, history.newer) == (0, 0)
    return history.requests


def made(count: int, first: int = 0) -> list[bytes]:
    """Lines of requests."""
    return [
        msgspec.json.encode({"schema": 1, "line": "asked", "id": f"r{number}", "asked": number, "gpus": 1, "memory": 0})
        + b"\n"
        for number in range(first, first + count)
    ]


# --- the scheduler records


async def test_a_life_is_two_lines(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with Lab(node("a", 2, labels={"room": "b12"}), store=tmp_path) as lab:
            wishes: dict[str, Any] = {"memory": "8GiB", "gpu_model": "Fake", "labels": {"room": "b12"}, "time": "2h"}
            allocation = await lab.running(gpus=2, **wishes, wait="5m", priority=3)
            await lab.end(allocation.id)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    first, last = lines(tmp_path)
    assert first == {
        "schema": 1,
        "line": "asked",
        "id": allocation.id,
        "asked": pytest.approx(allocation.created, abs=1),
        "gpus": 2,
        "memory": 8 << 30,
        "gpu_model": "Fake",
        "labels": {"room": "b12"},
        "time": 7200.0,
        "wait": 300.0,
        "priority": 3,
    }
    assert {key: last[key] for key in ("line", "id", "state", "reason", "node")} == {
        "line": "ended",
        "id": allocation.id,
        "state": "ended",
        "reason": "released",
        "node": "a",
    }
    assert first["asked"] <= last["placed"] <= last["started"] <= last["ended"]
    [one] = recorded(tmp_path)
    assert one.request == Request(gpus=2, **wishes, wait="5m", priority=3)
    assert (one.job, one.lifetime) == (False, pytest.approx(last["ended"] - last["placed"]))


async def test_nothing_says_whose_it_is_or_what_it_does(tmp_path: Path) -> None:
    async with Lab(node("a", 2), store=tmp_path / "store") as lab:
        await lab.running(owner="alice", name="thesis", notebook="secret/plan.ipynb", folder="/home/alice/x")
        job = await lab.job(run="steal.py", owner="alice", name="heist", image=IMAGE, job={"env": {"KEY": "hunter2"}})
        lab.ends(job.id)
        await lab.until(job.id, "ended")
    text = (tmp_path / "store" / FILE).read_text()
    for word in ("alice", "thesis", "plan", "home", "steal", "heist", IMAGE, "hunter2", "KEY"):
        assert word not in text
    assert [one.job for one in recorded(tmp_path / "store")] == [False, True]


async def test_refused_ones_too_once_and_no_dry_runs(tmp_path: Path) -> None:
    async with Lab(node("a", 1), store=tmp_path) as lab:
        await lab.running()
        lab.scheduler.explain(Request(gpus=1))
        with pytest.raises(NoFit):
            await lab.request()
        with pytest.raises(NeverFits):
            await lab.request(gpus=3)
        with pytest.raises(NeverFits):
            await lab.submit(gpus=4, sweep={"lr": ["1", "2"]})
        waiting = await lab.request(wait="1h")
        await lab.end(waiting.id)
    found = recorded(tmp_path)
    assert [(one.request.gpus, one.state, one.reason) for one in sorted(found, key=lambda one: one.request.gpus)] == [
        (1, "ended", "released"),
        (1, "refused", "no-fit"),
        (1, "ended", "cancelled"),
        (3, "refused", "never-fits"),
        (4, "refused", "never-fits"),
        (4, "refused", "never-fits"),
    ]
    assert [one.lifetime is None for one in found] == [False, True, True, True, True, True]


async def test_each_job_of_a_sweep_is_a_request(tmp_path: Path) -> None:
    async with Lab(node("a", 2), store=tmp_path) as lab:
        made = await lab.submit(sweep={"lr": ["1", "2", "3"]})
        await asyncio.gather(*(lab.end(one.id) for one in made))
    assert [one.id for one in recorded(tmp_path)] == [one.id for one in made]


async def test_what_one_server_began_the_next_one_ends(tmp_path: Path) -> None:
    first = Lab(node("a", 2), store=tmp_path)
    await first.scheduler.open()
    job = await first.job()
    await first.scheduler.close()
    [one] = recorded(tmp_path)
    assert (one.ended, one.lifetime) == (None, None)
    async with Lab(of=first, store=tmp_path) as again:
        await again.until(job.id, "running")
        await again.end(job.id)
    [one] = recorded(tmp_path)
    assert one.lifetime is not None
    assert one.lifetime > 0


async def test_in_memory_or_when_it_is_turned_off_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Lab(node("a", 1)) as lab:
        await lab.running()
    assert os.listdir(tmp_path) == []
    async with Lab(node("a", 1), store=tmp_path, record_requests=False) as lab:
        await lab.running()
    assert files(tmp_path) == []


async def test_a_full_disk_costs_no_request_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    tried: list[Path] = []
    monkeypatch.setattr(
        recording, "append", lambda directory, lines: tried.append(directory) or append(directory, lines)
    )
    async with Lab(node("a", 1), store=tmp_path) as lab:
        for times in (1, 2, 3):
            await lab.end((await lab.running()).id)
            await eventually(lambda times=times: len(tried) >= times)
    said = [record.getMessage() for record in caplog.records if FILE in record.getMessage()]
    assert len(said) == 1
    assert "No space left on device" in said[0]


async def test_a_disk_that_hangs_costs_a_bounded_number_of_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_WAITING", 5)
    monkeypatch.setattr(recording, "GATHER", 0.01)
    monkeypatch.setattr(recording, "CLOSE_WITHIN", 0.05)
    begun, hangs = threading.Event(), threading.Event()
    monkeypatch.setattr(recording, "append", lambda *_: begun.set() or hangs.wait())
    recorder = Recorder(tmp_path, LOG)
    try:
        recorder.asked("first", Request(), 0)
        await eventually(begun.is_set)
        for number in range(100):
            recorder.asked(f"r{number}", Request(), 0)
        assert recorder._lines.qsize() == 5
        await recorder.close()  # after a moment, whatever the disk does
    finally:
        hangs.set()


def test_a_disk_that_hangs_does_not_keep_a_program_from_its_end(tmp_path: Path) -> None:
    code = """
import asyncio, logging, os, sys, threading
from pathlib import Path
from jupyter_gpufit.models import Request
from jupyter_gpufit.scheduling import recording
begun = threading.Event()
recording.append = lambda *_: begun.set() or threading.Event().wait()
recording.CLOSE_WITHIN = 0.1
async def main():
    recorder = recording.Recorder(Path(sys.argv[1]), logging.getLogger())
    recorder.asked("x", Request(), 0)
    await asyncio.to_thread(begun.wait)
    await recorder.close()
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60).returncode == 0


async def test_a_request_that_is_longer_than_a_page_is_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, LOG)
    recorder.asked("long", Request(gpus=1000, memory=tuple(range(10**9, 10**9 + 1000))), 0)
    recorder.asked("short", Request(gpus=1000, memory=10**9), 0)
    thread = recorder._thread
    await recorder.close()
    assert thread is not None
    assert not thread.is_alive()
    assert [one.id for one in recorded(tmp_path)] == ["short"]


# --- the file


def test_several_processes_write_at_once_and_put_the_full_file_away(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from jupyter_gpufit.scheduling import recording
recording.MOST_BYTES = 50_000
who, directory = sys.argv[1], Path(sys.argv[2])
for number in range(300):
    line = '{"schema":1,"line":"asked","id":"%s-%d","asked":1,"gpus":1,"memory":0}\\n' % (who, number)
    recording.append(directory, [line.encode()])
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(who), str(tmp_path)]) for who in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = recorded(tmp_path)
    assert len(found) == 4 * 300  # all of it is in the two files, and nothing is there twice or in halves
    assert 50_000 <= (tmp_path / BEFORE).stat().st_size < 51_000


def test_one_file_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_BYTES", 500)
    for number in range(40):
        append(tmp_path, made(1, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == [BEFORE, FILE]
    assert all(path.stat().st_size < 700 for path in tmp_path.iterdir())
    ids = [one.id for one in recorded(tmp_path)]
    assert ids == [f"r{number}" for number in range(40 - len(ids), 40)]
    assert len(ids) > 6


def test_many_lines_are_written_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: sizes.append(len(data)) or write(file, data))
    append(tmp_path, made(500))
    assert len(recorded(tmp_path)) == 500
    assert max(sizes) <= MOST_LINE
    assert len(sizes) < 20


@pytest.mark.parametrize("torn", [b'{"schema":1,"line":"as', b"\0" * 100, b"\xff\xfe"])
def test_half_a_line_costs_that_line_alone(torn: bytes, tmp_path: Path) -> None:
    append(tmp_path, made(2))
    with (tmp_path / FILE).open("ab") as file:
        file.write(torn)
    append(tmp_path, made(2, 2))
    history = read(files(tmp_path))
    assert ([one.id for one in history.requests], history.broken) == (["r0", "r1", "r2", "r3"], 1)


def test_what_is_not_known_is_counted_and_left_out(tmp_path: Path) -> None:
    odd: Iterable[bytes] = [
        b'{"schema":2,"line":"asked","id":"n","whatever":[]}\n',
        b'{"schema":1,"line":"moved","id":"n"}\n',
        b'{"schema":1,"line":"asked","id":"n","asked":1,"gpus":0,"memory":0}\n',
        b'{"schema":1,"line":"asked","id":"n","asked":1,"gpus":2,"memory":[1]}\n',
        b'{"schema":1,"line":"asked","id":"n","asked":"soon","gpus":2,"memory":1}\n',
        b'{"schema":1,"line":"asked","id":"n","asked":1e300,"gpus":1,"memory":0}\n',  # no calendar goes so far
        b'{"schema":1,"line":"ended","id":"gone","ended":3,"state":"ended"}\n',  # its first line was put away
        b"[]\n",
        b"\n",
        *made(1),
        *made(1),  # the same file named twice
        b'{"schema":1,"line":"ended","id":"r0","ended":3,"state":"ended","placed":1,"more":"of a later version"}\n',
    ]
    append(tmp_path, odd)
    history = read([tmp_path / FILE, tmp_path / FILE])
    [one] = history.requests
    assert (one.id, one.lifetime) == ("r0", 2)
    assert (history.newer, history.broken) == (4, 10)


@pytest.mark.parametrize("nonsense", [b"[" * 100_000, b'{"x":' + b"[" * 3000, b"\0" * 1_000_000])
def test_nonsense_costs_neither_memory_nor_what_is_behind_it(nonsense: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(nonsense)
    append(tmp_path, made(1))
    tracemalloc.start()
    try:
        history = read(files(tmp_path))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one.id for one in history.requests] == ["r0"]
    assert history.broken > 0
    assert most < 500_000


def test_what_has_no_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_READ", 2**20)
    with pytest.raises(InvalidValue, match="/dev/zero: more than 1 MiB are too much to replay"):
        read([Path("/dev/zero")])


def test_a_job_that_does_not_wait_is_read(tmp_path: Path) -> None:
    append(tmp_path, [made(1)[0].replace(b"}", b',"wait":0.0,"job":true}')])
    [one] = recorded(tmp_path)
    assert (one.request.wait, one.job) == (None, True)


def test_of_several_people_by_time(tmp_path: Path) -> None:
    for person, first in (("a", 3), ("b", 1)):
        (tmp_path / person).mkdir()
        append(tmp_path / person, made(2, first))
    found = read([*files(tmp_path / "a"), *files(tmp_path / "b")]).requests
    assert [one.asked for one in found] == [1, 2, 3, 4]


def test_a_clock_that_was_set_makes_no_lifetime() -> None:
    assert Recorded("x", 0, Request(), False, ended=5, placed=9).lifetime is None
    assert Recorded("x", 0, Request(), False, ended=9, placed=9).lifetime == 0


@given(st.lists(st.one_of(st.binary(), st.sampled_from(made(3)), st.text().map(str.encode)), max_size=8))
def test_whatever_is_in_the_file_is_read(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("odd") / FILE
    path.write_bytes(b"".join(parts))
    history = read([path])
    assert len(history.requests) <= 3
    assert history.broken + history.newer + len(history.requests) <= path.read_bytes().count(b"\n") + 1

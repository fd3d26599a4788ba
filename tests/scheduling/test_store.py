"""The store: what is saved is there after a crash, whatever state the file is in is said in a sentence."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from helpers.lab import eventually

from jupyter_gpufit.errors import StoreError
from jupyter_gpufit.models import Allocation, Placement, Request, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Ledger
from jupyter_gpufit.scheduling.entries import Entry
from jupyter_gpufit.scheduling.store import MEMORY, SCHEMA, Store


def entry(id: str = "x", **more: object) -> Entry:
    """One in the middle of its life."""
    ledger = Ledger("s")
    request = Request(gpus=2, memory=("8GiB", 1), time="2h", labels={"room": "b12"})
    ledger.handle(ev.Requested(id=id, name="train", owner="me", request=request), 1000)
    placement = Placement(node="n1", gpus=("G0", "G1"), memory=(8 << 30, 1))
    ledger.handle(ev.Placed(id=id, placement=placement, cards={"G0": "c"}, totals={"G0": 9}), 1001)
    unit = Unit(id="U", name="u", node="n1", allocation=id, inner_ports=(1, 2), pids=frozenset({4, 5}))
    ledger.handle(ev.Prepared(id=id, unit=unit), 1002)
    for key, value in more.items():
        setattr(ledger.entries[id], key, value)
    return ledger.entries[id]


def store_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpufit store")]


async def test_what_was_saved_is_there_again_as_it_was(tmp_path: Path) -> None:
    store, entries = await Store.open(tmp_path / "new")
    assert entries == []
    store.save(entry("x"))
    store.save(entry("y"))
    store.save(entry("z"))
    store.save(entry("x", tries=7))
    store.forget("y")
    await store.close()
    store, entries = await Store.open(tmp_path / "new")
    assert entries == [entry("x", tries=7), entry("z")]
    await store.close()


async def test_what_was_flushed_survives_kill_9(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, signal, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
from pathlib import Path
from test_store import Store, entry
async def main():
    store, _ = await Store.open(Path({str(tmp_path)!r}))
    store.save(entry("x"))
    await store.flush()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    child = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    store, entries = await Store.open(tmp_path)
    assert entries == [entry("x")]
    await store.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store, _ = await Store.open(tmp_path / "data")
        store.save(entry())
        await store.flush()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()}
        assert modes.keys() >= {"gpufit.sqlite", "gpufit.sqlite-wal"}
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        await store.close()
    finally:
        os.umask(before)


async def test_in_memory_nothing_is_written_and_all_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, entries = await Store.open(MEMORY)
    assert entries == []
    assert store.scheduler
    store.save(entry())
    await store.flush()
    await store.close()
    await store.close()
    store.save(entry())  # after the end: nothing, and no error
    assert os.listdir(tmp_path) == []


async def test_each_opening_has_a_new_id_and_knows_the_former(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        store, _ = await Store.open(tmp_path)
        ids.append(store.scheduler)
        assert store.schedulers == set(ids)
        await store.close()
    assert len(set(ids)) == 3


async def test_a_second_scheduler_takes_the_next_file_even_from_another_process(tmp_path: Path) -> None:
    first, _ = await Store.open(tmp_path)
    second, _ = await Store.open(tmp_path)
    code = f"""
import asyncio
from pathlib import Path
from jupyter_gpufit.scheduling.store import Store
async def main():
    store, _ = await Store.open(Path({str(tmp_path)!r}))
    print(store.path.name)
    await store.close()
asyncio.run(main())
"""
    child = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert [first.path.name, second.path.name, child.stdout.strip()] == [  # type: ignore[union-attr]
        "gpufit.sqlite",
        "gpufit-2.sqlite",
        "gpufit-3.sqlite",
    ], child.stderr
    assert second.scheduler not in first.schedulers
    assert first.scheduler not in second.schedulers
    await first.close()
    await second.close()


async def test_what_dead_schedulers_left_is_taken_over_once(tmp_path: Path) -> None:
    first, _ = await Store.open(tmp_path)
    dead, _ = await Store.open(tmp_path)
    dead.save(entry("left"))
    ended = entry("over")
    ended.allocation = Allocation(id="over", name="n", owner="o", request=Request(), created=1, state=State.ENDED)
    dead.save(ended)
    await dead.close()  # with something live in it, as after a crash
    third, entries = await Store.open(tmp_path)
    assert third.path == dead.path
    assert [each.id for each in entries] == ["over", "left"]
    await third.close()
    await first.close()

    heir, entries = await Store.open(tmp_path)
    assert heir.path == first.path
    assert [each.id for each in entries] == ["left"]
    assert heir.schedulers >= {first.scheduler, dead.scheduler, third.scheduler}
    other, entries = await Store.open(tmp_path)
    assert [each.id for each in entries] == ["over"], "history stays; what is to be cleaned up has a new owner"
    await other.close()
    await heir.close()


@pytest.mark.parametrize("damage", ["rubbish", "cut", "foreign", "newer"])
async def test_a_file_that_cannot_be_used_is_said_with_its_name_and_what_to_do(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "gpufit.sqlite"
    if damage == "rubbish":
        file.write_bytes(b"this is no database at all, but long enough to look at" * 100)
    else:
        store, _ = await Store.open(tmp_path)
        for i in range(200):
            store.save(entry(f"x{i}"))
        await store.close()
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:5000])
        else:
            with sqlite3.connect(file) as connection:
                connection.execute(
                    "DROP TABLE entries" if damage == "foreign" else f"PRAGMA user_version = {SCHEMA + 1}"
                )
            connection.close()
    content = file.read_bytes()
    with pytest.raises(StoreError, match=str(file)) as error:
        await Store.open(tmp_path)
    expected = "update jupyter_gpufit" if damage == "newer" else "move it away"
    assert expected in error.value.message
    if damage in ("rubbish", "newer"):
        assert file.read_bytes() == content, "not touched"
    await eventually(lambda: not store_threads())


async def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="check its permissions"):
        await Store.open(tmp_path / "file" / "store")


async def test_an_entry_that_cannot_be_read_does_not_take_the_others_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = await Store.open(tmp_path)
    store.save(entry("good"))
    await store.close()
    with sqlite3.connect(tmp_path / "gpufit.sqlite") as connection:
        connection.execute("INSERT INTO entries VALUES ('bad', 0, '{\"allocation\": 3}')")
    connection.close()
    store, entries = await Store.open(tmp_path)
    assert [each.id for each in entries] == ["good"]
    assert "allocation bad" in caplog.text
    await store.close()


async def test_a_disk_that_refuses_is_said_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = await Store.open(tmp_path)
    limit = store._connection.execute("PRAGMA max_page_count = 1").fetchone()  # as on a full disk
    big = entry("big", said="x" * 100_000)
    store.save(big)
    with pytest.raises(StoreError, match="cannot be written"):
        await store.flush()
    assert "would not survive a crash" in caplog.text
    assert limit
    store._connection.execute("PRAGMA max_page_count = 100000")
    await store.flush()
    await store.close()
    store, entries = await Store.open(tmp_path)
    assert entries == [big]
    await store.close()


async def test_a_disk_that_has_room_again_is_noticed_without_another_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_gpufit.scheduling.store.AGAIN", 0.02)
    store, _ = await Store.open(tmp_path)
    store._connection.execute("PRAGMA max_page_count = 1")
    store.save(entry("big", said="x" * 100_000))
    with pytest.raises(StoreError, match="cannot be written"):
        await store.flush()
    store._connection.execute("PRAGMA max_page_count = 100000")
    async with asyncio.timeout(20):
        while not store._connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0]:  # noqa: ASYNC110  (nobody says when)
            await asyncio.sleep(0.02)
    await store.close()


async def test_saving_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    store, _ = await Store.open(tmp_path)
    go_on = threading.Event()
    store._thread.submit(go_on.wait)  # a disk that hangs
    for i in range(50):
        store.save(entry(f"x{i}"))
    flushing = asyncio.create_task(store.flush())
    await asyncio.sleep(0.01)
    assert not flushing.done()
    go_on.set()
    await flushing
    await store.close()
    store, entries = await Store.open(tmp_path)
    assert len(entries) == 50
    await store.close()


async def test_those_that_wait_for_the_disk_at_once_wait_for_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await Store.open(tmp_path)
    writes: list[int] = []
    write_now = store._write_now

    def counted(strict: bool) -> None:
        writes.append(len(store._waiting))
        write_now(strict)

    monkeypatch.setattr(store, "_write_now", counted)
    await store.flush()
    assert writes == [], "there is nothing to be written"

    async def save(n: int) -> None:
        store.save(entry(f"x{n}"))
        await store.flush()
        there = await asyncio.get_running_loop().run_in_executor(
            store._thread, lambda: store._connection.execute("SELECT id FROM entries").fetchall()
        )
        assert (f"x{n}",) in there

    await asyncio.gather(*(save(n) for n in range(20)))
    assert sum(writes) == 20
    assert len(writes) < 5
    await store.close()


async def test_an_opening_that_is_cancelled_lets_go_of_the_file(tmp_path: Path) -> None:
    opening = asyncio.create_task(Store.open(tmp_path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await eventually(lambda: not store_threads())
    store, _ = await Store.open(tmp_path)
    assert store.path == tmp_path / "gpufit.sqlite"
    await store.close()


async def test_memories_are_kept_beside_their_entry_and_go_when_told(tmp_path: Path) -> None:
    store, _ = await Store.open(tmp_path)
    store.save(entry("x"))
    store.remember("x", "kernel", b"key of x")
    store.remember("x", "sessions", b"s")
    store.remember("x", "kernel", b"newer key of x")
    store.remember("y", "kernel", b"key of y")
    store.forget_memories("y")
    assert store.memories == {"x": {"kernel": b"newer key of x", "sessions": b"s"}}
    await store.close()
    store, _ = await Store.open(tmp_path)
    assert store.memories == {"x": {"kernel": b"newer key of x", "sessions": b"s"}}
    store.remember("x", "sessions", None)
    await store.close()
    store, _ = await Store.open(tmp_path)
    assert store.memories == {"x": {"kernel": b"newer key of x"}}
    await store.close()


async def test_what_is_forgotten_is_overwritten(tmp_path: Path) -> None:
    store, _ = await Store.open(tmp_path)
    secret = b"the key of a kernel" * 50
    store.remember("x", "kernel", secret)
    await store.flush()
    assert b"the key of a kernel" in content(tmp_path)
    store.forget_memories("x")
    await store.flush()
    await eventually(lambda: b"the key of a kernel" not in content(tmp_path))  # while it is open
    store.remember("y", "kernel", secret)
    await store.flush()
    store.forget_memories("y")
    await store.close()
    assert b"the key of a kernel" not in content(tmp_path)


async def test_what_was_forgotten_by_one_that_was_killed_is_overwritten_by_the_next(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, signal, sys
from pathlib import Path
from jupyter_gpufit.scheduling import store as module
async def main():
    module.TIDY = 3600.0
    store, _ = await module.Store.open(Path({str(tmp_path)!r}))
    await store.kept("x", "log")
    store.remember("x", "kernel", b"the key of a kernel" * 50)
    await store.flush()
    store.forget_memories("x")
    await store.flush()
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    child = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert b"the key of a kernel" in content(tmp_path)
    store, _ = await Store.open(tmp_path)
    assert store.memories == {}
    await eventually(lambda: b"the key of a kernel" not in content(tmp_path))
    await store.close()


def content(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


async def test_memories_of_a_dead_scheduler_are_taken_over_and_are_not_left_there(tmp_path: Path) -> None:
    first, _ = await Store.open(tmp_path)
    dead, _ = await Store.open(tmp_path)
    dead.save(entry("left"))
    dead.remember("left", "kernel", b"the key of a kernel")
    await dead.close()
    await first.close()
    heir, entries = await Store.open(tmp_path)
    assert ([each.id for each in entries], heir.memories) == (["left"], {"left": {"kernel": b"the key of a kernel"}})
    assert heir.path == first.path
    assert dead.path is not None
    assert b"the key" not in dead.path.read_bytes()
    await heir.close()


@pytest.mark.parametrize(("version", "since"), [(1, "memories kept facts"), (2, "kept facts"), (3, "facts")])
async def test_a_file_of_a_version_before_is_taken_up(tmp_path: Path, version: int, since: str) -> None:
    store, _ = await Store.open(tmp_path)
    store.save(entry("x"))
    await store.close()
    with sqlite3.connect(tmp_path / "gpufit.sqlite") as connection:
        for table in since.split():
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    store, entries = await Store.open(tmp_path)
    assert entries == [entry("x")]
    store.remember("x", "kernel", b"k")
    store.keep("x", "log", b"l")
    store.note("mix", b"m")
    await store.close()
    store, _ = await Store.open(tmp_path)
    assert (store.memories, store.facts) == ({"x": {"kernel": b"k"}}, {"mix": b"m"})
    assert await store.kept("x", "log") == b"l"
    await store.close()


async def test_facts_are_of_one_file_and_a_new_one_begins_with_those_it_takes_over(tmp_path: Path) -> None:
    first, _ = await Store.open(tmp_path)
    first.note("mix", b"old")
    first.note("mix", b"first")
    second, _ = await Store.open(tmp_path)
    assert (first.facts, second.facts) == ({"mix": b"first"}, {})
    second.note("mix", b"second")
    second.note("other", b"2")
    second.save(entry("x"))
    await second.close()
    assert [one.id for one in await first.adopt(0)] == ["x"]
    assert first.facts == {"mix": b"first"}, "one that runs knows its own"
    await first.close()
    first.note("mix", b"late")  # after the end: nothing, and no error
    heir, _ = await Store.open(tmp_path)
    assert heir.facts == {"mix": b"first", "other": b"2"}
    (tmp_path / "gpufit-3.sqlite").touch()
    third, _ = await Store.open(tmp_path)
    assert (third.path, third.facts) == (second.path, {"mix": b"second", "other": b"2"})
    await third.close()
    await heir.close()


async def test_a_fact_that_a_full_disk_refused_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = await Store.open(tmp_path)
    store._connection.execute("PRAGMA query_only = ON")
    store.note("mix", b"1")
    with pytest.raises(StoreError, match="cannot be written"):
        await store.flush()
    store._connection.execute("PRAGMA query_only = OFF")
    await store.close()
    store, _ = await Store.open(tmp_path)
    assert store.facts == {"mix": b"1"}
    await store.close()


async def test_what_was_a_model_of_gpu_is_called_so(tmp_path: Path) -> None:
    store, _ = await Store.open(tmp_path)
    store.save(entry("x"))
    store.save(entry("y"))
    await store.close()
    file = tmp_path / "gpufit.sqlite"
    with sqlite3.connect(file) as connection:
        (data,) = connection.execute("SELECT data FROM entries WHERE id = 'x'").fetchone()
        old = msgspec.json.decode(data)
        old["allocation"]["request"]["model"] = "*A100*"
        connection.execute("UPDATE entries SET data = ? WHERE id = 'x'", (msgspec.json.encode(old),))
        connection.execute("INSERT INTO entries VALUES ('z', 0, ?)", (b"no entry",))
        connection.execute("DROP TABLE kept")
        connection.execute("DROP TABLE facts")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    store, entries = await Store.open(tmp_path)
    asked = {one.id: (one.allocation.request.gpu_model, one.allocation.request.model) for one in entries}
    assert asked == {"x": ("*A100*", None), "y": (None, None)}
    await store.close()
    with sqlite3.connect(file) as connection:
        (kept,) = connection.execute("SELECT data FROM entries WHERE id = 'z'").fetchone()
    connection.close()
    assert kept == b"no entry", "who knows what it is"


async def test_what_is_kept_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    store, _ = await Store.open(tmp_path)
    store.save(entry("x"))
    store.keep("x", "log", b"1")
    store.keep("x", "usage", b"u")
    assert await store.kept("x", "log") == b"1", "not written yet"
    await store.flush()
    store.keep("x", "log", b"2")
    store.keep("x", "usage", None)
    store.keep("nobody", "log", b"3")
    assert (await store.kept("x", "log"), await store.kept("x", "usage")) == (b"2", None)
    await store.close()
    assert await store.kept("x", "log") is None, "closed"
    heir, _ = await Store.open(tmp_path)
    assert (await heir.kept("x", "log"), await heir.kept("nobody", "log")) == (b"2", None)
    heir.forget("x")
    assert await heir.kept("x", "log") is None
    await heir.flush()
    assert await heir.kept("x", "log") is None
    await heir.close()


async def test_what_a_dead_one_kept_is_taken_over_with_its_entry(tmp_path: Path) -> None:
    first, _ = await Store.open(tmp_path)
    second, _ = await Store.open(tmp_path)
    second.save(entry("x"))
    second.keep("x", "log", b"1")
    await second.close()
    await first.close()
    heir, entries = await Store.open(tmp_path)
    assert (first.alone, second.alone, heir.alone) == (True, False, True)
    assert ([one.id for one in entries], await heir.kept("x", "log")) == (["x"], b"1")
    with sqlite3.connect(tmp_path / "gpufit-2.sqlite") as connection:
        assert connection.execute("SELECT * FROM kept").fetchall() == []
    connection.close()
    await heir.close()


async def test_embedded_schedulers_have_files_of_their_own(tmp_path: Path) -> None:
    server, _ = await Store.open(tmp_path)
    server.save(entry("of-server"))
    await server.close()
    program, entries = await Store.open(tmp_path, embedded=True)
    assert (entries, program.path) == ([], tmp_path / "embedded.sqlite")
    other, _ = await Store.open(tmp_path, embedded=True)
    assert other.path == tmp_path / "embedded-2.sqlite"
    assert not program.alone, "who knows"
    late, _ = await Store.open(tmp_path)
    assert not late.alone
    await late.close()
    assert server.scheduler not in other.schedulers
    program.save(entry("of-program"))
    other.save(entry("of-other"))
    await program.close()
    next_program, entries = await Store.open(tmp_path, embedded=True)
    assert [each.id for each in entries] == ["of-program"], "and not what is in use, or a server's"
    await next_program.close()
    next_server, entries = await Store.open(tmp_path)
    assert {each.id for each in entries} == {"of-server", "of-program"}
    assert program.scheduler in next_server.schedulers
    assert other.scheduler not in next_server.schedulers
    await next_server.close()
    await other.close()


# --- what others leave while this one goes on


async def test_what_one_that_ended_left_is_adopted_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    here, _ = await Store.open(tmp_path)
    ours = here.schedulers
    ending, _ = await Store.open(tmp_path)
    going, _ = await Store.open(tmp_path)
    program, _ = await Store.open(tmp_path, embedded=True)
    over = entry("over")
    over.allocation = msgspec.structs.replace(over.allocation, state=State.ENDED)
    for store, left in ((ending, entry("left")), (ending, over), (going, entry("other")), (program, entry("p"))):
        store.save(left)
    ending.keep("left", "log", b"lines")
    for store in (ending, going, program):
        await store.flush()
    assert await here.adopt(0) == []
    await ending.close()
    await program.close()
    assert await here.adopt(0) == [entry("left"), entry("p")]
    assert ours is here.schedulers
    assert ours == {here.scheduler, ending.scheduler, program.scheduler}
    assert await here.kept("left", "log") == b"lines"
    assert await here.adopt(0) == [], "once"
    await here.close()
    await going.close()
    heir, entries = await Store.open(tmp_path)
    assert {each.id for each in entries} == {"left", "p", "other"}, "it was in the file of the one that took it"
    await heir.close()


async def test_a_kernel_that_waits_for_its_server_is_left_to_it_for_a_while(tmp_path: Path) -> None:
    here, _ = await Store.open(tmp_path)
    ended, _ = await Store.open(tmp_path)
    ended.save(entry("left"))
    ended.remember("left", "kernel", b"the key of a kernel")
    await ended.close()
    assert await here.adopt(1000) == []
    again, entries = await Store.open(tmp_path)
    assert ([each.id for each in entries], again.path) == (["left"], ended.path)
    assert await here.adopt(0) == [], "in use again"
    await again.close()
    assert await here.adopt(0) == [entry("left")]
    assert here.memories == {"left": {"kernel": b"the key of a kernel"}}
    await here.close()


async def test_of_two_that_look_at_once_one_takes_it(tmp_path: Path) -> None:
    stores = [(await Store.open(tmp_path))[0] for _ in range(3)]
    stores[2].save(entry("left"))
    await stores[2].close()
    taken = await asyncio.gather(stores[0].adopt(0), stores[1].adopt(0))
    taken += await asyncio.gather(stores[0].adopt(0), stores[1].adopt(0))
    assert sorted(map(len, taken)) == [0, 0, 0, 1]
    for store in stores[:2]:
        await store.close()


async def test_what_cannot_be_written_here_stays_where_it_was(tmp_path: Path) -> None:
    here, _ = await Store.open(tmp_path)
    ended, _ = await Store.open(tmp_path)
    ended.save(entry("left", said="x" * 100_000))
    await ended.close()
    here._connection.execute("PRAGMA max_page_count = 1")  # as on a full disk
    with pytest.raises(StoreError, match="cannot be used"):
        await here.adopt(0)
    assert here.schedulers == {here.scheduler}
    here._connection.execute("PRAGMA max_page_count = 100000")
    assert [each.id for each in await here.adopt(0)] == ["left"]
    await here.close()


async def test_what_cannot_be_removed_there_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, _ = await Store.open(tmp_path)
    ended, _ = await Store.open(tmp_path)
    ended.save(entry("left"))
    await ended.close()

    def fail(there: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("jupyter_gpufit.scheduling.store._empty", fail)
    assert [each.id for each in await here.adopt(0)] == ["left"]
    other, entries = await Store.open(tmp_path)
    assert (entries, await other.adopt(0), await here.adopt(0)) == ([], [], [])
    await other.close()
    await here.close()

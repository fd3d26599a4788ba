"""What every launcher owes its scheduler: the same tests on local processes and on a real Docker engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import random
import socket
import tarfile
import time
from pathlib import Path

import psutil
import pytest

from jupyter_gpufit.errors import ClaimLost, LaunchError, NotFound
from jupyter_gpufit.launching.machine import this_machine
from jupyter_gpufit.scheduling.logs import text_of

SLEEP = "import time; print('up', flush=True); time.sleep(1000)"

# A child, a grandchild in a session of its own, and an orphan that has left session and parent: each says how it ends.
FAMILY = """
import os, signal, subprocess, sys, time
child = '''
import sys, time
print("up", sys.argv[1], flush=True)
try:
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", sys.argv[1], flush=True)
'''
def start(name, **how):
    return subprocess.Popen([sys.executable, "-c", child, name], **how)
start("child")
start("session", start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        start("orphan").wait()
    os._exit(0)
os.wait()
try:
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted main", flush=True)
    time.sleep(1000)
"""


def family() -> list[int]:
    """Pids of all that `FAMILY` started, also in containers."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "time.sleep(1000)" in " ".join(process.cmdline()) and "KeyboardInterrupt" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


# --- the whole story --------------------------------------------------------------------------------------------------


async def test_a_kernel_sees_exactly_its_gpus_and_leaves_nothing(place, watched, kernel, evaluate):
    asked = [place.uuids[2], place.uuids[0]]
    unit = await watched.prepare(*asked)
    client = await kernel(watched, unit)
    visible = "__import__('os').environ['NVIDIA_VISIBLE_DEVICES']"
    assert await evaluate(client, visible) == repr(",".join(asked))
    assert watched.launcher.exit_code(unit) is None
    assert unit.allocation in watched.held

    await watched.launcher.stop(unit)
    assert unit.allocation not in watched.held  # already, so that the next request finds these GPUs free
    assert not place.left()
    assert watched.launcher.exit_code(unit) is not None
    assert watched.exits == []  # an end that was asked for is no news


async def test_how_large_the_machine_is_is_told_at_first_and_of_an_engine_again(place, watched, eventually):
    if place.engine is None:
        machine = this_machine()
        expected = machine.cpus, machine.ram
    else:
        about = place.engine.client().info()
        expected = about["NCPU"], about["MemTotal"]
    assert watched.hosts == [expected]
    assert min(expected) > 0
    watched.launcher.doubt()
    if place.engine is not None:
        await eventually(lambda: watched.hosts == [expected] * 2, "the engine to be reached anew")


async def test_what_is_asked_of_the_machine_is_claimed(place, watched, eventually):
    asked = await watched.prepare(place.uuids[0], cpus=0.5, ram=256 * 2**20)
    other = await watched.prepare(place.uuids[1])
    await watched.run(asked, f"import os; print('threads', os.environ['OMP_NUM_THREADS']); {SLEEP}")
    await watched.run(other, f"import os; print('threads', os.environ.get('OMP_NUM_THREADS')); {SLEEP}")
    assert "threads 1\n" in await watched.said(asked, "up")
    assert "threads None\n" in await watched.said(other, "up")
    async with place.opened("s2") as later:
        await eventually(lambda: later.held >= {asked.allocation, other.allocation}, "the claims")
        found = {claim.allocation: (claim.cpus, claim.ram) for claim in later.claims[-1]}
    assert found == {asked.allocation: (0.5, 256 * 2**20), other.allocation: (0, 0)}
    await watched.launcher.stop(other)
    await watched.launcher.stop(asked)
    await place.clean()


async def test_what_another_scheduler_has_of_the_machine_is_left_to_it(place, watched, eventually):
    [(cores, size)] = await eventually(lambda: watched.hosts, "the machine")
    async with place.opened("s2") as other:
        first = await watched.prepare(place.uuids[0], cpus=cores - 0.5, ram=size // 2)
        with pytest.raises(ClaimLost, match=rf"{cores - 0.5:g} of its {cores:g} cores are held by allocation a\d+"):
            await other.prepare(place.uuids[1], cpus=1)
        with pytest.raises(ClaimLost, match=r"of its RAM is left beside allocation a\d+ of ann"):
            await other.prepare(place.uuids[1], ram=size // 2 + 2**30)
        assert len(await other.launcher.units()) == 1, "what lost is undone"
        second = await other.prepare(place.uuids[1], cpus=0.5, ram=size // 4)
        third = await other.prepare(place.uuids[2])  # asks for none
        for unit in (second, third):
            await other.launcher.stop(unit)
        await watched.launcher.stop(first)
        whole = await other.prepare(place.uuids[1], cpus=cores, ram=size)
        await other.launcher.stop(whole)
    await place.clean()


async def test_without_gpus_none_are_visible(watched):
    unit = await watched.prepare()
    await watched.run(unit, f"import os; print('sees', os.environ['NVIDIA_VISIBLE_DEVICES']); {SLEEP}")
    assert "sees void" in await watched.said(unit, "up")
    await watched.launcher.stop(unit)


async def test_files_command_and_environment_arrive(watched, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "hub-secret")
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    files = {"deep/er/file": b"con\0tent", "other": b""}
    awkward = 'it\'s $HOME "and" `more`\nlines \\ é'
    code = (
        """
import os, sys
print([open(os.environ["FILE"], "rb").read(), sys.argv[1:], os.environ["AWKWARD"]])
print("others may read:", oct(os.stat(os.environ["FILE"]).st_mode & 0o077))
print([name for name in os.environ if name.startswith("JPY") or name.startswith("JUPYTERHUB")], flush=True)
open(os.environ["FILE"], "wb").write(b"changed"); print("written", flush=True)
"""
        + SLEEP
    )
    unit = await watched.prepare()
    command = ["{python}", "-c", code, "{gpufit}", awkward]
    await watched.launcher.start(unit, command, files, {"FILE": "{gpufit}/deep/er/file", "AWKWARD": awkward})
    logs = await watched.said(unit, "written")
    directory = logs.split("'")[3]
    assert logs.splitlines()[0] == repr([b"con\0tent", [directory, awkward], awkward])
    assert "others may read: 0o0" in logs
    assert "\n[]\n" in logs
    await watched.launcher.stop(unit)


async def test_a_file_outside_its_directory_is_refused_and_undone(place, watched):
    unit = await watched.prepare(place.uuids[0])
    with pytest.raises(LaunchError, match="outside"):
        await watched.run(unit, SLEEP, {"../evil": b""})
    await place.clean()


# --- how units end ----------------------------------------------------------------------------------------------------


async def test_an_end_is_told_once_with_code_and_sentence(watched):
    unit = await watched.prepare()
    assert not await watched.launcher.was_started(unit)
    await watched.run(unit, "import time; time.sleep(0.3); raise SystemExit(7)")
    assert await watched.launcher.was_started(unit)
    assert await watched.ended(unit) == (7, "ended with exit code 7")
    assert await watched.launcher.was_started(unit), "and has ended"
    assert watched.launcher.exit_code(unit) == 7
    assert watched.launcher.describe_exit(unit) == "ended with exit code 7"
    await asyncio.sleep(0.1)
    await watched.launcher.stop(unit)
    assert len(watched.exits) == 1
    assert watched.launcher.exit_code(unit) == 7


async def test_a_unit_that_ends_while_starting_tells_its_last_50_lines(place, watched):
    unit = await watched.prepare(place.uuids[0])
    code = (
        "for n in range(60): print('line', n, flush=True)\nimport sys; print('no driver', file=sys.stderr); sys.exit(3)"
    )
    try:
        await watched.run(unit, code)
    except LaunchError as caught:  # at once, and then it is undone
        how, logs = caught.message, caught.details["logs"]
    else:  # a moment later
        how, logs = (await watched.ended(unit))[1], await watched.printed(unit, 50)
        await watched.launcher.stop(unit)
    await place.clean()
    assert "ended with exit code 3" in how
    lines = logs.splitlines()
    assert len(lines) == 50
    assert "no driver" in lines
    assert "line 59" in lines
    assert "line 5" not in lines


async def test_killed_by_a_signal(watched):
    unit = await watched.prepare()
    await watched.run(unit, "import os, time; time.sleep(0.3); os.kill(os.getpid(), 11)")
    assert await watched.ended(unit) == (139, "killed by SIGSEGV (exit code 139)")
    await watched.launcher.stop(unit)


@pytest.mark.parametrize("asked", [None, 128 * 2**20])
async def test_killed_for_memory_says_so_with_the_limit(place, asked):
    """What it asked for; of one that asked for none, what the inventory says."""
    async with place.opened(ram=2**30 if asked else 128 * 2**20) as watched:
        unit = await watched.prepare(place.uuids[0], ram=asked)
        await watched.run(
            unit, "import time; time.sleep(0.3); x = b'x' * (400 * 2**20); print('fits'); time.sleep(1000)"
        )
        assert await watched.ended(unit) == (137, "killed for memory: limit 128 MiB")
        await watched.launcher.stop(unit)


async def test_an_end_for_memory_is_told_with_its_own_limit_whatever_the_inventory_says_now(place):
    async with place.opened() as before:
        unit = await before.prepare(place.uuids[0], ram=128 * 2**20)
        await before.run(
            unit, "import time; print('up', flush=True); time.sleep(1.5); x = b'x' * (400 * 2**20); time.sleep(1000)"
        )
        await before.said(unit, "up")
    async with place.opened(ram=2**40) as after:
        await after.launcher.take_over(unit)
        assert await after.ended(unit) == (137, "killed for memory: limit 128 MiB")
        await after.launcher.stop(unit)
    await place.clean()


async def test_a_command_that_is_not_there(place, watched):
    unit = await watched.prepare(place.uuids[0])
    try:
        await watched.launcher.start(unit, ["/no/such/program"], {}, {})
    except LaunchError as caught:
        said = caught.message + caught.details["logs"]
    else:
        await watched.ended(unit)
        said = await watched.printed(unit)
        await watched.launcher.stop(unit)
    assert "/no/such/program" in said
    await place.clean()


async def test_starting_again_what_was_stopped_is_refused(watched):
    unit = await watched.prepare()
    await watched.launcher.stop(unit)
    with pytest.raises(LaunchError):
        await watched.run(unit, SLEEP)


# --- while it runs ----------------------------------------------------------------------------------------------------


async def test_interrupt_reaches_children_and_what_has_left(watched):
    unit = await watched.prepare()
    await watched.run(unit, FAMILY)
    for name in ("child", "session", "orphan"):
        await watched.said(unit, f"up {name}")
    await watched.launcher.interrupt(unit)
    for name in ("child", "session", "orphan", "main"):
        await watched.said(unit, f"interrupted {name}")
    assert watched.launcher.exit_code(unit) is None
    await watched.launcher.stop(unit)


async def test_interrupt_stops_a_cell_that_has_children(place, watched, kernel, evaluate):
    unit = await watched.prepare(place.uuids[0])
    client = await kernel(watched, unit)
    busy = client.execute("import subprocess; print('up', flush=True); subprocess.run(['sleep', '1000'])")
    while "up" not in (await client.get_iopub_msg(timeout=60))["content"].get("text", ""):
        pass
    await watched.launcher.interrupt(unit)
    while (reply := await client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != busy:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert await evaluate(client, "1 + 1") == "2"
    await watched.launcher.stop(unit)


async def test_stop_ends_what_has_left_too(place, watched):
    unit = await watched.prepare(place.uuids[0])
    await watched.run(unit, FAMILY)
    for name in ("child", "session", "orphan"):
        await watched.said(unit, f"up {name}")
    assert len(family()) == 5
    await watched.launcher.stop(unit)
    assert family() == []
    assert not place.left()


async def test_stop_in_every_state_and_again(place, watched):
    prepared = await watched.prepare(place.uuids[0])
    running = await watched.prepare(place.uuids[1])
    await watched.run(running, SLEEP)
    ended = await watched.prepare(place.uuids[2])
    await watched.run(ended, "import time; time.sleep(0.2)")
    await watched.ended(ended)
    for unit in (prepared, running, ended):
        await asyncio.gather(watched.launcher.stop(unit), watched.launcher.stop(unit))
        await watched.launcher.stop(unit)
    assert not place.left()
    assert watched.held == set()
    assert len(watched.exits) == 1


async def test_grace_lets_it_finish(place, watched):
    unit = await watched.prepare()
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); " + SLEEP
    await watched.run(unit, code)
    await watched.said(unit, "up")
    began = time.monotonic()
    await watched.launcher.stop(unit, grace=60)
    assert time.monotonic() - began < 50  # it did not have to be killed
    assert not place.left()


async def test_logs_and_their_tail(watched):
    unit = await watched.prepare()
    assert await watched.printed(unit) == ""
    await watched.run(unit, f"for n in range(100): print('line', n)\n{SLEEP}")
    logs = await watched.said(unit, "up")
    assert logs.splitlines() == [*(f"line {n}" for n in range(100)), "up"]
    assert (await watched.printed(unit, 2)).splitlines() == ["line 99", "up"]
    await watched.launcher.stop(unit)
    assert await watched.printed(unit) == ""


async def test_logs_go_on_after_a_mark_also_when_it_has_ended(watched):
    """Each piece once, in order, whatever it is: a long line, half a line, letters of several bytes."""
    lines = "".join([*(f"line {n}\n" for n in range(3000)), "ä" * 40_000 + "\n", "10 %\r20 %\r", "done €\n", "no end"])
    code = "import sys, time\nfor n in range(3000): print('line', n)\nprint('ä' * 40_000, flush=True)\n"
    code += "sys.stdout.write('10 %\\r20 %\\r'); sys.stdout.flush(); time.sleep(0.1); print('done €', flush=True)\n"
    code += "sys.stdout.write('no end'); sys.stdout.flush(); time.sleep(0.3)"
    unit = await watched.prepare()
    await watched.run(unit, code, PYTHONIOENCODING="utf-8")
    heard, mark = "", ""
    while heard != lines:
        for piece in await watched.launcher.logs(unit, after=mark):
            assert piece.mark > mark
            heard, mark = heard + piece.text, piece.mark
        assert lines.startswith(heard)
        await asyncio.sleep(0.02)
    await watched.ended(unit)
    assert await watched.launcher.logs(unit, after=mark) == ()
    assert await watched.printed(unit, after="no mark") == lines
    some = await watched.launcher.logs(unit, 2)
    assert text_of(some) == "10 %\r20 %\rdone €\nno end"
    assert text_of(await watched.launcher.logs(unit, after=some[0].mark)).endswith("no end")
    assert text_of(await watched.launcher.logs(unit, after=(await watched.launcher.logs(unit))[-3].mark)) in (
        "done €\nno end",
        "10 %\r20 %\rdone €\nno end",
    )
    await watched.launcher.stop(unit)


# --- files ------------------------------------------------------------------------------------------------------------


def made_tar(path: Path, files: dict[str, bytes | str | None]) -> Path:
    """A tar: bytes are a file, text is where a link leads, `None` is a directory."""
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.uid = info.gid = 12345
            info.uname = info.gname = "somebody"
            info.mtime, info.mode = 1_000_000_000, 0o4750 if isinstance(content, bytes) else 0o755
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                info.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
                info.linkname = content or ""
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def read_tar(path: Path) -> dict[str, bytes | None]:
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() if m.isreg() else None for m in tar}


async def test_a_jobs_files_go_in_and_what_it_makes_comes_back(watched, tmp_path):
    launcher, mib = watched.launcher, 2**20
    unit = await watched.prepare(workspace=True)
    long = "directory-" * 12 + "/" + "ä" * 60 + "x" * 60
    block = random.Random(1).randbytes(3 * mib)
    files = {".": None, "sub": None, "sub/data": block, long: b"long", "link": "sub/data", "empty": b""}
    await launcher.put(unit, made_tar(tmp_path / "in.tar", files), watched.progress.append)
    assert {p.phase for p in watched.progress} == {"creating", "uploading"}
    assert max(p.current or 0 for p in watched.progress) <= (tmp_path / "in.tar").stat().st_size
    before = made_tar(tmp_path / "outputs.tar", {"checkpoint": b"41"})
    await launcher.put(unit, before, watched.progress.append, "{outputs}")
    code = f"""
import hashlib, os, stat, sys
out = sys.argv[1]
print(os.getcwd() == sys.argv[2], hashlib.sha256(open("link", "rb").read()).hexdigest(), open({long!r}).read())
found = os.stat("sub/data")
print(found.st_uid == os.getuid(), oct(stat.S_IMODE(found.st_mode)), int(found.st_mtime))
step = int(open(out + "/checkpoint").read()) + 1
open(out + "/checkpoint", "w").write(str(step)); os.mkdir(out + "/more"); open(out + "/more/big", "wb").truncate(50_000)
open("made here", "w").close()
print("up", flush=True)
"""
    command = ["{python}", "-c", code, "{outputs}", "{work}"]
    endpoint = await launcher.start(unit, command, {}, {})
    assert endpoint is not None
    assert (await watched.ended(unit))[0] == 0
    assert (await watched.printed(unit)).splitlines()[:2] == [
        f"True {hashlib.sha256(block).hexdigest()} long",
        "True 0o750 1000000000",
    ]
    with pytest.raises(NotFound, match="none"):
        await launcher.fetch(unit, "{outputs}/none", tmp_path / "out.tar", mib, print)
    with pytest.raises(LaunchError, match="more than"):
        await launcher.fetch(unit, "{outputs}", tmp_path / "out.tar", 40_000, print)
    assert not (tmp_path / "out.tar").exists()
    await launcher.fetch(unit, "{outputs}", tmp_path / "out.tar", mib, watched.progress.append)
    assert read_tar(tmp_path / "out.tar") == {
        "outputs": None,
        "outputs/checkpoint": b"42",
        "outputs/more": None,
        "outputs/more/big": bytes(50_000),
    }
    await launcher.fetch(unit, "made here", tmp_path / "one.tar", mib, watched.progress.append)
    assert read_tar(tmp_path / "one.tar") == {"made here": b""}
    assert watched.progress[-1].phase == "collecting"
    await launcher.stop(unit)
    with pytest.raises(NotFound):
        await launcher.fetch(unit, "{outputs}", tmp_path / "out.tar", mib, print)


async def test_files_go_to_a_running_unit_too_and_never_out_of_their_directory(place, watched, tmp_path):
    launcher = watched.launcher
    unit = await watched.prepare()
    await watched.run(unit, SLEEP)
    await watched.said(unit, "up")
    target = "{gpufit}/new/deep"
    await launcher.put(unit, made_tar(tmp_path / "a.tar", {"a": b"1", "out": "/tmp"}), print, target)
    await launcher.put(unit, made_tar(tmp_path / "a.tar", {"a": b"2"}), print, target)
    for name in ("../b", "/b", "c/../../b"):
        with pytest.raises(LaunchError, match="outside"):
            await launcher.put(unit, made_tar(tmp_path / "b.tar", {name: b"b"}), print, target)
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:513])
    with pytest.raises(LaunchError, match=r"no tar file|ends in the middle"):
        await launcher.put(unit, tmp_path / "b.tar", print, target)
    with pytest.raises(LaunchError, match=r"cannot read .*none\.tar"):
        await launcher.put(unit, tmp_path / "none.tar", print, target)
    with pytest.raises(LaunchError, match="deep/a"):
        await launcher.put(unit, tmp_path / "a.tar", print, target + "/a")
    await launcher.fetch(unit, target, tmp_path / "out.tar", 2**20, print)
    assert read_tar(tmp_path / "out.tar") == {"deep": None, "deep/a": b"2", "deep/out": None}
    await launcher.stop(unit)
    with pytest.raises(LaunchError, match="gone"):
        await launcher.put(unit, tmp_path / "a.tar", print)
    await place.clean()


async def test_what_is_carried_can_be_cancelled(place, watched, tmp_path):
    launcher = watched.launcher
    unit = await watched.prepare(workspace=True)
    await launcher.start(unit, ["{python}", "-c", f"open('big', 'wb').truncate(2**33); {SLEEP}"], {}, {})
    await watched.said(unit, "up")
    started = asyncio.Event()

    def hear(progress) -> None:
        if progress.current:
            started.set()

    info = tarfile.TarInfo("endless")
    info.size = 2**36
    (tmp_path / "endless.tar").write_bytes(info.tobuf())
    os.truncate(tmp_path / "endless.tar", 2**36 + 1024)  # takes no room on this disk
    for carrying in (
        launcher.fetch(unit, "big", tmp_path / "big.tar", 2**40, hear),
        launcher.put(unit, tmp_path / "endless.tar", hear),
    ):
        started.clear()
        task = asyncio.create_task(carrying)
        async with asyncio.timeout(30):
            await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not (tmp_path / "big.tar").exists()
    await launcher.stop(unit)
    await place.clean()


# --- halted -----------------------------------------------------------------------------------------------------------


async def test_halted_it_ends_and_stays_and_is_no_news(place, watched, tmp_path):
    launcher = watched.launcher
    gentle = """
import signal, sys, time
def end(*_):
    open("last", "w").write("words"); print("told to end", flush=True); sys.exit(3)
signal.signal(signal.SIGTERM, end)
"""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    for code, ends in ((gentle, 3), (deaf, 137)):
        unit = await watched.prepare(place.uuids[0], workspace=True)
        await launcher.halt(unit, 5)  # it has not begun
        await launcher.start(unit, ["{python}", "-c", code + SLEEP], {}, {})
        await watched.said(unit, "up")
        await launcher.halt(unit, 30 if ends == 3 else 0.2)
        assert launcher.exit_code(unit) == ends
        assert not launcher.failed_with_node(unit)
        await launcher.halt(unit, 30)  # again: nothing to do
        assert "up" in await watched.printed(unit)
        if ends == 3:
            await launcher.fetch(unit, "last", tmp_path / "last.tar", 2**20, print)
            assert read_tar(tmp_path / "last.tar") == {"last": b"words"}
        await launcher.stop(unit)
        assert launcher.exit_code(unit) == ends
        await launcher.halt(unit, 1)
    assert watched.exits == []
    await place.clean()


async def test_a_job_that_ends_at_once_is_not_undone(watched):
    unit = await watched.prepare(workspace=True)
    await watched.run(unit, "print('so short'); raise SystemExit(5)")
    assert (await watched.ended(unit))[0] == 5
    assert "so short" in await watched.printed(unit)
    await watched.launcher.stop(unit)


async def test_a_folder_that_is_not_there(place, tmp_path):
    gone = str(tmp_path / "gone")
    async with place.opened(shared=(str(tmp_path),)) as watched:
        with pytest.raises(LaunchError, match=f"the folder '{gone}' is not"):
            await watched.prepare(place.uuids[0], folder=gone)
    await place.clean()


async def test_it_works_in_its_folder(place, tmp_path):
    folder = tmp_path / "a folder, with: 'odd' name, ü"
    folder.mkdir()
    (folder / "data").write_text("d")
    async with place.opened(shared=(str(tmp_path),)) as watched:
        for wishes in ({}, {"workspace": True}):
            unit = await watched.prepare(folder=str(folder), **wishes)
            code = "import os, sys; print(os.getcwd(), sys.argv[1], open('data').read()); open('made', 'w').close(); "
            code += "assert os.access(os.path.expanduser('~'), os.W_OK); "
            await watched.launcher.start(unit, ["{python}", "-c", code + SLEEP, "{work}"], {}, {})
            assert (await watched.said(unit, "up")).splitlines()[0] == f"{folder} {folder} d"
            assert (folder / "made").stat().st_uid == os.getuid()
            (folder / "made").unlink()
            await watched.launcher.stop(unit)
    await place.clean()


# --- restart ----------------------------------------------------------------------------------------------------------


async def test_a_restart_has_the_same_ports(place, watched, kernel, evaluate):
    first = await watched.prepare(place.uuids[0])
    ports = (await watched.run(first, SLEEP)).ports
    await watched.launcher.stop(first)
    second = await watched.prepare(place.uuids[0], allocation=first.allocation, host_ports=ports)
    assert second.id != first.id
    client = await kernel(watched, second)
    assert (client.shell_port, client.control_port) == (ports[0], ports[4])
    assert await evaluate(client, "2 * 3") == "6"
    await watched.launcher.stop(second)


async def test_a_port_that_was_taken_meanwhile_is_named(place, watched):
    with contextlib.ExitStack() as stack:
        if place.engine is None:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        else:
            taken = 23456
            other = place.engine.client().containers.run(
                place.spec.image, ["sleep", "1000"], ports={"1/tcp": taken}, detach=True
            )
            stack.callback(other.remove, force=True)
        ports = (taken, *(taken + n for n in range(1, 5)))
        with pytest.raises(LaunchError, match="in use by another program") as caught:
            await watched.run(await watched.prepare(place.uuids[0], host_ports=ports), SLEEP)
        assert str(taken) in caught.value.message
        assert len(place.left()) == (0 if place.engine is None else 1)


# --- claims -----------------------------------------------------------------------------------------------------------


async def test_all_see_the_claims_of_all(place, watched, eventually):
    async with place.opened("s2") as other:
        mine = await watched.prepare(place.uuids[0])
        await eventually(lambda: mine.allocation in other.held, "the other to hear of it")
        theirs = await other.prepare(place.uuids[1])
        await other.run(theirs, SLEEP)
        await eventually(lambda: theirs.allocation in watched.held, "us to hear of it")
        found = {unit.allocation: claim for unit, claim in await watched.launcher.units()}
        assert found.keys() == {mine.allocation, theirs.allocation}
        claim = found[theirs.allocation]
        assert (claim.scheduler, claim.owner, claim.gpus) == ("s2", "ann", {place.uuids[1]: 2**30})
        assert claim.container or await eventually(
            lambda: any(claim.pids for claim in watched.claims[-1]), "its processes to be known"
        )
        await other.launcher.stop(theirs)
        await eventually(lambda: theirs.allocation not in watched.held, "us to hear of its end")
        await watched.launcher.stop(mine)
        assert await watched.launcher.units() == []


async def test_a_claim_that_does_not_fit_loses_and_leaves_nothing(place, watched):
    async with place.opened("s2") as other:
        mine = await watched.prepare(place.uuids[0], place.uuids[1])
        with pytest.raises(ClaimLost, match=rf"{place.uuids[1]} is held by allocation {mine.allocation} of ann"):
            await other.prepare(place.uuids[1], place.uuids[2])
        free = await other.prepare(place.uuids[2])
        assert len(await other.launcher.units()) == 2
        await other.launcher.stop(free)
        await watched.launcher.stop(mine)


async def test_shared_claims_are_added_up(place, watched):
    gib = 2**30
    wishes = {"shared": True, "totals": {place.uuids[0]: 2 * gib}}
    async with place.opened("s2") as other:
        first = await watched.prepare(place.uuids[0], **wishes)
        second = await other.prepare(place.uuids[0], **wishes)
        with pytest.raises(ClaimLost, match="no 1 GiB left to share"):
            await watched.prepare(place.uuids[0], **wishes)
        with pytest.raises(ClaimLost):
            await watched.prepare(place.uuids[0])
        await other.launcher.stop(second)
        await watched.launcher.stop(first)
    await place.clean()


async def test_hammering_schedulers_never_both_hold_and_both_make_progress(place):
    rounds, uuids = 3, place.uuids[:2]
    holders: dict[str, str] = {}
    got = {"s1": 0, "s2": 0}

    async def hammer(watched) -> None:
        chance = random.Random(watched.scheduler)
        while got[watched.scheduler] < rounds:
            wanted = chance.choice([uuids, uuids[:1], uuids[1:]])
            try:
                unit = await watched.prepare(*wanted)
            except ClaimLost:
                await asyncio.sleep(chance.uniform(0.01, 0.1))
                continue
            await watched.run(unit, SLEEP)
            for uuid in wanted:
                assert holders.setdefault(uuid, watched.scheduler) == watched.scheduler, "held twice"
            await asyncio.sleep(chance.uniform(0, 0.05))
            for uuid in wanted:
                del holders[uuid]
            await watched.launcher.stop(unit)
            got[watched.scheduler] += 1

    async with place.opened("s1") as one, place.opened("s2") as two:
        await asyncio.wait_for(asyncio.gather(hammer(one), hammer(two)), 120)
    assert got == {"s1": rounds, "s2": rounds}
    await place.clean()


# --- cancelled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
async def test_a_launch_cancelled_anywhere_leaves_nothing(place, watched, part):
    async def launch() -> None:
        unit = await watched.prepare(place.uuids[0])
        await watched.run(unit, SLEEP)
        finished.append(unit)

    finished: list = []
    began = time.monotonic()
    await launch()
    whole = time.monotonic() - began
    await watched.launcher.stop(finished.pop())

    task = asyncio.create_task(launch())
    await asyncio.sleep(whole * part / 4)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if finished:  # it was faster this time
        await watched.launcher.stop(finished.pop())
    elif place.left():  # cancelled between `prepare` and `start`, where it is the scheduler's to stop
        for unit, _ in await watched.launcher.units():
            await watched.launcher.stop(unit)
    assert not place.left()
    assert watched.exits == []

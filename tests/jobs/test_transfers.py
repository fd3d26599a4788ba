"""Files to and from a running allocation: what is copied, what is refused, how it is followed and ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpufit.errors import Conflict, InvalidValue, NodeUnreachable, NotFound
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.jobs import transfers as module
from jupyter_gpufit.jobs.transfers import Transfers
from jupyter_gpufit.models import Allocation, Job, Progress, Request, State

from .conftest import DOCKER, PROCESS, DirectoryLauncher, OneUnit, done, granted, names_in, text_of, unit

PATIENCE = 30.0
MIB = 2**20


@pytest.fixture
def running() -> Allocation:
    return msgspec.structs.replace(granted(Request(gpus=2)), state=State.RUNNING)


@pytest.fixture
async def transfers(launcher: DirectoryLauncher, running: Allocation, tmp_path: Path) -> AsyncIterator[Transfers]:
    (launcher.path / "work").mkdir(parents=True)
    made = Transfers(
        OneUnit(launcher, running, unit(running)), lambda node: DOCKER, tmp_path / "store", upload_limit=MIB
    )
    yield made
    await made.close()
    assert list((tmp_path / "store").glob("*")) == []


async def test_upload(transfers: Transfers, running: Allocation, folder: Path, launcher: DirectoryLauncher) -> None:
    (folder / "data/__pycache__").mkdir(parents=True)
    (folder / "data/x").write_text("1")
    (folder / "a.py").write_text("22")
    began = transfers.begin(running, "upload", str(folder), ["data/", "a.py"])
    assert (began.version, began.done, began.do, began.files) == (0, False, "upload", ("data/", "a.py"))
    ended = await done(transfers, began)
    assert (ended.failed, ended.message) == (False, "2 files (3 B) copied to train on gpu01")
    assert ended.version > 0
    assert (launcher.path / "work/data/x").read_text() == "1"
    assert not (launcher.path / "work/data/__pycache__").exists()
    assert await transfers.latest(ended.id, ended.version, PATIENCE) == ended  # at once


async def test_download(transfers: Transfers, running: Allocation, folder: Path, launcher: DirectoryLauncher) -> None:
    (launcher.path / "work/runs/1").mkdir(parents=True)
    (launcher.path / "work/runs/1/model").write_text("new")
    (launcher.path / "outputs").mkdir()
    (launcher.path / "outputs/log").write_text("l")
    (folder / "runs/1").mkdir(parents=True)
    (folder / "runs/1/model").write_text("old")
    (folder / "runs/1/mine").write_text("m")
    ended = await done(transfers, transfers.begin(running, "download", str(folder), ["runs/1", "{outputs}/log"]))
    assert (ended.failed, ended.message) == (False, f"2 files (4 B) copied to {folder}")
    assert text_of(folder) == {"runs/1/model": "new", "runs/1/mine": "m", "log": "l"}


async def test_download_of_all(transfers: Transfers, running: Allocation, folder: Path, launcher) -> None:
    (launcher.path / "work/x").write_text("1")
    assert not (await done(transfers, transfers.begin(running, "download", str(folder), ["."]))).failed
    assert names_in(folder) == ["x"]


@pytest.mark.parametrize(
    ("do", "paths", "why"),
    [
        ("upload", ["../outside"], "is not in"),
        ("upload", ["link"], "leads out of"),
        ("upload", ["nothing"], "there is no nothing in"),
        ("upload", [], "0 paths are given"),
        ("upload", [""], "a path is empty"),
        ("download", ["../x"], "leads out of the directory it works in; give an absolute path"),
        ("download", ["/etc/../x"], "/etc/../x has '..' in it; write the path without that"),
        ("download", ["a/../../x"], "leads out"),
        ("download", ["/"], "is all there is"),
        ("sideways", ["x"], "neither"),
    ],
)
async def test_what_is_refused_at_once(
    transfers: Transfers, running: Allocation, folder: Path, do: str, paths: list[str], why: str
) -> None:
    (folder.parent / "outside").write_text("")
    (folder / "link").symlink_to("../outside")
    with pytest.raises(InvalidValue, match=why) as error:
        transfers.begin(running, do, str(folder), paths)
    assert "\n" not in error.value.message


async def test_folders_that_are_refused(transfers: Transfers, running: Allocation, folder: Path) -> None:
    with pytest.raises(InvalidValue, match="give an absolute path"):
        transfers.begin(running, "upload", "relative", ["x"])
    with pytest.raises(InvalidValue, match="is no folder on this machine"):
        transfers.begin(running, "download", str(folder / "nothing"), ["x"])


async def test_only_what_runs(transfers: Transfers, running: Allocation, folder: Path) -> None:
    waiting = msgspec.structs.replace(running, state=State.PENDING)
    with pytest.raises(Conflict, match="'train' is pending; files are copied while it runs"):
        transfers.begin(waiting, "download", str(folder), ["x"])


@pytest.mark.parametrize("prepare", ["missing", "unreachable", "too large", "leads out", "evil"])
async def test_what_fails_later(
    transfers: Transfers, running: Allocation, folder: Path, launcher: DirectoryLauncher, prepare: str
) -> None:
    do, path, why = "download", "data/x", {
        "missing": "there is no data/x in gpufit-train",
        "unreachable": "gone",
        "too large": "has 2 MiB, and 1 MiB may be copied",
        "leads out": "leads out of .*; nothing is written there",
        "evil": "the link 'x/evil' in the archive leads out of the folder",
    }[prepare]  # fmt: skip
    if prepare == "unreachable":
        do, launcher.failure = "upload", NodeUnreachable("gone")
        (folder / "data").mkdir()
        (folder / "data/x").write_text("")
    elif prepare == "too large":
        do = "upload"
        (folder / "data").mkdir()
        (folder / "data/x").write_bytes(b"x" * 2 * MIB)
    elif prepare == "leads out":
        (launcher.path / "work/data").mkdir()
        (launcher.path / "work/data/x").write_text("")
        (folder.parent / "other").mkdir()
        (folder / "data").symlink_to("../other")
    elif prepare == "evil":
        (launcher.path / "work/data/x").mkdir(parents=True)
        (launcher.path / "work/data/x/evil").symlink_to("/etc")
    ended = await done(transfers, transfers.begin(running, do, str(folder), [path]))
    assert ended.failed
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(ended.message)
    assert "\n" not in ended.message
    if prepare in ("missing", "evil"):
        assert names_in(folder) == []
    if prepare == "leads out":
        assert names_in(folder.parent / "other") == []


async def test_an_error_that_nobody_meant(
    transfers: Transfers, running: Allocation, folder: Path, launcher: DirectoryLauncher, caplog
) -> None:
    launcher.failure = RuntimeError("oops")
    (folder / "x").write_text("")
    ended = await done(transfers, transfers.begin(running, "upload", str(folder), ["x"]))
    assert (ended.failed, ended.message) == (True, "RuntimeError: oops; the server's log says more")


async def test_progress_is_told_and_it_can_be_cancelled(
    transfers: Transfers, running: Allocation, folder: Path, launcher: DirectoryLauncher
) -> None:
    reached = asyncio.Event()

    async def put(unit: Any, archive: Path, on_progress: Any, into: str = "") -> None:
        on_progress(Progress(phase="uploading", current=5, total=10))
        reached.set()
        await asyncio.Event().wait()

    launcher.put = put  # type: ignore[method-assign]
    (folder / "x").write_text("")
    began = transfers.begin(running, "upload", str(folder), ["x"])
    await reached.wait()
    now = await transfers.latest(began.id, 0, PATIENCE)
    assert (now.current, now.total, now.message, now.done) == (5, 10, "uploading", False)
    assert (await transfers.latest(began.id, now.version, 0)) == now  # waits no longer than it is told
    transfers.cancel(began.id)
    ended = await done(transfers, now)
    assert (ended.failed, ended.message) == (True, "it was cancelled; what had been copied by then stays")
    assert transfers.cancel(began.id) == ended


async def test_cancelled_before_it_began(transfers: Transfers, running: Allocation, folder: Path) -> None:
    (folder / "x").write_text("")
    began = transfers.begin(running, "upload", str(folder), ["x"])
    transfers.cancel(began.id)
    assert (await done(transfers, began)).failed


async def test_unknown_ones(transfers: Transfers) -> None:
    with pytest.raises(NotFound, match="there is no transfer 'nothing'"):
        await transfers.latest("nothing", 0, 0)
    with pytest.raises(NotFound):
        transfers.cancel("nothing")


async def test_not_more_than_some_at_once_and_not_kept_for_ever(
    transfers: Transfers, running: Allocation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    (folder / "x").write_text("")
    begun = [transfers.begin(running, "upload", str(folder), ["x"]) for _ in range(2)]
    with pytest.raises(Conflict, match="2 copies of files go on already"):
        transfers.begin(running, "upload", str(folder), ["x"])
    for each in begun:
        await done(transfers, each)
    await done(transfers, transfers.begin(running, "upload", str(folder), ["x"]))
    with pytest.raises(NotFound):
        await transfers.latest(begun[0].id, 0, 0)
    await transfers.latest(begun[1].id, 0, 0)


@pytest.mark.parametrize("do", ["upload", "download"])
@pytest.mark.parametrize("spec", [PROCESS, msgspec.structs.replace(DOCKER, shared=("/",))], ids=["process", "mounted"])
async def test_a_node_that_has_the_folder(
    running: Allocation, folder: Path, launcher: DirectoryLauncher, spec: NodeSpec, do: str
) -> None:
    (folder / "x").write_text("")
    there = msgspec.structs.replace(running, request=Request(gpus=2, folder=str(folder)))
    transfers = Transfers(OneUnit(launcher, there, unit(there)), lambda node: spec)
    ended = await done(transfers, transfers.begin(there, do, str(folder), ["x"]))
    assert (ended.failed, ended.message) == (False, f"nothing to copy: gpu01 has {folder} itself")
    assert launcher.put_into == []
    if do == "download":
        ended = await done(transfers, transfers.begin(there, do, str(folder), ["x", "y"]))
        assert (ended.failed, ended.message) == (True, f"there is no 'y' in {folder}, which gpu01 has itself")


async def test_from_a_job_in_another_folder_of_the_same_machine(
    running: Allocation, folder: Path, launcher: DirectoryLauncher
) -> None:
    request = Request(gpus=2, folder=str(folder), job=Job(run="x.py"))
    there = msgspec.structs.replace(running, request=request)
    transfers = Transfers(OneUnit(launcher, there, unit(there)), lambda node: PROCESS)
    (other := folder / "below").mkdir()
    ended = await done(transfers, transfers.begin(there, "download", str(other), ["results.csv"]))
    assert (ended.failed, "results.csv" in ended.message) == (True, True), "it is looked for where the job works"

"""The files of jobs on this machine: what is refused, what is kept and for how long, where outputs come home to."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpufit.errors import InvalidValue, LaunchError, NodeUnreachable, StoreError
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.jobs.host import LocalJobHost

from .conftest import DOCKER, PROCESS, asked, granted, names_in, nothing, text_of, unit

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def shared(folder: Path) -> NodeSpec:
    return msgspec.structs.replace(DOCKER, shared=(str(folder),))


# --- looking at it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "options", "why"),
    [
        ("trian.py", {}, "there is no trian.py in .*; did you mean train.py?"),
        ("zzzzzz.py", {}, "there is: evaluate.py, link.py, train.py, two words.py"),
        ("zzzzzzzzzz.ipynb", {}, "there is: bad.ipynb, julia.ipynb, old.ipynb, text.ipynb"),
        ("deep/none.py", {}, "there is no deep/none.py"),
        ("../outside.py", {}, "../outside.py is not in .*, but .*outside.py; copy it there"),
        ("/etc/outside.py", {}, "there is no /etc/outside.py"),
        ("link.py", {}, "link.py is not in .*, but a link to .*outside.py; copy it there"),
        ("deep.py", {}, "deep.py in .* is a directory"),
        (
            "hidden/train.py",
            {},
            r"hidden/train.py does not get to the node: .* leaves hidden/ here; write !hidden/ into",
        ),
        ("two words.py", {}, "two words.py is a file, and would be taken for a command; .* in quotes: 'two words.py'"),
        ("text.ipynb", {}, "text.ipynb is no notebook: it is not JSON"),
        ("bad.ipynb", {}, "bad.ipynb is no notebook: it has no cells"),
        ("old.ipynb", {}, "old.ipynb is no notebook: it has the form of before 2015"),
        ("julia.ipynb", {"sweep": {"lr": "1"}}, "julia.ipynb is a notebook in julia; a sweep can only set"),
        ("python train.py --lr {rl}", {"sweep": {"lr": "1"}}, r"has no {lr} \(it has {rl}\); write {lr} where"),
        ("python train.py", {"sweep": {"lr": "1"}}, r"the command 'python train.py' has no {lr}; write"),
    ],
)
async def test_what_cannot_be_run(
    host: LocalJobHost, folder: Path, tmp_path: Path, run: str, options: dict[str, Any], why: str
) -> None:
    for name in ("train.py", "evaluate.py", "hidden/train.py", "../outside.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("print(1)")
    (folder / ".gitignore").write_text("hidden/\nlink.py")
    (folder / "link.py").symlink_to("../outside.py")
    (folder / "deep.py").mkdir()
    (folder / "text.ipynb").write_text("print(1)")
    (folder / "bad.ipynb").write_text("[1]")
    (folder / "old.ipynb").write_text('{"worksheets": []}')
    julia = NOTEBOOK | {"metadata": {"kernelspec": {"name": "julia-1.9", "language": "julia"}}}
    (folder / "julia.ipynb").write_text(json.dumps(julia))
    (folder / "two words.py").write_text("")
    with pytest.raises(InvalidValue, match=why) as error:
        await host.check_in(["j1", "j2"], asked(folder, run, **options))
    assert "\n" not in error.value.message
    assert list((tmp_path / "store").glob("*/*")) == []


async def test_names_that_cannot_be_looked_up(host: LocalJobHost, folder: Path) -> None:
    (folder / "round.py").symlink_to("round.py")
    (folder / "there.py").touch()
    wrong = (
        ("~nobody-at-all/train.py", "there is no"),
        ("round.py", "is no file"),
        ("there.py\0", r"run is 'there.py\\x00'"),
    )
    for run, why in wrong:
        with pytest.raises(InvalidValue, match=why):
            await host.check_in(["j1"], asked(folder, run))
    with pytest.raises(InvalidValue) as refused:
        await host.check_in(["j1"], asked(folder, "caf\udce9.py"))
    assert str(refused.value).startswith("there is no caf?.py in")  # it can be sent, and kept


async def test_a_folder_that_is_not_there(host: LocalJobHost, folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(InvalidValue, match=r"there is no folder .*/nothing on this machine"):
        await host.check_in(["j1"], asked(folder / "nothing", "nvidia-smi"))
    with pytest.raises(InvalidValue, match="file is no folder"):
        await host.check_in(["j1"], asked(folder / "file", "train.py"))
    with pytest.raises(InvalidValue, match=r"train.py is to be found in a folder; say which"):
        await host.check_in(["j1"], asked(None, "train.py"))


async def test_too_large_or_a_link_out_leaves_nothing(host: LocalJobHost, folder: Path, tmp_path: Path) -> None:
    host.upload_limit = 1000
    (folder / "big").write_bytes(b"x" * 2000)
    with pytest.raises(InvalidValue, match="may be copied to a node"):
        await host.check_in(["j1", "j2"], asked(folder, "nvidia-smi"))
    (folder / "big").unlink()
    (folder / "link").symlink_to("/etc")
    with pytest.raises(InvalidValue, match="the link link leads out"):
        await host.check_in(["j1", "j2"], asked(folder, "nvidia-smi"))
    assert list((tmp_path / "store/jobs").iterdir()) == []


async def test_a_script_named_by_its_whole_path(host: LocalJobHost, folder: Path, launcher) -> None:
    (folder / "deep").mkdir()
    (folder / "deep/train.py").write_text("")
    request = asked(folder, str(folder / "deep/train.py"))
    await host.check_in(["j1"], request)
    await host.start(granted(request), unit(granted(request)), DOCKER, launcher, nothing)
    assert json.loads(launcher.started[1]["job.json"])["run"] == "deep/train.py"


async def test_no_room_for_what_is_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    host = LocalJobHost(tmp_path / "store", lambda: [DOCKER])
    with pytest.raises(StoreError, match=r"the files of jobs cannot be kept in .*store: Not a directory"):
        await host.check_in(["j1"], asked(folder, "nvidia-smi"))


# --- what is kept -----------------------------------------------------------------------------------------------------


async def test_a_sweep_shares_one_archive_of_its_own_moment(
    host: LocalJobHost, folder: Path, tmp_path: Path, launcher
) -> None:
    (folder / "train.py").write_text("then")
    request = asked(folder, "train.py", sweep={"lr": "1"})
    await host.check_in(["j1", "j2", "j3"], request)
    kept = [tmp_path / "store/jobs" / id / "files.tar" for id in ("j1", "j2", "j3")]
    assert len({os.stat(file).st_ino for file in kept}) == 1
    assert stat.S_IMODE(os.stat(kept[0].parent).st_mode) == 0o700
    (folder / "train.py").write_text("now")
    host.forget("j1")
    assert not kept[0].parent.exists()
    await host.start(granted(request, "j2"), unit(granted(request, "j2")), DOCKER, launcher, nothing)
    assert (launcher.path / "work/train.py").read_text() == "then"


async def test_what_nobody_knows_is_removed(host: LocalJobHost, folder: Path, tmp_path: Path) -> None:
    await host.check_in(["j1", "j2"], asked(folder, "nvidia-smi"))
    (tmp_path / "store/moving-x").mkdir()
    LocalJobHost(tmp_path / "store").forget_others({"j2"})
    assert [each.name for each in (tmp_path / "store/jobs").iterdir()] == ["j2"]
    assert not (tmp_path / "store/moving-x").exists()
    LocalJobHost(tmp_path / "none").forget_others(())
    host.forget("j9")


async def test_without_a_store_it_goes_with_the_process(folder: Path, launcher) -> None:
    host = LocalJobHost(nodes=lambda: [DOCKER])
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    where = host._where
    assert (where / "jobs/j1/files.tar").exists()
    host.close()
    assert not where.exists()


async def test_a_check_in_that_is_cancelled_leaves_nothing(host: LocalJobHost, folder: Path, tmp_path: Path) -> None:
    for number in range(200):
        (folder / f"{number}").write_bytes(b"x" * 100_000)
    asking = asyncio.create_task(host.check_in(["j1", "j2"], asked(folder, "nvidia-smi")))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    jobs = tmp_path / "store/jobs"
    assert not jobs.exists() or list(jobs.iterdir()) == []


# --- starting ---------------------------------------------------------------------------------------------------------


async def test_files_and_outputs_get_into_the_unit(host: LocalJobHost, folder: Path, launcher) -> None:
    (folder / "train.py").write_text("1")
    (folder / "outputs").mkdir()
    request = asked(folder, "train.py", args=("-v",), env={"TOKEN": "s3cr3t"}, sweep={"lr": "1e-3"})
    await host.check_in(["j1"], request)
    await host.start(granted(request), unit(granted(request)), DOCKER, launcher, nothing)
    command, files, env = launcher.started
    assert launcher.put_into == ["", "{outputs}"]
    assert text_of(launcher.path / "work") == {"train.py": "1"}
    assert (launcher.path / "outputs").is_dir()
    assert command == ["{python}", "{gpufit}/job.py", "{work}", "{outputs}"]
    job = json.loads(files["job.json"])
    assert job["args"] == ["-v", "--lr=1e-3"]
    assert job["env"]["TOKEN"] == "s3cr3t"
    assert "s3cr3t" not in f"{command}{env}"
    assert {
        name: value for name, value in job["env"].items() if name.startswith("GPUFIT") and "FRACTION" not in name
    } == {
        "GPUFIT_JOB": "1",
        "GPUFIT_ATTEMPT": "1",
        "GPUFIT_ALLOCATION": "j1",
        "GPUFIT_NAME": "train",
        "GPUFIT_NODE": "gpu01",
        "GPUFIT_GPUS": "GPU-1,GPU-2",
        "GPUFIT_MEMORY": f"{2**30},{2**30}",
        "GPUFIT_SWEEP": '{"lr": "1e-3"}',
    }


async def test_what_the_unit_cannot_take_is_said(host: LocalJobHost, folder: Path, launcher, tmp_path: Path) -> None:
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    launcher.failure = NodeUnreachable("gone")
    with pytest.raises(NodeUnreachable):
        await host.start(granted(request), unit(granted(request)), DOCKER, launcher, nothing)
    assert list((tmp_path / "store").glob("moving-*")) == []


async def test_a_job_without_a_folder(host: LocalJobHost, launcher, tmp_path: Path) -> None:
    request = asked(None, "nvidia-smi > $GPUFIT_OUTPUTS/x")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert launcher.put_into == ["", "{outputs}"]
    (launcher.path / "outputs/x").write_text("found")
    home = await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert home == str(tmp_path / "store/outputs/train")
    assert text_of(Path(home)) == {"x": "found"}


# --- outputs ----------------------------------------------------------------------------------------------------------


async def test_outputs_come_home_and_go_back_for_a_retry(host: LocalJobHost, folder: Path, launcher, tmp_path) -> None:
    request = asked(folder, "train.py")
    (folder / "train.py").write_text("")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    (launcher.path / "outputs/ckpt").write_text("1")
    (launcher.path / "outputs/latest").symlink_to("ckpt")
    (launcher.path / "outputs/out").symlink_to("/etc/passwd")
    home = await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert home == str(folder / "outputs/train")
    left_out = "the link 'outputs/out' in the archive leads out of the folder, to '/etc/passwd'\n"
    assert text_of(Path(home)) == {"ckpt": "1", "latest": "1", "gpufit-left-out.txt": left_out}

    again = type(launcher)(tmp_path / "unit-2")
    another_server = LocalJobHost(tmp_path / "store", lambda: [DOCKER])
    retry = granted(request, attempt=2)
    await another_server.start(retry, unit(retry), DOCKER, again, nothing)
    assert (again.path / "outputs/ckpt").read_text() == "1"
    assert json.loads(again.started[1]["job.json"])["env"]["GPUFIT_ATTEMPT"] == "2"
    (again.path / "outputs/ckpt").write_text("2")
    for _ in range(2):  # the server may die behind the first
        assert await another_server.collect(retry, unit(retry), DOCKER, again, nothing) == home
    assert (Path(home) / "ckpt").read_text() == "2"
    another_server.forget("j1")
    assert (Path(home) / "ckpt").read_text() == "2"
    assert list((tmp_path / "store").glob("*/*")) == []


async def test_another_job_of_that_name_gets_another_place(host: LocalJobHost, folder: Path, launcher) -> None:
    request = asked(folder, "true")
    (folder / "outputs/train").mkdir(parents=True)
    (folder / "outputs/train/old").write_text("")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert not (launcher.path / "outputs/old").exists()
    (launcher.path / "outputs/new").write_text("")
    home = await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert home == str(folder / "outputs/train-2")


async def test_without_outputs_nothing_is_left(host: LocalJobHost, folder: Path, launcher) -> None:
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing) is None
    host.forget("j1")
    assert names_in(folder) == []


async def test_a_unit_without_outputs_leaves_those_of_before(host: LocalJobHost, folder: Path, launcher) -> None:
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    assert await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing) is None
    (folder / "outputs/train/x").write_text("")
    assert await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing) == str(folder / "outputs/train")


async def test_outputs_that_are_too_large(host: LocalJobHost, folder: Path, launcher) -> None:
    host.outputs_limit = 100
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    with pytest.raises(LaunchError, match=r"its outputs were not brought home: {outputs} has more than 100 bytes"):
        await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing)


async def test_outputs_that_cannot_be_unpacked_are_kept(host: LocalJobHost, folder: Path, launcher, tmp_path) -> None:
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    (launcher.path / "outputs/x").write_text("1")
    (folder / "outputs/train/x").mkdir()  # somebody is in the way
    kept = tmp_path / "store/outputs/train/outputs.tar"
    with pytest.raises(LaunchError, match=f"its outputs are in {kept}, and were not unpacked: .* is a directory here"):
        await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing)
    with tarfile.open(kept) as tar:
        assert tar.extractfile("outputs/x").read() == b"1"


@pytest.mark.parametrize("planted", ["outputs/train", "outputs"])
async def test_a_link_in_the_place_of_outputs_is_not_followed(
    folder: Path, launcher, tmp_path: Path, planted: str
) -> None:
    """A unit that has the folder mounted puts it there; its next attempt is on a node that has not."""
    spec = shared(folder.parent)
    host = LocalJobHost(tmp_path / "store", lambda: [spec, DOCKER])
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), spec, launcher, nothing)
    home = tmp_path / "home"
    (home / "train").mkdir(parents=True)
    for secret in (home / "secret", home / "train/secret"):
        secret.write_text("mine")
    (folder / planted).rename(folder / "away")
    (folder / planted).symlink_to(home)

    await host.start(granted(request, attempt=2), unit(allocation), DOCKER, launcher, nothing)
    assert names_in(launcher.path / "outputs") == []
    (launcher.path / "outputs/secret").write_text("theirs")
    found = await host.collect(granted(request, attempt=2), unit(allocation), DOCKER, launcher, nothing)
    assert (Path(found) / "secret").read_text() == "theirs"
    assert [path.read_text() for path in (home / "secret", home / "train/secret")] == ["mine", "mine"]


async def test_outputs_that_a_person_keeps_elsewhere(folder: Path, launcher, tmp_path: Path) -> None:
    """What leads out of a mounted folder leads nowhere in its container: they are brought there."""
    (tmp_path / "large").mkdir()
    (folder / "outputs").symlink_to(tmp_path / "large")
    spec = shared(folder)
    host = LocalJobHost(tmp_path / "store", lambda: [spec])
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), spec, launcher, nothing)
    assert launcher.started[0][-1] == "{outputs}"
    (launcher.path / "outputs/x").write_text("1")
    assert await host.collect(allocation, unit(allocation), spec, launcher, nothing) == str(tmp_path / "large/train")
    assert text_of(tmp_path / "large") == {"train/x": "1"}


async def test_the_note_of_what_was_left_out_goes_through_no_link(host: LocalJobHost, folder: Path, launcher) -> None:
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    (folder / "file").write_text("mine")
    (folder / "outputs/train/gpufit-left-out.txt").symlink_to("../../file")
    (launcher.path / "outputs/out").symlink_to("/etc")
    home = await host.collect(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert "leads out of the folder" in (Path(home) / "gpufit-left-out.txt").read_text()
    assert (folder / "file").read_text() == "mine"


async def test_a_folder_that_cannot_be_written(
    host: LocalJobHost, folder: Path, launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(folder, "true")
    await host.check_in(["j1"], request)
    (folder / "outputs").write_text("in the way")  # root may write everywhere
    allocation = granted(request)
    await host.start(allocation, unit(allocation), PROCESS, launcher, nothing)
    assert launcher.put_into == ["{outputs}"]
    (launcher.path / "outputs/x").write_text("found")
    home = await host.collect(allocation, unit(allocation), PROCESS, launcher, nothing)
    assert home == str(tmp_path / "store/outputs/train")


async def test_a_folder_that_the_node_has(folder: Path, launcher, tmp_path: Path) -> None:
    spec = shared(folder.parent)
    host = LocalJobHost(tmp_path / "store", lambda: [spec, PROCESS])
    request = asked(folder, "train.py")
    (folder / "train.py").write_text("")
    (folder / "out").symlink_to("/etc")  # of no concern
    await host.check_in(["j1"], request)
    assert list((tmp_path / "store/jobs/j1").iterdir()) == []
    allocation = granted(request)
    await host.start(allocation, unit(allocation), spec, launcher, nothing)
    assert launcher.put_into == []
    place = folder / "outputs/train"
    assert launcher.started[0][-1] == str(place)
    (place / "model").write_text("m")
    assert await host.collect(allocation, unit(allocation), spec, launcher, nothing) == str(place)
    host.forget("j1")
    assert (place / "model").read_text() == "m"


async def test_only_nodes_that_are_asked_for_count(folder: Path, tmp_path: Path) -> None:
    host = LocalJobHost(tmp_path / "store", lambda: [shared(folder), msgspec.structs.replace(DOCKER, name="far")])
    await host.check_in(["j1"], asked(folder, "true"))
    assert (tmp_path / "store/jobs/j1/files.tar").exists()
    await host.check_in(["j2"], msgspec.structs.replace(asked(folder, "true"), node="gpu*"))
    assert not (tmp_path / "store/jobs/j2/files.tar").exists()


async def test_a_node_that_has_the_folder_no_more(folder: Path, launcher, tmp_path: Path) -> None:
    host = LocalJobHost(tmp_path / "store", lambda: [shared(folder)])
    request = asked(folder, "true")
    (folder / "x").write_text("1")
    await host.check_in(["j1"], request)
    allocation = granted(request)
    await host.start(allocation, unit(allocation), DOCKER, launcher, nothing)
    assert text_of(launcher.path / "work") == {"x": "1"}

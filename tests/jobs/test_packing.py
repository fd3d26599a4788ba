"""Folders into archives: what travels, what stays, and what is refused in one sentence."""

from __future__ import annotations

import itertools
import os
import socket
import tarfile
from pathlib import Path

import pytest

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.jobs import packing
from jupyter_gpufit.jobs.packing import pack, pack_all, pack_paths
from jupyter_gpufit.jobs.unpacking import unpack

MIB = 2**20


def make(folder: Path, **files: str | bytes) -> Path:
    """`a__b_txt`-like names are a nuisance: paths are given as they are, by `**{...}`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def names(archive: Path, directories: bool = False) -> set[str]:
    with tarfile.open(archive) as tar:
        return {each.name for each in tar if each.name != "." and (directories or not each.isdir())}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "files.tar"


def test_everything_below_the_folder_is_packed(folder: Path, archive: Path) -> None:
    make(folder, **{"train.py": "print(1)", "data/x.csv": "1,2", ".hidden": "h"})
    (folder / "empty").mkdir()
    os.chmod(folder / "train.py", 0o755)
    packed = pack(folder, archive)
    assert names(archive, directories=True) == {"train.py", "data", "data/x.csv", ".hidden", "empty"}
    assert (packed.files, packed.bytes) == (3, 12)
    with tarfile.open(archive) as tar:
        assert tar.getmember("train.py").mode == 0o755
        assert tar.extractfile("data/x.csv").read() == b"1,2"


def test_what_is_never_meant_stays_here(folder: Path, archive: Path) -> None:
    never = [".git/config", "a/__pycache__/x.pyc", ".ipynb_checkpoints/n.ipynb", ".venv/bin/python"]
    make(folder, **dict.fromkeys([*never, "web/node_modules/m.js", "outputs/train/model.pt"], "x"))
    make(folder, **{"a/outputs/kept.txt": "x"})  # only the folder's own
    pack(folder, archive)
    assert names(archive) == {"a/outputs/kept.txt"}


@pytest.mark.parametrize(
    ("rules", "stays"),
    [
        ({".gitignore": "*.bin\n# a comment\n\n"}, {"big.bin", "data/big.bin"}),
        ({".gitignore": "/*.bin"}, {"big.bin"}),
        ({".gitignore": "data/"}, {"data/big.bin", "data/x.csv"}),
        ({".gitignore": "data/", ".gpufitignore": "!data/"}, set()),
        ({".gitignore": "*.bin", ".gpufitignore": "!data/big.bin"}, {"big.bin"}),
        ({".gitignore": "*.bin\n!big.bin"}, set()),
        ({"data/.gitignore": "x.csv\n*.bin"}, {"data/big.bin", "data/x.csv"}),
        ({".gitignore": "*.bin", "data/.gitignore": "!*.bin"}, {"big.bin"}),
        ({"data/.gitignore": "*.bin", ".gpufitignore": "!*.bin"}, set()),
        ({".gpufitignore": "data\n*.bin"}, {"big.bin", "data/big.bin", "data/x.csv"}),
        ({".gitignore": b"\xff\xfe\n*.bin"}, {"big.bin", "data/big.bin"}),
        ({".gitignore": "!\n*.csv"}, {"data/x.csv"}),
    ],
)
def test_rules_are_read_as_git_reads_them(
    folder: Path, archive: Path, rules: dict[str, str | bytes], stays: set[str]
) -> None:
    files = {"train.py", "big.bin", "data/big.bin", "data/x.csv"}
    make(folder, **dict.fromkeys(files, "x"), **rules)
    pack(folder, archive)
    assert names(archive) == (files | set(rules)) - stays


def test_the_rules_of_the_repository_hold_in_a_part_of_it(tmp_path: Path, archive: Path) -> None:
    make(tmp_path, **{"repo/.git/HEAD": "", "repo/.gitignore": "exp/data/\n*.bin", ".gitignore": "*"})
    make(tmp_path, **{"repo/exp/train.py": "", "repo/exp/data/x": "", "repo/exp/w.bin": ""})
    pack(tmp_path / "repo" / "exp", archive)
    assert names(archive) == {"train.py"}


def test_outputs_travel_if_somebody_says_so(folder: Path, archive: Path) -> None:
    make(folder, **{"outputs/train/model.pt": "x", ".gpufitignore": "!outputs/"})
    pack(folder, archive)
    assert "outputs/train/model.pt" in names(archive)


def test_links_inside_are_kept(folder: Path, archive: Path) -> None:
    make(folder, **{"data/x.csv": "1", "a/b/c.txt": ""})
    (folder / "plain").symlink_to("data/x.csv")
    (folder / "a/b/up").symlink_to("../../data")
    (folder / "absolute").symlink_to(folder / "data")
    (folder / "a/around").symlink_to(f"../../{folder.name}/data")
    (folder / "nowhere").symlink_to("not-there")
    (folder / "loop").symlink_to("loop")
    pack(folder, archive)
    with tarfile.open(archive) as tar:
        links = {each.name: each.linkname for each in tar if each.issym()}
    assert links == {
        "plain": "data/x.csv",
        "a/b/up": "../../data",
        "absolute": "data",
        "a/around": "../data",
        "nowhere": "not-there",
        "loop": "loop",
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../elsewhere", "data/../../elsewhere"])
def test_a_link_that_leads_out_is_refused(folder: Path, archive: Path, target: str) -> None:
    make(folder, **{"data/x": ""})
    make(folder.parent, elsewhere="secret")
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(target if target.startswith("/") else f"../{target}")
    with pytest.raises(InvalidValue, match=r"the link deep/link leads out of .*\.gpufitignore, or put a copy"):
        pack(folder, archive)
    assert not archive.exists()
    make(folder, **{".gpufitignore": "link"})
    pack(folder, archive)
    assert names(archive) == {"data/x", ".gpufitignore"}


def test_a_folder_that_is_itself_a_link(folder: Path, archive: Path) -> None:
    make(folder, x="")
    (folder / "inside").symlink_to("x")
    (folder.parent / "by-link").symlink_to(folder)
    pack(folder.parent / "by-link", archive)
    assert names(archive) == {"x", "inside"}


def test_names_that_are_no_text(folder: Path, archive: Path) -> None:
    odd = os.fsdecode(b"caf\xe9 \xff.txt")
    make(folder, **{odd: "1", "x" * 200 + "/" + "y" * 200: "2", "ünï": "3"})
    (folder / "link").symlink_to(odd)
    pack(folder, archive)
    unpack(archive, folder.parent / "into", MIB)
    assert (folder.parent / "into" / odd).read_text() == (folder.parent / "into/link").read_text() == "1"
    assert (folder.parent / "into" / ("x" * 200) / ("y" * 200)).read_text() == "2"


def test_what_is_no_file_stays_here(folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "fifo")
    monkeypatch.chdir(folder)  # the path of a socket has to be short
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("socket")
        assert pack(folder, archive).files == 0


def test_more_than_the_limit(folder: Path, archive: Path) -> None:
    make(folder, **{"data/a": b"x" * 2 * MIB, "data/b": b"x" * MIB, "w.bin": b"x" * MIB, "t.py": "x", "u.py": "xx"})
    with pytest.raises(InvalidValue) as error:
        pack(folder, archive, limit=3 * MIB)
    assert error.value.message == (
        f"{folder} has 4 MiB, and 3 MiB may be copied to a node (largest: data/ 3 MiB, w.bin 1 MiB, u.py 2 B); "
        "list what is not needed in .gpufitignore, or have the folder mounted there (`shared` in gpufit.toml)"
    )
    assert not archive.exists()
    assert pack(folder, archive, limit=5 * MIB).bytes == 4 * MIB + 3


@pytest.mark.parametrize("rule", ["a*a*a*a*a*b", "/data/**/a/**/a/**/a/**/b", "!x*****"])
def test_rules_that_take_for_ever(folder: Path, archive: Path, rule: str) -> None:
    make(folder, **{"data/.gitignore": f"# {rule}\n{rule}\n", "data/" + "a" * 250: ""})
    with pytest.raises(InvalidValue, match=r"data/\.gitignore has a rule with too many '\*': "):
        pack(folder, archive)


def test_rules_that_are_a_pipe(folder: Path, archive: Path) -> None:
    os.mkfifo(folder / ".gitignore")
    make(folder, a="x")
    pack(folder, archive)
    assert names(archive) == {"a"}


def test_deeper_than_anybody_means(folder: Path, archive: Path) -> None:
    make(folder, **{"d/" * packing.DEEPEST + "x": ""})
    with pytest.raises(InvalidValue, match=r"is deeper than 128 directories"):
        pack(folder, archive)


def test_more_files_than_anybody_means(folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    make(folder, **dict.fromkeys("abcd", ""))
    with pytest.raises(InvalidValue, match=r"more than 3 files; list"):
        pack(folder, archive)


def test_a_folder_that_is_not_there(folder: Path, archive: Path) -> None:
    make(folder, x="")
    with pytest.raises(InvalidValue, match="there is no folder"):
        pack(folder / "nothing", archive)
    with pytest.raises(InvalidValue, match="is no folder"):
        pack(folder / "x", archive)


def test_what_cannot_be_read(folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(folder, x="", **{"d/y": ""})

    def refuse(path: object, *rest: object) -> int:  # root may read anything
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as context:
        context.setattr("os.open", refuse)
        with pytest.raises(InvalidValue, match=r"d/y cannot be read \(Permission denied\); make it readable, or list"):
            pack_paths(folder, ["d/y"], archive)
    assert not archive.exists()


def test_files_that_change_meanwhile(folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(folder, **{"a": "aaaa", "gone": "x", "grows": "12", "shrinks": "1234567", "was-a-file": "x", "z": "zzzz"})

    def meddle(done: int, total: int) -> None:
        (folder / "gone").unlink(missing_ok=True)
        if (folder / "was-a-file").is_file():
            (folder / "was-a-file").unlink()
            os.mkfifo(folder / "was-a-file")
        (folder / "grows").write_text("12345")

    fstat, looks = os.fstat, itertools.count()

    def shrink(descriptor: int) -> os.stat_result:
        said = fstat(descriptor)
        if said.st_size == 7 and next(looks):  # the second look is for the size
            os.truncate(folder / "shrinks", 3)
        return said

    monkeypatch.setattr(os, "fstat", shrink)
    pack(folder, archive, on_bytes=meddle)
    with tarfile.open(archive) as tar:
        read = {each.name: tar.extractfile(each).read() for each in tar if each.isreg()}
    assert read.pop("grows") in (b"12", b"12345")
    assert read == {"a": b"aaaa", "shrinks": b"123\0\0\0\0", "z": b"zzzz"}


def test_progress_ends_with_all(folder: Path, archive: Path) -> None:
    make(folder, a=b"x" * 3 * MIB, b=b"y" * 10)
    heard: list[tuple[int, int]] = []
    pack(folder, archive, on_bytes=lambda *bytes: heard.append(bytes))
    total = 3 * MIB + 10
    assert heard[-1] == (total, total)
    assert heard == sorted(heard)


# --- what somebody names ----------------------------------------------------------------------------------------------


def test_named_paths(folder: Path, archive: Path) -> None:
    make(folder, **{"a/b/x": "1", "a/c": "2", "d": "3", ".gitignore": "x"})
    pack_paths(folder, ["a", "d", str(folder / "a/c")], archive)
    with tarfile.open(archive) as tar:
        assert "." not in tar.getnames()  # the directory there stays as it is
    assert names(archive, directories=True) == {"a", "a/b", "a/c", "d"}


def test_what_is_named_is_taken_whatever_the_rules_say(folder: Path, archive: Path) -> None:
    make(folder, **{"data/x.csv": "1", "data/__pycache__/y": "", ".gitignore": "data/\n*.bin", "w.bin": ""})
    make(folder, **{"outputs/t/m.pt": ""})
    pack_paths(folder, ["data/", "w.bin", "outputs"], archive)
    assert names(archive) == {"data/x.csv", "w.bin", "outputs/t/m.pt"}


def test_the_folder_itself(folder: Path, archive: Path) -> None:
    make(folder, **{"a": "", "outputs/x": ""})
    pack_paths(folder, ["."], archive)
    assert names(archive) == {"a"}


@pytest.mark.parametrize("path", ["../elsewhere", "/etc/passwd", "a/../../elsewhere", "out", "out-dir/x", "~/x"])
def test_a_path_outside_is_refused(folder: Path, archive: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    make(folder.parent, elsewhere="secret", x="secret", **{"other/x": "secret"})
    make(folder, **{"a/x": ""})
    (folder / "out").symlink_to("../elsewhere")
    (folder / "out-dir").symlink_to("../other")
    with pytest.raises(InvalidValue, match=r"is not in|leads out of"):
        pack_paths(folder, [path], archive)
    assert not archive.exists()


def test_a_path_that_is_not_there(folder: Path, archive: Path) -> None:
    make(folder, **{"train.py": "", "data/x": ""})
    with pytest.raises(InvalidValue, match=r"there is no trian.py in .*; there is: data, train.py"):
        pack_paths(folder, ["trian.py"], archive)


def test_named_paths_have_a_limit_too(folder: Path, archive: Path) -> None:
    make(folder, a=b"x" * MIB)
    with pytest.raises(InvalidValue, match="a has 1 MiB, and 512 KiB may be"):
        pack_paths(folder, ["a"], archive, limit=MIB // 2)


def test_outputs_that_go_back(folder: Path, archive: Path) -> None:
    make(folder, **{"a": "", "__pycache__/x": ""})
    (folder / "link").symlink_to("/etc/passwd")
    pack_all(folder, archive)
    assert names(archive) == {"a", "__pycache__/x"}
    assert pack_all(folder / "nothing", archive).files == 0
    assert names(archive) == set()

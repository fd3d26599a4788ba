"""Archives into folders, whoever made them: nothing outside the folder, and nothing left of a refused one."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.jobs import unpacking
from jupyter_gpufit.jobs.unpacking import unpack

MIB = 2**20


def member(name: str, content: bytes | None = b"new", kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(content or b"") if kind == tarfile.REGTYPE else 0
    return info, content if kind == tarfile.REGTYPE else None


def link(name: str, target: str):
    return member(name, kind=tarfile.SYMTYPE, link=target)


def second(name: str, target: str):
    return member(name, kind=tarfile.LNKTYPE, link=target)


def directory(name: str):
    return member(name, kind=tarfile.DIRTYPE, mode=0o755)


def tar_of(path: Path, members: Iterable) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            tar.addfile(info, None if content is None else io.BytesIO(content))
    return path


def tree(folder: Path) -> dict[str, str]:
    """Path -> content, or where a link leads."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*files, *folders):
            path = Path(where, name)
            kind = (
                "-> " + os.readlink(path)
                if path.is_symlink()
                else "/"
                if path.is_dir()
                else path.read_text(errors="replace")
            )
            found[str(path.relative_to(folder))] = kind
    return found


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., Path]:
    return lambda *members: tar_of(tmp_path / "a.tar", members)


def test_files_directories_and_links(into: Path, archive: Callable[..., Path]) -> None:
    path = archive(
        directory("a"),
        member("a/x", b"1", mode=0o755),
        link("latest", "a/x"),
        second("same", "a/x"),
        member("b/c/d", b"2"),
    )
    came = unpack(path, into, MIB)
    assert tree(into) == {"a": "/", "a/x": "1", "latest": "-> a/x", "same": "1", "b": "/", "b/c": "/", "b/c/d": "2"}
    assert (came.files, came.bytes, came.left_out) == (4, 2, ())
    assert os.stat(into / "a/x").st_mode & 0o111


def test_what_is_there_is_replaced_and_the_rest_stays(into: Path, archive: Callable[..., Path]) -> None:
    (into / "a").mkdir()
    for name in ("a/x", "a/y", "z"):
        (into / name).write_text("old")
    (into.parent / "outside").write_text("old")
    (into / "w").symlink_to("../outside")
    unpack(archive(member("a/x"), member("z"), member("w")), into, MIB)
    assert tree(into) == {"a": "/", "a/x": "new", "a/y": "old", "z": "new", "w": "new"}
    assert (into.parent / "outside").read_text() == "old"


def test_a_folder_is_made(into: Path, archive: Callable[..., Path]) -> None:
    unpack(archive(member("x")), into / "deep" / "er", MIB)
    assert tree(into / "deep") == {"er": "/", "er/x": "new"}


def test_first_parts_of_names_can_be_left_out(into: Path, archive: Callable[..., Path]) -> None:
    made = [directory("outputs"), member("outputs/m.pt"), second("outputs/again", "outputs/m.pt")]
    path = archive(*made, link("outputs/l", "m.pt"), link("outputs/runs/latest", "/outputs/runs/3"))
    unpack(path, into, MIB, strip=1, root="/outputs")
    assert tree(into) == {"m.pt": "new", "again": "new", "l": "-> m.pt", "runs": "/", "runs/latest": "-> 3"}


BAD = [
    ([member("/etc/passwd")], "absolute name"),
    ([member("../x")], "leads out"),
    ([member("a/../../x")], "leads out"),
    ([link("l", "/etc")], "the link 'l' in the archive leads out"),
    ([link("l", "../x")], "leads out"),
    ([link("a/l", "../../x")], "leads out"),
    ([link("l", "a/../../x")], "leads out"),
    ([directory("d"), link("d/l", ".."), link("e", "d/l/..")], "leads out"),
    ([link("l", "."), member("l/x")], "below l, which is no directory"),
    ([link("l", "d"), directory("d"), member("l/x")], "below l"),
    ([member("f"), member("f/x")], "below f"),
    ([second("h", "/etc/passwd")], "second name"),
    ([second("h", "../outside")], "second name"),
    ([second("h", "nothing")], "second name"),
    ([link("l", "x"), second("h", "l")], "second name"),
    ([member("fifo", kind=tarfile.FIFOTYPE)], "a device or a pipe"),
    ([member("dev", kind=tarfile.CHRTYPE)], "a device or a pipe"),
    ([member("dev", kind=tarfile.BLKTYPE)], "a device or a pipe"),
    ([member("/".join("a" * 200))], "deeper than 128"),
]


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_what_is_refused(into: Path, archive: Callable[..., Path], bad: list, why: str) -> None:
    (into.parent / "outside").write_text("old")
    before = tree(into.parent) | {"a.tar": ""}
    path = archive(member("good"), *bad)
    with pytest.raises(InvalidValue, match=why) as error:
        unpack(path, into, MIB)
    assert "\n" not in error.value.message
    path.write_text("")
    assert tree(into.parent) == before


@pytest.mark.parametrize(("bad", "why"), BAD)
def test_lenient_takes_the_rest(into: Path, archive: Callable[..., Path], bad: list, why: str) -> None:
    came = unpack(archive(member("good"), *bad), into, MIB, lenient=True)
    assert any(why.split(" ")[-1] in sentence for sentence in came.left_out)
    assert tree(into)["good"] == "new"


def test_no_special_rights_are_given(into: Path, archive: Callable[..., Path]) -> None:
    unpack(archive(member("s", mode=0o7777), member("t", mode=0)), into, MIB)
    assert not os.stat(into / "s").st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
    assert not os.stat(into / "s").st_mode & stat.S_IWOTH
    assert os.stat(into / "t").st_mode & 0o777 == 0o600


def test_bombs(into: Path, archive: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match="more than 1 KiB; ask for a part"):
        unpack(archive(member("a", b"x" * 600), member("b", b"x" * 600)), into, 1024)
    monkeypatch.setattr(unpacking, "MOST_MEMBERS", 3)
    with pytest.raises(InvalidValue, match="more than 3 files"):
        unpack(archive(*(member(str(n)) for n in range(4))), into, MIB)
    assert tree(into) == {}


def test_a_claimed_size_is_not_believed(into: Path, tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.size = 2**40
    (tmp_path / "a.tar").write_bytes(info.tobuf() + b"\0" * 1024)
    with pytest.raises(InvalidValue, match="more than 1 MiB"):
        unpack(tmp_path / "a.tar", into, MIB)


def test_an_archive_that_was_cut_off(into: Path, archive: Callable[..., Path]) -> None:
    path = archive(member("a", b"x" * 2000), member("b", b"y" * 2000), link("c", "a"))
    whole = path.read_bytes()
    for length in (0, 100, 511, 512, 1000, 2560, 3000, 3072, 5000, 5632, 6100):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidValue, match="no sound archive"):
            unpack(path, into, MIB)
        assert tree(into) == {}


def test_no_archive(into: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("hello " * 1000)
    with pytest.raises(InvalidValue, match="no sound archive"):
        unpack(tmp_path / "a.tar", into, MIB)


@pytest.mark.parametrize(
    ("there", "members", "why"),
    [
        (lambda into: (into / "x").mkdir(), [member("x")], "is a directory here and a file there"),
        (lambda into: (into / "x").write_text(""), [directory("x")], "is a file here and a directory there"),
        (lambda into: (into / "x").write_text(""), [member("x/y")], "is a file here and a directory there"),
        (lambda into: (into / "x").symlink_to(into.parent / "other"), [member("x/y")], "leads out"),
        (lambda into: (into / "x").symlink_to(into.parent / "other"), [directory("x")], "leads out"),
        (lambda into: (into / "x").symlink_to("nowhere"), [directory("x")], "is a file here"),
        (lambda into: (into / "x").symlink_to("/etc/nowhere"), [member("x/y")], "leads out"),
        (lambda into: (into / "x").symlink_to("x"), [member("x/y")], "is a file here and a directory there"),
        (lambda into: (into / "x").symlink_to("."), [link("x/y", "../other/y")], "the link .* would lead out"),
    ],
)
def test_what_does_not_go_together(
    into: Path, archive: Callable[..., Path], there: Callable[[Path], None], members: list, why: str
) -> None:
    (into.parent / "other").mkdir()
    there(into)
    before = tree(into)
    with pytest.raises(InvalidValue, match=why):
        unpack(archive(member("good"), *members), into, MIB)
    assert tree(into) == before
    assert tree(into.parent / "other") == {}


def test_a_link_here_that_stays_inside_is_followed(into: Path, archive: Callable[..., Path]) -> None:
    (into / "real").mkdir()
    (into / "x").symlink_to("real")
    unpack(archive(directory("x"), member("x/y")), into, MIB)
    assert tree(into) == {"real": "/", "real/y": "new", "x": "-> real"}


def test_a_name_that_no_file_can_have(into: Path, archive: Callable[..., Path]) -> None:
    with pytest.raises(InvalidValue, match=r"cannot write in .*: File name too long"):
        unpack(archive(member("good"), member("x" * 300)), into, MIB)
    assert tree(into) == {}


# --- whatever comes ---------------------------------------------------------------------------------------------------

PARTS = st.sampled_from(["a", "b", "l", "..", ".", "", "x"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.just("/a") | st.text(max_size=6)
KINDS = st.sampled_from(
    [tarfile.REGTYPE] * 4 + [tarfile.SYMTYPE] * 4 + [tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"Z"]
)
MEMBERS = st.lists(st.tuples(NAMES, KINDS, NAMES), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    first=MEMBERS, then=MEMBERS, lenient=st.booleans(), strip=st.integers(0, 1), cut=st.integers(0, 4000) | st.none()
)
def test_nothing_is_ever_outside(first: list, then: list, lenient: bool, strip: int, cut: int | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch).resolve()
        into = top / "one" / "two" / "into"
        into.mkdir(parents=True)
        (top / "one" / "a").write_text("outside")
        for members in (first, then):
            made = [member(name, b"evil", kind, target) for name, kind, target in members if "\0" not in name + target]
            path = tar_of(top / "a.tar", made)
            if cut is not None:
                path.write_bytes(path.read_bytes()[:-cut])
            before = tree(into)
            try:
                unpack(path, into, MIB, lenient=lenient, strip=strip)
            except InvalidValue:
                assert tree(into) == before
        (top / "a.tar").unlink()
        assert {path for path in tree(top) if not path.startswith("one/two/into")} == {"one", "one/a", "one/two"}
        assert (top / "one" / "a").read_text() == "outside"
        for path in into.rglob("*"):
            assert path.is_relative_to(into)
            try:
                real = path.resolve()
            except (OSError, RuntimeError):
                continue  # a circle
            assert real.is_relative_to(into), f"{path} leads to {real}"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=1500), st.integers(0, 2000), st.binary(max_size=12))
def test_noise_is_refused(noise: bytes, at: int, patch: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path, into = Path(scratch, "a.tar"), Path(scratch, "into")
        whole = tar_of(path, [member("a", b"x" * 600), link("b", "a"), member("c")]).read_bytes()
        for data in (noise, whole[:at] + patch + whole[at + len(patch) :]):
            path.write_bytes(data)
            with contextlib.suppress(InvalidValue):
                unpack(path, into, MIB)
        assert {each.split("/")[0] for each in tree(Path(scratch))} <= {"a.tar", "into"}

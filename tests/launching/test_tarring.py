"""Archives on their way into a unit, without one."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from jupyter_gpufit.errors import LaunchError
from jupyter_gpufit.launching.tarring import given_to, pack, unpack, whole


def nothing(current: int) -> None:
    pass


def member(name: str, content: bytes | None = None, type: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = type, link, mode, 1e9
    info.size = len(content or b"")
    info.uid, info.gid, info.uname, info.gname = 77, 88, "their", "own"
    return info, content


def archive(path: Path, *members, format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, None if content is None else io.BytesIO(content))
    return path


def rewritten(path: Path, owner, prefix=(), folders=0) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(b"".join(given_to(owner, path, prefix, folders, nothing))))


# --- given to its user ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_each_file_is_given_to_its_user_below_the_prefix(tmp_path, format):
    long, odd = "ä" * 150 + "/" + "x" * 90, b"caf\xe9".decode("utf-8", "surrogateescape")
    big = random.Random(1).randbytes(700_001)
    path = archive(
        tmp_path / "a.tar",
        member(".", type=tarfile.DIRTYPE),
        member("./sub/", type=tarfile.DIRTYPE, mode=0o2755),
        member(long, b"long", mode=0o4755),
        member(odd, b"odd"),
        member("big", big),
        member("soft", type=tarfile.SYMTYPE, link="../elsewhere"),
        member("hard", type=tarfile.LNKTYPE, link="./big"),
        format=format,
    )
    tar = rewritten(path, (1000, 100), ("work", "in"), 1)
    found = tar.getmembers()
    assert {(info.uid, info.gid, info.uname, info.gname) for info in found} == {(1000, 100, "", "")}
    names = ["work/in", "work/in", "work/in/sub", f"work/in/{long}", f"work/in/{odd}", "work/in/big", "work/in/soft"]
    assert [info.name for info in found] == [*names, "work/in/hard"]
    by_name = {info.name.removeprefix("work/in/"): info for info in found}
    assert tar.extractfile(by_name["big"]).read() == big
    assert tar.extractfile(by_name[long]).read() == b"long"
    assert (by_name[long].mode, by_name["sub"].mode) == (0o755, 0o755), "nothing runs as somebody else"
    assert by_name["soft"].linkname == "../elsewhere"
    assert by_name["hard"].linkname == "work/in/big"
    assert by_name["big"].mtime == 1e9


def test_of_a_user_nobody_knows_all_may_write(tmp_path):
    path = archive(tmp_path / "a.tar", member("f", b"", mode=0o600), member("d", type=tarfile.DIRTYPE, mode=0o700))
    assert [info.mode for info in rewritten(path, None).getmembers()] == [0o666, 0o777]


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (member("../x", b""), "outside"),
        (member("/x", b""), "outside"),
        (member("x", type=tarfile.LNKTYPE, link="../y"), "outside"),
        (member("x", type=tarfile.CHRTYPE), "neither"),
        (member("x", type=tarfile.FIFOTYPE), "neither"),
    ],
)
def test_what_is_not_put_anywhere(tmp_path, info, why):
    path = archive(tmp_path / "a.tar", info)
    with pytest.raises(LaunchError, match=why):
        rewritten(path, (0, 0))
    (tmp_path / "target").mkdir()
    with pytest.raises(LaunchError, match=why):
        unpack(path, str(tmp_path / "target"), nothing)
    assert list((tmp_path / "target").iterdir()) == []


# --- unpacked ---------------------------------------------------------------------------------------------------------


def test_unpacked_as_it_was(tmp_path):
    path = archive(
        tmp_path / "a.tar",
        member(".", type=tarfile.DIRTYPE),
        member("sub", type=tarfile.DIRTYPE, mode=0o500),
        member("sub/f", b"new", mode=0o4755),
        member("deep/er/g", b"g"),
        member("soft", type=tarfile.SYMTYPE, link="sub/f"),
        member("hard", type=tarfile.LNKTYPE, link="sub/f"),
    )
    target = tmp_path / "target"
    for _ in range(2):  # what is there already is replaced
        target.mkdir(exist_ok=True)
        unpack(path, str(target), nothing)
        assert (target / "sub/f").read_bytes() == b"new"
        assert (target / "sub/f").stat().st_mode & 0o7777 == 0o755
        assert (target / "sub/f").stat().st_mtime == 1e9
        assert (target / "deep/er/g").read_bytes() == b"g"
        assert os.readlink(target / "soft") == "sub/f"
        assert os.path.samefile(target / "hard", target / "sub/f")


def test_no_link_leads_out(tmp_path):
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (outside / "f").write_text("theirs")
    (target / "there").symlink_to(outside)  # was there before
    (target / "f").symlink_to(outside / "f")
    for members in (
        [member("there/x", b"x")],
        [member("there/new/x", b"x")],
        [member("brought", type=tarfile.SYMTYPE, link=str(outside)), member("brought/x", b"x")],
        [member("brought", type=tarfile.SYMTYPE, link="../outside"), member("brought/x", type=tarfile.DIRTYPE)],
        [member("hard", type=tarfile.LNKTYPE, link="there/f")],
    ):
        with pytest.raises(LaunchError, match="outside the directory"):
            unpack(archive(tmp_path / "a.tar", *members), str(target), nothing)
    unpack(archive(tmp_path / "a.tar", member("f", b"ours")), str(target), nothing)  # in place of the link
    assert (target / "f").read_text() == "ours"
    assert (outside / "f").read_text() == "theirs"
    assert [path.name for path in outside.iterdir()] == ["f"]


def test_a_directory_is_not_replaced_by_a_file(tmp_path):
    (tmp_path / "target/d").mkdir(parents=True)
    with pytest.raises(LaunchError, match="'d' is a directory there already"):
        unpack(archive(tmp_path / "a.tar", member("d", b"")), str(tmp_path / "target"), nothing)


# --- packed -----------------------------------------------------------------------------------------------------------


def test_packed_and_unpacked(tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/f").write_bytes(b"f" * 100_000)
    (source / "soft").symlink_to("/etc")
    os.link(source / "sub/f", source / "twin")
    with open(tmp_path / "a.tar", "wb") as file:
        pack(str(source), file.write)
    assert whole(tmp_path / "a.tar")
    (tmp_path / "target").mkdir()
    unpack(tmp_path / "a.tar", str(tmp_path / "target"), nothing)
    assert (tmp_path / "target/source/sub/f").read_bytes() == b"f" * 100_000
    assert (tmp_path / "target/source/twin").read_bytes() == b"f" * 100_000
    assert os.readlink(tmp_path / "target/source/soft") == "/etc"
    os.truncate(tmp_path / "a.tar", 20_480)
    assert not whole(tmp_path / "a.tar")


def test_what_cannot_be_read_is_named(tmp_path):
    def write(data: bytes) -> int:
        (tmp_path / "f").write_bytes(b"")  # while it is read
        return len(data)

    (tmp_path / "f").write_bytes(bytes(10_000_000))
    with pytest.raises(LaunchError, match=r"/f cannot be read: it changed meanwhile"):
        pack(str(tmp_path / "f"), write)

"""Logs in pieces: what an engine answers, and what a supervisor keeps. Without either."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpufit.launching import printed
from jupyter_gpufit.launching.printed import chosen, frames, from_files, since, stamped
from jupyter_gpufit.launching.supervise import Log
from jupyter_gpufit.scheduling.logs import Piece, text_of

MOMENT = "2026-11-30T18:00:00.123456789Z"


def framed(*printed: bytes) -> bytes:
    return b"".join(b"\1\0\0\0" + len(each).to_bytes(4) + each for each in printed)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 30))
def test_frames_come_whole_however_they_are_cut(contents, size):
    data = framed(*contents)
    assert list(frames(data[at : at + size] for at in range(0, len(data), size))) == contents


def test_the_marks_of_an_engine_tell_apart_what_came_in_one_moment():
    euro = "€".encode()
    later = MOMENT.replace(".1", ".2")
    said = [f"{MOMENT} {n}".encode() for n in "ab"]
    said += [f"{later} ".encode() + euro[:1], f"{later} ".encode() + euro[1:] + b"\n"]
    pieces = list(stamped(said))
    assert [piece.text for piece in pieces] == ["a", "b", "", "€\n"]
    assert [piece.mark for piece in pieces] == sorted({piece.mark for piece in pieces})
    for n, piece in enumerate(pieces):
        assert list(stamped(said, piece.mark)) == pieces[n + 1 :]
        assert since(piece.mark) == ("1796061600.123456789" if n < 2 else "1796061600.223456789")


def test_what_is_no_mark():
    for text in ("", "abc", "123", MOMENT, f"{MOMENT}-1", "2026-99-99T18:00:00.123456789Z-000000"):
        assert since(text) is None


def test_only_so_much_is_told_at_once(monkeypatch):
    monkeypatch.setattr(printed, "MOST", 10)
    pieces = [Piece(str(n), f"{n}234\n") for n in range(6)]
    assert text_of(chosen(pieces, None, True)) == "0234\n1234\n"
    assert text_of(chosen(pieces, None, False)) == "4234\n5234\n"
    assert text_of(chosen(pieces, 1, True)) == "5234\n"
    assert chosen(pieces, 0, True) == ()


@given(st.lists(st.sampled_from([b"line\n", b"\n", b"half", "ä€".encode(), b"x" * 30 + b"\n", b"10 %\r"]), max_size=40))
def test_a_follower_gets_each_byte_once_while_files_come_and_go(tmp_path_factory, writes):
    """As long as it is no further behind than what is kept."""
    prefix = tmp_path_factory.mktemp("logs") / "log"
    log, heard, mark = Log(str(prefix), 200), "", ""
    for data in writes:
        log.write(data)
        for piece in from_files(prefix, after=mark):
            assert piece.mark > mark
            heard, mark = heard + piece.text, piece.mark
    whole = b"".join(writes)
    assert heard == whole.decode()
    assert len(list(prefix.parent.glob("log.*"))) <= 2
    kept = text_of(from_files(prefix))
    assert whole.decode().endswith(kept)
    assert len(kept) >= min(len(whole.decode()), 60)
    log.file.close()


def test_a_follower_that_comes_late_gets_what_is_kept_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(printed, "MOST", 1000)
    log = Log(str(tmp_path / "log"), 8000)
    for n in range(2000):
        log.write(f"line {n}\n".encode())
    assert text_of(from_files(tmp_path / "log")).splitlines()[-1] == "line 1999"
    assert len(text_of(from_files(tmp_path / "log"))) <= 1000
    heard, mark = "", f"{5:020d}"
    while pieces := from_files(tmp_path / "log", after=mark):
        assert len(text_of(pieces)) <= 1000
        heard, mark = heard + text_of(pieces), pieces[-1].mark
    lines = heard.splitlines()
    assert lines == [f"line {n}" for n in range(2000 - len(lines), 2000)]
    assert len(heard) > 4000
    log.file.close()


def test_one_line_that_is_longer_than_what_is_kept(tmp_path):
    log = Log(str(tmp_path / "log"), 100)
    for _ in range(3):
        log.write(b"x" * 500)
    pieces = from_files(tmp_path / "log")
    assert text_of(pieces) == "x" * 50
    assert int(pieces[-1].mark) == 1500
    log.file.close()

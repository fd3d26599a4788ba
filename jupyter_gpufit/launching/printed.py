"""What a unit printed → pieces with marks (`scheduling/logs.py`), of either launcher.

    an engine's answer  → frames → stamped   mark: when it was printed, by the engine's clock, and which of that moment
    a supervisor's files → from_files        mark: where it ends, in bytes since the unit began

A supervisor's files are named by where they begin, so a mark means the same whoever reads, and whatever was thrown away
meanwhile.
"""

from __future__ import annotations

import calendar
import codecs
import io
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..scheduling.logs import Piece, last_lines

__all__ = ["MOST", "chosen", "frames", "from_files", "since", "stamped"]

MOST = 2 * 2**20
"""Bytes (or characters) that are told at once."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z-\d{6}", re.ASCII)


def chosen(pieces: Iterable[Piece], tail: int | None, first: bool) -> Sequence[Piece]:
    """Of `pieces` what is told at once: the `first` ones (so that asking again goes on there), or the last ones; of
    these the last `tail` lines."""
    found: deque[Piece] = deque()
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece.text)
        if first and tail is None:
            if size >= MOST:
                break
            continue
        while size > MOST and len(found) > 1:
            size -= len(found.popleft().text)
    told = tuple(found)
    return told if tail is None else last_lines(told, tail) if tail > 0 else ()


# --- an engine's answer -----------------------------------------------------------------------------------------------


def since(after: str) -> str | None:
    """Docker's `since` for what came with or after the piece of mark `after`; `None` if that is no mark of ours."""
    found = _STAMP.fullmatch(after)
    if found is None:
        return None
    try:
        return f"{calendar.timegm(time.strptime(found[1], '%Y-%m-%dT%H:%M:%S'))}.{found[2]}"
    except ValueError:  # 30 February
        return None


def frames(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Docker's multiplexed stream, read in `chunks` of any size → what was printed at once, without the headers."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        at = 0
        while len(rest) >= at + 8 and len(rest) >= (end := at + 8 + int.from_bytes(rest[at + 4 : at + 8])):
            yield bytes(rest[at + 8 : end])
            at = end
        del rest[:at]


def stamped(printed: Iterable[bytes], after: str = "") -> Iterator[Piece]:
    """Frames that begin with a moment (`timestamps=1`) → pieces whose mark is greater than `after`.

    The parts of a long line have one and the same moment, and a letter may lie on both sides of a cut.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    moment, number = "", 0
    for frame in printed:
        stamp, _, content = frame.partition(b" ")
        now = stamp.decode("ascii", "replace")
        moment, number = now, number + 1 if now == moment else 0
        text = decoder.decode(content, final=content.endswith(b"\n"))
        if (mark := f"{moment}-{number:06d}") > after:
            yield Piece(mark, text)


# --- a supervisor's files ---------------------------------------------------------------------------------------------


def from_files(prefix: Path, tail: int | None = None, after: str = "") -> Sequence[Piece]:
    """What is kept in the files of `supervise.Log` at `prefix`. Blocks for as long as the disk takes."""
    start = int(after) if re.fullmatch(r"\d{1,20}", after, re.ASCII) else None
    at, data = _read(prefix, start, start is not None and tail is None)
    return chosen(_lines(data, at), tail, start is not None)


def _read(prefix: Path, start: int | None, first: bool) -> tuple[int, bytes]:
    """What lies behind `start`, no more than `MOST` bytes: the first or the last of it; and where it begins."""
    names = sorted(path for path in prefix.parent.glob(f"{prefix.name}.*") if path.suffix[1:].isdigit())
    begins = [int(path.suffix[1:]) for path in names]
    at, data = 0, b""
    for path, begin in zip(names, begins, strict=True):
        if first and len(data) > MOST:
            break
        try:
            with open(path, "rb") as file:
                length = os.fstat(file.fileno()).st_size
                skipped = min(max((start or 0) - begin, 0), length)
                if not first:
                    skipped = max(skipped, length - MOST - 1)  # one more: whether to cut
                file.seek(skipped)
                content = file.read(MOST + 1 - len(data) if first else length - skipped)
        except FileNotFoundError:  # thrown away in this moment
            continue
        if begin + skipped != at + len(data):  # the first, or behind something that was thrown away
            at, data = begin + skipped, b""
        data += content
    if first:
        data = data[:MOST]
        return at, data[: data.rfind(b"\n") + 1] or data if len(data) == MOST else data
    if len(data) > MOST:
        cut = data.find(b"\n", len(data) - MOST) + 1 or len(data) - MOST
        at, data = at + cut, data[cut:]
    return at, data


def _lines(data: bytes, at: int) -> Iterator[Piece]:
    """`data`, which begins at byte `at`, line by line; half a letter at its end waits for the other half."""
    for line in io.BytesIO(data):  # at line feeds alone: a carriage return goes back in the same line
        if line.endswith(b"\n"):
            text, used = line.decode("utf-8", "replace"), len(line)
        else:
            text, used = codecs.utf_8_decode(line, "replace", False)
        at += used
        if text:
            yield Piece(f"{at:020d}", text)

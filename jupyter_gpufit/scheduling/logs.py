"""What units print, in pieces that can be told apart: so that whoever follows a log gets each piece once.

    launcher ─→ pieces of the unit that runs ─┐
    store    ─→ pieces of units before it    ─┴→ `Log`: text, and a mark to go on from

A mark is text that sorts as the pieces do. It is the launcher's own (a moment, a place in a file); the scheduler puts
the number of the attempt before it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

__all__ = ["Log", "Piece", "last_lines", "text_of", "within"]


class Piece(Struct, frozen=True, array_like=True, gc=False):
    """Some text, mostly a line, and the mark behind it."""

    mark: str
    text: str


class Log(Struct, frozen=True, kw_only=True):
    """A part of what an allocation printed."""

    text: str
    mark: str
    """Where to go on: what comes `after` it is new. As it was asked, if there is nothing new."""
    over: bool = False
    """The allocation has ended, and this is the last of it."""


def text_of(pieces: Iterable[Piece]) -> str:
    """All of it."""
    return "".join(piece.text for piece in pieces)


def last_lines(pieces: Sequence[Piece], lines: int) -> Sequence[Piece]:
    """The pieces that hold the last `lines` lines. (A piece without an end of line goes on in the next one.)"""
    at, ends = len(pieces), 0
    while at > 0:
        ends += pieces[at - 1].text.endswith("\n") or at == len(pieces)
        if ends > lines:
            break
        at -= 1
    return pieces[at:]


def within(pieces: Sequence[Piece], most: int) -> Sequence[Piece]:
    """The last `most` characters of the pieces: the first of them may be the end of one."""
    at, left = len(pieces), most
    while at > 0 and len(pieces[at - 1].text) <= left:
        at -= 1
        left -= len(pieces[at].text)
    kept = pieces[at:]
    if at == 0 or left == 0:
        return kept
    cut = pieces[at - 1]
    return [Piece(cut.mark, cut.text[-left:]), *kept]

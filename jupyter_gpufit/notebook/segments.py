"""Which lines of a cell stay in the local kernel, and which go to the remote one. Pure.

Lines of `%gpufit` (also `df = %gpufit gpus`, `%gpufit?`, and `%load_ext jupyter_gpufit`) at the top level of a cell
stay; all between two of them is one segment and goes in one piece. A cell that starts with `%%gpufit` stays whole. A
`%gpufit` inside a block cannot be cut out: it goes, and is the one of the kernel there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from tokenize import COMMENT, DEDENT, ENCODING, ENDMARKER, INDENT, NAME, NEWLINE, NL, OP

from msgspec import Struct

__all__ = ["Segment", "split"]

_CELL = re.compile(r"\s*%%gpufit(\s|\?|$)")
_MENTIONED = re.compile(r"gpufit")
_LINE = re.compile(
    r"""\s*(?: [\w.,\s\[\]'"]+ = (?!=) \s* )?      # an assignment, perhaps
        %(?: gpufit (?: [\s?;] | $ ) | (?: re|un )?load_ext \s+ jupyter_gpufit \b )""",
    re.VERBOSE,
)
_HELP = re.compile(r"\s*\?{1,2}%{0,2}gpufit\s*$|\s*%{0,2}gpufit\?{1,2}\s*$")
_SILENT = {COMMENT, DEDENT, ENCODING, ENDMARKER, INDENT, NEWLINE, NL}


class Segment(Struct, frozen=True):
    """A run of lines of one kind."""

    code: str
    local: bool


def split(cell: str, *, automagic: bool = False) -> list[Segment]:
    """The segments of `cell`, in order; one for most cells, none for an empty one.

    With `automagic`, a cell of one line may leave out the `%`.
    """
    if not cell.strip():
        return []
    if _CELL.match(cell):
        return [Segment(cell, True)]
    if not _MENTIONED.search(cell) or re.match(r"\s*%%", cell):
        return [Segment(cell, False)]
    if _HELP.match(cell):
        return [Segment(cell, True)]
    if automagic and "\n" not in cell.strip() and re.match(r"gpufit(\s+[\w-]|\s*$)", cell.strip()):
        return [Segment(cell, True)]
    segments: list[tuple[list[str], bool]] = []
    leading: list[str] = []  # empty lines and comments before the first statement
    for lines, local in _logical_lines(cell):
        if local is None and not segments:
            leading.extend(lines)
        elif segments and local in (None, segments[-1][1]):
            segments[-1][0].extend(lines)
        else:
            segments.append(([*leading, *lines], bool(local)))
            leading = []
    if not segments:
        return [Segment(cell, False)]  # comments only
    return [Segment("".join(lines), local) for lines, local in segments]


def _logical_lines(cell: str) -> Iterator[tuple[list[str], bool | None]]:
    """The cell's logical lines (each a list of physical ones), and whether each stays local; or `None`."""
    from IPython.core.inputtransformer2 import make_tokens_by_line

    lines = cell.splitlines(keepends=True)
    done = 0
    for tokens in make_tokens_by_line(lines):
        real = [token for token in tokens if token.type not in _SILENT]
        if not tokens or (tokens[-1].type in (ENCODING, ENDMARKER) and not real):
            continue
        end = min(
            max(token.end[0] - (token.end[1] == 0 and token.end[0] > token.start[0]) for token in tokens), len(lines)
        )
        if end <= done:
            continue
        chunk = lines[done:end]
        done = end
        if not real:
            yield chunk, None
            continue
        first = real[0]
        statement = "".join(lines[first.start[0] - 1 : end])
        yield chunk, first.start[1] == 0 and first.type in (OP, NAME) and bool(_LINE.match(statement))
    if done < len(lines):
        yield lines[done:], False

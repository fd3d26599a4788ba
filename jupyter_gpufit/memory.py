"""Sizes of memory, to and from people. Inside, memory is an `int` of bytes everywhere.

`GiB`, `Gi` and `G` are 2**30; `GB` is 10**9; likewise for K, M and T.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .errors import InvalidValue

__all__ = ["GiB", "compare", "format_memory", "parse_memory"]

GiB = 2**30

_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])(ib|i|b)?|(b))?\s*", re.IGNORECASE | re.ASCII)
_BELOW_ZERO = re.compile(r"\s*-\s*[\d.]")
_LARGEST = 2**60
_LONGEST_TEXT = 64


def parse_memory(value: str | int) -> int:
    """Bytes meant by `value`: `"16GiB"`, `"16G"`, `"16 GB"`, `"0.5g"`, `"1024B"` or an int of bytes.

    Raises `InvalidValue` for anything else, for fewer than 0 bytes and for more than an exbibyte. A number that people
    write without a unit is refused, unless it is 0: who writes `--memory 16` does not mean 16 bytes.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidValue(f"{value!r} is not a size of memory; write it like '16GiB', or as an int of bytes")
    if isinstance(value, int):
        size = value
    else:
        if len(value) > _LONGEST_TEXT:
            raise InvalidValue(f"{value[:20]!r}… is not a size of memory; write it like '16GiB'")
        match = _SIZE.fullmatch(value)
        if match is None:
            if _BELOW_ZERO.match(value):
                raise InvalidValue(f"{value!r} is negative; write a size of memory like '16GiB'")
            raise InvalidValue(f"{value!r} is not a size of memory; write it like '16GiB', '16G' or '500MB'")
        number, unit, suffix, plain = match.groups()
        if not (unit or plain) and Fraction(number):
            raise InvalidValue(f"{value!r} has no unit; write '{_likely(number)}'")
        base = 1000 if suffix and suffix.lower() == "b" else 1024
        # A Fraction, not a float: "0.1GB" is exactly 100,000,000 bytes.
        size = int(Fraction(number) * base ** _EXPONENTS[(unit or "").lower()])
    if not 0 <= size <= _LARGEST:
        raise InvalidValue(f"{value!r} is not a possible size of memory; write it like '16GiB'")
    return size


def _likely(number: str) -> str:
    """What somebody who wrote a number alone can have meant."""
    return f"{number}{'GiB' if Fraction(number) < 1024 else 'B' if Fraction(number) >= 2**20 else 'MiB'}"


def format_memory(size: int | None) -> str:
    """`size` bytes for people, in binary units and at most one decimal: `"16 GiB"`, `"11.2 GiB"`, `"?"` if unknown.

    Rounded down, so that a size shown is never more than there is.
    """
    if size is None:
        return "?"
    for unit, exponent in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        tenths = abs(size) * 10 // 1024**exponent
        if tenths >= 10:
            whole, tenth = divmod(tenths, 10)
            sign = "-" if size < 0 else ""
            return f"{sign}{whole}.{tenth} {unit}" if tenth and whole < 1000 else f"{sign}{whole} {unit}"
    return f"{size} B"


def compare(have: int, asked: int) -> tuple[str, str]:
    """Two sizes for people; in bytes where rounding would make the smaller one look enough."""
    texts = format_memory(have), format_memory(asked)
    return texts if texts[0] != texts[1] else (f"{have} bytes", f"{asked} bytes")

"""What units printed, of those that are gone: kept in the store, with a size limit, until the allocation is forgotten.

A mark here is the number of the unit among its allocation's, and the launcher's own mark: so what a unit printed sorts
behind all that those before it did. A job's log is that of all its attempts; a kernel's only of its last unit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..models import Unit
from .logs import Piece, text_of, within
from .store import Store

__all__ = ["Logbook", "launchers", "marked"]

_PART = "log"
_LAST_WORDS = 65_536  # characters


class Logbook:
    """Made by the scheduler; used on its event loop."""

    def __init__(self, store: Store, most: int) -> None:
        self.last: dict[str, str] = {}
        """Allocation -> the last of what its last unit had printed."""
        self._store, self._most = store, most

    def failed(self, id: str, text: str) -> None:
        """A unit that could not be started, and is gone already, had printed that."""
        self.last[id] = text_of(within([Piece("", text)], min(_LAST_WORDS, self._most)))

    async def add(self, id: str, unit: Unit, pieces: Sequence[Piece], behind: bool) -> None:
        """`unit`, which is about to be removed, had printed that. `behind`: what those before it did is kept, too."""
        number, kept = _number(unit), await self.read(id)
        if not pieces and not any(piece.mark.startswith(number) for piece in kept):
            pieces = [Piece("", last)] if (last := self.last.get(id)) else []
        if not pieces:
            return
        self.last[id] = text_of(within(pieces, min(_LAST_WORDS, self._most)))
        before = [piece for piece in kept if "/" < piece.mark < number] if behind else []
        self._store.keep(id, _PART, msgspec.json.encode(within([*before, *marked(unit, pieces)], self._most)))

    async def read(self, id: str, after: str = "") -> list[Piece]:
        """What is kept, behind that mark."""
        data = await self._store.kept(id, _PART)
        if data is None:
            last = self.last.get(id, "")
            return [Piece("/", last)] if last and not after else []
        return [piece for piece in msgspec.json.decode(data, type=list[Piece]) if piece.mark > after]

    def begin(self, id: str, anew: bool) -> None:
        """A new unit is about to print. `anew`: nobody will ask for what the one before it did."""
        self.last.pop(id, None)
        if anew:
            self._store.keep(id, _PART, None)

    def forget(self, id: str) -> None:
        """Nobody will ask about this allocation any more. (The store forgets what it keeps of it by itself.)"""
        self.last.pop(id, None)


def marked(unit: Unit, pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that a launcher gave of a unit, with marks as they are here."""
    number = _number(unit)
    return [Piece(number + piece.mark, piece.text) for piece in pieces]


def launchers(unit: Unit, mark: str) -> str:
    """The launcher's own mark in a mark; empty: it is one of another unit."""
    number = _number(unit)
    return mark.removeprefix(number) if mark.startswith(number) else ""


def _number(unit: Unit) -> str:
    """Which of its allocation's units it is: its name ends with that (`Steps._prepare`)."""
    number = unit.name.rpartition("-")[2]
    return f"{int(number) if number.isdecimal() else 0:06d}/"

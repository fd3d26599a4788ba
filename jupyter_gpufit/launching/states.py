"""What is known of the gpufit containers of one engine: a table, fed by its list and its events. Pure.

`exit_code` and the claims of others are answered from here, so without a call. While the engine cannot be reached the
table stays as it is: a container nobody hears of is not a dead one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ..models import Claim, Unit
from ..scheduling.needs import KILLED
from .base import describe_end, keep
from .claims import holds

__all__ = ["Ended", "Seen", "Table", "ended_meanwhile", "ended_unwatched", "killed"]

_WHILE_SILENT = "while its engine did not answer (one that starts again without live-restore ends what it ran)"

_KILLED = (128 + signal.SIGTERM, KILLED, 255)
"""Exit codes of what an engine ends when it is shut down, of what it ends when it is started again, and of what it does
not find then."""


class Seen(Struct, frozen=True, kw_only=True):
    """A container as the list, or an event, shows it."""

    unit: Unit
    claim: Claim
    state: str
    """Docker's word: `created`, `running`, `paused`, `restarting`, `exited`, `dead`; `gone` when it was removed."""
    created: float | None = None
    """Unix time by the engine's clock; `None` in an event that does not tell."""
    code: int | None = None
    """Exit code, in state `exited` or `dead`."""
    sentence: str = ""
    """How it ended."""
    memory: bool = False
    """It was killed for memory."""
    with_node: bool = False
    """It ended because of its node, not by itself."""


class Ended(Struct, frozen=True):
    """A container that ended without our doing."""

    unit: Unit
    code: int
    sentence: str
    memory: bool = False
    with_node: bool = False


def ended_unwatched(seen: Seen) -> Seen:
    """`seen`, listed when nobody had watched for a while; if it was killed, that was its node: the engine or the
    machine was shut down, or started again."""
    ended = seen.state in ("exited", "dead")
    return msgspec.structs.replace(seen, with_node=True) if ended and killed(seen) else seen


def killed(end: Seen | Ended) -> bool:
    """Whether it may have ended because of its node."""
    return end.code in _KILLED and not end.memory


def ended_meanwhile(seen: Seen) -> Seen:
    """`seen`, listed after the engine had not answered for a while; if it has ended, saying so."""
    seen = ended_unwatched(seen)
    if seen.state not in ("exited", "dead") or not seen.sentence:
        return seen
    return msgspec.structs.replace(seen, sentence=f"{seen.sentence} {_WHILE_SILENT}")


class Table:
    """What comes in returns the ends that are news, whoever's containers they are."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._ends: dict[str, Ended] = {}
        self._missed: dict[str, None] = {}  # ended only because a list did not have them
        self._dismissed: dict[str, None] = {}
        self.complete = False
        """Whether there was a list yet; if so, a container that is not here does not exist."""

    def listed(self, containers: Iterable[Seen]) -> list[Ended]:
        """The engine's list: all there are. What is missing from it was removed by somebody."""
        now = {seen.unit.id: seen for seen in containers if seen.unit.id not in self._dismissed}
        before, self._seen, self.complete = self._seen, now, True
        gone = [msgspec.structs.replace(seen, state="gone") for id, seen in before.items() if id not in now]
        for seen in gone:
            if seen.unit.id not in self._ends:
                keep(self._missed, seen.unit.id, None)
        return [end for seen in (*gone, *now.values()) if (end := self._note(seen, before.get(seen.unit.id)))]

    def happened(self, seen: Seen) -> list[Ended]:
        """An event: this container is in this state now."""
        id = seen.unit.id
        if id in self._dismissed:
            return []
        before = self._seen.get(id)
        if seen.created is None and before is not None:
            seen = msgspec.structs.replace(seen, created=before.created)
        if seen.state == "gone":
            self._seen.pop(id, None)
        else:
            self._seen[id] = seen
        return [end] if (end := self._note(seen, before)) else []

    def dismiss(self, unit: Unit) -> None:
        """We removed it: whatever is still said of it is old news."""
        keep(self._dismissed, unit.id, None)
        self._seen.pop(unit.id, None)
        if unit.id not in self._ends:
            keep(self._ends, unit.id, Ended(unit, KILLED, "stopped"))

    def end_of(self, unit: Unit) -> Ended | None:
        """How it ended, if that is certain."""
        if unit.id in self._ends:
            return self._ends[unit.id]
        if self.complete and unit.id not in self._seen:
            return Ended(unit, KILLED, "its container was removed while nobody watched")
        return None

    def blame_node(self, unit: Unit) -> Ended:
        """It ended a moment before its engine fell silent: that was no end of its own."""
        end = self._ends[unit.id]
        sentence = f"{end.sentence} {_WHILE_SILENT}"
        self._ends[unit.id] = msgspec.structs.replace(end, sentence=sentence, with_node=True)
        return self._ends[unit.id]

    def claims(self, now: float) -> list[Claim]:
        """All that is held on this engine at `now`, by the engine's clock."""
        return [
            seen.claim
            for seen in self._seen.values()
            if holds(seen.state, 0.0 if seen.created is None else now - seen.created)
        ]

    def _note(self, seen: Seen, before: Seen | None) -> Ended | None:
        """Remember an end; return it if it is news, which the end of what never ran is not."""
        if seen.state not in ("exited", "dead", "gone"):
            if seen.unit.id in self._missed:  # that list was made a moment before the container
                del self._missed[seen.unit.id]
                self._ends.pop(seen.unit.id, None)
            return None
        if seen.unit.id in self._ends:
            return None
        code = KILLED if seen.code is None else seen.code
        how = "its container was removed by somebody" if seen.state == "gone" else describe_end(code)
        end = Ended(seen.unit, code, seen.sentence or how, seen.memory, seen.with_node)
        keep(self._ends, seen.unit.id, end)
        never_ran = seen.state == "gone" and (before is None or before.state == "created")
        return None if never_ran else end

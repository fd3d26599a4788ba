"""What `jupyter gpufit doctor` finds out about a node: one `Check` per line. A part of the vocabulary, as `models`."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

__all__ = ["CHECKS", "Check", "Diagnosis", "Tell", "Verdict", "right", "unchecked", "wrong"]

CHECKS = (
    "reporter",
    "report",
    "tls",
    "engine",
    "api",
    "runtime",
    "image",
    "container",
    "ipykernel",
    "ports",
    "gpu",
    "kernel",
)
"""All there are, in their order; `docs/doctor.md` says what each one is. The last two are those of `--deep`."""


class Verdict(StrEnum):
    """What came out of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_CHECKED = "not-checked"


class Check(Struct, frozen=True, kw_only=True):
    """One line."""

    check: str
    """One of `CHECKS`."""
    verdict: Verdict
    message: str
    """A sentence for people."""
    fix: str = ""
    """The command, or the line in gpufit.toml, that mends it; empty if there is nothing to mend, or none is known."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """A node, as far as it has been looked at."""

    node: str
    deep: bool = False
    done: bool = False
    """Whether `checks` are all there will be."""
    checks: tuple[Check, ...] = ()

    @property
    def wrong(self) -> int:
        """How many checks found something wrong."""
        return sum(check.verdict is Verdict.WRONG for check in self.checks)


Tell = Callable[[Diagnosis], None]
"""Gets it after each check."""


def right(check: str, message: str) -> Check:
    """As it should be."""
    return Check(check=check, verdict=Verdict.RIGHT, message=message)


def wrong(check: str, message: str, fix: str = "") -> Check:
    """Not as it should be."""
    return Check(check=check, verdict=Verdict.WRONG, message=message, fix=fix)


def unchecked(check: str, message: str, fix: str = "") -> Check:
    """Not looked at, and why."""
    return Check(check=check, verdict=Verdict.NOT_CHECKED, message=message, fix=fix)

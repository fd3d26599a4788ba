"""How hard the random tests look, and the texts that somebody hostile would write.

pytest                                     # a minute of it in all; under CI half of it, the same examples every time
pytest --hypothesis-profile=long           # fifty times as much: after a bold change, over night
pytest --hypothesis-profile=longest        # a thousand times
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["HOSTILE", "any_json", "effort", "hostile", "is_harmless", "register_profiles"]

_USUAL = 100  # hypothesis' own number of examples, which all other numbers are taken in proportion to


def register_profiles() -> None:
    """Make the profiles known. Called once, by `conftest.py`, before hypothesis reads its command line."""
    if os.environ.get("CI"):  # hypothesis' own profile for it, and half as long
        settings.register_profile("ci", parent=settings.get_profile("ci"), max_examples=_USUAL // 2)
        settings.load_profile("ci")
    settings.register_profile("long", max_examples=50 * _USUAL, deadline=None, print_blob=True)
    settings.register_profile("longest", max_examples=1000 * _USUAL, deadline=None, print_blob=True)


def effort(examples: int, **more: Any) -> settings:
    """Settings for a test that tries `examples`, or as many more as the profile in force says."""
    return settings(
        max_examples=max(1, examples * settings.default.max_examples // _USUAL),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</td></tr></table><h1>",
    "&lt;b&gt;",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b2J",
    "one\ntwo\r\nthree\rfour",
    "a\x00b",
    "\x07\x08\x7f",
    "\u202eevil\u202c",
    "\u2066\u2069\u200b\ufeff",
    "\u2028\u2029\x85",
    "שלום عليكم",
    "𝔾𝕡𝕦 💩 ﷽",
    "Z̷̢̛a̵l̶g̸o̴" * 20,
    "x" * 100_000,
    "%s %d %(name)s {0} {name}",
    "'; DROP TABLE allocations; --",
    "../../etc/passwd",
    '"} 1\ngpufit_report_ok 1\n#',
    "$(reboot) `reboot`",
    "",
    " ",
    "GPU-1",
    "nan",
    "null",
)
"""Texts that break what does not expect them: markup, terminals, logs, paths, formats, right-to-left, very long."""

# By index: hypothesis writes down what it samples from, and some of these are long.
hostile = st.integers(0, len(HOSTILE) - 1).map(HOSTILE.__getitem__) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=40
)
_numbers = (
    st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, 1e308, -0.0])
)
any_json = st.recursive(
    st.none() | st.booleans() | _numbers | hostile,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hostile, inner, max_size=4),
    max_leaves=10,
)
"""Any JSON, with hostile texts and numbers in it."""


def is_harmless(text: str) -> bool:
    """Whether a terminal, a log and a person can be given `text`: no control character, no override of direction."""
    return all(char.isprintable() or char == "\n" for char in text)

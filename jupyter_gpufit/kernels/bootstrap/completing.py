"""Completion of `%gpufit` and `%%gpufit` in IPython: in kernels that run on the GPUs, and by the local kernel's magics.

Put into every unit beside `attached.py`, so it depends on nothing but IPython and Python 3.8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["complete_no_longer", "complete_with"]

LINE = re.compile(r"""\s*(?:[\w.,\s\[\]'"]+=(?!=)\s*)?(%gpufit\s.*)""")
CELL = re.compile(r"(%%gpufit\s.*)")


def words_before(text: str, line: int, column: int) -> str | None:
    """The `%gpufit …` (or `%%gpufit …`, in the first line) that the cursor is at the end of, if it is."""
    before = text.split("\n")[line][:column]
    match = (CELL.fullmatch(before) if line == 0 else None) or LINE.fullmatch(before)
    return None if match is None else match[1]


def complete_with(shell: Any, find: Callable[[str], list[str]]) -> None:
    """Complete what follows `%gpufit` and `%%gpufit` with what `find` gives for it (up to the cursor), and nothing else
    beside. Also called by the local kernel's magics.

    As a matcher of IPython's second API: what a `complete_command` hook gives is drowned by all names of Python.
    """
    completer = getattr(shell, "Completer", None)
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:  # before IPython 8.6
        for key in ("%gpufit", "%%gpufit"):
            shell.set_hook(
                "complete_command",
                lambda _shell, event: find(getattr(event, "text_until_cursor", "") or event.line),
                str_key=key,
            )
        return
    if completer is None:
        return
    complete_no_longer(shell)

    @context_matcher(priority=100, identifier="jupyter_gpufit")  # type: ignore[untyped-decorator]
    def gpufit(context: Any) -> Any:
        before = words_before(context.full_text, context.cursor_line, context.cursor_position)
        if before is None:
            return {"completions": [], "suppress": False}
        word = "" if before[-1].isspace() else before.split()[-1]
        found = [SimpleCompletion(text, type="gpufit") for text in find(before)]
        return {"completions": found, "suppress": bool(found), "matched_fragment": word, "ordered": True}

    completer.custom_matchers.append(gpufit)


def complete_no_longer(shell: Any) -> None:
    """Undo `complete_with`. Idempotent."""
    matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", None)
    if matchers is not None:
        matchers[:] = [one for one in matchers if getattr(one, "matcher_identifier", None) != "jupyter_gpufit"]

"""The parsers of `jupyter gpufit`, which know what may have been meant."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import InvalidValue
from ..notebook.options import Parser, meant

__all__ = ["CommandParser", "MainParser", "VerbParser"]

_NOTEBOOK_ONLY = ("attach", "detach")


class CommandParser(Parser):
    """With `-h`, as programs have it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"add_help": True} | options)


class MainParser(CommandParser):
    """Of the whole command: it knows the verbs, and those that there are in a notebook alone."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Called by argparse for every value; of these, only the verb is one of several."""
        verbs = list(action.choices or ())
        if action.choices is None or value in verbs:
            return
        if value in _NOTEBOOK_ONLY:
            name = " NAME" if value == "attach" else ""
            raise InvalidValue(
                f"{value!r} is about a notebook, and works only in one: %gpufit {value}{name}; here there are: "
                + ", ".join(verbs)
            )
        raise InvalidValue(f"there is no {value!r}{meant(str(value), verbs) or '; there are: ' + ', '.join(verbs)}")


class VerbParser(CommandParser):
    """Of one verb: answers itself for what it does not know, because it knows what that may have been meant to be."""

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Called by argparse."""
        found, unknown = super().parse_known_args(args, namespace)
        self.refuse(unknown)
        return found, []

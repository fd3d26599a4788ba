"""The DataFrames that `%gpufit nodes | gpus | allocations` give: numbers to compute with, shown as people read them.

Imports pandas: import it where a table is made.
"""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from ..cluster import tables
from .show import text_table

__all__ = ["Table"]

_MOST_ROWS = 60
_WIDTH = 160
"""Columns of text; front ends scroll what is wider than they are."""


class Table(pd.DataFrame):
    """A DataFrame of which a notebook shows what tells a person something, with units and bars (`tables.style`).

    All columns are there all the same. What is made of it (a selection, a copy) and what is pickled is an ordinary
    DataFrame.
    """

    @property
    def _constructor(self) -> type[pd.DataFrame]:  # called by pandas
        return pd.DataFrame

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pd.DataFrame, (pd.DataFrame(self),)  # where it is pushed to, there may be none of this package

    def __repr__(self) -> str:
        shown, rest = self._shown()
        text = text_table(list(shown.columns), tables.texts(shown), _WIDTH) if len(shown) else ""
        return "\n".join(part for part in (text, rest) if part)

    def _repr_html_(self) -> str:
        shown, rest = self._shown()
        html = tables.style(shown).to_html() if len(shown) else ""
        return html + (f"<div style='opacity: 0.7'>{escape(rest)}</div>" if rest else "")

    def _shown(self) -> tuple[pd.DataFrame, str]:
        """What of it is shown, and a sentence on the rest."""
        table = pd.DataFrame(self)
        columns = tables.telling(table)
        hidden = [str(column) for column in table.columns if column not in columns]
        if table.empty:
            return table, "no rows"
        said = [f"and {left} more rows"] if (left := len(table) - _MOST_ROWS) > 0 else []
        said += [f"not shown: {', '.join(hidden)}"] if hidden else []
        return table[columns].head(_MOST_ROWS), "; ".join(said)

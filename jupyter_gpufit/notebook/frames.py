"""The DataFrames that `%gpufit nodes | gpus | allocations` give: numbers to compute with, shown as people read them.

Imports pandas: import it where a table is made.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..cluster import tables
from ..memory import format_memory

__all__ = ["Table"]

_MOST_ROWS = 60


class Table(pd.DataFrame):
    """A DataFrame that a notebook shows by `tables.style`: `39.3 GiB`, and nothing where there is nothing.

    What is made of it (a selection, a copy) and what is pickled is an ordinary DataFrame.
    """

    @property
    def _constructor(self) -> type[pd.DataFrame]:  # called by pandas
        return pd.DataFrame

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pd.DataFrame, (pd.DataFrame(self),)  # where it is pushed to, there may be none of this package

    def __repr__(self) -> str:
        shown = pd.DataFrame(self).astype(object).where(self.notna(), "")
        for column in shown.columns.intersection(list(tables.BYTES)):
            shown[column] = [size if size == "" else format_memory(int(size)) for size in shown[column]]
        return repr(shown)

    def _repr_html_(self) -> str:
        html: str = tables.style(pd.DataFrame(self.head(_MOST_ROWS))).to_html()
        left = len(self) - _MOST_ROWS
        return html if left <= 0 else f"{html}<div>... and {left} more rows</div>"

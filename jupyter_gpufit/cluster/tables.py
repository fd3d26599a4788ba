"""The cluster as pandas DataFrames: for `%gpufit nodes`, `gpus`, `models`, `allocations`, and for whoever computes.

Columns and dtypes are always the same, also of an empty table; unknown is `<NA>`, never zero. Sizes are integer bytes,
times UTC. `style` and `texts` are the same for people, `telling` the columns of it that tell them something.
Importing this does not load pandas; calling it does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..memory import format_memory
from ..models import Allocation, Node
from ..reporting.model_store import LAST_MOMENT
from .pictures import Picture, Public

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

__all__ = [
    "ALLOCATION_COLUMNS",
    "GPU_COLUMNS",
    "MODEL_COLUMNS",
    "NODE_COLUMNS",
    "allocations",
    "gpus",
    "models",
    "nodes",
    "style",
    "telling",
    "texts",
    "usage",
    "usage_picture",
]

_TIME: Final = "datetime64[ns, UTC]"
_LONGEST_JOB: Final = 60  # characters

NODE_COLUMNS: Final = {
    "node": "string",
    "usable": "boolean",
    "reason": "string",  # why it is not
    "gpus": "Int64",  # that can be allocated, now or later
    "idle": "Int64",
    "memory_total": "Int64",  # bytes, of those
    "memory_free": "Int64",  # bytes, less what is reserved
    "cpus": "Float64",  # of the machine
    "cpus_free": "Float64",  # less what allocations asked for
    "ram": "Int64",  # bytes of the machine's own memory
    "ram_free": "Int64",
    "launcher": "string",
    "age": "Float64",  # seconds since its last report
    "driver": "string",
    "cuda": "string",
    "labels": "string",  # JSON
}

GPU_COLUMNS: Final = {
    "node": "string",
    "index": "Int64",
    "uuid": "string",
    "model": "string",
    "idle": "boolean",
    "shareable": "boolean",
    "memory_total": "Int64",
    "memory_free": "Int64",  # bytes, less what is reserved
    "memory_used": "Int64",
    "utilization": "Int64",  # percent
    "temperature": "Int64",  # degrees Celsius
    "power": "Float64",  # watts
    "health": "string",
    "allocatable": "boolean",
    "reason": "string",  # why nothing can be placed on it (or on its node)
    "card": "string",
    "mig_profile": "string",
    "parent": "string",
    "numa": "Int64",
    "processes": "Int64",
    "allocations": "string",  # ids, separated by blanks
}

MODEL_COLUMNS: Final = {
    "node": "string",
    "name": "string",
    "size": "Int64",  # bytes
    "modified": _TIME,  # by the node's clock
}

ALLOCATION_COLUMNS: Final = {
    "name": "string",
    "state": "string",
    "node": "string",
    "gpus": "Int64",
    "memory": "Int64",  # bytes, of all of them
    "cpus": "Float64",  # of the machine, as asked; none: none in particular
    "ram": "Int64",  # bytes, likewise
    "job": "string",  # what it runs, and its point in a sweep; none: a kernel
    "attempt": "Int64",
    "exit_code": "Int64",
    "owner": "string",
    "created": _TIME,
    "expires": _TIME,
    "ended": _TIME,
    "reason": "string",
    "message": "string",
    "warning": "string",
    "image": "string",
    "shared": "boolean",
    "id": "string",
    "kernel_id": "string",
    "priority": "Int64",
    "position": "Int64",  # among those that wait
    "uuids": "string",  # of the GPUs, separated by blanks
}


def nodes(nodes: Iterable[Node | Mapping[str, Any]]) -> pd.DataFrame:
    """One row per node (`NODE_COLUMNS`). A mapping is a node as REST gives it."""
    return _frame([_node_row(_node(node)) for node in nodes], NODE_COLUMNS)


def gpus(nodes: Iterable[Node | Mapping[str, Any]]) -> pd.DataFrame:
    """One row per GPU, MIG instance and MIG parent of `nodes` (`GPU_COLUMNS`), in the effective view."""
    return _frame([row for node in nodes for row in _gpu_rows(_node(node))], GPU_COLUMNS)


def models(nodes: Iterable[Node | Mapping[str, Any]]) -> pd.DataFrame:
    """One row per model in the model stores of `nodes` (`MODEL_COLUMNS`), by node and name."""
    return _frame([row for node in nodes for row in _model_rows(_node(node))], MODEL_COLUMNS)


def allocations(allocations: Iterable[Allocation | Mapping[str, Any]]) -> pd.DataFrame:
    """One row per allocation (`ALLOCATION_COLUMNS`). A mapping is `Allocation.public()`, as REST gives it."""
    rows = [each.public() if isinstance(each, Allocation) else each for each in allocations]
    return _frame([_allocation_row(row) for row in rows], ALLOCATION_COLUMNS)


def usage(series: Mapping[str, Any] | Public) -> pd.DataFrame:
    """One row per sample (or some that have been merged: the most memory, the mean utilisation) of one allocation, by
    UTC time; for each of its GPUs a column `memory_0` (bytes; `Int64`) and `utilization_0` (percent; `Float64`).

    `.attrs` has its `sentence`, and of each GPU `uuids` and `asked` (bytes). `series` is a `UsageSeries`, or what REST
    gives of it. `usage_picture` shows it; where matplotlib is installed, so does `.plot()`.
    """
    import pandas as pd

    public = series if isinstance(series, Mapping) else series.public()
    columns: dict[str, pd.Series[Any]] = {}
    for at, gpu in enumerate(public["gpus"]):
        columns[f"memory_{at}"] = pd.Series(gpu["memory"], dtype="Int64")
        columns[f"utilization_{at}"] = pd.Series(gpu["utilization"], dtype="Float64")
    times = pd.to_datetime(pd.Series(public["times"], dtype="Float64"), unit="s", utc=True).astype(_TIME)
    table = pd.DataFrame(columns, columns=list(columns)).set_index(pd.DatetimeIndex(times, name="time"))
    table.attrs = {
        "sentence": public["sentence"],
        "uuids": [gpu["uuid"] for gpu in public["gpus"]],
        "asked": [gpu["asked"] for gpu in public["gpus"]],
    }
    return table


def usage_picture(series: Mapping[str, Any] | Public) -> Picture:
    """The same as lines, for a notebook; needs neither pandas nor matplotlib. `series`: as for `usage`."""
    return Picture(series if isinstance(series, Mapping) else series.public())


# --- rows


def _node(node: Node | Mapping[str, Any]) -> Node:
    return node if isinstance(node, Node) else msgspec.convert(dict(node), Node)


def _node_row(node: Node) -> dict[str, Any]:
    usable = [gpu for gpu in node.gpus if gpu.allocatable]
    known = node.age is not None  # a node that never reported has no number of GPUs
    return {
        "node": node.name,
        "usable": node.reason is None,
        "reason": node.reason,
        "gpus": len(usable) if known else None,
        "idle": sum(gpu.idle for gpu in usable) if known else None,
        "memory_total": _sum(gpu.memory_total for gpu in usable) if known else None,
        "memory_free": _sum(gpu.memory_free for gpu in usable) if known else None,
        "cpus": node.cpus,
        "cpus_free": node.cpus_free,
        "ram": node.ram,
        "ram_free": node.ram_free,
        "launcher": node.launcher,
        "age": node.age,
        "driver": node.driver,
        "cuda": node.cuda,
        "labels": json.dumps(node.labels, sort_keys=True, ensure_ascii=False),
    }


def _gpu_rows(node: Node) -> list[dict[str, Any]]:
    same = [column for column in GPU_COLUMNS if column not in ("node", "reason", "processes", "allocations")]
    return [
        {column: getattr(gpu, column) for column in same}
        | {
            "node": node.name,
            "reason": gpu.reason if node.reason is None else f"{node.name}: {node.reason}",
            "processes": len(gpu.processes),
            "allocations": " ".join(gpu.allocations),
        }
        for gpu in node.gpus
    ]


def _model_rows(node: Node) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "name": model.name,
            "size": model.size,
            "modified": model.modified if model.modified is not None and 0 <= model.modified <= LAST_MOMENT else None,
        }
        for model in sorted(node.models or (), key=lambda model: model.name)
    ]


def _allocation_row(public: Mapping[str, Any]) -> dict[str, Any]:
    uuids, memory, asked = public["gpus"], public["memory"], public.get("request") or {}
    same = ("name", "state", "node", "owner", "created", "expires", "ended", "reason", "message", "id", "kernel_id")
    return {
        **{column: public.get(column) for column in same},
        "job": None if (job := public.get("job")) is None else _job(job),
        "attempt": None if job is None else public.get("attempt") or None,
        "exit_code": public.get("exit_code"),
        "warning": public.get("warning"),
        "image": public.get("image"),
        "shared": public.get("shared"),
        "priority": public.get("priority"),
        "position": (public.get("queue") or {}).get("position"),
        "gpus": len(uuids) or None,
        "memory": sum(memory) if uuids else None,
        "cpus": asked.get("cpus"),
        "ram": asked.get("ram"),
        "uuids": " ".join(uuids),
    }


def _job(job: Mapping[str, Any]) -> str:
    text = " ".join([job["run"], *(f"{name}={value}" for name, value in job["sweep"].items())])
    return text if len(text) <= _LONGEST_JOB else f"{text[: _LONGEST_JOB - 1]}…"


def _sum(sizes: Iterable[int | None]) -> int | None:
    """`None` if one is not known: what adds up without it is not the sum."""
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def _frame(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    def series(column: str, dtype: str) -> pd.Series[Any]:
        values = [row[column] for row in rows]
        if dtype == _TIME:
            return pd.Series(pd.to_datetime(pd.Series(values, dtype="Float64"), unit="s", utc=True)).astype(_TIME)
        return pd.Series(values, dtype=dtype)

    return pd.DataFrame({column: series(column, dtype) for column, dtype in columns.items()}, columns=list(columns))


# --- for people

_SHARES: Final = {
    "memory_free": "memory_total",
    "memory_used": "memory_total",
    "utilization": 100,
    "cpus_free": "cpus",
    "ram_free": "ram",
}
"""Columns with a bar, and what a full bar is: another column, or a number."""
_FREE: Final = "46, 160, 67"
_COLORS: Final = {"memory_used": "209, 134, 22", "utilization": "56, 132, 244"}
"""Half-transparent over whatever is behind, and no colour of text: so it reads on light and dark."""
_ASIDE: Final = ("uuid", "uuids", "card", "parent", "numa", "kernel_id", "id")
"""For programs: long, and people name things otherwise."""
_ORDINARY: Final = {
    "usable": True,
    "allocatable": True,
    "health": "ok",
    "shareable": False,
    "shared": False,
    "priority": 0,
    "attempt": 1,
    "labels": "{}",
}
"""A column that says this in every row says nothing."""
_SENTENCES: Final = ("reason", "message", "warning")
_UNUSABLE: Final = ("usable", "allocatable")


def telling(table: pd.DataFrame) -> list[str]:
    """Those columns of `table` that tell a person something: not empty, not the ordinary everywhere, no ids."""

    def tells(column: str) -> bool:
        said = table[column].dropna()
        return bool((said != _ORDINARY.get(column, "")).any())

    return [column for column in table.columns if column not in _ASIDE and tells(column)]


def texts(table: pd.DataFrame) -> list[list[str]]:
    """Its cells as `style` shows them, row by row."""
    formats = _formats(table)
    columns = [_column(table[column], formats.get(column, str)) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def style(table: pd.DataFrame) -> Styler:
    """`table` (one of these) for people: sizes in GiB, bars for memory and utilisation, `?` for unknown.

    What nodes wrote of themselves is escaped. Works with light and dark themes.
    """
    words: Any = [column for column in table.columns if str(table.dtypes[column]) == "string"]
    shown = table.style.format(_formats(table), na_rep="?", escape="html")
    shown = shown.format(na_rep="", escape="html", subset=words)  # mostly there is no reason, no profile: no riddle
    for column, whole in _SHARES.items():
        if column in table.columns and (isinstance(whole, int) or whole in table.columns):
            of = table[whole] if isinstance(whole, str) else whole
            shown = shown.apply(_bars, subset=[column], of=of, color=_COLORS.get(column, _FREE))
    for column in table.columns.intersection(list(_UNUSABLE)):
        shown = shown.apply(lambda row, column=column: _dimmed(row, row.isna()[column] or row[column]), axis="columns")
    sentences: Any = [column for column in words if column in _SENTENCES]
    shown = shown.set_properties(subset=sentences, **{"white-space": "normal", "min-width": "16em"})
    sides = ["left" if column in words else "right" for column in table.columns]
    styles: Any = [
        {"selector": f"th.col{at}, td.col{at}", "props": f"text-align: {side}"} for at, side in enumerate(sides)
    ]
    return shown.set_table_styles(styles).hide(axis="index")


def _formats(table: pd.DataFrame) -> dict[str, Any]:
    formats: dict[str, Any] = {
        **dict.fromkeys(("memory_total", "memory_free", "memory_used", "memory", "size", "ram", "ram_free"), _gib),
        **dict.fromkeys(("cpus", "cpus_free"), "{:g}".format),
        **dict.fromkeys(("created", "expires", "ended", "modified"), _moment),
        **dict.fromkeys((column for column in table.columns if str(table.dtypes[column]) == "boolean"), _mark),
        "utilization": "{:.0f} %".format,
        "temperature": "{:.0f} °C".format,
        "power": "{:.0f} W".format,
        "age": "{:.1f} s".format,
    }
    return {column: how for column, how in formats.items() if column in table.columns}


def _column(values: pd.Series[Any], how: Any) -> list[str]:
    unknown = "" if str(values.dtype) == "string" else "?"
    return [unknown if missing else how(value) for value, missing in zip(values, values.isna(), strict=True)]


def _bars(values: pd.Series[Any], of: Any, color: str) -> list[str]:
    shares = (values.astype("Float64") / of * 100).clip(0, 100).to_numpy(dtype=float, na_value=math.nan)
    bar = "background: linear-gradient(90deg, rgba({color}, 0.35) {share:.1f}%, transparent {share:.1f}%)"
    return ["" if math.isnan(share) else bar.format(color=color, share=share) for share in shares]


def _dimmed(row: pd.Series[Any], well: Any) -> list[str]:
    """Less of the text's own colour where nothing can be had."""
    return ["" if well else "opacity: 0.6"] * len(row)


def _gib(size: Any) -> str:
    return format_memory(int(size))


def _mark(value: Any) -> str:
    return "✓" if value else "–"


def _moment(moment: Any) -> str:
    """In this machine's time zone."""
    return f"{moment.floor('s').to_pydatetime().astimezone():%Y-%m-%d %H:%M}"

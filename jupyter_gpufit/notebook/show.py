"""Things for people to read: tables and sentences, as text (terminals, logs) and as HTML (notebooks). Pure."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from ..durations import format_duration, format_moment
from ..memory import format_memory
from ..models import Node, Usage
from ..reporting.model_store import LAST_MOMENT
from ..scheduling.usage import say
from .client import Json
from .progress import standing

__all__ = [
    "Page",
    "about_job",
    "allocation_table",
    "describe",
    "explanation",
    "gpu_table",
    "message_of",
    "model_table",
    "node_table",
    "text_table",
    "usage_table",
    "used",
]

Row = Sequence[str]

_MOST_ROWS = 200
_RUN = 40  # characters of what a job runs
_OF_MACHINE = ("CPUs", "RAM", "CPUs free", "RAM free")  # of most requests, and of many clusters, nothing is said
_OF_NUMBERS = set("0123456789./ %°CW") | set("KMGTiB") | set("dhms")  # with their units


class Page:
    """Text and HTML of one thing; displays as whichever the front end shows."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._html: list[str] = []

    def say(self, sentence: str) -> Page:
        """Add a paragraph."""
        self._text.append(sentence)
        self._html.append(f"<div>{escape(sentence)}</div>")
        return self

    def table(self, headers: Row, rows: Sequence[Row]) -> Page:
        """Add a table."""
        self._text.append(text_table(headers, rows))
        head = "".join(f"<th style='text-align:left'>{escape(header)}</th>" for header in headers)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        self._html.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        return self

    @property
    def text(self) -> str:
        """All of it as plain text."""
        return "\n\n".join(self._text)

    @property
    def html(self) -> str:
        """All of it as HTML; whatever came from outside is escaped."""
        return "\n".join(self._html)

    def bundle(self) -> dict[str, str]:
        """As a mime bundle."""
        return {"text/plain": self.text, "text/html": self.html}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.bundle()


def text_table(headers: Row, rows: Sequence[Row], width: int = 120) -> str:
    """An aligned table of at most `width` columns; what is too long is wrapped in the widest column."""
    table = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headers))]
    widest = max(range(len(widths)), key=widths.__getitem__)
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    if excess > 0:
        widths[widest] = max(widths[widest] - excess, 20)
    numeric = [bool(rows) and all(_is_number(row[column]) for row in table[1:]) for column in range(len(headers))]
    lines = []
    for row in table:
        wrapped = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
        for at in range(max(map(len, wrapped))):
            cells = [cell[at] if at < len(cell) else "" for cell in wrapped]
            lines.append(
                "  ".join(
                    cell.rjust(size) if right else cell.ljust(size)
                    for cell, size, right in zip(cells, widths, numeric, strict=True)
                ).rstrip()
            )
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell in ("", "?") or (cell[0].isdigit() and not set(cell) - _OF_NUMBERS and cell.count(" ") <= 3)


# --- the cluster


def node_table(nodes: Iterable[Node], *, machine: bool = False) -> tuple[Row, list[list[str]]]:
    """One row per node: what it has, what is idle, why not if so. `machine`: also its cores and its own memory, if
    they are known of any."""
    rows, nodes = [], list(nodes)
    for node in nodes:
        schedulable = [gpu for gpu in node.gpus if gpu.allocatable]
        idle = [gpu for gpu in schedulable if gpu.idle]
        free = [gpu.memory_free for gpu in idle if gpu.memory_free is not None]
        models = Counter(gpu.model or "?" for gpu in schedulable)
        split = {gpu.parent for gpu in node.gpus}  # GPUs in MIG mode: nothing is wrong with them
        faults = {gpu.reason for gpu in node.gpus if gpu.reason and not gpu.allocatable and gpu.uuid not in split}
        why = node.reason or "; ".join(sorted(faults))
        rows.append(
            [
                node.name,
                ", ".join(f"{count} × {model}" for model, count in sorted(models.items())) or "no GPU",
                f"{0 if node.reason else len(idle)}/{len(schedulable)}",
                format_memory(max(free)) if free and not node.reason else "",
                *(_machine(node) if machine else ("", "")),
                why,
            ]
        )
    return _without_blank(("node", "GPUs", "idle", "most free", "CPUs free", "RAM free", "note"), rows)


def _machine(node: Node) -> tuple[str, str]:
    cores = "" if node.cpus_free is None or node.cpus is None else f"{node.cpus_free:g}/{node.cpus:g}"
    ram = "" if node.ram_free is None else f"{format_memory(node.ram_free)} of {format_memory(node.ram)}"
    return ("", "") if node.reason else (cores, ram)


def _without_blank(headers: Row, rows: list[list[str]]) -> tuple[Row, list[list[str]]]:
    """The table without those columns about a machine that say nothing in any row."""
    shown = [at for at, header in enumerate(headers) if header not in _OF_MACHINE or any(row[at] for row in rows)]
    return tuple(headers[at] for at in shown), [[row[at] for at in shown] for row in rows]


def gpu_table(nodes: Iterable[Node]) -> tuple[Row, list[list[str]]]:
    """One row per GPU: how full it is, and whether it can be had."""
    rows = []
    for node in nodes:
        for gpu in node.gpus:
            why = node.reason or gpu.reason or ""
            if why:
                state = "not usable"
            elif gpu.allocations:
                state = f"held by {', '.join(gpu.allocations)}"
            else:
                state = "idle" if gpu.idle else "busy"
            utilization = "" if gpu.utilization is None else f"{gpu.utilization} %"
            model = gpu.model + (f" {gpu.mig_profile}" if gpu.mig_profile else "")
            free, total = format_memory(gpu.memory_free), format_memory(gpu.memory_total)
            rows.append([node.name, str(gpu.index), model, f"{free} of {total}", utilization, state, why])
    return ("node", "GPU", "model", "free", "load", "state", "note"), rows


def model_table(nodes: Iterable[Node]) -> tuple[Row, list[list[str]]]:
    """One row per model in a node's store."""
    rows = [
        [node.name, one.name, format_memory(one.size), _moment(one.modified)]
        for node in nodes
        for one in node.models or ()
    ]
    return ("node", "model", "size", "last written"), rows


def _moment(moment: float | None) -> str:
    """What a node says may be anything."""
    return "" if moment is None or not 0 <= moment <= LAST_MOMENT else format_moment(moment)


# --- allocations


def describe(allocation: Json) -> str:
    """`"'train': 2 GPUs with 16 GiB each on gpu01"`."""
    sizes = allocation.get("memory") or []
    count = len(allocation.get("gpus") or sizes)
    noun = "GPU" if count == 1 else "GPUs"
    if sizes and any(sizes):
        each = f" with {format_memory(sizes[0])}" + (" each" if count > 1 else "") if len(set(sizes)) == 1 else ""
        each = each or " with " + ", ".join(format_memory(size) for size in sizes)
    else:
        each = ""
    beside = _beside(allocation.get("request") or {})
    where = f" on {allocation['node']}" if allocation.get("node") else ""
    return f"{allocation['name']!r}" + (f": {count} {noun}{each}{beside}{where}" if count else where)


def _beside(request: Json) -> str:
    """What is asked of the machine beside GPUs: `", 8 CPUs, 64 GiB RAM"`."""
    cpus, ram = _asked(request)
    return (f", {cpus} CPU{'' if cpus == '1' else 's'}" if cpus else "") + (f", {ram} RAM" if ram else "")


def used(allocation: Json) -> str:
    """What it really used of its GPUs, and what would have been enough; empty if that says nothing new."""
    usage = allocation.get("usage")
    if not usage or usage.get("suggested") is None:
        return ""
    said = say(msgspec.convert(usage, Usage))
    return f"{said[0].upper()}{said[1:]}." if said else ""


def usage_table(series: Json) -> tuple[Row, list[list[str]]]:
    """One row per GPU: what was asked of it, and what was used. `series` is what `Client.usage` gives."""
    rows = [
        [
            gpu["uuid"],
            format_memory(gpu["asked"]) if gpu["asked"] else "",
            format_memory(gpu["peak"]),
            "?" if gpu["busy"] is None else f"{gpu['busy']:.0f} %",
        ]
        for gpu in (series.get("usage") or {}).get("gpus", ())
    ]
    return ("GPU", "asked", "peak", "busy"), rows


def allocation_table(
    allocations: Iterable[Json], here: str | None = None, now: float | None = None
) -> tuple[Row, list[list[str]]]:
    """One row per allocation. `here` is the id of the one that the notebook's cells run on."""
    now = time.time() if now is None else now
    rows = []
    for one in allocations:
        expires = one.get("expires")
        sizes = [size for size in one.get("memory") or [] if any(one["memory"])]
        memory = format_memory(sizes[0]) if len(set(sizes)) == 1 else ", ".join(format_memory(size) for size in sizes)
        rows.append(
            [
                one["name"] + (" (here)" if one["id"] == here else ""),
                one["state"] + (f" ({why})" if (why := _why(one)) else ""),
                one.get("node") or "",
                str(len(one.get("gpus") or [])),
                memory,
                *_asked(one.get("request") or {}),
                "" if expires is None or one["state"] == "ended" else format_duration(max(0.0, expires - now)),
                " ".join(said for said in (_note(one, now), one.get("warning")) if said),
            ]
        )
    headers = ("allocation", "state", "node", "GPUs", "memory each", "CPUs", "RAM", "time left", "note")
    return _without_blank(headers, rows)


def _asked(request: Json) -> tuple[str, str]:
    cpus, ram = request.get("cpus"), request.get("ram")
    return "" if cpus is None else f"{cpus:g}", "" if ram is None else format_memory(ram)


def about_job(allocation: Json) -> str:
    """What runs there, if it is a job, and the how manieth time: `"runs fit.py --lr=1e-3, attempt 2"`."""
    job = allocation.get("job")
    if not job:
        return ""
    text = " ".join([job["run"], *(f"{key}={value}" for key, value in job["sweep"].items()), *job["args"]])
    text = text if len(text) <= _RUN else f"{text[: _RUN - 1]}…"
    attempt = allocation.get("attempt") or 0
    return f"runs {text}" + (f", attempt {attempt}" if attempt > 1 else "")


def message_of(allocation: Json) -> str:
    """The sentence on how it is, without the lines of its log that may follow it."""
    first = str(allocation.get("message") or "").strip().partition("\n")[0]
    return first.removesuffix(":").removesuffix("; its last lines were")


def _why(allocation: Json) -> str:
    code = allocation.get("exit_code")
    reason = allocation.get("reason")
    return f"{reason}, exit code {code}" if code and reason == "failed" else reason or _place(allocation)


def _place(allocation: Json) -> str:
    queue = allocation.get("queue")
    return f"{queue['position']} of {queue['of']} waiting" if queue else ""


def _note(allocation: Json, now: float) -> str:
    queue = allocation.get("queue")
    said = standing(queue, now) if queue else message_of(allocation)
    return "; ".join(part for part in (about_job(allocation), said) if part)


# --- selection


def explanation(decision: Mapping[str, Any]) -> Page:
    """`Decision.explain()`, or a `NotPlaced`'s details: per node how far it came, and why no further."""
    page = Page()
    if summary := decision.get("summary"):
        page.say(str(summary))
    stages = decision.get("stages") or []
    progress: dict[str, list[str]] = {}
    why: dict[str, str] = {}
    for at, stage in enumerate(stages):
        for name in stage.get("passed") or []:
            progress.setdefault(name, ["·"] * len(stages))[at] = "✓"
        for name, reason in (stage.get("rejected") or {}).items():
            progress.setdefault(name, ["·"] * len(stages))[at] = "✗"
            why[name] = str(reason)
    target = decision.get("node")
    for place, name in enumerate((stages[-1].get("passed") or []) if stages else []):
        why[name] = "chosen" if name == target else f"fits too; number {place + 1} in the order"
    # The one that wins first, then those that came furthest.
    order = sorted(progress, key=lambda name: (name != target, -progress[name].count("✓"), name))
    titles = [f"{stage.get('stage', at + 1)}" for at, stage in enumerate(stages)]
    if order:
        page.table(
            ("node", *titles, "why"), [[name, *progress[name], why.get(name, "")] for name in order[:_MOST_ROWS]]
        )
        if len(order) > _MOST_ROWS:
            page.say(f"... and {len(order) - _MOST_ROWS} more nodes")
        page.say(
            "stages: "
            + "; ".join(f"{title} {stage.get('title', '')}" for title, stage in zip(titles, stages, strict=True))
        )
    else:
        page.say("the cluster has no node")
    return page

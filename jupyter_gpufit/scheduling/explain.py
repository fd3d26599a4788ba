"""A decision put to people and programs: one sentence, a table of nodes and reasons, HTML, JSON."""

from __future__ import annotations

import difflib
from html import escape
from typing import TYPE_CHECKING, Any

from .candidates import has_model, is_literal

if TYPE_CHECKING:
    from .fit import Decision

__all__ = ["as_html", "as_json", "as_text", "in_short", "rows", "summary"]

MOST_ROWS = 200
"""Rows shown in text and HTML; `rows` has them all."""


def summary(decision: Decision) -> str:
    """What was decided; if nothing fits also what would."""
    text = in_short(decision)
    if decision.nearest is not None:
        return f"{text} {decision.nearest}."
    return f"{text} {decision.short}" if decision.short else text


def in_short(decision: Decision) -> str:
    """What was decided. For one that waits this stays as it is, whatever else would fit at the moment."""
    asked = decision.request.describe()
    if decision.placement is not None:
        return f"{asked}: {decision.placement.node}, {_which(decision)}{_with_model(decision)}."
    if not decision.nodes:
        return f"{asked}: the cluster has no nodes."
    if decision.never:
        return f"No node of this cluster could ever give {asked}{_wishes(decision)}, however empty.{_unknown(decision)}"
    return f"No node has {asked}{_wishes(decision)} now."


def rows(decision: Decision) -> list[dict[str, Any]]:
    """A row for each node, the chosen one first; see `Decision.table`."""
    table: list[dict[str, Any]] = []
    having = _having(decision)
    for place, name in enumerate(decision.stages[-1].passed):
        why = f"fits too; number {place + 1} in the order" if place else f"chosen: {_which(decision)}"
        table.append({"node": name, "stage": None, "why": why + ("; it has the model" if name in having else "")})
    for stage in reversed(decision.stages):
        table += [{"node": name, "stage": stage.number, "why": why} for name, why in stage.rejected.items()]
    return table


def as_json(decision: Decision, stages: bool = True) -> dict[str, Any]:
    """The whole decision as JSON types; with an empty list for the stages, if they are not asked for."""
    nearest = decision.nearest
    return {
        "node": decision.node,
        "gpus": list(decision.gpus),
        "memory": [] if decision.placement is None else list(decision.placement.memory),
        "policy": decision.policy,
        "request": decision.request.describe() + _wishes(decision),
        "summary": summary(decision),
        "never": decision.never,
        "nearest": None if nearest is None else {"node": nearest.node, "gpus": nearest.gpus, "memory": nearest.memory},
        "fitting": list(decision.fitting),
        "stages": [
            {
                "stage": stage.number,
                "name": stage.name,
                "title": stage.title,
                "passed": list(stage.passed),
                "rejected": dict(stage.rejected),
            }
            for stage in (decision.stages if stages else ())
        ],
    }


def as_text(decision: Decision) -> str:
    """The summary and the table, for a terminal."""
    table = rows(decision)
    shown = [(row["node"], _at(row), row["why"]) for row in table[:MOST_ROWS]]
    if not shown:
        return summary(decision)
    head = ("node", "stage", "why")
    width = [max(len(row[column]) for row in [head, *shown]) for column in (0, 1)]
    lines = [f"{node:{width[0]}}  {stage:{width[1]}}  {why}" for node, stage, why in [head, *shown]]
    return "\n".join([summary(decision), "", *lines, *_more(table)])


def as_html(decision: Decision) -> str:
    """The summary and the table, for a notebook. Everything that came from a node or a person is escaped."""
    table = rows(decision)
    text = f"<p>{escape(summary(decision))}</p>"
    if not table:
        return text
    head = _cells("th", "node", "stage", "why")
    body = "".join(_cells("td", row["node"], _at(row), row["why"]) for row in table[:MOST_ROWS])
    more = "".join(f"<p>{escape(line)}</p>" for line in _more(table))
    return f'<div class="gpufit-decision">{text}<table><thead>{head}</thead><tbody>{body}</tbody></table>{more}</div>'


def _cells(tag: str, *texts: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align: left">{escape(text)}</{tag}>' for text in texts) + "</tr>"


def _at(row: dict[str, Any]) -> str:
    return "fits" if row["stage"] is None else str(row["stage"])


def _more(table: list[dict[str, Any]]) -> list[str]:
    return [f"... and {len(table) - MOST_ROWS} more nodes"] if len(table) > MOST_ROWS else []


def _which(decision: Decision) -> str:
    """The chosen GPUs by index, as people and `nvidia-smi` number them; MIG instances, which have none, by uuid."""
    found = {gpu.uuid: gpu for gpu in decision.target.gpus} if decision.target is not None else {}
    chosen = [found[uuid] for uuid in decision.gpus]
    if any(gpu.parent is not None for gpu in chosen):
        return ", ".join(gpu.uuid for gpu in chosen)
    indices = [gpu.index for gpu in chosen]
    if len(set(decision.request.sizes)) == 1:  # else their order says which has which
        indices.sort()
    *most, last = map(str, indices)
    return f"GPUs {', '.join(most)} and {last}" if most else f"GPU {last}"


def _with_model(decision: Decision) -> str:
    """Whether the chosen node has the model that was named, as it follows its GPUs; empty if none was."""
    wish = decision.request.model
    if wish is None or decision.target is None:
        return ""
    has = has_model(decision.target, wish)
    if has is None:
        return f", which has not told whether it has model {wish!r}"
    return f", which has model {wish!r}" if has else f", which does not have model {wish!r}"


def _having(decision: Decision) -> set[str]:
    """The nodes that have the model that was named."""
    wish = decision.request.model
    return set() if wish is None else {node.name for node in decision.nodes if has_model(node, wish)}


def _unknown(decision: Decision) -> str:
    """If there is no node of the name that was asked for: that, and which may be meant."""
    wanted, names = decision.request.node, sorted(node.name for node in decision.nodes)
    if wanted is None or not is_literal(wanted) or wanted in names:
        return ""
    close = difflib.get_close_matches(wanted, names, n=1)
    return f" There is no node {wanted!r}{f'; did you mean {close[0]!r}?' if close else '.'}"


def _wishes(decision: Decision) -> str:
    """The request's filters in words; empty if it has none."""
    request = decision.request
    words = []
    if request.gpu_model is not None:
        words.append(f"of model {request.gpu_model!r}")
    if request.node is not None:
        words.append(f"on a node named {request.node!r}")
    if request.labels:
        words.append("on a node labelled " + ", ".join(f"{key}={value}" for key, value in request.labels.items()))
    if request.require_model:
        words.append(f"on a node that has model {request.model!r}")
    if request.write_models:
        words.append("on a node whose model store may be written to")
    return "".join(f" {word}" for word in words)

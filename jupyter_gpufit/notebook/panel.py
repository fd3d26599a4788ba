"""`%gpufit panel`, what it says: a form becomes a request, a dry run a sentence, allocations rows. Pure, no widgets.

    Form ─ read ─→ Request, or a sentence for each field that is wrong
    Request ─ the server's dry run ─ dry_run ─→ DryRun       where it would go, or why nowhere and what would fit
    allocations ─ row_of ─→ Row                              one line each, and what can be done to it
    Shown                                                    all that the panel shows at one moment

Who asks the server, and when: `panelwork.py`. How it looks: `panelview.py`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..durations import format_duration, parse_duration
from ..errors import GpufitError, InvalidValue
from ..memory import format_memory, parse_memory
from ..models import Gpu, Node, Request, State
from ..naming import short_model
from .client import Json
from .options import parse_cpus, parse_gpus, parse_ram
from .progress import doing, fraction, standing
from .show import describe

__all__ = ["DryRun", "Form", "Row", "Shown", "cluster_line", "dry_run", "model_table", "read", "row_of"]

_MOST_REASONS = 3


# --- the form


@dataclass(frozen=True)
class Form:
    """What is written in the form, as it is written."""

    gpus: str = "1"
    memory: str = "8GiB"
    cpus: str = ""
    ram: str = ""
    image: str = ""
    time: str = ""
    wait: str = ""
    shared: bool = False


def read(form: Form) -> tuple[Request | None, dict[str, str]]:
    """The request that the form asks for, or field → one sentence on what is wrong in it."""
    wrong: dict[str, str] = {}
    gpus = _field("gpus", form.gpus, parse_gpus, wrong)
    memory = _field("memory", form.memory, _memory, wrong)
    cpus = _field("cpus", form.cpus, lambda text: parse_cpus(text) if text else None, wrong)
    ram = _field("ram", form.ram, lambda text: parse_ram(text) if text else None, wrong)
    time = _field("time", form.time, _span, wrong)
    wait = _field("wait", form.wait, _span, wrong)
    image = _field("image", form.image, _image, wrong)
    if wrong:
        return None, wrong
    # (several sizes, and not as many as GPUs: the only thing that a request can still say)
    sized = _field("memory", form.memory, lambda _: Request(gpus=gpus, memory=memory), wrong)
    if sized is None:
        return None, wrong
    asked = Request(gpus=gpus, memory=memory, cpus=cpus, ram=ram, image=image, time=time, wait=wait, shared=form.shared)
    return asked, {}


def _field(name: str, text: str, parse: Any, wrong: dict[str, str]) -> Any:
    try:
        return parse(text.strip())
    except InvalidValue as problem:
        wrong[name] = problem.message
        return None


def _memory(text: str) -> int | tuple[int, ...]:
    if not text:
        return 0
    sizes = tuple(parse_memory(size) for size in text.split(","))
    return sizes[0] if len(sizes) == 1 else sizes


def _span(text: str) -> float | None:
    return parse_duration(text) if text else None


def _image(text: str) -> str | None:
    return Request(image=text or None).image


# --- the dry run


@dataclass(frozen=True)
class DryRun:
    """Where the form's request would go now."""

    fits: bool | None
    """`None`: that is not known (the server has not answered, or has refused the question)."""
    text: str
    reasons: tuple[str, ...] = ()
    """Why some nodes are not good enough: those that came furthest."""
    offer: Form | None = None
    """The form with the nearest request that would fit."""
    offered: str = ""
    """That request in a few words."""


def dry_run(decision: Mapping[str, Any], form: Form, request: Request, gpus: Mapping[str, Gpu]) -> DryRun:
    """What the server's answer (`Decision.explain()`) says. `gpus`: those of the cluster by uuid, as far as known."""
    node = decision.get("node")
    if node is not None:
        chosen = _models(gpus[uuid] for uuid in decision.get("gpus") or () if uuid in gpus)
        chosen = chosen or _counted(request.gpus, "GPU")
        return DryRun(True, f"{node}: {chosen}, {_place(decision)}")
    text = str(decision.get("summary") or "No node fits.")
    never = bool(decision.get("never"))
    if request.wait is not None and not never:
        text += f" A request would wait for up to {format_duration(float(request.wait))}."
    nearest = decision.get("nearest")
    if nearest is None:
        return DryRun(False, text, _reasons(decision))
    memory = format_memory(nearest["memory"]).replace(" ", "") if nearest["memory"] else ""
    offer = dataclasses.replace(form, gpus=str(nearest["gpus"]), memory=memory)
    offered = Request(gpus=nearest["gpus"], memory=memory or 0).describe()
    return DryRun(False, text, _reasons(decision), offer, offered)


def _place(decision: Mapping[str, Any]) -> str:
    """Why this node of all that fit."""
    stages = decision.get("stages") or []
    fitting = decision.get("fitting") or (stages[-1].get("passed") if stages else None) or []
    if len(fitting) == 1:
        return "the only node that fits"
    policy = decision.get("policy")
    word = "tightest" if policy == "best-fit" else f"first by policy {policy}"
    return f"{word} of {len(fitting)} that fit" if fitting else word


def _reasons(decision: Mapping[str, Any]) -> tuple[str, ...]:
    """`"gpu01: 1 idle GPU, 2 asked"`: the nodes that came furthest first; then how many more there are."""
    found = [
        f"{name}: {why}"
        for stage in reversed(decision.get("stages") or [])
        for name, why in (stage.get("rejected") or {}).items()
    ]
    if (more := len(found) - _MOST_REASONS) > 1:
        return (*found[:_MOST_REASONS], f"… and {more} more nodes (%gpufit explain has them all)")
    return tuple(found)


# --- the cluster


def model_of(gpu: Gpu) -> str:
    """The model's name without maker and form, and the size of a MIG instance: `"A100-40GB"`."""
    return " ".join(part for part in (short_model(gpu.model), gpu.mig_profile) if part) or "GPU"


def _models(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"{count} × {model}" for model, count in Counter(map(model_of, gpus)).items())


def _free(node: Node) -> list[Gpu]:
    return [] if node.reason else [gpu for gpu in node.gpus if gpu.allocatable and gpu.idle]


def cluster_line(nodes: Iterable[Node]) -> str:
    """`"12 nodes, 48 GPUs: 30 idle. 1 node cannot be used now: brook (it does not answer)."`"""
    nodes = list(nodes)
    if not nodes:
        return "The cluster has no nodes; gpufit.toml names them."
    total = sum(gpu.allocatable for node in nodes for gpu in node.gpus)
    idle = sum(len(_free(node)) for node in nodes)
    line = f"{_counted(len(nodes), 'node')}, {_counted(total, 'GPU')}: {idle} idle."
    out = [node for node in nodes if node.reason]
    if not out:
        return line
    named = "; ".join(f"{node.name} ({node.reason})" for node in out[:_MOST_REASONS])
    more = "; …" if len(out) > _MOST_REASONS else ""
    return f"{line} {_counted(len(out), 'node')} cannot be used now: {named}{more}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def model_table(nodes: Iterable[Node]) -> tuple[tuple[str, ...], list[list[str]]]:
    """One row per model: how many there are, how many idle, and what the emptiest has free. Of any size of cluster."""
    total: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    most: dict[str, int] = {}
    for node in nodes:
        total.update(model_of(gpu) for gpu in node.gpus if gpu.allocatable)
        for gpu in _free(node):
            model = model_of(gpu)
            idle[model] += 1
            most[model] = max(most.get(model, 0), gpu.memory_free or 0)
    rows = [
        [model, str(count), str(idle[model]), format_memory(most[model]) if model in most else ""]
        for model, count in sorted(total.items())
    ]
    return ("model", "GPUs", "idle", "most free"), rows


# --- allocations


@dataclass(frozen=True)
class Row:
    """One allocation, and what can be done to it."""

    id: str
    name: str
    title: str
    state: str
    note: str = ""
    warning: str = ""
    part: float | None = None
    """How much of a pull is done."""
    here: bool = False
    """The notebook's cells run on it."""
    wanted: bool = False
    """They will, once it runs and no cell does."""
    ended: bool = False
    can_attach: bool = False
    can_extend: bool = False
    can_release: bool = False


def row_of(allocation: Json, gpus: Mapping[str, Gpu], now: float, *, here: bool = False, wanted: bool = False) -> Row:
    """`gpus`: those of the cluster by uuid, as far as known. `now` is Unix time."""
    state, queue = allocation["state"], allocation.get("queue")
    models = _models(gpus[uuid] for uuid in allocation.get("gpus") or () if uuid in gpus)
    running, ended = state == State.RUNNING, state == State.ENDED
    live = not ended and state != State.STOPPING
    note = ""
    if queue:
        line, note = f"waiting, {queue['position']} of {queue['of']}", standing(queue, now).partition("; ")[2]
    elif ended:
        line, note = f"ended ({allocation.get('reason') or 'released'})", _first_line(allocation.get("message"))
    elif running:
        line, note = "running", _first_line(allocation.get("message"))
        if allocation.get("progress"):
            line = f"running; {doing(allocation, now)}"
    else:
        line = doing(allocation, now)
    expires = allocation.get("expires")
    if live and expires is not None:
        line += f" · {_left(expires - now)} left"
    return Row(
        id=allocation["id"],
        name=allocation["name"],
        title=_title(allocation) + (f" ({models})" if models else ""),
        state=line,
        note=note,
        warning=str(allocation.get("warning") or ""),
        part=fraction(allocation),
        here=here,
        wanted=wanted and not here and live,
        ended=ended,
        can_attach=live and not here and not allocation.get("job"),
        can_extend=live and bool(allocation.get("time") or expires),
        can_release=live,
    )


def _title(allocation: Json) -> str:
    """What it holds, or what was asked for."""
    asked = allocation.get("request")
    if allocation.get("gpus") or asked is None:
        return describe(allocation)
    try:
        return f"{allocation['name']!r}: {Request(**asked).describe()}"
    except (GpufitError, TypeError):  # a newer server's
        return describe(allocation)


def _left(seconds: float) -> str:
    """In whole minutes while there are some: what changes each second would keep a kernel from being taken for idle."""
    return format_duration(seconds // 60 * 60 if seconds >= 120 else max(seconds, 0.0) // 10 * 10)


def _first_line(message: Any) -> str:
    return str(message or "").partition("\n")[0]


# --- all of it


@dataclass(frozen=True)
class Shown:
    """All that the panel shows at one moment."""

    cluster: str = "Asking what there is …"
    where: str = "This notebook's cells run in its local kernel."
    here: bool = False
    """They run on an allocation, which can be left."""
    form: Form = Form()
    forms: int = 0
    """How often the panel itself has filled the form in: a view then shows it, and leaves it alone otherwise."""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Field of the form → what is wrong there."""
    dry: DryRun | None = None
    rows: tuple[Row, ...] = ()
    said: str = ""
    """What came of what was asked for last."""
    said_of: str = ""
    """Id of the allocation that it was about; empty: the form."""
    failed: bool = False
    trouble: str = ""
    """Why what is shown may be old."""
    note: str = ""
    """Why this is not the scheduler that was to be expected."""
    images: tuple[str, ...] = ()
    image: str = ""
    """The image that is used if none is named."""
    time: str = ""
    """Likewise, the time limit."""

"""Whether a report that came over the network can be believed as far as to compute with it. Pure.

`models.decode` has checked names and types by then. Here: bounds, so that a node that is broken (or hostile) can
neither fill our memory nor confuse what is shown of the others. What placements are computed from has to be possible,
or the whole report is refused. What is only shown is made fit for it: text is cleaned, an impossible metric is unknown.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from ..errors import InvalidValue
from ..models import Gpu, GpuProcess, Report, StoredModel
from ..reporting.model_store import LAST_MOMENT, MOST_MODELS, is_model_name

__all__ = ["MAX_GPUS", "MAX_PROCESSES", "check_report", "clean"]

MAX_GPUS: Final = 1024
MAX_PROCESSES: Final = 4096  # per GPU
_MAX_LINKS: Final = 256
_MAX_BYTES: Final = 2**60
_MAX_ID: Final = 128
_MAX_WORD: Final = 100
_MAX_NAME: Final = 255
_MAX_SENTENCE: Final = 500
_UUID: Final = re.compile(r"[A-Za-z][A-Za-z0-9._:/-]{0,127}")
_NO_UUIDS: Final = frozenset({"all", "none", "void"})


def check_report(report: Report) -> Report:
    """`report`, its texts cleaned. Raises `InvalidValue` naming the place and the value that cannot be."""
    if report.schema != 1:
        raise InvalidValue(
            f"schema is {report.schema}, and this jupyter_gpufit reads schema 1; update the older of the two"
        )
    _within("age", report.age, 10 * 366 * 86400)
    if len(report.gpus) > MAX_GPUS:
        raise InvalidValue(f"it lists {len(report.gpus)} GPUs; more than {MAX_GPUS} on one node are not believed")
    gpus = tuple(_gpu(gpu, f"gpus[{at}]") for at, gpu in enumerate(report.gpus))
    seen: set[str] = set()
    for gpu in gpus:
        if gpu.uuid in seen:
            raise InvalidValue(f"it lists GPU {gpu.uuid} twice")
        seen.add(gpu.uuid)
    return replace(
        report,
        host=clean(report.host, 253),
        driver=_optional(report.driver, _MAX_WORD),
        cuda=_optional(report.cuda, _MAX_WORD),
        error=None
        if report.error is None
        else clean(report.error, _MAX_SENTENCE) or "its reporter says that it cannot be relied on",
        gpus=gpus,
        models=None if report.models is None else _models(report.models),
    )


def clean(text: str, most: int) -> str:
    """`text` in one line of at most `most` printable characters (no control characters, no bidirectional overrides)."""
    # Cut first: what comes after is not worth the work.
    line = text[: 4 * most]
    if not line.isprintable():
        line = "".join(char if char.isprintable() else " " for char in line)
    line = " ".join(line.split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def _gpu(gpu: Gpu, at: str) -> Gpu:
    # It goes into a container's list of devices: there `all`, an index or `GPU-1,GPU-2` mean other things.
    if _UUID.fullmatch(gpu.uuid) is None or gpu.uuid.lower() in _NO_UUIDS:
        raise InvalidValue(f"{at}.uuid is {clean(gpu.uuid, 60)!r}, which cannot be the uuid of a GPU")
    _identifier(f"{at}.card", gpu.card)
    if gpu.parent is not None:
        _identifier(f"{at}.parent", gpu.parent)
    _within(f"{at}.index", gpu.index, 2**31)
    for key in ("memory_total", "memory_free", "memory_used"):
        _within(f"{at}.{key}", getattr(gpu, key), _MAX_BYTES)
    if gpu.memory_total is not None and gpu.memory_free is not None and gpu.memory_free > gpu.memory_total:
        raise InvalidValue(f"{at}.memory_free is {gpu.memory_free}, more than its memory_total of {gpu.memory_total}")
    if len(gpu.processes) > MAX_PROCESSES:
        raise InvalidValue(f"{at} lists {len(gpu.processes)} processes; more than {MAX_PROCESSES} are not believed")
    if len(gpu.links) > _MAX_LINKS:
        raise InvalidValue(f"{at} lists {len(gpu.links)} links; more than {_MAX_LINKS} are not believed")
    for link in gpu.links:
        _identifier(f"{at}.links", link)
    return replace(
        gpu,
        model=clean(gpu.model, _MAX_WORD),
        mig_profile=_optional(gpu.mig_profile, _MAX_WORD),
        reason=_optional(gpu.reason, _MAX_SENTENCE),
        health=clean(gpu.health, _MAX_WORD),
        utilization=gpu.utilization if _is_within(gpu.utilization, 0, 100) else None,
        temperature=gpu.temperature if _is_within(gpu.temperature, -273, 1000) else None,
        power=gpu.power if _is_within(gpu.power, 0, 1e6) else None,
        numa=gpu.numa if _is_within(gpu.numa, 0, 2**31) else None,
        processes=tuple(_process(process, f"{at}.processes[{n}]") for n, process in enumerate(gpu.processes)),
        # The effective view is for us to make.
        allocations=(),
        shareable=False,
    )


def _models(models: tuple[StoredModel, ...]) -> tuple[StoredModel, ...]:
    """Those that can be asked for, as many as are believed: what is in a store is no reason to distrust its node."""
    checked: dict[str, StoredModel] = {}
    for model in models[: 10 * MOST_MODELS]:
        if len(checked) == MOST_MODELS:
            break
        # Names are compared, so they are not cleaned.
        if len(model.name) <= _MAX_NAME and is_model_name(model.name):
            size = model.size if _is_within(model.size, 0, _MAX_BYTES) else None
            modified = model.modified if _is_within(model.modified, 0, LAST_MOMENT) else None
            checked[model.name] = StoredModel(name=model.name, size=size, modified=modified)
    return tuple(checked.values())


def _process(process: GpuProcess, at: str) -> GpuProcess:
    _within(f"{at}.pid", process.pid, 2**32)
    _within(f"{at}.memory", process.memory, _MAX_BYTES)
    container = process.container
    if container is not None:
        _identifier(f"{at}.container", container)
    return replace(process, name=_optional(process.name, _MAX_WORD))


def _identifier(at: str, text: str) -> None:
    """Identifiers are compared, so they are not cleaned: one that is not clean is refused."""
    if not text or len(text) > _MAX_ID or not text.isprintable() or text != text.strip():
        raise InvalidValue(f"{at} is {clean(text, 60)!r}, which cannot be an identifier")


def _within(at: str, value: float | None, most: int) -> None:
    if value is not None and not _is_within(value, 0, most):
        raise InvalidValue(f"{at} is {value}, which is not from 0 to {most}")


def _is_within(value: float | None, least: float, most: float) -> bool:
    return value is not None and least <= value <= most  # also false for NaN


def _optional(text: str | None, most: int) -> str | None:
    return None if text is None else clean(text, most) or None

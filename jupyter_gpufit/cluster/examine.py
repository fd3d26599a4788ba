"""The doctor's questions to a node's reporter: does it answer, and is its report one that can be acted on?"""

from __future__ import annotations

import time

from ..diagnosis import Check, right, unchecked, wrong
from ..durations import format_duration
from ..errors import GpufitError, InvalidValue
from ..inventory import NodeSpec
from ..models import Gpu, Report
from .poller import make_source

__all__ = ["examine_reporter"]

_START = "jupyter gpufit reporter --host 0.0.0.0 --token-file /etc/gpufit/token    # on that machine"
_BROKEN = ("unhealthy", "lost")


async def examine_reporter(spec: NodeSpec) -> tuple[list[Check], Report | None]:
    """The checks `reporter` and `report`, and the report if it can be relied on. Takes `spec.timeout` at most."""
    try:
        source = make_source(spec, lambda: ())
    except InvalidValue as error:
        return [wrong("reporter", error.message, 'report = "simulated:4xA100-40GB"'), _not_without()], None
    began = time.monotonic()
    try:
        report = await source.fetch(spec.timeout)
    except GpufitError as error:
        return [wrong("reporter", error.message, _remedy(spec, error)), _not_without()], None
    finally:
        await source.close()
    took = _brief(time.monotonic() - began)
    how = f"{spec.report} answers in {took}" if spec.report.startswith("http") else _said_by(spec)
    found = _of_report(spec, report)
    return [right("reporter", how), found], None if report.error else report


def _brief(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))} ms" if seconds < 1 else f"{seconds:.1f} s"


def _said_by(spec: NodeSpec) -> str:
    return "its GPUs are read on this machine" if spec.report == "local" else "its GPUs are simulated"


def _not_without() -> Check:
    return unchecked("report", "there is none: its reporter does not answer with one")


def _remedy(spec: NodeSpec, error: GpufitError) -> str:
    complaint = error.message.replace(spec.report, "")
    if spec.report_token_file is not None and "token" in complaint:
        return f"scp {spec.name}:/etc/gpufit/token {spec.report_token_file}    # what its --token-file names"
    if "token" in complaint:
        return 'report_token_file = "/etc/gpufit/token"    # in gpufit.toml: a copy of what its --token-file names'
    if "TLS" in complaint:
        return f'report = "{spec.report.replace("https://", "http://")}"    # or a certificate that this machine trusts'
    if "no host of that name" in complaint:
        return 'report = "http://ADDRESS:9477"    # in gpufit.toml: a name or address that this machine knows'
    return _START


def _of_report(spec: NodeSpec, report: Report) -> Check:
    if report.error:
        return wrong("report", f"it cannot be relied on, it says: {report.error}", "nvidia-smi    # on that machine")
    if report.age > spec.stale_after:
        age, most = format_duration(report.age), format_duration(spec.stale_after)
        fix = "sudo systemctl restart gpufit-reporter    # on that machine"
        return wrong("report", f"it is {age} old, and after {most} (stale_after) it is not acted on", fix)
    if not report.gpus:
        return wrong("report", "it names no GPU", "nvidia-smi -L    # on that machine: does its driver see any?")
    broken = [gpu for gpu in report.gpus if gpu.health in _BROKEN]
    if broken:
        said = "; ".join(f"GPU {gpu.index} ({gpu.uuid}) is {gpu.reason or gpu.health}" for gpu in broken)
        return wrong(
            "report",
            f"{len(broken)} of {_count(report.gpus)} cannot be used: {said}",
            "nvidia-smi -q    # on that machine",
        )
    if spec.models is not None and report.models is None and spec.report.startswith("http"):
        fix = f"jupyter gpufit reporter --models {spec.models}    # on that machine, with what else it is started with"
        return wrong("report", f"it does not tell which models are in {spec.models}, or cannot read it", fix)
    models = "" if report.models is None else f", {_number(len(report.models), 'model')}"
    return right("report", f"{_count(report.gpus)}{models}, {_brief(report.age)} old")


def _count(gpus: tuple[Gpu, ...]) -> str:
    """How many there are to be had: a card in MIG mode is none itself, its instances are."""
    parents = {gpu.parent for gpu in gpus}
    return _number(sum(gpu.uuid not in parents for gpu in gpus), "GPU")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

"""A report as Prometheus metrics, in base units. What is unknown has no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ..models import Gpu, Report

__all__ = ["make_registry"]

_LABELS = ("uuid", "index", "model", "card")
_HEALTH = ("ok", "unhealthy", "lost", "unknown")

_GAUGES: tuple[tuple[str, str, Callable[[Gpu], float | None]], ...] = (
    ("gpufit_gpu_memory_total_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total),
    ("gpufit_gpu_memory_free_bytes", "Memory that a program can still have.", lambda gpu: gpu.memory_free),
    ("gpufit_gpu_memory_used_bytes", "Memory in use.", lambda gpu: gpu.memory_used),
    (
        "gpufit_gpu_utilization_ratio",
        "Share of the last sample period in which a kernel ran, 0 to 1.",
        lambda gpu: None if gpu.utilization is None else gpu.utilization / 100,
    ),
    ("gpufit_gpu_temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature),
    ("gpufit_gpu_power_watts", "Power that the GPU draws.", lambda gpu: gpu.power),
    (
        "gpufit_gpu_processes",
        "Processes that compute on the GPU.",
        lambda gpu: None if gpu.health in ("lost", "unknown") else len(gpu.processes),
    ),
    ("gpufit_gpu_idle", "1 if no process computes on it and it may be allocated.", lambda gpu: gpu.idle),
    ("gpufit_gpu_allocatable", "0 for a MIG parent and for a GPU with a fault.", lambda gpu: gpu.allocatable),
)


def make_registry(report: Callable[[], Report]) -> CollectorRegistry:
    """A registry of its own (nothing of this process in it) that is read from `report()` at each scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ReportCollector(report))
    return registry


class _ReportCollector(Collector):
    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        yield GaugeMetricFamily(
            "gpufit_report_ok", "0 if the report cannot be relied on.", value=float(report.error is None)
        )
        yield GaugeMetricFamily(
            "gpufit_report_age_seconds", "Time since the GPUs were read for this report.", value=report.age
        )
        node = InfoMetricFamily("gpufit_node", "The node and its NVIDIA driver.")
        node.add_metric([], {"host": report.host, "driver": report.driver or "", "cuda": report.cuda or ""})
        yield node
        models = GaugeMetricFamily(
            "gpufit_model_size_bytes", "Size of a model in the node's model store.", labels=["name"]
        )
        for model in report.models or ():
            if model.size is not None:
                models.add_metric([model.name], float(model.size))
        yield models
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for gpu in report.gpus:
                if (known := value(gpu)) is not None:
                    family.add_metric(_labels(gpu), float(known))
            yield family
        health = GaugeMetricFamily("gpufit_gpu_health", "1 for the state it is in.", labels=(*_LABELS, "state"))
        mig = InfoMetricFamily("gpufit_gpu_mig", "Of which GPU a MIG instance is a part.", labels=_LABELS)
        for gpu in report.gpus:
            for state in _HEALTH:
                health.add_metric([*_labels(gpu), state], float(gpu.health == state))
            if gpu.parent is not None:
                mig.add_metric(_labels(gpu), {"parent": gpu.parent, "profile": gpu.mig_profile or ""})
        yield health
        yield mig


def _labels(gpu: Gpu) -> list[str]:
    return [gpu.uuid, str(gpu.index), gpu.model, gpu.card]

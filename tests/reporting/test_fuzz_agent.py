"""Whatever the driver and other people's processes are called: the reporter answers, and both answers can be read."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp.test_utils import TestClient, TestServer
from helpers.fuzzing import effort, hostile
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpufit.cluster.checks import check_report
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import Gpu, GpuProcess, Report, decode
from jupyter_gpufit.reporting.agent import Agent

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
sizes = st.none() | st.integers(0, 2**63 - 1)
processes = st.builds(
    GpuProcess, pid=st.integers(0, 2**31), memory=sizes, container=st.none() | hostile, name=st.none() | hostile
)
gpus = st.builds(
    Gpu,
    uuid=hostile,
    index=st.integers(0, 99),
    model=hostile,
    card=hostile,
    memory_total=sizes,
    memory_free=sizes,
    memory_used=sizes,
    utilization=st.none() | st.integers(0, 200),
    temperature=st.none() | st.integers(-300, 300),
    power=st.none() | st.floats(),
    health=st.sampled_from(["ok", "lost"]) | hostile,
    reason=st.none() | hostile,
    parent=st.none() | hostile,
    mig_profile=st.none() | hostile,
    processes=st.lists(processes, max_size=2).map(tuple),
)
reports = st.builds(
    Report,
    host=hostile,
    driver=st.none() | hostile,
    cuda=st.none() | hostile,
    error=st.none() | hostile,
    gpus=st.lists(gpus, max_size=3, unique_by=lambda gpu: (gpu.uuid, gpu.model, gpu.card)).map(tuple),
)


class Saying:
    """A source that says what it is told to."""

    def __init__(self) -> None:
        self.report = Report()

    async def fetch(self, timeout: float) -> Report:
        return self.report

    async def close(self) -> None:
        """Nothing is open."""


def test_any_report_is_told_and_can_be_read() -> None:
    with asyncio.Runner() as loop:

        async def told(report: Report) -> tuple[bytes, str, str]:
            source = Saying()
            source.report = report
            async with TestClient(TestServer(Agent(source, 3600.0).app)) as http:
                await asyncio.sleep(0)  # its first sample
                bodies = []
                for path, headers in (("/v1/report", {}), ("/metrics", {}), ("/metrics", OPENMETRICS)):
                    async with http.get(path, headers=headers) as answer:
                        assert answer.status == 200, await answer.text()
                        bodies.append(await answer.read())
            return bodies[0], bodies[1].decode(), bodies[2].decode()

        @effort(150)
        @given(reports)
        def tell(report: Report) -> None:
            body, text, openmetrics = loop.run(told(report))
            again = decode(body, Report)
            assert (again.host, again.error, len(again.gpus)) == (report.host, report.error, len(report.gpus))
            for families in (list(text_string_to_metric_families(text)), list(parse_openmetrics(openmetrics))):
                samples = [sample for family in families for sample in family.samples]
                (ok,) = [sample for sample in samples if sample.name == "gpufit_report_ok"]
                assert ok.value == (report.error is None), "a label can make no sample of its own"
                idle = [sample.labels for sample in samples if sample.name == "gpufit_gpu_idle"]
                assert [labels["uuid"] for labels in idle] == [gpu.uuid for gpu in report.gpus]
                assert [labels["model"] for labels in idle] == [gpu.model for gpu in report.gpus]
            with suppress(InvalidValue):  # tests/cluster_room has what is believed
                assert check_report(again).host.isprintable()

        tell()

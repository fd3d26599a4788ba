"""The reporter's HTTP: what it answers, to whom, and that it always does."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from helpers.reporting import PATIENCE, Machine, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from standins.nvml import GIB, StandinGpu

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import Gpu, Report, StoredModel, decode
from jupyter_gpufit.reporting.access import allowed, read_token, resolve
from jupyter_gpufit.reporting.agent import Agent, run
from jupyter_gpufit.reporting.sampler import Sampler
from jupyter_gpufit.reporting.source import LocalSource, ReportSource, SimulatedSource

TOKEN = "0123456789abcdef0123456789abcdef"


class Scripted:
    """A source that does what it is told."""

    def __init__(self, fetch: Callable[[], Awaitable[Report]]) -> None:
        self._fetch = fetch
        self.asked = 0
        self.closed = False

    async def fetch(self, timeout: float) -> Report:
        self.asked += 1
        return await self._fetch()

    async def close(self) -> None:
        self.closed = True


def client(source: ReportSource, period: float = 0.05, token: str | None = None) -> TestClient:
    return TestClient(TestServer(Agent(source, period, token).app))


async def sampled(http: TestClient) -> Report:
    """Its first report without an error."""
    for _ in range(int(PATIENCE / 0.02)):
        async with http.get("/v1/report") as answer:
            assert answer.status == 200
            report = decode(await answer.read(), Report)
        if report.error is None:
            return report
        await asyncio.sleep(0.02)
    raise AssertionError(report.error)


async def test_the_report_over_http_is_what_nvml_says(machine: Machine) -> None:
    machine.has(StandinGpu("GPU-a", memory_used=GIB), StandinGpu("GPU-b", power=None))
    async with client(LocalSource()) as http:
        report = await sampled(http)
        async with http.get("/v1/report") as answer:
            assert answer.content_type == "application/json"
            body = await answer.json()
    assert [gpu.uuid for gpu in report.gpus] == ["GPU-a", "GPU-b"]
    assert report.gpus[0].memory_free == 39 * GIB
    assert body["schema"] == 1
    assert body["gpus"][1]["power"] is None, "unknown is null, not left out and not 0"
    assert body["error"] is None


async def test_it_samples_on_its_period_and_answers_from_the_last_sample() -> None:
    source = Scripted(lambda: asyncio.sleep(0, Report(host="n1", age=3.0)))
    async with client(source, period=3600.0) as http:
        await sampled(http)
        ages = []
        for _ in range(20):
            ages.append((await sampled(http)).age)
        assert source.asked == 1, "however often one asks"
        assert ages == sorted(ages)
        assert ages[0] >= 3.0
    assert source.closed
    quick = Scripted(lambda: asyncio.sleep(0, Report()))
    async with client(quick, period=0.05):
        await until(lambda: quick.asked > 3, "it samples by itself")


async def test_a_source_that_hangs_or_fails_leaves_the_last_report() -> None:
    good = Report(host="n1", gpus=(Gpu(uuid="GPU-a", index=0),))
    script = [lambda: asyncio.sleep(0, good), lambda: asyncio.sleep(0, 1 / 0)]

    async def fetch() -> Report:
        return await script[min(source.asked - 1, 1)]()

    source = Scripted(fetch)
    async with client(source) as http:
        await until(lambda: source.asked > 2, "it goes on after a failure")
        async with http.get("/v1/report") as answer:
            report = decode(await answer.read(), Report)
    assert report.gpus == good.gpus
    assert "failed" in (report.error or "")


async def test_nvml_hangs_and_every_request_is_answered(machine: Machine) -> None:
    machine.has(StandinGpu("GPU-a"))
    source = LocalSource(Sampler(answer_within=1.0, open_within=PATIENCE))
    async with client(source) as http:
        good = await sampled(http)
        machine.has(StandinGpu("GPU-a", faults={"all": "hang"}))
        errors: set[str | None] = set()
        for _ in range(int(PATIENCE / 0.05)):
            async with asyncio.timeout(PATIENCE), http.get("/v1/report") as answer:
                report = decode(await answer.read(), Report)
            assert report.gpus == good.gpus
            errors.add(report.error)
            if report.error is not None:
                break
            await asyncio.sleep(0.05)
        assert report.age >= 1.0
        assert "did not answer" in (report.error or "")
        machine.has(StandinGpu("GPU-a"))
        await sampled(http)


async def test_metrics() -> None:
    source = SimulatedSource("n1", "simulated:2xA100-40GB?load=1:10GiB@50%&mig=0:1g.5gb*2&fault=0.1:lost")
    async with client(source) as http:
        report = await sampled(http)
        async with http.get("/metrics") as answer:
            assert answer.content_type == "text/plain"
            text = await answer.text()
        async with http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as answer:
            assert answer.content_type == "application/openmetrics-text"
            assert {family.name for family in parse_openmetrics(await answer.text())} >= {"gpufit_report_ok"}
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(name.startswith("gpufit_") for name in families)
    assert all(family.documentation for family in families.values())
    parent, part, lost, loaded = report.gpus

    def value(name: str, gpu: Gpu, **more: str) -> float | None:
        labels = {"uuid": gpu.uuid, "index": str(gpu.index), "model": gpu.model, "card": gpu.card} | more
        found = [sample.value for sample in families[name].samples if sample.labels == labels]
        assert len(found) <= 1
        return found[0] if found else None

    assert value("gpufit_gpu_memory_used_bytes", loaded) == 10 * GIB
    assert value("gpufit_gpu_memory_total_bytes", loaded) == 40 * GIB
    assert value("gpufit_gpu_memory_free_bytes", loaded) == loaded.memory_free
    assert value("gpufit_gpu_utilization_ratio", loaded) == 0.5
    assert value("gpufit_gpu_power_watts", loaded) == loaded.power
    assert value("gpufit_gpu_idle", loaded) == 0
    assert value("gpufit_gpu_idle", part) == 1
    assert value("gpufit_gpu_allocatable", parent) == 0
    assert value("gpufit_gpu_processes", loaded) == 1
    assert value("gpufit_gpu_utilization_ratio", part) is None, "unknown is not zero"
    assert value("gpufit_gpu_memory_free_bytes", lost) is None
    assert value("gpufit_gpu_health", lost, state="lost") == 1
    assert value("gpufit_gpu_health", loaded, state="lost") == 0
    assert value("gpufit_gpu_mig_info", part, parent=parent.uuid, profile="1g.5gb") == 1
    (ok,) = families["gpufit_report_ok"].samples
    assert ok.value == 1


async def test_metrics_of_the_models() -> None:
    odd = 'a "b" \\ c'
    models = (StoredModel(name="llama-7b", size=13 * GIB), StoredModel(name=odd, size=1), StoredModel(name="uncounted"))
    source = Scripted(lambda: asyncio.sleep(0, Report(models=models)))
    async with client(source) as http:
        assert (await sampled(http)).models == models
        async with http.get("/metrics") as answer:
            text = await answer.text()
    (family,) = [one for one in text_string_to_metric_families(text) if one.name == "gpufit_model_size_bytes"]
    assert {sample.labels["name"]: sample.value for sample in family.samples} == {"llama-7b": 13 * GIB, odd: 1}


async def test_metrics_of_a_report_that_cannot_be_relied_on() -> None:
    source = Scripted(lambda: asyncio.sleep(0, Report(error="NVML hangs", age=77.0)))
    async with client(source) as http:
        await until(lambda: source.asked > 1, "it samples")
        async with http.get("/metrics") as answer:
            text = await answer.text()
    families = text_string_to_metric_families(text)
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples["gpufit_report_ok"] == 0
    assert samples["gpufit_report_age_seconds"] >= 77.0


@pytest.mark.parametrize("path", ["/v1/report", "/metrics", "/", "/nothing"])
@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN, "Bearer é"],
)
async def test_without_the_token_nothing_is_told(path: str, header: str | None) -> None:
    async with client(SimulatedSource("n1", "1xT4-16GB"), token=TOKEN) as http:
        headers = {} if header is None else {"Authorization": header}
        async with http.get(path, headers=headers) as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            body = await answer.json()
            assert body["error"] == "unauthorized"
            assert TOKEN not in str(body)


async def test_with_the_token() -> None:
    async with client(SimulatedSource("n1", "1xT4-16GB"), token=TOKEN) as http:
        for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            for path in ("/v1/report", "/metrics"):
                async with http.get(path, headers={"Authorization": header}) as answer:
                    assert answer.status == 200


def test_two_authorization_headers_are_one_too_many() -> None:
    assert allowed(TOKEN, [f"Bearer {TOKEN}"])
    assert not allowed(TOKEN, [f"Bearer {TOKEN}", f"Bearer {TOKEN}"])
    assert not allowed(TOKEN, ["Bearer \udcff"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/report/", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/v1/report?x=%00%ff", 200),
        ("HEAD", "/v1/report", 200),
        ("POST", "/v1/report", 405),
        ("DELETE", "/metrics", 405),
        ("PROPFIND", "/metrics", 405),
    ],
)
async def test_other_requests(method: str, path: str, status: int) -> None:
    async with client(SimulatedSource("n1", "1xT4-16GB")) as http, http.request(method, path) as answer:
        assert answer.status == status
        if status >= 400:
            assert set(await answer.json()) == {"error", "message", "details"}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/report HTTP/9.9\r\n\r\n",
        b"GET /v1/report HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /v1/report HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/%zz%ff HTTP/1.1\r\nHost: \xff\r\nConnection: close\r\n\r\n",
        b"GET /v1/report HTTP/1.1\r\nHost: a\r\nAccept: \xff;q=\xff\r\nConnection: close\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=\xff;q=x,\r\nConnection: close\r\n\r\n",
        b"POST /v1/report HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_garbage_is_no_server_error(garbage: bytes) -> None:
    async with client(SimulatedSource("n1", "1xT4-16GB")) as http:
        reader, writer = await asyncio.open_connection(http.host, http.port)
        writer.write(garbage)
        await writer.drain()
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        await writer.wait_closed()
        assert not answer.startswith((b"HTTP/1.1 5", b"HTTP/1.0 5")), answer[:200]
        await sampled(http)


# --- who may listen where


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_needs_no_token(host: str) -> None:
    assert resolve(host, 9477, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "::ffff:192.0.2.7"])
def test_any_other_address_needs_one(host: str) -> None:
    with pytest.raises(InvalidValue, match="--token-file"):
        resolve(host, 9477, None)
    assert resolve(host, 9477, TOKEN)


@pytest.mark.parametrize("host", ["nowhere.invalid", "", "a" * 300])
def test_a_host_that_there_is_not(host: str) -> None:
    with pytest.raises(InvalidValue, match=f"'{host}'"):
        resolve(host, 9477, TOKEN)


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_a_token_file(tmp_path: Path, mode: int) -> None:
    assert read_token(written(tmp_path / "token", f" {TOKEN}\nrest\n".encode(), mode)) == TOKEN


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o606, 0o666])
def test_a_token_that_everybody_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "token", TOKEN.encode(), mode)
    with pytest.raises(InvalidValue, match="chmod 600") as refused:
        read_token(path)
    assert TOKEN not in str(refused.value)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode


@pytest.mark.parametrize("content", [b"", b"\n\n", b"short", b"with spaces in between it", "éééééééééé".encode()])
def test_a_token_that_is_none(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidValue, match="openssl rand"):
        read_token(written(tmp_path / "token", content))


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InvalidValue, match=str(path)):
            read_token(path)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        source = Scripted(lambda: asyncio.sleep(0, Report()))
        with pytest.raises(InvalidValue, match=f"port {taken.getsockname()[1]}"):
            run("127.0.0.1", taken.getsockname()[1], None, 5.0, source)
        assert source.closed

"""`jupyter gpufit reporter` as a process."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from helpers.reporting import PATIENCE, Machine, children, gone, until
from standins.nvml import StandinGpu

from jupyter_gpufit.cli.reporter import add_parser, main
from jupyter_gpufit.models import Report, decode

Start = Callable[..., Awaitable[tuple[Process, str]]]

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`await start(*arguments)`: a reporter on a free port, and its url."""
    started: list[Process] = []

    async def begin(*arguments: str) -> tuple[Process, str]:
        command = [sys.executable, "-m", "jupyter_gpufit.cli.reporter", "--port", "0", "--json", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        started.append(process)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        return process, json.loads(line)["urls"][0]

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def get(url: str, token: str | None = None) -> tuple[int, bytes]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.read()


async def report(url: str) -> Report:
    """The first one without an error."""
    for _ in range(int(PATIENCE / 0.05)):
        found = decode((await get(url + "/v1/report"))[1], Report)
        if found.error is None:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(found.error)


async def test_it_reports_and_ends_when_told(machine: Machine, start: Start) -> None:
    machine.has(StandinGpu("GPU-a"))
    for number in (signal.SIGTERM, signal.SIGINT):
        process, url = await start("--monitor-period", "200ms")
        assert url.startswith("http://127.0.0.1:")
        assert [gpu.uuid for gpu in (await report(url)).gpus] == ["GPU-a"]
        (child,) = children(process.pid)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        assert gone(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_child_is_left_behind_even_one_that_hangs(
    machine: Machine, start: Start, number: signal.Signals
) -> None:
    machine.has(StandinGpu("GPU-a"))
    process, url = await start("--monitor-period", "100ms", "--nvml-timeout", "10m")
    await report(url)
    machine.has(StandinGpu("GPU-a", faults={"all": "hang"}))
    await asyncio.sleep(0.5)
    (child,) = children(process.pid)
    process.send_signal(number)
    await asyncio.wait_for(process.wait(), PATIENCE)
    await until(lambda: gone(child), "the child ends too")


async def test_killing_the_child_costs_no_report(machine: Machine, start: Start) -> None:
    machine.has(StandinGpu("GPU-a"))
    process, url = await start("--monitor-period", "100ms")
    await report(url)
    (child,) = children(process.pid)
    os.kill(child, signal.SIGKILL)
    seen = set()
    for _ in range(int(PATIENCE / 0.02)):
        found = decode((await get(url + "/v1/report"))[1], Report)
        assert [gpu.uuid for gpu in found.gpus] == ["GPU-a"]
        now = children(process.pid)
        assert len(now) <= 1
        seen |= {found.error}
        if now and now != [child] and found.error is None:
            break
        await asyncio.sleep(0.02)
    assert any(error and "SIGKILL" in error for error in seen)
    assert found.error is None


async def test_a_token_lets_it_listen_for_others(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    process, url = await start("--host", "0.0.0.0", "--token-file", str(file), "--simulated", "4xA100-40GB")
    here = url.replace("0.0.0.0", "127.0.0.1")
    assert (await get(here + "/v1/report"))[0] == 401
    assert (await get(here + "/v1/report", "wrong"))[0] == 401
    status, body = await get(here + "/v1/report", TOKEN)
    assert status == 200
    assert decode(body, Report).schema == 1
    for place in ("cmdline", "environ"):
        assert TOKEN not in await asyncio.to_thread(Path(f"/proc/{process.pid}/{place}").read_text)


async def test_simulated_under_a_name(start: Start) -> None:
    _, url = await start("--simulated", "simulated:3xL4-24GB", "--node-name", "n7")
    found = await report(url)
    assert (found.host, [gpu.model for gpu in found.gpus]) == ("n7", ["NVIDIA L4"] * 3)


async def test_it_reports_the_models(start: Start, tmp_path: Path) -> None:
    (tmp_path / "llama-7b").mkdir()
    (tmp_path / "llama-7b" / "weights").write_bytes(b"x" * 100)
    (tmp_path / ".cache").mkdir()
    period = ["--monitor-period", "100ms"]
    process, url = await start("--simulated", "1xT4-16GB", "--models", str(tmp_path), *period)
    _, without = await start("--simulated", "1xT4-16GB", *period)
    for _ in range(int(PATIENCE / 0.05)):
        models = (await report(url)).models
        if models and models[0].size is not None:
            break
        await asyncio.sleep(0.05)
    assert [(model.name, model.size) for model in models or ()] == [("llama-7b", 100)]
    assert (await report(without)).models is None
    process.terminate()
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


@pytest.mark.parametrize(("models", "says"), [("", "is empty"), ("~nobody-of-that-name/x", "no such user")])
def test_a_model_store_that_cannot_be_meant(capsys: pytest.CaptureFixture[str], models: str, says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--models", models])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "/nowhere/token"], "/nowhere/token"),
        (["--simulated", "4xnothing"], "4xnothing|'nothing'"),
    ],
)
def test_refused_with_a_message(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert any(part in err for part in says.split("|"))


@pytest.mark.parametrize(
    "arguments",
    [["--port", "-1"], ["--port", "99999"], ["--port", "x"], ["--monitor-period", "soon"], ["--nvml-timeout", "0s"]],
)
def test_arguments_that_cannot_be_meant(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_as_a_verb_of_a_larger_command() -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    options = parser.parse_args(["reporter"])
    assert callable(options.func)
    assert (options.host, options.port, options.monitor_period) == ("127.0.0.1", 9477, 5.0)

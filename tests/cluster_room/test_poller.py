"""Every node on its own period, whatever the others do; and a `gpufit.toml` that changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from helpers.bad_reporters import Serve, a_report, answering, hang, http
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit import inventory as inventories
from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.cluster.poller import Poller, pause
from jupyter_gpufit.errors import NodeUnreachable
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.models import Claim, Gpu, Node, Report
from jupyter_gpufit.reporting.agent import Agent
from jupyter_gpufit.reporting.source import SimulatedSource

PATIENT = settings(deadline=None)  # the machine may be busy with other things

Open = Callable[..., Any]

PATIENCE = 60  # s; nothing here takes nearly as long, except on a machine that does other things


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (of things that have no event to wait for)
            await asyncio.sleep(0.01)


class Scripted:
    """A source that does as its node's script says, and counts."""

    def __init__(self, script: Callable[[int], Any]) -> None:
        self.script = script
        self.fetches = 0
        self.at: list[float] = []
        self.closed = 0

    async def fetch(self, timeout: float) -> Report:
        self.fetches += 1
        self.at.append(time.monotonic())
        outcome = self.script(self.fetches)
        if asyncio.iscoroutine(outcome):
            outcome = await outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    async def close(self) -> None:
        self.closed += 1


def good(n: int = 0) -> Report:
    return Report(gpus=(Gpu(uuid="GPU-1", index=0, memory_total=4, memory_free=3),))


def spec(name: str, **keys: Any) -> NodeSpec:
    usual: dict[str, Any] = {"name": name, "monitor_period": 0.1, "timeout": 0.2}
    return NodeSpec(**usual | keys)


class World:
    """An inventory in memory, scripted sources, and the poller between."""

    def __init__(self, *specs: NodeSpec) -> None:
        self.cache = Cache()
        self.specs = list(specs)
        self.scripts: dict[str, Callable[[int], Any]] = {}
        self.made: dict[str, list[Scripted]] = {}
        self.poller = Poller(self.cache, lambda: None, load=self.load, source=self.source, look_every=0.02)

    def load(self, path: Path | None) -> Inventory:
        return Inventory(nodes=tuple(self.specs))

    def source(self, spec: NodeSpec, claims: Callable[[], Sequence[Claim]]) -> Scripted:
        made = Scripted(self.scripts.get(spec.name, good))
        self.made.setdefault(spec.name, []).append(made)
        return made

    def fetches(self, name: str) -> int:
        return sum(source.fetches for source in self.made.get(name, []))


@pytest.fixture
async def open_world() -> AsyncIterator[Open]:
    """Worlds whose pollers are stopped at the end, and leave no task behind."""
    before = asyncio.all_tasks()
    worlds: list[World | Poller] = []

    def make(world: Any) -> Any:
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        poller = world.poller if isinstance(world, World) else world
        await poller.stop()
        if isinstance(world, World):
            assert all(source.closed == 1 for sources in world.made.values() for source in sources)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not [task for task in left if "serve" not in repr(task.get_coro())], "but those of the test's own servers"


# --- the pauses


@PATIENT
@given(st.floats(0.1, 3600), st.integers(0, 10_000), st.floats(0, 1))
def test_pauses(period: float, failures: int, luck: float) -> None:
    rest = pause(period, failures, luck)
    assert 0.9 * period <= rest <= 1.1 * max(period, 60)
    assert pause(period, 0, 0.5) == pause(period, 1, 0.5) == pytest.approx(period)
    assert rest <= pause(period, failures + 1, luck), "never asked more often for failing more"
    assert pause(period, 20, luck) >= 0.9 * max(period, 60)


async def test_each_node_is_asked_on_its_own_period(open_world: Open) -> None:
    world = open_world(World(spec("fast", monitor_period=0.05), spec("slow", monitor_period=1.0)))
    await world.poller.start()
    await until(lambda: world.fetches("slow") >= 2)
    assert world.fetches("fast") >= 3 * world.fetches("slow")
    gaps = [b - a for a, b in zip(world.made["fast"][0].at, world.made["fast"][0].at[1:], strict=False)]
    assert min(gaps) >= 0.044, "no sooner than the period, less the jitter"
    assert len({round(gap, 4) for gap in gaps}) > 1, "jittered"


async def test_a_failing_node_is_asked_less_and_less_and_recovers(open_world: Open) -> None:
    world = World(spec("down"), spec("up"))
    world.scripts["down"] = lambda n: NodeUnreachable("connection refused") if n <= 4 else good()
    open_world(world)
    await world.poller.start()
    await until(lambda: world.fetches("down") >= 2)
    await until(lambda: "connection refused" in (world.cache.node("down").reason or ""))
    assert world.cache.node("up").reason is None
    await until(lambda: world.cache.node("down").reason is None)
    at = world.made["down"][0].at
    assert at[4] - at[3] >= 0.7, "0.1, 0.1, 0.2, 0.4, 0.8: doubled each time"
    assert len(world.made["down"]) == 1, "the same source throughout"


async def test_a_source_that_breaks_its_word_hurts_nobody_else(
    open_world: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """One that hangs beyond its timeout, one with a fault, one that cannot even be made."""
    world = World(spec("hangs"), spec("faulty"), spec("unmade"), spec("fine"))
    world.scripts["hangs"] = lambda n: asyncio.sleep(3600)
    world.scripts["faulty"] = lambda n: ZeroDivisionError("a fault")
    made = world.source

    def source(spec: NodeSpec, claims: Callable[[], Sequence[Claim]]) -> Scripted:
        if spec.name == "unmade":
            raise NodeUnreachable("there is no such thing to simulate")
        return made(spec, claims)

    world.poller = Poller(world.cache, lambda: None, load=world.load, source=source)
    open_world(world)
    with caplog.at_level(logging.CRITICAL + 1):
        await world.poller.start()
        await until(lambda: not world.cache.unheard() and world.fetches("fine") >= 5)
    reasons = {node.name: node.reason for node in world.cache.nodes()}
    assert reasons.pop("fine") is None
    assert "local did not answer within 0.2 s" in (reasons["hangs"] or "")
    assert "ZeroDivisionError" in (reasons["faulty"] or "")
    assert "no such thing to simulate" in (reasons["unmade"] or "")


async def test_a_node_gets_stale_by_itself(open_world: Open) -> None:
    """When its last report gets too old is known beforehand: nobody has to ask for it to be noticed."""
    world = World(spec("n", monitor_period=3600.0, stale_after=0.3))
    open_world(world)
    told: list[str | None] = []
    await world.poller.start()
    world.cache.on_change(lambda name, node: told.append(node.reason if node else "gone"))
    await until(lambda: "its last report is stale: sampled more than 0 s ago" in told or len(told) > 2)
    assert told[-2:] == [None, told[-1]]
    assert "stale" in (told[-1] or "")
    assert world.fetches("n") == 1


async def test_a_source_that_cannot_be_cancelled_is_given_up_all_the_same(open_world: Open) -> None:
    """It swallows the cancellation and answers late: what it says is not taken, and the poll ends."""

    async def stubborn() -> Report:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return good()

    world = World(spec("a", timeout=60.0))
    world.scripts["a"] = lambda n: stubborn()
    open_world(world)
    await world.poller.start()
    await until(lambda: world.fetches("a"))
    async with asyncio.timeout(10):
        await world.poller.stop()
    assert world.cache.node("a").reason == "it has not reported yet"


# --- start and stop


async def test_start_and_stop_are_idempotent_and_close_all(open_world: Open) -> None:
    world = open_world(World(spec("a"), spec("b")))
    await world.poller.stop()
    await world.poller.start()
    await world.poller.start()
    await until(lambda: not world.cache.unheard())
    assert [len(sources) for sources in world.made.values()] == [1, 1]
    await world.poller.stop()
    await world.poller.stop()
    assert [source.closed for sources in world.made.values() for source in sources] == [1, 1]
    fetches = world.fetches("a")
    assert world.cache.node("a").gpus, "the cache keeps what it knows"
    await world.poller.start()
    await until(lambda: world.fetches("a") > fetches)


async def test_stopped_in_the_middle_of_a_fetch(open_world: Open) -> None:
    world = World(spec("a", timeout=60.0))
    world.scripts["a"] = lambda n: asyncio.sleep(3600)
    open_world(world)
    await world.poller.start()
    await until(lambda: world.fetches("a"))
    async with asyncio.timeout(10):
        await world.poller.stop()


# --- 200 nodes, some of which misbehave, over real connections


async def test_two_hundred_nodes_of_which_some_misbehave(serve: Serve, open_world: Open) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1600):  # 100 MB
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await writer.drain()

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    bad = {
        "hangs": await serve(hang),
        "garbage": await serve(answering(http(b"\x00\xff garbage"))),
        "flood": await serve(flood),
        "redirect": await serve(answering(http(b"", "301 Moved", "Location: /elsewhere\r\n"))),
        "closes": await serve(closes),
    }
    fine = await serve(answering(http(a_report())))
    nodes = [
        spec(f"{kind}{n}", report=url, monitor_period=0.3, timeout=1.0 if kind == "hangs" else 20.0)
        for kind, url in bad.items()
        for n in range(8)
    ]
    nodes += [spec(f"fine{n:03}", report=fine, monitor_period=1.0, timeout=20.0) for n in range(160)]
    cache = Cache()
    heard: dict[str, int] = {}
    reported = cache.reported

    def count(name: str, report: Report) -> None:
        heard[name] = heard.get(name, 0) + 1
        reported(name, report)

    cache.reported = count  # type: ignore[method-assign]
    poller = open_world(Poller(cache, lambda: None, load=lambda path: Inventory(nodes=tuple(nodes))))
    threads = threading.active_count()
    tracemalloc.start()
    try:
        await poller.start()
        await until(lambda: not cache.unheard() and len(heard) == 160 and min(heard.values()) >= 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert threading.active_count() <= threads + 8, "no thread per node"
    assert peak < 100 * 2**20
    reasons = {node.name: node.reason for node in cache.nodes()}
    assert {name for name, reason in reasons.items() if reason is None} == set(heard)
    for kind, says in {
        "hangs": "did not answer within 1 s",
        "garbage": "not with a report",
        "flood": "more than 2 MiB",
        "redirect": "redirect",
        "closes": "closed the connection",
    }.items():
        assert says in (reasons[f"{kind}0"] or ""), kind
    # All the good ones kept their period: none was asked much more rarely than the others.
    assert min(heard.values()) >= max(heard.values()) - 3

    def connections() -> int:
        return sum(_is_connection_to(fd, fine) for fd in os.listdir("/proc/self/fd"))

    assert connections() == 160, "one each, kept open"
    await poller.stop()
    assert connections() == 0


def _is_connection_to(fd: str, url: str) -> bool:
    """Whether file descriptor `fd` of this process is our end of a connection to `url`."""
    duplicate = -1
    try:
        duplicate = os.dup(int(fd))
        with socket.socket(fileno=duplicate) as connection:
            duplicate = -1  # the socket closes it
            return connection.getpeername() == ("127.0.0.1", int(url.rpartition(":")[2]))  # type: ignore[no-any-return]
    except OSError:  # gone, no socket, not connected
        return False
    finally:
        if duplicate != -1:
            os.close(duplicate)


# --- the inventory


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUFIT_INVENTORY", str(tmp_path / "gpufit.toml"))
    return tmp_path / "gpufit.toml"


def write(file: Path, *nodes: str) -> None:
    """As editors do: a new file in the place of the old."""
    new = file.with_suffix(".new")
    new.write_text("\n".join(f"[[node]]\n{node}\n" for node in nodes))
    new.replace(file)


SIMULATED = 'report = "simulated:1xA100-40GB"\nmonitor_period = "100ms"'


async def test_nodes_come_change_and_go_with_the_file(
    file: Path, open_world: Open, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache()
    poller = open_world(Poller(cache, look_every=0.05))
    told: list[tuple[str, Node | None]] = []
    cache.on_change(lambda name, node: told.append((name, node)))
    with caplog.at_level(logging.CRITICAL + 1):
        await poller.start()
        assert "cannot be read" in (poller.inventory_error or ""), "named, and not there: said, not raised"
        assert cache.nodes() == []

        write(file, f'name = "a"\n{SIMULATED}', f'name = "b"\n{SIMULATED}')
        await until(lambda: [node.reason for node in cache.nodes()] == [None, None])
        assert poller.inventory_error is None
        assert cache.inventory.path == str(file)

        write(file, f'name = "b"\n{SIMULATED.replace("1x", "2x")}', f'name = "c"\n{SIMULATED}')
        await until(lambda: [(node.name, len(node.gpus)) for node in cache.nodes()] == [("b", 2), ("c", 1)])
        assert ("a", None) in told

        await asyncio.to_thread(file.write_text, "[[node]\n")
        await until(lambda: poller.inventory_error)
        assert str(file) in (poller.inventory_error or "")
        assert [node.name for node in cache.nodes()] == ["b", "c"], "the inventory before stays in force"

        await asyncio.to_thread(file.unlink)
        await until(lambda: "cannot be read" in (poller.inventory_error or ""))
        assert [node.name for node in cache.nodes()] == ["b", "c"]

        write(file, f'name = "d"\n{SIMULATED}')
        await until(lambda: [(node.name, node.reason) for node in cache.nodes()] == [("d", None)])
        assert poller.inventory_error is None


async def test_a_file_that_appears_takes_the_place_of_this_machine(tmp_path: Path, open_world: Open) -> None:
    file = tmp_path / "gpufit.toml"
    cache = Cache()
    here = Inventory(nodes=(NodeSpec(name="here", report="simulated:1xH100"),))
    poller = Poller(
        cache,
        lambda: file if file.exists() else None,
        load=lambda path: inventories.load(path) if path else here,
        look_every=0.02,
    )
    await open_world(poller).start()
    assert [node.name for node in cache.nodes()] == ["here"]
    write(file, f'name = "a"\n{SIMULATED}')
    await until(lambda: [node.name for node in cache.nodes()] == ["a"])


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ("simulated:A100", "did you mean A100-40GB or A100-80GB or A100-PCIE-40GB or A100-PCIE-80GB\\?"),
        ("simulated:4xZ999", "no simulated GPU model 'Z999'; there are A10-24GB"),
        ("simulated:4xA100-41GB", "did you mean A100-40GB"),
        ("simulated:4xT4-16GB?load=0:lots", "size of memory"),
    ],
)
async def test_a_simulation_that_cannot_be_is_an_error_of_the_inventory(
    file: Path, open_world: Open, report: str, says: str
) -> None:
    write(file, f'name = "a"\nreport = "{report}"')
    cache = Cache()
    poller = open_world(Poller(cache, look_every=3600))
    await poller.start()
    message = poller.inventory_error or ""
    assert message.startswith(f"{file}: [[node]] 'a': report = '{report}': ")
    assert re.search(says, message)
    assert cache.nodes() == []


async def test_a_file_on_the_config_path_may_vanish_for_a_moment(tmp_path: Path, open_world: Open) -> None:
    """That is no wish for this machine to be the cluster instead."""
    file = tmp_path / "gpufit.toml"
    write(file, f'name = "a"\n{SIMULATED}')
    cache = Cache()
    poller = open_world(Poller(cache, lambda: file if file.exists() else None, look_every=3600))
    await poller.start()
    text = file.read_text()
    file.unlink()
    await poller.look()
    assert "is gone; the nodes it described stay" in (poller.inventory_error or "")
    assert [node.name for node in cache.nodes()] == ["a"]
    file.write_text(text)
    await poller.look()
    assert poller.inventory_error is None


async def test_a_node_whose_entry_changed_in_other_ways_keeps_its_poll(open_world: Open) -> None:
    world = open_world(World(spec("a"), spec("b")))
    seen = iter(range(10**6))
    path = Path(__file__)
    world.poller = Poller(
        world.cache, lambda: path if next(seen) % 2 else None, load=world.load, source=world.source, look_every=3600
    )
    await world.poller.start()
    await until(lambda: not world.cache.unheard())
    world.specs = [spec("a", ram=2**30), spec("b", monitor_period=0.2)]
    await world.poller.look()
    await until(lambda: len(world.made["b"]) == 2)
    assert world.cache.spec("a").ram == 2**30
    assert len(world.made["a"]) == 1
    await until(lambda: world.made["b"][0].closed == 1)


async def test_the_file_is_read_once_per_change(file: Path, open_world: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path | None] = []

    def load(path: Path | None) -> Inventory:
        reads.append(path)
        return inventories.load(path)

    write(file, f'name = "a"\n{SIMULATED}')
    poller = open_world(Poller(Cache(), load=load, look_every=3600))
    await poller.start()
    for _ in range(5):
        await poller.look()
    assert len(reads) == 1
    write(file, f'name = "z"\n{SIMULATED}')  # of the same size
    await poller.look()
    assert len(reads) == 2


async def test_looking_goes_on_after_a_fault(open_world: Open, caplog: pytest.LogCaptureFixture) -> None:
    world = World(spec("a"))
    faults = iter([False, True, True])

    def find() -> Path | None:
        if next(faults, False):
            raise PermissionError("a fault")
        return None

    world.poller = Poller(world.cache, find, load=world.load, source=world.source, look_every=0.02)
    open_world(world)
    with caplog.at_level(logging.CRITICAL + 1):
        await world.poller.start()
        await until(lambda: "a fault" in (world.poller.inventory_error or ""))
        await until(lambda: world.poller.inventory_error is None)


async def test_claims_have_their_effect_on_simulated_nodes(file: Path, open_world: Open) -> None:
    write(file, f'name = "a"\n{SIMULATED}')
    cache = Cache()
    await open_world(Poller(cache)).start()
    await until(lambda: cache.node("a").reason is None)
    (gpu,) = cache.node("a").gpus
    claim = Claim(allocation="x", scheduler="s", gpus={gpu.uuid: 2**34}, container="c" * 64)
    cache.set_claims("engine", "a", [claim])
    await until(lambda: (cache.node("a").gpus[0].memory_used or 0) > 0)
    held = cache.node("a").gpus[0]
    assert held.memory_free == (gpu.memory_free or 0) - 2**34, "own use is not counted twice"
    cache.set_claims("engine", "a", [])
    await until(lambda: cache.node("a").gpus[0].idle)


async def test_the_models_of_nodes_on_this_machine(file: Path, tmp_path: Path, open_world: Open) -> None:
    (tmp_path / "store" / "bert").mkdir(parents=True)
    keys = [f'name = "{name}"\nreport = "simulated:1xT4-16GB"\nmonitor_period = "100ms"' for name in "ab"]
    write(file, f'{keys[0]}\nmodels = "{tmp_path / "store"}"', keys[1])
    cache = Cache()
    poller = open_world(Poller(cache, lambda: file))
    await poller.start()
    await until(lambda: [model.name for model in cache.node("a").models or ()] == ["bert"])
    await until(lambda: cache.node("b").reason is None)
    assert cache.node("b").models is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "llama").touch()
    write(file, f'{keys[0]}\nmodels = "{tmp_path / "other"}"', keys[1])
    await poller.look()
    await until(lambda: [model.name for model in cache.node("a").models or ()] == ["llama"])


async def test_the_real_reporter_over_http(tmp_path: Path, open_world: Open) -> None:
    """What `jupyter gpufit reporter` serves is what the poller understands, token included."""
    token = tmp_path / "token"
    token.write_text("s3cr3t\n")
    (tmp_path / "store" / "llama-7b").mkdir(parents=True)
    source = SimulatedSource("gpu01", "simulated:2xA100-40GB", models=tmp_path / "store")
    server = TestServer(Agent(source, 0.1, "s3cr3t").app)
    await server.start_server()
    try:
        url = str(server.make_url("")).rstrip("/")
        nodes = (
            spec("right", report=url, report_token_file=str(token), timeout=10.0, models="/srv/models"),
            spec("without", report=url, timeout=10.0),
        )
        cache = Cache()
        poller = open_world(Poller(cache, lambda: None, load=lambda path: Inventory(nodes=nodes)))
        await poller.start()
        await until(lambda: cache.node("right").reason is None and len(cache.node("right").gpus) == 2)
        await until(lambda: [model.name for model in cache.node("right").models or ()] == ["llama-7b"])
        await until(lambda: "token" in (cache.node("without").reason or ""))
        await poller.stop()
    finally:
        await server.close()

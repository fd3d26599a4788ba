"""What breaks on a node, on real engines: each fault has its outcome, and a sentence for the person it befalls.

docs/faults.md has the list of all faults; those that are not tested here are elsewhere, as it says.
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.frontend import Notebook, eventually
from helpers.jupyterserver import server_process
from helpers.machines import containers, machines
from helpers.othertime import other_time, shifted

from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.errors import ClaimLost
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Allocation, EndReason, Gpu, Report, Request, State
from jupyter_gpufit.scheduling.scheduler import LocalScheduler

from . import host
from .engines import Cluster, Engine
from .test_story import Lab

SLEEP = ["{python}", "-c", "import time; time.sleep(1e6)"]
LOST_AFTER = 10.0  # s

# --- a Jupyter server, a notebook, and the machine it computes on


@asynccontextmanager
async def at_work(cluster: Cluster, image: str, home: Path, **traits: Any) -> AsyncIterator[tuple[Lab, Notebook, str]]:
    """A notebook that runs on both GPUs of gpu02, with x = 1; and the id of its local kernel."""
    config = {f"LocalScheduler.{name}": value for name, value in traits.items()}
    noticed = 'timeout = "2s"'  # soon
    with machines([cluster["gpu01"], cluster["gpu02"]], home, image, noticed) as inventory:
        async with server_process(home, inventory=inventory, config=config) as server, server.front() as front:
            lab = Lab(cluster, server, front)
            await eventually(lambda: usable(lab, "gpu01", "gpu02"))
            notebook = await front.open("study.ipynb")
            local = notebook.kernel_id
            made = await front.request(gpus=2, memory="16GiB", name="train")
            assert made["node"] == "gpu02", made
            await front.gpufit("POST", "allocations/train/attach", {"session": notebook.session}, expect=202)
            await notebook.on(made["kernel_id"])
            assert (await notebook.run("x = 1")).error is None
            yield lab, notebook, local
        assert "Traceback" not in server.log, server.log


async def usable(lab: Lab, *names: str) -> bool:
    nodes = await lab.nodes()
    return all(name in nodes and nodes[name]["reason"] is None for name in names)


async def offered(lab: Lab, **wishes: Any) -> str | None:
    """Where such a request would go."""
    answer = await lab.front.gpufit("POST", "explain", {"memory": "1GiB"} | wishes, expect=200)
    node: str | None = answer.json["node"]
    return node


async def train(lab: Lab, condition: Any, within: float = 60) -> dict[str, Any]:
    return await lab.front.allocation("train", condition, within)


async def test_a_gpu_is_lost_and_then_the_machine(cluster: Cluster, kernel_image: str, tmp_path: Path) -> None:
    engine = cluster["gpu02"]
    async with at_work(cluster, kernel_image, tmp_path, lost_after=LOST_AFTER) as (lab, notebook, local):
        fine, bad = engine.gpus
        engine.set_gpus([fine, with_faults(bad, {"all": "error:15"})])
        told = await train(lab, lambda one: one["message"])
        assert f"GPU {bad.uuid} is lost" in told["message"]
        assert "not given to anybody before healthy" in told["message"]
        cells = [await notebook.run("x += 1")]

        async def noticed() -> bool:
            cells.append(await notebook.run("x"))
            assert cells[-1].error is None
            return any(f"GPU {bad.uuid} is lost" in cell.stderr for cell in cells)

        await eventually(noticed)  # in the notebook, too
        engine.set_gpus([fine, bad])
        await train(lab, lambda one: one["message"] == "")

        # Off the network, and back in time.
        engine.partition()
        away = await train(lab, lambda one: one["unreachable_since"] is not None)
        assert (away["state"], away["gpus"]) == ("running", told["gpus"])
        assert away["message"].startswith("node 'gpu02' unreachable since "), away
        assert "its kernel is kept" in away["message"]
        node = (await lab.nodes())["gpu02"]
        assert (node["reporting"], "unreachable since" in node["reason"]) == (False, True)
        assert await offered(lab, gpus=1, node="gpu02") is None
        assert away["kernel_id"] in await lab.front.kernels()
        assert notebook.kernel_id == away["kernel_id"]
        engine.heal()
        back = await train(lab, lambda one: one["unreachable_since"] is None)
        assert (back["state"], back["message"]) == ("running", "")
        assert (await notebook.run("print(x)")).stdout == "2\n", "everything goes on"
        assert "dead" not in notebook.statuses
        assert "restarting" not in notebook.statuses

        # For too long.
        await eventually(lambda: usable(lab, "gpu02"))
        engine.partition()
        lost = await train(lab, lambda one: one["state"] == "ended", LOST_AFTER + 60)
        assert lost["reason"] == "node-lost"
        assert lost["message"].startswith("node 'gpu02' did not answer for "), lost
        await notebook.on(local)
        assert (await notebook.run("1 + 1")).text == "2\n"
        assert len(containers(engine)) == 1, "it does not know yet"
        engine.heal()
        await eventually(lambda: containers(engine) == [])
        await eventually(lambda: usable(lab, "gpu02"))
        assert await offered(lab, gpus=2) == "gpu02"


def with_faults(gpu: Any, faults: dict[str, str]) -> Any:
    return dataclasses.replace(gpu, faults=faults)


async def test_an_engine_with_live_restore_is_restarted(cluster: Cluster, kernel_image: str, tmp_path: Path) -> None:
    """And while it is gone its reporter answers: then nothing is ever given up."""
    engine = cluster["gpu02"]
    engine.configure(**{"live-restore": True})
    async with at_work(cluster, kernel_image, tmp_path, lost_after=1.0) as (lab, notebook, _):
        before = lab.holder("gpu02")["Id"]
        await asyncio.to_thread(engine.terminate)
        away = await train(lab, lambda one: one["unreachable_since"] is not None)
        assert "its Docker engine does not answer: " in away["message"]
        assert "the machine still reports, so its kernel is kept" in away["message"]
        node = (await lab.nodes())["gpu02"]
        assert (node["reporting"], "its Docker engine does not answer" in node["reason"]) == (True, True)
        assert await offered(lab, gpus=1, node="gpu02") is None
        await asyncio.sleep(2)  # more than `lost_after`
        assert (await train(lab, lambda _: True))["state"] == "running"
        await asyncio.to_thread(engine.start)
        back = await train(lab, lambda one: one["unreachable_since"] is None)
        assert (back["state"], back["message"]) == ("running", "")
        assert (await notebook.run("print(x)")).stdout == "1\n"
        assert lab.holder("gpu02")["Id"] == before
        assert "restarting" not in notebook.statuses
        await lab.front.release("train")
    assert containers(engine) == []


async def test_an_engine_without_live_restore_is_restarted(cluster: Cluster, kernel_image: str, tmp_path: Path) -> None:
    """It ends its containers: the kernel is restarted, on the same GPUs, as soon as it is there again."""
    engine = cluster["gpu02"]
    async with at_work(cluster, kernel_image, tmp_path) as (lab, notebook, _):
        before, made = lab.holder("gpu02")["Id"], await train(lab, lambda _: True)
        await asyncio.to_thread(engine.terminate)
        await train(lab, lambda one: one["unreachable_since"] is not None)
        await eventually(lambda: "restarting" in notebook.statuses)  # by the kernel manager's restarter
        waits = await train(lab, lambda one: one["progress"] and "as soon as" in one["progress"]["message"])
        assert waits["state"] == "running"
        await asyncio.to_thread(engine.start)

        async def again() -> bool:
            now = await train(lab, lambda _: True)
            assert now["state"] == "running", now
            return now["progress"] is None and now["unreachable_since"] is None and len(containers(engine)) == 1

        await eventually(again)
        after = lab.holder("gpu02")
        assert after["Id"] != before
        assert after["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == made["gpus"]
        cell = await notebook.run("x")
        assert "NameError" in str(cell.error)
        assert "the kernel before this one ended: killed by SIG" in cell.stderr, cell.outputs
        await lab.front.release("train")
    assert containers(engine) == []


# --- a scheduler, and an engine that cannot do what it should


def spec(engine: Engine, image: str, **changes: Any) -> NodeSpec:
    return NodeSpec(
        **{"name": engine.name, "docker": engine.url, "insecure": True, "image": image, "pull": "never"} | changes
    )


@asynccontextmanager
async def scheduler(engines: list[Engine], *specs: NodeSpec) -> AsyncIterator[LocalScheduler]:
    """On those engines, whose GPUs all have 16 GiB free."""
    cache = Cache()
    cache.set_inventory(Inventory(nodes=specs))
    for engine, one in zip(engines, specs, strict=True):
        gpus = (Gpu(uuid=u, index=n, memory_total=2**34, memory_free=2**34) for n, u in enumerate(engine.gpu_uuids))
        cache.reported(one.name, Report(gpus=tuple(gpus)))
    made = LocalScheduler(cache, make_launcher)
    await made.open()
    try:
        await eventually(lambda: not cache.unheard())
        yield made
    finally:
        await made.close()


async def running(scheduler: LocalScheduler, **wishes: Any) -> Allocation:
    made = await scheduler.request(Request(memory=2**30, **wishes), "ann", kernel_id="k")
    await scheduler.prepared(made.id)
    await scheduler.launch(made.id, SLEEP, {}, {})
    return await scheduler.ready(made.id, "k")


async def said(scheduler: LocalScheduler, id: str, words: str) -> Allocation:
    async with asyncio.timeout(60):
        while words not in (now := scheduler.get(id)).message:
            await scheduler.changed(id, now.version, 60)
    return now


async def ended(scheduler: LocalScheduler, id: str) -> Allocation:
    async with asyncio.timeout(60):
        while (now := scheduler.get(id)).state is not State.ENDED:
            await scheduler.changed(id, now.version, 60)
    return now


@contextmanager
def full_disk(engine: Engine) -> Iterator[None]:
    """Where it keeps what it knows of its containers, nothing more can be written."""
    place = engine.data / "containers"
    host.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place))
    try:
        with pytest.raises(OSError, match="No space left"):
            (place / "filler").write_bytes(bytes(2**17))
        yield
    finally:
        host.run("umount", str(place))


async def test_a_full_disk(cluster: Cluster, kernel_image: str) -> None:
    """The request goes elsewhere; where there is no elsewhere, the sentence says what is full and what to do."""
    roomy, full = cluster["gpu01"], cluster["gpu02"]
    async with scheduler([roomy, full], spec(roomy, kernel_image), spec(full, kernel_image)) as gpus:
        with full_disk(full):
            made = await running(gpus, gpus=2)
            assert made.node == "gpu01", "although gpu02 is the tighter one"
            asked = await gpus.request(Request(gpus=1, node="gpu02"), "ann", kernel_id="l")
            refused = await ended(gpus, asked.id)
            assert refused.reason is EndReason.REJECTED
            assert "the disk of gpu02 is full (" in refused.message
            assert "no space left on device" in refused.message
            assert "`docker system prune`" in refused.message
            assert containers(full) == []
        assert (await running(gpus, gpus=2, node="gpu02")).node == "gpu02", "it has room again"


async def test_a_container_that_cannot_be_killed(
    engine: Engine, kernel_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GPUs stay blocked, and the allocation says so, until it is gone."""
    monkeypatch.setattr("jupyter_gpufit.launching.engine.CALL_WITHIN", 2.0)
    async with scheduler([engine], spec(engine, kernel_image)) as gpus:
        made = await running(gpus, gpus=1)
        assert made.unit is not None
        with engine.unkillable(made.unit.id):
            await gpus.release(made.id)
            stuck = await said(gpus, made.id, "does not get rid of container")
            assert (stuck.state, stuck.unreachable_since) == (State.STOPPING, None)
            assert stuck.message == (
                f"its GPUs stay reserved until its unit is confirmed gone: gpu01 does not get rid of container "
                f"{made.unit.id[:12]}: not within 2 s; that machine may have to be rebooted"
            )
            [node] = gpus.nodes()
            assert [gpu.allocations for gpu in node.gpus if gpu.uuid in made.gpus] == [(made.id,)]
            assert gpus.explain(Request(gpus=len(node.gpus))).node is None
            assert (await running(gpus, gpus=1)).node == "gpu01", "the others can be had"
        assert (await ended(gpus, made.id)).reason is EndReason.RELEASED
    assert containers(engine) == []


async def test_a_port_that_is_taken_at_a_restart(engine: Engine, kernel_image: str) -> None:
    async with scheduler([engine], spec(engine, kernel_image)) as gpus:
        made = await running(gpus, gpus=1)
        [container] = engine.client().containers.list()
        port = next(iter(container.attrs["NetworkSettings"]["Ports"].values()))[0]["HostPort"]
        await gpus.stop_unit(made.id)
        code = f"import socket; s = socket.create_server(('{engine.ip}', {port})); print('taken', flush=True); input()"
        taker = engine.popen([sys.executable, "-c", code], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert taker.stdout is not None
            assert await asyncio.to_thread(taker.stdout.readline) == b"taken\n"
            await gpus.restart_unit(made.id)
            with pytest.raises(Exception, match="is in use by another program now"):
                await gpus.launch(made.id, SLEEP, {}, {})
        finally:
            taker.communicate(b"\n", timeout=30)
        failed = await ended(gpus, made.id)
        assert failed.reason is EndReason.FAILED
        assert "a port the kernel had before its restart is in use by another program now" in failed.message
        assert "request again" in failed.message
    assert containers(engine) == []


@pytest.mark.parametrize("shift", [3600, -3600])
async def test_a_clock_that_is_off_by_an_hour(engine: Engine, kernel_image: str, shift: int) -> None:
    """Only differences of the engine's own clock count, so nothing is different."""
    with other_time(engine.ip, 2375, shift) as url:
        here = spec(engine, kernel_image, docker=url, address=engine.ip)
        async with scheduler([engine], here) as gpus, scheduler([engine], here) as others:
            made = await running(gpus, gpus=1)
            assert made.unit is not None
            # Made and not started yet: it claims its GPUs for five minutes by the engine's clock, whatever that says.
            waiting = await gpus.request(Request(gpus=1), "ann", kernel_id="l")
            await gpus.prepared(waiting.id)
            held = {*made.gpus, *waiting.gpus}
            await eventually(lambda: {gpu.uuid for gpu in others.nodes()[0].gpus if gpu.allocations} == held)
            launcher = make_launcher(here)
            try:
                claim = await launcher_refuses(launcher, waiting)
            finally:
                await launcher.close()
            assert waiting.gpus[0] in claim
            with pytest.raises(Exception, match="2 GPUs would fit now"):
                await others.request(Request(gpus=len(engine.gpu_uuids) - 1), "ben", kernel_id="m")
            engine.client().api.kill(made.unit.id)
            assert "killed by SIGKILL" in (await said(gpus, made.id, "killed")).message
    assert containers(engine) == []


async def launcher_refuses(launcher: Any, of: Allocation) -> str:
    """What another scheduler's launch on the same GPUs is told."""
    from jupyter_gpufit.models import Launch

    launch = Launch(allocation="b1", scheduler="s2", owner="ben", name="gpufit-b1", gpus=dict.fromkeys(of.gpus, 2**30))
    with pytest.raises(ClaimLost) as refused:
        await launcher.prepare(launch, lambda progress: None)
    return refused.value.message


def test_the_proxy_shifts_what_an_engine_tells() -> None:
    told = b'{"Created":1700000000,"timeNano":1700000001123456789,"SystemTime":"2026-01-01T00:30:00.5Z"}'
    later = b'{"Created":1699996400,"timeNano":1699996401123456789,"SystemTime":"2025-12-31T23:30:00.5Z"}'
    assert shifted(told, -3600) == later
    assert shifted(b'{"FinishedAt":"0001-01-01T00:00:00Z"}', 3600) == b'{"FinishedAt":"0001-01-01T00:00:00Z"}'

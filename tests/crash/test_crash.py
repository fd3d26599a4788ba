"""`kill -9` of the server at every step of its work, over a real engine; then its next start, and what is left.

A first run without a death writes down the moments (`steps.py`); then each of them is the moment of death of a server
of its own, several at a time, each with its own store, port and GPU. What has to be true after the next start:

- the allocation is taken back if it ran, as the ledger on disk has it (same kernel id, same container, variable intact,
  its notebook's session as it was), and else ends with a sentence, or was never on disk;
- what somebody was answered is so: who got a 202 finds the allocation, and what was released does not run any more;
- every container on the engine, every reservation and every kernel of the server belongs to a live allocation;
- after releasing everything: no container, every GPU idle, no connection file; no traceback in a log.

**Which moments are one.** When `after X` is followed at once by `before Y`, no step began or ended between them.
Whatever outlives the process (the engine, the disk, the kernel in its container) is changed by steps alone, so that a
death at either leaves the same: the second is left out. One transaction that brings several things to disk is one step.
Calls that only read, by the watch of the engine and by the reaper, come at times of their own, and are left out, too.
Of a launch and a release nothing else is. Of the other phases (a kernel's restart, a normal stop, and the start after a
death) only the steps that themselves reach out of the process are died at: calls of the engine, transactions, and what
a kernel manager does to a kernel and its file.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cluster.engines import Engine
from helpers.frontend import CellLost, FrontEnd, Notebook, eventually

from .lives import LIVES, Lane, Life, lived
from .servers import Server, Zygote
from .steps import BESIDE

LANES = 6
"""Crashes under way at a time."""
TRIES = 3
"""Of a death: what is gathered in one transaction, or done by a thread, may be named differently in another run."""


# --- what has to be true after the next start


async def after(life: Life, dead: Server) -> str:
    """The next start. Gives what became of the allocation."""
    lane = life.lane
    was, ran = life.stored()
    server = await life.server("second")
    async with server.front() as front:
        await server.ready(front)
        outcome = await became(life, front, was, ran)

        async def live() -> dict[str, str]:
            listed = (await front.gpufit("GET", "allocations", expect=200)).json["allocations"]
            return {one["id"]: one["kernel_id"] for one in listed}

        async def nothing_else() -> bool:
            meant, held = await live(), (await front.gpufit("GET", "nodes", expect=200)).json["nodes"][0]["gpus"][0]
            return (
                sorted((await lane.containers()).values()) == sorted(meant)
                and set(held["allocations"]) == set(meant)
                and set(await front.kernels()) == set(meant.values())
            )

        await eventually(nothing_else, within=30)
        for id in await live():
            await front.release(id)
        assert await lane.containers() == {}
        await eventually(lambda: _idle(front))
        assert await front.kernels() == []
    assert await server.stop() == 0, server.log
    assert list((life.home / "runtime").glob("kernel-*.json")) == []
    assert await lane.containers() == {}
    assert "Traceback" not in server.log, server.log
    assert "Traceback" not in dead.log, dead.log
    return outcome


async def became(life: Life, front: FrontEnd, was: dict[str, Any] | None, ran: bool) -> str:
    """What became of the allocation: `taken back`, `ended`, `never on disk`. Fails if that is not what it should.

    `was`: it, as it was on disk; `ran`: its kernel ran, as far as the disk knew.
    """
    if was is None:
        assert not life.answered
        assert (await front.gpufit("GET", "allocations/it")).status == 404
        return "never on disk"
    now = await front.allocation(was["id"], lambda one: one["state"] in ("running", "ended"))
    if not ran:
        assert now["state"] == "ended"
        assert now["message"] or now["reason"] == "released", now
        return "ended"
    assert now["state"] == "running", now
    assert not life.released
    assert now["kernel_id"] == was["kernel_id"]
    assert now["gpus"] == list(was["gpus"])
    if life.session:
        session = (await front.api("GET", f"api/sessions/{life.session}", expect=200)).json
        assert session["kernel"]["id"] == now["kernel_id"]
    else:
        body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"id": now["kernel_id"]}}
        session = (await front.api("POST", "api/sessions", body, expect=201)).json
    notebook = await front.take(session)
    if life.value:
        assert await life.lane.containers() == {life.container: now["id"]}
        assert await notebook.value("x") == life.value
    else:  # it may be one that its manager has to start again, as it was about to
        await eventually(lambda: _answers(notebook))
    return "taken back"


async def _answers(notebook: Notebook) -> bool:
    try:
        return (await notebook.run("print(42)", within=5)).stdout == "42\n"
    except (AssertionError, CellLost):
        return False


async def _idle(front: FrontEnd) -> bool:
    [node] = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
    return bool(node["gpus"][0]["idle"])


# --- which moments


def of(moments: list[str], phase: str) -> list[str]:
    """Those of `phase`, without what goes on beside it."""
    return [
        moment
        for moment in moments
        if moment.startswith((f"{phase}: before ", f"{phase}: after "))
        and not moment.rpartition(" #")[0].endswith(BESIDE)
    ]


def deaths(moments: list[str], phase: str) -> list[str]:
    """Those to die at (see above for which are left out): a fifth of them today, the others on the next four days."""
    if phase not in ("launch", "release"):
        moments = [moment for moment in moments if _step(moment).startswith(("engine ", "transaction ", "kernels "))]
    chosen = [moment for previous, moment in zip(["", *moments], moments, strict=False) if not _same(previous, moment)]
    return chosen if os.environ.get("GPUFIT_DEATHS") == "all" else chosen[date.today().toordinal() % 5 :: 5]


def _same(one: str, next: str) -> bool:
    if " transaction of " in one and " transaction of " in next:  # one transaction, if both begin or both end
        return (": before " in one) == (": before " in next)
    return ": after " in one and ": before " in next


def _step(moment: str) -> str:
    """`Save`, of `launch: before Save #2`."""
    return moment.partition(": ")[2].partition(" ")[2].rpartition(" #")[0]


MUST_BE = {
    "launch": {
        *("Place", "Publish", "Save", "Notify", "Prepare", "StartKernel", "StartUnit"),
        *("scheduler request", "scheduler prepared", "scheduler launch", "scheduler ready"),
        *("host start", "kernels start_kernel", "kernels write_connection_file"),
        *("provisioner pre_launch", "provisioner launch_kernel", "provisioner post_launch"),
        *("engine create_container_from_config for prepare", "engine put_archive for start", "engine start for start"),
        *("transaction of entry", "transaction of memory"),
    },
    "restart": {
        *("StopUnit", "scheduler restart_unit", "Prepare", "scheduler launch", "StartUnit"),
        *("kernels request_shutdown", "provisioner pre_launch", "provisioner launch_kernel"),
    },
    "release": {
        *("scheduler release", "Save", "Notify", "Publish", "StopKernel", "StopUnit", "transaction of entry"),
        *("host stop", "kernels shutdown_kernel", "kernels request_shutdown", "kernels cleanup_connection_file"),
        *("provisioner shutdown_requested", "provisioner wait", "provisioner cleanup"),
        "engine remove_container for stop",
    },
    "stop": {"scheduler close", "StopKernel", "StopUnit", "engine remove_container for stop", "host close"},
    "start": {"scheduler open", "TakeBack", "host take_back", "kernels start_kernel", "provisioner pre_launch"},
}
"""Steps that a run goes by, whatever else: should one of them be called something else, its deaths are not died."""


# --- the tests


@pytest.fixture
def lanes(engine: Engine, kernel_image: str, tmp_path: Path) -> Iterator[asyncio.Queue[Lane]]:
    made = [Lane(number, tmp_path, engine, kernel_image) for number in range(LANES)]
    queue: asyncio.Queue[Lane] = asyncio.Queue()
    for lane in made:
        queue.put_nowait(lane)
    yield queue
    for lane in made:
        lane.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", LIVES)
async def test_killed_at_every_step(phase: str, lanes: asyncio.Queue[Lane], tmp_path: Path) -> None:
    async with Zygote.started() as zygote:

        @asynccontextmanager
        async def life(name: str) -> AsyncIterator[Life]:
            lane = await lanes.get()
            home = tmp_path / "".join(letter if letter.isalnum() else "-" for letter in name)
            home.mkdir()
            try:
                yield Life(zygote, lane, home)
            finally:
                lanes.put_nowait(lane)

        async with life(phase) as model:
            recorded = await lived(model, phase)
            await recorded.stop()
        steps = of(recorded.moments, phase)
        chosen = deaths(steps, phase)
        print(f"\n{phase}: {len(steps)} moments, {len(chosen)} deaths")
        assert {_step(moment) for moment in steps} >= MUST_BE[phase], "the steps are not wrapped any more"

        async def die(moment: str) -> str:
            ways = []
            for attempt in range(TRIES):
                async with life(f"{moment} {attempt}") as one:
                    dead = await lived(one, phase, moment)
                    if dead.ended.done():
                        assert dead.ended.result() == -9, dead.log
                        if not (strange := set(of(dead.moments, phase)) - set(steps)):
                            return await after(one, dead)
                        ways.append(f"it went another way, by {', '.join(sorted(strange))}; its log:\n{dead.log}")
                    else:
                        ways.append(f"it did not come by; its log:\n{dead.log}")
                        await dead.stop()
            raise AssertionError("\n".join(ways))

        async def told(moment: str) -> str:
            try:
                outcome = await die(moment)
            except BaseException as error:
                print(f"{moment:60} {error!r:.300}")
                raise
            print(f"{moment:60} {outcome}")
            return outcome

        outcomes = await asyncio.gather(*map(told, chosen), return_exceptions=True)
    wrong = {
        moment: "".join(traceback.format_exception(outcome))
        for moment, outcome in zip(chosen, outcomes, strict=True)
        if not isinstance(outcome, str)
    }
    assert not wrong, "\n\n".join(f"{moment}:\n{why}" for moment, why in wrong.items())

"""Time limits and idle kernels as the person in front of a notebook sees them: real kernels on simulated GPUs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.frontend import FrontEnd, Notebook, eventually
from helpers.jupyterserver import server_here
from helpers.office import extension_of

from jupyter_gpufit.kernels.adopt import ServerKernelHost
from jupyter_gpufit.models import Allocation
from jupyter_gpufit.reporting import simulated
from jupyter_gpufit.scheduling import idleness

INVENTORY = """
[[node]]
name = "n1"
report = "simulated:2xT4-16GB"
monitor_period = "200ms"
"""
SILENT = """
import asyncio, os
print("begun")
while not os.path.exists({stop!r}):
    {pause}
"""
WARNED = "gpufit: allocation 'train' ends in 2 m"


async def on_gpus(front: FrontEnd, **wishes: Any) -> tuple[Notebook, dict[str, Any]]:
    """A notebook that is attached to an allocation called `train`."""

    async def reported() -> bool:
        return all(one["reason"] is None for one in (await front.gpufit("GET", "nodes")).json["nodes"])

    await eventually(reported)
    notebook = await front.open()
    made = await front.request(gpus=1, name="train", **wishes)
    await front.gpufit("POST", "allocations/train/attach", {"session": notebook.session}, expect=202)
    await notebook.on(made["kernel_id"])
    return notebook, made


async def state_of(front: FrontEnd, notebook: Notebook) -> str:
    model = (await front.api("GET", f"api/kernels/{notebook.kernel_id}", expect=200)).json
    return str(model["execution_state"])


async def test_warnings_in_the_notebook_and_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpufit.toml").write_text(INVENTORY)
    config = {"GpufitExtension": {"inventory": str(tmp_path / "gpufit.toml")}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front, front.events() as events:
        notebook, made = await on_gpus(front, time="122s")
        # While nothing runs: with the next cell.
        await events.until(lambda event: event["schema_id"].endswith("warning/v1"))
        assert (await front.allocation("train"))["warning"]
        await eventually(lambda: _is_told(notebook, WARNED))

        # In the middle of a cell that says nothing: at once, and the kernel is not taken for idle.
        stop = tmp_path / "stop"
        cell = notebook.send(SILENT.format(stop=str(stop), pause="__import__('time').sleep(0.02)"))
        await eventually(lambda: "begun" in cell.text)
        more = time.time() + 121 - (await front.allocation("train"))["expires"]
        answer = await front.gpufit("POST", "allocations/train/extend", {"time": more}, expect=200)
        assert answer.json["warning"] == "", "more time takes the warning back"
        await eventually(lambda: WARNED in cell.stderr)
        assert await state_of(front, notebook) == "busy"
        assert not cell.is_done
        stop.touch()
        assert (await cell).status == "ok"

        # More time, asked for there.
        before = await front.allocation("train")
        cell = await notebook.run("%gpufit extend 1h")
        now = await front.allocation("train")
        assert now["expires"] == pytest.approx(before["expires"] + 3600)
        assert cell.stdout.startswith("'train' has 1 h"), cell.text
        assert "'soon' is not a duration" in (await notebook.run("%gpufit extend soon")).text
        assert (await notebook.run("1 + 1")).stderr == "", "nothing is said twice"

        # Likewise in a notebook that was started on its GPUs.
        monkeypatch.setenv("GPUFIT_TIME", "1h")
        direct = await front.open("b.ipynb", kernel="gpufit")
        cell = await direct.run("%gpufit extend 2h")
        assert "has 3 h now" in cell.stdout, cell.text
        monkeypatch.delenv("GPUFIT_TIME")
        [other] = [
            one for one in (await front.gpufit("GET", "allocations")).json["allocations"] if one["id"] != made["id"]
        ]
        assert (other["kernel_id"], other["time"]) == (direct.kernel_id, 3 * 3600)


async def _is_told(notebook: Notebook, what: str) -> bool:
    """The notice may come a moment after the event."""
    return what in (await notebook.run("1 + 1")).stderr


async def test_an_idle_kernel_is_warned_and_released_and_a_silent_cell_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    quiet = ServerKernelHost.quiet
    may_answer = asyncio.Event()
    may_answer.set()
    warned: list[str] = []

    def hold(one: Allocation) -> None:
        if one.warning and not warned:  # until the test has seen it: releases are quick here, and machines slow
            warned.append(one.warning)
            may_answer.clear()

    async def listening(host: ServerKernelHost, kernel_id: str, within: float) -> bool:
        await may_answer.wait()
        answers.append(await quiet(host, kernel_id, within))
        return answers[-1]

    monkeypatch.setattr(ServerKernelHost, "quiet", listening)
    # Simulated GPUs compute whenever they are held; these do not.
    simulate = simulated.SimulatedNode._at
    monkeypatch.setattr(
        simulated.SimulatedNode, "_at", lambda *of: msgspec.structs.replace(simulate(*of), utilization=0)
    )
    monkeypatch.setattr(idleness, "_ANSWER_WITHIN", 0.5)
    (tmp_path / "gpufit.toml").write_text(f'{INVENTORY}idle_after = "2s"\n')
    config = {"GpufitExtension": {"inventory": str(tmp_path / "gpufit.toml")}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front, front.events() as events:
        notebook, made = await on_gpus(front)
        local = (await front.gpufit("POST", "allocations/train/attach", {"session": notebook.session})).json[
            "local_kernel_id"
        ]
        stop = tmp_path / "stop"
        cell = notebook.send(SILENT.format(stop=str(stop), pause="await asyncio.sleep(0.02)"))
        await eventually(lambda: "begun" in cell.text)
        answers.clear()
        # What JupyterLab does beside a cell: the server takes the kernel for idle after that.
        notebook._send("control", "create_subshell_request", {})

        async def taken_for_idle() -> bool:
            return await state_of(front, notebook) == "idle"

        await eventually(taken_for_idle)
        await eventually(lambda: len(answers) >= 2)
        assert not any(answers), "the kernel itself knows better"
        assert not cell.is_done
        now = await front.allocation("train")
        assert (now["state"], now["warning"]) == ("running", "")
        extension_of(here).scheduler.subscribe(hold)
        stop.touch()
        await cell

        # It has nothing to do: warned, told with its next cell, which takes that back; and then left alone.
        async def is_told() -> bool:
            warned.clear()
            may_answer.set()
            await front.allocation("train", lambda one: "is released in" in one["warning"])
            return await _is_told(notebook, "To keep it, run a cell in it")

        await eventually(is_told)
        may_answer.set()
        await front.allocation("train", lambda one: one["warning"] == "")
        ended = await front.allocation(made["id"], lambda one: one["state"] == "ended")
        assert ended["reason"] == "idle"
        assert "had nothing to do for" in ended["message"]
        await notebook.on(local)
        kinds = [event["kind"] for event in events.of("warning/v1")]
        assert kinds == ["idle"] * len(kinds)
        assert len(kinds) >= 2

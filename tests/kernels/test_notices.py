"""Which kernel is told what, and when. (What it then shows: test_bootstrap.py and tests/server/test_real_time.py.)"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from helpers.lab import eventually
from msgspec.structs import replace

from jupyter_gpufit.kernels import notices
from jupyter_gpufit.kernels.extended import extended
from jupyter_gpufit.kernels.notices import Notices
from jupyter_gpufit.models import Allocation, Request, State

RUNNING = Allocation(
    id="a1", name="train", owner="ada", request=Request(time="2h"), created=0.0, state=State.RUNNING, kernel_id="k1"
)
TEN, TWO = "it ends in 10 m", "it ends in 2 m"


class Wire:
    """What was sent to which kernel; a send takes until `open` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, str]] = []
        self.open = asyncio.Event()
        self.open.set()
        monkeypatch.setattr(notices, "notify", self.notify)

    async def notify(self, info: Mapping[str, Any], text: str) -> bool:
        self.sent.append((info["kernel"], text))
        await self.open.wait()
        return True


@pytest.fixture
async def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def of(kernel_id: str) -> dict[str, Any] | None:
    return {"kernel": kernel_id} if kernel_id == "k1" else None


async def test_a_kernel_is_told_of_each_warning_once_and_that_it_is_over(wire: Wire) -> None:
    told = Notices(of)
    told.follow(RUNNING)
    for warning in (TEN, TEN, TWO, ""):
        told.follow(replace(RUNNING, warning=warning))
        await eventually(lambda: not told._tasks)
    assert wire.sent == [("k1", f"gpufit: {TEN}"), ("k1", f"gpufit: {TWO}"), ("k1", "")]
    told.follow(replace(RUNNING, state=State.STOPPING))
    told.follow(replace(RUNNING, id="a2", kernel_id="of somebody else", warning=TEN))
    await eventually(lambda: not told._tasks)
    assert len(wire.sent) == 3
    await told.close()


async def test_the_last_word_is_sent_last_however_slow_the_way_is(wire: Wire) -> None:
    told = Notices(of)
    wire.open.clear()
    for warning in (TEN, TWO, ""):
        told.follow(replace(RUNNING, warning=warning))
        await asyncio.sleep(0)
    wire.open.set()
    await eventually(lambda: not told._tasks)
    assert [text for _, text in wire.sent] == [f"gpufit: {TEN}", ""]
    await told.close()


async def test_closing_waits_for_nobody(wire: Wire) -> None:
    told = Notices(of)
    wire.open.clear()
    told.follow(replace(RUNNING, warning=TEN))
    await eventually(lambda: bool(wire.sent))
    await told.close()
    assert not told._tasks


def test_what_more_time_is_answered_with() -> None:
    waiting = RUNNING.public()
    assert extended(waiting, 0.0) == "'train' has 2 h from when it runs."
    running = {**waiting, "expires": 1_007_200.0}
    assert extended(running, 1_000_000.0) == "'train' has 2 h now: it ends in 2 h, at 15:46 UTC."

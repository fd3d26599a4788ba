"""A node's own threads: what hangs there holds up nobody else."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from jupyter_gpufit.errors import NodeUnreachable
from jupyter_gpufit.launching.worker import Worker


@pytest.fixture
async def worker():
    worker = Worker("n1", threads=2)
    yield worker
    await worker.close()


async def test_results_and_errors_come_back(worker):
    assert await worker.run(lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)


async def test_calls_run_side_by_side_up_to_its_threads(worker):
    both = threading.Barrier(2)

    def meet() -> str:
        both.wait(30)
        return threading.current_thread().name

    names = await asyncio.gather(worker.run(meet), worker.run(meet))
    assert set(names) == {"gpufit-n1-0", "gpufit-n1-1"}
    used = await asyncio.gather(*(worker.run(lambda: threading.current_thread().name) for _ in range(20)))
    assert set(used) <= set(names)


async def test_what_hangs_is_left_behind(worker):
    release = threading.Event()
    hanging = [asyncio.create_task(worker.run(lambda: release.wait(60), timeout=0.1)) for _ in range(2)]
    for task in hanging:
        with pytest.raises(TimeoutError):
            await task
    waiting = asyncio.create_task(worker.run(lambda: "never"))
    other = Worker("n2")
    assert await other.run(lambda: "fine", timeout=10) == "fine"
    await other.close()
    began = time.monotonic()
    await worker.close(patience=0.2)
    assert time.monotonic() - began < 10
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()


async def test_what_did_not_begin_can_be_cancelled(worker):
    release = threading.Event()
    for _ in range(2):
        worker.submit(lambda: release.wait(60))
    ran = []
    job = worker.submit(lambda: ran.append(1))
    assert job.cancel()
    release.set()
    await worker.run(lambda: None)
    assert ran == []


async def test_nothing_is_taken_once_closed(worker):
    await worker.run(lambda: None)
    await worker.close()
    with pytest.raises(NodeUnreachable, match="closed"):
        await worker.run(lambda: None)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gpufit-n1")]

"""A service in a thread, and which service a kernel of this process uses."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from helpers.cells import Cell
from helpers.frontend import eventually

from jupyter_gpufit.errors import GpufitError, NoFit
from jupyter_gpufit.kernels import leases
from jupyter_gpufit.kernels import service as services
from jupyter_gpufit.kernels.adopt import ServerKernelHost
from jupyter_gpufit.kernels.service import ThreadedService
from jupyter_gpufit.models import Allocation, EndReason, Request, State

GIB = 2**30


def run(gpus: ThreadedService, request: Request) -> Allocation:
    """Ask, and wait until it runs."""
    made = gpus.call(lambda scheduler: scheduler.request(request, gpus.owner))
    return wait_for(gpus, made, State.RUNNING)


def wait_for(gpus: ThreadedService, made: Allocation, state: State) -> Allocation:
    deadline = time.monotonic() + 60
    while made.state not in (state, State.ENDED) and time.monotonic() < deadline:
        made = gpus.run(gpus.scheduler.changed(made.id, made.version, 5.0))
    assert made.state is state, (made.state, made.message)
    return made


def test_ask_a_cluster_from_a_plain_thread(cluster_file: Path) -> None:
    with ThreadedService(str(cluster_file)) as gpus:
        nodes = gpus.call(lambda scheduler: scheduler.nodes())
        assert [(node.name, len(node.gpus), node.reason) for node in nodes] == [("large", 4, None), ("small", 2, None)]
        assert gpus.call(lambda scheduler: scheduler.explain(Request(gpus=3))).node == "large"
        assert gpus.inventory_error is None
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gpufit service")] == []


def test_a_kernel_without_a_server(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    with ThreadedService(str(cluster_file)) as gpus:
        made = run(gpus, Request(gpus=2, memory=2 * GIB, name="train"))
        assert made.kernel_id is not None
        kernel_id = made.kernel_id
        assert sorted(made.gpus) == held()
        assert gpus.run(gpus.kernel_alive(kernel_id))

        async def cell() -> Cell:
            client = gpus.kernel_client(kernel_id)
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=60)
                said, message = Cell(), client.execute("import os; os.environ['CUDA_VISIBLE_DEVICES']")
                while True:
                    got = await client.get_iopub_msg(timeout=60)
                    if got["parent_header"].get("msg_id") == message and said.take(got):
                        return said
            finally:
                client.stop_channels()

        assert gpus.run(cell()).result == repr(",".join(made.gpus))
        gpus.call(lambda scheduler: scheduler.release(made.id))
        ended = wait_for(gpus, made, State.ENDED)
        assert ended.reason is EndReason.RELEASED
        assert held() == []
        assert not gpus.run(gpus.kernel_alive(kernel_id))


def test_closing_gives_everything_back(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    gpus = ThreadedService(str(cluster_file)).start()
    run(gpus, Request(gpus=1))
    gpus.call(lambda scheduler: scheduler.request(Request(gpus=1), gpus.owner))  # ... and this one has just begun
    gpus.close()
    gpus.close()
    assert held() == []


def test_a_release_while_the_kernel_starts(cluster_file: Path, held: Callable[[], list[str]]) -> None:
    with ThreadedService(str(cluster_file)) as gpus:
        made = gpus.call(lambda scheduler: scheduler.request(Request(gpus=1), gpus.owner))
        deadline = time.monotonic() + 60
        while not held() and time.monotonic() < deadline:
            time.sleep(0.02)
        gpus.call(lambda scheduler: scheduler.release(made.id))
        ended = wait_for(gpus, made, State.ENDED)
        assert ended.reason is EndReason.CANCELLED
        assert held() == []


def test_errors_arrive_as_they_are(cluster_file: Path) -> None:
    with ThreadedService(str(cluster_file)) as gpus:
        run(gpus, Request(gpus=4))
        with pytest.raises(NoFit) as caught:
            gpus.call(lambda scheduler: scheduler.request(Request(gpus=4), gpus.owner))
        assert caught.value.details["stages"]


def test_a_question_from_any_loop_and_its_end(cluster_file: Path) -> None:
    with ThreadedService(str(cluster_file)) as gpus:
        assert len(asyncio.run(gpus.acall(lambda scheduler: scheduler.nodes()))) == 2
        cancelled = threading.Event()

        async def forever() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()

        with pytest.raises(TimeoutError):
            gpus.call(lambda _: forever(), timeout=0.1)
        assert cancelled.wait(10)


def test_what_is_wrong_with_the_inventory_is_known(cluster_file: Path) -> None:
    cluster_file.write_text("[[node]]\nname = 3\n")
    with ThreadedService(str(cluster_file)) as gpus:
        assert "gpufit.toml" in (gpus.inventory_error or "")
        assert gpus.call(lambda scheduler: scheduler.nodes()) == []
        with pytest.raises(GpufitError):
            gpus.call(lambda scheduler: scheduler.request(Request(), gpus.owner))


def test_it_must_be_open() -> None:
    with pytest.raises(RuntimeError, match="not been started"):
        ThreadedService().call(lambda scheduler: scheduler.nodes())


async def test_kernels_use_the_service_of_their_server(cluster_file: Path) -> None:
    service = await services.open_service(str(cluster_file))
    try:
        await service.settled()
        lease = await leases.lease()  # on the service's own loop
        assert len(await lease.see(lambda scheduler: scheduler.nodes())) == 2
        await lease.close()
        leases.set_current(service)

        async def elsewhere() -> int:
            other = await leases.lease()
            nodes = await other.see(lambda scheduler: scheduler.nodes())
            await other.close()
            return len(nodes)

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == 2
    finally:
        leases.set_current(None)
        await service.close()


async def test_kernels_wait_for_a_service_that_is_to_come(cluster_file: Path) -> None:
    leases.expect_current()
    waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, lease_elsewhere()))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    service = await services.open_service(str(cluster_file))
    leases.set_current(service)
    try:
        assert await waiting is service
    finally:
        leases.set_current(None)
        await service.close()


async def test_a_start_that_is_given_up_while_the_service_opens_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opens, opened, let_go = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        opens.set()
        opened.wait(30)

    monkeypatch.setattr(leases, "_hold", hold)
    monkeypatch.setattr(leases, "_let_go", let_go.set)
    start = asyncio.create_task(leases.lease())
    assert await asyncio.to_thread(opens.wait, 30)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not let_go.is_set()
    opened.set()
    assert await asyncio.to_thread(let_go.wait, 30)


async def lease_elsewhere() -> object:
    lease = await leases.lease()
    await lease.close()
    return lease._service


PROGRAM = """
import os, sys, time
from jupyter_gpufit.kernels.service import ThreadedService
from jupyter_gpufit.models import Request
gpus = ThreadedService().start()
made = gpus.call(lambda scheduler: scheduler.request(Request(gpus=2), gpus.owner))
while gpus.call(lambda scheduler: scheduler.get(made.id)).state != "running":
    time.sleep(0.05)
print("running", flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_process_that_ends_without_closing_leaves_nothing(
    cluster_file: Path, held: Callable[[], list[str]], how: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "running\n", done.stderr
    assert "Traceback" not in done.stderr
    deadline = time.monotonic() + 30
    while held() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert held() == []


def test_a_forked_child_does_not_use_its_parents_thread(cluster_file: Path) -> None:
    with ThreadedService(str(cluster_file)):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if leases._embedded is None and leases._leases == 0 else 1)
        assert os.waitpid(pid, 0)[1] == 0


class Kernels(dict[str, Any]):
    """A multi-kernel manager whose one kernel is there when it has been taken back: here, by the time of `appear`."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[str] = []

    def appear(self, kernel_id: str) -> None:
        self[kernel_id] = mock.Mock(cleanup_resources=mock.AsyncMock())

    def get_kernel(self, kernel_id: str) -> Any:
        return self[kernel_id]

    def remove_kernel(self, kernel_id: str) -> None:
        self.gone.append(kernel_id)
        del self[kernel_id]


async def test_stopped_while_a_kernel_is_taken_back() -> None:
    """With `keep`, the server must not find it in its kernel manager afterwards: it would shut it down."""
    kernels = Kernels()
    host = ServerKernelHost(kernels)
    running = mock.Mock(state=State.RUNNING, kernel_id="k")
    scheduler = mock.Mock(allocations=lambda: [running], close=mock.AsyncMock())
    parts = (mock.Mock(), mock.Mock(close=mock.AsyncMock()))  # of jobs, and transfers
    service = services.Service(scheduler, mock.Mock(), mock.Mock(stop=mock.AsyncMock()), host, "ada", *parts)

    async def taken_back() -> str:
        await eventually(lambda: scheduler.close.called)  # which gives it up; but it comes, all the same
        kernels.appear("k")
        return "k"

    host._starts.add(asyncio.create_task(taken_back()))
    await service.close(keep=True)
    assert (kernels.gone, dict(kernels)) == (["k"], {})
    scheduler.close.assert_awaited_once_with(release=False)

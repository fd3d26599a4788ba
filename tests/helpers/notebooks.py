"""For tests of the notebook room: a client whose allocations are plain ipykernels, and a notebook's local kernel."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import AsyncKernelManager, KernelManager

from jupyter_gpufit.errors import Conflict, InvalidValue, NoFit, NotFound
from jupyter_gpufit.models import (
    Allocation,
    EndReason,
    Gpu,
    GpuUse,
    Node,
    Progress,
    Queued,
    Request,
    State,
    StoredModel,
    Usage,
)
from jupyter_gpufit.notebook.channels import Channel, LoopChannel

GIB = 2**30
DEADLINE = 60.0
TESTS = Path(__file__).parents[1]


def interrupt_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C comes while somebody waits for what another thread asks for."""
    result = Future.result
    pressed: list[Future[Any]] = []

    def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
        if not pressed:
            pressed.append(self)
            raise KeyboardInterrupt
        return result(self, timeout)

    monkeypatch.setattr(Future, "result", interrupted)


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()


class KernelClient:
    """A `Client` whose allocations each are a real ipykernel. `calls` tells what was asked of it.

    Jobs only print what `prints` has, and end; transfers take four steps.
    """

    lasting = True

    def __init__(self, gpus: int = 4, slow: bool = False) -> None:
        self._thread = LoopThread()
        self._managers: dict[str, AsyncKernelManager] = {}
        self._allocations: dict[str, Allocation] = {}
        self._ids = itertools.count(1)
        self._gpus = gpus
        self._slow = slow
        self.calls: list[str] = []
        self.prints: list[str] = ["epoch 1\n", "epoch 2\n"]
        self.code = 0
        """Exit code of jobs."""
        self.submitted: list[tuple[Request, dict[str, list[str]]]] = []
        self.transfers: list[dict[str, Any]] = []

    # --- what the notebook room calls

    def nodes(self) -> list[Node]:
        gpus = tuple(
            Gpu(uuid=f"GPU-{at}", index=at, memory_total=40 * GIB, memory_free=39 * GIB) for at in range(self._gpus)
        )
        models = (StoredModel(name="llama-7b", size=13 * GIB, modified=1e9),)
        return [
            Node(name="n1", gpus=gpus, models=models),
            Node(name="n2", reason="unreachable: no route to host"),
        ]

    def cluster(self) -> tuple[list[Node], str | None]:
        return self.nodes(), None

    def about(self) -> dict[str, Any]:
        return {"policy": "best-fit", "image": None, "images": [], "quota": None, "time": None}

    def explain(self, request: Request, *, stages: bool = True) -> dict[str, Any]:
        why = f"{self._gpus} idle GPUs, {request.gpus} asked"
        fits = request.gpus <= self._gpus
        stage = {
            "stage": 1,
            "title": "enough idle GPUs",
            "passed": ["n1"] if fits else [],
            "rejected": {"n2": "unreachable"} | ({} if fits else {"n1": why}),
        }
        return {"node": "n1" if fits else None, "summary": f"{request.describe()} <b>", "stages": [stage]}

    def request(self, request: Request) -> dict[str, Any]:
        self.calls.append("request")
        if request.gpus > self._gpus:
            raise NoFit("No node has that now.", **self.explain(request))
        if any(one.name == request.name and one.state is not State.ENDED for one in self._allocations.values()):
            raise Conflict(f"the name {request.name!r} is taken")
        number = next(self._ids)
        allocation = Allocation(
            id=f"id-{number}",
            name=request.name or f"alloc-{number}",
            owner="tester",
            request=request,
            created=time.time(),
            node="n1",
            gpus=tuple(f"GPU-{at}" for at in range(request.gpus)),
            memory=request.sizes,
            version=1,
        )
        self._allocations[allocation.id] = allocation
        return allocation.public()

    def submit(self, request: Request, sweep: dict[str, list[str]]) -> list[dict[str, Any]]:
        """The first runs; the others wait behind it."""
        import msgspec

        self.submitted.append((request, dict(sweep)))
        made = []
        values = next(iter(sweep.values()), [""])
        for turn, value in enumerate(values):
            assert request.job is not None
            job = msgspec.structs.replace(request.job, sweep=dict.fromkeys(sweep, value), turn=turn)
            name = f"{request.name or 'job'}-{turn + 1}" if len(values) > 1 else request.name
            one = self.request(msgspec.structs.replace(request, name=name, job=job))
            if turn:
                place = Queued(position=turn, of=len(values) - 1, until=9e9)
                self._change(self._allocations[one["id"]], node=None, gpus=(), queue=place)
            made.append(self.get(one["id"]))
        return made

    def allocations(self, *, ended: bool = False) -> list[dict[str, Any]]:
        return [one.public() for one in self._allocations.values() if ended or one.state is not State.ENDED]

    def get(self, name: str) -> dict[str, Any]:
        for one in reversed(self._allocations.values()):
            if name in (one.id, one.name):
                return one.public()
        raise NotFound(f"no allocation is called {name!r}")

    def changed(self, id: str, version: int, timeout: float = 4.0) -> dict[str, Any]:
        """Every question moves an allocation one state on."""
        one = self._allocations[id]
        if one.state is State.PENDING:
            pulled = (one.progress.current or 0) + GIB if one.progress else GIB
            self._change(one, state=State.STARTING, progress=Progress(phase="pulling", current=pulled, total=4 * GIB))
        elif one.state is State.STARTING and one.request.job is not None:
            self._change(one, state=State.RUNNING, node="n1", queue=None, progress=None, attempt=1)
        elif one.state is State.STARTING and not self._slow:
            self._managers[id] = self._thread.run(self._start())
            self._change(one, state=State.RUNNING, kernel_id=f"kernel-{id}", progress=None)
        elif one.state is State.STOPPING:
            if (manager := self._managers.pop(id, None)) is not None:
                self._thread.run(manager.shutdown_kernel(now=True))
            self._change(one, state=State.ENDED, ended=time.time(), usage=self._used(one))
        else:
            time.sleep(min(timeout, 0.05))
        return self._allocations[id].public()

    def release(self, id: str) -> dict[str, Any]:
        self.calls.append("release")
        one = self._allocations[id]
        if one.state not in (State.STOPPING, State.ENDED):
            reason = EndReason.RELEASED if one.state is State.RUNNING else EndReason.CANCELLED
            self._change(one, state=State.STOPPING, reason=reason)
        return self._allocations[id].public()

    def extend(self, id: str, seconds: float) -> dict[str, Any]:
        import msgspec

        one = self._allocations[id]
        if one.request.time is None:
            raise Conflict(f"allocation {one.name!r} has no time limit; there is nothing to extend")
        longer = float(one.request.time) + seconds
        self._change(one, request=msgspec.structs.replace(one.request, time=longer), expires=time.time() + longer)
        return self._allocations[id].public()

    def logs(self, id: str, tail: int = 200) -> str:
        return f"logs of {id}\n"

    def log(self, id: str, tail: int | None = None, after: str = "", wait: float = 0.0) -> dict[str, Any]:
        """A piece each time; then the job ends, unless what it prints is None."""
        one, at = self._allocations[id], int(after or 0)
        if at < len(self.prints):
            return {"logs": self.prints[at], "mark": str(at + 1), "over": False}
        if one.state is State.RUNNING and self.code >= 0:
            reason = EndReason.FAILED if self.code else EndReason.FINISHED
            said = f"failed with exit code {self.code}\nlast words" if self.code else "finished after 2 s"
            self._change(
                one, state=State.ENDED, reason=reason, message=said, exit_code=self.code, outputs="/home/ada/outputs/x"
            )
        else:
            time.sleep(min(wait, 0.05))
        return {"logs": "", "mark": after, "over": self._allocations[id].state is State.ENDED}

    def usage(self, id: str) -> dict[str, Any]:
        uuids = self._allocations[id].gpus
        gpus = [{"uuid": uuid, "asked": 24 * GIB, "memory": [9 * GIB], "utilization": [43]} for uuid in uuids]
        return {"times": [1e9], "gpus": gpus, "usage": None, "sentence": "asked 24 GiB on 1 GPU, peak 9 GiB"}

    def transfer(self, id: str, do: str, folder: str, paths: list[str]) -> dict[str, Any]:
        self.calls.append(f"{do} {' '.join(paths)}")
        if ".." in paths[0]:
            raise InvalidValue(f"{paths[0]!r} leads out of {folder}; only what is in it can be copied")
        begun = {"id": f"t{len(self.transfers)}", "version": 0, "done": False, "failed": False, "message": ""}
        self.transfers.append({**begun, "current": None, "total": None, "files": paths})
        return dict(self.transfers[-1])

    def transferred(self, transfer: str, after: int) -> dict[str, Any]:
        one = self.transfers[int(transfer[1:])]
        time.sleep(0.11)  # so that it is shown
        if not self._slow or one["version"] < 2:
            one["version"] += 1
            one |= {"current": one["version"] * GIB, "total": 4 * GIB, "done": one["version"] == 4}
        if one["done"] and "broken" in one["files"]:
            one |= {"failed": True, "message": "node 'n1' has no room for it"}
        return dict(one)

    def cancel_transfer(self, transfer: str) -> dict[str, Any]:
        self.calls.append("cancel_transfer")
        return self.transfers[int(transfer[1:])]

    def notebook(self) -> str | None:
        return "work/fit.ipynb"

    def has_session(self) -> bool:
        return False

    def attach(self, id: str) -> None:
        self.calls.append("attach")

    def detach(self, id: str) -> None:
        self.calls.append("detach")

    def channel(self, allocation: dict[str, Any]) -> Channel:
        manager = self._managers[allocation["id"]]
        started = manager.provisioner.pid
        return LoopChannel(self._thread.loop, manager.client, lambda: _runs(started))

    def close(self) -> None:
        for manager in self._managers.values():
            self._thread.run(manager.shutdown_kernel(now=True))
        self._managers.clear()
        self._thread.close()

    # --- what tests do to it

    def pid(self, name: str) -> int:
        return int(self._managers[self.get(name)["id"]].provisioner.pid)

    def end(self, name: str, reason: EndReason, message: str) -> None:
        """The allocation ends by itself."""
        one = self._allocations[self.get(name)["id"]]
        if (manager := self._managers.pop(one.id, None)) is not None:
            self._thread.run(manager.shutdown_kernel(now=True))
        self._change(one, state=State.ENDED, reason=reason, message=message)

    def restart(self, name: str) -> None:
        """Its kernel dies and is started anew, as an autorestart does."""
        self._thread.run(self._managers[self.get(name)["id"]].restart_kernel(now=True))

    def _used(self, one: Allocation) -> Usage | None:
        """What those used that asked for 24 GiB."""
        gpus = tuple(GpuUse(uuid=uuid, asked=24 * GIB, peak=9 * GIB, busy=43.0) for uuid in one.gpus)
        return Usage(gpus=gpus, seconds=90.0, samples=9, suggested=10 * GIB) if 24 * GIB in one.memory else None

    def _change(self, one: Allocation, **changes: Any) -> None:
        import msgspec

        self._allocations[one.id] = msgspec.structs.replace(one, version=one.version + 1, **changes)

    async def _start(self) -> AsyncKernelManager:
        manager = AsyncKernelManager(kernel_name="python3")
        await manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"])
        return manager


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class LocalKernel:
    """A notebook's local kernel, in a process of its own, and what a front end does with it."""

    def __init__(self, **options: Any) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"], **options)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE)

    def run(self, code: str, **options: Any) -> Outcome:
        return self.finish(self.send(code, **options))

    def send(self, code: str, allow_stdin: bool = False, **options: Any) -> str:
        return str(self.client.execute(code, allow_stdin=allow_stdin, **options))

    def finish(
        self, request: str, until: Callable[[Outcome], bool] | None = None, answer: str | None = None
    ) -> Outcome:
        """All that `request` makes, to its end (or until `until` holds). `answer` is given to what it asks."""
        outcome = Outcome()
        deadline = time.monotonic() + DEADLINE
        while not outcome.idle and not (until is not None and until(outcome)):
            assert time.monotonic() < deadline, f"the cell does not end; so far: {outcome.messages}"
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                message = None
            if message is not None and message["parent_header"].get("msg_id") == request:
                outcome.add(message)
            if answer is not None and self.client.stdin_channel.msg_ready():
                asked = self.client.get_stdin_msg(timeout=1)
                outcome.asked.append(asked["content"])
                self.client.input(answer)
        if outcome.idle:
            while True:
                reply = self.client.get_shell_msg(timeout=DEADLINE)
                if reply["parent_header"].get("msg_id") == request:
                    outcome.reply = reply["content"]
                    break
        return outcome

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()


class Outcome:
    """What a cell did."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.reply: dict[str, Any] = {}
        self.idle = False

    def add(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "status":
            self.idle = content["execution_state"] == "idle"
        elif kind != "execute_input":
            self.messages.append((kind, content))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for found, content in self.messages if found == kind]

    def text(self, name: str = "stdout") -> str:
        return "".join(content["text"] for content in self.of("stream") if content["name"] == name)

    @property
    def result(self) -> str | None:
        found = self.of("execute_result")
        return found[0]["data"]["text/plain"] if found else None

    @property
    def ok(self) -> bool:
        return self.reply.get("status") == "ok"

    def value(self) -> str:
        """The result, of a cell that must have succeeded."""
        assert self.ok, self
        assert self.result is not None, self
        return self.result

    def __repr__(self) -> str:
        return f"Outcome({self.messages!r}, {self.reply!r})"


LOAD = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from helpers.notebooks import KernelClient
from jupyter_gpufit.notebook import magics
held = KernelClient()
magics.load(get_ipython())
get_ipython()._gpufit._connect = lambda shell: (held, None)
"""
"""A cell that loads the magics over a `KernelClient` (as `held`) in a `LocalKernel`."""

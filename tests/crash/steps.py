"""The named steps of a server's work, and its death at one of them: wrapped around the product in a test's own process.

    ledger      each instruction that the scheduler executes             Place, Prepare, StartUnit, Save, Publish, …
    engine      each call of docker-py, and what for                     engine put_archive for start, …
    store       each transaction, by what it brings to disk              transaction of entry #2, …
    scheduler   each call of it that changes something                   scheduler request, scheduler launch, …
    kernels     each call of kernel host, manager and provisioner        host start, provisioner pre_launch, …

Each step has a moment *before* and one *after* it, with a name such as `launch: before Prepare #1`: phase, side, step,
and which one of that name in this phase. A phase begins with a step: `start` with the process,
`launch` with the first `scheduler request`, `restart` with `kernels restart_kernel`, `release` with the first
`scheduler release`, `stop` with `scheduler close`.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import docker
import requests
from jupyter_client.manager import KernelManager
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

from jupyter_gpufit.kernels.adopt import ServerKernelHost
from jupyter_gpufit.kernels.provisioner import GpufitProvisioner
from jupyter_gpufit.launching import engine
from jupyter_gpufit.scheduling.execution import Execution
from jupyter_gpufit.scheduling.scheduler import LocalScheduler
from jupyter_gpufit.scheduling.store import Store

__all__ = ["BESIDE", "PHASES", "install"]

PHASES = ("start", "launch", "restart", "release", "stop")
_BEGINS = {
    "scheduler request": "launch",
    "kernels restart_kernel": "restart",
    "scheduler release": "release",
    "scheduler close": "stop",
}

BESIDE = ("for Watch", "for units")
"""Ends of the names of calls that only read, and come at times of their own: the watch of an engine, and the reaper."""
_QUESTIONS = {"changed", "kept", "logs", "poll", "quiet", "usage"}
"""They change nothing, and are asked at any time."""
_inside = threading.local()


class _Steps:
    """Writes every moment down, and ends the process at the one it is told."""

    def __init__(self, file: str, kill: str | None) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._kill = kill
        self._phase = PHASES[0]
        self._seen: Counter[tuple[str, str]] = Counter()
        self._lock = threading.RLock()

    def enter(self, phase: str) -> None:
        """A phase begins, unless a later one has."""
        self._phase = max(phase, self._phase, key=PHASES.index)

    def begins(self, step: str) -> str:
        """A step begins. Gives the name of its end."""
        number = self.number(step)
        self.moment(f"{self._phase}: before {number}")
        return f"{self._phase}: after {number}"

    def number(self, step: str) -> str:
        """The step, and which one of that name it is in this phase."""
        with self._lock:
            self._seen[self._phase, step] += 1
            return f"{step} #{self._seen[self._phase, step]}"

    def gathered(self, step: str) -> str:
        """A step of this phase will come, at a time of its own. Gives the name of its beginning."""
        name = f"{self._phase}: before {self.number(step)}"
        self.moment(name.replace(": before ", ": will come: "))
        return name

    def moment(self, name: str) -> None:
        """Here the server may die."""
        with self._lock:
            os.write(self._file, f"{name}\n".encode())
            if name == self._kill:
                os.kill(os.getpid(), signal.SIGKILL)


def install(file: str, kill: str | None) -> None:
    """Wrap all steps; write each moment as a line of `file`; die at the moment `kill`."""
    steps = _Steps(file, kill)
    for kind, do in list(Execution._do.items()):
        Execution._do[kind] = _wrapped(do, lambda kind=kind: kind.__name__, steps)
    for name, _ in inspect.getmembers(docker.APIClient, inspect.isfunction):
        if not name.startswith("_") and not hasattr(requests.Session, name) and name != "get_adapter":
            call = getattr(engine._Client, name)
            wrapped = _wrapped(call, lambda name=name: f"engine {name} for {_asker()}", steps)
            setattr(engine._Client, name, _outermost(call, wrapped))
    for cls, who in ((LocalScheduler, "scheduler"), (GpufitProvisioner, "provisioner"), (ServerKernelHost, "host")):
        for name, _ in inspect.getmembers(cls, inspect.iscoroutinefunction):
            if not name.startswith("_") and name not in _QUESTIONS:
                _wrap(cls, name, f"{who} {name}", steps)
    for cls, names in (
        (AsyncMappingKernelManager, ("start_kernel", "shutdown_kernel", "restart_kernel")),
        (KernelManager, ("_async_request_shutdown", "_async_interrupt_kernel")),
        (KernelManager, ("write_connection_file", "cleanup_connection_file")),
    ):
        for name in names:
            _wrap(cls, name, f"kernels {name.removeprefix('_async_')}", steps)
    _wrap_transactions(steps)


def _wrap(cls: type, name: str, step: str, steps: _Steps) -> None:
    setattr(cls, name, _wrapped(getattr(cls, name), lambda: step, steps))


def _wrapped(call: Callable[..., Any], named: Callable[[], str], steps: _Steps) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            step = named()
            if step in _BEGINS:
                steps.enter(_BEGINS[step])
            after = steps.begins(step)
            try:
                return await call(*args, **kwargs)
            finally:
                steps.moment(after)

        return waits

    @functools.wraps(call)
    def runs(*args: Any, **kwargs: Any) -> Any:
        after = steps.begins(named())
        try:
            return call(*args, **kwargs)
        finally:
            steps.moment(after)

    return runs


def _outermost(call: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """`wrapped`, but for what calls of docker-py call of each other."""

    @functools.wraps(call)
    def runs(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, "it", False):
            return call(*args, **kwargs)
        _inside.it = True
        try:
            return wrapped(*args, **kwargs)
        finally:
            _inside.it = False

    return runs


def _asker() -> str:
    """Which method of ours makes this call, by the outermost frame that says so: a worker's thread begins with it."""
    name = ""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("jupyter_gpufit.launching."):
            parts = frame.f_code.co_qualname.split(".")
            if parts[0] != "Worker":
                name = parts[0] if parts[0] == "Watch" else parts[min(1, len(parts) - 1)]
        frame = frame.f_back
    return name.strip("_")


def _wrap_transactions(steps: _Steps) -> None:
    """A transaction has the names of all that is first on disk with it: how much that is, is a matter of moments."""
    waiting: list[str] = []

    def gathering(call: Callable[..., None], what: str) -> Callable[..., None]:
        @functools.wraps(call)
        def gathers(*args: Any) -> None:
            waiting.append(steps.gathered(f"transaction of {what}"))
            call(*args)

        return gathers

    write = Store._write

    @functools.wraps(write)
    def writes(self: Store, strict: bool = False) -> None:
        names, waiting[:] = list(waiting), []
        for name in names:
            steps.moment(name)
        try:
            write(self, strict)
        finally:
            for name in names:
                steps.moment(name.replace(": before ", ": after "))

    Store._put = gathering(Store._put, "entry")  # type: ignore[method-assign]
    Store.remember = gathering(Store.remember, "memory")  # type: ignore[method-assign]
    Store._write = writes  # type: ignore[method-assign]

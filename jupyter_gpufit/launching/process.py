"""The embedded launcher: plain processes on this machine. What a notebook server without a cluster uses.

    prepare    a directory and five ports of its own, the claim written, its supervisor started (it waits)
    start      the supervisor runs the command, with exactly the claimed GPUs visible
    halt       told to end, or killed; its directory stays, for what it made
    stop       the supervisor kills all that was forked, and removes directory and claim

A unit ends with this process, however that ends; or waits for the next one for as long as its launch said, and is taken
over by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import GpufitError, ImageRefused, LaunchError, NodeUnfit, NodeUnreachable, NotFound
from ..inventory import NodeSpec
from ..models import Claim, Endpoint, Launch, Progress, Unit
from ..scheduling.logs import Piece, text_of
from ..scheduling.needs import KILLED, OnExit, OnHost, OnProgress, OnTrouble
from . import carrying, spare, supervise
from .base import LOG_LINES, SETTLES_WITHIN, environment, fill_in, keep, threads
from .directory import ClaimsDirectory, Process, Record
from .machine import this_machine
from .ports import Ports
from .supervisor import OUTPUTS, RUNNING, WORK, LocalUnit, make_directory
from .tarring import pack, unpack
from .worker import Worker

__all__ = ["ProcessLauncher"]

log = logging.getLogger(__name__)
T = TypeVar("T")
LOOK_EVERY = 1.0  # s between looks at the claims of other schedulers, and at what our units forked
SPARE_AFTER = 1.0  # s after which the next supervisor is started: when the kernel that has the one before is up
CALL_WITHIN = 15.0  # s for the file system and a supervisor's answer
STOP_WITHIN = supervise.STUCK_AFTER + 4.0


class ProcessLauncher:
    """`scheduling.needs.Launcher` for a node without an engine. Made by `base.make_launcher`."""

    kind = "process"

    def __init__(self, spec: NodeSpec) -> None:
        self.node = spec.name
        self._spec = spec
        self._place = spec.name if spec.report.startswith("simulated:") else ""
        self._directory = ClaimsDirectory()
        self._machine = this_machine()
        self._worker = Worker(spec.name)
        self._carriers = Worker(f"{spec.name}-files", carrying.THREADS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_exit: OnExit | None = None
        self._on_claims: Callable[[Sequence[Claim]], None] | None = None
        self._claims: list[Claim] | None = None
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._sparing: asyncio.TimerHandle | None = None
        self._undoing: set[asyncio.Task[None]] = set()
        self._ends: dict[str, tuple[int, str]] = {}
        self._told: dict[str, None] = {}
        self._starting: set[str] = set()
        self._finding = asyncio.Lock()  # a supervisor lets one in
        self._unreached: set[str] = set()  # units that live, and whose supervisor does not answer

    async def open(
        self,
        on_exit: OnExit,
        on_claims: Callable[[Sequence[Claim]], None],
        on_trouble: OnTrouble | None = None,
        on_host: OnHost | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_exit, self._on_claims = on_exit, on_claims
        for unit in RUNNING.values():  # of a launcher before us, in this same server
            if unit.unit.node == self.node:
                unit.listeners.add(self._ended)
        self._looking = asyncio.create_task(self._look())
        spare.use(self)
        self._spare()
        if on_host is not None:
            on_host(self._machine.cpus, self._machine.ram)
        if on_trouble is not None:
            on_trouble(None)

    async def take_over(self, unit: Unit) -> None:
        await self._found(unit)

    async def was_started(self, unit: Unit) -> bool:
        local = await self._found(unit)
        if local is None or not await _done(local.known, CALL_WITHIN):
            return False
        if local.running.done():
            return local.running.exception() is None
        return local.code is not None

    def doubt(self) -> None:
        return  # this machine

    async def prepare(self, launch: Launch, on_progress: OnProgress) -> Unit:
        if launch.image not in (None, self._spec.image):
            raise ImageRefused(
                f"node {self.node} runs plain processes and has no images, {launch.image!r} was asked; "
                "leave the image out, or ask for a node with a Docker engine",
                image=launch.image,
            )
        on_progress(Progress(phase="creating"))
        local = await self._or_undo(self._worker.submit(lambda: self._prepare(launch)))
        local.listeners.add(self._ended)
        self._changed.set()
        self._spare()
        return local.unit

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        local = RUNNING.get(unit.id)
        if local is None or local.code is not None or local.stopping:
            raise LaunchError(f"unit {unit.name} does not wait to be started any more; request again", logs="")
        self._starting.add(unit.id)
        plain = _plain(local)  # what runs could remove the directory
        try:
            job = self._worker.submit(lambda: self._start(local, command, files, env))
            await self._or_undo(job, local)
            if local.code is not None and not plain:
                raise LaunchError(f"{unit.name} {local.sentence} while it started")
        except LaunchError as error:
            error.details.setdefault("logs", text_of(local.logs(LOG_LINES)))
            await self._undo(local)
            raise
        asyncio.get_running_loop().call_later(SETTLES_WITHIN, self._started, local)
        return Endpoint(host="127.0.0.1", ports=unit.inner_ports)

    def exit_code(self, unit: Unit) -> int | None:
        if (local := RUNNING.get(unit.id)) is not None:
            return local.code
        if unit.id in self._unreached:
            return None
        return self._ends.get(unit.id, (KILLED, ""))[0]  # it has ended, or `take_over` would have found it

    def describe_exit(self, unit: Unit) -> str:
        if (local := RUNNING.get(unit.id)) is not None:
            return local.sentence
        return self._ends.get(unit.id, (KILLED, "ended with the server that had started it"))[1]

    def failed_with_node(self, unit: Unit) -> bool:
        """Nobody heard of its end: its supervisor went with the machine, or was killed while no server was there."""
        return unit.id not in RUNNING and unit.id not in self._ends and unit.id not in self._unreached

    async def put(self, unit: Unit, archive: Path, on_progress: OnProgress, into: str = "") -> None:
        local = await self._there(unit)
        if local is None:
            raise LaunchError(f"files cannot be put: {unit.name} on {self.node} is gone", logs="")

        def call(carrier: carrying.Carrier) -> None:
            target, total = _place(local, into), carrying.size_of(archive)
            try:
                os.makedirs(target, exist_ok=True)
                unpack(archive, target, lambda current: carrier.moved(current, total))
            except OSError as error:
                where = f"files cannot be put to {error.filename or target} on {self.node}"
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NodeUnfit(f"{where}: its disk is full; free some there", logs="") from None
                raise LaunchError(f"{where}: {error.strerror}") from None

        await carrying.carry(self._carriers, "uploading", on_progress, call)

    async def fetch(self, unit: Unit, path: str, archive: Path, limit: int, on_progress: OnProgress) -> None:
        local = await self._there(unit)
        if local is None:
            raise NotFound(f"there is no {path!r}: {unit.name} is gone")

        def call(carrier: carrying.Carrier) -> None:
            place = _place(local, path)
            if not os.path.lexists(place):
                raise NotFound(f"there is no {place} in {unit.name}")
            with carrier.writing(archive, place, limit) as write:
                pack(place, write)

        await carrying.carry(self._carriers, "collecting", on_progress, call)

    async def halt(self, unit: Unit, grace: float) -> None:
        local = await self._found(unit)
        if local is None or local.code is not None or not local.running.done():
            return
        if not await _done(local.halt(grace), grace + STOP_WITHIN):
            raise NodeUnreachable(f"{unit.name} on {self.node} does not end: its supervisor does not answer")

    async def interrupt(self, unit: Unit) -> None:
        if (local := RUNNING.get(unit.id)) is not None:
            await self._worker.run(lambda: local.signal(signal.SIGINT), CALL_WITHIN)

    async def stop(self, unit: Unit, grace: float = 0.0) -> None:
        local = await self._found(unit)
        if local is None:
            return
        await self._stop(local, grace)
        await self._tell_claims()

    async def logs(self, unit: Unit, tail: int | None = None, after: str = "") -> Sequence[Piece]:
        local = RUNNING.get(unit.id)
        return () if local is None else await self._call(lambda: local.logs(tail, after))

    async def units(self) -> Sequence[tuple[Unit, Claim]]:
        records = await self._call(lambda: self._directory.records(self._place))
        return [(record.unit, record.claim) for record in records]

    async def close(self) -> None:
        if self._sparing is not None:
            self._sparing.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=STOP_WITHIN)
        for local in tuple(RUNNING.values()):
            local.listeners.discard(self._ended)
        await self._worker.close()
        await self._carriers.close()
        spare.leave(self)

    # --- in the worker's threads

    def _prepare(self, launch: Launch) -> LocalUnit:
        holder = Process.of(os.getpid())
        assert holder is not None  # ourselves
        if launch.folder is not None and not os.path.isdir(launch.folder):
            raise LaunchError(f"the folder {launch.folder!r} is not there any more on {self.node}", logs="")
        id = f"process-{uuid.uuid4().hex}"
        ports = Ports(wanted=launch.host_ports)
        folder = None
        try:
            unit = Unit(
                id=id,
                name=launch.name,
                node=self.node,
                allocation=launch.allocation,
                inner_ports=ports.numbers,
                encrypt=False,
            )
            claim = Claim(
                allocation=launch.allocation,
                scheduler=launch.scheduler,
                owner=launch.owner,
                gpus=launch.gpus,
                shared=launch.shared,
                cards=launch.cards,
                expires=launch.expires,
                cpus=launch.cpus or 0.0,
                ram=launch.ram or 0,
            )
            ram = self._spec.ram if launch.ram is None else launch.ram
            record = Record(unit=unit, claim=claim, place=self._place, holder=holder, ram=ram)
            self._directory.claim(record, launch.totals, self._machine)
            folder = make_directory(launch.name)
            record = msgspec.structs.replace(record, directory=str(folder), work=self._works_in(launch, folder))
            local = LocalUnit.started(record, self._directory.file(id), ports, launch.outlive)
        except BaseException:
            ports.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            self._directory.remove(id)
            raise
        try:
            self._directory.update(msgspec.structs.replace(record, supervisor=Process.of(local.pid)))
        except BaseException:
            local.stop(0).result(STOP_WITHIN)
            raise
        return local

    def _works_in(self, launch: Launch, directory: Path) -> str:
        """Where it works; directories of its own are made."""
        own = (WORK, OUTPUTS) if launch.workspace else ()
        for name in own:
            try:
                (directory / name).mkdir()
            except OSError as error:
                raise LaunchError(f"cannot make a directory in {directory}: {error.strerror}") from None
        return launch.folder or (str(directory / WORK) if launch.workspace else self._spec.workdir or "/")

    def _start(
        self, local: LocalUnit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> int:
        gpus, places = ",".join(local.claim.gpus), local.places
        variables = environment(os.environ) | threads(local.claim.cpus or None)
        variables |= {name: fill_in(value, places) for name, value in env.items()}
        variables |= {"CUDA_VISIBLE_DEVICES": gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        variables |= {"NVIDIA_VISIBLE_DEVICES": gpus or "void"}  # what programs written for containers look at
        if self._spec.models:
            variables["GPUFIT_MODELS"] = self._spec.models
        argv = [sys.executable if word == "{python}" else fill_in(word, places) for word in command]
        return local.start(argv, files, variables).result(CALL_WITHIN)

    def _find(self, unit: Unit) -> LocalUnit | None:
        """One that a process before this one left, if it has not ended."""
        record = self._directory.record(unit.id)
        if record is None or record.supervisor is None or not record.supervisor.lives:
            return None
        try:
            return LocalUnit.taken_over(record, self._directory.file(unit.id))
        except LaunchError as error:
            if not record.supervisor.lives:
                return None
            raise NodeUnreachable(f"{unit.name} on {self.node} cannot be reached: {error.message}") from None

    # --- on the loop

    async def _found(self, unit: Unit) -> LocalUnit | None:
        """The unit, taken over if it is not one of this process; `None` if it has ended."""
        local = RUNNING.get(unit.id)
        if local is None and unit.id not in self._ends:
            async with self._finding:
                try:
                    local = await self._call(lambda: RUNNING.get(unit.id) or self._find(unit))
                except NodeUnreachable:
                    self._unreached.add(unit.id)
                    raise
            self._unreached.discard(unit.id)
            if local is not None:
                local.listeners.add(self._ended)
                self._changed.set()
                self._started(local)  # it may have ended before we listened
        return local

    async def _there(self, unit: Unit) -> LocalUnit | None:
        """The unit, if its files are there."""
        local = await self._found(unit)
        return None if local is None or local.stopping else local

    def _spare(self) -> None:
        """See that there will be a supervisor for the next unit."""
        if self._sparing is not None:
            self._sparing.cancel()
        self._sparing = asyncio.get_running_loop().call_later(SPARE_AFTER, self._make_spare)

    def _make_spare(self) -> None:
        with contextlib.suppress(NodeUnreachable):  # closed meanwhile
            self._worker.submit(spare.make)

    async def _or_undo(self, job: Future[T], local: LocalUnit | None = None) -> T:
        """The result of `job`. If we are cancelled meanwhile: let it end, then undo it (and `local`)."""
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except TimeoutError:
            raise LaunchError(f"this machine did not start a process within {CALL_WITHIN:.0f} s") from None
        except asyncio.CancelledError:
            await self._undo(local, job)
            raise

    async def _undo(self, local: LocalUnit | None, job: Future[T] | None = None) -> None:
        async def undo() -> None:
            made: object = local
            if job is not None and not job.cancel():
                with contextlib.suppress(Exception):  # it has undone itself
                    result = await asyncio.wrap_future(job)
                    made = local or result
            if isinstance(made, LocalUnit):
                try:
                    await self._stop(made, 0)
                except NodeUnreachable as error:
                    log.error("undoing a launch: %s", error)
                self._changed.set()

        task = asyncio.create_task(undo())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)

    async def _stop(self, local: LocalUnit, grace: float) -> None:
        if not await _done(local.stop(grace), grace + STOP_WITHIN) and not local.stuck:
            local.kill()  # the supervisor itself does not answer
        if not await _done(local.gone, STOP_WITHIN):
            pids = ", ".join(map(str, local.stuck)) or str(local.pid)
            raise NodeUnreachable(f"{local.unit.name} on {self.node} does not end: process {pids} hangs in a driver")
        self._starting.discard(local.unit.id)
        keep(self._ends, local.unit.id, (KILLED if local.code is None else local.code, local.sentence))

    def _ended(self, local: LocalUnit) -> None:
        """In the unit's thread: it ended by itself."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._tell_exit, local)  # type: ignore[union-attr]

    def _started(self, local: LocalUnit) -> None:
        """From now on its end is news; also if that came meanwhile."""
        self._starting.discard(local.unit.id)
        if local.code is not None:
            self._tell_exit(local)

    def _tell_exit(self, local: LocalUnit) -> None:
        if self._on_exit is not None and local.code is not None and not (local.stopping or local.halting):
            keep(self._ends, local.unit.id, (local.code, local.sentence))
            if local.unit.id not in self._starting and local.unit.id not in self._told:
                keep(self._told, local.unit.id, None)
                self._on_exit(local.unit, local.code, local.sentence)

    async def _look(self) -> None:
        while True:
            try:
                await self._tell_claims()
            except GpufitError as error:
                log.warning("%s: %s", self.node, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):  # not wait_for: before Python 3.12 it may lose a cancellation
                    await self._changed.wait()
            self._changed.clear()

    async def _tell_claims(self) -> None:
        if self._on_claims is None:
            return
        records = await self._call(lambda: self._directory.records(self._place))
        claims = [record.claim for record in records]
        if claims != self._claims:
            self._claims = claims
            self._on_claims(claims)

    async def _call(self, call: Callable[[], T]) -> T:
        try:
            return await self._worker.run(call, CALL_WITHIN)
        except TimeoutError:
            raise NodeUnreachable(f"{self._directory.path} on {self.node} does not answer") from None


def _plain(local: LocalUnit) -> bool:
    """A job's: what it runs is no kernel, and may end at once."""
    return (local.directory / OUTPUTS).is_dir()


def _place(local: LocalUnit, path: str) -> str:
    """`path` of a unit on this machine."""
    return os.path.normpath(os.path.join(local.places.work, fill_in(path, local.places)))


async def _done(future: Future[None], timeout: float) -> bool:
    """Wait for it, at most `timeout` seconds; leaves it alone in any case."""
    waiting = asyncio.wrap_future(future)
    done, _ = await asyncio.wait([asyncio.shield(waiting)], timeout=timeout)
    return bool(done)

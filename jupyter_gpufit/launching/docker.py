"""Containers of one Docker Engine.

    prepare    image there, or pulled → container made, labelled with its claim → the engine's other claims looked at
    start      command, environment and files put in → started → its ports read back
    halt       told to end, or killed; it stays, for what it made
    stop       killed, removed, and confirmed gone
    meanwhile  the event stream (events.py) keeps the table (states.py) that `exit_code` and `on_claims` answer from

A handful of calls from image to running kernel, none of them a poll. What each step makes it undoes when it fails or is
cancelled; what cannot be undone because the engine does not answer is remembered, and done when it does again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import docker
import docker.errors

from ..errors import GpufitError, ImageRefused, LaunchError, NodeUnreachable, NotFound
from ..inventory import NodeSpec
from ..models import Claim, Endpoint, Launch, Progress, Unit
from ..scheduling.logs import Piece, text_of
from ..scheduling.needs import KILLED, OnExit, OnHost, OnProgress, OnTrouble
from . import carrying, claims, labels
from .asking import ask_printed
from .base import IMAGE_REFUSED, LOG_LINES, SETTLES_WITHIN, check_image, describe_end, keep, refusal
from .containers import archive as pack
from .containers import (
    check_disk,
    check_folder,
    create_body,
    host_ports,
    reach,
    run_script,
    unit,
    why_not_made,
    why_not_started,
)
from .engine import Engine, said
from .events import Listed, Silent, Watch, list_containers
from .files import fetch, put
from .halting import halt
from .machine import Machine
from .prepared import Image, Prepared, look_up, noted
from .pulling import pull
from .removing import remove
from .states import Ended, Seen, Table, ended_meanwhile, ended_unwatched, killed
from .users import owner_of
from .worker import Worker

__all__ = ["DockerLauncher"]

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_AGAIN_AFTER = claims.STALE_AFTER - 60
"""Seconds after making a container for which its first look at the others' claims holds good."""
ANSWER_WITHIN = 4.0  # s for what a person waits for
PRINTED_WITHIN = 20.0  # s for all that a container printed, which may be many MiB
CLOSE_WITHIN = 5.0
DOUBTED_FOR = 1.5
"""Seconds for which the end of what was killed is kept back: a machine that is shut down may end its containers just
before its engine."""


class DockerLauncher:
    """`scheduling.needs.Launcher` for a node with an engine. Made by `base.make_launcher`."""

    kind = "docker"

    def __init__(self, spec: NodeSpec) -> None:
        self.node = spec.name
        self._spec = spec
        self._reach = reach(spec)
        self._engine = Engine(spec)
        self._worker = Worker(spec.name)
        self._carriers = Worker(f"{spec.name}-files", carrying.THREADS)
        self._halting = Worker(f"{spec.name}-halt")  # its own: it waits for programs, and must not wait for files
        self._table = Table()
        self._clock = 0.0  # the engine's clock less our monotonic one
        self._machine = Machine()
        self._prepared: dict[str, Prepared] = {}
        self._quiet: set[str] = set()  # containers whose end is `start`'s to report, or no news yet
        self._stopping: set[str] = set()  # containers whose end is our own doing
        self._doomed: dict[str, str] = {}  # name → allocation, to remove when the engine answers again
        self._doubted: dict[str, tuple[Unit, asyncio.TimerHandle]] = {}  # ends that may turn out to be the node's
        self._silent = False  # whether the engine did not answer when last asked
        self._claims: list[Claim] | None = None
        self._undoing: set[asyncio.Task[None]] = set()
        self._watch: Watch | None = None
        self._on_exit: OnExit | None = None
        self._on_claims: Callable[[Sequence[Claim]], None] | None = None
        self._on_trouble: OnTrouble | None = None
        self._on_host: OnHost | None = None

    async def open(
        self,
        on_exit: OnExit,
        on_claims: Callable[[Sequence[Claim]], None],
        on_trouble: OnTrouble | None = None,
        on_host: OnHost | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._on_exit, self._on_claims, self._on_trouble, self._on_host = on_exit, on_claims, on_trouble, on_host

        def tell(news: Listed | Seen | Silent) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(self._hear, news)

        self._watch = Watch(self._engine, self._spec, tell)

    async def take_over(self, unit: Unit) -> None:
        return  # the engine's list and events tell of all containers, whoever started them

    async def was_started(self, unit: Unit) -> bool:
        def ask() -> bool:
            with self._engine.answering():
                try:
                    state: str = self._engine.client().inspect_container(unit.id)["State"]["Status"]
                except docker.errors.NotFound:
                    return False
            return state != "created"

        return await self._answer(ask)

    def doubt(self) -> None:
        if self._watch is not None:
            self._watch.look()

    async def prepare(self, launch: Launch, on_progress: OnProgress) -> Unit:
        image = launch.image or self._spec.image
        check_image(self._spec, image)
        about = await self._have(image, on_progress)
        on_progress(Progress(phase="creating"))
        began = time.monotonic()
        made = await self._or_undo(self._worker.submit(lambda: self._create(launch, image, about)))
        claim = labels.decode(labels.encode(launch), made.id)
        self._prepared[made.id] = noted(self._spec, launch, claim, image, about, began)
        self._tell(self._table.happened(Seen(unit=made, claim=claim, state="created")))
        return made

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        self._quiet.add(unit.id)
        ports = await self._or_undo(self._worker.submit(lambda: self._start(unit, command, files, env)), unit)
        self._prepared.pop(unit.id, None)
        asyncio.get_running_loop().call_later(SETTLES_WITHIN, self._started, unit)
        return Endpoint(host=self._reach.host, ports=ports)

    def exit_code(self, unit: Unit) -> int | None:
        end = self._table.end_of(unit)
        return None if end is None else end.code

    def describe_exit(self, unit: Unit) -> str:
        end = self._table.end_of(unit)
        return "" if end is None else end.sentence

    def failed_with_node(self, unit: Unit) -> bool:
        end = self._table.end_of(unit)
        return end is not None and end.with_node

    async def put(self, unit: Unit, archive: Path, on_progress: OnProgress, into: str = "") -> None:
        def call(carrier: carrying.Carrier) -> None:
            with self._engine.answering():
                client = self._engine.client()
                try:
                    known = self._prepared.get(unit.id) or look_up(client, unit)
                    owner = owner_of(client, unit.id, known.user)
                except docker.errors.APIError:
                    raise LaunchError(f"files cannot be put: {unit.name} on {self.node} is gone", logs="") from None
            target = known.place(into)
            made = next((folder for folder in known.folders if PurePosixPath(target).is_relative_to(folder)), None)
            put(self._engine, unit, archive, target, owner, made, carrier)

        await carrying.carry(self._carriers, "uploading", on_progress, call)

    async def fetch(self, unit: Unit, path: str, archive: Path, limit: int, on_progress: OnProgress) -> None:
        def call(carrier: carrying.Carrier) -> None:
            with self._engine.answering():
                try:
                    place = look_up(self._engine.client(), unit).place(path)
                except docker.errors.APIError:
                    raise NotFound(f"there is no {path!r}: {unit.name} is gone") from None
            fetch(self._engine, unit, place, archive, limit, carrier)

        await carrying.carry(self._carriers, "collecting", on_progress, call)

    async def halt(self, unit: Unit, grace: float) -> None:
        self._stopping.add(unit.id)
        seen = await asyncio.wrap_future(
            self._halting.submit(lambda: halt(self._engine, self._spec, unit, grace)),
        )
        if seen is not None:
            self._tell(self._table.happened(seen))

    async def interrupt(self, unit: Unit) -> None:
        await self._answer(lambda: self._interrupt(unit))

    async def stop(self, unit: Unit, grace: float = 0.0) -> None:
        self._stopping.add(unit.id)
        await asyncio.wrap_future(self._worker.submit(lambda: remove(self._engine, unit.id, grace)))
        self._forget(unit)

    async def logs(self, unit: Unit, tail: int | None = None, after: str = "") -> Sequence[Piece]:
        def ask() -> Sequence[Piece]:
            with self._engine.answering():
                return ask_printed(self._engine.client(), unit.id, tail, after)

        return await self._answer(ask, ANSWER_WITHIN if tail or after else PRINTED_WITHIN)

    async def units(self) -> Sequence[tuple[Unit, Claim]]:
        def ask() -> list[Seen]:
            with self._engine.answering():
                return list(list_containers(self._engine.client(), self._spec))

        return [(seen.unit, seen.claim) for seen in await asyncio.wrap_future(self._worker.submit(ask))]

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.hang_up()
        for _, later in self._doubted.values():
            later.cancel()
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=CLOSE_WITHIN)
        await self._worker.close()
        await self._carriers.close()
        await self._halting.close()
        for _ in range(100):
            if self._watch is None or self._watch.ended:
                break
            await asyncio.sleep(0.01)
        self._engine.close()

    # --- the image

    async def _have(self, image: str, on_progress: OnProgress) -> Image:
        """See that the node has `image`, and return what it says of itself."""
        if self._spec.pull == "always":
            await pull(self._engine, image, on_progress)
        about = await self._about(image)
        if about is None and self._spec.pull == "missing":
            await pull(self._engine, image, on_progress)
            about = await self._about(image)
        if about is None:
            raise ImageRefused(
                f"node {self.node} does not have image {image!r}, and gpufit.toml says pull = {self._spec.pull!r}; "
                f"run `docker pull {image}` on it, or set pull = 'missing'",
                image=image,
            )
        return about

    async def _about(self, image: str) -> Image | None:
        def ask() -> Image | None:
            with self._engine.answering():
                try:
                    config = self._engine.client().inspect_image(image).get("Config") or {}
                except docker.errors.ImageNotFound:
                    return None
            says = (word.partition("=")[0] for word in config.get("Env") or ())
            return Image(config.get("User") or "", config.get("WorkingDir") or "/", frozenset(says))

        return await asyncio.wrap_future(self._worker.submit(ask))

    # --- in the worker's threads

    def _create(self, launch: Launch, image: str, about: Image) -> Unit:
        """Make the container, then look at the others' claims (the protocol of claims.py)."""
        source = "" if launch.folder is None else check_folder(self._spec, launch.folder)
        cores = self._machine.cpus
        body = create_body(self._spec, launch, image, self._reach.bind, source, says=about.env, cores=cores)
        with self._engine.answering():
            client = self._engine.client()
        try:
            with self._engine.answering():
                made = client.create_container_from_config(body, launch.name)["Id"]
        except docker.errors.APIError as error:
            check_disk(self.node, why := said(error))
            raise LaunchError(why_not_made(why, self.node, source)) from None
        except NodeUnreachable:
            keep(self._doomed, launch.name, launch.allocation)  # perhaps it was made, and only the answer is lost
            raise
        try:
            self._check_claims(labels.decode(body["Labels"], made), launch.totals)
        except BaseException:
            try:
                remove(self._engine, made)
            except (NodeUnreachable, LaunchError):
                keep(self._doomed, launch.name, launch.allocation)
            raise
        return unit(self._spec, made, launch.name, launch.allocation)

    def _check_claims(self, mine: Claim, totals: Mapping[str, int]) -> None:
        with self._engine.answering():
            listed = list(list_containers(self._engine.client(), self._spec, ends=False))
        others = [seen for seen in listed if seen.unit.id != mine.container]
        if (mine.cpus or mine.ram) and self._machine == Machine():
            self._machine = self._engine.about().machine
        # One that was never started is in our way only for so long: its scheduler may have died.
        rivals = [seen.claim for seen in others if claims.holds(seen.state, 0.0)]
        clash = claims.conflicts(mine, rivals, totals) or claims.crowded(mine, rivals, self._machine)
        waiting = clash and any(seen.state == "created" for seen in others)
        now = self._engine.about().now if waiting else None
        ages = ((seen, 0.0 if now is None or seen.created is None else now - seen.created) for seen in others)
        holding = [seen.claim for seen, age in ages if claims.holds(seen.state, age)]
        claims.check(mine, holding, totals, self.node, self._machine)

    def _start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> tuple[int, ...]:
        known = self._prepared.get(unit.id)
        try:
            with self._engine.answering():
                client = self._engine.client()
                if known is None:  # made by the server before us
                    known = look_up(client, unit)
                content = {**files, "run": run_script(command, env, known.work)}
                packed = pack(content, owner_of(client, unit.id, known.user), known.folders)
                if time.monotonic() - known.made < LOOK_AGAIN_AFTER:
                    client.put_archive(unit.id, "/", packed)
                    client.start(unit.id)
                else:
                    # Others ignore a container that was made so long ago. Once it is started they see it again, and it
                    # does nothing yet; so start it, look, and only then let it go on.
                    client.start(unit.id)
                    self._check_claims(known.claim, known.totals)
                    client.put_archive(unit.id, "/", packed)
                if known.plain:
                    return ()
                inspected = client.inspect_container(unit.id)
                state = inspected["State"]
                if state["Running"]:
                    return host_ports(inspected)
            raise self._ended_early(unit, known.image, inspected)
        except docker.errors.APIError as error:
            check_disk(self.node, words := said(error))
            why = why_not_started(words, self._reach.bind)
            raise LaunchError(f"{unit.name} cannot be started on {self.node}: {why}", logs="") from None

    def _ended_early(self, unit: Unit, image: str, inspected: Mapping[str, Any]) -> LaunchError:
        code, memory = inspected["State"]["ExitCode"], inspected["State"]["OOMKilled"]
        with self._engine.answering():
            logs = text_of(ask_printed(self._engine.client(), unit.id, LOG_LINES))
        if code in IMAGE_REFUSED and (why := refusal(logs.splitlines())):
            return ImageRefused(f"image {image!r} cannot be used: {why}", image=image, logs=logs)
        how = describe_end(code, memory=memory and code == KILLED, limit=inspected["HostConfig"]["Memory"])
        return LaunchError(f"{unit.name} on {self.node} {how} while it started", exit_code=code, logs=logs)

    def _interrupt(self, unit: Unit) -> None:
        """`kill -INT -1` in the container signals all that runs there but init and the shell itself."""
        with (
            self._engine.answering(),
            contextlib.suppress(docker.errors.APIError),
        ):  # it does not run: nothing to interrupt
            client = self._engine.client()
            made = client.exec_create(unit.id, ["/bin/sh", "-c", "kill -INT -1"], stdout=False, stderr=False)
            client.exec_start(made["Id"], detach=True)

    # --- on the loop

    async def _answer(self, call: Callable[[], T], within: float = ANSWER_WITHIN) -> T:
        try:
            return await self._worker.run(call, within)
        except TimeoutError:
            raise NodeUnreachable(f"{self.node} does not answer within {within:.0f} s") from None

    async def _or_undo(self, job: Future[T], unit: Unit | None = None) -> T:
        """The result of `job`. If it fails, or we are cancelled: let it end, then remove `unit`, or what it made."""
        try:
            return await asyncio.shield(asyncio.wrap_future(job))
        except BaseException:
            task = asyncio.create_task(self._undo(job, unit))
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
            await asyncio.shield(task)
            raise

    async def _undo(self, job: Future[Any], unit: Unit | None) -> None:
        made: Any = None
        if not job.cancel():
            with contextlib.suppress(Exception):  # then it has undone what it made
                made = await asyncio.wrap_future(job)
        made = unit if unit is not None else made
        if isinstance(made, Unit):
            try:
                await self.stop(made)
            except GpufitError as error:
                log.warning("undoing a launch on %s, again when it answers: %s", self.node, error)
                keep(self._doomed, made.name, made.allocation)

    def _doubt(self, end: Ended) -> None:
        """Tell it in a moment, unless the engine falls silent before."""
        if end.unit.id not in self._doubted:
            later = asyncio.get_running_loop().call_later(DOUBTED_FOR, self._told, end)
            self._doubted[end.unit.id] = (end.unit, later)

    def _told(self, end: Ended) -> None:
        if (doubted := self._doubted.pop(end.unit.id, None)) is not None:
            doubted[1].cancel()
        if self._on_exit is not None and end.unit.id not in self._quiet | self._stopping:
            self._on_exit(end.unit, end.code, end.sentence)

    def _started(self, unit: Unit) -> None:
        """From now on its end is news; also if that came meanwhile."""
        if unit.id not in self._stopping:
            self._quiet.discard(unit.id)
            end = self._table.end_of(unit)
            self._tell([end] if end is not None else [])

    def _forget(self, unit: Unit) -> None:
        self._prepared.pop(unit.id, None)
        if (doubted := self._doubted.pop(unit.id, None)) is not None:  # it was ended for us: no news
            doubted[1].cancel()
        self._table.dismiss(unit)
        self._quiet.discard(unit.id)
        self._stopping.discard(unit.id)
        self._tell([])

    def _hear(self, news: Listed | Seen | Silent) -> None:
        if isinstance(news, Silent):
            self._silent = True
            for unit, _ in tuple(self._doubted.values()):
                self._told(self._table.blame_node(unit))
            self._say(news.why)
            return
        if isinstance(news, Listed):
            self._machine = news.machine
            if self._on_host is not None:  # before the node counts as one where something can be started
                self._on_host(news.machine.cpus, news.machine.ram)
            self._say(None)
            self._clock = news.now - time.monotonic()
            # An end that no event told came before our first list, or while we were not connected.
            missed = ended_meanwhile if self._silent else ended_unwatched
            self._silent = False
            ended = self._table.listed(map(missed, news.containers))
            for seen in news.containers:
                if self._doomed.get(seen.unit.name) == seen.unit.allocation:
                    self._finish(seen.unit)
        else:
            ended = self._table.happened(news)
        self._tell(ended)

    def _say(self, trouble: str | None) -> None:
        if self._on_trouble is not None:
            self._on_trouble(trouble)

    def _finish(self, unit: Unit) -> None:
        """Remove a container that could not be removed when it should have been."""
        self._doomed.pop(unit.name, None)
        task = asyncio.create_task(self._undo(_done(unit), unit))
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    def _tell(self, ended: Sequence[Ended]) -> None:
        for end in ended:
            if killed(end) and not end.with_node and self._table.complete:
                self._doubt(end)
            else:
                self._told(end)
        current = self._table.claims(time.monotonic() + self._clock)
        if self._on_claims is not None and self._table.complete and current != self._claims:
            self._claims = current
            self._on_claims(current)


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future

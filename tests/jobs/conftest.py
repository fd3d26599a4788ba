"""What the tests of this room share: a launcher whose units are directories, and jobs to start in them."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.errors import LaunchError, NotFound
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.jobs.host import LocalJobHost
from jupyter_gpufit.jobs.transfers import Transfer, Transfers
from jupyter_gpufit.models import Allocation, Endpoint, Job, Launch, Progress, Request, Unit
from jupyter_gpufit.scheduling.logs import text_of as said

GIB = 2**30
PATIENCE = 60.0
_numbers = itertools.count(1)
DOCKER = NodeSpec(name="gpu01", docker="tcp://gpu01:2375", insecure=True, image="train:1")
PROCESS = NodeSpec(name="here")


class DirectoryLauncher:
    """As much of `needs.Launcher` as jobs use. The unit's directories are `work` and `outputs` of `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: tuple[Sequence[str], Mapping[str, bytes], Mapping[str, str]] | None = None
        self.put_into: list[str] = []
        self.failure: Exception | None = None

    def where(self, path: str) -> Path:
        path = path.replace("{outputs}", str(self.path / "outputs")).replace("{work}", str(self.path / "work"))
        return self.path / "work" / path

    async def put(self, unit: Unit, archive: Path, on_progress: Callable[[Progress], None], into: str = "") -> None:
        if self.failure is not None:
            raise self.failure
        self.put_into.append(into)
        with tarfile.open(archive) as tar:
            tar.extractall(self.where(into), filter="fully_trusted")

    async def fetch(self, unit: Unit, path: str, archive: Path, limit: int, on_progress: Any) -> None:
        source = self.where(path)
        if not source.exists():
            raise NotFound(f"there is no {path} in {unit.name}")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(source, source.name)
        if len(buffer.getvalue()) > limit:
            raise LaunchError(f"{path} has more than {limit} bytes")
        await asyncio.to_thread(archive.write_bytes, buffer.getvalue())

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        self.started = command, files, env
        return Endpoint(host="127.0.0.1", ports=())


@pytest.fixture
def launcher(tmp_path: Path) -> DirectoryLauncher:
    return DirectoryLauncher(tmp_path / "unit")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def host(tmp_path: Path) -> LocalJobHost:
    return LocalJobHost(tmp_path / "store", lambda: [DOCKER])


def asked(folder: Path | None, run: str, **job: Any) -> Request:
    return Request(gpus=2, folder=None if folder is None else str(folder), job=Job(run=run, **job))


def granted(
    request: Request,
    id: str = "j1",
    name: str = "train",
    attempt: int = 1,
    node: str = "gpu01",
    gpus: Sequence[str] = ("GPU-1", "GPU-2"),
) -> Allocation:
    return Allocation(
        id=id, name=name, owner="ann", request=request, created=0.0, node=node, gpus=tuple(gpus),
        memory=(GIB, GIB), totals=(16 * GIB, 16 * GIB), attempt=attempt,
    )  # fmt: skip


def unit(allocation: Allocation) -> Unit:
    return Unit(id="u1", name=f"gpufit-{allocation.name}", node=allocation.node or "", allocation=allocation.id)


def names_in(folder: Path) -> list[str]:
    """What is in it."""
    return sorted(path.name for path in folder.iterdir())


def text_of(folder: Path) -> dict[str, str]:
    """Path -> content of all files below it."""
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


def nothing(*_: object) -> None:
    """Hears of progress."""


class Run:
    """One attempt of a job, in a unit of its own."""

    def __init__(self, launcher: Any, spec: NodeSpec, host: LocalJobHost, ends: asyncio.Queue[Any]) -> None:
        self.launcher, self.spec, self.host, self.ends = launcher, spec, host, ends
        self.gpus: Sequence[str] = ("GPU-1", "GPU-2")
        self.unit: Unit
        self.allocation: Allocation

    async def begin(self, folder: Path | None, run: str, attempt: int = 1, id: str = "j1", **job: Any) -> None:
        request = asked(folder, run, **job)
        self.allocation = granted(request, id=id, node=self.spec.name, gpus=self.gpus, attempt=attempt)
        if attempt == 1:
            await self.host.check_in([id], request)
        launch = Launch(
            allocation=self.allocation.id,
            scheduler="s1",
            owner="ann",
            name=f"gpufit-job-{os.getpid()}-{next(_numbers)}",
            gpus=dict.fromkeys(self.allocation.gpus, 1),
            folder=str(folder) if folder is not None and self.spec.shares(str(folder)) else None,
            workspace=True,
        )
        self.unit = await self.launcher.prepare(launch, nothing)
        await self.host.start(self.allocation, self.unit, self.spec, self.launcher, nothing)

    async def ended(self) -> tuple[int, str, str | None]:
        """Exit code, all that it printed, and where its outputs are."""
        async with asyncio.timeout(PATIENCE):
            while self.launcher.exit_code(self.unit) is None:
                await self.ends.get()
        code, text = self.launcher.exit_code(self.unit), await self.printed()
        home = await self.host.collect(self.allocation, self.unit, self.spec, self.launcher, nothing)
        await self.launcher.stop(self.unit)
        assert code is not None
        return code, text, home

    async def printed(self) -> str:
        return said(await self.launcher.logs(self.unit))

    async def says(self, words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while words not in await self.printed():  # noqa: ASYNC110  (a log has no event)
                await asyncio.sleep(0.02)

    async def __call__(self, *args: Any, **job: Any) -> tuple[int, str, str | None]:
        await self.begin(*args, **job)
        return await self.ended()


def notebook(folder: Path, *sources: str, tags: dict[int, str] | None = None, **metadata: Any) -> Path:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {"tags": [tags[number]]} if tags and number in tags else {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(sources)
    ]
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    (folder / "run.ipynb").write_text(json.dumps(content))
    return folder


def outputs_of(path: str) -> list[str]:
    """What each code cell of an executed notebook shows, as text."""
    shown = []
    for cell in json.loads(Path(path).read_text())["cells"]:
        parts = [
            each.get("text") or each.get("data", {}).get("text/plain") or each["ename"] for each in cell["outputs"]
        ]
        shown.append("".join(part if isinstance(part, str) else "".join(part) for part in parts))
    return shown


class OneUnit:
    """As much of a scheduler as transfers use."""

    def __init__(self, launcher: Any, allocation: Allocation, unit: Unit) -> None:
        self.launcher, self.allocation, self.the_unit = launcher, allocation, unit

    @asynccontextmanager
    async def unit(self, id: str) -> AsyncIterator[Any]:
        assert id == self.allocation.id
        yield self.launcher, self.the_unit


async def done(transfers: Transfers, transfer: Transfer) -> Transfer:
    async with asyncio.timeout(PATIENCE):
        while not transfer.done:
            transfer = await transfers.latest(transfer.id, transfer.version, PATIENCE)
    return transfer

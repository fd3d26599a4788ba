"""What somebody has in a server that dies: an allocation, a notebook in it; and the ways to get there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
from cluster.engines import Engine
from helpers.frontend import FrontEnd, eventually

from .servers import Server, Zygote

__all__ = ["LIVES", "Lane", "Life", "lived"]

ALLOCATION, GPUS = "io.github.jupyter-gpufit.allocation", "io.github.jupyter-gpufit.gpus"


class Lane:
    """A node with one GPU, on the engine that all share."""

    def __init__(self, number: int, directory: Path, engine: Engine, image: str) -> None:
        self.name = f"lane{number}"
        self.inventory = directory / f"{self.name}.toml"
        self.inventory.write_text(
            f"""
            [defaults]
            image = "{image}"
            insecure = true
            monitor_period = "250ms"
            [[node]]
            name = "{self.name}"
            docker = "{engine.url}"
            report = "simulated:1xA100-40GB"
            """
        )
        self.gpu = ""
        self._engine = docker.APIClient(engine.unix_url, timeout=60)

    def close(self) -> None:
        self._engine.close()

    async def containers(self) -> dict[str, str]:
        """Id → allocation, of all containers that hold this lane's GPU, as the engine says."""
        listed = await asyncio.to_thread(self._engine.containers, all=True, filters={"label": ALLOCATION})
        return {
            each["Id"]: each["Labels"][ALLOCATION] for each in listed if self.gpu in json.loads(each["Labels"][GPUS])
        }


class Life:
    """What somebody has in a server, before and after it dies."""

    def __init__(self, zygote: Zygote, lane: Lane, home: Path) -> None:
        self.zygote, self.lane, self.home = zygote, lane, home
        self.made: dict[str, Any] = {}
        self.answered = self.released = False
        """Whether the server said that it makes it, or that it releases it."""
        self.session = ""
        self.value = ""
        self.container = ""

    async def server(self, name: str, kill: str | None = None) -> Server:
        return await Server.start(self.zygote, self.home, self.lane.inventory, name, kill)

    async def see(self, server: Server, front: FrontEnd) -> None:
        """Wait until it is there, and learn which GPU there is."""
        node = await server.ready(front)
        self.lane.gpu = node["gpus"][0]["uuid"]

    async def launch(self, front: FrontEnd) -> None:
        self.made = (await front.gpufit("POST", "allocations", {"gpus": 1, "name": "it"}, expect=202)).json
        self.answered = True
        self.made = await front.allocation("it", lambda one: one["state"] in ("running", "ended"))
        assert self.made["state"] == "running", self.made

    async def work(self, front: FrontEnd) -> None:
        """A notebook on it, and a variable in it."""
        body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"id": self.made["kernel_id"]}}
        session = (await front.api("POST", "api/sessions", body, expect=201)).json
        notebook = await front.take(session)
        await notebook.run("x = 6 * 7")
        await notebook.close()
        self.session, self.value = session["id"], "42"
        [self.container] = await self.lane.containers()

    def stored(self) -> tuple[dict[str, Any] | None, bool]:
        """The allocation as it is on disk, while no server uses it; and whether its kernel ran, as far as that says."""
        file = self.home / "data" / "gpufit" / "gpufit.sqlite"
        if not file.exists():
            return None, False
        with closing(sqlite3.connect(file)) as database:
            rows = database.execute("SELECT data FROM entries").fetchall()
            kernels = database.execute("SELECT id FROM memories WHERE part = 'kernel'").fetchall()
        assert len(rows) <= 1, rows
        if not rows:
            return None, False
        entry = json.loads(rows[0][0])
        was = entry["allocation"]
        under_way = not entry["launched"] or entry["restarting"] or entry["stop_wanted"]
        return was, was["state"] == "running" and not under_way and bool(kernels)


# --- phases: each is lived through once without a death, and then up to each of its moments


async def start(life: Life, server: Server, front: FrontEnd) -> None:
    """(After a server that was killed.)"""
    await front.allocation("it", lambda one: one["state"] in ("running", "ended"))


async def launch(life: Life, server: Server, front: FrontEnd) -> None:
    await life.launch(front)


async def restart(life: Life, server: Server, front: FrontEnd) -> None:
    await life.launch(front)
    await life.work(front)
    life.value = ""  # gone with the kernel before
    await front.api("POST", f"api/kernels/{life.made['kernel_id']}/restart", {}, expect=200)


async def release(life: Life, server: Server, front: FrontEnd) -> None:
    await life.launch(front)
    await life.work(front)
    await front.gpufit("DELETE", "allocations/it", expect=202)
    life.released = True
    await front.allocation("it", lambda one: one["state"] == "ended")


async def stop(life: Life, server: Server, front: FrontEnd) -> None:
    await life.launch(front)
    await life.work(front)
    await server.stop()


LIVES = {"launch": launch, "restart": restart, "release": release, "stop": stop, "start": start}


async def lived(life: Life, phase: str, kill: str | None = None) -> Server:
    """A server that goes through `phase`, and ends at the moment `kill`, if it comes by it."""
    if phase == "start":
        before = await life.server("before")
        async with before.front() as front:
            await life.see(before, front)
            await life.launch(front)
            await life.work(front)
            await before.kill()
    server = await life.server("first", kill)
    async with server.front() as front:

        async def live() -> None:
            await life.see(server, front)
            await LIVES[phase](life, server, front)

        living = asyncio.create_task(live())
        if kill is None:
            await living
            await eventually(lambda: not _under_way(server.moments, phase))
        else:
            await asyncio.wait([living, server.ended], return_when=asyncio.FIRST_COMPLETED)
            # Some steps end only after what was asked has been done, as far as anybody sees.
            await asyncio.wait([server.ended], timeout=2)
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
    return server


def _under_way(moments: list[str], phase: str) -> set[str]:
    begins = (f"{phase}: before ", f"{phase}: will come: ")
    ends = {
        f"{phase}: after {name.removeprefix(begin)}" for name in moments for begin in begins if name.startswith(begin)
    }
    return ends - set(moments)

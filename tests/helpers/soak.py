"""A cluster in use, and in trouble, for a while: several clients over REST, nodes that vanish, engines and server die.

    figures = await soak(cluster, directory, image, allocations=300, minutes=10, seed=1)

Clients ask (some with `wait`), run cells, restart, extend, and release, cancel or abandon what they have. Meanwhile
cables are pulled (`ip link set … down`), dockerd is killed and started, and the server is killed and started again on
its store. The engines themselves are asked all the time whether a GPU is held twice. At the end everything is healed
and released, and what is left is counted. Used by `bench/soak.py` and `tests/cluster/test_soak.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from cluster.engines import Cluster

from .frontend import Answer, FrontEnd, eventually
from .machines import machines
from .trouble import FAULTS, Chaos, Engines, Faults, Health, Server

__all__ = ["NOTHING", "soak"]

NOTHING = (
    "ended without a sentence",
    "forgotten",
    "wrong",
    "stuck",
    "GPUs held twice",
    "containers left",
    "reservations left",
    "kernels left",
    "processes left in containers",
    "processes left of the server",
    "tasks leaked",
    "children leaked",
    "tracebacks",
)
"""The figures that have to be nothing."""

PATIENCE = 90.0  # s; for anything that a client waits for
BROKEN = (aiohttp.ClientError, OSError, TimeoutError)


class Client:
    """Somebody who uses the cluster, one allocation after the other."""

    def __init__(self, number: int, front: FrontEnd, faults: Faults, luck: random.Random, tally: Tally) -> None:
        self._number, self._front, self._faults, self._luck, self._tally = number, front, faults, luck, tally

    async def run(self, go_on: Callable[[], bool]) -> None:
        while go_on():
            await self._one(f"c{self._number}-{self._tally.next()}")

    async def _one(self, name: str) -> None:
        luck, began = self._luck, time.monotonic()
        wishes: dict[str, Any] = {"gpus": luck.choice((1, 1, 2)), "memory": luck.choice(("1GiB", "8GiB")), "name": name}
        if luck.random() < 0.7:
            wishes["wait"] = "60s"
        if limited := luck.random() < 0.4:
            wishes["time"] = "8s"
        if not await self._ask(name, wishes):
            await asyncio.sleep(0.5)
            return
        if luck.random() < 0.1:  # changed their mind
            await asyncio.sleep(luck.uniform(0, 1))
            await self._release(name)
            return
        one = await self._until(name, ("running", "ended"))
        if one is None:
            self._tally.stuck.append(f"{name}: neither running nor ended after {time.monotonic() - began:.0f} s")
            return
        if one["state"] == "running":
            await self._work(one, limited)
        if limited and luck.random() < 0.5:
            self._tally.counts["abandoned"] += 1
        else:
            await self._release(name)

    async def _work(self, one: dict[str, Any], limited: bool) -> None:
        for _ in range(self._luck.randrange(1, 4)):
            began = time.monotonic()
            said = await self._cell(one["kernel_id"], "print(6 * 7)")
            if said == "42\n":
                self._tally.counts["cells ok"] += 1
            elif self._faults.explain(began, one["node"]) or await self._over(one["id"]):
                self._tally.counts["cells lost in a fault, or with their allocation"] += 1
                return
            else:
                self._tally.wrong.append(f"{one['name']} on {one['node']}: a cell gave {said!r}")
                return
            if self._luck.random() < 0.2 and not await self._restart(one):
                return
            if limited and self._luck.random() < 0.3:
                answer = await self._call("POST", f"allocations/{one['id']}/extend", {"time": "2s"})
                self._tally.counts[f"extended: {answer.status}"] += 1

    async def _restart(self, one: dict[str, Any]) -> bool:
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await self._front.api("POST", f"api/kernels/{one['kernel_id']}/restart", {})
            said = f"{answer}"
            if answer.status == 200:
                self._tally.counts["restarts ok"] += 1
                return True
        except BROKEN as error:
            said = repr(error)
        if self._faults.explain(began, one["node"]) or await self._over(one["id"]):
            self._tally.counts["restarts lost in a fault, or with their allocation"] += 1
        else:
            self._tally.wrong.append(f"{one['name']} on {one['node']}: a restart gave {said}")
        return False

    async def _over(self, id: str) -> bool:
        """(A time limit may come in the middle of a cell.)"""
        return (await self._call("GET", f"allocations/{id}")).json.get("state") in ("stopping", "ended")

    async def _ask(self, name: str, wishes: dict[str, Any]) -> bool:
        """Whether there is an allocation now."""
        for _ in range(3):
            answer = await self._try("POST", "allocations", wishes)
            if answer is None:  # the server died: did it make it?
                if (await self._call("GET", f"allocations/{name}")).status == 200:
                    break
            elif answer.status == 202:
                self._tally.told.add(answer.json["id"])
                break
            elif answer.status != 503:
                self._tally.counts[f"refused: {answer.json['error']}"] += 1
                return False
            else:
                await asyncio.sleep(0.2)
        else:
            return False
        self._tally.made += 1
        return True

    async def _release(self, name: str) -> None:
        await self._call("DELETE", f"allocations/{name}")
        if await self._until(name, ("stopping", "ended")) is None:
            self._tally.stuck.append(f"{name}: still lives after it was released")

    async def _until(self, name: str, states: tuple[str, ...]) -> dict[str, Any] | None:
        deadline = time.monotonic() + PATIENCE
        version = 0
        while time.monotonic() < deadline:
            answer = await self._call("GET", f"allocations/{name}?after={version}&wait=2")
            if answer.status == 404:  # asked for just when the server died, and never on its disk
                return {"state": "ended"}
            assert answer.status == 200, answer
            one: dict[str, Any] = answer.json
            if one["state"] in states:
                return one
            version = one["version"]
        return None

    async def _call(self, method: str, path: str, body: Any = None) -> Answer:
        """The answer of the server, also if that has to be started again before."""
        deadline = time.monotonic() + PATIENCE
        while (answer := await self._try(method, path, body)) is None or answer.status == 503:
            assert time.monotonic() < deadline, f"{method} {path}: {answer}"
            await asyncio.sleep(0.2)
        return answer

    async def _try(self, method: str, path: str, body: Any = None) -> Answer | None:
        try:
            async with asyncio.timeout(30):
                answer = await self._front.gpufit(method, path, body)
        except BROKEN:
            return None
        if answer.status >= 500 and answer.status != 503:
            self._tally.wrong.append(f"{method} {path}: {answer}")
        return answer

    async def _cell(self, kernel_id: str, code: str) -> str:
        """What it printed, or what went wrong."""
        id = uuid.uuid4().hex
        header = {"msg_id": id, "msg_type": "execute_request", "username": "", "session": id, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        empty: dict[str, Any] = {"parent_header": {}, "metadata": {}, "buffers": []}
        message = {"channel": "shell", "header": header, "content": content, **empty}
        out, replied, idle = "", False, False
        try:
            async with (
                asyncio.timeout(30),
                self._front._client.ws_connect(f"{self._front.url}api/kernels/{kernel_id}/channels") as socket,
            ):
                await socket.send_json(message)
                async for frame in socket:
                    heard = json.loads(frame.data)
                    if heard["parent_header"].get("msg_id") != id:
                        continue
                    kind, said = heard["msg_type"], heard["content"]
                    out += said["text"] if kind == "stream" and said["name"] == "stdout" else ""
                    replied = replied or kind == "execute_reply"
                    idle = idle or (kind == "status" and said["execution_state"] == "idle")
                    if replied and idle:
                        return out
        except BROKEN as error:
            return repr(error)
        return f"nothing: the connection was closed; so far: {out!r}"


class Tally:
    """What came of it."""

    def __init__(self) -> None:
        self.made = 0
        self.told: set[str] = set()
        """Ids of all that were answered with 202."""
        self.counts: Counter[str] = Counter()
        self.stuck: list[str] = []
        self.wrong: list[str] = []
        """What failed, and no fault explains it."""
        self._number = 0

    def next(self) -> int:
        self._number += 1
        return self._number


async def soak(
    cluster: Cluster,
    directory: Path,
    image: str,
    *,
    allocations: int,
    minutes: float,
    seed: int,
    clients: int = 6,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Until so many allocations were made, or so many minutes are over. Gives the figures, by name."""
    with machines(cluster, directory, image) as inventory:
        server = Server(directory, inventory)
        await server.start()
        try:
            async with server.front() as front:
                return await _soak(cluster, server, front, allocations, minutes, seed, clients, say)
        finally:
            await server.stop()


async def _soak(
    cluster: Cluster,
    server: Server,
    front: FrontEnd,
    allocations: int,
    minutes: float,
    seed: int,
    clients: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    tally, faults, engines, health = Tally(), Faults(), Engines(cluster), Health(server)
    chaos = Chaos(cluster, server, faults, random.Random(seed))
    began = time.monotonic()
    until = began + 60 * minutes

    def part() -> float:
        """How much of it is done, 0 to 1; all of it only when every fault has happened."""
        done = max(tally.made / allocations, (time.monotonic() - began) / (until - began))
        return done if len(faults.counts) == len(FAULTS) else min(done, 0.9)

    async def tell() -> None:
        while True:
            await asyncio.sleep(10)
            say(
                f"{time.monotonic() - began:4.0f} s: {tally.made} made; {dict(faults.counts)}; {len(tally.wrong)} wrong"
            )

    async def spare() -> None:
        while part() < 0.5 or not faults.counts["server killed"]:  # noqa: ASYNC110  (it is a matter of time, too)
            await asyncio.sleep(0.2)
        chaos.spare_server = True

    ended: dict[str, dict[str, Any]] = {}

    async def note() -> None:
        while True:
            with contextlib.suppress(*BROKEN):
                await _note(front, ended)
            await asyncio.sleep(1)

    watching = [asyncio.create_task(each) for each in (engines.watch(), health.watch(), tell(), spare(), note())]
    trouble = asyncio.create_task(chaos.run())
    try:
        people = [Client(n, front, faults, random.Random(f"{seed}.{n}"), tally) for n in range(clients)]
        await asyncio.gather(*(each.run(lambda: part() < 1) for each in people))
        await _end(trouble)
        for engine in cluster:
            engine.heal()
            await asyncio.to_thread(engine.start)
        took = time.monotonic() - began
        say(f"healed after {took:.0f} s")
        await _release_all(front)
        idle = await eventually(lambda: _idle(front, engines), within=PATIENCE)
        await _note(front, ended)
        held = await _settled(health, front)
        growth = health.growth()
        memory = [(round(at - began), round(rss / 2**20)) for _, at, rss in health.samples]
    finally:
        for task in (trouble, *watching):
            await _end(task)
    # What a server has that was just started, and nothing was asked of: whatever more there was is leaked.
    await server.stop()
    left = _processes_of(server)
    await server.start()
    await eventually(lambda: _idle(front, engines), within=PATIENCE)
    fresh = await _settled(health, front)
    reasons = Counter(one["reason"] for one in ended.values())
    unhappy = [one for one in ended.values() if one["reason"] not in ("released", "cancelled")]
    attempts = tally.counts["cells ok"] + len([each for each in tally.wrong if "a cell gave" in each])
    return {
        "seed": seed,
        "seconds": round(took),
        "allocations made": tally.made,
        "outcomes": dict(reasons),
        "ended without a sentence": [one["id"] for one in unhappy if not one["message"]],
        "sentences": dict(Counter(_sentence(one) for one in unhappy).most_common()),
        "forgotten": sorted(tally.told - set(ended)),
        "counts": dict(sorted(tally.counts.items())),
        "faults": dict(faults.counts),
        "cell success": round(tally.counts["cells ok"] / attempts, 4) if attempts else None,
        "wrong": tally.wrong,
        "stuck": tally.stuck,
        "looks at the engines": engines.looks,
        "GPUs held twice": engines.twice,
        "containers left": idle["containers"],
        "reservations left": idle["reservations"],
        "kernels left": idle["kernels"],
        "processes left in containers": engines.processes(),
        "processes left of the server": left,
        "tasks leaked": dict(Counter(held["tasks"]) - Counter(fresh["tasks"])),
        "children leaked": held["children"] - fresh["children"],
        # Bounded by what is kept for use again: four threads a node, some connections to each engine.
        "threads more than a fresh server has": sum((Counter(held["threads"]) - Counter(fresh["threads"])).values()),
        "files more than a fresh server has": held["fds"] - fresh["fds"],
        "sockets of these": held["sockets"] - fresh["sockets"],
        "memory (s, MiB)": memory[:: max(1, len(memory) // 30)],
        "memory growth": growth and round(growth, 3),
        "tracebacks": _tracebacks(server.logs),
    }


async def _note(front: FrontEnd, ended: dict[str, dict[str, Any]]) -> None:
    answer = await front.gpufit("GET", "allocations?ended=true")
    if answer.status == 200:
        ended.update((one["id"], one) for one in answer.json["allocations"] if one["state"] == "ended")


def _sentence(one: dict[str, Any]) -> str:
    """How it ended, in the same words for all that ended so."""
    first = one["message"].split("\n", 1)[0]
    return f"{one['reason']}: {re.sub(r'c[0-9]+-[0-9]+|[0-9a-f]{12,}|[0-9][0-9.:-]*', '…', first)[:160]}"


async def _release_all(front: FrontEnd) -> None:
    async def nothing_lives() -> bool:
        live = (await front.gpufit("GET", "allocations", expect=200)).json["allocations"]
        for one in live:
            if one["state"] != "stopping":
                await front.gpufit("DELETE", f"allocations/{one['id']}")
        return not live

    await eventually(nothing_lives, within=2 * PATIENCE, step=0.5)


async def _idle(front: FrontEnd, engines: Engines) -> dict[str, Any]:
    """What is left, once that is nothing, or has not become less for long."""
    nodes = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
    gpus = [gpu for node in nodes for gpu in node["gpus"]]
    left = {
        "containers": await asyncio.to_thread(engines.containers),
        "reservations": [gpu["uuid"] for gpu in gpus if gpu["allocations"]],
        "kernels": await front.kernels(),
    }
    settled = gpus and all(node["reason"] is None for node in nodes) and not any(left.values())
    return left if settled else {}


async def _settled(health: Health, front: FrontEnd) -> dict[str, Any]:
    """What the server holds when it has come to rest: the least of several looks."""
    looks = []
    for _ in range(6):
        looks.append(await health.look(front))
        await asyncio.sleep(0.5)
    return min(looks, key=lambda look: (sum(look["tasks"].values()), look["fds"]))


def _tracebacks(log: str) -> list[str]:
    """Each with the line before it, cut short."""
    lines = log.splitlines()
    return ["\n".join(lines[max(0, n - 1) : n + 40]) for n, line in enumerate(lines) if "Traceback" in line]


def _processes_of(server: Server) -> list[str]:
    """What still runs out of the server's directory after it was stopped (its kernels, helpers)."""
    mark, found = str(server.home), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("JUPYTER_RUNTIME_DIR", "").startswith(mark):
                found.append(" ".join(process.cmdline()))
    return found


async def _end(task: asyncio.Task[None]) -> None:
    if task.done() and not task.cancelled() and task.exception() is not None:
        raise task.exception() or AssertionError
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

"""How many allocations a Jupyter server grants and gives back in a second, by REST: JSON lines.

    python bench/rest.py [--quick] [--seconds 10] [--clients 1,16] [--waiting 200]

A `jupyter server` of its own with the extension: handlers, scheduler and store (on disk) are the real ones, on as many
nodes as the Alibaba trace has, with as many GPUs. What stands in is at the outermost edge: a launcher whose units run
nothing, and a kernel host that starts no kernel in them, but asks the scheduler for all that a provisioner asks it for.
So what is measured is what granting itself costs, not Docker, and no kernel's start. The nodes report once an hour:
what polling costs is measured elsewhere (`polling.py`).

Clients are processes of their own, each with a connection that it keeps. A cycle is what `%gpufit request` and
`release` do: POST, GET until it runs (each answered when something has changed), DELETE, GET until it has ended. Every
answer to POST and DELETE comes when the allocation is in the store.

`waiting`: as many requests that fit nowhere, each for something else or (not with `--quick`) all for the same, as the
jobs of a sweep; asked for at once, with `wait`, on a small cluster that reports each second: how long the asking takes,
what another call waits meanwhile, and what it costs while they wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from figures import say
from helpers.frontend import eventually
from helpers.jupyterserver import ServerProcess, server_process

from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.models import Allocation, Claim, Endpoint, Launch, Unit

__all__ = ["Load", "end_in_order", "line", "load", "p99", "put", "serving", "stand_in"]

HERE = Path(__file__).resolve().parent
LARGE, SMALL = 631, 582
"""Nodes of the trace with eight GPUs, about, and with two: 1,213 in all, with 6,212 GPUs."""
FULL = 16
"""Nodes, of eight GPUs, of the cluster on which requests wait."""

# Cycles until its time is up, from the line on its standard input; then says how long each part of each took, in ms.
CLIENT = """
import http.client, json, sys, time

host, path, token, seconds, wish = sys.argv[1:]
headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
connection = http.client.HTTPConnection(host, timeout=60)
calls = 0

def call(method, what, body=None):
    global calls
    calls += 1
    connection.request(method, f"{path}gpufit/api/v1/{what}", body, headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status >= 300:
        raise SystemExit(f"{method} {what}: {answer.status} {data[:300]!r}")
    return json.loads(data)

def until(one, states):
    while one["state"] not in states:
        one = call("GET", f"allocations/{one['id']}?after={one['version']}&wait=4")
    return one

call("GET", "about")
print("ready", flush=True)
sys.stdin.readline()
cycles, calls = [], 0
end = time.perf_counter() + float(seconds)
while (began := time.perf_counter()) < end:
    one = call("POST", "allocations", wish)
    answered = time.perf_counter()
    one = until(one, ("running", "ended"))
    assert one["state"] == "running", one
    runs = time.perf_counter()
    until(call("DELETE", f"allocations/{one['id']}"), ("ended",))
    parts = (began, answered), (began, runs), (runs, time.perf_counter())
    cycles.append([1000 * (at - since) for since, at in parts])
print(json.dumps({"cycles": cycles, "calls": calls}), flush=True)
"""

# Asks for the nodes again and again, until its standard input ends; then says how long each took, in ms.
LOOKER = """
import http.client, json, sys, threading, time

host, path, token, pause = sys.argv[1:]
connection = http.client.HTTPConnection(host, timeout=60)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
took = []
print("ready", flush=True)
while not ended.wait(float(pause)):
    began = time.perf_counter()
    connection.request("GET", f"{path}gpufit/api/v1/nodes", headers={"Authorization": f"token {token}"})
    connection.getresponse().read()
    took.append(1000 * (time.perf_counter() - began))
print(json.dumps(took), flush=True)
"""

# Reads the server's events along, until its standard input ends; then says how many came.
READER = """
import asyncio, sys, aiohttp

async def main(host, path, token):
    async with aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session:
        async with session.ws_connect(f"http://{host}{path}api/events/subscribe", max_msg_size=0) as socket:
            print("ready", flush=True)
            ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
            seen = 0
            async def read():
                nonlocal seen
                async for message in socket:
                    seen += 1
            reading = asyncio.create_task(read())
            await asyncio.wait({ended, reading}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
    print(seen, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


# --- what stands in, in the server's process


class NoLauncher:
    """`needs.Launcher` whose units run nothing, and are there at once. Tells of them as an engine does."""

    kind = "process"

    def __init__(self, spec: NodeSpec) -> None:
        self.node = spec.name
        self._units: dict[str, tuple[Unit, Claim]] = {}
        self._numbers = count()
        self._on_claims: Callable[[Sequence[Claim]], None] = lambda claims: None

    async def open(
        self,
        on_exit: Callable[[Unit, int, str], None],
        on_claims: Callable[[Sequence[Claim]], None],
        on_trouble: Callable[[str | None], None] | None = None,
        on_host: Callable[[float | None, int | None], None] | None = None,
    ) -> None:
        self._on_claims = on_claims
        if on_trouble is not None:
            on_trouble(None)
        if on_host is not None:
            on_host(96.0, 768 * 2**30)
        self._tell()

    async def prepare(self, launch: Launch, on_progress: Callable[..., None]) -> Unit:
        number = next(self._numbers)
        unit = Unit(id=f"{self.node}-{number}", name=launch.name, node=self.node, allocation=launch.allocation)
        claim = Claim(
            allocation=launch.allocation,
            scheduler=launch.scheduler,
            owner=launch.owner,
            gpus=dict(launch.gpus),
            shared=launch.shared,
            container=unit.id,
            cards=dict(launch.cards),
            expires=launch.expires,
        )
        self._units[unit.id] = unit, claim
        self._tell()
        return unit

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        return Endpoint(host="127.0.0.1", ports=(1, 2, 3, 4, 5))

    async def logs(self, unit: Unit, tail: int | None = None, after: str = "") -> Sequence[Any]:
        return ()

    async def stop(self, unit: Unit, grace: float = 0.0) -> None:
        self._units.pop(unit.id, None)
        self._tell()

    async def units(self) -> Sequence[tuple[Unit, Claim]]:
        return list(self._units.values())

    async def close(self) -> None: ...

    def doubt(self) -> None: ...

    def exit_code(self, unit: Unit) -> int | None:
        return None

    def describe_exit(self, unit: Unit) -> str:
        return "it was stopped"

    def failed_with_node(self, unit: Unit) -> bool:
        return False

    def _tell(self) -> None:
        self._on_claims([claim for _, claim in self._units.values()])


class NoKernels:
    """`needs.KernelHost` without kernels: goes the way of a provisioner through the scheduler, and starts nothing."""

    def __init__(self, kernels: Any) -> None:
        self.scheduler: Any = None
        self.before_stop: Any = None
        self._allocations: dict[str, str] = {}

    async def start(self, allocation: Allocation) -> str:
        id, kernel_id = allocation.id, f"kernel-of-{allocation.id}"
        await self.scheduler.prepared(id)
        await self.scheduler.launch(id, ["{python}", "-m", "ipykernel_launcher"], {"kernel.json": bytes(400)}, {})
        self._allocations[kernel_id] = id
        self.scheduler.remember(id, bytes(400))
        await self.scheduler.ready(id, kernel_id)
        return kernel_id

    async def stop(self, kernel_id: str) -> None:
        if (id := self._allocations.pop(kernel_id, None)) is not None:
            await self.scheduler.stop_unit(id)
            await self.scheduler.release(id, kernel_gone=True)

    def forget(self, kernel_id: str) -> None: ...

    def idle_since(self, kernel_id: str) -> float | None:
        return None

    async def quiet(self, kernel_id: str, within: float) -> bool:
        return False


def stand_in() -> None:
    """Called in the server's configuration, before the extension starts."""
    from jupyter_gpufit.kernels import service
    from jupyter_gpufit.server import extension

    service.make_launcher = NoLauncher  # type: ignore[assignment]
    made = service.LocalScheduler

    def scheduler(cluster: Any, make_launcher: Any, host: Any, **options: Any) -> Any:
        host.scheduler = made(cluster, make_launcher, host, **options)
        return host.scheduler

    service.LocalScheduler = scheduler  # type: ignore[assignment,misc]
    extension.ServerKernelHost = NoKernels  # type: ignore[assignment,misc]


# --- the server, and those that ask it


class Load:
    """A server, and what can be asked of it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        host, path = server.url.removeprefix("http://").split("/", 1)
        self._to = (host, f"/{path}", server.token)

    def busy(self) -> float:
        """Processor time of the server so far, in seconds."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def cycles(self, clients: int, seconds: float) -> dict[str, Any]:
        """What so many clients get in so many seconds."""
        wish = json.dumps({"gpus": 1, "memory": "8GiB"})
        asking = [await self._process(CLIENT, str(seconds), wish) for _ in range(clients)]
        busy, began = self.busy(), time.perf_counter()
        for one in asking:
            put(one, b"go\n")
        answers = [json.loads(await line(one)) for one in asking]
        took, busy = time.perf_counter() - began, self.busy() - busy
        for one in asking:
            await one.wait()
        cycles = [cycle for answer in answers for cycle in answer["cycles"]]
        posted, runs, ended = zip(*cycles, strict=True)
        return {
            "per_s": round(len(cycles) / took, 1),
            **_of("answered", posted),
            **_of("running", runs),
            **_of("released", ended),
            "calls_per_cycle": round(sum(answer["calls"] for answer in answers) / len(cycles), 2),
            "server_cpu_percent": round(100 * busy / took),
            "server_cpu_ms_per_cycle": round(1000 * busy / len(cycles), 2),
        }

    @asynccontextmanager
    async def looking(self, pause: float = 0.25) -> AsyncIterator[list[float]]:
        """Somebody else asks for the nodes meanwhile; afterwards the list has what that took, in ms."""
        took: list[float] = []
        looker = await self._process(LOOKER, str(pause))
        yield took
        put(looker, None)
        took += json.loads(await line(looker))
        await looker.wait()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """A front end reads the events along."""
        reader = await self._process(READER)
        yield
        put(reader, None)
        assert int(await line(reader)) > 0, "there were no events"
        await reader.wait()

    async def _process(self, program: str, *arguments: str) -> asyncio.subprocess.Process:
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, *self._to, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )  # fmt: skip
        assert await line(made) == b"ready\n"
        return made


def put(process: asyncio.subprocess.Process, data: bytes | None) -> None:
    """Write that to its standard input; `None`: close it."""
    assert process.stdin is not None
    if data is None:
        process.stdin.close()
    else:
        process.stdin.write(data)


async def line(process: asyncio.subprocess.Process) -> bytes:
    """The next line that it prints."""
    assert process.stdout is not None
    if not (said := await process.stdout.readline()):
        raise SystemExit("a client ended; what it said is above")
    return said


def _of(what: str, times: Sequence[float]) -> dict[str, float]:
    return {f"{what}_p50_ms": round(median(times), 1), f"{what}_p99_ms": round(p99(times), 1)}


def end_in_order() -> None:
    """Have SIGTERM (`run.py` sends it to a benchmark that takes too long) leave nothing behind, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def p99(times: Sequence[float]) -> float:
    """What 99 % of them take at most."""
    return sorted(times)[len(times) * 99 // 100]


@asynccontextmanager
async def serving(nodes: Sequence[tuple[str, str]], period: str) -> AsyncIterator[Load]:
    """A server with these nodes (name, simulated GPUs), all of which have reported."""
    with tempfile.TemporaryDirectory(prefix="gpufit-bench-") as folder:
        home = Path(folder)
        inventory = home / "gpufit.toml"
        made = "".join(f'[[node]]\nname = "{name}"\nreport = "simulated:{gpus}"\n' for name, gpus in nodes)
        inventory.write_text(f'[defaults]\ndocker = "process"\nmonitor_period = "{period}"\n{made}')
        (home / "config").mkdir()
        (home / "config" / "jupyter_server_config.py").write_text(
            f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom rest import stand_in\nstand_in()\n"
        )
        claims = {"GPUFIT_CLAIMS_DIR": str(home / "claims")}
        async with server_process(home, inventory=inventory, environment=claims) as server, server.front() as front:

            async def heard() -> bool:
                found = (await front.gpufit("GET", "nodes", expect=200)).json["nodes"]
                return len(found) == len(nodes) and all(one["reason"] is None for one in found)

            await eventually(heard, within=120, step=0.5)
            yield Load(server)


load = partial(
    serving,
    [*((f"a{n:04}", "8xA100-40GB") for n in range(LARGE)), *((f"b{n:04}", "2xA100-40GB") for n in range(SMALL))],
    "1h",
)
"""A server with the nodes of the trace."""


async def granting(clients: Sequence[int], seconds: float) -> None:
    async with load() as server:
        await server.cycles(max(clients), 1.0)  # warm
        for each in clients:
            say(f"rest.{each}_client{'s' * (each > 1)}", **await server.cycles(each, seconds))
        most = max(clients)
        async with server.looking() as alone:
            await asyncio.sleep(seconds / 2)
        async with server.looking() as took:
            found = await server.cycles(most, seconds)
        say(
            f"rest.GET_nodes_beside_{most}_clients",
            **_of("nodes", took),
            worst_ms=round(max(took), 1),
            alone_p50_ms=round(median(alone), 1),
            per_s=found["per_s"],
        )
        async with server.reading():
            found = await server.cycles(most, seconds)
        say(f"rest.{most}_clients_and_a_front_end_that_reads_along", **found)


async def waiting(number: int, seconds: float, alike: bool) -> None:
    """As many that wait, and ask for the same (as the jobs of a sweep do), or each for something else."""
    name = f"rest.waiting_{number}{'_alike' * alike}"
    async with serving([(f"n{n:02}", "8xA100-40GB") for n in range(FULL)], "1s") as load, load.server.front() as front:
        await asyncio.gather(*(front.request(gpus=8, memory="30GiB") for _ in range(FULL)))
        await asyncio.sleep(1.0)
        quiet = await _share(load, seconds)
        async with load.looking(0.02) as took:
            began, busy = time.perf_counter(), load.busy()
            sizes = [(2, 20.0) if alike else (1 + n % 8, 20 + n // 8 / 2) for n in range(number)]
            wishes = [{"gpus": gpus, "memory": f"{memory}GiB", "wait": "1h"} for gpus, memory in sizes]
            await asyncio.gather(*(front.gpufit("POST", "allocations", wish, expect=202) for wish in wishes))
            asked = time.perf_counter() - began

            async def told() -> bool:
                found = (await front.gpufit("GET", "allocations", expect=200)).json["allocations"]
                waits = [one["queue"] for one in found if one["state"] == "pending"]
                return len(waits) == number and all(queue and queue["of"] == number for queue in waits)

            await eventually(told, within=120, step=0.1)
            settled, busy = time.perf_counter() - began, load.busy() - busy
        say(
            f"{name}_asked_at_once",
            asked_s=round(asked, 2),
            all_told_s=round(settled, 2),
            server_cpu_s=round(busy, 2),
            **_of("nodes", took),
            nodes_worst_ms=round(max(took), 1),
        )
        await asyncio.sleep(5.0)  # by then all have been told more than their place, bit by bit
        async with load.looking(0.1) as took:
            share = await _share(load, seconds)
        say(
            name,
            server_cpu_percent=share,
            without_them_percent=quiet,
            **_of("nodes", took),
            nodes_worst_ms=round(max(took), 1),
        )


async def _share(load: Load, seconds: float) -> float:
    busy, began = load.busy(), time.perf_counter()
    await asyncio.sleep(seconds)
    return round(100 * (load.busy() - busy) / (time.perf_counter() - began), 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within 40 s")
    parser.add_argument("--seconds", type=float, help="of each figure; default: 10, with --quick 2")
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--waiting", type=int, default=200, help="requests that wait; 0: leave that out")
    options = parser.parse_args()
    end_in_order()
    seconds = options.seconds or (2.0 if options.quick else 10.0)
    asyncio.run(granting([int(each) for each in options.clients.split(",")], seconds))
    for alike in ((False,) if options.quick else (True, False)) if options.waiting else ():
        asyncio.run(waiting(options.waiting, seconds, alike))

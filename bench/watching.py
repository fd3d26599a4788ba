"""What it costs a Jupyter server to show a large cluster: one JSON line per figure.

    python bench/watching.py [--nodes 1000] [--node 8xA100-40GB] [--period 5s] [--seconds 20]

A server with the extension on simulated nodes of this process, and one front end (a process of its own) that reads the
events along. All times are processor time of the server's thread, in milliseconds, so that what else the machine does
changes little. `blocked` is the longest that one callback kept the event loop; what a person waits for is behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from asyncio import events
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from figures import say
from helpers.frontend import FrontEnd, eventually
from helpers.jupyterserver import Here, directories, server_here

# Reads along until its standard input ends; then says how many events, nodes and bytes came, and the largest message.
READER = """
import asyncio, json, sys
import aiohttp

async def main(url, token):
    told = dict(events=0, nodes=0, bytes=0, largest=0)
    async with aiohttp.ClientSession(headers={"Authorization": f"token {token}"}) as session:
        async with session.ws_connect(url + "api/events/subscribe", max_msg_size=0) as socket:
            print("ready", flush=True)
            ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
            async def read():
                async for message in socket:
                    event = json.loads(message.data)
                    if "/nodes/" in event["schema_id"]:
                        told["events"] += 1
                        told["nodes"] += len(event["changed"])
                        told["bytes"] += len(message.data)
                        told["largest"] = max(told["largest"], len(message.data))
            reading = asyncio.create_task(read())
            await asyncio.wait({ended, reading}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
    print(json.dumps(told), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Loop:
    """How long each callback of the event loop takes."""

    def __init__(self) -> None:
        self.longest, self.whose, self.total = 0.0, "", 0.0
        run = events.Handle._run

        def timed(handle: events.Handle) -> None:
            began = time.thread_time()
            run(handle)
            took = 1000 * (time.thread_time() - began)
            self.total += took
            if took > self.longest:
                self.longest, self.whose = took, repr(handle)

        events.Handle._run = timed  # type: ignore[method-assign]

    def anew(self) -> None:
        self.longest, self.whose, self.total = 0.0, "", 0.0


async def calls(loop: Loop, figure: str, call: Callable[[], Awaitable[bytes]], rounds: int) -> None:
    """The longest callback of each of `rounds` calls."""
    longest = []
    size = 0
    for _ in range(rounds):
        loop.anew()
        size = len(await call())
        longest.append(loop.longest)
        await asyncio.sleep(0.05)
    say(figure, blocked_ms=round(median(longest), 1), worst_ms=round(max(longest), 1), bytes=size)


async def measure(here: Here, front: FrontEnd, loop: Loop, nodes: int, seconds: float) -> None:
    async def body(method: str, path: str, wish: dict[str, object] | None = None) -> bytes:
        return (await front.gpufit(method, path, wish, expect=200)).body

    async def heard() -> bool:
        found = json.loads(await body("GET", "nodes"))["nodes"]
        return len(found) == nodes and all(one["age"] is not None for one in found)

    await eventually(heard, within=300, step=1.0)
    await asyncio.sleep(3.0)

    quiet, began = time.thread_time(), time.perf_counter()
    await asyncio.sleep(seconds / 2)
    share = (time.thread_time() - quiet) / (time.perf_counter() - began)
    say("watching.nobody_reads_along", busy_percent=round(100 * share, 1))

    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, here.url, here.token,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert reader.stdin is not None
    assert reader.stdout is not None
    await reader.stdout.readline()
    await asyncio.sleep(2.0)
    loop.anew()
    quiet, began = time.thread_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    say(
        "watching.one_reads_along",
        busy_percent=round(100 * (time.thread_time() - quiet) / took, 1),
        blocked_ms=round(loop.longest, 1),
    )
    await calls(loop, "watching.get_nodes", lambda: body("GET", "nodes"), 20)
    wish: dict[str, object] = {"gpus": 2, "memory": "16GiB"}
    await calls(loop, "watching.explain_without_stages", lambda: body("POST", "explain?stages=false", wish), 40)
    await calls(loop, "watching.explain_without_stages_nothing_fits",
                lambda: body("POST", "explain?stages=false", {"gpus": 8, "memory": "60GiB"}), 20)  # fmt: skip
    await calls(loop, "watching.explain", lambda: body("POST", "explain", wish), 20)
    reader.stdin.close()
    told = json.loads(await reader.stdout.readline())
    await reader.wait()
    all_of_it = time.perf_counter() - began
    say(
        "watching.events",
        events_per_s=round(told["events"] / all_of_it, 2),
        nodes_per_s=round(told["nodes"] / all_of_it, 1),
        bytes_per_s=round(told["bytes"] / all_of_it),
        largest_bytes=told["largest"],
    )


async def main(count: int, node: str, period: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ |= directories(home) | {"GPUFIT_CLAIMS_DIR": str(home / "claims")}
        inventory = home / "gpufit.toml"
        nodes = "".join(f'[[node]]\nname = "node{n:04}"\nreport = "simulated:{node}"\n' for n in range(count))
        inventory.write_text(f'[defaults]\ndocker = "process"\nmonitor_period = "{period}"\n{nodes}')
        loop = Loop()
        config = {"GpufitExtension": {"inventory": str(inventory)}}
        async with server_here(home, config, extension=True) as here, here.front() as front:
            await measure(here, front, loop, count, seconds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--node", default="8xA100-40GB")
    arguments.add_argument("--period", default="5s")
    arguments.add_argument("--seconds", type=float, default=20.0)
    options = arguments.parse_args()
    asyncio.run(main(options.nodes, options.node, options.period, options.seconds))

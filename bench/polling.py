"""What it takes to watch 1,000 machines: the poller and the cache, asking real reporters over HTTP. JSON lines.

    python bench/polling.py [--reporters 1000] [--period 1s] [--seconds 30] [--quick]

One process answers as all the reporters, each on a loopback address of its own; the poller in this process asks each of
them every period. Then the same while one in twenty of them accepts and never answers. Told are the share of one core
that the poller and the cache take, how old what they know of the other nodes is, and what memory it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from figures import say

from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.cluster.poller import Poller
from jupyter_gpufit.durations import parse_duration
from jupyter_gpufit.models import Node

HANGING = 20  # one in so many
PORT = 19477

REPORTERS = """
import asyncio, itertools, random, sys
from aiohttp import web
from jupyter_gpufit.models import Gpu, Report, encode

GIB = 2**30
hanging, turn, chance = set(), itertools.count(), random.Random(1)

def report():
    gpus = tuple(
        Gpu(uuid=f"GPU-{index}", index=index, model="NVIDIA A100-SXM4-40GB", memory_total=40 * GIB,
            memory_free=chance.randrange(40 * GIB), utilization=chance.randrange(100), temperature=60, power=250.0)
        for index in range(8)
    )
    return encode(Report(host="node", gpus=gpus, driver="550.54", cuda="12.4"))

bodies = [report() for _ in range(512)]

async def answer(request):
    if request.transport.get_extra_info("sockname")[0] in hanging:
        await asyncio.sleep(3600)
    return web.Response(body=bodies[next(turn) % len(bodies)], content_type="application/json")

async def main(port):
    app = web.Application()
    app.router.add_get("/v1/report", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", int(port), backlog=4096).start()
    print("ready", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        hanging.update(line.decode().split())
        print("done", flush=True)
    await runner.cleanup()

asyncio.run(main(sys.argv[1]))
"""
"""Each report is another one than the last; addresses on its standard input do not answer any more."""


def address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


def inventory(reporters: int, period: str) -> str:
    nodes = "".join(
        f'[[node]]\nname = "node{number:05}"\nreport = "http://{address(number)}:{PORT}"\n'
        for number in range(reporters)
    )
    return f'[defaults]\ndocker = "ssh://nobody"\nmonitor_period = "{period}"\n{nodes}'


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def watch(cache: Cache, names: set[str], seconds: float) -> dict[str, float]:
    """The share of a core that it takes, and the age of what is known of those nodes, over so many seconds."""
    ages: list[float] = []
    late: list[float] = []
    began, spent = time.perf_counter(), time.process_time()
    looking = 0.0
    while (now := time.perf_counter()) - began < seconds:
        await asyncio.sleep(0.25)
        late.append(time.perf_counter() - now - 0.25)
        look = time.process_time()
        ages += [node.age for node in cache.nodes() if node.name in names and node.age is not None]
        looking += time.process_time() - look
    ages.sort()
    cpu = (time.process_time() - spent - looking) / (time.perf_counter() - began)
    return {
        "cpu_percent": round(100 * cpu, 1),
        "age_p50_s": round(median(ages), 2),
        "age_p99_s": round(ages[int(len(ages) * 0.99)], 2),
        "loop_late_ms": round(1e3 * max(late), 1),
    }


async def measure(file: Path, reporters: int, period: float, seconds: float, served: subprocess.Popen[str]) -> None:
    before = resident()
    cache = Cache()
    poller = Poller(cache, lambda: file)
    changes = 0
    heard: set[str] = set()
    all_heard = asyncio.Event()

    def changed(name: str, node: Node | None) -> None:
        nonlocal changes
        changes += 1
        if node is not None and node.age is not None:
            heard.add(name)
            if len(heard) == reporters:
                all_heard.set()

    cache.on_change(changed)
    await poller.start()
    try:
        for node in cache.nodes():
            cache.set_trouble(node.name, None)  # nobody has a launcher for them
        await all_heard.wait()
        await asyncio.sleep(2 * period)
        everybody = set(heard)
        changes, began = 0, time.perf_counter()
        well = await watch(cache, everybody, seconds)
        per_s = changes / (time.perf_counter() - began)
        common = {"reporters": reporters, "period_s": period}
        per_node = (resident() - before) / reporters / 2**10
        cost = well["cpu_percent"] / 100 / per_s * 1e6
        say("polling.all_well", **common, **well, reports_per_s=round(per_s), us_per_report=round(cost, 1))
        say("polling.memory", **common, kib_per_node=round(per_node, 1))

        silent = range(0, reporters, HANGING)
        assert served.stdin is not None
        assert served.stdout is not None
        print(*map(address, silent), file=served.stdin, flush=True)
        served.stdout.readline()
        await asyncio.sleep(10 * period)  # until the poller knows
        others = everybody - {f"node{number:05}" for number in silent}
        hanging = await watch(cache, others, seconds)
        say("polling.one_in_twenty_hangs", **common, **hanging)
        ratios = {key: round(hanging[key] / well[key], 2) for key in ("cpu_percent", "age_p99_s")}
        goal = {"age_p99_s": 1.25, "cpu_percent": 1.25}  # the same, but for the noise
        say("polling.one_in_twenty_hangs/all_well", goal, **common, **ratios)
    finally:
        await poller.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reporters", type=int, default=1000)
    parser.add_argument("--period", default="1s")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="for 10 seconds each")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "gpufit.toml")
        file.write_text(inventory(options.reporters, options.period))
        command = [sys.executable, "-c", REPORTERS, str(PORT)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as served:
            try:
                assert served.stdout is not None
                served.stdout.readline()
                seconds = 10.0 if options.quick else options.seconds
                asyncio.run(measure(file, options.reporters, parse_duration(options.period), seconds, served))
            finally:
                served.terminate()


if __name__ == "__main__":
    main()

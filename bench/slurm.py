"""Slurm on this machine, beside a Jupyter server's REST: what each grants and gives back in a second. JSON lines.

    python bench/slurm.py [--quick] [--seconds 5] [--rounds 3] [--nodes 4]

A Slurm of its own in a directory of its own: munged, slurmctld and several `slurmd -N` on this host, each with eight
GPUs that are other device files (`GresTypes=gpu,shard`), so that no client has to wait for another, on ports that are
free, with the scheduler set to decide at once. All of it ends with the benchmark. Both sides take turns, and each
figure is the median of the turns.

What a cycle is differs, and the labels say so:

    srun     `srun --gres=gpu:1 true`: a client process asks, waits for GPUs, has slurmd start `true`, and waits for
             its end
    sbatch   the same as a job that nobody waits for: `submitted` is how many commands return in a second, `completed`
             how many jobs are granted, run and ended in a second, from the first command to the last end
    rest     POST, GET until it runs, DELETE, GET until it has ended, on a connection that is kept; nothing is started
             (see `rest.py`), and it is in the store on disk

So Slurm starts processes where ours starts none: the ratio says what a person who asks waits for, and is not one of two
algorithms. `client` is what starting and ending a client alone takes (`srun --version`), of which ours has none. Slurm
chooses among its few nodes here, ours among the 1,213 of the trace.

Without root, or without Slurm (`apt-get install slurmctld slurmd slurm-client munge`), it skips: exit code 77.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import rest
from figures import say
from helpers.jupyterserver import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "sinfo", "setpriv")
GPUS = 8
"""Of each node: as many device files stand in for them."""
SKIPPED = 77
PR_SET_CHILD_SUBREAPER = 36

# srun in a loop until its time is up, from the line on its standard input; then says how long each took, in ms.
CLIENT = """
import json, subprocess, sys, time

seconds, *command = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
took = []
end = time.perf_counter() + float(seconds)
while (began := time.perf_counter()) < end:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took.append(1000 * (time.perf_counter() - began))
print(json.dumps(took), flush=True)
"""


def missing() -> str | None:
    """Why there can be no Slurm here."""
    if os.geteuid() != 0:
        return "slurmd and slurmctld are started by root"
    gone = [program for program in PROGRAMS if _which(program) is None]
    if gone:
        return f"{', '.join(gone)} not found: apt-get install slurmctld slurmd slurm-client munge"
    if not all(Path(f"/dev/tty{n}").exists() for n in range(GPUS)):
        return f"there are no /dev/tty0 to /dev/tty{GPUS - 1}, which stand in for GPUs"
    return None


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """One that runs. Commands of it are run with `environment`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}

    def run(self, *command: str) -> str:
        """What a command of it prints."""
        done = subprocess.run(command, env=self.environment, cwd=self.home, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def log(self) -> str:
        """The last of what its daemons said."""
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(self.home.glob("*.log")))


@contextmanager
def slurm(nodes: int) -> Iterator[Slurm]:
    """Slurm with so many nodes, all idle. Everything of it ends with the block."""
    home = Path(tempfile.mkdtemp(prefix="gpufit-slurm-"))
    home.chmod(0o755)
    daemons: list[subprocess.Popen[bytes]] = []
    _adopt_orphans()
    made = Slurm(home)

    def daemon(program: str, *arguments: str) -> None:
        path = _which(program)
        assert path is not None
        command = ["setpriv", "--pdeathsig", "TERM", path, *arguments]  # should we be killed
        with (home / f"{program}-{len(daemons)}.log").open("wb") as log:
            started = subprocess.Popen(command, env=made.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        daemons.append(started)

    try:
        _write(home, nodes)
        key = home / "munge" / "munge.key"
        daemon(
            "munged", "--foreground", f"--key-file={key}", f"--socket={home}/munge/socket",
            f"--seed-file={home}/munge/seed",
            f"--pid-file={home}/munge/pid", f"--log-file={home}/munge/log", "--force",
        )  # fmt: skip
        _until(lambda: (home / "munge" / "socket").exists(), made)
        daemon("slurmctld", "-D", "-i")
        for n in range(nodes):
            daemon("slurmd", "-D", "-N", f"n{n}")
        _until(lambda: _idle(made) == nodes, made)
        yield made
    finally:
        for one in reversed(daemons):
            one.terminate()
        for one in reversed(daemons):
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        _end_steps()
        shutil.rmtree(home, ignore_errors=True)


def _write(home: Path, nodes: int) -> None:
    """Its configuration."""
    for folder in ("munge", "state", *(f"spool-n{n}" for n in range(nodes))):
        (home / folder).mkdir(mode=0o755)
    (home / "munge").chmod(0o711)
    key = home / "munge" / "munge.key"
    key.touch(0o400)
    key.write_bytes(secrets.token_bytes(128))
    host = socket.gethostname().split(".")[0]
    lines = [
        "ClusterName=bench",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={free_port()}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={home}/munge/socket",
        "CredType=cred/munge",
        "SlurmdParameters=config_overrides",
        f"StateSaveLocation={home}/state",
        f"SlurmdSpoolDir={home}/spool-%n",
        f"SlurmctldPidFile={home}/slurmctld.pid",
        f"SlurmdPidFile={home}/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "ReturnToService=2",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,default_queue_depth=1000",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MinJobAge=2",
        "MaxJobCount=50000",
        "SlurmctldDebug=error",
        "SlurmdDebug=error",
        "GresTypes=gpu,shard",
    ]
    for n in range(nodes):
        lines.append(
            f"NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=64 Boards=1 "
            "SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN "
            f"Gres=gpu:{GPUS},shard:{8 * GPUS}"
        )
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO")
    (home / "slurm.conf").write_text("\n".join(lines) + "\n")
    devices = f"/dev/tty[0-{GPUS - 1}]"
    (home / "gres.conf").write_text(
        "".join(
            f"NodeName=n{n} Name=gpu File={devices}\nNodeName=n{n} Name=shard Count={8 * GPUS}\n" for n in range(nodes)
        )
    )
    (home / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _idle(made: Slurm) -> int:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"],
        env=made.environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return len(done.stdout.split())


def _until(holds: Callable[[], bool], made: Slurm, within: float = 40.0) -> None:
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"Slurm does not come up; its daemons say:\n{made.log()}")
        time.sleep(0.1)


def _adopt_orphans() -> None:
    """What slurmd starts, and outlives it, becomes our child: so that it can be found, and ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_steps() -> None:
    for _ in range(50):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        steps = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().startswith("slurm")]
        for step in steps:
            os.kill(step, signal.SIGKILL)
            os.waitpid(step, 0)
        if not steps:
            break


# --- what is measured


async def in_turn(clients: int, seconds: float, made: Slurm, *command: str) -> list[float]:
    """How long each `command` took (ms) that so many clients, each one after the other, ran in so many seconds."""
    asking = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, str(seconds), *command,
            env=made.environment, cwd=made.home,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )
        for _ in range(clients)
    ]  # fmt: skip
    for one in asking:
        assert await rest.line(one) == b"ready\n"
    for one in asking:
        rest.put(one, b"go\n")
    took = [each for one in asking for each in json.loads(await rest.line(one))]
    for one in asking:
        await one.wait()
    return took


async def sruns(clients: int, seconds: float, made: Slurm) -> dict[str, float]:
    """`srun --gres=gpu:1 true`."""
    began = time.perf_counter()
    took = await in_turn(clients, seconds, made, "srun", "--quiet", "--gres=gpu:1", "true")
    return {"per_s": len(took) / (time.perf_counter() - began), "p50_ms": median(took), "p99_ms": rest.p99(took)}


async def sbatches(clients: int, seconds: float, made: Slurm) -> dict[str, float]:
    """`sbatch --gres=gpu:1` of `true`."""
    script = made.home / "job.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    began = time.perf_counter()
    command = ("sbatch", "--parsable", "--gres=gpu:1", "--output=/dev/null", "--chdir=/tmp", str(script))
    took = await in_turn(clients, seconds, made, *command)
    submitted = time.perf_counter() - began
    while made.run("squeue", "-h", "-o", "%i").strip():  # noqa: ASYNC110  (nobody says when)
        await asyncio.sleep(0.1)
    completed = time.perf_counter() - began
    return {
        "submitted_per_s": len(took) / submitted,
        "completed_per_s": len(took) / completed,
        "p50_ms": median(took),
        "p99_ms": rest.p99(took),
    }


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each value, over all turns."""
    return {name: round(median(turn[name] for turn in turns), 1) for name in turns[0]}


async def compare(seconds: float, rounds: int, nodes: int) -> None:
    """Both sides by turns."""
    ours: dict[int, list[Mapping[str, float]]] = {1: [], 16: []}
    theirs: dict[int, list[Mapping[str, float]]] = {1: [], 16: []}
    jobs: dict[int, list[Mapping[str, float]]] = {1: [], 16: []}
    with slurm(nodes) as made:
        async with rest.load() as load:
            client = await in_turn(1, 0.5, made, "srun", "--version")
            await sruns(16, 0.5, made)
            await load.cycles(16, 0.5)
            for _ in range(rounds):
                for clients in ours:
                    ours[clients].append(await load.cycles(clients, seconds))
                    theirs[clients].append(await sruns(clients, seconds, made))
            for clients in jobs:
                jobs[clients].append(await sbatches(clients, min(seconds, 1.0), made))
    say("slurm.client", p50_ms=round(median(client), 1))
    for clients in ours:
        many = f"{clients}_client{'s' * (clients > 1)}"
        says = medians(ours[clients])
        say(f"slurm.srun_{many}", nodes=nodes, gpus=GPUS * nodes, **medians(theirs[clients]))
        say(f"slurm.sbatch_{many}", **medians(jobs[clients]))
        say(
            f"slurm.rest_{many}",
            per_s=says["per_s"],
            p50_ms=says["running_p50_ms"],
            released_p50_ms=says["released_p50_ms"],
        )
    for name, other, what in (("srun", theirs, "per_s"), ("sbatch_completed", jobs, "completed_per_s")):
        ratios = {
            f"ratio_{clients}_client{'s' * (clients > 1)}": round(
                medians(ours[clients])["per_s"] / medians(other[clients])[what], 2
            )
            for clients in ours
        }
        say(f"rest.granted_per_s/slurm.{name}_per_s", **ratios)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within 40 s")
    parser.add_argument("--seconds", type=float, help="of each turn; default: 5, with --quick 1")
    parser.add_argument("--rounds", type=int, help="default: 3, with --quick 2")
    parser.add_argument("--nodes", type=int, default=4, help=f"of Slurm; each is a slurmd here, with {GPUS} GPUs")
    options = parser.parse_args()
    if (why := missing()) is not None:
        print(f"no Slurm to measure: {why}", file=sys.stderr)
        sys.exit(SKIPPED)
    rest.end_in_order()
    seconds = options.seconds or (1.0 if options.quick else 5.0)
    asyncio.run(compare(seconds, options.rounds or (2 if options.quick else 3), options.nodes))

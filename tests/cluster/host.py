"""A stand-in for a machine: a network namespace on a bridge, and the processes in it.

Everything a slot uses carries the slot's name or lies under its run directory, so that :func:`sweep` finds what an
earlier run that was killed left behind, and touches nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from .image import cache_dir

RUN = Path("/run/gpufit-tests")
SLOTS = 32


class Slot:
    """A claim on one of a few sets of addresses and names, so that several test runs fit on one machine."""

    def __init__(self, number: int, lock: TextIO) -> None:
        self.number = number
        self._lock = lock

    @classmethod
    def claim(cls, patience: float = 120) -> Slot:
        RUN.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + patience
        while True:
            for number in range(SLOTS):
                lock = (RUN / f"slot{number}.lock").open("w")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.close()
                else:
                    return cls(number, lock)
            if time.monotonic() > end:
                raise TimeoutError(f"all {SLOTS} slots for test clusters are taken: {RUN}")
            time.sleep(1)

    def release(self) -> None:
        self._lock.close()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """In here it stays claimed, also when it is released: nobody else makes anything on it."""
        lock = os.dup(self._lock.fileno())
        try:
            yield
        finally:
            os.close(lock)

    @property
    def prefix(self) -> str:
        """Starts the name of every namespace, link and cgroup of this slot."""
        return f"gf{self.number}-"

    @property
    def directory(self) -> Path:
        return RUN / str(self.number)

    @property
    def data(self) -> Path:
        """What stays between runs."""
        return cache_dir() / f"slot{self.number}"

    def address(self, host: int) -> str:
        return f"10.203.{self.number}.{host}"


def run(*command: str, check: bool = True) -> str:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout}")
    return result.stdout


def add_bridge(slot: Slot) -> None:
    """The network; this machine is ``.254`` on it."""
    bridge = f"{slot.prefix}br"
    run("ip", "link", "add", bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0")
    run("ip", "addr", "add", f"{slot.address(254)}/24", "dev", bridge)
    run("ip", "link", "set", bridge, "up")


def add_host(slot: Slot, name: str, address: str) -> str:
    """A network namespace at ``address``; returns the name of its cable's end on this side."""
    space, cable = f"{slot.prefix}{name}", f"{slot.prefix}{name}"
    run("ip", "netns", "add", space)
    run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
    run("ip", "link", "set", cable, "master", f"{slot.prefix}br", "up")
    run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
    for link in ("lo", "eth0"):
        run("ip", "-n", space, "link", "set", link, "up")
    run("ip", "-n", space, "route", "add", "default", "via", slot.address(254))
    return cable


def enter(netns: str) -> list[str]:
    """The command that runs another one in the namespace.

    Not ``ip netns exec``: it mounts a /sys of its own, which hides the cgroups, and dockerd then refuses to start.
    """
    return ["nsenter", f"--net=/run/netns/{netns}", "--"]


def sweep(slot: Slot) -> None:
    """Remove all that this slot has on the machine: processes, mounts, links, namespaces, cgroups, run directory."""
    kill_cgroup(slot.prefix)
    kill_daemons(slot.directory)
    for directory in (slot.directory, slot.data):
        for mount in reversed(_mounts_under(directory)):
            run("umount", "-l", mount, check=False)
    for link in _links(slot.prefix):
        run("ip", "link", "del", link, check=False)
    for space in Path("/run/netns").glob(f"{slot.prefix}*"):
        run("ip", "netns", "del", space.name, check=False)
    for group in _cgroups(slot.prefix):
        for inner in sorted(group.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            _rmdir(inner)
        _rmdir(group)
    shutil.rmtree(slot.directory, ignore_errors=True)


def kill_daemons(
    directory: Path, names: tuple[str, ...] = ("dockerd", "containerd", "containerd-shim", "sshd")
) -> None:
    """SIGKILL the daemons whose command line names this directory, and wait until they are gone."""

    def ended() -> bool:
        found = list(daemons_of(directory, names))  # each time: one may have started another meanwhile
        for pid in found:
            _signal(pid, signal.SIGKILL)
        return not found

    wait_until(ended, 60, f"the daemons of {directory} to end")


def kill_cgroup(prefix: str) -> None:
    """SIGKILL what runs in the containers of the engines whose name starts so."""
    for group in _cgroups(prefix):
        for file in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                for pid in file.read_text().split():
                    _signal(int(pid), signal.SIGKILL)


def wait_until(condition: Callable[[], bool], patience: float, what: str) -> None:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience:.0f} s in vain for {what}")
        time.sleep(0.05)


def daemons_of(directory: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Pids of those whose command line names this directory."""
    mark = f"{directory}/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()  # empty for a zombie
            # By program too: spare a person's editor or shell that happens to look at a file there.
            program = Path(command.split(b"\0", 1)[0].decode(errors="replace").split(":")[0]).name
            if mark in command and program.split("-runc")[0] in names:
                yield int(entry.name)


def _mounts_under(directory: Path) -> list[str]:
    places = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [place for place in places if place.startswith(f"{directory}/")]


def _links(prefix: str) -> list[str]:
    return [path.name for path in Path("/sys/class/net").glob(f"{prefix}*")]


def _cgroups(prefix: str) -> list[Path]:
    """Version 1 has one hierarchy per controller, version 2 a single one."""
    root = Path("/sys/fs/cgroup")
    return [*root.glob(f"{prefix}*/"), *root.glob(f"*/{prefix}*/")]


def _rmdir(group: Path) -> None:
    with contextlib.suppress(OSError):  # busy for a moment after a kill, or a file
        group.rmdir()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

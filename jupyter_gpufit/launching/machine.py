"""How large a machine is: what its engine says of it, or, of this one, what this process may use of it. Blocks for no
longer than the kernel takes to write a few lines.

What a plain process can have is the least of all that limits it: affinity, the cgroups around it (version 1 or 2, each
with all those above it), and the machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

__all__ = ["Machine", "engines", "this_machine"]


class Machine(Struct, frozen=True):
    """`None`: not known."""

    cpus: float | None = None
    """Cores."""
    ram: int | None = None
    """Bytes of its own memory."""


def engines(info: Mapping[str, Any]) -> Machine:
    """The machine of an engine that says this (Engine API "SystemInfo") of it."""
    cpus, ram = info.get("NCPU"), info.get("MemTotal")
    return Machine(
        float(cpus) if isinstance(cpus, int) and cpus > 0 else None, ram if isinstance(ram, int) and ram > 0 else None
    )


def this_machine(root: Path = Path("/")) -> Machine:
    """This one, as far as this process may use it. `root`: where `proc` and `sys` are."""
    has = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 0)
    cpus, ram = [float(len(has))] if has else [], list[float]()
    with contextlib.suppress(OSError, psutil.Error):
        ram.append(psutil.virtual_memory().total)
    for group in _cgroups(root):
        cpus += _numbers(group, _quota)
        ram += _numbers(group, _limit)
    return Machine(min(cpus) if cpus else None, int(min(ram)) if ram else None)


def _cgroups(root: Path) -> Iterator[Path]:
    """The directories of this process's cgroups that may say something of cores or memory, innermost first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and not {"cpu", "memory"} & set(controllers.split(",")):
            continue
        mounted = root / "sys/fs/cgroup" / controllers
        inside = mounted / path.strip("/")
        if ".." in path or not inside.is_dir():  # told from outside of a container: what it sees begins with its own
            inside = mounted
        yield from (inside, *(above for above in inside.parents if above.is_relative_to(mounted)))


def _numbers(group: Path, read: Callable[[Path], float]) -> list[float]:
    try:
        number = read(group)
    except (OSError, ValueError, ZeroDivisionError):  # the root of all has none, and `max` is none
        return []
    return [number] if number > 0 else []


def _quota(group: Path) -> float:
    """Cores."""
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text().split()
    else:
        quota, period = (_read(group, f"cpu.cfs_{word}_us") for word in ("quota", "period"))
    return round(int(quota) / int(period), 2)


def _limit(group: Path) -> float:
    """Bytes. (Version 1 says that there is no limit by one that no machine has.)"""
    name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    return int(_read(group, name))


def _read(group: Path, name: str) -> str:
    return (group / name).read_text().strip()

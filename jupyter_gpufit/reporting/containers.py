"""Which container a process runs in, as the kernel's cgroups tell."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["container_ids", "container_of", "process_name"]

_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def container_ids(cgroup: str) -> list[str]:
    """Ids of the containers that a process is in, outermost first; `cgroup` is the text of its `/proc/<pid>/cgroup`.

    Engines name the cgroup of a container by its full id of 64 hex digits: `/docker/<id>` (cgroup v1, driver cgroupfs),
    `/system.slice/docker-<id>.scope` (driver systemd, cgroup v2), `libpod-<id>.scope`, `cri-containerd-<id>.scope`.
    In cgroup v1 there is one line per hierarchy; any that knows a container will do.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        ids = [match[0] for part in path.split("/") if (match := _ID.search(part))]
        if ids:
            return list(dict.fromkeys(ids))
    return []


def container_of(pid: int, proc: Path) -> str | None:
    """Full id of the container that process `pid` runs in; `None` outside any, or if it is gone.

    That is the outermost container *below our own*: this machine's engine knows a container by that id, whether we
    run beside the engine in a container (then it is nested in ours) or a container itself runs an engine.
    """
    theirs = container_ids(_read(proc / str(pid) / "cgroup"))
    ours = container_ids(_read(proc / "self" / "cgroup"))
    while ours and theirs and ours[0] == theirs[0]:
        del ours[0], theirs[0]
    return theirs[0] if theirs else None


def process_name(pid: int, proc: Path) -> str | None:
    """The name of the program (`comm`: no arguments, which may hold secrets); `None` if it is gone."""
    return _read(proc / str(pid) / "comm").strip() or None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # the process ended, or is not ours to look at
        return ""

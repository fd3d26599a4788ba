"""What the tests of the reporting room share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from standins import nvml

from jupyter_gpufit.models import Gpu

PATIENCE = 60.0  # seconds that anything may take on a slow machine before a test gives up


class Machine:
    """What NVML shows to the processes that a test starts."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def has(self, *gpus: nvml.StandinGpu, **system: object) -> None:
        """From now on it has exactly these GPUs."""
        nvml.write(self.file, gpus, **system)  # type: ignore[arg-type]


def by_uuid(gpus: Iterable[Gpu]) -> dict[str, Gpu]:
    """The GPUs, each of which must be there once."""
    gpus = list(gpus)
    found = {gpu.uuid: gpu for gpu in gpus}
    assert len(found) == len(gpus), gpus
    return found


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for `condition()` to become true."""
    for _ in range(int(PATIENCE / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


def children(pid: int) -> list[int]:
    """Pids of the NVML processes that process `pid` has."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if parent == pid and "jupyter_gpufit.reporting.child" in command:
                found.append(int(entry.name))
    return found


def gone(pid: int) -> bool:
    """Whether there is no such process any more (one that only waits to be reaped is gone)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True

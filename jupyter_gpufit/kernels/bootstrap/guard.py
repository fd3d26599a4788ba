"""The memory guard of a unit, as it is seen from here: which files it takes, and what it has to know.

Used for kernels (`contents.py`, with `launch.py` in the unit) and for jobs (`jobs/`); what it does is told in
`memory_guard.py`, which runs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ...models import Allocation
from .memory_guard import FRACTIONS

__all__ = ["guard_env", "guard_files"]

_BESIDE = 256 * 2**20
"""Bytes that a framework needs beside what it counts, as far as they are taken from its part: CUDA's own, which what is
measured has in it. (What it takes beyond is within what `metering.py` tolerates.)"""


def guard_env(allocation: Allocation) -> dict[str, str]:
    """What the guard has to know, as variables of the unit. What a user sets goes before these.

    Empty where there is nothing to keep to: no size was asked for, or as much as the GPU has, or that is not known.
    """
    parts = [
        _part(asked, total) if at < allocation.request.gpus else None  # those of policy `claim` nobody asked for
        for at, (asked, total) in enumerate(zip(allocation.memory, allocation.totals, strict=False))
    ]
    known = [part for part in parts if part is not None]
    if not known:
        return {}
    said = ",".join("" if part is None else f"{part:.4f}" for part in parts)
    return {FRACTIONS: said, "GPUFIT_MEMORY_FRACTION": f"{min(known):.4f}"}


def guard_files() -> Mapping[str, bytes]:
    """What is put into the unit's gpufit directory: path relative to it → content."""
    return _files()


def _part(asked: int, total: int) -> float | None:
    if not 0 < asked < total:
        return None
    return max(0.0001, (asked - min(_BESIDE, asked // 4)) / total)


@cache
def _files() -> dict[str, bytes]:
    here = Path(__file__).parent
    return {
        "guard/gpufit_memory_guard.py": (here / "memory_guard.py").read_bytes(),
        "guard/sitecustomize.py": (here / "guard_site.py").read_bytes(),
        "guard/guard.sh": (here / "guard.sh").read_bytes(),
    }

"""How GPUs hang together, from what NVML tells of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

__all__ = ["mig_profile", "nvlinks"]

_PROFILE = re.compile(r"\bMIG (\S+)")


def mig_profile(model: str, attributes: Any) -> str | None:
    """Profile of a MIG instance, such as `1g.10gb`: the end of its name, else made from `nvmlDeviceGetAttributes`."""
    if match := _PROFILE.search(model):
        return match[1]
    if attributes is None:
        return None
    gpu, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    part = "" if compute == gpu else f"{compute}c."
    return f"{part}{gpu}g.{ceil(attributes.memorySizeMB / 1024)}gb"


def nvlinks(ends: Mapping[str, Sequence[str]], at: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """uuid -> uuids of the GPUs it has an NVLink to, sorted, by itself or through a switch.

    `ends`: uuid -> PCI address at the end of each of its links. `at`: PCI address -> uuid, for the GPUs; any other
    address is a switch, and all GPUs at one switch reach each other.
    """
    behind: dict[str, set[str]] = {}
    for uuid, addresses in ends.items():
        for address in addresses:
            behind.setdefault(address, set()).add(uuid)
    found: dict[str, set[str]] = {uuid: set() for uuid in ends}
    for address, uuids in behind.items():
        group = {at[address]} | uuids if address in at else uuids
        for uuid in uuids:
            found[uuid] |= ({at[address]} if address in at else group) - {uuid}
    return {uuid: tuple(sorted(others)) for uuid, others in found.items() if others}

"""What a read of NVML means: which GPUs may be allocated and, for those that may not, why. Pure, but for its memory.

It lives in the parent of the NVML child, so that it outlives a child that crashed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..models import Gpu, Report
from .reading import Reading, Xid

__all__ = ["APPLICATION_XIDS", "CLEAN_READS", "Health"]

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a faulty program causes on a GPU in perfect health."""

CLEAN_READS = 5
"""So many reads in a row without a fault, and a GPU counts as healthy again."""

_MEANING = {  # NVIDIA's "XID Errors" catalogue, in few words
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "a memory row is to be remapped",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GPU's system processor timed out",
    120: "error in the GPU's system processor",
}

_VANISHED = "lost: the driver no longer lists it; it fell off the bus or was taken out. Reset it, or reboot the node"


class _Sick(Struct):
    reason: str
    clean: int = 0
    """Reads without a fault since."""


class Health:
    """Remembers which GPUs there were and what befell them. `conclude` is called with each reading, in order."""

    def __init__(self, clean_reads: int = CLEAN_READS) -> None:
        self._clean_reads = clean_reads
        self._known: dict[str, Gpu] = {}
        self._sick: dict[str, _Sick] = {}

    def conclude(self, reading: Reading) -> Report:
        """The report that `reading` amounts to.

        A GPU that vanished is still in it, as lost. One with an Xid (but not an application's), an ECC or a row-remap
        fault is unhealthy until `clean_reads` reads in a row were without any. A MIG instance shares its parent's fate.
        """
        if reading.report.error is not None:
            return reading.report
        gpus = self._with_missing(reading.report.gpus)
        self._take_note(gpus, reading)
        judged = {gpu.uuid: self._judge(gpu) for gpu in gpus}
        family = [_with_parent(gpu, judged.get(gpu.parent or "")) for gpu in judged.values()]
        return replace(reading.report, gpus=tuple(sorted(family, key=lambda gpu: _place(gpu, judged))))

    def _with_missing(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """`gpus`, each with an identity, and those that were there before and are not listed any more."""
        missing = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in {gpu.uuid for gpu in gpus}}
        complete = []
        for gpu in gpus:
            if not gpu.uuid:
                same = (old for old in missing.values() if (old.parent, old.index) == (gpu.parent, gpu.index))
                gpu = _identified(gpu, next(same, None))
                missing.pop(gpu.uuid, None)
            complete.append(gpu)
        lost = {gpu.uuid for gpu in complete if gpu.health == "lost"}
        lost |= {gpu.uuid for gpu in missing.values() if gpu.parent is None}
        for gpu in missing.values():
            # An instance that vanished alone was given back: somebody changed the MIG layout.
            if gpu.parent is None or gpu.parent in lost:
                complete.append(_blank(gpu, "lost", _VANISHED))
            else:
                self._sick.pop(gpu.uuid, None)
        self._known = {gpu.uuid: gpu for gpu in complete if not gpu.uuid.startswith("unknown-")}
        return complete

    def _take_note(self, gpus: Sequence[Gpu], reading: Reading) -> None:
        fresh = dict(reading.faults)
        fresh |= {xid.uuid: _describe(xid) for xid in reading.xids if xid.code not in APPLICATION_XIDS}
        for gpu in gpus:
            if gpu.uuid in fresh:
                self._sick[gpu.uuid] = _Sick(fresh[gpu.uuid])
            elif gpu.health == "lost":
                self._sick[gpu.uuid] = _Sick("it was lost")
            elif gpu.health == "ok" and (sick := self._sick.get(gpu.uuid)):
                sick.clean += 1
                if sick.clean >= self._clean_reads:
                    del self._sick[gpu.uuid]

    def _judge(self, gpu: Gpu) -> Gpu:
        sick = self._sick.get(gpu.uuid)
        if sick is None or gpu.health == "lost":
            return gpu
        left = self._clean_reads - sick.clean
        reason = f"unhealthy: {sick.reason}; usable again after {left} more reads without a fault"
        return replace(gpu, health="unhealthy", allocatable=False, idle=False, reason=reason)


def _describe(xid: Xid) -> str:
    meaning = _MEANING.get(xid.code)
    return f"Xid {xid.code} ({meaning})" if meaning else f"Xid {xid.code}"


def _identified(gpu: Gpu, before: Gpu | None) -> Gpu:
    """A GPU of which only the index is known: the one that was there before and is missing now, or a nameless one."""
    if before is None:
        uuid = f"unknown-{gpu.index}" if gpu.parent is None else f"unknown-{gpu.parent}-{gpu.index}"
        return replace(gpu, uuid=uuid, card=uuid if gpu.parent is None else gpu.card)
    return _blank(before, gpu.health, gpu.reason or "")


def _blank(gpu: Gpu, health: str, reason: str) -> Gpu:
    """What stays true of a GPU that cannot be read any more."""
    unknown = dict.fromkeys(("memory_free", "memory_used", "utilization", "temperature", "power"))
    return replace(gpu, **unknown, processes=(), idle=False, allocatable=False, health=health, reason=reason)


def _with_parent(gpu: Gpu, parent: Gpu | None) -> Gpu:
    if parent is None or parent.health == "ok" or gpu.health == "lost":
        return gpu
    if parent.health == "unknown":  # its own figures may be missing and its instances' still be there
        return gpu
    reason = f"the GPU it is part of ({parent.uuid}) is {parent.reason}"
    return replace(gpu, health=parent.health, allocatable=False, idle=False, reason=reason)


def _place(gpu: Gpu, everyone: dict[str, Gpu]) -> tuple[int, bool, int]:
    """Whole GPUs by index, each followed by its instances."""
    parent = everyone.get(gpu.parent or "")
    return (gpu.index, False, 0) if parent is None else (parent.index, True, gpu.index)

"""GPUs that do not exist, and behave: allocations and processes of others change their memory and utilisation.

Everything is a function of the node's name, its spec, the claims and the time, which is an argument; so any two
processes that simulate one node agree on its GPUs, and on what others do there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct
from msgspec.structs import replace

from ..memory import GiB
from ..models import Claim, Gpu, GpuProcess, Report
from .catalogue import GpuModel
from .simulated_spec import SimulatedSpec, parse_simulated

__all__ = ["SimulatedNode"]

_CONTEXT = 300 * 2**20  # what a process takes before it has done anything
_SETTLE = 8.0  # seconds; after three times that a process has all the memory it will take
_VISIT = 180.0  # seconds that somebody else stays, at least
_ABOVE_PIDS = 2**22 + 1  # Linux gives no process a higher number than 2**22, so these are nobody's


class _Device(Struct, frozen=True):
    """A GPU or a MIG instance as it is when nothing runs on it."""

    gpu: Gpu
    model: GpuModel
    index: int
    part: int | None
    reserved: int


class _Work(Struct, frozen=True):
    """A process at one moment."""

    process: GpuProcess
    utilization: int


class SimulatedNode:
    """One simulated node. `spec` as in `simulated_spec.py`; raises `InvalidValue` if it cannot be.

    It remembers since when it knows of each claim (its memory use starts there), nothing else.
    """

    def __init__(self, name: str, spec: SimulatedSpec | str) -> None:
        self.name = name
        self.spec = parse_simulated(spec) if isinstance(spec, str) else spec
        self._devices = _devices(name, self.spec)
        self._since: dict[str, float] = {}

    def report(self, claims: Sequence[Claim], now: float) -> Report:
        """The node at Unix time `now`, with the claims whose units run there. Called by `SimulatedSource`."""
        running = [claim for claim in claims if claim.container or claim.pids]
        self._since = {claim.allocation: self._since.get(claim.allocation, now) for claim in running}
        gpus = tuple(self._at(device, running, now) for device in self._devices)
        return Report(host=self.name, time=now, driver="simulated", cuda="12.4", gpus=gpus)

    def _at(self, device: _Device, running: Sequence[Claim], now: float) -> Gpu:
        if not device.gpu.allocatable:
            return device.gpu
        total = device.gpu.memory_total or 0
        left = total - device.reserved
        works: list[_Work] = []
        for work in [*self._others(device, now), *self._own(device, running, now)]:
            memory = min(work.process.memory or 0, left)
            left -= memory
            works.append(replace(work, process=replace(work.process, memory=memory)))
        load = min(100, sum(work.utilization for work in works)) / 100
        whole = device.part is None  # a MIG instance tells none of these
        return replace(
            device.gpu,
            memory_free=left,
            memory_used=total - device.reserved - left,
            processes=tuple(work.process for work in works),
            idle=not works,
            utilization=round(100 * load) if whole else None,
            power=round(device.model.power * (0.12 + 0.8 * load), 1) if whole else None,
            temperature=round(31 + 42 * load + 3 * _wave(now / 61, device.gpu.uuid)) if whole else None,
        )

    def _own(self, device: _Device, running: Sequence[Claim], now: float) -> list[_Work]:
        """What the allocations' processes do: take their memory within half a minute, and compute in waves."""
        works = []
        for claim in running:
            if device.gpu.uuid not in claim.gpus:
                continue
            key = f"{claim.allocation}/{device.gpu.uuid}"
            age = max(0.0, now - self._since[claim.allocation])
            most = max(_CONTEXT, int((0.85 + 0.1 * _unit(key)) * (claim.gpus[device.gpu.uuid] or GiB)))
            memory = _CONTEXT + int((most - _CONTEXT) * (1 - math.exp(-age / _SETTLE)))
            pid = min(claim.pids) if claim.pids else _pid(key)
            process = GpuProcess(pid=pid, memory=memory, container=claim.container, name="python")
            works.append(_Work(process, _busy(70, key, now) if age > 2 else 3))
        return works

    def _others(self, device: _Device, now: float) -> list[_Work]:
        uuid = device.gpu.uuid
        works = []
        for number, load in enumerate(self.spec.loads):
            if load.target.hits(device.index, device.part):
                process = GpuProcess(pid=_pid(f"{uuid}/load/{number}"), memory=load.memory, name="python3")
                works.append(_Work(process, load.utilization))
        # Time goes in visits; who is there during each is decided by lot, anew for every GPU.
        visit = math.floor(now / _VISIT + _unit(f"{self.spec.seed}/{uuid}"))
        key = f"{self.spec.seed}/{uuid}/visit/{visit}"
        if _unit(key) < self.spec.foreign:
            memory = int((0.15 + 0.7 * _unit(key + "/memory")) * (device.gpu.memory_total or 0))
            process = GpuProcess(pid=_pid(key), memory=memory, name="python3")
            works.append(_Work(process, _busy(60, key, now)))
        return works


def _devices(name: str, spec: SimulatedSpec) -> list[_Device]:
    devices: list[_Device] = []
    first = 0
    for count, model in spec.groups:
        group = [_uuid("GPU", f"{name}/{first + offset}") for offset in range(count)]
        for offset, uuid in enumerate(group):
            index = first + offset
            linked = [other for other in range(count) if other != offset and first + other not in spec.mig]
            gpu = Gpu(
                uuid=uuid,
                index=index,
                model=model.name,
                memory_total=model.memory,
                memory_free=model.memory - model.reserved,
                memory_used=0,
                card=f"board-{first + offset // model.per_card}" if model.per_card > 1 else uuid,
                numa=0 if len(spec.models) < 4 or index < len(spec.models) // 2 else 1,
                links=tuple(sorted(group[other] for other in linked)) if model.nvlink and index not in spec.mig else (),
            )
            family = _family(gpu, model, spec)
            devices += [_faulty(device, spec) for device in family]
        first += count
    return devices


def _family(gpu: Gpu, model: GpuModel, spec: SimulatedSpec) -> list[_Device]:
    """A whole GPU, or one in MIG mode and its instances."""
    if gpu.index not in spec.mig:
        return [_Device(gpu, model, gpu.index, None, model.reserved)]
    reason = "MIG mode is on: its instances are allocated in its place"
    family = [_Device(replace(gpu, allocatable=False, idle=False, reason=reason), model, gpu.index, None, 0)]
    for part, profile in enumerate(spec.mig[gpu.index]):
        memory = (model.memory - model.reserved) * profile.memory // 8
        instance = replace(
            gpu,
            uuid=_uuid("MIG", f"{gpu.uuid}/{part}"),
            index=part,
            model=f"{model.name} MIG {profile.name}",
            memory_total=memory,
            memory_free=memory,
            mig_profile=profile.name,
            parent=gpu.uuid,
        )
        family.append(_Device(instance, model, gpu.index, part, 0))
    return family


def _faulty(device: _Device, spec: SimulatedSpec) -> _Device:
    for target, health in spec.faults:
        if target.hits(device.index, device.part):
            reason = {
                "lost": "lost: NVML cannot reach it any more (simulated)",
                "unhealthy": "unhealthy: Xid 79 (simulated)",
                "unknown": "unknown: its memory cannot be read (simulated)",
            }[health]
            gpu = replace(device.gpu, allocatable=False, idle=False, health=health, reason=reason)
            if health != "unhealthy":
                gpu = replace(gpu, memory_free=None, memory_used=None)
            device = replace(device, gpu=gpu)
    return device


def _uuid(kind: str, path: str) -> str:
    return f"{kind}-{uuid5(NAMESPACE_URL, f'https://jupyter-gpufit/simulated/{path}')}"


def _unit(key: str) -> float:
    """A number from 0 up to 1 that belongs to `key`."""
    return int.from_bytes(blake2b(key.encode(), digest_size=6).digest(), "big") / 2**48


def _pid(key: str) -> int:
    return _ABOVE_PIDS + int(_unit(key) * 2**20)


def _wave(turns: float, key: str) -> float:
    return math.sin(2 * math.pi * (turns + _unit(key)))


def _busy(mean: int, key: str, now: float) -> int:
    """Percent: waves of half a minute (epochs), and a jitter that changes every other second."""
    jitter = _unit(f"{key}/{now // 2}") - 0.5
    return max(1, min(100, round(mean + 22 * _wave(now / 31, key) + 16 * jitter)))

"""Reads NVML once, and again for each asking. The only importer of pynvml, and nothing but the NVML child imports it.

Every call can fail by itself: what NVML does not support is `None`, a GPU that fails is reported with the reason, and
the others are reported as usual. What it all means is concluded elsewhere (`health.py`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_void_p, cast
from pathlib import Path
from typing import Any

import pynvml as nv
from msgspec.structs import replace

from ..models import Gpu, GpuProcess, Report
from .containers import container_of, process_name
from .links import mig_profile, nvlinks
from .reading import Reading, Xid

__all__ = ["NvmlReader"]

_NO_INSTANCE = 0xFFFFFFFF
_MOST_XIDS = 1000  # per read: a GPU in its death throes floods

_UNSUPPORTED = (
    nv.NVML_ERROR_NOT_SUPPORTED,
    nv.NVML_ERROR_FUNCTION_NOT_FOUND,
    nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    nv.NVML_ERROR_DEPRECATED,
)

_WHAT_TO_DO = {
    nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver in the kernel{version} and its libraries are of different versions, as after an update: "
        "reboot it, or stop what uses the GPUs and reload the driver's kernel modules (modprobe -r, then modprobe)"
    ),
    nv.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded: load it (modprobe nvidia), or reboot this node",
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "there is no NVML on this machine (libnvidia-ml.so.1): install the NVIDIA driver, or use another node"
    ),
    nv.NVML_ERROR_NO_PERMISSION: "NVML may not be used: give this process access to /dev/nvidiactl and /dev/nvidia*",
}


class _Failed(Exception):
    """A GPU that cannot be read further: its `health` and why."""

    def __init__(self, health: str, reason: str) -> None:
        super().__init__(reason)
        self.health = health


class NvmlReader:
    """Keeps NVML open between reads, since opening takes seconds and Xid events reach only who listens.

    One per process (NVML is global), used from one thread. `proc` and `sys` are where /proc and /sys are.
    """

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc, self._sys = proc, sys
        self._is_open = False
        self._events: Any = None
        self._listening: dict[int, str] = {}  # address of a handle -> uuid: a lost GPU no longer tells its uuid
        self._links: tuple[frozenset[str], dict[str, tuple[str, ...]]] | None = None

    def read(self) -> Reading:
        """All there is to know now. Never raises for what NVML does, but may hang or crash with it.

        Called by the NVML child, once for each asking.
        """
        report = Report(host=socket.gethostname(), time=time.time())
        try:
            if not self._is_open:
                nv.nvmlInit()
                self._is_open = True
            count = nv.nvmlDeviceGetCount()
        except (nv.NVMLError, nv.NVMLLibraryMismatchError) as error:
            self.close()
            return Reading(report=replace(report, error=self._explain(error), driver=self._kernel_driver()))
        handles: dict[str, Any] = {}
        instances: dict[tuple[str, int], list[str]] = {}
        faults: dict[str, str] = {}
        gpus: list[Gpu] = []
        for index in range(count):
            gpus += self._gpu(index, handles, instances, faults)
        self._listen(handles)
        links = self._linked(handles)
        gpus = [replace(gpu, links=links.get(gpu.uuid, ())) for gpu in gpus]
        version = _try(nv.nvmlSystemGetCudaDriverVersion)
        report = replace(
            report,
            driver=_text(_try(nv.nvmlSystemGetDriverVersion)),
            cuda=None if version is None else f"{version // 1000}.{version % 1000 // 10}",
            gpus=tuple(gpus),
        )
        return Reading(report=report, xids=tuple(self._xids(instances)), faults=faults)

    def close(self) -> None:
        """Let go of NVML; the next read opens it anew."""
        if self._events is not None:
            _try(nv.nvmlEventSetFree, self._events)
        if self._is_open:
            _try(nv.nvmlShutdown)
        self._is_open, self._events, self._listening, self._links = False, None, {}, None

    def outdated(self) -> bool:
        """Whether NVML's library was replaced on the disk, as by an update of the driver.

        What is loaded here goes on to work; whether what is started from now on does, only a new process can tell.
        """
        try:
            maps = (self._proc / "self/maps").read_text()
        except OSError:
            return False
        return any("libnvidia-ml.so" in line and line.endswith("(deleted)") for line in maps.splitlines())

    # --- the library

    def _explain(self, error: Exception) -> str:
        if isinstance(error, nv.NVMLLibraryMismatchError):
            return f"NVML on this machine is too old for this program: update the NVIDIA driver ({error})"
        version = self._kernel_driver()
        otherwise = "NVML does not work here: look into dmesg and nvidia-smi"
        advice = _WHAT_TO_DO.get(getattr(error, "value", None), otherwise)
        return f"{advice.format(version=f' ({version})' if version else '')} (NVML: {error})"

    def _kernel_driver(self) -> str | None:
        """The version of the driver in the kernel, which is there even when NVML is not."""
        try:
            return (self._sys / "module/nvidia/version").read_text().strip() or None
        except OSError:
            return None

    # --- one GPU, with its MIG instances

    def _gpu(
        self, index: int, handles: dict[str, Any], instances: dict[tuple[str, int], list[str]], faults: dict[str, str]
    ) -> Iterator[Gpu]:
        gpu = Gpu(uuid="", index=index)
        try:
            handle = _handle(nv.nvmlDeviceGetHandleByIndex, index)
            gpu = self._identity(gpu, handle)
            handles[gpu.uuid] = handle
            board = _ask(nv.nvmlDeviceGetBoardId, handle) if _ask(nv.nvmlDeviceGetMultiGpuBoard, handle) else None
            gpu = replace(gpu, card=gpu.uuid if board is None else f"board-{board:08x}", numa=self._numa(handle))
            if fault := _fault(handle):
                faults[gpu.uuid] = fault
            mode = _ask(nv.nvmlDeviceGetMigMode, handle)
            parted = bool(mode) and mode[0] == nv.NVML_DEVICE_MIG_ENABLE
            gpu = self._figures(gpu, handle, parent=parted)
        except _Failed as failure:
            yield _unusable(gpu, failure)
            return
        if not parted:
            yield gpu
            return
        children = list(self._instances(gpu, handle, instances))
        what = "its instances are allocated in its place" if children else "and it has no instance yet"
        yield replace(gpu, allocatable=False, idle=False, reason=f"MIG mode is on: {what}")
        yield from children

    def _instances(self, parent: Gpu, handle: Any, instances: dict[tuple[str, int], list[str]]) -> Iterator[Gpu]:
        for index in range(_try(nv.nvmlDeviceGetMaxMigDeviceCount, handle, missing=0)):
            gpu = Gpu(uuid="", index=index, parent=parent.uuid, card=parent.card, numa=parent.numa)
            try:
                part = _handle(_instance, handle, index)
                if part is None:
                    continue
                gpu = self._identity(gpu, part)
                slices = _ask(nv.nvmlDeviceGetAttributes, part)
                gpu = replace(gpu, model=gpu.model or parent.model, mig_profile=mig_profile(gpu.model, slices))
                number = _ask(nv.nvmlDeviceGetGpuInstanceId, part)
                if number is not None:
                    instances.setdefault((parent.uuid, number), []).append(gpu.uuid)
                yield self._figures(gpu, part, parent=False)
            except _Failed as failure:
                yield _unusable(gpu, failure)

    def _identity(self, gpu: Gpu, handle: Any) -> Gpu:
        uuid = _text(_ask(nv.nvmlDeviceGetUUID, handle))
        if not uuid:
            raise _Failed("unknown", "unknown: NVML does not tell its uuid")
        model = _text(_ask(nv.nvmlDeviceGetName, handle)) or ""
        return replace(gpu, uuid=uuid, model=model, card=gpu.card or uuid)

    def _figures(self, gpu: Gpu, handle: Any, *, parent: bool) -> Gpu:
        """What varies: memory, utilisation, temperature, power and, but for a MIG parent, processes."""
        rates = _ask(nv.nvmlDeviceGetUtilizationRates, handle)
        power = _ask(nv.nvmlDeviceGetPowerUsage, handle)
        temperature = _ask(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU)
        if temperature is None and hasattr(nv, "nvmlDeviceGetTemperatureV"):  # its successor, from CUDA 13 on
            temperature = _ask(nv.nvmlDeviceGetTemperatureV, handle, nv.NVML_TEMPERATURE_GPU)
        total, free, used, why_not = _memory(handle)
        gpu = replace(
            gpu,
            utilization=None if rates is None else rates.gpu,
            power=None if power is None else power / 1000,
            temperature=temperature,
            memory_total=total,
            memory_free=free,
            memory_used=used,
        )
        if parent:  # nothing runs on it but in its instances, and those tell for themselves
            return gpu
        if why_not is not None:
            return _unusable(gpu, _Failed("unknown", f"unknown: its memory cannot be read (NVML: {why_not})"))
        found, why_not = _processes(handle)
        if found is None:
            return _unusable(gpu, _Failed("unknown", f"unknown: its processes cannot be read (NVML: {why_not})"))
        processes = tuple(
            GpuProcess(
                pid=pid, memory=memory, container=container_of(pid, self._proc), name=process_name(pid, self._proc)
            )
            for pid, memory in found.items()
        )
        # Where NVML lists no processes at all (WSL), that there are none means nothing; its load still tells.
        idle = not processes and (why_not is None or not gpu.utilization)
        return replace(gpu, processes=processes, idle=idle)

    def _numa(self, handle: Any) -> int | None:
        """The kernel's word first: on some, `nvmlDeviceGetNumaNodeId` is the node that *is* the GPU's memory."""
        if pci := _pci(handle):
            domain, rest = pci.split(":", 1)
            try:
                node = int((self._sys / f"bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
            except (OSError, ValueError):
                pass
            else:
                return node if node >= 0 else None
        number = _ask(nv.nvmlDeviceGetNumaNodeId, handle)
        return number if number is not None and number >= 0 else None

    def _linked(self, handles: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        """NVLinks, read once for as long as the same GPUs are there: it takes some hundred calls."""
        if self._links is None or self._links[0] != handles.keys():
            at = {pci: uuid for uuid, handle in handles.items() if (pci := _pci(handle))}
            ends = {uuid: list(_link_ends(handle)) for uuid, handle in handles.items()}
            self._links = frozenset(handles), nvlinks(ends, at)
        return self._links[1]

    # --- Xid events

    def _listen(self, handles: dict[str, Any]) -> None:
        if self._events is None:
            self._events, self._listening = _try(nv.nvmlEventSetCreate), {}
        for uuid, handle in handles.items():
            if self._events is None or _address(handle) in self._listening:
                continue
            if (_try(nv.nvmlDeviceGetSupportedEventTypes, handle, missing=0) or 0) & nv.nvmlEventTypeXidCriticalError:
                _try(nv.nvmlDeviceRegisterEvents, handle, nv.nvmlEventTypeXidCriticalError, self._events)
            self._listening[_address(handle)] = uuid

    def _xids(self, instances: dict[tuple[str, int], list[str]]) -> Iterator[Xid]:
        for _ in range(_MOST_XIDS if self._events is not None else 0):
            try:
                event = nv.nvmlEventSetWait_v2(self._events, 0)
            except nv.NVMLError_Timeout:
                return
            except nv.NVMLError:
                # A lost GPU spoils the set for all of them: make another one at the next read.
                _try(nv.nvmlEventSetFree, self._events)
                self._events = None
                return
            uuid = self._listening.get(_address(event.device))
            if uuid is None or not event.eventType & nv.nvmlEventTypeXidCriticalError:
                continue
            part = None if event.gpuInstanceId == _NO_INSTANCE else instances.get((uuid, event.gpuInstanceId))
            yield from (Xid(each, event.eventData) for each in part or [uuid])


def _ask(function: Callable[..., Any], *args: Any, missing: Any = None) -> Any:
    """What `function` answers, or `missing` if it cannot. Raises `_Failed` if the GPU itself is gone."""
    try:
        return function(*args)
    except nv.NVMLLibraryMismatchError:  # not an NVMLError
        return missing
    except UnicodeDecodeError:  # pynvml decodes names
        return missing
    except nv.NVMLError as error:
        _raise_if_gone(error)
        return missing


def _try(function: Callable[..., Any], *args: Any, missing: Any = None) -> Any:
    """Like `_ask`, where it is no matter, or said elsewhere, that a GPU is gone."""
    try:
        return _ask(function, *args, missing=missing)
    except _Failed:
        return missing


def _raise_if_gone(error: Any) -> None:
    if error.value == nv.NVML_ERROR_GPU_IS_LOST:
        raise _Failed("lost", f"lost: NVML cannot reach it any more ({error}); reset it, or reboot the node") from None
    if error.value == nv.NVML_ERROR_RESET_REQUIRED:
        raise _Failed("unhealthy", f"unhealthy: it has to be reset before it can be used (NVML: {error})") from None


def _handle(function: Callable[..., Any], *args: Any) -> Any:
    """A handle. Raises `_Failed` if it cannot be had."""
    try:
        return function(*args)
    except nv.NVMLError as error:
        health = "lost" if error.value == nv.NVML_ERROR_GPU_IS_LOST else "unknown"
        advice = f"NVML gives no handle for it ({error}); reset it, or reboot the node"
        raise _Failed(health, f"{health}: {advice}") from None


def _instance(handle: Any, index: int) -> Any:
    """The handle of a MIG instance, or `None` if there is none at that index."""
    try:
        return nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
    except (nv.NVMLError_NotFound, nv.NVMLError_NotSupported):
        return None


def _unusable(gpu: Gpu, failure: _Failed) -> Gpu:
    return replace(gpu, allocatable=False, idle=False, health=failure.health, reason=str(failure))


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _memory(handle: Any) -> tuple[int | None, int | None, int | None, Exception | None]:
    """Total, free, used; or why they are unknown. Version 1 of the call counts as used what the driver keeps to itself;
    in both, free is what a program can have."""
    why_not: Exception | None = None
    for version in (nv.nvmlMemory_v2, None):
        try:
            memory = nv.nvmlDeviceGetMemoryInfo(handle, version)
        except nv.NVMLError as error:
            _raise_if_gone(error)
            why_not = error
            continue
        if memory.total:
            return memory.total, memory.free, memory.used, None
    return None, None, None, why_not or ValueError("it tells 0 bytes in total")


def _processes(handle: Any) -> tuple[dict[int, int | None] | None, Exception | None]:
    """Compute processes, pid -> bytes; `{}` and why where NVML does not list any; `None` and why where it failed."""
    found: dict[int, int | None] = {}
    unsupported: Exception | None = None
    for function in (nv.nvmlDeviceGetComputeRunningProcesses, nv.nvmlDeviceGetMPSComputeRunningProcesses):
        try:
            listed: Sequence[Any] = function(handle)
        except nv.NVMLLibraryMismatchError:
            listed = _ask(getattr(nv, f"{function.__name__}_v2"), handle, missing=())
        except nv.NVMLError as error:
            _raise_if_gone(error)
            if function is nv.nvmlDeviceGetMPSComputeRunningProcesses:
                continue
            if error.value not in _UNSUPPORTED:
                return None, error
            unsupported = error
            continue
        found |= {process.pid: process.usedGpuMemory for process in listed}
    return found, unsupported


def _fault(handle: Any) -> str | None:
    """What the counters that outlast a program say is wrong with the memory."""
    rows = _ask(nv.nvmlDeviceGetRemappedRows, handle)
    if rows is not None and rows[3]:
        return "a memory row could not be remapped; have the board replaced"
    if rows is not None and rows[2]:
        return "memory rows wait to be remapped; reset the GPU"
    if _ask(nv.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return "memory pages wait to be retired; reset the GPU"
    errors = _ask(nv.nvmlDeviceGetTotalEccErrors, handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
    return f"{errors} uncorrected ECC errors since the driver was loaded; reset the GPU" if errors else None


def _pci(handle: Any) -> str | None:
    info = _try(nv.nvmlDeviceGetPciInfo, handle)
    return (_text(info.busId) or "").lower() or None if info is not None else None


def _link_ends(handle: Any) -> Iterator[str]:
    """The PCI address at the other end of each NVLink that is up: of a GPU, or of a switch."""
    for link in range(nv.NVML_NVLINK_MAX_LINKS):
        up = _try(nv.nvmlDeviceGetNvLinkState, handle, link)
        if up is None:  # no such link
            return
        kind = _try(nv.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) if up else None
        if up and kind != nv.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
            info = _try(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if info is not None and (pci := _text(info.busId)):
                yield pci.lower()


def _address(handle: Any) -> int:
    return cast(handle, c_void_p).value or 0

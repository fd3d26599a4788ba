"""Write GPUs for the stand-in ``libnvidia-ml.so.1``, and build it.

Typical use, with the real ``nvidia-ml-py`` bindings in a *fresh* process (they load the library once per process)::

    lib = nvml.build(tmp_path)
    file = nvml.write(tmp_path / "gpus", [StandinGpu("GPU-1", memory_used=8 * GIB, faults={"power": "error:3"})])
    subprocess.run([sys.executable, "-c", "import pynvml; ..."], env=os.environ | nvml.environment(lib, file))

Call :func:`write` again and the running process sees the new GPUs at its next NVML call. To use the bindings inside the
test's own process instead, :func:`in_process` is enough: the file may change, the library is loaded once.

What the file says, and every name that ``faults`` understands, is at the top of ``libnvidia_ml.c``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

GIB = 2**30
SOURCE = Path(__file__).with_name("libnvidia_ml.c")
LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class StandinMig:
    """A MIG device; it is listed under its :class:`StandinGpu`."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_total: int | None = 5 * GIB
    memory_used: int = 0
    gpu_instance: int = 1
    compute_instance: int = 0
    slices: int = 1
    processes: Mapping[int, int | None] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StandinGpu:
    """A GPU. ``None`` is a metric that it does not support."""

    uuid: str
    name: str | None = "NVIDIA A100-SXM4-40GB"
    memory_total: int | None = 40 * GIB
    memory_used: int = 0
    memory_reserved: int = 0
    utilization: int | None = 0
    temperature: int | None = 35
    power: int | None = 60_000
    power_limit: int | None = 400_000
    brand: int | None = 14
    pci: str | None = None
    """Such as ``00000000:3B:00.0``. :func:`write` gives each GPU its own when this is None; "" is unsupported."""
    multi_gpu_board: int | None = 0
    board_id: int | None = None
    """By default a board of its own."""
    numa_node: int | None = 0
    processes: Mapping[int, int | None] = field(default_factory=dict)
    """Compute processes: pid -> bytes, or None where the driver does not say."""
    graphics_processes: Mapping[int, int | None] = field(default_factory=dict)
    ecc_corrected: int | None = 0
    ecc_uncorrected: int | None = 0
    remapped_rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    """Corrected, uncorrected, pending, failure."""
    nvlink: tuple[str, ...] | None = None
    """The PCI address at the other end of each link; "-" is a link that is down."""
    topology: Mapping[str, int] = field(default_factory=dict)
    """Other GPU's uuid -> ``NVML_TOPOLOGY_*``, where the default (40, or 50 across NUMA nodes) is not wanted."""
    xid: tuple[int, ...] = ()
    """Each entry becomes one event: write again with one more to deliver one more."""
    mig: tuple[StandinMig, ...] | None = None
    """None: no MIG mode on. ``()``: MIG mode is on and there is no instance."""
    mig_capable: bool = True
    faults: Mapping[str, str] = field(default_factory=dict)
    """Call -> "error:N", "hang", "crash" or "slow:MS": ``{"memory": "error:999"}``, ``{"all": "error:15"}``."""


def a100(uuid: str, **changes: object) -> StandinGpu:
    """An A100 with 40 GiB."""
    return StandinGpu(uuid, **changes)  # type: ignore[arg-type]


def k80(board: int, *uuids: str, **changes: object) -> list[StandinGpu]:
    """Two (or more) GPUs that sit on one physical card."""
    shape = {"name": "Tesla K80", "memory_total": 12 * GIB, "brand": 2, "mig_capable": False}
    return [
        StandinGpu(uuid, **shape | {"multi_gpu_board": 1, "board_id": board} | changes)  # type: ignore[arg-type]
        for uuid in uuids
    ]


def write(
    path: Path,
    gpus: Iterable[StandinGpu],
    *,
    driver: str = "550.54.14",
    cuda: int = 12040,
    faults: Mapping[str, str] | None = None,
) -> Path:
    """Make ``path`` describe exactly these GPUs. Replaces it atomically, so a reader never sees half a file.

    ``faults`` are those of the whole library: ``init``, ``count``, ``driver`` and ``event_wait``.
    """
    lines = ["[system]", f"driver = {driver}", f"cuda = {cuda}", *_fault_lines(faults or {})]
    for index, gpu in enumerate(gpus):
        lines += ["", "[gpu]", *_gpu_lines(gpu, index)]
        for mig in gpu.mig or ():
            lines += ["", "[mig]", f"parent = {gpu.uuid}", *_plain_lines(mig), *_fault_lines(mig.faults)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write("\n".join(lines) + "\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    return path


def build(directory: Path) -> Path:
    """Compile the library into ``directory`` unless a current one is there; return that directory."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / LIBRARY
    with (directory / f"{LIBRARY}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may share the directory
        if not library.exists() or library.stat().st_mtime < max(
            SOURCE.stat().st_mtime, Path(__file__).stat().st_mtime
        ):
            partial = directory / f"{LIBRARY}.partial"
            flags = [
                "-std=gnu11",
                "-O1",
                "-Wall",
                "-Wextra",
                "-fvisibility=hidden",
                "-shared",
                "-fPIC",
                "-pthread",
                f"-Wl,-soname,{LIBRARY}",
            ]
            subprocess.run(["cc", *flags, "-o", str(partial), str(SOURCE)], check=True)
            partial.replace(library)
    return directory


def environment(libdir: Path, file: Path) -> dict[str, str]:
    """What a process needs in its environment to see these GPUs; merge it into the rest."""
    others = os.environ.get("LD_LIBRARY_PATH")
    search = f"{libdir}:{others}" if others else str(libdir)
    return {"LD_LIBRARY_PATH": search, "GPUFIT_STANDIN_NVML": str(file)}


def in_process(libdir: Path, file: Path) -> None:
    """Let ``pynvml`` of *this* process use the stand-in, for as long as it lives.

    glibc reads LD_LIBRARY_PATH only when a process starts, but a library that is loaded already satisfies a later
    ``CDLL("libnvidia-ml.so.1")`` by its SONAME. ``os.environ`` writes through to the C environment.
    """
    ctypes.CDLL(str(libdir / LIBRARY), mode=ctypes.RTLD_GLOBAL)
    os.environ["GPUFIT_STANDIN_NVML"] = str(file)


def _gpu_lines(gpu: StandinGpu, index: int) -> list[str]:
    extra = {
        "pci": f"00000000:{index + 1:02X}:00.0" if gpu.pci is None else gpu.pci or None,
        "board_id": 0x100 * (index + 1) if gpu.board_id is None else gpu.board_id,
        "mig_mode": int(gpu.mig is not None) if gpu.mig_capable else None,
    }
    lines = [f"{key} = {value}" for key, value in extra.items() if value is not None]
    if gpu.remapped_rows is not None:
        lines.append(f"remapped_rows = {_joined(gpu.remapped_rows)}")
    if gpu.nvlink is not None:
        lines.append(f"nvlink = {_joined(gpu.nvlink)}")
    if gpu.xid:
        lines.append(f"xid = {_joined(gpu.xid)}")
    if gpu.topology:
        lines.append(f"topology = {_pairs(gpu.topology)}")
    return [*_plain_lines(gpu), *lines, *_fault_lines(gpu.faults)]


_WRITTEN_SEPARATELY = {
    "pci", "board_id", "mig", "mig_capable", "remapped_rows", "nvlink", "xid", "topology", "faults",
}  # fmt: skip


def _plain_lines(item: StandinGpu | StandinMig) -> list[str]:
    lines = []
    for key in (f.name for f in fields(item) if f.name not in _WRITTEN_SEPARATELY):
        value = getattr(item, key)
        if isinstance(value, Mapping):
            value = _pairs(value) or None
        if value is not None:
            lines.append(f"{key} = {value}")
    return lines


def _fault_lines(faults: Mapping[str, str]) -> list[str]:
    return [f"on_{call} = {what}" for call, what in faults.items()]


def _joined(items: Iterable[object]) -> str:
    return ",".join(str(item) for item in items)


def _pairs(pairs: Mapping[int, int | None] | Mapping[str, int]) -> str:
    return ",".join(f"{key}:{'unknown' if value is None else value}" for key, value in pairs.items())

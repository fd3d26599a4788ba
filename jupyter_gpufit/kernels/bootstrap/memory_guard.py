"""Has the frameworks keep to the GPU memory that was asked for, in a unit: Docker has no limit for it.

    JAX          XLA_PYTHON_CLIENT_MEM_FRACTION, and no memory taken in advance
    TensorFlow   takes memory as it needs it, not all there is
    PyTorch      torch.cuda.set_per_process_memory_fraction, when CUDA is initialised

A default, and no wall: what the program, its user or its image says goes before it, and `GPUFIT_MEMORY_GUARD=0`
switches it off. It is put into every unit as `guard/gpufit_memory_guard.py` (`guard.py` says so), depends on nothing
but Python (3.8 or later), and never fails in a way that the program would notice.

    GPUFIT_MEMORY_FRACTIONS   part of each GPU's memory, in the order of GPUFIT_GPUS: "0.25,0.25"; empty: no limit
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

__all__ = ["hand_on", "install"]

FRACTIONS, SWITCH = "GPUFIT_MEMORY_FRACTIONS", "GPUFIT_MEMORY_GUARD"
_OFF = ("0", "off", "no", "false")
_WATCHED = "torch.cuda"


def hand_on(environ: MutableMapping[str, str]) -> None:
    """Set what frameworks read, unless it is set, in the environment of what is started next; and see to it that a
    Python that is started with it installs the guard, too (by `sitecustomize.py` beside this)."""
    least = _least(environ)
    if least is None:
        return
    if not {"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"} & set(environ):
        environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{least:.4f}"  # one for all GPUs
        # What is taken in advance would hide what is used, and be taken from others that share the GPU.
        environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    here = os.path.dirname(os.path.abspath(__file__))
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != here]
    environ["PYTHONPATH"] = os.pathsep.join([here, *before])


def install() -> None:
    """Have PyTorch keep to it in this process, as soon as it is imported. Idempotent."""
    if _least(os.environ) is None or any(getattr(finder, "guards_gpufit", False) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    if _WATCHED in sys.modules:
        _limit_later(sys.modules[_WATCHED])


class Finder:
    """Finds `torch.cuda` as the others would, and is told when it has been imported."""

    guards_gpufit = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by Python, for every module."""
        if name != _WATCHED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                _listen(spec.loader)
                return spec
        return None


def _listen(loader: Any) -> None:
    with suppress(Exception):  # a loader of another kind: then there is no limit
        execute = loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            _limit_later(module)

        loader.exec_module = executed


def _limit_later(cuda: Any) -> None:
    """When CUDA is initialised, and not before: a process that never uses it must not, nor one that forks."""
    with suppress(Exception):  # a version that has no such thing
        cuda._lazy_call(lambda: _limit(cuda))


def _limit(cuda: Any) -> None:
    with suppress(Exception):  # the program goes on without
        count = cuda.device_count()
        rank, ranks = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
        # One process per GPU: to limit it on the others' would take some of their memory.
        alone = ranks.isdigit() and int(ranks) == count and rank.isdigit() and int(rank) < count
        before = cuda.current_device()
        for device in [int(rank)] if alone else range(count):
            part = _part_of(cuda, device)
            if part is not None:
                cuda.set_per_process_memory_fraction(part, device)
        if cuda.current_device() != before:  # some versions leave the last one
            cuda.set_device(before)


def _part_of(cuda: Any, device: int) -> float | None:
    """What part of that device's memory this process may have; the least of all where it cannot be told which it is."""
    parts = _fractions(os.environ)
    by_uuid: dict[str, float | None] = {}
    for uuid, part in zip(os.environ.get("GPUFIT_GPUS", "").split(","), parts):  # noqa: B905
        by_uuid[_plain(uuid)] = part
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = [visible[device]] if device < len(visible) else []
    with suppress(Exception):  # a version that does not tell
        names.append(str(cuda.get_device_properties(device).uuid))
    for name in names:
        if _plain(name) in by_uuid:
            return by_uuid[_plain(name)]
    return None if parts and all(part is None for part in parts) else _least(os.environ)


def _plain(uuid: str) -> str:
    uuid = uuid.strip().lower()
    return uuid[4:] if uuid.startswith(("gpu-", "mig-")) else uuid


def _fractions(environ: Any) -> list[float | None]:
    if environ.get(SWITCH, "").strip().lower() in _OFF:
        return []
    found: list[float | None] = []
    for word in environ.get(FRACTIONS, "").split(","):
        try:
            part = float(word) if word.strip() else None
        except ValueError:
            return []
        found.append(part if part is None or 0 < part < 1 else None)
    return found


def _least(environ: Any) -> float | None:
    """`None`: there is nothing to keep to."""
    return min([part for part in _fractions(environ) if part is not None], default=None)

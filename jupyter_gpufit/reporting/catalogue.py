"""Real GPU models, as the simulated nodes have them: names, sizes as NVML tells them, power limits, MIG profiles."""

from __future__ import annotations

import difflib

from msgspec import Struct

from ..errors import InvalidValue

__all__ = ["CATALOGUE", "GpuModel", "MigProfile", "find_model"]

MiB = 2**20


class MigProfile(Struct, frozen=True):
    """What a MIG instance takes: of the 7 compute slices and of the 8 memory slices of its GPU."""

    name: str
    compute: int
    memory: int


class GpuModel(Struct, frozen=True, kw_only=True):
    """One model. Sizes in bytes, power in watts."""

    name: str
    """As `nvmlDeviceGetName` has it."""
    memory: int
    """As `nvmlDeviceGetMemoryInfo` has it: less than the number on the box where ECC takes its share."""
    power: int
    nvlink: bool = False
    """The usual board for it links all GPUs to all others."""
    per_card: int = 1
    mig: tuple[MigProfile, ...] = ()

    @property
    def reserved(self) -> int:
        """About what the driver keeps to itself on an idle GPU."""
        return 256 * MiB + self.memory // 128


def _mig(*names: str) -> tuple[MigProfile, ...]:
    slices = ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8))
    return tuple(MigProfile(name, *share) for name, share in zip(names, slices, strict=True))


_MIG_40 = _mig("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
_MIG_80 = _mig("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
_MIG_94 = _mig("1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb")
_MIG_96 = _mig("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb")
_MIG_141 = _mig("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")
_MIG_180 = _mig("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb")
_MIG_186 = _mig("1g.23gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb")


def _model(name: str, mib: int, power: int, **more: object) -> GpuModel:
    return GpuModel(name=name, memory=mib * MiB, power=power, **more)  # type: ignore[arg-type]


CATALOGUE: dict[str, GpuModel] = {
    "A10-24GB": _model("NVIDIA A10", 23028, 150),
    "A100-40GB": _model("NVIDIA A100-SXM4-40GB", 40960, 400, nvlink=True, mig=_MIG_40),
    "A100-80GB": _model("NVIDIA A100-SXM4-80GB", 81920, 400, nvlink=True, mig=_MIG_80),
    "A100-PCIE-40GB": _model("NVIDIA A100-PCIE-40GB", 40960, 250, mig=_MIG_40),
    "A100-PCIE-80GB": _model("NVIDIA A100 80GB PCIe", 81920, 300, mig=_MIG_80),
    "A16-16GB": _model("NVIDIA A16", 15356, 62, per_card=4),
    "A30-24GB": _model("NVIDIA A30", 24576, 165),
    "A40-48GB": _model("NVIDIA A40", 46068, 300),
    "B200-180GB": _model("NVIDIA B200", 183359, 1000, nvlink=True, mig=_MIG_180),
    "GB200-186GB": _model("NVIDIA GB200", 189471, 1200, nvlink=True, mig=_MIG_186),
    "GH200-96GB": _model("NVIDIA GH200 480GB", 97871, 900, mig=_MIG_96),
    "GTX1080Ti-11GB": _model("NVIDIA GeForce GTX 1080 Ti", 11264, 250),
    "H100-80GB": _model("NVIDIA H100 80GB HBM3", 81559, 700, nvlink=True, mig=_MIG_80),
    "H100-94GB": _model("NVIDIA H100 NVL", 95830, 400, mig=_MIG_94),
    "H100-PCIE-80GB": _model("NVIDIA H100 PCIe", 81559, 350, mig=_MIG_80),
    "H200-141GB": _model("NVIDIA H200", 143771, 700, nvlink=True, mig=_MIG_141),
    "K80-12GB": _model("Tesla K80", 11441, 149, per_card=2),
    "L4-24GB": _model("NVIDIA L4", 23034, 72),
    "L40-48GB": _model("NVIDIA L40", 46068, 300),
    "L40S-48GB": _model("NVIDIA L40S", 46068, 350),
    "P100-16GB": _model("Tesla P100-PCIE-16GB", 16384, 250),
    "RTX2080Ti-11GB": _model("NVIDIA GeForce RTX 2080 Ti", 11264, 250),
    "RTX3090-24GB": _model("NVIDIA GeForce RTX 3090", 24576, 350),
    "RTX4090-24GB": _model("NVIDIA GeForce RTX 4090", 24564, 450),
    "RTX5090-32GB": _model("NVIDIA GeForce RTX 5090", 32607, 575),
    "RTX6000Ada-48GB": _model("NVIDIA RTX 6000 Ada Generation", 49140, 300),
    "RTXA6000-48GB": _model("NVIDIA RTX A6000", 49140, 300),
    "T4-16GB": _model("Tesla T4", 15360, 70),
    "V100-16GB": _model("Tesla V100-SXM2-16GB", 16384, 300, nvlink=True),
    "V100-32GB": _model("Tesla V100-SXM2-32GB", 32768, 300, nvlink=True),
}

_BY_LOWER_CASE = {key.lower(): model for key, model in CATALOGUE.items()}


def find_model(name: str) -> GpuModel:
    """The model of that name in the catalogue, in any case of letters. Raises `InvalidValue` that names those that may
    be meant, or else all."""
    model = _BY_LOWER_CASE.get(name.lower())
    if model is None:
        lower = name.lower()
        meant = [key for key in CATALOGUE if key.lower().startswith(lower + "-")]  # its size of memory is missing
        for close in difflib.get_close_matches(lower, _BY_LOWER_CASE, n=2, cutoff=0.75) if not meant else ():
            meant += [key for key in CATALOGUE if key.lower() == close]
        hint = f"did you mean {' or '.join(meant)}?" if meant else f"there are {', '.join(CATALOGUE)}"
        raise InvalidValue(f"there is no simulated GPU model {name!r}; {hint}")
    return model

"""How a simulated node is described, in one line.

    simulated:4xA100-40GB                              four GPUs of one model (`catalogue.py` has the models)
    simulated:2xA100-80GB,2xL4-24GB                    ... of two
    simulated:2xA100-40GB?mig=0:3g.20gb,1g.5gb*4       GPU 0 is in MIG mode, with these five instances
    simulated:4xT4-16GB?load=1:10GiB@80%               somebody else's process on GPU 1: its memory and utilisation
    simulated:8xH100-80GB?foreign=30%&seed=3           others come and go, on 30% of the GPUs at a time
    simulated:4xL4-24GB?fault=3:lost                   GPU 3 is `lost`, `unhealthy` or `unknown`

Options are joined by `&`; `mig`, `load` and `fault` may come several times. They name GPUs by index: `0`, `0-3`, `*`,
or `0.2` for the third MIG instance of GPU 0 (the index of a GPU in MIG mode means each of its instances).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from ..errors import InvalidValue
from ..memory import parse_memory
from .catalogue import GpuModel, MigProfile, find_model

__all__ = ["Load", "SimulatedSpec", "Target", "parse_simulated"]

PREFIX = "simulated:"

_MOST_GPUS = 1024
_GROUP = re.compile(r"(?:(\d{1,4})\s*x\s*)?([A-Za-z][\w.+-]*)", re.ASCII)
_TARGET = re.compile(r"(\d{1,4})(?:-(\d{1,4})|\.(\d))?|\*", re.ASCII)
_LOAD = re.compile(r"([^@]+)(?:@(\d{1,3})%?)?", re.ASCII)
_FAULTS = ("lost", "unhealthy", "unknown")


class Target(Struct, frozen=True):
    """GPUs from `first` to `last`; only the MIG instance `part` of them, if given."""

    first: int
    last: int
    part: int | None = None

    def hits(self, index: int, part: int | None) -> bool:
        """Whether the GPU `index`, or its MIG instance `part`, is meant."""
        return self.first <= index <= self.last and self.part in (None, part)


class Load(Struct, frozen=True):
    """A process of somebody outside gpufit: bytes and percent."""

    target: Target
    memory: int
    utilization: int


class SimulatedSpec(Struct, frozen=True, kw_only=True):
    """One simulated node."""

    groups: tuple[tuple[int, GpuModel], ...]
    mig: dict[int, tuple[MigProfile, ...]] = {}
    """GPU index -> its instances."""
    loads: tuple[Load, ...] = ()
    faults: tuple[tuple[Target, str], ...] = ()
    foreign: float = 0.0
    """The share of the GPUs (0 to 1) that others use at any moment."""
    seed: int = 0

    @property
    def models(self) -> list[GpuModel]:
        """The model of each GPU, by index."""
        return [model for count, model in self.groups for _ in range(count)]


def parse_simulated(text: str) -> SimulatedSpec:
    """The node that `text` (with or without `simulated:`) describes. Raises `InvalidValue` for one that cannot be."""
    body, _, tail = text.strip().removeprefix(PREFIX).partition("?")
    groups = tuple(_group(part.strip(), text) for part in body.split(","))
    count = sum(number for number, _ in groups)
    if not 1 <= count <= _MOST_GPUS:
        raise InvalidValue(f"{text!r} has {count} GPUs; a simulated node has 1 to {_MOST_GPUS}")
    fields = _Fields(count, [model for number, model in groups for _ in range(number)])
    for option in filter(None, (part.strip() for part in tail.split("&"))):
        key, _, value = option.partition("=")
        take = fields.options.get(key.strip())
        if take is None:
            raise InvalidValue(f"{text!r}: there is no option {key!r}; there are {', '.join(fields.options)}")
        try:
            take(value.strip())
        except InvalidValue as error:
            raise InvalidValue(f"{text!r}: {option}: {error}") from None
    for target in [load.target for load in fields.loads] + [target for target, _ in fields.faults]:
        if target.part is not None and target.part >= len(fields.mig.get(target.first, ())):
            raise InvalidValue(f"{text!r}: GPU {target.first} has no MIG instance {target.part}")
    return SimulatedSpec(
        groups=groups,
        mig=fields.mig,
        loads=tuple(fields.loads),
        faults=tuple(fields.faults),
        foreign=fields.foreign,
        seed=fields.seed,
    )


def _group(part: str, text: str) -> tuple[int, GpuModel]:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise InvalidValue(f"{text!r} does not describe simulated GPUs; write it like 'simulated:4xA100-40GB'")
    return int(match[1] or 1), find_model(match[2])


class _Fields:
    """What the options said so far."""

    def __init__(self, count: int, models: list[GpuModel]) -> None:
        self.count, self.models = count, models
        self.mig: dict[int, tuple[MigProfile, ...]] = {}
        self.loads: list[Load] = []
        self.faults: list[tuple[Target, str]] = []
        self.foreign, self.seed = 0.0, 0
        self.options: dict[str, Callable[[str], None]] = {
            "mig": self._mig,
            "load": self._load,
            "fault": self._fault,
            "foreign": self._foreign,
            "seed": self._seed,
        }

    def _mig(self, value: str) -> None:
        target, layout = self._target(value)
        if target.part is not None:
            raise InvalidValue("instances are made on a whole GPU: write mig=0:1g.5gb*7")
        for index in range(target.first, target.last + 1):
            self.mig[index] = _layout(layout, self.models[index])

    def _load(self, value: str) -> None:
        target, what = self._target(value)
        match = _LOAD.fullmatch(what)
        if match is None or not 0 <= (percent := int(match[2] or 50)) <= 100:
            raise InvalidValue("write it like load=1:10GiB@80%")
        self.loads.append(Load(target, parse_memory(match[1].strip()), percent))

    def _fault(self, value: str) -> None:
        target, what = self._target(value)
        if what not in _FAULTS:
            raise InvalidValue(f"a fault is one of {', '.join(_FAULTS)}")
        self.faults.append((target, what))

    def _foreign(self, value: str) -> None:
        number = value.removesuffix("%")
        if not re.fullmatch(r"\d{1,3}", number, re.ASCII) or int(number) > 100:
            raise InvalidValue("write it like foreign=30%")
        self.foreign = int(number) / 100

    def _seed(self, value: str) -> None:
        if not re.fullmatch(r"\d{1,18}", value, re.ASCII):
            raise InvalidValue("a seed is a whole number")
        self.seed = int(value)

    def _target(self, value: str) -> tuple[Target, str]:
        where, colon, what = value.partition(":")
        match = _TARGET.fullmatch(where.strip())
        if match is None or not colon:
            raise InvalidValue("say which GPU first: an index such as 0, 0-3, * or 0.2, and a colon")
        if where.strip() == "*":
            return Target(0, self.count - 1), what.strip()
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < self.count:
            raise InvalidValue(f"this node has GPUs 0 to {self.count - 1}")
        return Target(first, last, None if match[3] is None else int(match[3])), what.strip()


def _layout(text: str, model: GpuModel) -> tuple[MigProfile, ...]:
    profiles = {profile.name: profile for profile in model.mig}
    if not profiles:
        raise InvalidValue(f"{model.name} has no MIG")
    layout: list[MigProfile] = []
    for part in filter(None, text.split(",")):
        name, _, times = (piece.strip() for piece in part.partition("*"))
        if name not in profiles or not re.fullmatch(r"[1-7]?", times, re.ASCII):
            raise InvalidValue(f"{part!r} is no instance of {model.name}; there are {', '.join(profiles)}, and name*N")
        layout += [profiles[name]] * int(times or 1)
    if sum(part.compute for part in layout) > 7 or sum(part.memory for part in layout) > 8:
        raise InvalidValue(f"so many instances do not fit into one {model.name}")
    return tuple(layout)

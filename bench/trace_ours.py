"""Our own policies in the experiment of `trace.py`: what decides is `Index.select`, as in the scheduler.

What the trace has and a request of ours has not is put into our terms so:

    thousandths of a GPU     a shared request for that part of the GPU's memory (all GPUs have the same)
    whole GPUs               a request that is not shared
    models of GPUs           one letter each, so that a glob can name several: `[abc]`
    cores, host memory       `cpus` and `ram`
    tasks without GPUs       go by the policy's order, too: `best-fit` fills the fullest node; a potential raises least
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import force_setattr
from trace_data import SLOTS, Shape, Workload
from trace_field import Field

from jupyter_gpufit.models import Gpu, Node, Request
from jupyter_gpufit.scheduling.fit import Index
from jupyter_gpufit.scheduling.mix import Mix
from jupyter_gpufit.scheduling.policies import BestFit, Policy
from jupyter_gpufit.scheduling.potentials import Balance, Fragmentation, Potential

MIB = 2**20
TOTAL = 1000 * MIB  # of each GPU: then a thousandth is a MiB


class Ours:
    """A policy of ours on a field."""

    def __init__(self, field: Field, workload: Workload, policy: Policy) -> None:
        self._field, self._policy = field, policy
        letters = {model: chr(ord("a") + at) for at, model in enumerate(field.machines.models)}
        self._letters = [letters[field.machines.models[model]] for model in field.model]
        self._names = [f"node{row:05}" for row in range(len(field))]  # ties go to the first in the field's order
        self._requests = [_request(shape, letters) if shape.gpus else None for shape in workload.shapes]
        self._nodes = [self._node(row) for row in range(len(field))]
        self._index = Index(self._nodes)
        self._mix, self._learned = Mix(), 0

    def place(self, shape: int) -> tuple[int, tuple[int, ...]] | None:
        if (request := self._requests[shape]) is None:
            return self._without_gpus(self._field.shapes[shape])
        if isinstance(self._policy, Potential):
            self._mix.count(request)
            if self._mix.due(self._learned):
                self._policy, self._learned = self._policy.learned(self._mix, self._nodes), self._mix.seen
        decision = self._index.select(request, self._policy)
        if decision.placement is None:
            return None
        slots = tuple(int(uuid.rpartition("-")[2]) for uuid in decision.placement.gpus)
        return int(decision.placement.node.removeprefix("node")), slots

    def changed(self, row: int) -> None:
        self._nodes[row] = self._node(row)
        self._index.update(self._nodes[row])

    def _without_gpus(self, asked: Shape) -> tuple[int, tuple[int, ...]] | None:
        field = self._field
        rows = np.flatnonzero((field.cpu >= asked.cpu) & (field.ram >= asked.ram))
        if not len(rows):
            return None
        if (terrain := self._index._terrain_of(self._policy)) is not None:
            nothing: Any = SimpleNamespace(shared=False, sizes=(), gpu_model=None, cpus=asked.cpu / 1000)
            cost = terrain.costs(nothing, rows)
        else:
            free = field.gpu[rows]
            cost = (free == 1000).sum(axis=1) * 1_000_000 + np.where(free == 1000, free, 0).sum(axis=1)
        return int(rows[cost.argmin()]), ()

    def _node(self, row: int) -> Node:
        field = self._field
        free = field.gpu[row].tolist()
        gpus = tuple(
            Gpu(
                uuid=f"{row}-{slot}",
                index=slot,
                model=self._letters[row],
                memory_total=TOTAL,
                memory_free=free[slot] * MIB,
                idle=free[slot] == 1000,
                shareable=0 < free[slot] < 1000,
            )
            for slot in range(min(SLOTS, int(field.machines.count[row])))
        )
        cpus, ram = float(field.cpu[row]) / 1000, int(field.ram[row]) * MIB
        return Node(name=self._names[row], gpus=gpus, age=1.0, cpus_free=cpus, ram_free=ram)


def _request(asked: Shape, letters: dict[str, str]) -> Request:
    models = "".join(sorted(letters[model] for model in asked.models if model in letters))
    request = Request(
        gpus=asked.gpus,
        memory=asked.share * MIB,
        shared=asked.share < 1000,
        gpu_model=f"[{models or '!?'}]" if asked.models else None,
    )
    # Exactly, which a request's own words are not: they are in hundredths of a core, and 64 MiB at least.
    force_setattr(request, "cpus", asked.cpu / 1000)
    force_setattr(request, "ram", asked.ram * MIB)
    return request


OURS = {
    "best-fit": lambda field, workload, chance: Ours(field, workload, BestFit()),
    "fragmentation": lambda field, workload, chance: Ours(field, workload, Fragmentation()),
    "balance": lambda field, workload, chance: Ours(field, workload, Balance()),
}

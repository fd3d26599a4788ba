"""What a container says of itself, in its labels: who holds which GPUs. Written once, when the container is made.

    io.github.jupyter-gpufit.allocation   id of the allocation            ….gpus      JSON, uuid -> bytes
    io.github.jupyter-gpufit.scheduler    id of the scheduler             ….cards     JSON, uuid -> card
    io.github.jupyter-gpufit.owner        whose it is                     ….shared    "true" or "false"
    io.github.jupyter-gpufit.kernel       kernel id, if known by then     ….expires   Unix time, if it has a limit
    io.github.jupyter-gpufit.cpus         cores, if any were asked        ….ram       bytes of RAM, if any were asked

A container without the first one is none of ours, and is never touched.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import msgspec

from ..errors import InvalidValue
from ..models import Claim, Launch

__all__ = ["ALLOCATION", "PREFIX", "decode", "encode"]

PREFIX = "io.github.jupyter-gpufit."
ALLOCATION = PREFIX + "allocation"


def encode(launch: Launch) -> dict[str, str]:
    """The labels of the container that `launch` asks for."""
    texts = {
        "allocation": launch.allocation,
        "scheduler": launch.scheduler,
        "owner": launch.owner,
        "kernel": launch.kernel,
        "gpus": json.dumps(launch.gpus, separators=(",", ":")),
        "cards": json.dumps(launch.cards, separators=(",", ":")) if launch.cards else None,
        "expires": None if launch.expires is None else repr(launch.expires),
        "shared": "true" if launch.shared else "false",
        "cpus": None if launch.cpus is None else repr(launch.cpus),
        "ram": None if launch.ram is None else str(launch.ram),
    }
    return {PREFIX + name: text for name, text in texts.items() if text is not None}


def decode(labels: Mapping[str, str], container: str) -> Claim:
    """The claim that a container's labels make. Raises `InvalidValue` for labels that nothing of ours has written."""

    def text(name: str, default: str) -> str:
        return labels.get(PREFIX + name, default)

    try:
        return Claim(
            allocation=labels[ALLOCATION],
            scheduler=text("scheduler", ""),
            owner=text("owner", ""),
            gpus=msgspec.json.decode(text("gpus", "{}"), type=dict[str, int]),
            cards=msgspec.json.decode(text("cards", "{}"), type=dict[str, str]),
            shared=text("shared", "false") == "true",
            container=container,
            expires=_number(text("expires", "")),
            cpus=max(0.0, _number(text("cpus", "")) or 0.0),
            ram=max(0, int(_number(text("ram", "")) or 0)),
        )
    except (KeyError, msgspec.DecodeError) as error:
        raise InvalidValue(f"container {container[:12]} has labels of gpufit that cannot be read: {error!r}") from None


def _number(text: str) -> float | None:
    """`None` if it is none, which must not make others think that nothing is held there."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None

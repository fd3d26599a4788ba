"""The request of a kernel that nobody wrote `%gpufit request` for: kernelspec config, overruled by environment
variables.

{"provisioner_name": "gpufit-provisioner", "config": {"gpus": 1, "memory": "1GiB"}}     kernel.json
GPUFIT_GPUS=2 GPUFIT_MEMORY=16GiB,8GiB jupyter nbconvert --execute …                    environment
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InvalidValue
from ..models import Request

__all__ = ["WISHES", "request_from", "variable"]

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is not a number of GPUs; write it like '2'") from None


def _cores(text: str) -> float:
    try:
        cores = float(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is not a number of cores; write it like '8'") from None
    return int(cores) if cores.is_integer() and abs(cores) < 1e9 else cores  # as it was written, should it be wrong


def _priority(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is not a priority; write it like '5'") from None


def _sizes(text: str) -> str | tuple[str, ...]:
    sizes = tuple(part.strip() for part in text.split(","))
    return sizes if len(sizes) > 1 else sizes[0]


def _flag(text: str) -> bool:
    if text.strip().lower() not in _YES + _NO:
        raise InvalidValue(f"{text!r} is neither yes nor no; write '1' or '0'")
    return text.strip().lower() in _YES


def _labels(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise InvalidValue(f"{text!r} are not labels; write them like 'room=b12,rack=3'")
    return {key.strip(): value.strip() for key, _, value in pairs}


WISHES: Mapping[str, Callable[[str], Any]] = {
    "gpus": _count,
    "memory": _sizes,
    "cpus": _cores,
    "ram": str,
    "image": str,
    "time": str,
    "wait": str,
    "priority": _priority,
    "node": str,
    "gpu_model": str,
    "model": str,
    "require_model": _flag,
    "write_models": _flag,
    "name": str,
    "shared": _flag,
    "labels": _labels,
}
"""What may be wished (members of `Request`), and how its environment variable is read."""


def variable(wish: str) -> str:
    """The environment variable of a wish: `GPUFIT_MEMORY` for `memory`."""
    return f"GPUFIT_{wish.upper()}"


# What else of these names means something to us, so that it is no wish with a slip of the pen.
_OTHERS = ("ALLOCATION", "ATTACHED", "CLAIMS_DIR", "DIRECT", "INVENTORY", "MEMORY_GUARD", "TOKEN", "UNIT")
_ALIKE = 0.6  # of difflib: GPU is like GPUS, MEM like MEMORY


def _refuse_slips(environment: Mapping[str, str]) -> None:
    """`GPUFIT_GPU=2` would quietly give one GPU. A name that is like none of ours may be somebody else's."""
    known = [variable(wish) for wish in WISHES]
    for name, text in environment.items():
        word = name.removeprefix("GPUFIT_")
        if word == name or name in known or word in _OTHERS:
            continue
        if near := difflib.get_close_matches(word.upper(), [wish.upper() for wish in WISHES], n=1, cutoff=_ALIKE):
            raise InvalidValue(
                f"{name}={text}: there is no such variable; did you mean GPUFIT_{near[0]}? There are: "
                + ", ".join(known)
            )


def request_from(config: Mapping[str, Any], environment: Mapping[str, str]) -> Request:
    """The request that `config` (of the kernelspec) and `environment` (which overrules it) describe.

    Called by the provisioner before a kernel's first launch. Raises `InvalidValue`, naming the variable, or the
    kernelspec.
    """
    # In a kernel (or job) that runs on GPUs, variables of the same names say what it *holds*.
    inherited = "GPUFIT_ATTACHED" in environment or "GPUFIT_JOB" in environment
    if not inherited:
        _refuse_slips(environment)
    wished = {wish: value for wish, value in config.items() if value is not None}
    origin = dict.fromkeys(wished, "the kernelspec's provisioner config")
    for wish, read in WISHES.items():
        text = environment.get(variable(wish), "")
        if text.strip() and not inherited:
            try:
                wished[wish] = read(text)
            except InvalidValue as error:
                raise InvalidValue(f"{variable(wish)}: {error.message}") from None
            origin[wish] = variable(wish)
    try:
        return msgspec.convert(wished, Request)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        message = cause.message if isinstance(cause, InvalidValue) else str(error)
        places = sorted(set(origin.values()))
        raise InvalidValue(f"{message} (asked for by {' and '.join(places)})") from None

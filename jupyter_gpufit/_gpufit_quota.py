"""`[quota]` and `[quota.owner.NAME]` of `gpufit.toml` → `Quota`s. Pure. Called by `_gpufit_toml.parse`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .durations import parse_duration
from .errors import InvalidValue
from .inventory import Quota
from .models import MAX_PRIORITY

if TYPE_CHECKING:
    from ._gpufit_toml import _Place

__all__ = ["quotas"]

_NO_LIMIT: Final = "unlimited"


def quotas(tables: Any, top: _Place, place: Callable[[str], _Place], folder: Path) -> tuple[Quota, dict[str, Quota]]:
    """What everybody may have, and what those may who have a quota of their own. `place(where)`: for messages.
    Raises `InventoryError`."""
    if not isinstance(tables, dict):
        top.refuse("quota", tables, "is not a table; write [quota] on a line of its own, and the keys below it")
    given = dict(tables)
    owners = given.pop("owner", {})
    for_all = {"priority": 0} | place("[quota]").read(given, folder, tuple(_READERS), _READERS)
    if not isinstance(owners, dict) or not all(isinstance(own, dict) for own in owners.values()):
        place("[quota]").refuse(
            "owner", "…", "is not a table; write [quota.owner.NAME], and that person's keys below it"
        )
    own_quotas = {
        name: Quota(**(for_all | place(f"[quota.owner.{name}]").read(own, folder, tuple(_READERS), _READERS)))
        for name, own in owners.items()
    }
    return Quota(**for_all), own_quotas


def _or_unlimited(read: Callable[[Any], Any]) -> Callable[[Any, Path], Any]:
    return lambda value, folder: None if value == _NO_LIMIT else read(value)


def _count(value: Any) -> int:
    count = msgspec.convert(value, int)
    if count < 0:
        raise InvalidValue(f"is negative; write 0 or more, or {_NO_LIMIT!r}")
    return count


def _priority(value: Any) -> int:
    priority = msgspec.convert(value, int)
    if abs(priority) > MAX_PRIORITY:
        raise InvalidValue(f"is not from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


_READERS: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    "gpus": _or_unlimited(_count),
    "allocations": _or_unlimited(_count),
    "time": _or_unlimited(parse_duration),
    "wait": _or_unlimited(parse_duration),
    "priority": _or_unlimited(_priority),
}

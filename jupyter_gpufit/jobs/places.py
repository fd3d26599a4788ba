"""Where the outputs of a job come home to: `outputs/NAME` of its folder, fresh, and always the same for one job."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from .rules import OUTPUTS

__all__ = ["is_empty", "is_sound", "new_place", "remove_empty"]


def new_place(folder: Path, name: str) -> Path:
    """A new directory `outputs/NAME`, `outputs/NAME-2`, … in `folder`. Raises `OSError` if it cannot be made."""
    parent = folder / OUTPUTS
    parent.mkdir(parents=True, exist_ok=True)
    if parent.is_symlink():  # a person's; what a unit puts there later is not followed
        parent = Path(os.path.realpath(parent))
    for number in count(1):
        place = parent / (name if number == 1 else f"{name}-{number}")
        try:
            place.mkdir()
        except FileExistsError:
            continue
        return place
    raise AssertionError


def is_sound(place: Path) -> bool:
    """Whether it still is what `new_place` made. What ran in the folder may have put a link there, to have files of
    this machine given to its next attempt, or overwritten."""
    return place.is_absolute() and not place.is_symlink() and not place.parent.is_symlink()


def is_empty(place: Path) -> bool:
    """Whether nothing is in it, or it is not there."""
    try:
        with os.scandir(place) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def remove_empty(place: Path) -> None:
    """Remove a place, and the directory of all of them, if nothing is in them."""
    for directory in (place, place.parent):
        try:
            directory.rmdir()
        except OSError:
            return

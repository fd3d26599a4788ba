"""What has to be known of a container to put files in and start it: noted when it is made, or asked of its engine."""

from __future__ import annotations

import posixpath
import time
from typing import Any

from msgspec import Struct

from ..inventory import NodeSpec
from ..models import Claim, Launch, Unit
from . import claims, labels
from .base import Places, fill_in
from .containers import GPUFIT, HOME, OUTPUTS, PORTS, WORK, ours

__all__ = ["Image", "Prepared", "look_up", "noted"]


class Image(Struct, frozen=True):
    """What an image says of itself."""

    user: str
    work: str
    env: frozenset[str] = frozenset()
    """Names of the variables that it sets."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A container."""

    claim: Claim
    totals: dict[str, int]
    image: str
    user: str
    work: str
    """Where it works."""
    folders: tuple[str, ...]
    """Directories that are its own, and its user's."""
    plain: bool
    """A job's: what it runs is no kernel, and may end at once."""
    made: float
    """By our monotonic clock, before the engine was asked."""

    def place(self, path: str) -> str:
        """`path` (absolute, or relative to where it works) from the container's root."""
        filled = fill_in(path, Places(GPUFIT, self.work, OUTPUTS))
        return posixpath.normpath(posixpath.join(self.work, filled))


def noted(spec: NodeSpec, launch: Launch, claim: Claim, image: str, about: Image, made: float) -> Prepared:
    """Of one made for `launch`."""
    folders = ((HOME,) if launch.folder else (WORK,) if launch.workspace else ()) + (
        (OUTPUTS,) if launch.workspace else ()
    )
    return Prepared(
        claim=claim,
        totals=launch.totals,
        image=image,
        user=ours() if launch.folder else about.user,
        work=launch.folder or (WORK if launch.workspace else spec.workdir or about.work),
        folders=folders,
        plain=launch.workspace,
        made=made,
    )


def look_up(client: Any, unit: Unit) -> Prepared:
    """Of one that the server before us made, or that runs. Raises `docker.errors.APIError`."""
    config = client.inspect_container(unit.id)["Config"]
    return Prepared(
        claim=labels.decode(config["Labels"], unit.id),
        totals={},
        image=config["Image"],
        user=config["User"],
        work=config["WorkingDir"] or "/",
        folders=(HOME,) if f"HOME={HOME}" in (config["Env"] or ()) else (),
        plain=f"{PORTS[0]}/tcp" not in (config.get("ExposedPorts") or {}),
        made=time.monotonic() - claims.STALE_AFTER,
    )

"""What a form for requests needs to know before anything is asked: whose they are, what they may have, what is usual.

Called by the scheduler, for `GET about` and for notebooks that have a scheduler of their own.
"""

from __future__ import annotations

from msgspec import Struct

from .. import __version__
from ..inventory import Inventory, Quota

__all__ = ["About", "about"]

_WILD = frozenset("*?[")


class About(Struct, frozen=True, kw_only=True):
    """What `GET about` answers."""

    version: str
    """Of this package."""
    owner: str
    """Whose allocations the caller makes."""
    policy: str
    """The policy that requests are placed by."""
    image: str | None
    """The image of a request that names none; `None`: that depends on the node, or no node runs images."""
    images: tuple[str, ...]
    """All images that the inventory names, by name. (It may allow more, by globs.)"""
    quota: Quota | None
    """What the owner may have; `None`: there is no limit of any kind."""
    time: float | None
    """Seconds that an allocation lasts whose request says nothing of it; `None`: until it is released."""


def about(inventory: Inventory, policy: str, owner: str) -> About:
    """What `owner` has to know to ask for something on the cluster of `inventory`."""
    with_engine = [spec for spec in inventory.nodes if spec.launcher == "docker"]
    usual = {spec.image for spec in with_engine}
    allowed = {image for spec in with_engine for image in spec.images if not _WILD & set(image)}
    quota = inventory.quota(owner)
    return About(
        version=__version__,
        owner=owner,
        policy=policy,
        image=next(iter(usual)) if len(usual) == 1 else None,
        images=tuple(sorted(usual | allowed)),
        quota=None if quota == Quota() else quota,
        time=quota.time,
    )

"""`%gpufit release --all`, said in a kernel that runs on the GPUs: what else its owner holds."""

from __future__ import annotations

from ..errors import NotFound
from ..scheduling.api import Scheduler

__all__ = ["beside"]


def beside(scheduler: Scheduler, id: str) -> list[str]:
    """Ids of all that the owner of allocation `id` holds beside it. Called by `Attachments` and the provisioner."""
    try:
        owner = scheduler.get(id).owner
    except NotFound:
        return []
    return [one.id for one in scheduler.allocations(owner) if one.id != id]

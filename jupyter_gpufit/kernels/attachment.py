"""What is known of one notebook that follows an allocation's kernel, and what its own kernel is told (`attach.py`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ..models import EndReason

__all__ = ["ASKED_FOR", "LOCAL_TARGET", "Attachment", "stop_forwarding"]

LOCAL_TARGET = "jupyter_gpufit.local"
"""Comm target in a local kernel: `{"action": "stop", "allocation": id}` tells it to forward no longer. With a `reason`
the allocation ended by itself, and the kernel has to tell the person."""

ASKED_FOR = (None, EndReason.RELEASED, EndReason.CANCELLED)
"""Why an allocation ends, or a notebook leaves it, that nobody has to be told: it was meant to."""


@dataclass(eq=False)
class Attachment:
    """One notebook that follows (or is about to follow) an allocation's kernel. Made on an event loop."""

    allocation: str
    session: str
    path: str
    name: str
    type: str
    local_kernel: str
    local_kernelspec: str
    remote_kernel: str | None = None
    """`None`: the allocation does not run yet."""
    state: str = "waiting"
    running: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set once `remote_kernel` is known."""
    swapping: asyncio.Task[None] | None = field(default=None, repr=False)
    leaving: asyncio.Task[None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.runs_in(self.remote_kernel)

    def runs_in(self, kernel_id: str | None) -> None:
        """The allocation runs, and that is its kernel."""
        self.remote_kernel = kernel_id
        if kernel_id is not None:
            self.running.set()

    def public(self) -> dict[str, Any]:
        """As REST and events show it. `kernel_id` is the kernel the session has now."""
        return {
            "allocation": self.allocation,
            "session": self.session,
            "path": self.path,
            "state": self.state,
            "kernel_id": self.remote_kernel if self.state == "attached" else self.local_kernel,
            "local_kernel_id": self.local_kernel,
        }


def stop_forwarding(attachment: Attachment, reason: EndReason | None) -> dict[str, Any]:
    """What a local kernel is told (at `LOCAL_TARGET`) once its notebook is detached."""
    by_itself = {} if reason in ASKED_FOR else {"reason": str(reason)}
    return {"action": "stop", "allocation": attachment.allocation} | by_itself

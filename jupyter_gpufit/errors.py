"""Every error this package raises on purpose, and how they are related.

    GpufitError
    ├── InvalidValue          what the person wrote cannot be meant (also a ValueError)
    │   └── InventoryError    ... in gpufit.toml
    ├── NotPlaced             selection found no node
    │   ├── NoFit             not now: something has to end first
    │   └── NeverFits         not on this cluster, however long one waits
    ├── NotFound              no such node, allocation, session
    ├── Conflict              the thing is in a state in which this cannot be done
    ├── Forbidden             it belongs to somebody else, or the inventory does not allow it
    ├── LaunchError           a launch failed; everything it had made is undone
    │   ├── ClaimLost         another scheduler holds these GPUs: select again
    │   ├── NodeUnfit         nothing can be launched on that node now: select another
    │   └── ImageRefused      the image cannot be used here
    ├── NodeUnreachable       a node's engine or reporter does not answer
    ├── Unavailable           the service itself is not there: it starts, stops, or could not start
    ├── StoreError            the file that allocations are kept in cannot be used
    └── Cancelled             the person took the request back

Each carries a `code` (stable, for programs; the `error` member of a REST answer), a message for people that names the
value, the reason and what to do, and `details` (JSON-able). `status` is the HTTP status the server answers with.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "Cancelled",
    "ClaimLost",
    "Conflict",
    "Forbidden",
    "GpufitError",
    "ImageRefused",
    "InvalidValue",
    "InventoryError",
    "LaunchError",
    "NeverFits",
    "NoFit",
    "NodeUnfit",
    "NodeUnreachable",
    "NotFound",
    "NotPlaced",
    "StoreError",
    "Unavailable",
]


class GpufitError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 400

    def __init__(self, message: str, **details: Any) -> None:
        message = message.encode("utf-8", "replace").decode()  # the name of a file may be bytes that are no text
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


class InvalidValue(GpufitError, ValueError):
    """A value that cannot be meant. The message names the value, the reason and what to do."""

    code = "invalid-value"


class InventoryError(InvalidValue):
    """`gpufit.toml` cannot be used as it is. The message names the file and the place in it."""

    code = "inventory"


class NotPlaced(GpufitError):
    """Selection found no node. `details["stages"]` tells why, node by node (`Decision.explain`)."""

    code = "not-placed"
    status = 409


class NoFit(NotPlaced):
    """No node fits now; one could when something there ends."""

    code = "no-fit"
    status = 409


class NeverFits(NotPlaced):
    """No node of this cluster could ever satisfy the request, however empty."""

    code = "never-fits"
    status = 422


class NotFound(GpufitError):
    """There is no node, allocation or session of that name."""

    code = "not-found"
    status = 404


class Conflict(GpufitError):
    """What was asked cannot be done in the state the thing is in."""

    code = "conflict"
    status = 409


class Forbidden(GpufitError):
    """It belongs to somebody else, or the inventory does not allow it."""

    code = "forbidden"
    status = 403


class LaunchError(GpufitError):
    """A launch failed, and all it had made is undone. `details["logs"]` has the unit's last lines, if it had any."""

    code = "launch-failed"
    status = 502


class ClaimLost(LaunchError):
    """Another scheduler's unit holds GPUs of this placement. Ours is removed; select again after a random moment."""

    code = "claim-lost"
    status = 409


class NodeUnfit(LaunchError):
    """Nothing can be launched on that node as it is, whatever is asked (its disk is full). What was made is undone."""

    code = "node-unfit"
    status = 503


class ImageRefused(LaunchError):
    """The inventory does not allow the image, or it lacks what a kernel needs."""

    code = "image-refused"
    status = 422


class NodeUnreachable(GpufitError):
    """The engine or the reporter of a node does not answer. Says nothing about what runs there."""

    code = "node-unreachable"
    status = 503


class Unavailable(GpufitError):
    """The gpufit service of this server starts, stops, or could not start; the message says which."""

    code = "unavailable"
    status = 503


class StoreError(GpufitError):
    """The file that allocations are kept in cannot be used. The message names the file and what to do about it."""

    code = "store"
    status = 503


class Cancelled(GpufitError):
    """The person who asked took the request back."""

    code = "cancelled"
    status = 409

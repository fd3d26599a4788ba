"""Hear what a kernel does, without what it prints.

Each socket that is subscribed to a kernel's iopub channel gets all of the kernel's output: over the network, encrypted
for it alone where that is encrypted. Who only has to know that cells run leaves that to those who show it.

The topics of messages are each kernel's own affair. Those of ipykernel, and of all kernels made with it, are known:

    kernel.ID.status, .execute_input, .execute_result, .error     comm-ID     stream.stdout, display_data, …
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import zmq

__all__ = ["COMMS", "DOINGS", "hear_less"]

DOINGS = b"kernel."  # ID is another one in the next process
COMMS = b"comm-"
_KNOWN = re.compile(rb"kernel\.[\w-]+\.(?:status|execute_input)")


def hear_less(socket: zmq.Socket[bytes], parts: Sequence[bytes], topics: Sequence[bytes]) -> bool:
    """Have `socket`, subscribed to everything, hear only `topics` any more, if its message `parts` tells that the
    kernel has these; whether it does. Called with each message until then."""
    if not parts or not _KNOWN.fullmatch(parts[0]):
        return False
    for topic in topics:
        socket.setsockopt(zmq.SUBSCRIBE, topic)
    socket.setsockopt(zmq.UNSUBSCRIBE, b"")
    return True

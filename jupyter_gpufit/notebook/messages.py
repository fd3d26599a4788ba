"""Kernel messages, and the frames in which the Jupyter server sends them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from msgspec import Struct

from ..errors import GpufitError

__all__ = ["DISPLAYS", "LARGE", "KernelGone", "Message", "pack", "unpack"]

LARGE = 2**16  # bytes; what is larger is read in one piece, and taken apart only when somebody looks into it
DISPLAYS = ("display_data", "update_display_data")


class KernelGone(GpufitError):
    """The remote kernel died, restarted, or the connection to it is lost; what ran there gives no answer any more."""

    code = "kernel-gone"
    status = 409


class Message(Struct, frozen=True, kw_only=True, dict=True):
    """One Jupyter message."""

    channel: str
    type: str
    body: dict[str, Any] | bytes
    """Its content; as the JSON that it came as, if that is large, or a display, which may go on as it is."""
    id: str = ""
    parent: str = ""
    """Id of the request that this answers; empty if it answers none."""
    metadata: dict[str, Any] = {}
    buffers: tuple[bytes, ...] = ()
    size: int = 0
    """About how many bytes it has, for the bounds on what waits."""

    @cached_property
    def content(self) -> dict[str, Any]:
        """Its content."""
        try:
            content: dict[str, Any] = json.loads(self.body) if isinstance(self.body, bytes) else self.body
        except ValueError as problem:
            raise KernelGone(f"the kernel says what cannot be read ({problem})") from None
        return content

    @property
    def tells_death(self) -> bool:
        """Whether the server says with it that the kernel died (and perhaps is started anew)."""
        return self.type == "status" and self.content.get("execution_state") in ("restarting", "dead")

    @property
    def tells_shutdown(self) -> bool:
        """Whether the kernel says with it that it goes."""
        return self.channel == "iopub" and self.type == "shutdown_reply"


# --- v1.kernel.websocket.jupyter.org: a count, offsets (64 bit, little endian), channel, four JSON parts, buffers


def pack(channel: str, header: dict[str, Any], content: dict[str, Any], **more: Any) -> bytes:
    """A message as one binary frame."""
    parts = [
        channel.encode(),
        *(
            json.dumps(part).encode()
            for part in (header, more.get("parent") or {}, more.get("metadata") or {}, content)
        ),
        *more.get("buffers", ()),
    ]
    start = 8 * (len(parts) + 2)
    offsets = [start]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return b"".join([struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets), *parts])


def unpack(frame: bytes) -> Message:
    """The message in a binary frame. Raises `ValueError` for what is none."""
    try:
        (count,) = struct.unpack_from("<Q", frame)
        offsets: Sequence[int] = struct.unpack_from(f"<{count}Q", frame, 8)
        view = memoryview(frame)
        parts = [bytes(view[start:end]) for start, end in pairwise(offsets)]
        header, parent, metadata = (json.loads(part) for part in parts[1:4])
        packed = len(parts[4]) > LARGE or header["msg_type"] in DISPLAYS
        content = parts[4] if packed else json.loads(parts[4])
    except (struct.error, ValueError, LookupError) as problem:
        raise ValueError(f"not a kernel message: {problem}") from None
    return Message(
        channel=parts[0].decode(),
        type=header["msg_type"],
        body=content,
        id=header.get("msg_id", ""),
        parent=parent.get("msg_id", ""),
        metadata=metadata,
        buffers=tuple(parts[5:]),
        size=len(frame),
    )

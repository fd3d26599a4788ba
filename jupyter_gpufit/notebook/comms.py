"""Widgets of a remote cell while cells are forwarded: the front end talks to the local kernel, which passes it on.

A comm that is opened there gets a stand-in of the same id in the local kernel's comm manager. What the front end sends
to it goes to the remote kernel, and what that does in answer comes back, while the local kernel handles the message.
Front ends may send it to a subshell, which is another thread: it waits for the cell that runs, as the kernel there
would.
"""

from __future__ import annotations

import contextlib
from typing import Any

from .cells import serve
from .channels import Channel
from .messages import KernelGone, Message
from .outputs import Outputs

__all__ = ["relay"]


def relay(message: Message, channel: Channel, shell: Any, outputs: Outputs) -> None:
    """Publish a remote kernel's comm message as the local kernel's, and see that answers find their way back."""
    kernel = shell.kernel
    comms = kernel.comm_manager.comms
    comm_id = message.content.get("comm_id")
    if message.type == "comm_open":
        channel.keep = True
        comms[comm_id] = _Relayed(str(comm_id), str(message.content.get("target_name", "")), channel, outputs)
    elif message.type == "comm_close":
        comms.pop(comm_id, None)
    kernel.session.send(
        kernel.iopub_socket,
        message.type,
        message.content,
        parent=shell.displayhook.parent_header,
        metadata=message.metadata,
        buffers=list(message.buffers) or None,
    )


class _Relayed:
    """What the local comm manager has in place of a comm of the remote kernel."""

    def __init__(self, comm_id: str, target_name: str, channel: Channel, outputs: Outputs) -> None:
        self.comm_id = comm_id
        self.target_name = target_name
        self._channel = channel
        self._outputs = outputs
        self._closed = False

    def handle_msg(self, message: dict[str, Any]) -> None:
        """Called by the comm manager with what the front end sent."""
        self._pass_on(message)

    def handle_close(self, message: dict[str, Any]) -> None:
        """Likewise."""
        self._pass_on(message)

    def _pass_on(self, message: dict[str, Any]) -> None:
        # A widget that outlives its kernel does nothing, as anywhere in Jupyter.
        with contextlib.suppress(KernelGone):
            serve(
                self._channel,
                message["header"]["msg_type"],
                message["content"],
                self._outputs,
                metadata=message.get("metadata"),
                buffers=[bytes(buffer) for buffer in message.get("buffers") or ()],
            )

"""Run a cell in a kernel and collect all it gave."""

from __future__ import annotations

import queue
import re
import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "ready", "run_cell"]


@dataclass
class Cell:
    status: str = ""
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    error: str = ""
    """`"ZeroDivisionError: division by zero"`."""
    traceback: str = ""
    displays: list[dict[str, Any]] = field(default_factory=list)
    comms: list[tuple[str, Any]] = field(default_factory=list)
    """Target and data of comms opened."""

    @classmethod
    def of(cls, client: Any, message_id: str, timeout: float = 60.0) -> Cell:
        """What came of the execute request `message_id`, once it is done (a blocking client)."""
        cell, deadline = cls(), time.monotonic() + timeout
        while True:
            message = client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") == message_id and cell.take(message):
                break
        while True:
            reply = client.get_shell_msg(timeout=max(0.0, deadline - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message_id:
                cell.status = reply["content"]["status"]
                return cell

    def take(self, message: dict[str, Any]) -> bool:
        """Note one iopub message; whether it was the last."""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif kind == "execute_result":
            self.result = content["data"]["text/plain"]
        elif kind == "display_data":
            self.displays.append(content["data"])
        elif kind == "error":
            self.error = f"{content['ename']}: {content['evalue']}"
            self.traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"]))
        elif kind == "comm_open":
            self.comms.append((content["target_name"], content["data"]))
        return bool(kind == "status" and content["execution_state"] == "idle")


def ready(client: Any, timeout: float = 60.0) -> None:
    """Wait until the kernel answers, and its iopub messages arrive.

    (`wait_for_ready` of a client without a manager goes by heartbeats, which a busy machine misses.)
    """
    deadline = time.monotonic() + timeout
    while True:
        assert time.monotonic() < deadline, "the kernel does not answer"
        asked = client.kernel_info()
        try:
            for receive in (client.get_shell_msg, client.get_iopub_msg):
                while receive(timeout=1)["parent_header"].get("msg_id") != asked:  # not what a kernel before it said
                    assert time.monotonic() < deadline, "the kernel does not answer"
        except queue.Empty:
            continue
        return


def run_cell(client: Any, code: str, timeout: float = 60.0) -> Cell:
    """Run `code` with a blocking client."""
    return Cell.of(client, client.execute(code), timeout)

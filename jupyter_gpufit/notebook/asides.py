"""What a front end asks besides cells, while they are forwarded: completion and inspection know the names there.

Best effort: where the remote kernel does not answer soon, the local one does. (After a swap of the session the front
end asks the remote kernel itself.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .channels import Channel
from .client import Json

__all__ = ["Asides", "question"]

_WITHIN = 3.0  # s; a kernel imports much at the first question, and answers the others in milliseconds


def question(channel: Channel, kind: str, content: Json) -> Json | None:
    """The content of the reply to a `kind` request; `None` if there is none in time. Raises `KernelGone`."""
    if not channel.serving.acquire(blocking=False):
        return None
    channel.listen(True)
    try:
        request = channel.send("shell", kind, content)
        deadline = time.monotonic() + _WITHIN
        while (left := deadline - time.monotonic()) > 0:
            message = channel.receive(left)
            if message is not None and message.channel == "shell" and message.parent == request:
                return message.content
        return None
    finally:
        channel.listen(False)
        channel.serving.release()


class Asides:
    """Puts `ask` in front of a local ipykernel's own completion and inspection."""

    def __init__(self, shell: Any, ask: Callable[[str, Json], Json | None]) -> None:
        """`ask(kind, content)` gives the remote kernel's answer, or `None` where it has nothing to say."""
        self._kernel: Any = getattr(shell, "kernel", None)
        self._ask = ask

    def install(self) -> None:
        """Idempotent."""
        if self._kernel is not None:
            self._kernel.do_complete = self._complete
            self._kernel.do_inspect = self._inspect

    def remove(self) -> None:
        """Idempotent."""
        if self._kernel is not None:
            for name in ("do_complete", "do_inspect"):
                self._kernel.__dict__.pop(name, None)  # the class has the original

    def _complete(self, code: str, cursor_pos: int | None) -> Any:
        if not code.lstrip().startswith(("%gpufit", "%%gpufit")):
            at = len(code) if cursor_pos is None else cursor_pos
            if (found := self._ask("complete_request", {"code": code, "cursor_pos": at})) is not None:
                return found
        return self._kernel.__class__.do_complete(self._kernel, code, cursor_pos)

    def _inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        if (found := self._ask("inspect_request", content)) is not None and found.get("found"):
            return found
        return self._kernel.__class__.do_inspect(self._kernel, code, cursor_pos, detail_level, omit_sections)

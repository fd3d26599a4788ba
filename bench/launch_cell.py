"""The first cell of a kernel that was started, whoever started it: the same for all ways that `launch.py` compares.

Needs nothing but jupyter_client: `launch_gateway.py` runs where gpufit is not installed.
"""

from __future__ import annotations

import time
from queue import Empty

from jupyter_client.asynchronous import AsyncKernelClient

__all__ = ["TIMEOUT", "Steps", "first_cell"]

TIMEOUT = 120.0
LISTEN = 0.005  # s; until it is asked again, should its answer have come before we were subscribed


class Steps:
    """How many seconds each step took."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, step: str) -> None:
        """It ends now, and the next one begins."""
        now = time.perf_counter()
        self.taken[step] = now - self._last
        self._last = now


async def first_cell(client: AsyncKernelClient) -> None:
    """Returns with the result of one cell.

    It waits as a Jupyter server does, until the kernel is heard on both channels; and not as `wait_for_ready`, which
    then listens to silence for 0.2 s: that would hide what one way takes longer than another.
    """
    client.start_channels()
    try:
        client.kernel_info()
        await client.get_shell_msg(timeout=TIMEOUT)
        while not await _heard(client):
            client.kernel_info()
        printed: list[str] = []
        reply = await client.execute_interactive(
            "print(6 * 7)", timeout=TIMEOUT, output_hook=lambda message: printed.append(message["content"].get("text"))
        )
        if reply["content"]["status"] != "ok" or "42\n" not in printed:
            raise RuntimeError(f"the cell printed {printed}: {reply['content']}")
    finally:
        client.stop_channels()


async def _heard(client: AsyncKernelClient) -> bool:
    try:
        await client.get_iopub_msg(timeout=LISTEN)
    except Empty:
        return False
    return True

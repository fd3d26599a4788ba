"""A server extension for tests: what would take the server minutes takes seconds.

server_process(..., config={"ServerApp.jpserver_extensions": {"helpers.hasty": True}}, environment={"PYTHONPATH": …})
"""

from __future__ import annotations

from typing import Any

from jupyter_gpufit.scheduling import metering, usage


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "helpers.hasty"}]


def _load_jupyter_server_extension(app: Any) -> None:
    metering._TELL_EVERY = 1.0  # s between two moments at which samples are stored
    usage._ENOUGH_SECONDS = 1.0  # s of samples, before a size is suggested

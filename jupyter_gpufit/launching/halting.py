"""Ending what runs in a container, and leaving the container: what it made is still to be fetched. Blocks."""

from __future__ import annotations

import contextlib
from typing import Any

import docker.errors
import requests

from ..errors import LaunchError
from ..inventory import NodeSpec
from ..models import Unit
from . import engine as engines
from .engine import Engine, said
from .events import look_at
from .states import Seen

__all__ = ["halt"]

_ENDED = ("created", "exited", "dead")


def halt(engine: Engine, spec: NodeSpec, unit: Unit, grace: float) -> Seen | None:
    """SIGTERM, and SIGKILL after `grace` seconds. Returns how it looks then; `None`: the container is gone.

    Raises `NodeUnreachable` if the engine does not answer, and `LaunchError` if it cannot end it.
    """
    problem = ""
    with engine.answering():
        client = engine.client()
        for number, patience in (("SIGTERM", grace), ("SIGKILL", engines.CALL_WITHIN)):
            seen = look_at(client, spec, unit.id)
            if seen is None or seen.state in _ENDED:
                return seen
            try:
                client.kill(unit.id, number)
            except docker.errors.APIError as error:  # it has ended in this moment, or does not let itself be killed
                problem = said(error)
            _wait(client, unit.id, patience)
        seen = look_at(client, spec, unit.id)
    if seen is None or seen.state in _ENDED:
        return seen
    raise LaunchError(f"{unit.name} on {engine.node} does not end: {problem or 'it hangs'}")


def _wait(client: Any, id: str, patience: float) -> None:
    with contextlib.suppress(docker.errors.APIError, requests.ReadTimeout, requests.ConnectionError):
        client.wait(id, timeout=max(patience, 0.01), condition="not-running")

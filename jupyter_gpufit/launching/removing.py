"""Killing and removing a container, until the engine confirms that there is none. Blocks."""

from __future__ import annotations

import contextlib
from typing import Any

import docker.errors
import requests

from ..errors import NodeUnreachable
from .engine import CALL_WITHIN, Engine, said

__all__ = ["remove"]

ATTEMPTS = 3


def remove(engine: Engine, id: str, grace: float = 0.0) -> None:
    """Remove the container `id` with its anonymous volumes, whatever its state; with `grace` seconds, SIGTERM first.

    Returns when it is confirmed gone; at once if it is gone already. Raises `NodeUnreachable` if that cannot be had.
    """
    with engine.answering():
        client = engine.client()
        if grace > 0:
            _ask_to_end(client, id, grace)
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                client.remove_container(id, v=True, force=True)
            except docker.errors.APIError as error:
                problem = said(error)
            try:
                if "already in progress" in problem:  # somebody else removes it just now
                    client.wait(id, condition="removed", timeout=CALL_WITHIN)
                client.inspect_container(id)
            except docker.errors.NotFound:
                return
    why = problem or "it says it has, and still shows it"
    raise NodeUnreachable(f"{engine.node} does not get rid of container {id[:12]}: {why}")


def _ask_to_end(client: Any, id: str, grace: float) -> None:
    with contextlib.suppress(docker.errors.APIError, requests.ReadTimeout):  # it does not run, or its time is over
        client.kill(id, "SIGTERM")
        client.wait(id, timeout=grace, condition="not-running")

"""Killing and removing a container, until the engine confirms that there is none. Blocks."""

from __future__ import annotations

import contextlib
from typing import Any

import docker.errors
import requests

from ..errors import LaunchError
from . import engine as engines
from .engine import Engine, said

__all__ = ["remove"]

ATTEMPTS = 3


def remove(engine: Engine, id: str, grace: float = 0.0) -> None:
    """Remove the container `id` with its anonymous volumes, whatever its state; with `grace` seconds, SIGTERM first.

    Returns when it is confirmed gone; at once if it is gone already. Raises `NodeUnreachable` if the engine does
    not answer, and `LaunchError` if it does, and the container cannot be killed or removed.
    """
    problem = ""
    with engine.answering():
        client = engine.client()
        if grace > 0:
            _ask_to_end(client, id, grace)
        for _ in range(ATTEMPTS):
            try:
                client.remove_container(id, v=True, force=True)
            except docker.errors.APIError as error:
                problem = said(error)
            except (requests.ReadTimeout, requests.ConnectionError):
                client.ping()  # raises if it is the engine itself that does not answer
                problem = f"not within {engines.CALL_WITHIN:.0f} s"
                break
            try:
                if "already in progress" in problem:  # somebody else removes it just now
                    _wait_gone(client, id)
                client.inspect_container(id)
            except docker.errors.NotFound:
                return
    why = problem.rstrip(".") or "it says it has, and still shows it"
    raise LaunchError(
        f"{engine.node} does not get rid of container {id[:12]}: {why}; that machine may have to be rebooted"
    )


def _wait_gone(client: Any, id: str) -> None:
    with contextlib.suppress(requests.ReadTimeout, requests.ConnectionError):  # it is asked once more next
        client.wait(id, condition="removed", timeout=engines.CALL_WITHIN)


def _ask_to_end(client: Any, id: str, grace: float) -> None:
    with contextlib.suppress(docker.errors.APIError, requests.ReadTimeout):  # it does not run, or its time is over
        client.kill(id, "SIGTERM")
        client.wait(id, timeout=grace, condition="not-running")

"""Whom a command of `jupyter gpufit` asks: the Jupyter server that runs for this user, or the inventory's machines."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from ..errors import Forbidden, InvalidValue, Unavailable
from ..models import Node
from ..notebook.client import Client, RestClient, embedded
from ..notebook.discovery import running_servers, server_at, with_token
from ..notebook.transport import ExtensionMissing, ServerUnreachable

__all__ = ["client_of", "look"]

_SILENT = logging.NullHandler()  # what a scheduler of our own logs is said in our words, on one line


@contextlib.contextmanager
def client_of(options: argparse.Namespace, *, looks: bool = False) -> Iterator[Client]:
    """The server of this person, or, if the command only looks, a scheduler of our own over the inventory."""
    client = _find(options, looks)
    try:
        yield client
    finally:
        client.close()


def _find(options: argparse.Namespace, looks: bool) -> Client:
    token = options.token or os.environ.get("GPUFIT_TOKEN") or ""
    if options.server:
        client = RestClient(server_at(options.server, token or os.environ.get("JUPYTER_TOKEN") or ""))
        client.check()
        return client
    why = ""
    if options.inventory is None:
        for server in running_servers():
            client = RestClient(with_token(server, token or os.environ.get("JUPYTERHUB_API_TOKEN") or ""))
            try:
                client.check()
            except (ExtensionMissing, Forbidden, ServerUnreachable) as problem:
                why = why or f" ({problem.message})"
            else:
                return client
    if looks:
        return _own(options.inventory)
    if options.inventory is not None:
        raise InvalidValue(
            "--inventory is for looking at machines (nodes, gpus, models, explain); an allocation lives in a Jupyter "
            "server, which has its own inventory"
        )
    raise ServerUnreachable(
        f"no running Jupyter server with jupyter_gpufit was found{why}; an allocation lives in one. Start it with: "
        "jupyter lab, or name it with --server"
    )


def _own(inventory: str | None) -> Client:
    """A scheduler of our own. Raises `Unavailable` if there is nothing to see because of the inventory."""
    logging.getLogger("jupyter_gpufit").addHandler(_SILENT)
    client = embedded(inventory, store=":memory:")  # who only looks leaves nothing behind
    nodes, error = client.cluster()
    if error and not nodes:
        client.close()
        raise Unavailable(f"the inventory cannot be used: {error}")
    return client


def look(client: Client) -> list[Node]:
    """The nodes; says so if the inventory is not taken up."""
    nodes, error = client.cluster()
    if error:
        print(f"jupyter gpufit: the inventory cannot be used as it is: {error}", file=sys.stderr)
    return nodes

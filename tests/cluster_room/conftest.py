"""Real servers on loopback that behave as a test tells them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from helpers.bad_reporters import Behaviour, Serve


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server that treats each connection as it is told; gives its URL."""
    servers: list[asyncio.Server] = []
    connections: set[asyncio.Task[None]] = set()

    async def start(behaviour: Behaviour) -> str:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await behaviour(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass  # the other side has had enough, or the test is over
            finally:
                connections.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()
    for task in list(connections):
        task.cancel()
    if connections:
        await asyncio.wait(connections, timeout=10)
    for server in servers:
        await server.wait_closed()

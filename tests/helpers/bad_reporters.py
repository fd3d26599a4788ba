"""Reporters that behave, and reporters that do not: real servers on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jupyter_gpufit.models import Gpu, Report, encode

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Serve = Callable[[Behaviour], Awaitable[str]]


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """An HTTP answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def a_report(uuid: str = "GPU-1", free: int = 3) -> bytes:
    return encode(Report(host="n", gpus=(Gpu(uuid=uuid, index=0, memory_total=4, memory_free=free),)))


def answering(*answers: bytes) -> Behaviour:
    """Gives `answers`, then the last of them again and again, to all questions on all connections."""
    left = list(answers)

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()

    return behave


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, and never answers."""
    await asyncio.sleep(3600)

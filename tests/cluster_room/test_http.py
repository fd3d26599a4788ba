"""One question to one reporter over a real connection, however it behaves."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.bad_reporters import Behaviour, Serve, a_report, answering, hang, http

from jupyter_gpufit.cluster.http import MAX_BODY, HttpSource
from jupyter_gpufit.errors import GpufitError, InvalidValue, NodeUnreachable
from jupyter_gpufit.inventory import NodeSpec

Source = Callable[..., HttpSource]


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made: list[HttpSource] = []

    def make(url: str, **keys: Any) -> HttpSource:
        made.append(HttpSource(NodeSpec(name="n", report=url, **keys)))
        return made[-1]

    yield make
    for each in made:
        await each.close()
        await each.close()


async def test_a_report_and_the_next_one_on_the_same_connection(serve: Serve, source: Source) -> None:
    asked: list[bytes] = []

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for free in (3, 2):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(http(a_report(free=free)))

    asking = source(await serve(behave))
    assert (await asking.fetch(10)).gpus[0].memory_free == 3
    assert (await asking.fetch(10)).gpus[0].memory_free == 2, "two answers of one connection"
    assert asked[0].startswith(b"GET /v1/report HTTP/1.1\r\n")


async def test_a_connection_that_the_reporter_closed_meanwhile_is_made_anew(serve: Serve, source: Source) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(a_report()))
        await writer.drain()
        writer.close()

    asking = source(await serve(once))
    for _ in range(3):
        assert (await asking.fetch(10)).gpus


async def test_the_token_is_sent_and_read_anew_each_time(serve: Serve, source: Source, tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(http(a_report()))

    token = tmp_path / "token"
    token.write_text("first\n")
    asking = source(await serve(behave), report_token_file=str(token))
    await asking.fetch(10)
    token.write_text("second")
    await asking.fetch(10)
    assert [b"Authorization: Bearer first\r\n" in asked[0], b"Authorization: Bearer second\r\n" in asked[1]] == [
        True,
        True,
    ]


@pytest.mark.parametrize("content", [None, "", "two\nlines", "t\xf6ken"])
async def test_a_token_file_that_holds_none(source: Source, tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content, encoding="utf-8")
    with pytest.raises(NodeUnreachable, match="report_token_file") as caught:
        await source("http://127.0.0.1:1", report_token_file=str(token)).fetch(10)
    assert "lines" not in caught.value.message, "no part of it is shown"


async def test_a_refused_token_is_said_and_not_shown(serve: Serve, source: Source, tmp_path: Path) -> None:
    url = await serve(answering(http(b"", "401 Unauthorized")))
    with pytest.raises(NodeUnreachable, match="set report_token_file"):
        await source(url).fetch(10)
    token = tmp_path / "token"
    token.write_text("s3cr3t")
    with pytest.raises(NodeUnreachable, match="refuses our token") as caught:
        await source(url, report_token_file=str(token)).fetch(10)
    assert "s3cr3t" not in str(caught.value)


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def close_half_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(http(a_report())[:-5])
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Always one byte more: never silent, never done."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: " + b"a" * 8000 + b"\r\n")
        await writer.drain()


MISBEHAVIOUR: dict[str, tuple[Behaviour, type[GpufitError], str]] = {
    "hangs after accept": (hang, NodeUnreachable, "did not answer within 0.3 s"),
    "drips": (drip, NodeUnreachable, "did not answer within 0.3 s"),
    "closes without an answer": (close_at_once, NodeUnreachable, "."),
    "closes half way": (close_half_way, NodeUnreachable, "."),
    "endless headers": (endless_headers, NodeUnreachable, "."),
    "announces 100 MB": (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"),
        NodeUnreachable,
        "more than 2 MiB",
    ),
    "not HTTP": (answering(b"SSH-2.0-OpenSSH_9.2\r\n"), NodeUnreachable, "."),
    "not JSON": (answering(http(b"<html>hello</html>")), InvalidValue, "answers, but not with a report"),
    "not UTF-8": (answering(http(b'{"host": "\xff"}')), InvalidValue, "not with a report"),
    "other JSON": (answering(http(b"[1, 2]")), InvalidValue, "Expected `object`, got `array`"),
    "deep JSON": (answering(http(b"[" * 100_000)), InvalidValue, "not with a report"),
    "empty": (answering(http(b"")), InvalidValue, "not with a report"),
    "an impossible report": (answering(http(a_report(free=-1))), InvalidValue, r"gpus\[0\].memory_free is -1"),
    "redirect": (answering(http(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n")), NodeUnreachable, "redirect"),
    "404": (answering(http(b"", "404 Not Found")), NodeUnreachable, "answers 404.*is that a gpufit reporter"),
    "500": (answering(http(b"", "500 Oh")), NodeUnreachable, "answers 500"),
    "compressed": (
        answering(http(gzip.compress(a_report()), headers="Content-Encoding: gzip\r\n")),
        NodeUnreachable,
        "compressed",
    ),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
async def test_misbehaviour_ends_in_one_sentence_within_the_timeout(serve: Serve, source: Source, name: str) -> None:
    behaviour, error, says = MISBEHAVIOUR[name]
    url = await serve(behaviour)
    asking = source(url)
    timeout = 0.3 if "0.3 s" in says else 30
    for _ in range(2):  # and the second time is like the first
        with pytest.raises(error, match=says) as caught:
            async with asyncio.timeout(40):
                await asking.fetch(timeout)
        assert url in caught.value.message
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 500


async def test_what_is_too_much_is_not_read(serve: Serve, source: Source) -> None:
    """100 MB, announced or not: no more than the limit is ever held, and the node is not read to the end."""
    sent = {"announced": 0, "chunked": 0}

    def flood(kind: str, head: bytes, chunk: bytes) -> Behaviour:
        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
            while sent[kind] < 100 * 2**20:
                writer.write(chunk)
                await writer.drain()
                sent[kind] += len(chunk)

        return behave

    piece = b" " * 65536
    floods = {
        "announced": flood("announced", b"Content-Length: 104857600", piece),
        "chunked": flood("chunked", b"Transfer-Encoding: chunked", b"10000\r\n" + piece + b"\r\n"),
    }
    for kind, behaviour in floods.items():
        asking = source(await serve(behaviour))
        tracemalloc.start()
        try:
            with pytest.raises(NodeUnreachable, match="more than 2 MiB"):
                await asking.fetch(60)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5 * MAX_BODY, kind
        assert sent[kind] < 50 * 2**20, kind


async def test_nobody_there(source: Source, unused_tcp_port: int) -> None:
    with pytest.raises(NodeUnreachable, match="refused"):
        await source(f"http://127.0.0.1:{unused_tcp_port}").fetch(10)
    with pytest.raises(NodeUnreachable, match="no host of that name"):
        await source("http://no-such-host.invalid:9477").fetch(30)


async def test_names_that_hang_are_waited_for_in_threads_of_their_own(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes whose names the name service does not answer for cost their own timeouts, and nobody else's threads."""
    over = threading.Event()
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **keys: Any) -> Any:
        if host.startswith("hangs"):
            over.wait(60)
        return real("127.0.0.1", *args, **keys)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        fetches = [source(f"http://hangs{n}.example:9477").fetch(0.2) for n in range(64)]
        outcomes = asyncio.gather(*fetches, return_exceptions=True)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "answer"), 30) == "answer"
        assert {type(outcome) for outcome in await outcomes} == {NodeUnreachable}
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("gpufit-names")]
        assert 1 <= len(names) <= 8
    finally:
        over.set()


async def test_plain_http_where_tls_is_expected(serve: Serve, source: Source) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(http(b"", "400 Bad Request"))

    url = await serve(plain)
    with pytest.raises(NodeUnreachable, match="TLS fails"):
        await source(url.replace("http://", "https://")).fetch(10)

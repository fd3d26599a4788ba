"""Reporters that lie, through the real poller and cache, and whatever shows a node: REST, events, tables, magic, log.

Nodes whose reporters answer with whatever hypothesis makes up, beside one that is well. What must hold: only what was
validated gets in; nothing of it breaks a page, a terminal or a log; the node that is well stays so; and each of the
others is usable again as soon as it answers as it should.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from helpers.bad_reporters import a_report, http
from helpers.contract import check
from helpers.frontend import eventually
from helpers.fuzzing import any_json, effort, hostile, is_harmless
from helpers.office import MakeOffice, Office, Parts
from hypothesis import Phase, given
from hypothesis import strategies as st

from jupyter_gpufit.cluster import tables
from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.cluster.poller import Poller
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.models import Node
from jupyter_gpufit.notebook import show

LIARS = [f"liar{n}" for n in range(12)]
WELL = "well"
LONGEST = 600  # characters of a sentence about a node
TAGS = {"div", "table", "thead", "tbody", "tr", "th", "td", "style"}
ATTRIBUTES = {"style", "id", "class", "type", "colspan", "scope"}

# --- what liars say

texts = hostile | st.just("\ud800")
uuids = st.sampled_from(["GPU-1", "GPU-2", "GPU-3", "MIG-1", "all", "0", "GPU-1,GPU-2", "none"]) | texts
sizes = st.sampled_from([0, 1, 2**30, 2**34, 2**60, 2**60 + 1, -1]) | st.none()
# What is only shown is made fit for it, whatever it is.
shown = {
    "model": texts,
    "mig_profile": st.none() | texts,
    "reason": st.none() | texts,
    "health": st.sampled_from(["ok", "ok", "lost", "unhealthy", "unknown"]) | texts,
    "utilization": st.none() | st.integers(-10, 1000),
    "temperature": st.integers(-1000, 10_000),
    "power": st.floats(allow_nan=False, allow_infinity=False),
    "numa": st.integers(-1, 2**40),
    "idle": st.booleans(),
    "allocatable": st.booleans(),
    "allocations": st.lists(texts, max_size=2),
    "shareable": st.booleans(),
    "unheard of": any_json,
}
# What placements are computed from: a report with one that cannot be is refused.
computed = {
    "uuid": uuids,
    "index": st.sampled_from([-1, 2**31 + 1]) | any_json,
    "memory_total": sizes | any_json,
    "memory_free": sizes | any_json,
    "memory_used": sizes,
    "card": uuids,
    "parent": uuids,
    "links": st.lists(uuids, max_size=3),
    "processes": st.lists(
        st.fixed_dictionaries({"pid": st.integers(0, 2**33)}, optional={"memory": sizes, "container": texts}),
        max_size=3,
    ),
    "power": st.floats(),
    "model": any_json,
}


@st.composite
def gpus(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """Hostile in all that is only shown; and one time in eight something is not as it has to be."""
    gpu = {"uuid": f"GPU-{number}", "index": number, "memory_total": 2**34, "memory_free": 2**33}
    gpu |= draw(st.fixed_dictionaries({}, optional=shown))
    gpu["processes"] = [{"pid": 1, "name": draw(texts)}] if draw(st.booleans()) else []
    if draw(st.integers(0, 7)) == 0:
        key = draw(st.sampled_from(sorted(computed)))
        gpu[key] = draw(computed[key])
    return gpu


@st.composite
def reports(draw: st.DrawFn) -> dict[str, Any]:
    report: dict[str, Any] = {"gpus": [draw(gpus(number)) for number in range(draw(st.integers(0, 4)))]}
    report |= draw(st.fixed_dictionaries({}, optional={"host": texts, "driver": texts, "cuda": texts}))
    if draw(st.integers(0, 5)) == 0:
        report["error"] = draw(texts)
    if draw(st.integers(0, 9)) == 0:
        report["schema"] = draw(st.sampled_from([2, "1", 1.0, None]))
    if draw(st.integers(0, 9)) == 0:
        report["age"] = draw(st.sampled_from([1.0, -1.0, 1e308, 10**400, "now"]))
    return report


HUGE = (
    b"[" * 200_000,
    b'{"gpus":[' + b",".join(b'{"uuid":"GPU-%d","index":0}' % n for n in range(50_000)) + b"]}",
    b'{"error":"' + b"x" * (3 << 20) + b'"}',
    b'{"age":' + b"9" * 1_000_000 + b"}",
    json.dumps({"gpus": [{"uuid": "GPU-1", "index": 0, "processes": [{"pid": n} for n in range(5000)]}]}).encode(),
    json.dumps({"gpus": [{"uuid": "GPU-1", "index": 0, "model": "\u202e" * 100_000}]}).encode(),
)
header_texts = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=30)
statuses = st.sampled_from(["204 No", "302 Found", "401 No", "404 No", "500 Oh", "999 ?"])


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """All that is sent for one question. Mostly a report in good HTTP."""
    kind = draw(st.sampled_from(["report"] * 8 + ["headers", "status", "cut", "any JSON", "cut JSON", "bytes", "huge"]))
    body = json.dumps(draw(any_json if kind == "any JSON" else reports())).encode()
    if kind == "huge":
        return http(draw(st.integers(0, len(HUGE) - 1).map(HUGE.__getitem__)))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    if kind == "cut":
        return http(body)[: draw(st.integers(0, 200))]
    if kind == "cut JSON":
        return http(body[: -draw(st.integers(1, 60))])
    if kind in ("headers", "status"):
        text = draw(header_texts)
        status = "200 OK" if kind == "headers" else draw(statuses)
        return http(body, status, f"X-A: {text}\r\nLocation: {text}\r\nContent-Type: {text}\r\n")
    return http(body)


class Liars:
    """One server that is the reporter of many nodes: `http://…/NAME/v1/report`."""

    def __init__(self) -> None:
        self.answers = dict.fromkeys([*LIARS, WELL], http(a_report()))
        self.asked: Counter[str] = Counter()

    async def behave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                name = head.split()[1].decode().split("/")[1]
                self.asked[name] += 1
                writer.write(self.answers[name])
                await writer.drain()
                if self.answers[name] != http(a_report()):
                    break  # whoever still waits for the rest of it need not wait for long
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def heard(self) -> None:
        """Everything that is answered now has come, and was taken up."""
        before = self.asked.copy()
        await eventually(lambda: all(self.asked[name] >= before[name] + 2 for name in self.answers), step=0.01)


class WithLiars(Parts):
    """The office's make-believe parts, with the real cluster room in place of the make-believe one."""

    def __init__(self, url: str) -> None:
        super().__init__()
        specs = [
            NodeSpec(name=name, report=f"{url}/{name}", docker="unix:///none", monitor_period=0.05, timeout=10)
            for name in [*LIARS, WELL]
        ]
        self.cluster: Any = Cache()
        self.poller = Poller(self.cluster, find=lambda: None, load=lambda _: Inventory(nodes=tuple(specs)))

    async def open(self, inventory: Any, **options: Any) -> Parts:
        await self.poller.start()
        return await super().open(inventory, **options)

    async def close(self, keep: bool = False) -> None:
        await super().close()
        await self.poller.stop()


def test_liars(make_office: MakeOffice, caplog: pytest.LogCaptureFixture) -> None:
    """(The loop runs only while an example does: hypothesis minds if somebody uses `random` while it makes one up.)"""
    caplog.set_level(logging.INFO)
    said = Liars()
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        server = loop.run(asyncio.start_server(said.behave, "127.0.0.1", 0))
        parts = WithLiars(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        office = loop.run(stack.enter_async_context(make_office(parts=parts)))
        events = loop.run(stack.enter_async_context(office.front.events()))

        async def hear(lies: list[bytes]) -> None:
            said.answers |= dict(zip(LIARS, lies, strict=True))
            await said.heard()
            await look(office)
            said.answers |= dict.fromkeys(LIARS, http(a_report()))
            await said.heard()
            assert {node["reason"] for node in await nodes(office)} == {None}, "usable again"

        @effort(12, phases=[Phase.generate])
        @given(st.lists(answers(), min_size=len(LIARS), max_size=len(LIARS)))
        def tell(lies: list[bytes]) -> None:
            loop.run(hear(lies))

        try:
            tell()
            loop.run(eventually(lambda: events.of("nodes/v1")))
        finally:
            loop.run(stack.aclose())
            server.close()
    assert all(engine.containers == {} for engine in parts.engines.values())
    for record in caplog.records:
        assert is_harmless(record.getMessage()), record
        assert record.levelno < logging.ERROR, record.getMessage()


# --- where it shows


async def call(office: Office, method: str, path: str, body: Any = None) -> Any:
    answer = await office.front.gpufit(method, path, body)
    check(method, path, answer.status, answer.headers["Content-Type"], answer.json)
    assert answer.status < 500, answer
    for text in all_texts(answer.json):
        assert is_harmless(text), text
        assert len(text) < 10 * LONGEST
    return answer


async def nodes(office: Office) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await call(office, "GET", "nodes")).json["nodes"]
    return found


async def look(office: Office) -> None:
    found = await nodes(office)
    assert [node["name"] for node in found] == sorted([*LIARS, WELL])
    for node in found:
        assert all(len(text) <= LONGEST for text in all_texts(node))
        for gpu in node["gpus"]:
            assert gpu["allocations"] == []
            assert 0 <= (gpu["memory_free"] or 0) <= (gpu["memory_total"] or 2**60) <= 2**60
            assert gpu["allocatable"] or not gpu["idle"]
    assert next(node for node in found if node["name"] == WELL)["reason"] is None
    for wish in ({"gpus": 1}, {"gpus": 2, "memory": "1GiB", "share_card": True}, {"gpus": 1, "gpu_model": "*x*"}):
        decision = (await call(office, "POST", "explain", wish)).json
        look_at(show.explanation(decision))
    await hold(office, {"gpus": 1, "memory": "1MiB", "node": "liar*"})
    look_at_tables([msgspec.convert(node, Node) for node in found])


async def hold(office: Office, wish: dict[str, Any]) -> None:
    """Whatever can be had of a liar is held, shown as held, and given back."""
    answer = await call(office, "POST", "allocations", wish)
    if answer.status != 202:
        assert answer.status in (409, 422), answer
        return
    id, node = answer.json["id"], answer.json["node"]
    if answer.json["gpus"]:
        assert node in LIARS
        shown = await nodes(office)
        held = [gpu["uuid"] for each in shown for gpu in each["gpus"] if each["name"] == node and gpu["allocations"]]
        assert set(answer.json["gpus"]) <= set(held)
        page = show.Page().table(*show.allocation_table((await call(office, "GET", "allocations")).json["allocations"]))
        look_at(page)
    await call(office, "DELETE", f"allocations/{id}")
    await office.front.allocation(id, lambda one: one["state"] == "ended")


def look_at_tables(found: list[Node]) -> None:
    """As pandas has them, and as a notebook and a terminal show them."""
    for make in (tables.nodes, tables.gpus):
        table = make(found)
        assert len(table) == (len(found) if make is tables.nodes else sum(len(node.gpus) for node in found))
        look_at_html(tables.style(table).to_html())
        assert is_harmless(table.to_string())
    for rows in (show.node_table(found), show.gpu_table(found)):
        look_at(show.Page().table(*rows))


def look_at(page: show.Page) -> None:
    assert is_harmless(page.text)
    look_at_html(page.html)


class Tags(HTMLParser):
    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        assert {name for name, _ in attributes} <= ATTRIBUTES, attributes


def look_at_html(html: str) -> None:
    """Only tags of ours are in it: whatever came from outside is text."""
    parser = Tags(convert_charrefs=False)
    parser.feed(html)
    parser.close()


def all_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from all_texts(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from all_texts([key, each])

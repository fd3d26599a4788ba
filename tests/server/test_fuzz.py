"""Whatever is sent: an answer that openapi.yaml describes, never a 500, and nothing held that was not asked for."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from helpers.contract import check, operations
from helpers.fuzzing import effort
from helpers.office import Office
from hypothesis import given
from hypothesis import strategies as st

SETTINGS = effort(150)
OPERATIONS = sorted(operations())

text = st.text(st.characters(exclude_categories=()), max_size=30)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)
sizes = (
    st.integers(-(2**70), 2**70) | st.sampled_from(["16GiB", "1.5G", "0", "-1", "1e9", "٣GiB", "9" * 50 + "TiB"]) | text
)
jobs = st.fixed_dictionaries(
    {"run": st.sampled_from(["fit.py", "a.ipynb", "../x.py", "echo {lr}", "'", ""]) | text | anything},
    optional={
        "args": st.lists(text, max_size=3) | anything,
        "env": st.dictionaries(st.sampled_from(["A", "PATH", "a b"]) | text, text, max_size=2) | anything,
        "retries": st.integers(-2, 200) | anything,
        "launcher": st.sampled_from(["torchrun", "mpi"]) | anything,
        "sweep": st.dictionaries(text, text, max_size=2) | anything,
        "turn": st.integers() | anything,
    },
)
wishes = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(-2, 2000) | anything,
        "memory": sizes | st.lists(sizes, max_size=5) | anything,
        "name": st.from_regex(r"[A-Za-z0-9._-]{0,70}") | anything,
        "image": text | anything,
        "time": st.floats() | st.sampled_from(["2h", "1d12h", "0s", "-1m", "1w"]) | anything,
        "wait": st.floats() | text | anything,
        "priority": st.integers(-200, 200) | anything,
        "shared": st.booleans() | anything,
        "node": st.sampled_from(["*", "n?", "[", "[!", "n[1-2]", "\\"]) | anything,
        "gpu_model": st.sampled_from(["*fake*", "[[:alpha:]]", "(?P<"]) | anything,
        "labels": st.dictionaries(text, text | anything, max_size=3) | anything,
        "share_card": st.booleans() | anything,
        "cpus": st.floats() | st.integers(-2, 5000) | anything,
        "ram": sizes | anything,
        "model": text | anything,
        "require_model": st.booleans() | anything,
        "folder": st.sampled_from(["", ".", "..", "/", "/nowhere", "a/../..", "\x00"]) | text | anything,
        "notebook": text | anything,
        "job": jobs | anything,
        "nonsense": anything,
    },
)
bodies = (
    wishes.map(lambda value: json.dumps(value).encode())
    | anything.map(lambda value: json.dumps(value).encode())
    | (st.floats() | st.sampled_from(["1h", "-1h"])).map(lambda value: json.dumps({"time": value}).encode())
    | st.binary(max_size=200)
    | st.builds(lambda value, cut: json.dumps(value).encode()[:cut], wishes, st.integers(0, 40))
)
queries = st.dictionaries(
    st.sampled_from(["after", "wait", "tail", "ended", "token", "x"]),
    st.text(max_size=30)
    | st.integers().map(str)
    | st.floats().map(str)
    | st.sampled_from(["true", "1e308", "0x10", "１"]),
    max_size=3,
)
names = st.sampled_from(["n1", "fuzz"]) | st.text(max_size=30).filter(
    lambda name: "/" not in name and name not in ("", ".", "..")
)


class Client:
    """A plain one, that sends what it is told to."""

    def __init__(self, office: Office) -> None:
        self._parts = urlsplit(office.here.url)
        self._token = office.here.token
        self._connection = http.client.HTTPConnection(self._parts.netloc, timeout=30)

    def call(self, method: str, path: str, body: bytes | None) -> tuple[int, str, Any]:
        headers = {"Authorization": f"token {self._token}"}
        self._connection.request(method, f"{self._parts.path}gpufit/api/v1/{path}", body=body, headers=headers)
        with self._connection.getresponse() as response:
            status, content_type, data = response.status, response.headers["Content-Type"], response.read()
        return status, content_type, json.loads(data) if "json" in content_type else data.decode()

    def close(self) -> None:
        self._connection.close()


async def test_any_body(office: Office) -> None:
    client = Client(office)

    @SETTINGS
    @given(path=st.sampled_from(["allocations", "explain"]), body=bodies)
    def sends(path: str, body: bytes) -> None:
        status, content_type, answer = client.call("POST", path, body)
        assert status in (200, 202, 400, 409, 422), (status, answer)
        check("POST", path, status, content_type, answer)
        if status == 202:
            assert client.call("DELETE", f"allocations/{answer['id']}", None)[0] in (200, 202)

    try:
        await asyncio.to_thread(sends)
    finally:
        client.close()


async def test_any_job(office: Office) -> None:
    client = Client(office)
    sweeps = st.dictionaries(st.sampled_from(["lr", "a b"]) | text, st.lists(text, max_size=3) | anything, max_size=2)
    submissions = st.fixed_dictionaries({"request": wishes | anything}, optional={"sweep": sweeps | anything})

    @SETTINGS
    @given(body=submissions.map(lambda value: json.dumps(value).encode()) | bodies)
    def sends(body: bytes) -> None:
        status, content_type, answer = client.call("POST", "jobs", body)
        assert status in (202, 400, 409, 422), (status, answer)
        check("POST", "jobs", status, content_type, answer)
        for made in answer["allocations"] if status == 202 else ():
            assert client.call("DELETE", f"allocations/{made['id']}", None)[0] in (200, 202)

    try:
        await asyncio.to_thread(sends)
    finally:
        client.close()


async def test_any_call(office: Office) -> None:
    await office.front.request(name="fuzz")
    client = Client(office)

    @SETTINGS
    @given(operation=st.sampled_from(OPERATIONS), name=names, query=queries, body=st.none() | bodies)
    def sends(operation: tuple[str, str], name: str, query: dict[str, str], body: bytes | None) -> None:
        method, template = operation
        if (method, template) in (("POST", "/allocations"), ("POST", "/jobs")):
            return
        if "wait" in query:
            query |= {"wait": "0.01"} if query["wait"] == "true" else {}
        path = template.lstrip("/").replace("{name}", quote(name, safe="")).replace("{id}", quote(name, safe=""))
        words = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items() if key != "token")
        status, content_type, answer = client.call(method, f"{path}?{words}", body)
        assert status < 500, (status, answer)
        check(method, path, status, content_type, answer)

    try:
        await asyncio.to_thread(sends)
    finally:
        client.close()

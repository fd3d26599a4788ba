"""The vocabulary as types: what can be said, what cannot, and what crosses a wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import (
    MAX_GPUS,
    Allocation,
    Claim,
    EndReason,
    Gpu,
    GpuProcess,
    Node,
    Progress,
    Report,
    Request,
    State,
    Unit,
    decode,
    encode,
)

PATIENT = settings(deadline=None)  # the machine may be busy with other things

# --- requests


def test_one_size_for_all_or_one_each() -> None:
    assert Request(gpus=2, memory="16GiB").sizes == (16 * GiB, 16 * GiB)
    assert Request(gpus=2, memory=("16GiB", 5)).sizes == (16 * GiB, 5)
    assert Request().sizes == (0,)
    assert decode(b'{"gpus": 2, "memory": ["1G", 7]}', Request).sizes == (GiB, 7)


def test_durations_as_people_write_them() -> None:
    request = Request(time="2h", wait="10m")
    assert (request.time, request.wait) == (7200.0, 600.0)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"gpus": -1}, "gpus is -1"),
        ({"gpus": MAX_GPUS + 1}, str(MAX_GPUS + 1)),
        ({"gpus": True}, "gpus is True"),
        ({"gpus": "2"}, "gpus is '2'"),
        ({"gpus": 2, "memory": ("1G",)}, "1 sizes for 2 GPUs"),
        ({"memory": "lots"}, "'lots' is not a size"),
        ({"memory": -1}, "-1"),
        ({"time": "soon"}, "'soon' is not a duration"),
        ({"wait": 0}, "0"),
        ({"priority": 101}, "priority is 101; give a whole number from -100 to 100"),
        ({"priority": True}, "priority is True"),
        ({"priority": "5"}, "priority is '5'"),
        ({"name": ""}, "name ''"),
        ({"name": "-x"}, "name '-x'"),
        ({"name": "a b"}, "name 'a b'"),
        ({"name": "ä"}, "name"),
        ({"name": "x" * 64}, "up to 63"),
    ],
)
def test_a_request_that_cannot_be_meant(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Request(**keys)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"gpus": "two"}', "$.gpus"),
        (b'{"gpus": 2.5}', "$.gpus"),
        (b'{"gpu": 2}', "`gpu`"),
        (b'{"memory": "lots"}', "'lots' is not a size"),
        (b'{"memory": {"a": 1}}', "$.memory"),
        (b'{"labels": {"room": 5}}', "$.labels"),
        (b'{"gpus": 0}', "gpus is 0"),
        (b"\xff", "malformed"),
    ],
)
def test_a_body_that_is_no_request_says_where(body: bytes, says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode(body, Request)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"memory": "8GiB"}, "1 GPU with 8 GiB"),
        ({"gpus": 2, "memory": "16GiB"}, "2 GPUs with 16 GiB each"),
        ({"gpus": 2, "memory": ("16GiB", "8GiB")}, "2 GPUs with 16 GiB, 8 GiB"),
    ],
)
def test_a_request_in_words(keys: dict[str, Any], words: str) -> None:
    assert Request(**keys).describe() == words


requests = st.integers(1, 8).flatmap(
    lambda n: st.builds(
        Request,
        gpus=st.just(n),
        memory=st.integers(0, 2**50) | st.lists(st.integers(0, 2**50), min_size=n, max_size=n).map(tuple),
        name=st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True),
        image=st.none() | st.text(max_size=10),
        time=st.none() | st.floats(1, 1e6),
        wait=st.none() | st.integers(1, 1000),
        shared=st.booleans(),
        node=st.none(),
        gpu_model=st.none(),
        labels=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        share_card=st.booleans(),
    )
)


@PATIENT
@given(requests)
def test_a_request_crosses_a_wire_unchanged(request: Request) -> None:
    assert decode(encode(request), Request) == request
    assert len(request.sizes) == request.gpus


@PATIENT
@given(requests)
def test_a_request_can_be_asked_again_by_its_body(request: Request) -> None:
    body = json.loads(json.dumps(request.body()))
    assert decode(json.dumps(body), Request) == request
    assert all(value != getattr(Request(), key) for key, value in body.items() if key != "memory")


def test_a_body_leaves_out_what_is_usual() -> None:
    assert Request().body() == {}
    assert Request(gpus=2, memory="1GiB").body() == {"gpus": 2, "memory": GiB}
    assert Request(gpus=2, memory=("1GiB", 0)).body() == {"gpus": 2, "memory": [GiB, 0]}
    assert Request(time="1h", labels={"room": "b"}).body() == {"time": 3600.0, "labels": {"room": "b"}}


# --- GPUs, reports, nodes


def test_a_gpu_has_a_card_of_its_own_unless_told() -> None:
    assert Gpu(uuid="GPU-1", index=0).card == "GPU-1"
    assert Gpu(uuid="MIG-1", index=0, card="GPU-1").card == "GPU-1"
    assert decode(b'{"uuid": "GPU-1", "index": 0}', Gpu).card == "GPU-1"


def test_unknown_is_null_and_not_left_out() -> None:
    gpu = json.loads(encode(Gpu(uuid="GPU-1", index=0, processes=(GpuProcess(pid=1),))))
    for key in ("memory_total", "memory_free", "memory_used", "utilization", "temperature", "power", "parent", "numa"):
        assert gpu[key] is None, key
    assert gpu["processes"][0] == {"pid": 1, "memory": None, "container": None, "name": None}


def test_nothing_can_be_changed() -> None:
    for value in (
        Gpu(uuid="GPU-1", index=0),
        Report(),
        Node(name="n"),
        Request(),
        Claim(allocation="a", scheduler="s"),
    ):
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], "x")


@PATIENT
@given(st.builds(Report, gpus=st.lists(st.builds(Gpu), max_size=2).map(tuple)))
def test_a_report_crosses_a_wire_unchanged(report: Report) -> None:
    assert decode(encode(report), Report) == report


@PATIENT
@given(st.binary(max_size=30) | st.text(max_size=30))
def test_whatever_comes_it_is_a_report_or_refused(data: bytes | str) -> None:
    try:
        report = decode(data, Report)
    except InvalidValue:
        return
    assert isinstance(report, Report)


# --- allocations


def test_the_public_allocation_is_the_contracts_and_holds_nothing_secret() -> None:
    allocation = Allocation(
        id="a1",
        name="train",
        owner="me",
        request=Request(gpus=2, memory=GiB, image="lab/x", time=60),
        created=5.0,
        state=State.ENDED,
        reason=EndReason.NODE_LOST,
        node="n1",
        gpus=("GPU-1", "GPU-2"),
        memory=(GiB, GiB),
        progress=Progress(phase="pulling", current=1, total=2),
        unit=Unit(id="c" * 64, name="u", node="n1", allocation="a1"),
    )
    public = json.loads(json.dumps(allocation.public()))
    contract = ["id", "name", "owner", "state", "reason", "message", "node", "gpus", "memory", "kernel_id", "created"]
    assert list(public)[: len(contract)] == contract
    assert (public["state"], public["reason"], public["gpus"]) == ("ended", "node-lost", ["GPU-1", "GPU-2"])
    assert public["request"] == {"gpus": 2, "memory": GiB, "image": "lab/x", "time": 60.0}
    assert (public["image"], public["shared"], public["time"], public["expires"]) == ("lab/x", False, 60.0, None)
    assert public["progress"] == {"phase": "pulling", "current": 1, "total": 2, "message": ""}
    assert "unit" not in public
    assert msgspec.convert(msgspec.to_builtins(allocation), Allocation) == allocation, "the store gets all of it back"

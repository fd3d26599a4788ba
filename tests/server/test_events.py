"""What is pushed, as a browser receives it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import msgspec
import pytest
from helpers.fakes import node
from helpers.frontend import eventually
from helpers.office import MakeOffice, Office

from jupyter_gpufit.kernels.attach import Attachment
from jupyter_gpufit.models import EndReason, StoredModel
from jupyter_gpufit.server import events as events_module
from jupyter_gpufit.server.events import ALLOCATION, ATTACHMENT, NODES, Events


async def test_every_change_of_an_allocation(office: Office) -> None:
    async with office.front.events() as stream:
        made = await office.front.request(gpus=2, memory="1GiB", name="train")
        await office.front.release(made["id"])
        await stream.until(lambda event: event["schema_id"] == ALLOCATION and event["state"] == "ended", 5)
        changes = stream.of("allocation/v1")
    states = [change["state"] for change in changes]
    assert list(dict.fromkeys(states)) == ["starting", "running", "stopping", "ended"]
    versions = [change["version"] for change in changes]
    assert versions == sorted(set(versions))
    last = (await office.front.gpufit("GET", f"allocations/{made['id']}")).json
    assert {key: changes[-1][key] for key in last} == last, "the event is what REST shows"


async def test_nodes_are_gathered(office: Office) -> None:
    await asyncio.sleep(1.2)  # what changed at the start
    async with office.front.events() as stream:
        for used in range(1, 50):
            office.parts.cluster.put(node("n1", memory=used))
        office.parts.cluster.put(node("n3", gpus=1))
        office.parts.cluster.put(node("n4", gpus=1))
        office.parts.cluster.remove("n4")
        office.parts.cluster.remove("n2")
        event = await stream.until(lambda event: event["schema_id"] == NODES)
        assert [one["name"] for one in event["changed"]] == ["n1", "n3"]
        assert event["changed"][0]["gpus"][0]["memory_free"] == 49
        assert event["removed"] == ["n2"]
        assert event["inventory_error"] is None
        shown = (await office.front.gpufit("GET", "nodes/n1")).json
        assert event["changed"][0] == shown
        assert len(stream.of("nodes/v1")) == 1
        # Nothing changed but the age of its report: nothing to tell.
        office.parts.cluster.put(msgspec.structs.replace(node("n3", gpus=1), age=1.0))
        await asyncio.sleep(1.5)
        assert len(stream.of("nodes/v1")) == 1


async def test_models_are_told_when_they_are_others(office: Office) -> None:
    stores = [(StoredModel(name=name),) for name in ("bert", "llama-7b")]
    steps = [(stores[0], 1), (stores[0], 2), (stores[1], 2), (stores[1], 3), (None, 3), (None, 4), (stores[1], 4)]
    told: list[object] = []
    async with office.front.events() as stream:
        for number, (models, used) in enumerate(steps):
            office.parts.cluster.put(msgspec.structs.replace(node("n1", memory=used), models=models))

            def heard(number: int = number) -> bool:
                told[:] = [one for event in stream.of("nodes/v1") for one in event["changed"] if one["name"] == "n1"]
                told[:] = [one for one in told if one["gpus"][0]["memory_free"] < 5]
                return len(told) > number

            await eventually(heard)
    names = [[model["name"] for model in one["models"] or ()] if "models" in one else "as before" for one in told]
    assert names == [["bert"], "as before", ["llama-7b"], "as before", [], [], ["llama-7b"]]


async def test_many_nodes_come_in_parts(office: Office) -> None:
    names = {f"more{number}" for number in range(120)}
    async with office.front.events() as stream:
        for name in names:
            office.parts.cluster.put(node(name, gpus=1))
        await eventually(lambda: names <= {one["name"] for event in stream.of("nodes/v1") for one in event["changed"]})
        sizes = [len(event["changed"]) for event in stream.of("nodes/v1")]
    assert max(sizes) == 50
    assert len(names) <= sum(sizes) <= len(names) + 2, "each is told once"


async def test_whoever_changes_or_records_events_has_them_as_of_any_extension(office: Office) -> None:
    """A modifier (it redacts), a listener before it, one after it, and a handler: none is passed by."""
    logger = office.here.app.event_logger
    raw: list[Any] = []
    recorded = io.StringIO()

    def redact(schema_id: str, data: dict[str, Any]) -> dict[str, Any]:
        for one in data["changed"]:
            one["labels"] = {"of": "nobody"}
        return data

    async def hear(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        raw.append(data)

    handler = logging.StreamHandler(recorded)
    logger.handlers = logger.handlers or []
    logger.register_handler(handler)
    logger.add_modifier(schema_id=NODES, modifier=redact)
    logger.add_listener(modified=False, schema_id=NODES, listener=hear)
    try:
        async with office.front.events() as stream:
            office.parts.cluster.put(node("n7", labels={"of": "ada"}))
            event = await stream.until(lambda event: event["schema_id"] == NODES and _about(event, "n7"))
    finally:
        logger.remove_handler(handler)
        logger.remove_modifier(schema_id=NODES, modifier=redact)
        logger.remove_listener(schema_id=NODES, listener=hear)
    assert _about(event, "n7")["labels"] == {"of": "nobody"}
    [before] = [found for data in raw if (found := _about(data, "n7"))]
    assert before["labels"] == {"of": "ada"}
    lines = [_about(json.loads(line), "n7") for line in recorded.getvalue().splitlines()]
    assert [found["labels"] for found in lines if found] == [{"of": "nobody"}]


def _about(event: dict[str, Any], name: str) -> Any:
    return next((one for one in event.get("changed", ()) if one["name"] == name), None)


async def test_attachments(office: Office) -> None:
    async with office.front.events() as stream:
        attachment = Attachment(
            allocation="a1", session="s", path="p.ipynb", name="p.ipynb", type="notebook",
            local_kernel="l", local_kernelspec="python3", remote_kernel="r", state="attached",
        )  # fmt: skip
        assert office.extension._events is not None
        office.extension._events.attachment(attachment)
        event = await stream.until(lambda event: event["schema_id"] == ATTACHMENT)
    assert {key: event[key] for key in attachment.public()} == attachment.public()
    assert event["kernel_id"] == "r"


@pytest.mark.parametrize("reason", [None, *EndReason])
async def test_every_end_passes_the_schema(office: Office, reason: EndReason | None) -> None:
    made = await office.parts.scheduler.request(msgspec.convert({"gpus": 1}, _request()), "ada")
    events = office.extension._events
    assert events is not None
    events.allocation(msgspec.structs.replace(made, reason=reason))


def _request() -> Any:
    from jupyter_gpufit.models import Request

    return Request


async def test_strangers_hear_nothing(office: Office) -> None:
    from helpers.frontend import FrontEnd

    async with FrontEnd(office.here.url, "") as stranger:
        answer = await stranger.api("GET", "api/events/subscribe")
        assert answer.status == 403


async def test_a_listener_that_is_gone_stops_nothing(office: Office) -> None:
    async with office.front.events():
        pass
    made = await office.front.request(gpus=1)
    assert made["state"] == "running"


async def test_closed_while_something_waits_to_be_told(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "_GATHER", 1000.0)
    async with make_office() as office:
        office.parts.cluster.put(node("n9"))
        events = office.extension._events
        assert isinstance(events, Events)
    await eventually(lambda: events._telling is None)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "gpufit nodes"]

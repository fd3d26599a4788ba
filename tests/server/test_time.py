"""More time by REST, and warnings as events."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.contract import check
from helpers.frontend import Answer
from helpers.office import Office

from jupyter_gpufit.inventory import Inventory, Quota
from jupyter_gpufit.models import Request
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.server.events import ALLOCATION, WARNING


async def extend(office: Office, id: str, body: Any = None, **more: Any) -> Answer:
    path = f"allocations/{id}/extend"
    answer = await office.front.gpufit("POST", path, body, **more)
    check("POST", path, answer.status, answer.headers["Content-Type"], answer.json)
    return answer


async def test_more_time(office: Office) -> None:
    made = await office.front.request(name="train", time="1h")
    for time in ("30m", 1800, 1800.0):
        answer = await extend(office, "train", {"time": time}, expect=200)
        made["expires"] += 1800
        assert answer.json["expires"] == pytest.approx(made["expires"])
    assert answer.json["time"] == 2.5 * 3600
    assert answer.json == (await office.front.gpufit("GET", f"allocations/{made['id']}")).json


async def test_refusals_are_sentences(office: Office) -> None:
    office.parts.cluster.inventory = Inventory(nodes=(), all_quota=Quota(time=7200.0))
    await office.front.request(name="train", time="1h")
    answer = await extend(office, "train", {"time": "2h"}, expect=403)
    assert answer.json["error"] == "forbidden"
    assert "extend it by 1 h at most" in answer.json["message"]
    office.parts.cluster.inventory = Inventory(nodes=())
    await office.front.request(name="endless")
    answer = await extend(office, "endless", {"time": "2h"}, expect=409)
    assert (answer.json["error"], answer.json["message"]) == (
        "conflict",
        "allocation 'endless' has no time limit; there is nothing to extend",
    )
    assert (await extend(office, "nobody", {"time": "2h"}, expect=404)).json["error"] == "not-found"
    theirs = await office.parts.scheduler.request(Request(name="theirs", time="1h"), "bob")
    for id in ("theirs", theirs.id):
        await extend(office, id, {"time": "2h"}, expect=404)
    assert office.parts.scheduler.get(theirs.id).request.time == 3600


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"time": null}', b'{"time": true}', b'{"time": 0}', b'{"time": -1}', b'{"time": ""}',
     b'{"time": "soon"}', b'{"time": 1e300}', b'{"time": "1h", "name": "x"}', b'{"time": NaN}', b'{"time": ["1h"]}',
     b'{"time": "99999999999999999999w"}'],
)  # fmt: skip
async def test_what_cannot_be_meant(office: Office, body: bytes) -> None:
    await office.front.request(name="train", time="1h")
    answer = await extend(office, "train", data=body)
    assert (answer.status, answer.json["error"]) == (400, "invalid-value"), answer


async def test_a_warning_is_an_event_once(office: Office) -> None:
    made = await office.front.request(name="nap", time="10h")
    async with office.front.events() as stream:
        scheduler = office.parts.scheduler
        scheduler._handle(ev.Idled(id=made["id"], until=1e9))
        await stream.until(lambda event: event["schema_id"] == WARNING, 5)
        await extend(office, "nap", {"time": "1h"})
        scheduler._handle(ev.Idled(id=made["id"], until=2e9))
        scheduler._handle(ev.StopAsked(id=made["id"]))  # a change that is not about it
        await stream.until(lambda event: event["schema_id"] == WARNING and event["at"] == 2e9, 5)
        await office.front.release("nap")
        ended = await stream.until(lambda event: event["schema_id"] == ALLOCATION and event["state"] == "ended", 5)
        warnings, changes = stream.of("warning/v1"), stream.of("allocation/v1")
    assert [(one["allocation"], one["name"], one["kind"], one["at"]) for one in warnings] == [
        (made["id"], "nap", "idle", 1e9),
        (made["id"], "nap", "idle", 2e9),
    ]
    assert warnings[0]["message"] == changes[0]["warning"]
    assert changes[1]["warning"] == ended["warning"] == ""

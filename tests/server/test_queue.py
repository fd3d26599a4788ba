"""Waiting and quotas over REST, against its description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helpers.contract import check

from jupyter_gpufit.inventory import Inventory, Quota
from jupyter_gpufit.server.events import ALLOCATION

if TYPE_CHECKING:
    from .conftest import Office


async def call(office: Office, method: str, path: str, body: Any = None, *, expect: int) -> Any:
    answer = await office.front.gpufit(method, path, body, expect=expect)
    check(method, path, answer.status, answer.headers["Content-Type"], answer.json)
    return answer.json


async def test_a_request_that_waits_is_answered_with_where_it_stands(office: Office) -> None:
    holder = await call(office, "POST", "allocations", {"gpus": 2, "node": "n1", "name": "holder"}, expect=202)
    wish = {"gpus": 1, "node": "n1", "wait": "10m"}
    first = await call(office, "POST", "allocations", wish, expect=202)
    assert (first["state"], first["priority"]) == ("pending", 0)
    assert first["queue"] == {
        "position": 1,
        "of": 1,
        "until": first["created"] + 600,
        "missing": "No node has 1 GPU on a node named 'n1' now.",
        "frees": "it can start when 'holder' on n1 ends",
        "start": None,
    }
    urgent = await call(office, "POST", "allocations", wish | {"priority": 5}, expect=202)
    assert (urgent["queue"]["position"], urgent["priority"]) == (1, 5)
    moved = await office.front.allocation(first["id"], lambda one: one["queue"]["position"] == 2)
    assert moved["queue"]["of"] == 2
    listed = await call(office, "GET", "allocations", expect=200)
    assert [one["queue"] is not None for one in listed["allocations"]] == [False, True, True]
    gone = await call(office, "DELETE", f"allocations/{urgent['id']}", expect=200)
    assert (gone["state"], gone["reason"], gone["queue"]) == ("ended", "cancelled", None)
    await office.front.allocation(first["id"], lambda one: one["queue"]["position"] == one["queue"]["of"] == 1)
    await call(office, "DELETE", f"allocations/{holder['id']}", expect=202)
    running = await office.front.allocation(first["id"], lambda one: one["state"] == "running")
    assert running["queue"] is None


async def test_one_that_would_delay_another_is_refused_with_how_many_wait(office: Office) -> None:
    await call(office, "POST", "allocations", {"gpus": 1, "node": "n1", "time": "1h"}, expect=202)
    await call(office, "POST", "allocations", {"gpus": 2, "node": "n1", "wait": "10m"}, expect=202)
    refused = await call(office, "POST", "allocations", {"gpus": 1, "node": "n1"}, expect=409)
    assert refused["error"] == "no-fit"
    assert "would fit now, on n1, but 1 request waits before this one" in refused["message"]
    assert refused["details"]["before"] == 1
    assert len(refused["details"]["stages"]) == 4
    explained = await call(office, "POST", "explain", {"gpus": 1, "node": "n1"}, expect=200)
    assert explained["node"] is None
    await call(office, "POST", "allocations", {"gpus": 1, "node": "n1", "time": "30m"}, expect=202)


async def test_more_than_the_quota_is_forbidden(office: Office) -> None:
    office.parts.cluster.inventory = Inventory(nodes=(), own_quotas={"ada": Quota(gpus=2, time=3600.0, wait=600.0)})
    for wish, quota in (({"gpus": 3}, "gpus"), ({"time": "2h"}, "time"), ({"wait": "1h"}, "wait")):
        refused = await call(office, "POST", "allocations", wish, expect=403)
        assert refused["error"] == "forbidden"
        assert refused["details"]["quota"] == quota
    mine = await call(office, "POST", "allocations", {"gpus": 2, "name": "mine"}, expect=202)
    assert mine["time"] == 3600
    refused = await call(office, "POST", "allocations", {}, expect=403)
    assert refused["message"].startswith("you hold 2 GPUs ('mine'), and your quota is 2 GPUs at once")
    queued = await call(office, "POST", "allocations", {"wait": "10m"}, expect=202)
    assert queued["queue"]["frees"] == "it can start as soon as you hold less"
    await call(office, "DELETE", f"allocations/{mine['id']}", expect=202)
    await office.front.allocation(queued["id"], lambda one: one["state"] == "running")


async def test_the_queue_is_in_the_events(office: Office) -> None:
    async with office.front.events() as stream:
        await call(office, "POST", "allocations", {"gpus": 2, "node": "n1"}, expect=202)
        first = await call(office, "POST", "allocations", {"node": "n1", "wait": "10m"}, expect=202)
        await call(office, "POST", "allocations", {"node": "n1", "wait": "10m", "priority": 1}, expect=202)
        moved = await stream.until(
            lambda event: event.get("id") == first["id"] and (event["queue"] or {}).get("position") == 2
        )
        assert moved["schema_id"] == ALLOCATION

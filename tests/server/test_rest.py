"""The REST API against its own description, on make-believe parts."""

from __future__ import annotations

import asyncio
import io
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from helpers.contract import check, document, operations
from helpers.fakes import GIB, Gate, node
from helpers.frontend import Answer, eventually

from jupyter_gpufit import __version__
from jupyter_gpufit.errors import GpufitError
from jupyter_gpufit.inventory import Inventory, NodeSpec, Quota
from jupyter_gpufit.models import Request
from jupyter_gpufit.server import handlers
from jupyter_gpufit.server.handlers import HANDLERS

if TYPE_CHECKING:
    from .conftest import Office

MADE_UP = {"name": "n1", "id": "nobody"}


async def call(office: Office, method: str, path: str, body: Any = None, **more: Any) -> Answer:
    """A call whose answer has to be as openapi.yaml says, and in time."""
    answer = await office.front.gpufit(method, path, body, **more)
    content_type = answer.headers["Content-Type"]
    check(method, path, answer.status, content_type, answer.json if "json" in content_type else answer.text)
    assert answer.seconds < 5
    return answer


async def running(office: Office, **wishes: Any) -> dict[str, Any]:
    made = (await call(office, "POST", "allocations", wishes, expect=202)).json
    return await office.front.allocation(made["id"], lambda one: one["state"] == "running")


# --- the description


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    described: dict[str, set[str]] = {}
    for method, path in operations():
        described.setdefault(re.sub(r"\{\w+\}", "X", path).lstrip("/"), set()).add(method)
    served = {
        path.replace(r"([^/]+)", "X").replace(r"\.", "."): {
            method.upper() for method in ("get", "post", "put", "patch", "delete") if method in vars(handler)
        }
        for path, handler in HANDLERS
        if path != "(.*)"
    }
    assert described == served


def test_the_description_names_every_member_of_a_request() -> None:
    schema = document()["components"]["schemas"]["Request"]
    assert set(schema["properties"]) == set(Request.__struct_fields__)


async def test_the_description_is_served(office: Office) -> None:
    answer = await office.front.gpufit("GET", "openapi.yaml", expect=200)
    assert answer.headers["Content-Type"].startswith("application/yaml")
    assert yaml.safe_load(answer.text) == document()


# --- the way of an allocation


async def test_nodes(office: Office) -> None:
    office.parts.inventory_error = "gpufit.toml, line 3: no"
    answer = await call(office, "GET", "nodes", expect=200)
    assert [one["name"] for one in answer.json["nodes"]] == ["n1", "n2"]
    assert answer.json["inventory_error"] == "gpufit.toml, line 3: no"
    one = await call(office, "GET", "nodes/n2", expect=200)
    assert one.json == answer.json["nodes"][1]
    assert one.json["gpus"][0] | {"uuid": "GPU-n2-0", "memory_free": 16 * GIB, "idle": True} == one.json["gpus"][0]
    missing = await call(office, "GET", "nodes/n3", expect=404)
    assert missing.json["error"] == "not-found"
    assert "'n3'" in missing.json["message"]


async def test_a_node_with_unknown_values(office: Office) -> None:
    office.parts.cluster.put(node("odd name/ü", memory=None, reason="does not answer"))  # type: ignore[arg-type]
    answer = await call(office, "GET", "nodes", expect=200)
    odd = next(one for one in answer.json["nodes"] if one["name"] == "odd name/ü")
    assert odd["gpus"][0]["memory_free"] is None
    assert (await call(office, "GET", "nodes/odd%20name%2F%C3%BC", expect=200)).json == odd


async def test_explain(office: Office) -> None:
    answer = (await call(office, "POST", "explain", {"gpus": 2, "memory": "8GiB"}, expect=200)).json
    assert (answer["node"], len(answer["gpus"]), [stage["stage"] for stage in answer["stages"]]) == (
        "n1",
        2,
        [1, 2, 3, 4],
    )
    none = (await call(office, "POST", "explain", {"gpus": 4, "memory": "16.5GiB"}, expect=200)).json
    assert none["node"] is None
    assert "n1" in none["stages"][0]["rejected"]
    assert none["never"] is True
    assert (await call(office, "GET", "allocations", expect=200)).json == {"allocations": []}, "nothing is reserved"


async def test_what_is_asked_of_the_machine_is_had_once(office: Office) -> None:
    office.parts.cluster.put(node("n3", gpus=4, cpus=8, ram=64 * GIB))
    wish = {"cpus": 6, "ram": "40GiB"}
    made = await running(office, **wish)
    assert (made["node"], made["request"]) == ("n3", {"cpus": 6, "ram": 40 * GIB})
    left = (await call(office, "GET", "nodes/n3", expect=200)).json
    assert [left[key] for key in ("cpus", "cpus_free", "ram", "ram_free")] == [8, 2, 64 * GIB, 24 * GIB]
    unknown = (await call(office, "GET", "nodes/n1", expect=200)).json
    assert [unknown[key] for key in ("cpus", "cpus_free", "cpus_limit", "ram", "ram_free", "ram_limit")] == [None] * 6
    more = (await call(office, "POST", "allocations", wish, expect=409)).json
    assert (more["error"], "6 CPUs, 40 GiB RAM" in more["message"]) == ("no-fit", True)
    told = " ".join(text for stage in more["details"]["stages"] for text in stage["rejected"].values())
    assert "6 asked" in told
    assert "not known" in told, "of n1 and n2"
    again = (await call(office, "POST", "explain", made["request"] | {"cpus": 2, "ram": 24 * GIB}, expect=200)).json
    assert again["node"] == "n3", "what an allocation shows of its request can be asked for"


async def test_explain_without_the_stages(office: Office) -> None:
    wish = {"gpus": 1, "memory": "8GiB"}
    whole = (await call(office, "POST", "explain", wish, expect=200)).json
    assert whole["fitting"] == ["n1", "n2"], "the tightest first"
    assert (await call(office, "POST", "explain?stages=true", wish, expect=200)).json == whole
    short = (await call(office, "POST", "explain?stages=false", wish, expect=200)).json
    assert short == whole | {"stages": []}
    none = (await call(office, "POST", "explain?stages=0", {"gpus": 5}, expect=200)).json
    assert (none["node"], none["fitting"], none["stages"], none["nearest"]["gpus"]) == (None, [], [], 4)
    assert (await call(office, "POST", "explain?stages=perhaps", wish)).status == 400


async def test_about(office: Office) -> None:
    bare = (await call(office, "GET", "about", expect=200)).json
    assert (bare["owner"], bare["policy"], bare["quota"], bare["time"]) == ("ada", "best-fit", None, None)
    assert (bare["version"], bare["image"], bare["images"]) == (__version__, None, []), "the nodes run plain processes"
    specs = [NodeSpec(name="n1", docker="unix:///a", image="lab/a", images=("lab/b", "lab/*")), NodeSpec(name="n2")]
    office.parts.cluster.inventory = Inventory(nodes=tuple(specs), policy="claim", all_quota=Quota(gpus=4, time=60.0))
    told = (await call(office, "GET", "about", expect=200)).json
    assert told["quota"] == {"gpus": 4, "allocations": None, "time": 60.0, "wait": None, "priority": None}
    assert (told["policy"], told["time"], told["image"]) == ("claim", 60.0, "lab/a")
    assert told["images"] == ["lab/a", "lab/b"]


async def test_what_was_asked_can_be_asked_again(office: Office) -> None:
    wish = {"gpus": 2, "memory": ["4GiB", GIB], "time": "2h", "labels": {"room": "b12"}}
    made = await running(office, **wish)
    assert made["request"] == {"gpus": 2, "memory": [4 * GIB, GIB], "time": 7200.0, "labels": {"room": "b12"}}
    again = await running(office, **made["request"])
    assert (again["request"], again["node"]) == (made["request"], "n2")
    [seen] = [gpu for gpu in (await call(office, "GET", "nodes/n2")).json["gpus"] if gpu["uuid"] == made["gpus"][0]]
    assert (seen["memory_claimed"], seen["allocations"]) == (4 * GIB, [made["id"]])


async def test_from_request_to_release(office: Office) -> None:
    gate = office.parts.script.hold("prepare")
    body = {"gpus": 2, "memory": ["4GiB", GIB], "name": "train", "time": "2h", "labels": {"room": "b12"}}
    answer = await call(office, "POST", "allocations", body, expect=202)
    made = answer.json
    assert answer.headers["Location"] == f"/base/gpufit/api/v1/allocations/{made['id']}"
    assert (
        made
        | {
            "name": "train",
            "owner": "ada",
            "node": "n2",
            "memory": [4 * GIB, GIB],
            "time": 7200.0,
            "kernel_id": None,
            "shared": False,
        }
        == made
    )
    assert made["state"] in ("pending", "starting")
    assert (await call(office, "GET", "allocations", expect=200)).json["allocations"][0]["id"] == made["id"]
    assert (await call(office, "GET", "allocations/train", expect=200)).json["id"] == made["id"]
    gate.open()
    up = await office.front.allocation("train", lambda one: one["state"] == "running")
    assert up["version"] > made["version"]
    assert up["kernel_id"]
    assert (await call(office, "GET", "allocations/train/logs?tail=1", expect=200)).json["logs"] == "kernel started\n"
    taken = await call(office, "POST", "allocations", body, expect=409)
    assert taken.json["error"] == "conflict"
    assert "'train'" in taken.json["message"]
    gate = office.parts.script.hold("stop")
    assert (await call(office, "DELETE", "allocations/train", expect=202)).json["state"] == "stopping"
    gate.open()
    await office.front.allocation(made["id"], lambda one: one["state"] == "ended")
    again = await call(office, "DELETE", f"allocations/{made['id']}", expect=200)
    assert (again.json["state"], again.json["reason"]) == ("ended", "released")
    assert (await call(office, "GET", "allocations", expect=200)).json == {"allocations": []}
    [ended] = (await call(office, "GET", "allocations?ended=true", expect=200)).json["allocations"]
    assert ended == again.json
    assert (await call(office, "GET", "nodes/n2", expect=200)).json["gpus"][0]["idle"] is True


async def test_nothing_fits_now_or_ever(office: Office) -> None:
    await running(office, gpus=4, memory="1GiB")
    now = await call(office, "POST", "allocations", {"gpus": 3}, expect=409)
    assert now.json["error"] == "no-fit"
    explained = (await call(office, "POST", "explain", {"gpus": 3}, expect=200)).json
    assert now.json["details"] == {"stages": explained["stages"], "nearest": explained["nearest"]}
    assert now.json["message"] == explained["summary"]
    assert "n2" in now.json["details"]["stages"][0]["rejected"]
    never = await call(office, "POST", "allocations", {"gpus": 5}, expect=422)
    assert never.json["error"] == "never-fits"
    assert len(never.json["details"]["stages"]) == 4


async def test_a_failed_start_says_why(office: Office) -> None:
    office.parts.script.fail("start", GpufitError("it is broken"))
    made = (await call(office, "POST", "allocations", {}, expect=202)).json
    ended = await office.front.allocation(made["id"], lambda one: one["state"] == "ended")
    assert ended["reason"] == "failed"
    assert "it is broken" in ended["message"]


async def test_waiting_for_a_change(office: Office) -> None:
    made = await running(office)
    path = f"allocations/{made['id']}?after={made['version']}&wait="
    waited = await call(office, "GET", path + "0.5", expect=200)
    assert waited.seconds >= 0.5
    assert waited.json == made
    waiting = asyncio.create_task(call(office, "GET", path + "1000", expect=200))
    await asyncio.sleep(0.2)
    await office.front.release(made["id"])
    answer = await waiting
    assert answer.json["version"] > made["version"]
    assert answer.seconds < 4
    # It has changed since then already: at once.
    assert (await call(office, "GET", path + "4", expect=200)).seconds < 2


async def test_steps_that_follow_each_other_at_once_are_told_together(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> tuple[Gate, str, int]:
        gate = office.parts.script.hold("prepare")
        made = (await call(office, "POST", "allocations", {}, expect=202)).json
        await gate.arrived.wait()
        now = (await call(office, "GET", f"allocations/{made['id']}", expect=200)).json
        return gate, f"allocations/{made['id']}?after={now['version']}&wait=4", now["version"]

    with monkeypatch.context() as patch:
        patch.setattr(handlers, "_TOGETHER", 4.0)
        gate, path, version = await asked()
        waiting = asyncio.create_task(call(office, "GET", path, expect=200))
        gate.open()
        answer = await waiting
    assert answer.json["state"] == "running"
    assert answer.json["version"] > version + 1
    gate, path, version = await asked()
    office.parts.script.hold("kernel")  # as soon as a step takes longer, those before it are told
    gate.open()
    answer = await call(office, "GET", path, expect=200)
    assert answer.json["state"] == "starting"
    assert answer.json["version"] > version
    assert answer.seconds < 4


async def test_the_longest_wait(office: Office) -> None:
    made = await running(office)
    answer = await call(office, "GET", f"allocations/{made['id']}?after={made['version']}&wait=1e300", expect=200)
    assert 3 < answer.seconds < 5


async def test_a_node_that_hangs_delays_nobody(office: Office) -> None:
    made = await running(office)
    gate = office.parts.script.hold("logs")
    logs, nodes, released = await asyncio.gather(
        call(office, "GET", f"allocations/{made['id']}/logs"),
        call(office, "GET", "nodes"),
        call(office, "POST", "explain", {}),
    )
    assert logs.status == 503
    assert logs.json["error"] == "node-unreachable"
    assert "within 4 s" in logs.json["message"]
    assert nodes.status == released.status == 200
    gate.open()
    office.parts.engines["n1"].reachable = False
    down = await call(office, "GET", f"allocations/{made['id']}/logs", expect=503)
    assert "does not answer" in down.json["message"]
    office.parts.engines["n1"].reachable = True


async def test_somebody_elses_allocation_is_not_there(office: Office) -> None:
    theirs = await office.parts.scheduler.request(Request(name="theirs"), "bob")
    for id in (theirs.id, "theirs"):
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/logs"),
            ("POST", "/detach"),
            ("POST", "/attach"),
        ):
            answer = await call(office, method, f"allocations/{id}{path}", {"path": "a.ipynb"}, expect=404)
            assert "theirs" not in answer.json["message"].replace(f"'{id}'", "")
    assert (await call(office, "GET", "allocations?ended=1", expect=200)).json == {"allocations": []}
    await running(office, name="theirs", gpus=1)  # a name is one's own
    assert office.parts.scheduler.get(theirs.id).state != "ended"


async def test_attachments_are_the_callers(office: Office) -> None:
    gate = office.parts.script.hold("prepare")
    made = (await call(office, "POST", "allocations", {}, expect=202)).json
    await office.front.open("mine.ipynb")
    other = await office.front.open("other.ipynb")
    theirs = await office.parts.scheduler.request(Request(), "bob")
    await office.extension.attachments.attach(theirs, session=other.session)
    assert (await call(office, "GET", "attachments", expect=200)).json == {"attachments": []}
    path = f"allocations/{made['id']}/attach"
    attachment = (await call(office, "POST", path, {"path": "mine.ipynb"}, expect=202)).json
    assert (attachment["state"], attachment["allocation"]) == ("waiting", made["id"]), "though it does not run yet"
    assert (await call(office, "GET", "attachments", expect=200)).json == {"attachments": [attachment]}
    gate.open()
    await call(office, "DELETE", f"allocations/{made['id']}")
    await office.front.allocation(made["id"], lambda one: one["state"] == "ended")
    await eventually(lambda: not office.extension.attachments.of(made["id"]))
    assert (await call(office, "GET", "attachments", expect=200)).json == {"attachments": []}
    over = await call(office, "POST", path, {"path": "mine.ipynb"}, expect=409)
    assert (over.json["error"], "is ended" in over.json["message"]) == ("conflict", True)


# --- bad input


BAD_BODIES = [
    b"",
    b" \n",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"{}}",
    b"\xff\xfe{}",
    b'{"name": "\xff"}',
    b'{"name": "\\ud800"}',
    b"\x00",
    b'{"gpus": 0}',
    b'{"gpus": -1}',
    b'{"gpus": 1025}',
    b'{"gpus": 1.5}',
    b'{"gpus": "2"}',
    b'{"gpus": true}',
    b'{"gpus": null}',
    b'{"gpus": 1e400}',
    b'{"gpus": ' + b"9" * 10_000 + b"}",
    b'{"memory": -1}',
    b'{"memory": "much"}',
    b'{"memory": 1e99}',
    b'{"memory": "' + b"9" * 10_000 + b'GiB"}',
    b'{"memory": [1, 2]}',
    b'{"memory": []}',
    b'{"memory": {}}',
    b'{"memory": "1ZiB"}',
    b'{"memory": ' + b"[" * 100_000 + b"}",
    b'{"name": ""}',
    b'{"name": "-x"}',
    b'{"name": "a/b"}',
    b'{"name": "\xc3\xbc"}',
    b'{"name": "%s"}' % (b"x" * 64),
    b'{"time": 0}',
    b'{"time": -1}',
    b'{"time": "soon"}',
    b'{"time": NaN}',
    b'{"time": Infinity}',
    b'{"time": true}',
    b'{"wait": "-1s"}',
    b'{"wait": []}',
    b'{"shared": "yes"}',
    b'{"labels": []}',
    b'{"labels": {"a": 1}}',
    b'{"labels": null}',
    b'{"image": 1}',
    b'{"node": ["n1"]}',
    b'{"share_card": 1}',
    b'{"cpus": 0}',
    b'{"cpus": -1}',
    b'{"cpus": 4097}',
    b'{"cpus": "8"}',
    b'{"cpus": true}',
    b'{"cpus": NaN}',
    b'{"cpus": [1]}',
    b'{"ram": 0}',
    b'{"ram": 1048576}',
    b'{"ram": "1MiB"}',
    b'{"ram": "64"}',
    b'{"ram": 1.5}',
    b'{"ram": true}',
    b'{"ram": ["8GiB"]}',
    b'{"gpu": 1}',
    b'{"\x00": 1}',
]


@pytest.mark.parametrize("path", ["allocations", "explain"])
async def test_bad_requests(office: Office, path: str) -> None:
    for body in BAD_BODIES:
        answer = await call(office, "POST", path, data=body)
        assert (answer.status, answer.json["error"]) == (400, "invalid-value"), (body[:100], answer)
        assert answer.json["message"]
        assert len(answer.text) < 25_000
    assert (await call(office, "GET", "allocations?ended=1")).json == {"allocations": []}


async def test_bad_attach_bodies(office: Office) -> None:
    made = await running(office)
    for body in (
        b"",
        b"{}",
        b"[]",
        b'{"path": 1}',
        b'{"session": "a", "path": "b"}',
        b'{"kernel": "a"}',
        b'{"path": null}',
    ):
        answer = await call(office, "POST", f"allocations/{made['id']}/attach", data=body)
        assert (answer.status, answer.json["error"]) == (400, "invalid-value"), (body, answer)
    for body in ({"path": "a\x00b"}, {"path": ""}, {"session": "' OR 1=1 --"}, {"session": "x" * 100_000}):
        answer = await call(office, "POST", f"allocations/{made['id']}/attach", body)
        assert (answer.status, answer.json["error"]) in ((404, "not-found"), (409, "conflict")), (body, answer)


async def test_a_huge_body(office: Office) -> None:
    for path in ("allocations", "explain"):
        answer = await call(office, "POST", path, data=io.BytesIO(b'{"image": "' + b"x" * (8 << 20) + b'"}'))
        assert (answer.status, answer.json["error"]) == (413, "request-entity-too-large"), answer
    made = await running(office)
    await call(office, "POST", f"allocations/{made['id']}/attach", data=io.BytesIO(b" " * (2 << 20)), expect=413)


BAD_QUERIES = [
    "allocations/{id}?after=x",
    "allocations/{id}?after=-1",
    "allocations/{id}?after=nan",
    "allocations/{id}?after=1.5",
    "allocations/{id}?after=1&wait=x",
    "allocations/{id}?after=1&wait=-1",
    "allocations/{id}?wait=nan",
    "allocations/{id}?after=",
    "allocations/{id}/logs?tail=-1",
    "allocations/{id}/logs?tail=x",
    "allocations/{id}/logs?tail=0.5",
    "allocations/{id}/logs?tail=",
    "allocations/{id}/logs?after=&tail=x",
    "allocations/{id}/logs?after=" + "9" * 513,
    "allocations/{id}/logs?wait=-1",
    "allocations?ended=perhaps",
    "allocations?ended=",
    "allocations?ended=%00",
    "allocations/{id}?after=%FF",
    "allocations?ended=%FF",
]


async def test_bad_queries(office: Office) -> None:
    made = await running(office)
    for query in BAD_QUERIES:
        answer = await call(office, "GET", query.format(id=made["id"]))
        assert answer.status == 400, (query, answer)
        assert answer.json["message"]


async def test_odd_but_good_queries(office: Office) -> None:
    made = await running(office)
    for query in ("?after=1e308", "?after=Infinity&wait=0", "?wait=3", "?after=0&wait=1e308", "?unknown=1"):
        assert (await call(office, "GET", f"allocations/{made['id']}{query}", expect=200)).seconds < 5
    assert (await call(office, "GET", f"allocations/{made['id']}/logs?tail=0", expect=200)).json["logs"] == ""
    assert (await call(office, "GET", f"allocations/{made['id']}/logs?tail=1e300", expect=200)).json["logs"]


@pytest.mark.parametrize(
    "name", ["nobody", "..", "%00", "a%2Fb", "%F0%9F%92%A9", "x" * 5000, "%5B%5D", "'--", "%25s%25d"]
)
async def test_what_is_not_there(office: Office, name: str) -> None:
    for method, path in operations():
        if "{" in path:
            where = re.sub(r"\{\w+\}", name, path.lstrip("/"))
            # The client's own normalisation must not eat the dots.
            answer = await office.front.gpufit(
                method, where.replace("..", "%2E%2E"), {"path": "a"} if method == "POST" else None
            )
            assert (answer.status, answer.json["error"]) == (404, "not-found"), (method, where, answer)


async def test_not_utf8_in_a_path(office: Office) -> None:
    for method, path in operations():
        if "{" in path:
            answer = await office.front.gpufit(method, re.sub(r"\{\w+\}", "%FF", path.lstrip("/")), {})
            assert answer.status == 400, answer
            assert set(answer.json) == {"error", "message", "details"}


async def test_wrong_methods(office: Office) -> None:
    for path in document()["paths"]:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            if (method, path) not in operations():
                answer = await office.front.gpufit(method, re.sub(r"\{\w+\}", "x", path.lstrip("/")), {})
                assert (answer.status, answer.json["error"]) == (405, "method-not-allowed"), (method, path, answer)
                assert set(answer.headers["Allow"].split(", ")) == {verb for verb, at in operations() if at == path}


async def test_other_paths(office: Office) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "GET"):
        for path in ("", "nothing", "nodes/", "nodes/n1/gpus", "allocations/x/y/z", "allocations//", "openapiXyaml"):
            answer = await office.front.gpufit(method, path, {})
            assert (answer.status, answer.json["error"]) == (404, "not-found"), (method, path, answer)


async def test_a_bug_is_a_500_without_its_insides(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret insides")

    monkeypatch.setattr(office.parts.scheduler, "nodes", broken)
    answer = await call(office, "GET", "nodes", expect=500)
    assert answer.json == {"error": "internal-server-error", "message": "Internal Server Error", "details": {}}


async def test_many_at_once(office: Office) -> None:
    answers = await asyncio.gather(*(office.front.gpufit("POST", "allocations", {"gpus": 1}) for _ in range(40)))
    assert sorted(answer.status for answer in answers) == [202] * 6 + [409] * 34
    held = [uuid for answer in answers if answer.status == 202 for uuid in answer.json["gpus"]]
    assert len(set(held)) == 6
    await asyncio.gather(*(office.front.release(answer.json["id"]) for answer in answers if answer.status == 202))
    await eventually(lambda: not any(engine.containers for engine in office.parts.engines.values()))


# --- the doctor


async def test_a_node_is_looked_at_while_others_wait_for_the_findings(office: Office) -> None:
    assert "has not been looked at" in (await call(office, "GET", "nodes/n1/doctor", expect=404)).json["message"]
    office.parts.examined.clear()
    begun = await call(office, "POST", "nodes/n1/doctor", {"deep": True}, expect=202)
    assert begun.json == {"node": "n1", "deep": True, "done": False, "checks": []}
    joined = await call(office, "POST", "nodes/n1/doctor", {}, expect=202)
    assert joined.json["deep"], "the same one"
    waiting = asyncio.create_task(call(office, "GET", "nodes/n1/doctor?after=0&wait=4", expect=200))
    nothing = await call(office, "GET", "nodes/n1/doctor?wait=0.05", expect=200)
    assert nothing.json["checks"] == []
    office.parts.examined.set()
    assert (await waiting).json["checks"][0]["check"] == "reporter"
    done = await call(office, "GET", "nodes/n1/doctor?after=5&wait=4", expect=200)
    assert done.json["done"]
    assert done.json["checks"][1] == {
        "check": "engine",
        "verdict": "wrong",
        "message": "it does not",
        "fix": "sudo reboot",
    }


async def test_a_deep_look_does_not_join_a_shallow_one_and_none_outlives_the_server(office: Office) -> None:
    office.parts.examined.clear()
    await call(office, "POST", "nodes/n1/doctor", {}, expect=202)
    refused = await call(office, "POST", "nodes/n1/doctor", {"deep": True}, expect=409)
    assert "without `deep` just now" in refused.json["message"]
    await call(office, "POST", "nodes/n2/doctor", {"deep": True}, expect=202)
    await call(office, "POST", "nodes/n3/doctor", {}, expect=404)
    await office.extension.stop_extension()
    assert not [task for task in asyncio.all_tasks() if "gpufit doctor" in task.get_name()]


async def test_a_look_that_fails_is_over(office: Office) -> None:
    async def fails(*_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    office.extension.rounds._examine = fails
    await call(office, "POST", "nodes/n1/doctor", {}, expect=202)
    over = await call(office, "GET", "nodes/n1/doctor?wait=4", expect=200)
    assert over.json == {"node": "n1", "deep": False, "done": True, "checks": []}

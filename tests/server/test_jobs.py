"""Jobs, their logs, what they used, and files, by REST, on make-believe parts: against openapi.yaml."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from helpers.fakes import GIB, node

from jupyter_gpufit.errors import InvalidValue, Unavailable
from jupyter_gpufit.models import StoredModel
from jupyter_gpufit.server import handlers

from .test_rest import call, running

if TYPE_CHECKING:
    from .conftest import Office

SECRET = "hunter2"


async def submit(office: Office, sweep: dict[str, list[str]] | None = None, **wishes: Any) -> list[dict[str, Any]]:
    job = {"run": "fit.py", **wishes.pop("job", {})}
    body = {"request": {"folder": "work", "job": job, **wishes}, **({} if sweep is None else {"sweep": sweep})}
    made: list[dict[str, Any]] = (await call(office, "POST", "jobs", body, expect=202)).json["allocations"]
    return made


async def runs(office: Office, name: str) -> dict[str, Any]:
    return await office.front.allocation(name, lambda one: one["state"] == "running")


def unit_of(office: Office, name: str) -> tuple[Any, str]:
    unit = office.parts.scheduler.get(name).unit
    assert unit is not None
    return office.parts.engines[unit.node], unit.id


async def test_from_submission_to_its_end(office: Office) -> None:
    job = {"args": ["--lr", "1"], "env": {"KEY": SECRET}, "retries": 2}
    async with office.front.events() as events:
        [made] = await submit(office, name="fit", gpus=2, memory="1GiB", job=job)
        told = {"kind": "script", "run": "fit.py", "args": ["--lr", "1"], "env": ["KEY"], "retries": 2}
        assert made["job"] == told | {"launcher": None, "sweep": {}, "turn": 0}
        up = await runs(office, "fit")
        assert (up["kernel_id"], up["attempt"]) == (None, 1)
        assert up["started"]
        root = Path(office.here.app.root_dir)
        assert office.parts.jobs.kept[made["id"]].folder == str(root / "work")
        assert office.parts.jobs.started[0].request.job.env == {"KEY": SECRET}, "the program itself has it"
        refused = await call(office, "POST", "allocations/fit/attach", {"path": "a.ipynb"}, expect=409)
        assert refused.json["message"].startswith("'fit' is a job, and has no kernel to attach to")
        engine, unit = unit_of(office, "fit")
        engine.crash(unit, code=0, logs="done\n")
        over = await office.front.allocation("fit", lambda one: one["state"] == "ended")
        assert (over["reason"], over["exit_code"], over["outputs"]) == ("finished", 0, "/home/me/outputs/fit")
        seen = [event for event in events.of("allocation/v1") if event["name"] == "fit"]
        assert seen[-1]["exit_code"] == 0
    said = [
        over,
        *seen,
        (await call(office, "GET", "allocations?ended=1")).json,
        (await call(office, "GET", "about")).json,
    ]
    assert SECRET not in json.dumps(said)


async def test_a_log_is_followed_by_its_marks(office: Office) -> None:
    await submit(office, name="fit")
    await runs(office, "fit")
    first = (await call(office, "GET", "allocations/fit/logs?tail=1", expect=200)).json
    assert (first["logs"], first["over"]) == ("kernel started\n", False)
    path = f"allocations/fit/logs?after={first['mark']}"
    nothing = (await call(office, "GET", path, expect=200)).json
    assert nothing == {"logs": "", "mark": first["mark"], "over": False}
    engine, unit = unit_of(office, "fit")
    waiting = asyncio.create_task(call(office, "GET", f"{path}&wait=4", expect=200))
    await asyncio.sleep(0.05)
    engine.containers[unit].logs += "epoch 1\n"
    more = (await waiting).json
    assert (more["logs"], more["over"]) == ("epoch 1\n", False)
    ending = asyncio.create_task(call(office, "GET", f"allocations/fit/logs?after={more['mark']}&wait=4", expect=200))
    await asyncio.sleep(0.05)
    engine.crash(unit, code=3, logs="no\n")
    found, log = "", (await ending).json
    while True:  # the last words, and then the end
        found += log["logs"]
        if log["over"]:
            break
        log = (await call(office, "GET", f"allocations/fit/logs?after={log['mark']}&wait=4", expect=200)).json
    assert found == "no\n"
    whole = (await call(office, "GET", "allocations/fit/logs?after=", expect=200)).json
    assert (whole["logs"], whole["over"]) == ("kernel started\nepoch 1\nno\n", True)
    for mark in ("x", "%00", "zzzz", "000000/", "9" * 500, "%2F%2F"):
        assert (await call(office, "GET", f"allocations/fit/logs?after={mark}&wait=0.01")).status in (200, 400)


async def test_a_sweep_is_all_or_nothing(office: Office) -> None:
    made = await submit(office, {"lr": ["1", "2"], "n": ["3"]}, name="s")
    assert [(one["name"], one["job"]["sweep"]) for one in made] == [
        ("s-1", {"lr": "1", "n": "3"}),
        ("s-2", {"lr": "2", "n": "3"}),
    ]
    body = {"request": {"name": "s", "job": {"run": "fit.py"}}, "sweep": {"lr": ["1", "2"]}}
    assert (await call(office, "POST", "jobs", body)).status == 409
    assert len((await call(office, "GET", "allocations")).json["allocations"]) == 2


@pytest.mark.parametrize("refused", [False, True])
async def test_a_folder_that_takes_longer_to_copy_than_an_answer_may(
    office: Office, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    monkeypatch.setattr(handlers, "_LONGEST_WAIT", 0.05)
    script = office.parts.script
    gate = script.hold("job:check")
    if refused:
        script.fail("job:check", InvalidValue("the link data leads out of work"))
    body = {"request": {"folder": "work", "name": "fit", "job": {"run": "fit.py"}}}
    begun = (await call(office, "POST", "jobs", body, expect=202)).json
    path = f"submissions/{begun['submission']}"
    assert begun["allocations"] == []
    assert (await call(office, "GET", f"{path}?wait=0", expect=202)).json == begun
    monkeypatch.setattr(handlers, "_LONGEST_WAIT", 4.0)
    asking = asyncio.create_task(call(office, "GET", f"{path}?wait=4"))
    gate.open()
    answer = await asking
    if refused:
        assert (answer.status, answer.json["message"]) == (400, "the link data leads out of work")
        assert (await call(office, "GET", "allocations")).json == {"allocations": []}
    else:
        assert (answer.status, answer.json["submission"]) == (202, None)
        assert [one["name"] for one in answer.json["allocations"]] == ["fit"]
        await runs(office, "fit")
    await call(office, "GET", "submissions/nobody", expect=404)


async def test_a_server_that_stops_does_not_wait_for_a_folder(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_LONGEST_WAIT", 0.05)
    office.parts.script.hold("job:check")
    submissions = office.extension.submissions
    body = {"request": {"job": {"run": "fit.py"}}}
    begun = (await call(office, "POST", "jobs", body, expect=202)).json["submission"]
    await office.extension.stop_extension()
    with pytest.raises(Unavailable, match="nothing was asked for"):
        await submissions.result(begun, 0)
    await call(office, "GET", f"submissions/{begun}", expect=503)


async def test_what_it_used_and_models(office: Office) -> None:
    await submit(office, name="fit")
    await runs(office, "fit")
    usage = (await call(office, "GET", "allocations/fit/usage", expect=200)).json
    assert len(usage["gpus"]) == 1
    await call(office, "GET", "allocations/nobody/usage", expect=404)
    store = (StoredModel(name="llama-7b", size=13 * GIB, modified=1e9), StoredModel(name="gemma"))
    office.parts.cluster.put(msgspec.structs.replace(node("n1"), models=store, model_store=True))
    shown = (await call(office, "GET", "nodes/n1", expect=200)).json["models"]
    assert [(one["name"], one["size"]) for one in shown] == [("llama-7b", 13 * GIB), ("gemma", None)]
    refused = await call(office, "POST", "allocations", {"model": "lama-7b"}, expect=400)
    assert "llama-7b" in refused.json["message"]


async def test_files(office: Office) -> None:
    await running(office, name="side")
    root = Path(office.here.app.root_dir)
    for do in ("upload", "download"):
        body = {"do": do, "folder": "work/deep/..", "paths": ["a", "b/"]}
        begun = (await call(office, "POST", "allocations/side/files", body, expect=202)).json
        assert (begun["done"], begun["total"]) == (False, 3)
        now = (await call(office, "GET", f"transfers/{begun['id']}?after=0&wait=4", expect=200)).json
        assert (now["current"], now["done"]) == (1, False)
        ended = (await call(office, "DELETE", f"transfers/{begun['id']}", expect=200)).json
        assert ended["done"]
        assert office.parts.transfers.begun[-1] == ("side", do, str(root / "work"), ["a", "b/"])
    await call(office, "GET", "transfers/nobody", expect=404)
    await call(office, "DELETE", "transfers/nobody", expect=404)
    out = {"do": "upload", "folder": ".", "paths": ["../x"]}
    assert "leads out" in (await call(office, "POST", "allocations/side/files", out, expect=400)).json["message"]


async def test_a_folder_is_absolute_or_below_the_root(office: Office) -> None:
    await running(office, name="x")
    for folder in ("..", "a/../../b", "a\0b"):
        for path, body in (
            ("allocations", {"folder": folder}),
            ("explain", {"folder": folder}),
            ("jobs", {"request": {"folder": folder, "job": {"run": "fit.py"}}}),
            ("allocations/x/files", {"do": "upload", "folder": folder, "paths": ["a"]}),
        ):
            answer = await call(office, "POST", path, body, expect=400)
            assert "folder" in answer.json["message"]
    made = await running(office, folder="")
    assert made["request"]["folder"] == str(Path(office.here.app.root_dir))
    assert (await running(office, folder="/tmp/x/../y"))["request"]["folder"] == "/tmp/y"


BAD_BODIES = [
    b"",
    b"[]",
    b"{}",
    b'{"request": null}',
    b'{"request": {}}',
    b'{"request": {"job": null}}',
    b'{"request": {"job": {}}}',
    b'{"request": {"job": {"run": 1}}}',
    b'{"request": {"job": {"run": " "}}}',
    b'{"request": {"job": {"run": "fit.py", "args": "x"}}}',
    b'{"request": {"job": {"run": "fit.py", "env": {"a b": "hunter2"}}}}',
    b'{"request": {"job": {"run": "fit.py", "env": {"A": 1}}}}',
    b'{"request": {"job": {"run": "fit.py", "env": ["A=hunter2"]}}}',
    b'{"request": {"job": {"run": "fit.py", "env": {"A": "hunter2\\u0000"}}}}',
    b'{"request": {"job": {"run": "fit.py", "retries": -1}}}',
    b'{"request": {"job": {"run": "fit.py", "launcher": "mpi"}}}',
    b'{"request": {"job": {"run": "true", "launcher": "torchrun"}}}',
    b'{"request": {"job": {"run": "a.ipynb", "args": ["x"]}}}',
    b'{"request": {"job": {"run": "fit.py"}, "require_model": true}}',
    b'{"request": {"job": {"run": "fit.py"}, "gpus": 0}}',
    b'{"request": {"job": {"run": "fit.py"}}, "sweep": {"lr": []}}',
    b'{"request": {"job": {"run": "fit.py"}}, "sweep": {"l r": ["1"]}}',
    b'{"request": {"job": {"run": "fit.py"}}, "sweep": {"lr": "1"}}',
    b'{"request": {"job": {"run": "fit.py"}}, "sweep": {"lr": [' + b'"1",' * 300 + b'"1"]}}',
    b'{"request": {"job": ' + b"[" * 100_000 + b"}}",
    b'{"request": {"job": {"run": "fit.py"}}, "more": 1}',
]


async def test_bad_submissions(office: Office) -> None:
    for body in BAD_BODIES:
        answer = await call(office, "POST", "jobs", data=body)
        assert (answer.status, answer.json["error"]) == (400, "invalid-value"), (body[:100], answer)
        assert answer.json["message"]
        assert SECRET not in answer.text
    assert (await call(office, "GET", "allocations?ended=1")).json == {"allocations": []}
    await running(office, name="x")
    for body in ({"do": "copy", "folder": ".", "paths": ["a"]}, {"do": "upload", "folder": "."}, {"paths": []}, []):
        answer = await call(office, "POST", "allocations/x/files", body)
        assert (answer.status, answer.json["error"]) == (400, "invalid-value"), (body, answer)
    asked = await call(office, "POST", "allocations", {"job": {"run": "fit.py"}}, expect=400)
    assert "POST jobs" in asked.json["message"]
    assert office.parts.jobs.kept == {}


@pytest.mark.parametrize("error", ["never-fits", "conflict"])
async def test_nothing_is_left_of_what_was_refused(office: Office, error: str) -> None:
    if error == "conflict":
        await submit(office, name="fit")
    answer = await call(
        office,
        "POST",
        "jobs",
        {"request": {"job": {"run": "x"}, "name": "fit", "gpus": 1 if error == "conflict" else 9}},
    )
    assert answer.json["error"] == error
    assert len(office.parts.jobs.kept) == (error == "conflict")

"""The extension's life in a server: before it starts, when it cannot start, when it stops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from helpers.contract import check
from helpers.frontend import eventually
from helpers.jupyterserver import server_here
from helpers.office import MakeOffice, Office, extension_of

from jupyter_gpufit.errors import StoreError
from jupyter_gpufit.kernels import leases
from jupyter_gpufit.models import State
from jupyter_gpufit.server import extension as extension_module
from jupyter_gpufit.server.handlers import routes


async def test_before_it_starts(make_office: MakeOffice) -> None:
    async with make_office(start=False) as office:
        for method, path in (("GET", "nodes"), ("POST", "allocations"), ("GET", "allocations/x"), ("POST", "explain")):
            answer = await office.front.gpufit(method, path, {} if method == "POST" else None, expect=503)
            check(method, path, 503, "application/json", answer.json)
            assert answer.json["error"] == "unavailable"
            assert "not started yet" in answer.json["message"]
        assert (await office.front.gpufit("GET", "openapi.yaml")).status == 200
        assert leases.current() is None
    # Leaving has stopped an extension that never started.
    assert not office.parts.closed


async def test_it_starts_and_stops_with_the_server(make_office: MakeOffice) -> None:
    async with make_office() as office:
        assert leases.current() is office.parts
        assert office.parts.opened["owner"] == "ada"
        made = await office.front.request(gpus=1)
        assert office.extension.current_activity() == [made["id"]]
        scheduler = office.parts.scheduler
    assert office.parts.closed
    assert leases.current() is None
    assert scheduler.get(made["id"]).state is State.ENDED
    assert not office.parts.engines["n1"].containers


async def test_starting_and_stopping_twice(office: Office) -> None:
    parts = office.parts
    await office.extension._start_jupyter_server_extension(office.here.app)
    assert leases.current() is parts, "nothing was opened a second time"
    await office.extension.stop_extension()
    answer = await office.front.gpufit("GET", "nodes", expect=503)
    assert "stopping" in answer.json["message"]
    await office.extension.stop_extension()
    await office.extension._start_jupyter_server_extension(office.here.app)
    assert (await office.front.gpufit("GET", "nodes")).status == 200


async def test_it_cannot_start(make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_office(start=False) as office:

        async def fail(*_: Any, **__: Any) -> None:
            raise StoreError("/x/gpufit.sqlite is damaged; move it away")

        said: list[str] = []
        monkeypatch.setattr(office.extension.log, "error", said.append)
        monkeypatch.setattr(extension_module, "open_service", fail)
        await office.here.app.extension_manager.start_all_extensions()
        answer = await office.front.gpufit("GET", "nodes", expect=503)
        assert answer.json["message"] == "gpufit did not start: /x/gpufit.sqlite is damaged; move it away"
        assert (await office.front.api("GET", "api/kernels")).status == 200, "the server goes on without us"
        assert said == [answer.json["message"]], "one line for the log, no traceback"


async def test_a_bug_at_the_start(make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_office(start=False) as office:

        async def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("oh")

        monkeypatch.setattr(extension_module, "open_service", fail)
        await office.here.app.extension_manager.start_all_extensions()
        answer = await office.front.gpufit("GET", "nodes", expect=503)
        assert "RuntimeError: oh" in answer.json["message"]
        assert (await office.front.api("GET", "api/kernels")).status == 200


async def test_a_bug_once_the_service_is_open(make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_office(start=False) as office:

        def fail(_: Any) -> None:
            raise RuntimeError("oh")

        monkeypatch.setattr(extension_module.Sessions, "watch", fail)
        await office.here.app.extension_manager.start_all_extensions()
        answer = await office.front.gpufit("GET", "nodes", expect=503)
        assert "RuntimeError: oh" in answer.json["message"]
        assert office.parts.closed, "nobody else would close it"
        assert leases.current() is None
        assert (await office.front.api("GET", "api/kernels")).status == 200


async def test_a_stop_goes_through_all_its_steps(make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_office() as office:

        async def fail(_: Any) -> None:
            raise RuntimeError("oh")

        monkeypatch.setattr(extension_module.Sessions, "close", fail)
        with pytest.raises(RuntimeError, match="oh"):
            await office.extension.stop_extension()
        assert office.parts.closed
        assert leases.current() is None


async def test_a_second_signal_waits_for_the_first(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else that second stop would shut down the kernels which the first has not let go of yet (`on_stop=keep`)."""
    service = office.extension._service
    assert service is not None
    close, closing, go_on = service.close, asyncio.Event(), asyncio.Event()

    async def slow(keep: bool = False) -> None:
        closing.set()
        await go_on.wait()
        await close(keep)

    monkeypatch.setattr(service, "close", slow)
    first = asyncio.create_task(office.extension.stop_extension())
    await closing.wait()
    second = asyncio.create_task(office.extension.stop_extension())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not second.done()
    go_on.set()
    await asyncio.gather(first, second)


async def test_stopped_while_it_starts(make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_office(start=False) as office:
        began = asyncio.Event()

        async def hang(*_: Any, **__: Any) -> None:
            began.set()
            await asyncio.sleep(1000)

        monkeypatch.setattr(extension_module, "open_service", hang)
        starting = asyncio.create_task(office.here.app.extension_manager.start_all_extensions())
        await began.wait()
        assert "not started yet" in (await office.front.gpufit("GET", "nodes", expect=503)).json["message"]
        await office.extension.stop_extension()
        await asyncio.wait_for(starting, 10)


async def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_office: MakeOffice) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "grace")
    async with make_office({"GpufitExtension": {}}) as office:
        assert office.extension.owner == "grace"
        assert office.parts.opened["owner"] == "grace"
        assert office.parts.opened["store"] == tmp_path / "data" / "gpufit"
        assert office.parts.opened["inventory"] is None


async def test_paths_of_people(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_office: MakeOffice) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with make_office({"GpufitExtension": {"inventory": "~/lab.toml", "store": "~/store"}}) as office:
        assert office.parts.opened["inventory"] == tmp_path / "lab.toml"
        assert office.parts.opened["store"] == tmp_path / "store"


async def test_two_servers_in_one_process_one_after_the_other(make_office: MakeOffice) -> None:
    for _ in range(2):
        async with make_office() as office:
            assert (await office.front.gpufit("GET", "nodes")).status == 200
            assert len(extension_of(office.here).handlers) == len(routes())


async def test_an_inventory_that_is_wrong_is_said_and_not_fatal(tmp_path: Path) -> None:
    inventory = tmp_path / "gpufit.toml"
    inventory.write_text("[[node]]\nnome = 1\n")
    config = {"GpufitExtension": {"inventory": str(inventory)}}
    async with server_here(tmp_path, config, extension=True) as here, here.front() as front:
        answer = await front.gpufit("GET", "nodes", expect=200)
        assert answer.json["nodes"] == []
        assert "gpufit.toml" in answer.json["inventory_error"]
        inventory.write_text('[[node]]\nname = "n"\nreport = "simulated:1xT4-16GB"\ndocker = "process"\n')

        async def taken_up() -> bool:
            answer = (await front.gpufit("GET", "nodes")).json
            return answer["inventory_error"] is None and [one["name"] for one in answer["nodes"]] == ["n"]

        await eventually(taken_up)

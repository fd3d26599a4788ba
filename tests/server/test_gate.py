"""Who asks for kernels and sessions before those of the server before are there waits; nobody else does."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from helpers.office import MakeOffice

from jupyter_gpufit.server import gate


async def test_kernels_and_sessions_wait_until_the_extension_has_started(make_office: MakeOffice) -> None:
    async with make_office(start=False) as office:
        front = office.front
        body = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        held = [
            asyncio.create_task(front.api(*call))  # type: ignore[arg-type]
            for call in (
                ("GET", "api/kernels"),
                ("GET", "api/sessions?x=1"),
                ("GET", "api/kernels/nobody"),
                ("POST", "api/sessions", body),
            )
        ]
        socket = asyncio.create_task(front._client.ws_connect(front.url + "api/kernels/nobody/channels"))
        for path in ("api", "api/kernelspecs", "api/contents", "api/status"):
            assert (await front.api("GET", path)).status == 200, path
        assert not any(task.done() for task in (*held, socket))

        await office.here.app.extension_manager.start_all_extensions()
        kernels, sessions, nobody, made = await asyncio.gather(*held)
        assert [answer.status for answer in (kernels, sessions, nobody, made)] == [200, 200, 404, 201]
        assert made.json["path"] == "a.ipynb", "with its body"
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await socket
        assert (await front.api("GET", "api/sessions", expect=200)).json != []


async def test_nobody_is_locked_out_if_it_is_never_opened(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_LONGEST", 0.2)
    async with make_office(start=False) as office:
        assert (await office.front.api("GET", "api/kernels", expect=200)).json == []


async def test_who_goes_away_while_waiting_leaves_nothing_behind(make_office: MakeOffice) -> None:
    async with make_office(start=False) as office:
        waiting = asyncio.create_task(office.front.api("GET", "api/kernels"))
        await office.front.api("GET", "api", expect=200)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await office.here.app.extension_manager.start_all_extensions()
        assert (await office.front.api("GET", "api/kernels", expect=200)).json == []

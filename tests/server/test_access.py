"""Who may ask."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.contract import operations
from helpers.frontend import FrontEnd
from helpers.office import MakeOffice, Office
from jupyter_server.auth.authorizer import Authorizer

PATHS = [(method, re.sub(r"\{\w+\}", "x", path.lstrip("/"))) for method, path in sorted(operations())]
ERROR = {"error", "message", "details"}


class NoGpus(Authorizer):
    """Everything is allowed, but GPUs."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        self.asked.append((action, resource))
        return resource != "gpufit"


class LookOnly(Authorizer):
    """One may look, and touch nothing."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return resource != "gpufit" or action == "read"


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_the_token(office: Office, token: str) -> None:
    async with FrontEnd(office.here.url, token) as stranger:
        for method, path in [*PATHS, ("GET", "nothing"), ("POST", "nothing")]:
            answer = await stranger.gpufit(method, path, {"gpus": 1})
            assert (answer.status, answer.json["error"]) == (403, "forbidden"), (method, path, answer)
            assert set(answer.json) == ERROR
    assert office.parts.scheduler.allocations() == []


async def test_not_authorised(make_office: MakeOffice) -> None:
    NoGpus.asked.clear()
    async with make_office({"ServerApp": {"authorizer_class": NoGpus}}) as office:
        assert (await office.front.api("GET", "api/kernels")).status == 200
        NoGpus.asked.clear()
        for method, path in [*PATHS, ("GET", "nothing"), ("POST", "nothing"), ("DELETE", "nothing")]:
            answer = await office.front.gpufit(method, path, {"gpus": 1})
            assert (answer.status, answer.json["error"]) == (403, "forbidden"), (method, path, answer)
            action = {"GET": "read"}.get(method, "write")
            assert NoGpus.asked.pop() == (action, "gpufit"), (method, path)
        assert office.parts.scheduler.allocations() == []


async def test_who_may_only_look(make_office: MakeOffice) -> None:
    async with make_office({"ServerApp": {"authorizer_class": LookOnly}}) as office:
        for method, path in PATHS:
            answer = await office.front.gpufit(method, path, {"gpus": 1})
            assert (answer.status == 403) == (method != "GET"), (method, path, answer)


async def test_another_sites_page_cannot_ask(office: Office) -> None:
    """With the browser's cookies, but without the token: tornado's own protection has to hold for us, too."""
    answer = await office.front.api(
        "POST", "gpufit/api/v1/allocations", {"gpus": 1}, headers={"Authorization": "", "Origin": "http://evil.example"}
    )
    assert answer.status in (403, 404)
    assert office.parts.scheduler.allocations() == []


async def test_no_secret_is_logged(make_office: MakeOffice, caplog: pytest.LogCaptureFixture) -> None:
    async with make_office() as office:
        made = await office.front.request(gpus=1)
        await office.front.api("GET", f"gpufit/api/v1/nodes?token={office.here.token}", expect=200)
        await office.front.gpufit("POST", "allocations", {"gpus": 99})
        await office.front.gpufit("POST", f"allocations/{made['id']}/attach", {"path": "a.ipynb"})
        async with office.front.events():
            await office.front.release(made["id"])
        token = office.here.token
    ours = [record.getMessage() for record in caplog.records if token in record.getMessage()]
    assert ours == []

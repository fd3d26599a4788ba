"""Schemathesis on `openapi.yaml`: what it allows is taken, what it forbids is refused, all answers are as it says.

Beside `test_fuzz.py`: there a hand-made mess, without a look at the description; here what the description leads to,
call by call and from answer to answer along its links.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from copy import deepcopy
from http.cookiejar import DefaultCookiePolicy
from types import FunctionType
from typing import Any

import pytest
import requests
import schemathesis
from helpers.contract import check, document, operations
from helpers.fakes import node
from helpers.fuzzing import effort
from helpers.lab import eventually
from helpers.office import Office
from hypothesis import given, note
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.openapi import from_dict

# Each with why it is not asked for.
OFF = {
    "use_after_free": "an allocation that was released is remembered, and says why it ended",
    "ensure_resource_availability": "likewise: one that ended may be forgotten at any time",
    "positive_data_acceptance": "what a cluster cannot give, and names that are not there: `accepted` knows which",
}
SETTINGS: dict[str, Any] = {
    "checks": {name: {"enabled": False} for name in OFF},
    "phases": {"stateful": {"inference": {"algorithms": []}}},  # the description says itself what leads where
}
MODES = tuple(GenerationMode)
KNOWN = {"id": "fuzz", "name": "n1"}


@pytest.fixture(autouse=True, scope="module")
def _hypothesis_as_it_was() -> Iterator[None]:
    """Schemathesis replaces functions, classes and constants of hypothesis: no more, for the tests after these."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "hypothesis"]
    before = {
        (module, name): value
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() or isinstance(value, type | FunctionType)
    }
    yield
    for (module, name), value in before.items():
        if getattr(module, name, value) is not value:
            setattr(module, name, value)


def description() -> schemathesis.BaseSchema:
    """Without authentication: that is Jupyter's own (tests/server/test_access.py)."""
    described = {key: value for key, value in deepcopy(document()).items() if key != "security"}
    return from_dict(described, config=schemathesis.Config.from_dict(SETTINGS))


class Caller:
    """Sends cases to the office's server, and looks at the answers."""

    def __init__(self, office: Office) -> None:
        self.url = f"{office.here.url}gpufit/api/v1"
        self.headers = {"Authorization": f"token {office.here.token}"}
        self.session = requests.Session()
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))

    @property
    def options(self) -> dict[str, Any]:
        return {"base_url": self.url, "headers": self.headers, "session": self.session}

    def send(self, case: Case) -> Response:
        prepare(case)
        note(case.as_curl_command())
        response = case.call(**self.options)
        case.validate_response(response)
        judge(case, response)
        return response

    def release(self, response: Response) -> None:
        answer = response.json() if response.status_code == 202 else {}
        for made in answer.get("allocations", [answer] if "owner" in answer else []):
            at = f"{self.url}/allocations/{made['id']}"
            assert self.session.delete(at, headers=self.headers).status_code in (200, 202)


def prepare(case: Case) -> None:
    """A call that would wait for a change does not wait long; and 1.0, which JSON Schema calls an integer, is 1."""
    if isinstance(wait := case.query.get("wait"), int | float) and wait > 0:
        case.query["wait"] = 0.01
    case.body = as_written(case.body)


def as_written(value: Any) -> Any:
    if isinstance(value, list):
        return [as_written(each) for each in value]
    if isinstance(value, dict):
        return {key: as_written(each) for key, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def judge(case: Case, response: Response) -> None:
    """Beside schemathesis' own checks: nothing that the description does not name, and no 5xx but its `unavailable`."""
    content_type = response.headers["content-type"][0]
    body = response.json() if "json" in content_type else response.text
    assert response.status_code < 500, (case, body)
    if (case.method.upper(), case.path) in operations() and response.request.method == case.method.upper():
        path = case.path.strip("/").replace("{", "").replace("}", "")
        check(case.method, path, response.status_code, content_type, body)


def accepted(case: Case, response: Response) -> bool:
    """Whether what the description allows was taken, or refused for what no description can say."""
    if "is not a possible" in response.text:  # a size or a time with a unit, beyond all measure
        return response.status_code == 400
    if response.status_code == 400 and any(said in response.text for said in BEYOND):
        return True
    if case.method.upper() == "POST" and case.path in ("/explain", "/allocations", "/jobs"):
        body = case.body if isinstance(case.body, dict) else {}
        body = body.get("request", {}) if case.path == "/jobs" else body
        sizes = body.get("memory", 0)
        count_differs = isinstance(sizes, list) and len(sizes) != body.get("gpus", 1)
        return response.status_code in (200, 202, 403, 409, 422) or count_differs
    return response.status_code in (200, 202, 404, 409)


BEYOND = (
    "leads out of the server's root directory",
    "a job is asked for by itself",
    "there is no job in the request",
    "a notebook takes no arguments",
    "torchrun starts a Python script",
    "it is a parameter of the sweep already",
    "combinations",
    "in its model store",
    "than a process can have",
    "a character that no path can have",
    "of the machine's memory at least",  # a size with a unit
)
"""What is refused although the description, which cannot say that, allows it."""


@pytest.mark.parametrize("operation", sorted(operations()), ids=" ".join)
async def test_each_operation(office: Office, operation: tuple[str, str]) -> None:
    method, path = operation
    one = description()[path][method]
    await office.front.request(name="fuzz")
    caller = Caller(office)

    @effort(40 if method == "POST" and path != "/jobs" else 15)  # those take longer to think of
    @given(st.one_of(*(one.as_strategy(generation_mode=mode) for mode in MODES)), st.booleans())
    def sends(case: Case, known: bool) -> None:
        if known and method != "DELETE":
            case.path_parameters |= {name: KNOWN[name] for name in case.path_parameters}
        response = caller.send(case)
        assert accepted(case, response) or not is_allowed(case), (case, response.text)
        caller.release(response)

    with caller.session:
        await asyncio.to_thread(sends)


def is_allowed(case: Case) -> bool:
    return case.meta is None or case.meta.generation.mode is GenerationMode.POSITIVE


async def test_from_answer_to_answer(office: Office) -> None:
    """Along the links of the description: an allocation is asked for, looked at, attached, detached, released.

    There is room for all, so that whether one is granted does not depend on how far the release of another has come.
    """
    office.parts.cluster.put(node("large", gpus=32))
    caller, made = Caller(office), []

    class Story(description().as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Case) -> dict[str, Any]:
            return caller.options

        def before_call(self, case: Case) -> None:
            prepare(case)
            if isinstance(case.body, dict) and isinstance(case.body.get("gpus"), int):
                case.body["gpus"] = min(case.body["gpus"], 2)

        def after_call(self, response: Response, case: Case) -> None:
            judge(case, response)
            if response.status_code == 202 and case.path in ("/allocations", "/jobs"):
                made.append(response)

        def teardown(self) -> None:
            while made:
                caller.release(made.pop())
            while caller.session.get(f"{caller.url}/allocations", headers=caller.headers).json()["allocations"]:
                pass

    with caller.session:
        await asyncio.to_thread(Story.run, settings=effort(20, stateful_step_count=8))
    await eventually(lambda: not any(engine.containers for engine in office.parts.engines.values()))

"""REST, under `<base_url>gpufit/api/v1` (see `openapi.yaml`). Handlers are thin: decode, ask the scheduler, encode.

Every answer that is not 2xx is `{"error": code, "message": for people, "details": {…}}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from http.client import responses
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from ..durations import parse_duration
from ..errors import GpufitError, InvalidValue, NodeUnreachable, NotFound
from ..models import Allocation, Node, Request, State, decode

if TYPE_CHECKING:
    from ..kernels.attach import Attachments
    from ..scheduling.api import Scheduler
    from .extension import GpufitExtension

__all__ = ["HANDLERS", "OPENAPI", "routes"]

OPENAPI = Path(__file__).with_name("openapi.yaml")

T = TypeVar("T")

_LONGEST_WAIT = 4.0  # s; with it no answer takes longer than the 5 s that people were promised
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_LARGEST_BODY = 1 << 20  # bytes; requests are some hundred


class AttachTo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST allocations/{id}/attach`: the notebook, by its session's id or its path."""

    session: str | None = None
    path: str | None = None


class ExtendBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST allocations/{id}/extend`: how much more time."""

    time: float | str


class LookInto(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST nodes/{name}/doctor`: whether to start a kernel on one of its GPUs, too."""

    deep: bool = False


class GpufitHandler(APIHandler):
    """What all handlers share: the way to the scheduler, JSON in and out, and one form for errors."""

    auth_resource = "gpufit"

    @property
    def extension(self) -> GpufitExtension:
        extension: GpufitExtension = self.settings["jupyter_gpufit"]
        return extension

    @property
    def scheduler(self) -> Scheduler:
        return self.extension.scheduler

    @property
    def attachments(self) -> Attachments:
        return self.extension.attachments

    def allocation(self, id_or_name: str) -> Allocation:
        """The caller's allocation of that id or name. Raises `NotFound`, also for one of somebody else."""
        return self.scheduler.get(id_or_name, self.extension.owner)

    def node(self, name: str) -> Node:
        """The node of that name. Raises `NotFound`."""
        for node in self.scheduler.nodes():
            if node.name == name:
                return node
        raise NotFound(f"no node is called {name!r}; `GET nodes` lists them")

    def body(self, type: type[T]) -> T:
        """The request's body as `type`. Raises `InvalidValue`."""
        body = self.request.body
        if len(body) > _LARGEST_BODY:
            raise web.HTTPError(413, f"the body has {len(body)} bytes; {_LARGEST_BODY} are allowed")
        if not body.strip():
            raise InvalidValue("the body is empty; send a JSON object (openapi.yaml describes it)")
        return decode(body, type)

    def number(self, name: str, default: float, largest: float) -> float:
        """A query argument as a number from 0 to `largest` (more is cut to it). Raises `InvalidValue`."""
        text = self.get_query_argument(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value >= 0:
            raise InvalidValue(f"{name}={text!r} is not a number of 0 or more")
        return min(value, largest)

    def whole(self, name: str, default: int, largest: int) -> int:
        """Likewise, a whole number."""
        value = self.number(name, default, largest)
        if value != int(value):
            raise InvalidValue(f"{name}={value!r} is not a whole number")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A query argument as a truth value. Raises `InvalidValue`."""
        text = self.get_query_argument(name, "true" if default else "false")
        if text not in _FLAGS:
            raise InvalidValue(f"{name}={text!r} is neither true nor false")
        return _FLAGS[text]

    def reply(self, value: Any, status: int = 200) -> None:
        """Finish with `value` as JSON."""
        self.set_status(status)
        self.finish(msgspec.json.encode(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Called by tornado for whatever a handler raised."""
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, GpufitError):
            self.set_status(error.status)
            answer = {"error": error.code, "message": error.message, "details": error.details}
        else:
            reason = responses.get(status_code, "unknown error")
            message = reason
            if isinstance(error, web.HTTPError) and error.log_message:
                message = error.log_message % error.args if error.args else error.log_message.replace("%%", "%")
            answer = {"error": reason.lower().replace(" ", "-"), "message": str(message), "details": {}}
        if self.get_status() == 405:
            self.set_header("Allow", ", ".join(verb for verb in _VERBS if verb.lower() in vars(type(self))))
        self.set_header("Content-Type", "application/json")
        # `default=str`: an error must never become a second one because of what it carries.
        self.finish(json.dumps(answer, default=str))

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Called by tornado. What a person did wrong is not the server's log's business."""
        if isinstance(value, GpufitError):
            self.log.log(logging.DEBUG, "%s %s: %s", self.request.method, self.request.path, value)
        else:
            super().log_exception(typ, value, tb)


class AboutHandler(GpufitHandler):
    """`GET about`: what a form for requests needs to know."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.reply(self.scheduler.about(self.extension.owner))


class NodesHandler(GpufitHandler):
    """`GET nodes`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.reply({"nodes": self.scheduler.nodes(), "inventory_error": self.extension.inventory_error})


class NodeHandler(GpufitHandler):
    """`GET nodes/{name}`."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        self.reply(self.node(name))


class DoctorHandler(GpufitHandler):
    """`GET|POST nodes/{name}/doctor`: what is right and wrong with a node. It takes longer than an answer may, so it is
    begun by POST, and what has been found by then is asked for by GET."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        wait = self.number("wait", 0.0, _LONGEST_WAIT)
        self.reply(await self.extension.rounds.latest(self.node(name).name, self.whole("after", 0, 2**53), wait))

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        self.reply(self.extension.rounds.begin(self.node(name).name, self.body(LookInto).deep), 202)


class ExplainHandler(GpufitHandler):
    """`POST explain`: a dry run. `…?stages=false` leaves the stages out, which takes a fraction of the time."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        stages = self.flag("stages", default=True)
        decision = self.scheduler.explain(self.body(Request))
        # On a thousand nodes each takes some 20 ms when it is first looked at: others get their turn in between.
        for part in ("never", "nearest", *(("stages",) if stages else ())):
            getattr(decision, part)
            await asyncio.sleep(0)
        self.reply(decision.explain(stages))


class AllocationsHandler(GpufitHandler):
    """`GET|POST allocations`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        ended = self.flag("ended")
        found = self.scheduler.allocations(self.extension.owner, ended=ended)
        self.reply({"allocations": [allocation.public() for allocation in found]})

    @web.authenticated
    @authorized
    async def post(self) -> None:
        allocation = await self.scheduler.request(self.body(Request), self.extension.owner)
        self.set_header("Location", url_path_join(self.request.path, allocation.id))
        self.reply(allocation.public(), 202)


class AllocationHandler(GpufitHandler):
    """`GET|DELETE allocations/{id}`. `GET …?after=VERSION&wait=SECONDS` answers once it has changed since then."""

    @web.authenticated
    @authorized
    async def get(self, id_or_name: str) -> None:
        allocation = self.allocation(id_or_name)
        wait = self.number("wait", 0.0, _LONGEST_WAIT)
        if self.get_query_argument("after", None) is not None:
            allocation = await self.scheduler.changed(allocation.id, self.whole("after", 0, 2**53), wait)
        self.reply(allocation.public())

    @web.authenticated
    @authorized
    async def delete(self, id_or_name: str) -> None:
        allocation = await self.scheduler.release(self.allocation(id_or_name).id)
        self.reply(allocation.public(), 200 if allocation.state is State.ENDED else 202)


class ExtendHandler(GpufitHandler):
    """`POST allocations/{id}/extend`: more time for one whose time is limited."""

    @web.authenticated
    @authorized
    async def post(self, id_or_name: str) -> None:
        allocation = self.allocation(id_or_name)
        longer = await self.scheduler.extend(allocation.id, parse_duration(self.body(ExtendBy).time))
        self.reply(longer.public())


class AttachmentsHandler(GpufitHandler):
    """`GET attachments`: the caller's notebooks that are on an allocation, or on their way to one."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        found = await self.attachments.present()
        mine = {one.id for one in self.scheduler.allocations(self.extension.owner)}
        self.reply({"attachments": [one.public() for one in found if one.allocation in mine]})


class AttachHandler(GpufitHandler):
    """`POST allocations/{id}/attach`: give a notebook the allocation's kernel, once that runs and its own is idle."""

    @web.authenticated
    @authorized
    async def post(self, id_or_name: str) -> None:
        target = self.body(AttachTo)
        allocation = self.allocation(id_or_name)
        attachment = await self.attachments.attach(allocation, session=target.session, path=target.path)
        self.reply(attachment.public(), 202)


class DetachHandler(GpufitHandler):
    """`POST allocations/{id}/detach`: give the notebook its local kernel back. The allocation goes on."""

    @web.authenticated
    @authorized
    async def post(self, id_or_name: str) -> None:
        allocation = self.allocation(id_or_name)
        await self.attachments.detach(allocation.id)
        self.reply(allocation.public())


class LogsHandler(GpufitHandler):
    """`GET allocations/{id}/logs[?tail=N]` → `{"logs": text}`."""

    @web.authenticated
    @authorized
    async def get(self, id_or_name: str) -> None:
        tail = self.whole("tail", 200, 100_000)
        allocation = self.allocation(id_or_name)
        try:
            async with asyncio.timeout(_LONGEST_WAIT):
                logs = await self.scheduler.logs(allocation.id, tail)
        except TimeoutError:
            raise NodeUnreachable(
                f"node {allocation.node!r} did not give the log of {allocation.name!r} "
                f"within {_LONGEST_WAIT:.0f} s; try again"
            ) from None
        self.reply({"logs": logs})


class OpenApiHandler(GpufitHandler):
    """`GET openapi.yaml`."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.finish(OPENAPI.read_bytes(), set_content_type="application/yaml")


def _nothing_there() -> Any:
    """A method for each verb: `authorized` keeps the first action that it saw."""

    @web.authenticated
    @authorized
    async def nothing_there(self: GpufitHandler, path: str) -> None:
        raise NotFound(f"there is nothing at {self.request.path!r}; openapi.yaml describes what there is")

    return nothing_there


class UnknownHandler(GpufitHandler):
    """Whatever else is asked under the prefix: an error in the contract's form, not a page."""

    get, post, put, patch, delete = (_nothing_there() for _ in range(5))


_ID = r"([^/]+)"

HANDLERS: list[tuple[str, type[GpufitHandler]]] = [
    (r"about", AboutHandler),
    (r"nodes", NodesHandler),
    (rf"nodes/{_ID}", NodeHandler),
    (rf"nodes/{_ID}/doctor", DoctorHandler),
    (r"explain", ExplainHandler),
    (r"allocations", AllocationsHandler),
    (rf"allocations/{_ID}", AllocationHandler),
    (rf"allocations/{_ID}/extend", ExtendHandler),
    (rf"allocations/{_ID}/attach", AttachHandler),
    (rf"allocations/{_ID}/detach", DetachHandler),
    (rf"allocations/{_ID}/logs", LogsHandler),
    (r"attachments", AttachmentsHandler),
    (r"openapi\.yaml", OpenApiHandler),
    (r"(.*)", UnknownHandler),
]


def routes(prefix: str = r"/gpufit/api/v1") -> list[tuple[str, type[GpufitHandler]]]:
    """The route table for `ExtensionApp.handlers` (which puts the base url before each)."""
    return [(f"{prefix}/{path}", handler) for path, handler in HANDLERS]

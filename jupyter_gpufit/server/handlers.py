"""REST, under `<base_url>gpufit/api/v1` (see `openapi.yaml`). Handlers are thin: decode, ask the scheduler, encode.
(`handling.py` has what they share.)
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.utils import url_path_join
from msgspec import Meta
from tornado import web

from ..durations import parse_duration
from ..errors import InvalidValue, NotFound
from ..kernels.following import more_of
from ..models import MAX_PATH, Allocation, State
from .handling import GpufitHandler

__all__ = ["HANDLERS", "OPENAPI", "routes"]

OPENAPI = Path(__file__).with_name("openapi.yaml")

_LONGEST_WAIT = 4.0  # s; with it no answer takes longer than the 5 s that people were promised
_LONGEST_MARK = 512  # characters
_TOGETHER = 0.05  # s; nobody sees steps of a start that take less

_Path = Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]


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


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST jobs`: a request with a job, and for a sweep the values that each parameter takes."""

    request: dict[str, Any]
    sweep: dict[str, list[str]] = {}


class Carry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST allocations/{id}/files`: what is copied, and which way; `paths` are relative to `folder` here, and
    to where it works there."""

    do: Literal["upload", "download"]
    folder: _Path
    paths: Annotated[list[_Path], Meta(min_length=1, max_length=1000)]


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
        decision = self.scheduler.explain(self.wish())
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
        allocation = await self.scheduler.request(self.wish(), self.extension.owner)
        self.set_header("Location", url_path_join(self.request.path, allocation.id))
        self.reply(allocation.public(), 202)


class JobsHandler(GpufitHandler):
    """`POST jobs`: allocations in which something runs unattended; one, or one for each point of a sweep."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.body(Submission)
        submissions, request = self.submissions, self.wish(body.request)
        id = submissions.begin(self.scheduler.submit(request, self.extension.owner, body.sweep))
        await self.reply_made(id, _LONGEST_WAIT)


class SubmissionHandler(GpufitHandler):
    """`GET submissions/{id}[?wait=SECONDS]`: what `POST jobs` has made, where it could not say so in time."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        await self.reply_made(id, self.number("wait", 0.0, _LONGEST_WAIT))


class AllocationHandler(GpufitHandler):
    """`GET|DELETE allocations/{id}`. `GET …?after=VERSION&wait=SECONDS` answers once it has changed since then."""

    @web.authenticated
    @authorized
    async def get(self, id_or_name: str) -> None:
        allocation = self.allocation(id_or_name)
        wait = self.number("wait", 0.0, _LONGEST_WAIT)
        if self.get_query_argument("after", None) is not None:
            allocation = await self._next(allocation.id, self.whole("after", 0, 2**53), wait)
        self.reply(allocation.public())

    async def _next(self, id: str, after: int, wait: float) -> Allocation:
        """As it is once it has changed. The steps of a start often follow each other at once: they are told together,
        so that whoever follows them does not ask once for each; but what runs, or has ended, is told at once."""
        clock = asyncio.get_running_loop().time
        until = clock() + wait
        allocation = await self.scheduler.changed(id, after, wait)
        until = min(until, clock() + _TOGETHER)
        while allocation.state not in (State.RUNNING, State.ENDED) and (left := until - clock()) > 0:
            allocation = await self.scheduler.changed(id, allocation.version, left)
        return allocation

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
    """`GET allocations/{id}/logs[?tail=N][&after=MARK&wait=SECONDS]` → `{"logs": text, "mark", "over"}`."""

    @web.authenticated
    @authorized
    async def get(self, id_or_name: str) -> None:
        after = self.get_query_argument("after", None, strip=False)
        tail = self.whole("tail", 200, 100_000) if after is None or self.get_query_argument("tail", None) else None
        if len(after or "") > _LONGEST_MARK:
            raise InvalidValue("`after` is no mark; give the `mark` of the answer before, or leave it out")
        wait = self.number("wait", 0.0, _LONGEST_WAIT)
        allocation = self.allocation(id_or_name)
        log = await more_of(self.scheduler, allocation, tail, after or "", wait, _LONGEST_WAIT)
        self.reply({"logs": log.text, "mark": log.mark, "over": log.over})


class UsageHandler(GpufitHandler):
    """`GET allocations/{id}/usage`: what it really used of its GPUs, over time and in all."""

    @web.authenticated
    @authorized
    async def get(self, id_or_name: str) -> None:
        self.reply((await self.scheduler.usage(self.allocation(id_or_name).id)).public())


class FilesHandler(GpufitHandler):
    """`POST allocations/{id}/files`: begin to copy files to or from where a running allocation works."""

    @web.authenticated
    @authorized
    async def post(self, id_or_name: str) -> None:
        allocation, carry = self.allocation(id_or_name), self.body(Carry)
        transfer = self.transfers.begin(allocation, carry.do, self.folder(carry.folder), carry.paths)
        self.reply(transfer, 202)


class TransferHandler(GpufitHandler):
    """`GET transfers/{id}[?after=VERSION&wait=SECONDS]`: how far it is. `DELETE` ends it."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        wait = self.number("wait", 0.0, _LONGEST_WAIT)
        after = self.whole("after", 0, 2**53) if self.get_query_argument("after", None) is not None else -1
        self.reply(await self.transfers.latest(id, after, wait))

    @web.authenticated
    @authorized
    async def delete(self, id: str) -> None:
        self.reply(self.transfers.cancel(id))


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
    (rf"allocations/{_ID}/usage", UsageHandler),
    (rf"allocations/{_ID}/files", FilesHandler),
    (r"jobs", JobsHandler),
    (rf"submissions/{_ID}", SubmissionHandler),
    (rf"transfers/{_ID}", TransferHandler),
    (r"attachments", AttachmentsHandler),
    (r"openapi\.yaml", OpenApiHandler),
    (r"(.*)", UnknownHandler),
]


def routes(prefix: str = r"/gpufit/api/v1") -> list[tuple[str, type[GpufitHandler]]]:
    """The route table for `ExtensionApp.handlers` (which puts the base url before each)."""
    return [(f"{prefix}/{path}", handler) for path, handler in HANDLERS]

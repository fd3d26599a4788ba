"""What the handlers of REST (`handlers.py`) share: the way to the scheduler, JSON in and out, and one form for errors.

Every answer that is not 2xx is `{"error": code, "message": for people, "details": {…}}`.
"""

from __future__ import annotations

import json
import logging
import math
import os
from http.client import responses
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from jupyter_server.base.handlers import APIHandler
from tornado import web

from ..errors import GpufitError, InvalidValue, NotFound
from ..models import Allocation, Node, Request, decode

if TYPE_CHECKING:
    from ..jobs.transfers import Transfers
    from ..kernels.attach import Attachments
    from ..scheduling.api import Scheduler
    from .extension import GpufitExtension
    from .submissions import Submissions

__all__ = ["GpufitHandler"]

T = TypeVar("T")

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_LARGEST_BODY = 1 << 20  # bytes; requests are some hundred


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

    @property
    def transfers(self) -> Transfers:
        return self.extension.transfers

    @property
    def submissions(self) -> Submissions:
        return self.extension.submissions

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
        try:
            return decode(body, type)
        except RecursionError:
            raise InvalidValue("the body is nested too deeply to be meant") from None

    def wish(self, body: dict[str, Any] | None = None) -> Request:
        """`body`, or the request's own, as what is asked for; its folder may be relative to the server's root.

        Raises `InvalidValue`."""
        members = self.body(dict[str, Any]) if body is None else body
        if isinstance(folder := members.get("folder"), str):
            members = {**members, "folder": self.folder(folder)}
        try:
            return msgspec.convert(members, Request)
        except msgspec.ValidationError as error:
            raise (cause if isinstance(cause := error.__cause__, InvalidValue) else InvalidValue(str(error))) from None

    def folder(self, path: str) -> str:
        """A directory of this machine as an absolute path; a relative one is below the server's root directory.

        Raises `InvalidValue`."""
        if "\0" in path:
            raise InvalidValue("the folder's path has a character that no path can have")
        root = PurePosixPath(os.path.abspath(os.path.expanduser(self.settings.get("server_root_dir") or ".")))
        found = PurePosixPath(os.path.normpath(root / path))
        if not (path.startswith("/") or found.is_relative_to(root)):
            raise InvalidValue(f"folder {path[:200]!r} leads out of the server's root directory; give an absolute path")
        return str(found)

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

    async def reply_made(self, submission: str, wait: float) -> None:
        """Finish with the jobs of a submission; if it still goes on after `wait` seconds, with the word that it does.
        Raises why there are none."""
        made = await self.submissions.result(submission, wait)
        shown = [allocation.public() for allocation in made or ()]
        self.reply({"allocations": shown, "submission": submission if made is None else None}, 202)

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

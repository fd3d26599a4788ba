"""The scheduler as the magic and the command line see it, from a thread that may wait.

    RestClient       this kernel's Jupyter server has the extension: by its REST, and cells by its kernel websocket
    EmbeddedClient   there is none (VS Code, nbclient, papermill, a terminal): a scheduler of our own in a daemon
                     thread, that gives everything back when this process ends

Allocations are the JSON objects of REST (`Allocation.public()`), for both. Every method may raise a `GpufitError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import msgspec

from ..errors import Forbidden, NotFound
from ..kernels.following import more_of
from ..models import Allocation, Node, Request, State
from .channels import Channel, LoopChannel, WebSocketChannel
from .discovery import Server, connection_file_of, find_server, kernel_id_of
from .transport import ExtensionMissing, Http

if TYPE_CHECKING:
    from ..jobs.transfers import Transfer
    from ..kernels.service import ThreadedService
    from ..scheduling.api import Scheduler

__all__ = [
    "Client",
    "EmbeddedClient",
    "Json",
    "RestClient",
    "connect",
    "embedded",
    "has_ended",
    "is_live",
    "is_running",
    "latest",
]

Json = dict[str, Any]

_API = "gpufit/api/v1/"
_UNNOTICED: Json = {"no_track_activity": 1}
"""A panel that looks now and then is not somebody at work: a hub may stop the server for doing nothing."""
LONGEST_WAIT = 4.0
"""Seconds that one call of `changed` or `log` waits at most."""
_OFTEN = 1.0  # s; a transfer is shown that often at least


class Client(Protocol):
    """What magic and command line can ask."""

    lasting: bool
    """Whether what it was asked for goes on when this process ends."""

    def nodes(self) -> list[Node]:
        """All nodes, usable or not, in the effective view."""

    def cluster(self) -> tuple[list[Node], str | None]:
        """The nodes, and why the latest gpufit.toml was not taken up, if so; one question to the server for both."""

    def about(self) -> Json:
        """What a form for requests needs to know (`Scheduler.about`). Raises `NotFound` if the server is too old."""

    def explain(self, request: Request, *, stages: bool = True) -> Json:
        """A dry run (`Decision.explain`); without `stages` it takes a fraction of the time on a big cluster."""

    def request(self, request: Request) -> Json:
        """Ask for GPUs: the allocation, in whatever state. Raises `NoFit`, `NeverFits`, `Conflict`, ..."""

    def submit(self, request: Request, sweep: Mapping[str, Sequence[str]]) -> list[Json]:
        """Ask for GPUs on which the request's job runs, once for each point of `sweep`. Raises what `request` raises,
        and then there is none of them."""

    def allocations(self, *, ended: bool = False) -> list[Json]:
        """What this person holds, oldest first."""

    def get(self, name: str) -> Json:
        """One allocation, by id or name. Raises `NotFound`."""

    def changed(self, id: str, version: int, timeout: float = LONGEST_WAIT) -> Json:
        """The allocation once its version is greater, or as it is after `timeout` seconds (at most `LONGEST_WAIT`)."""

    def release(self, id: str) -> Json:
        """Begin to end it; the allocation as it is then."""

    def extend(self, id: str, seconds: float) -> Json:
        """Give it more time; the allocation as it is then. Raises `Conflict`, `Forbidden`."""

    def logs(self, id: str, tail: int = 200) -> str:
        """The last lines that it printed."""

    def log(self, id: str, tail: int | None = None, after: str = "", wait: float = 0.0) -> Json:
        """What it printed `after` a `mark` (or its last lines), within `wait` seconds (at most `LONGEST_WAIT`): `logs`,
        the next `mark`, and whether it is `over`."""

    def usage(self, id: str) -> Json:
        """What it really used of its GPUs: `times`, `gpus`, `usage`, `sentence`."""

    def transfer(self, id: str, do: str, folder: str, paths: Sequence[str]) -> Json:
        """Begin to `upload` or `download` files; the transfer as it is then."""

    def transferred(self, transfer: str, after: int) -> Json:
        """The transfer, once its version is greater, or it is done, or after a second."""

    def cancel_transfer(self, transfer: str) -> Json:
        """End it where it is."""

    def notebook(self) -> str | None:
        """The path of this kernel's notebook, as the server has it; `None`: not known."""

    def has_session(self) -> bool:
        """Whether this notebook has a session, which `attach` has follow."""

    def attach(self, id: str) -> Json | None:
        """Have this notebook's session follow the allocation's kernel once the local one is idle; `None`: it cannot."""

    def detach(self, id: str) -> None:
        """Give the session its local kernel back."""

    def channel(self, allocation: Json) -> Channel:
        """A way to the kernel of a running allocation."""

    def close(self) -> None:
        """Done with it. The embedded one gives everything back that it holds."""


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _plain(value: Any) -> Json:
    made: Json = msgspec.to_builtins(value)
    return made


def is_running(allocation: Json) -> bool:
    """Whether cells can run on it."""
    return bool(allocation["state"] == State.RUNNING)


def is_live(allocation: Json) -> bool:
    """Neither ending nor ended."""
    return allocation["state"] not in (State.STOPPING, State.ENDED)


def has_ended(allocation: Json) -> bool:
    """Whether everything it held is given back."""
    return bool(allocation["state"] == State.ENDED)


class RestClient:
    """By the REST of a Jupyter server. `kernel_id` is this kernel's id there; `None` outside its kernels."""

    lasting = True

    def __init__(self, server: Server, kernel_id: str | None = None) -> None:
        self.server = server
        self._http = Http(server)
        self._kernel_id = kernel_id
        self._session: str | None = None

    def check(self) -> None:
        """Raises `ExtensionMissing`, `Forbidden` or `ServerUnreachable` if the server cannot be used."""
        self._http.call("GET", _API + "nodes")

    def nodes(self) -> list[Node]:
        return self.cluster()[0]

    def cluster(self) -> tuple[list[Node], str | None]:
        answer = self._http.call("GET", _API + "nodes", query=_UNNOTICED)
        error = answer.get("inventory_error")
        return msgspec.convert(answer["nodes"], list[Node]), str(error) if error else None

    def about(self) -> Json:
        return self._json("GET", "about", query=_UNNOTICED)

    def explain(self, request: Request, *, stages: bool = True) -> Json:
        query = _UNNOTICED | {"stages": None if stages else "false"}
        return self._json("POST", "explain", msgspec.to_builtins(request), query)

    def request(self, request: Request) -> Json:
        return self._json("POST", "allocations", msgspec.to_builtins(request))

    def submit(self, request: Request, sweep: Mapping[str, Sequence[str]]) -> list[Json]:
        body = {"request": msgspec.to_builtins(request), "sweep": msgspec.to_builtins(sweep)}
        answer = self._json("POST", "jobs", body)
        while submission := answer.get("submission"):  # a large folder is still being copied
            answer = self._json("GET", f"submissions/{_quoted(submission)}", query={"wait": LONGEST_WAIT})
        made: list[Json] = answer["allocations"]
        return made

    def allocations(self, *, ended: bool = False) -> list[Json]:
        answer = self._http.call("GET", _API + "allocations", query={"ended": 1 if ended else None} | _UNNOTICED)
        found: list[Json] = answer["allocations"]
        return found

    def get(self, name: str) -> Json:
        return self._json("GET", f"allocations/{_quoted(name)}")

    def changed(self, id: str, version: int, timeout: float = LONGEST_WAIT) -> Json:
        return self._json(
            "GET", f"allocations/{_quoted(id)}", query={"after": version, "wait": min(timeout, LONGEST_WAIT)}
        )

    def release(self, id: str) -> Json:
        return self._json("DELETE", f"allocations/{_quoted(id)}")

    def extend(self, id: str, seconds: float) -> Json:
        return self._json("POST", f"allocations/{_quoted(id)}/extend", {"time": seconds})

    def logs(self, id: str, tail: int = 200) -> str:
        return str(self._json("GET", f"allocations/{_quoted(id)}/logs", query={"tail": tail})["logs"])

    def log(self, id: str, tail: int | None = None, after: str = "", wait: float = 0.0) -> Json:
        query = {"tail": tail, "after": after, "wait": min(wait, LONGEST_WAIT)}
        return self._json("GET", f"allocations/{_quoted(id)}/logs", query=query)

    def usage(self, id: str) -> Json:
        return self._json("GET", f"allocations/{_quoted(id)}/usage")

    def transfer(self, id: str, do: str, folder: str, paths: Sequence[str]) -> Json:
        body = {"do": do, "folder": folder, "paths": list(paths)}
        return self._json("POST", f"allocations/{_quoted(id)}/files", body)

    def transferred(self, transfer: str, after: int) -> Json:
        return self._json("GET", f"transfers/{_quoted(transfer)}", query={"after": after, "wait": _OFTEN})

    def cancel_transfer(self, transfer: str) -> Json:
        return self._json("DELETE", f"transfers/{_quoted(transfer)}")

    def notebook(self) -> str | None:
        if (session := self._own_session()) is None:
            return None
        try:
            told = self._http.call("GET", f"api/sessions/{_quoted(session)}")
        except NotFound:
            return None
        return str(told["path"]) if told.get("path") else None

    def has_session(self) -> bool:
        return self._own_session() is not None

    def attach(self, id: str) -> Json | None:
        session = self._own_session()
        return (
            None if session is None else self._json("POST", f"allocations/{_quoted(id)}/attach", {"session": session})
        )

    def detach(self, id: str) -> None:
        self._http.call("POST", f"{_API}allocations/{_quoted(id)}/detach", {})

    def channel(self, allocation: Json) -> Channel:
        kernel = str(allocation["kernel_id"])
        return WebSocketChannel(
            self.server, kernel, lambda: self._http.call("POST", f"api/kernels/{kernel}/interrupt", {})
        )

    def close(self) -> None:
        """Nothing is kept open."""

    def _json(self, method: str, path: str, body: Any = None, query: Json | None = None) -> Json:
        answer: Json = self._http.call(method, _API + path, body, query)
        return answer

    def _own_session(self) -> str | None:
        """The session this kernel belongs to. Kept: while a notebook is attached, its session has another kernel."""
        if self._session is None and self._kernel_id is not None:
            for session in self._http.call("GET", "api/sessions"):
                if (session.get("kernel") or {}).get("id") == self._kernel_id:
                    self._session = str(session["id"])
        return self._session


class EmbeddedClient:
    """By a scheduler in this process, in a daemon thread."""

    lasting = False

    def __init__(self, service: ThreadedService) -> None:
        """`service` has been started."""
        self._service = service

    def nodes(self) -> list[Node]:
        return list(self._service.call(lambda scheduler: scheduler.nodes()))

    def cluster(self) -> tuple[list[Node], str | None]:
        return self.nodes(), self._service.inventory_error

    def about(self) -> Json:
        about = self._service.call(lambda scheduler: scheduler.about(self._service.owner))
        known: Json = msgspec.to_builtins(about)
        return known

    def explain(self, request: Request, *, stages: bool = True) -> Json:
        return self._service.call(lambda scheduler: scheduler.explain(request)).explain(stages)

    def request(self, request: Request) -> Json:
        return self._public(lambda scheduler: scheduler.request(request, self._service.owner))

    def submit(self, request: Request, sweep: Mapping[str, Sequence[str]]) -> list[Json]:
        made = self._service.call(lambda scheduler: scheduler.submit(request, self._service.owner, sweep))
        return [allocation.public() for allocation in made]

    def allocations(self, *, ended: bool = False) -> list[Json]:
        found = self._service.call(lambda scheduler: scheduler.allocations(self._service.owner, ended=ended))
        return [allocation.public() for allocation in found]

    def get(self, name: str) -> Json:
        return self._service.call(lambda scheduler: scheduler.get(name, self._service.owner)).public()

    def changed(self, id: str, version: int, timeout: float = LONGEST_WAIT) -> Json:
        wait = min(timeout, LONGEST_WAIT)
        return self._public(lambda scheduler: scheduler.changed(id, version, wait))

    def release(self, id: str) -> Json:
        return self._public(lambda scheduler: scheduler.release(id))

    def extend(self, id: str, seconds: float) -> Json:
        return self._public(lambda scheduler: scheduler.extend(id, seconds))

    def logs(self, id: str, tail: int = 200) -> str:
        text: str = self._service.call(lambda scheduler: scheduler.logs(id, tail)).text
        return text

    def log(self, id: str, tail: int | None = None, after: str = "", wait: float = 0.0) -> Json:
        wait = min(wait, LONGEST_WAIT)
        log = self._service.call(
            lambda scheduler: more_of(scheduler, scheduler.get(id), tail, after, wait, LONGEST_WAIT)
        )
        return {"logs": log.text, "mark": log.mark, "over": log.over}

    def usage(self, id: str) -> Json:
        shown: Json = self._service.call(lambda scheduler: scheduler.usage(id)).public()
        return shown

    def transfer(self, id: str, do: str, folder: str, paths: Sequence[str]) -> Json:
        def begin(scheduler: Scheduler) -> Transfer:
            return self._service.service.transfers.begin(scheduler.get(id), do, folder, paths)

        return _plain(self._service.call(begin))

    def transferred(self, transfer: str, after: int) -> Json:
        return _plain(self._service.call(lambda _: self._service.service.transfers.latest(transfer, after, _OFTEN)))

    def cancel_transfer(self, transfer: str) -> Json:
        return _plain(self._service.call(lambda _: self._service.service.transfers.cancel(transfer)))

    def notebook(self) -> str | None:
        """Nobody here knows notebooks."""
        return None

    def has_session(self) -> bool:
        return False

    def attach(self, id: str) -> Json | None:
        """Nobody here has sessions: forwarding is all there is."""
        return None

    def detach(self, id: str) -> None:
        """Likewise."""

    def channel(self, allocation: Json) -> Channel:
        service, kernel = self._service.service, str(allocation["kernel_id"])
        unit = self._service.call(lambda scheduler: scheduler.get(allocation["id"])).unit

        def same() -> bool:
            # A kernel that was started anew on the same GPUs is in another unit, and knows nothing of what ran before.
            try:
                now = service.scheduler.get(allocation["id"])
            except NotFound:
                return False
            return now.state is State.RUNNING and now.unit is not None and unit is not None and now.unit.id == unit.id

        return LoopChannel(service.loop, lambda: self._service.kernel_client(kernel), same)

    def close(self) -> None:
        self._service.close()

    def _public(self, question: Callable[[Scheduler], Awaitable[Allocation]]) -> Json:
        allocation: Allocation = self._service.call(question)
        return allocation.public()


def connect(shell: Any = None) -> tuple[Client, str | None]:
    """The client of this process, and a line for people on why it is not the expected one, if so.

    Called by the magic, at its first use.
    """
    kernel_id = kernel_id_of(connection_file_of(shell))
    server = find_server()
    note = None
    if server is not None:
        client = RestClient(server, kernel_id)
        try:
            client.check()
        except (ExtensionMissing, Forbidden) as problem:
            note = (
                f"{problem.message}. Until then this notebook has a scheduler of its own, which ends with its kernel."
            )
        else:
            return client, None
    return embedded(), note


def embedded(inventory: str | None = None, **options: Any) -> EmbeddedClient:
    """A scheduler in this process; `options` are `ThreadedService`'s. Raises a `GpufitError`."""
    from ..kernels.service import ThreadedService

    return EmbeddedClient(ThreadedService(inventory, **options).start())


def latest(client: Client, allocation: Json) -> Json:
    """The allocation as it is now; one that the scheduler has forgotten is taken for ended."""
    try:
        return client.get(allocation["id"])
    except NotFound as problem:
        return {**allocation, "state": State.ENDED.value, "message": problem.message}

"""Watching one engine: a thread that reads its event stream, and asks for the whole list whenever it (re)connects.

    subscribe → clock and list → `Listed` → one `Seen` per event … → the stream breaks → wait a moment → again

When that fails, it says why (`Silent`), and tries again until it succeeds (`Listed`).

It subscribes before it lists, and for some seconds back, so nothing falls between the two. A stream that is silent for
a while is taken up anew: a connection that died without a word (the node lost power, a firewall forgot it) looks just
like a quiet one.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import docker
import docker.errors
import msgspec
import requests
import urllib3.exceptions
from msgspec import Struct

from ..durations import format_moment
from ..errors import InvalidValue, NodeUnreachable
from ..inventory import NodeSpec
from ..scheduling.needs import KILLED
from . import labels
from .base import IMAGE_REFUSED, describe_end, refusal
from .containers import unit
from .engine import CONNECT_WITHIN, Engine, hang_up, said
from .machine import Machine
from .states import Seen

__all__ = ["Listed", "Silent", "Watch", "list_containers", "look_at"]

log = logging.getLogger(__name__)

SILENT_FOR = 45.0  # s without an event, after which we connect anew
FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0  # s before connecting again
STATES = {
    "create": "created",
    "start": "running",
    "unpause": "running",
    "pause": "paused",
    "die": "exited",
    "destroy": "gone",
}
ENDS = ("die", "destroy")
OVERLAP = 10.0
"""Seconds before a subscription from which on ends are told. While an engine cleans up after a container that ended,
which may take a second, it has said so already and still lists it as running."""


class Listed(Struct, frozen=True):
    """All gpufit containers of the engine, at this moment of its own clock, and its machine."""

    containers: tuple[Seen, ...]
    now: float
    machine: Machine


class Silent(Struct, frozen=True):
    """The engine could not be asked; so nothing can be started on it."""

    why: str
    """For people. The same while nothing changes."""


class Watch:
    """Calls `tell`, in its thread, with a `Listed` for each connection, a `Seen` for each event, and a `Silent` for
    each attempt to connect that failed."""

    def __init__(self, engine: Engine, spec: NodeSpec, tell: Callable[[Listed | Seen | Silent], None]) -> None:
        self._engine, self._spec, self._tell = engine, spec, tell
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._response: requests.Response | None = None
        self._thread = threading.Thread(target=self._run, name=f"gpufit-{spec.name}-events", daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Stop; the thread ends as soon as what it waits for is broken off. Does not wait for it."""
        self._closing.set()
        with self._lock:
            if self._response is not None:
                hang_up(self._response)

    def look(self) -> None:
        """Connect anew, and so find out whether the engine still answers."""
        with self._lock:
            if self._response is not None:
                hang_up(self._response)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait, since = 0.0, 0.0
        while not self._closing.wait(wait * random.uniform(0.5, 1)):
            heard, trouble = False, ""
            try:
                with self._engine.answering():
                    for news in self._stream(self._engine.client()):
                        self._tell(news)
                        wait, since, heard = 0.0, 0.0, True
            except (NodeUnreachable, docker.errors.APIError) as error:
                if wait == 0 and not self._closing.is_set():
                    log.warning("watching %s: %s", self._spec.name, error)
                since = since or time.time()
                trouble = _trouble(error, since)
            except Exception as error:  # an answer that nothing of ours expects: the next one may be in order
                log.exception("watching %s failed", self._spec.name)
                trouble = f"its Docker engine gives answers that cannot be read: {error!r}"
            if trouble and not heard and not self._closing.is_set():  # one that breaks off is tried again first
                self._tell(Silent(trouble))
            wait = min(max(wait * 2, FIRST_WAIT), LONGEST_WAIT)

    def _stream(self, client: Any) -> Iterator[Listed | Seen]:
        filters = json.dumps({"type": ["container"], "label": [labels.ALLOCATION]})
        about = self._engine.about()
        now = about.now
        response = client.get(
            client._url("/events"),
            params={"filters": filters, "since": f"{now - OVERLAP:.6f}"},
            stream=True,
            timeout=(CONNECT_WITHIN, SILENT_FOR),
        )
        with response:
            with self._lock:
                self._response = response
            try:
                client._raise_for_status(response)
                if self._closing.is_set():
                    return
                listed = tuple(list_containers(client, self._spec))
                yield Listed(listed, now, about.machine)
                there = {seen.unit.id for seen in listed}
                for line in _lines(response):
                    event = json.loads(line)
                    old = event.get("timeNano", 0) < now * 1e9  # then it is news only of one that the list still has
                    if old and not (event.get("Action") in ENDS and event["Actor"]["ID"] in there):
                        continue
                    if (seen := self._event(client, event)) is not None:
                        yield seen
            finally:
                with self._lock:
                    self._response = None

    def _event(self, client: Any, event: Mapping[str, Any]) -> Seen | None:
        state = STATES.get(event.get("Action", ""))
        if state is None:
            return None
        attributes, id = event["Actor"]["Attributes"], event["Actor"]["ID"]
        created = event["time"] if state == "created" else None
        seen = _seen(self._spec, id, attributes.get("name", ""), attributes, state, created)
        if seen is None or state != "exited":
            return seen
        return _with_end(client, seen, int(attributes.get("exitCode", KILLED)))


def _trouble(error: NodeUnreachable | docker.errors.APIError, since: float) -> str:
    """`error` as a node's reason."""
    if isinstance(error, docker.errors.APIError):
        return f"its Docker engine does not let itself be asked: {said(error)}"
    if (why := error.details.get("why")) is None:  # it was not even tried: a matter of the inventory
        return error.message
    return f"its Docker engine does not answer since {format_moment(since)}: {why}"


def list_containers(client: Any, spec: NodeSpec, ends: bool = True) -> Iterator[Seen]:
    """All gpufit containers, in any state, whoever's. Blocks; with `ends`, one more call for each that has ended."""
    for item in client.containers(all=True, filters={"label": labels.ALLOCATION}):
        name = item["Names"][0].removeprefix("/") if item["Names"] else ""
        seen = _seen(spec, item["Id"], name, item["Labels"], item["State"], item["Created"])
        if seen is not None and ends and seen.state in ("exited", "dead"):
            seen = _with_end(client, seen, None)
        if seen is not None:
            yield seen


def look_at(client: Any, spec: NodeSpec, id: str) -> Seen | None:
    """One container as it is now; `None`: it is not there. Blocks."""
    try:
        found = client.inspect_container(id)
    except docker.errors.NotFound:
        return None
    state = found["State"]["Status"]
    seen = _seen(spec, id, found["Name"].removeprefix("/"), found["Config"]["Labels"] or {}, state, None)
    return _with_end(client, seen, None) if seen is not None and state in ("exited", "dead") else seen


def _seen(
    spec: NodeSpec, id: str, name: str, labelled: Mapping[str, str], state: str, created: float | None
) -> Seen | None:
    try:
        claim = labels.decode(labelled, id)
    except InvalidValue as error:
        log.warning("%s: %s", spec.name, error)
        return None
    return Seen(unit=unit(spec, id, name, claim.allocation), claim=claim, state=state, created=created)


def _with_end(client: Any, seen: Seen, code: int | None) -> Seen:
    """How it ended: asked of the engine where the code alone does not say it."""
    id, limit, memory, words = seen.unit.id, None, False, None
    try:
        if code in (None, KILLED):
            inspected = client.inspect_container(id)
            state = inspected["State"]
            code, limit = state["ExitCode"], inspected["HostConfig"]["Memory"]
            memory = state["OOMKilled"] and code == KILLED  # else it was one of its children, some time
        if code in IMAGE_REFUSED:
            words = refusal(client.logs(id, tail=20).decode("utf-8", "replace").splitlines())
    except docker.errors.APIError as error:  # removed meanwhile
        log.debug("%s ended, and is gone: %s", seen.unit.name, said(error))
    code = KILLED if code is None else code
    sentence = describe_end(code, memory=memory, limit=limit, said=words)
    return msgspec.structs.replace(seen, code=code, sentence=sentence, memory=memory)


def _lines(response: requests.Response) -> Iterator[bytes]:
    """Its lines, until it ends or is silent for too long."""
    try:
        yield from response.iter_lines(chunk_size=None)
    except requests.ConnectionError as error:
        if not (error.args and isinstance(error.args[0], urllib3.exceptions.ReadTimeoutError)):
            raise

"""Changes, pushed as Jupyter events, so that no user interface has to poll for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ..models import Allocation, Node, StoredModel
from .news import News

if TYPE_CHECKING:
    from jupyter_events import EventLogger

    from ..kernels.attachment import Attachment

__all__ = ["ALLOCATION", "ATTACHMENT", "NODES", "WARNING", "Events"]

_SCHEMAS = Path(__file__).with_name("event_schemas")
_PREFIX = "https://schema.jupyter.org/jupyter_gpufit"
ALLOCATION = f"{_PREFIX}/allocation/v1"
ATTACHMENT = f"{_PREFIX}/attachment/v1"
NODES = f"{_PREFIX}/nodes/v1"
WARNING = f"{_PREFIX}/warning/v1"

_GATHER = 1.0  # s over which changes of nodes are gathered
_MOST_LIGHT = 100  # nodes told of each time that have nothing new but gauges; at so many they take turns
_PART = 50  # nodes in one event; each costs the event loop about 0.2 ms, and as much again for every front end
_BREATH = 0.02  # s between two of them


class Events:
    """Emits what changed through the server's event logger. Nodes are gathered: reports come often, of many nodes."""

    def __init__(self, logger: EventLogger, inventory_error: Callable[[], str | None] = lambda: None) -> None:
        """Made by the extension when it starts. `inventory_error` says why the latest gpufit.toml was not taken up."""
        self._logger = logger
        self._inventory_error = inventory_error
        self._news = News()
        self._models: dict[str, tuple[StoredModel, ...]] = {}  # of the nodes, as they were told last
        self._warned: dict[str, str] = {}
        self._telling: asyncio.Task[None] | None = None
        for path in sorted(_SCHEMAS.glob("*.yaml")):
            # A server that starts the extension twice has them already.
            if f"{_PREFIX}/{path.stem.replace('-v', '/v')}" not in logger.schemas:
                logger.register_event_schema(path)

    def allocation(self, allocation: Allocation) -> None:
        """Called by the scheduler with each allocation that changed."""
        self._emit(ALLOCATION, allocation.public())
        if not allocation.warning:
            self._warned.pop(allocation.id, None)
        elif self._warned.get(allocation.id) != allocation.warning:
            self._warned[allocation.id] = allocation.warning
            said = {"kind": allocation.warning_kind, "message": allocation.warning, "at": allocation.warning_at}
            self._emit(WARNING, {"allocation": allocation.id, "name": allocation.name, **said})

    def attachment(self, attachment: Attachment) -> None:
        """Called by `Attachments` with each attachment that changed."""
        self._emit(ATTACHMENT, attachment.public())

    def node(self, name: str, node: Node | None) -> None:
        """Called by the cluster cache with each node that changed, or was removed (`None`)."""
        self._news.saw(name, node)
        if self._news and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell(), name="gpufit nodes")

    def close(self) -> None:
        """Forget what is not emitted yet."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    async def _tell(self) -> None:
        """Once a second, as long as there is news; in parts, with room between them for what else the server does."""
        while self._news:
            await asyncio.sleep(_GATHER)
            for names in _parts(self._news.turn(_MOST_LIGHT)):
                changed, removed = self._news.take(names)
                if changed or removed:
                    shown = self._shown(changed)
                    for name in removed:
                        self._models.pop(name, None)
                    error = self._inventory_error()
                    self._emit(NODES, {"changed": shown, "removed": removed, "inventory_error": error})
                    await asyncio.sleep(_BREATH)

    def _shown(self, changed: list[Node]) -> list[dict[str, Any]]:
        """As JSON has them; without the models in their stores where these are as they were told last: there may be a
        thousand, in each of a thousand nodes, and they hardly ever change."""
        told = {node.name for node in changed if node.models and self._models.get(node.name) == node.models}
        self._models |= {node.name: node.models for node in changed if node.models is not None}
        brief = [replace(node, models=None) if node.name in told else node for node in changed]
        shown: list[dict[str, Any]] = [_Shown(node) for node in msgspec.json.decode(msgspec.json.encode(brief))]
        for node in shown:
            if node["name"] in told:
                del node["models"]
            elif node["models"] is None:
                self._models.pop(node["name"], None)
        return shown

    def _emit(self, schema_id: str, data: dict[str, Any]) -> None:
        self._logger.emit(schema_id=schema_id, data=data)


class _Shown(dict[str, Any]):
    """A node as an event shows it. The event logger copies what it is given, deeply, for modifiers of events to change;
    of JSON types this way takes a seventh of the time that `copy` needs, which is more than all the rest takes.
    """

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        copied: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return copied


def _parts(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), _PART):
        yield names[first : first + _PART]

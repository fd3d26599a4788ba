"""Changes, pushed as Jupyter events, so that no user interface has to poll for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..models import Allocation, Node

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

_GATHER = 1.0  # s over which changes of nodes are put into one event


class Events:
    """Emits what changed through the server's event logger. Nodes are gathered: reports come often, of many nodes."""

    def __init__(self, logger: EventLogger) -> None:
        """Made by the extension when it starts."""
        self._logger = logger
        self._changed: dict[str, Node | None] = {}
        self._told: dict[str, Node] = {}
        self._warned: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
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
        self._changed[name] = node
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER, self._emit_nodes)

    def close(self) -> None:
        """Forget what is not emitted yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _emit_nodes(self) -> None:
        nodes, self._changed, self._timer = self._changed, {}, None
        removed = [name for name, node in nodes.items() if node is None and self._told.pop(name, None) is not None]
        changed = [node for name, node in nodes.items() if node is not None and not _same(node, self._told.get(name))]
        self._told.update({node.name: node for node in changed})
        if changed or removed:
            self._emit(NODES, {"changed": msgspec.json.decode(msgspec.json.encode(changed)), "removed": removed})

    def _emit(self, schema_id: str, data: dict[str, Any]) -> None:
        self._logger.emit(schema_id=schema_id, data=data)


def _same(node: Node, before: Node | None) -> bool:
    """Whether there is nothing to tell: a new report that says what the one before said."""
    return before is not None and msgspec.structs.replace(node, age=before.age) == before

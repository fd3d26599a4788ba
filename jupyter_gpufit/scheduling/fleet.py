"""The nodes as the scheduler uses them: an index to select on, and a launcher for each.

    Cluster.on_change ─→ node ─→ overlaid with what the ledger holds ─→ Index
                      └→ its entry in the inventory ─→ launcher opened, reopened when that changes, closed
    Launcher ─ claims ─→ Cluster.set_claims("engine") · trouble ─→ Cluster.set_trouble · exits ─→ the scheduler

The overlay makes it certain that a reservation counts from the moment it is made, whatever view of the node arrives
when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import msgspec

from ..cluster.effective import left_of
from ..errors import GpufitError, ImageRefused, LaunchError, NodeUnreachable, NotFound
from ..inventory import NodeSpec
from ..models import Claim, Gpu, Node, Request, Unit
from .index import Index
from .needs import Cluster, Launcher

__all__ = ["Fleet", "overlay"]

_NOT_THE_LAUNCHERS: dict[str, Any] = {
    "report": "",
    "report_token_file": None,
    "monitor_period": 0.0,
    "timeout": 0.0,
    "stale_after": 0.0,
    "idle_after": None,
    "idle_warning": 0.0,
    "enforce": "",
    "labels": {},
}
"""What of an inventory's entry may change without a new launcher."""
_GAUGES = {"memory_free", "memory_used", "memory_claimed", "memory_foreign", "processes"}
_GAUGES |= {"utilization", "temperature", "power"}
_selected_by = attrgetter(*(field for field in Gpu.__struct_fields__ if field not in _GAUGES))
_MOST_IMAGES = 64
_NO_IMAGES = "it runs plain processes, without images"


class _Slot:
    """The launcher of one node, and who uses it just now."""

    def __init__(self, spec: NodeSpec, launcher: Launcher) -> None:
        self.spec, self.launcher = spec, launcher
        self.users = 0
        self.retired = False
        self.heard = False
        """The launcher has said whether the engine answers."""
        self.opening: asyncio.Task[None] | None = None
        self.failure: GpufitError | None = None


class Fleet:
    """Made by the scheduler; used on its event loop.

    `holds(node)` are the ledger's claims there; `on_exit`, `on_open`, `on_claims` and `on_room` are told of units that
    ended, that a node's launcher works, of what runs there, and that a node changed: so that something may fit now, or
    only (`False`) in what is told of it.
    `on_silence` is told that `silence` of a node is another one now, or known for the first time (what a scheduler
    before this one knew of it may be over), and `on_report` of each change of a node.
    """

    def __init__(
        self,
        cluster: Cluster,
        make_launcher: Callable[[NodeSpec], Launcher],
        *,
        holds: Callable[[str], Sequence[Claim]],
        on_exit: Callable[[Unit, int, str], None],
        on_open: Callable[[str], None],
        on_claims: Callable[[str, Sequence[Claim]], None],
        on_room: Callable[[bool], None],
        on_silence: Callable[[str], None],
        on_report: Callable[[Node], None],
        log: logging.Logger,
    ) -> None:
        self.index = Index()
        self._cluster, self._make_launcher, self._holds = cluster, make_launcher, holds
        self._on_exit, self._on_open, self._on_claims, self._on_room = on_exit, on_open, on_claims, on_room
        self._on_silence, self._on_report = on_silence, on_report
        self._log = log
        self._nodes: dict[str, Node] = {}
        self._slots: dict[str, _Slot] = {}
        self._seen: dict[str, Sequence[Claim]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._refusing: dict[str, dict[str, str]] = {}
        self._troubles: dict[str, str] = {}
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Take up the cluster's nodes, now and as they change."""
        self._unsubscribe = self._cluster.on_change(self._changed)

    async def close(self) -> None:
        """Close all launchers; leaves what they started alone."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for slot in list(self._slots.values()):
            self._retire(slot, anyway=True)
        self._slots.clear()
        while self._closing:
            await asyncio.wait(self._closing)

    # --- selection

    def node(self, name: str) -> Node:
        """As it is indexed."""
        return self._nodes[name]

    def seen(self) -> Mapping[str, Sequence[Claim]]:
        """Node → what runs there, whoever's, as its engine tells."""
        return self._seen

    def publish(self, node: str) -> None:
        """What the ledger holds on `node` has changed: tell the cluster, and have the index know at once."""
        claims = self._holds(node)
        self._cluster.set_claims("ledger", node, claims)
        if node in self._nodes:
            self.index.update(overlay(self._nodes[node], claims, self._seen.get(node, ())))
        elif not claims and node in self._slots:
            self._retire(self._slots.pop(node))  # it had left the inventory; the last of its allocations has ended

    def exclude(self, request: Request, avoid: Sequence[str]) -> Mapping[str, str]:
        """The nodes that the request may not use, with the reason. Raises `ImageRefused` if none allows its image."""
        refusing = self._refuse(request.image) if request.image is not None else {}
        if refusing and len(refusing) == len(self._nodes):
            raise ImageRefused(_refusal(request.image, refusing), image=request.image, nodes=dict(refusing))
        if not avoid:
            return refusing
        return refusing | {name: "it failed this request a moment ago" for name in avoid if name in self._nodes}

    def _refuse(self, image: str) -> dict[str, str]:
        if (known := self._refusing.get(image)) is not None:
            return known
        refusing = {}
        for name in self._nodes:
            spec = self._cluster.spec(name)
            if spec.launcher == "process":
                refusing[name] = _NO_IMAGES
            elif not spec.allows(image):
                refusing[name] = f"it allows only the images {', '.join((spec.image, *spec.images))}"
        if len(self._refusing) >= _MOST_IMAGES:
            self._refusing.clear()
        self._refusing[image] = refusing
        return refusing

    # --- launchers

    @contextmanager
    def use(self, node: str) -> Iterator[_Slot]:
        """Hold on to the node's launcher, so that it is not closed meanwhile. Raises `NodeUnreachable` without one."""
        slot = self._slots.get(node)
        if slot is None:
            raise NodeUnreachable(f"node {node!r} is not in the inventory")
        slot.users += 1
        try:
            yield slot
        finally:
            slot.users -= 1
            if slot.retired and not slot.users:
                self._close(slot)

    async def opened(self, slot: _Slot) -> Launcher:
        """Its launcher, once that is open. Raises `LaunchError` if it cannot be (a mistake in the inventory)."""
        if slot.opening is not None:
            await asyncio.wait([slot.opening])
        if slot.failure is not None:
            raise slot.failure
        return slot.launcher

    def known(self, node: str) -> Launcher | None:
        """The node's launcher, for questions that it answers from what it knows."""
        slot = self._slots.get(node)
        return None if slot is None else slot.launcher

    def spec(self, node: str) -> NodeSpec:
        """The node's entry in the inventory, also if it has left that, as long as something of ours is there. Raises
        `NodeUnreachable`."""
        with self.use(node) as slot:
            return slot.spec

    # --- silence

    def shown(self, name: str) -> Node | None:
        """The node as the cluster last told it, if it is in the inventory."""
        return self._nodes.get(name)

    def silence(self, name: str) -> tuple[str, bool] | None:
        """Why nothing can be asked of the node's engine, and whether its reporter answers; `None`: it can be asked."""
        trouble = self._troubles.get(name)
        if trouble is None and name not in self._slots:
            trouble = f"node {name!r} is not in the inventory"
        return None if trouble is None else (trouble, name in self._nodes and self._nodes[name].reporting)

    def _trouble(self, name: str, trouble: str | None, first: bool = False) -> None:
        before = self._troubles.get(name)
        if trouble is None:
            self._troubles.pop(name, None)
        else:
            self._troubles[name] = trouble
        self._cluster.set_trouble(name, trouble)
        if first or trouble != before:
            self._on_silence(name)

    def _changed(self, name: str, node: Node | None) -> None:
        before = self._nodes.get(name)
        self._update(name, node)
        if before is not None and before.reporting != (node is not None and node.reporting):
            if node is not None and not node.reporting and name in self._slots:
                self._slots[name].launcher.doubt()
            if self.silence(name) is not None:
                self._on_silence(name)
        if node is not None:
            self._on_report(node)

    def _update(self, name: str, node: Node | None) -> None:
        if node is None:
            self._nodes.pop(name, None)
            self._refusing.clear()
            self.index.remove(name)
            self._on_room(True)  # none of it, but who waits is told of other nodes
            if not self._holds(name) and name in self._slots:
                self._retire(self._slots.pop(name))
            return
        if name not in self._nodes:
            self._refusing.clear()
        before, self._nodes[name] = self._nodes.get(name), node
        self.index.update(overlay(node, self._holds(name), self._seen.get(name, ())))
        self._take_up(name)
        self._on_room(before is None or _as_selected(before) != _as_selected(node))

    def _take_up(self, name: str) -> None:
        try:
            spec = self._cluster.spec(name)
        except NotFound:
            return  # gone since; we are told next
        slot = self._slots.get(name)
        if slot is not None and slot.spec is spec:
            return
        if slot is not None and _launchers_part(slot.spec) == _launchers_part(spec):
            slot.spec = spec
            return
        self._refusing.clear()
        if slot is not None:
            self._retire(slot)
        replaced = slot is not None
        moved = slot is not None and slot.spec.docker != spec.docker
        try:
            slot = self._slots[name] = _Slot(spec, self._make_launcher(spec))
        except GpufitError as error:
            self._log.error("node %s: %s", name, error)
            self._slots.pop(name, None)
            self._trouble(name, error.message)
            return
        slot.opening = asyncio.get_running_loop().create_task(self._open(slot))
        if replaced:
            self._trouble(name, None)  # what the launcher before said was of another engine
        if moved:
            self._cluster.set_host(name, None, None)  # and perhaps of another machine

    async def _open(self, slot: _Slot) -> None:
        name = slot.spec.name

        def claims(now: Sequence[Claim]) -> None:
            if self._slots.get(name) is slot:
                self._seen[name] = now
                self._cluster.set_claims("engine", name, now)
                self._on_claims(name, now)

        def trouble(now: str | None) -> None:
            if self._slots.get(name) is slot:
                first, slot.heard = not slot.heard, True
                self._trouble(name, now, first)

        def host(cpus: float | None, ram: int | None) -> None:
            if self._slots.get(name) is slot:
                self._cluster.set_host(name, cpus, ram)

        try:
            await slot.launcher.open(self._on_exit, claims, trouble, host)
            self._on_open(name)
        except GpufitError as error:
            slot.failure = error
            trouble(error.message)
            self._log.error("node %s: %s", name, error)
        except Exception as error:
            slot.failure = LaunchError(f"node {name!r} cannot be used: {type(error).__name__}: {error}")
            trouble(slot.failure.message)
            self._log.exception("the launcher of node %s could not be opened", name)

    def _retire(self, slot: _Slot, anyway: bool = False) -> None:
        """Close it once nobody uses it; `anyway`: now."""
        slot.retired = True
        if anyway or not slot.users:
            self._close(slot)

    def _close(self, slot: _Slot) -> None:
        task = asyncio.get_running_loop().create_task(self._close_now(slot))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_now(self, slot: _Slot) -> None:
        if slot.opening is not None and not slot.opening.done():
            slot.opening.cancel()
            await asyncio.wait([slot.opening])
        try:
            await slot.launcher.close()
        except Exception:  # nothing can be done about it, and the others have to be closed
            self._log.exception("the launcher of node %s did not close", slot.spec.name)
        # (Not when all is closed: then nobody knows any more, which does not mean that nothing is there.)
        if self._unsubscribe is not None and slot.spec.name not in self._slots:
            self._seen.pop(slot.spec.name, None)
            self._cluster.set_claims("engine", slot.spec.name, ())
            self._troubles.pop(slot.spec.name, None)
            self._cluster.set_trouble(slot.spec.name, None)
            self._cluster.set_host(slot.spec.name, None, None)


def _refusal(image: str | None, refusing: Mapping[str, str]) -> str:
    """Why no node can run `image`, and what to do. `refusing`: each node's reason."""
    if set(refusing.values()) == {_NO_IMAGES}:
        nodes = "the cluster's nodes run" if len(refusing) > 1 else f"{next(iter(refusing))} runs"
        return f"image {image!r} cannot be used: {nodes} plain processes, without images; leave the image out"
    by_reason: dict[str, list[str]] = {}
    for node, reason in sorted(refusing.items()):
        by_reason.setdefault(reason, []).append(node)
    by_reason.pop(_NO_IMAGES, None)  # no help: what to ask for instead is what the others allow
    shown = [f"{', '.join(nodes[:3])}{' …' if len(nodes) > 3 else ''}: {why}" for why, nodes in by_reason.items()]
    return (
        f"no node allows the image {image!r} ({'; '.join(shown[:3])}{' …' if len(shown) > 3 else ''}); "
        "ask for one that is allowed, or leave the image out"
    )


def overlay(node: Node, claims: Sequence[Claim], seen: Sequence[Claim] = ()) -> Node:
    """`node` with what `claims` hold there and it does not show yet. `seen`: what else is known to be held there."""
    if asking := [claim for held in (claims, seen) for claim in held if claim.cpus or claim.ram]:
        node = _less(node, asking)
    by_uuid: dict[str, list[Claim]] = {}
    for claim in claims:
        for uuid in claim.gpus:
            by_uuid.setdefault(uuid, []).append(claim)
    if not by_uuid:
        return node
    gpus = tuple(_held(gpu, by_uuid.get(gpu.uuid, [])) for gpu in node.gpus)
    return node if gpus == node.gpus else msgspec.structs.replace(node, gpus=gpus)


def _less(node: Node, claims: Sequence[Claim]) -> Node:
    """`node` with no more cores and memory of the machine left than all `claims` there leave. (It does not say which of
    them it counts; together they are all that anybody knows of.)"""
    cpus, ram = left_of(node.cpus, node.ram, claims)
    if node.cpus_free is not None and cpus is not None and cpus < node.cpus_free:
        node = msgspec.structs.replace(node, cpus_free=cpus)
    if node.ram_free is not None and ram is not None and ram < node.ram_free:
        node = msgspec.structs.replace(node, ram_free=ram)
    return node


def _held(gpu: Gpu, claims: list[Claim]) -> Gpu:
    new = [claim for claim in claims if claim.allocation not in gpu.allocations]
    if not new:
        return gpu
    free = gpu.memory_free
    return msgspec.structs.replace(
        gpu,
        idle=False,
        shareable=(gpu.idle or gpu.shareable) and all(claim.shared for claim in new),
        memory_free=None if free is None else max(0, free - sum(claim.gpus[gpu.uuid] for claim in new)),
        allocations=(*gpu.allocations, *(claim.allocation for claim in new)),
    )


def _as_selected(node: Node) -> tuple[Any, ...]:
    """What of a node decides on what fits there. Of a GPU that nobody can have now, its free memory does not."""
    gpus = ((_selected_by(gpu), gpu.memory_free if gpu.idle or gpu.shareable else None) for gpu in node.gpus)
    return msgspec.structs.replace(node, gpus=(), age=None), *gpus


def _launchers_part(spec: NodeSpec) -> NodeSpec:
    return msgspec.structs.replace(spec, **_NOT_THE_LAUNCHERS)

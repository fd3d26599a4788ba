"""The cluster cache: what every node last said, what is held there, and why a node is not usable. Asks no node.

    poller ─ set_inventory, reported, failed ─┐
    scheduler ─ set_claims, set_trouble, … ───┼→ one entry per node → nodes(), on_change
    time (a report that gets old) ─ refresh ──┘

It is what `scheduling/needs.py` calls `Cluster`. Used from one event loop; it starts nothing and waits for nothing.
Ages are differences of *our* monotonic clock: when a report arrived, less the age it said it had. Clocks of different
machines are never compared.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..durations import format_duration, format_moment
from ..errors import NotFound
from ..inventory import Inventory, NodeSpec
from ..models import Claim, Gpu, Node, Report
from .checks import clean
from .effective import effective, left_of, used_by_each

__all__ = ["Cache", "OnChange"]

OnChange = Callable[[str, Node | None], None]

_log = logging.getLogger(__name__)

_STRIKES = 2
"""So many polls in a row that failed make a node unusable. One alone does not, while its last report is fresh."""
_MOST_OF_TROUBLE = 500
"""Characters of what a launcher says that are shown."""


class _Entry(Struct):
    """What is known of one node."""

    spec: NodeSpec
    report: Report | None = None
    sampled: float = 0.0
    """When the report's sample was taken, on our monotonic clock."""
    failures: int = 0
    """Polls that failed since the last good one."""
    failure: str = ""
    since: float = 0.0
    """Unix time (ours) of the first of those."""
    gpus: tuple[Gpu, ...] = ()
    """Effective."""
    cpus_free: float | None = None
    ram_free: int | None = None
    past: list[tuple[float, Claim]] = []
    """Claims given up since the report was sampled, and when (our monotonic clock)."""
    told: Node | None = None
    """The node as callbacks know it."""
    uses: dict[str, dict[str, int | None]] | None = None
    """What each allocation uses there, once somebody has asked; until something is reported, or claimed, anew."""


class Cache:
    """Nodes by name, in the effective view. `clock` is monotonic, `wall` Unix time; both in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._entries: dict[str, _Entry] = {}
        # By node and source. Apart from the entries: what is held on a node that left the inventory is still held.
        self._claims: dict[str, dict[str, tuple[Claim, ...]]] = {}
        self._troubles: dict[str, str | None] = {}  # what the nodes' launchers said last; likewise
        self._hosts: dict[str, tuple[float | None, int | None]] = {}  # cores and memory of their machines; likewise
        self._callbacks: dict[object, OnChange] = {}
        self._to_tell: deque[str] = deque()
        self._telling = False
        self.inventory = Inventory(nodes=())
        """The inventory in force (policy, path)."""

    # --- for the scheduler (`needs.Cluster`), and everybody who shows nodes

    def nodes(self) -> Sequence[Node]:
        """All nodes of the inventory, usable or not, in the effective view, by name."""
        return [self._node(self._entries[name]) for name in sorted(self._entries)]

    def node(self, name: str) -> Node:
        """One of them. Raises `NotFound`."""
        return self._node(self._entry(name))

    def spec(self, node: str) -> NodeSpec:
        """The node's entry in the inventory. Raises `NotFound`."""
        return self._entry(node).spec

    def claims(self, node: str) -> list[Claim]:
        """What is held on `node`, one claim per allocation: the one that knows what runs in it, if any does."""
        known: dict[str, Claim] = {}
        for claim in self._said(node):
            before = known.get(claim.allocation)
            if before is None or not (before.container or before.pids):
                known[claim.allocation] = claim
        return list(known.values())

    def uses(self, node: str, allocation: str) -> dict[str, int | None]:
        """Bytes that the allocation's own processes use of each GPU of `node`, as last reported (`None`: not known)."""
        entry = self._entries.get(node)
        if entry is None or entry.report is None:
            return {}
        if entry.uses is None:
            entry.uses = used_by_each(entry.report.gpus, self._said(node))
        return entry.uses.get(allocation, {})

    def set_claims(self, source: str, node: str, claims: Sequence[Claim]) -> None:
        """What `source` says is held on `node`; replaces what it said before. The node need not be in the inventory.

        An allocation that several sources name counts once (see `effective`). A claim is given up only when what ran
        for it is confirmed gone: its GPUs are free at once then, although the last report still shows it there.
        """
        said = self._said(node)
        before = self._claims.get(node, {})
        after = (
            {**before, source: tuple(claims)}
            if claims
            else {key: said for key, said in before.items() if key != source}
        )
        if after == before:
            return
        if after:
            self._claims[node] = after
        else:
            del self._claims[node]
        if (entry := self._entries.get(node)) is not None:
            kept, now = self._said(node), self._clock()
            ran = (claim for claim in said if claim.container or claim.pids)
            entry.past += [(now, claim) for claim in ran if claim not in kept]
        self._recompute(node)

    def set_trouble(self, node: str, trouble: str | None) -> None:
        """What the node's launcher says: why nothing can be started there, or that something can (`None`)."""
        first = node not in self._troubles
        self._troubles[node] = None if trouble is None else clean(trouble, _MOST_OF_TROUBLE)
        if (entry := self._entries.get(node)) is not None:
            if first:
                entry.told = None  # that it was heard from is news for whoever waits for `unheard`
            self._tell(node)

    def set_host(self, node: str, cpus: float | None, ram: int | None) -> None:
        """The machine's cores, and the bytes of its own memory, as the node's launcher says; `None`: not known."""
        if self._hosts.get(node, (None, None)) == (cpus, ram):
            return
        self._hosts[node] = cpus, ram
        self._recompute(node)

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        """Call `callback` for every node now, then with each node that changed, came, or (`None`) went.

        A node that merely got older has not changed. A changed entry in the inventory counts as a change of the node.
        The returned function ends it.
        """
        key = object()
        self._callbacks[key] = callback
        for name in sorted(self._entries):
            self._call(callback, name, self._node(self._entries[name]))

        def end() -> None:
            self._callbacks.pop(key, None)

        return end

    def unheard(self) -> list[str]:
        """Names of the nodes of which something is not known yet: those that have neither reported nor failed to, and
        those whose launcher has not said whether their engine answers. The service waits a moment for them."""
        return [
            name
            for name, entry in self._entries.items()
            if (entry.report is None and not entry.failures)
            or (entry.spec.launcher == "docker" and name not in self._troubles)
        ]

    # --- for the poller

    def set_inventory(self, inventory: Inventory) -> None:
        """Take up the nodes of `inventory`: those that stay keep their last report unless it came from elsewhere."""
        self.inventory = inventory
        specs = {spec.name: spec for spec in inventory.nodes}
        for name in [name for name in self._entries if name not in specs]:
            del self._entries[name]
            self._tell(name)
        for name, spec in specs.items():
            entry = self._entries.get(name)
            if entry is None or entry.spec.report != spec.report:
                self._entries[name] = _Entry(spec=spec)
            elif entry.spec != spec:
                if entry.spec.models != spec.models and entry.report is not None:
                    entry.report = replace(entry.report, models=None)  # it told of another directory
                entry.spec = spec
                entry.told = None
            else:
                continue
            self._recompute(name)

    def reported(self, name: str, report: Report) -> None:
        """The node's reporter gave `report` just now."""
        entry = self._entries.get(name)
        if entry is not None:
            before = None if entry.report is None else entry.report.models
            # The same object for the same models: there may be a thousand, and this is compared again and again.
            entry.report = replace(report, models=before) if report.models == before else report
            entry.sampled = self._clock() - max(0.0, report.age)
            entry.failures = 0
            self._recompute(name)

    def failed(self, name: str, reason: str) -> int:
        """Asking the node failed. Returns how often in a row."""
        entry = self._entries.get(name)
        if entry is None:
            return 0
        if not entry.failures:
            entry.since = self._wall()
        entry.failures += 1
        entry.failure = reason
        self.refresh(name)
        return entry.failures

    def refresh(self, name: str) -> None:
        """Look again whether the node is usable, as time has passed. Called when a report gets stale."""
        if name in self._entries:
            self._tell(name)

    def stale_in(self, name: str) -> float | None:
        """Seconds until the node's last report is stale (0 or less: it is); `None` if there is none."""
        entry = self._entries.get(name)
        if entry is None or entry.report is None:
            return None
        return entry.spec.stale_after - self._age(entry)

    # --- inside

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise NotFound(
                f"there is no node {name!r}; the nodes are {', '.join(sorted(self._entries)) or 'none'}"
            ) from None

    def _said(self, name: str) -> list[Claim]:
        """All claims on a node, whoever says so."""
        return [claim for said in self._claims.get(name, {}).values() for claim in said]

    def _recompute(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            entry.uses = None
            # A report sampled later tells by itself; one sampled earlier may still come, until it would be stale.
            since = max(entry.sampled, self._clock() - entry.spec.stale_after)
            entry.past = [(when, claim) for when, claim in entry.past if when > since]
            past = [claim for _, claim in entry.past]
            said = self._said(name)
            entry.gpus = effective(entry.report.gpus if entry.report else (), said, past)
            entry.cpus_free, entry.ram_free = left_of(*self._hosts.get(name, (None, None)), said)
            self._tell(name)

    def _age(self, entry: _Entry) -> float:
        return max(0.0, self._clock() - entry.sampled)

    def _node(self, entry: _Entry) -> Node:
        spec, report = entry.spec, entry.report
        cpus, ram = self._hosts.get(spec.name, (None, None))
        return Node(
            name=spec.name,
            gpus=entry.gpus,
            labels=spec.labels,
            reason=self._reason(entry),
            age=None if report is None else self._age(entry),
            reporting=self._reporting(entry),
            driver=None if report is None else report.driver,
            cuda=None if report is None else report.cuda,
            launcher=spec.launcher,
            # What is not mounted is of no use, whatever the reporter looks through.
            models=None if report is None or spec.models is None else report.models,
            model_store=spec.models is not None,
            models_write=spec.models_write,
            cpus=cpus,
            cpus_free=entry.cpus_free,
            cpus_limit=spec.cpus,
            ram=ram,
            ram_free=entry.ram_free,
            ram_limit=spec.ram,
        )

    def _reporting(self, entry: _Entry) -> bool:
        """Whether the reporter answers, as far as is known: one failure, or none so far, is no silence."""
        if entry.report is None:
            return not entry.failures
        return entry.failures < _STRIKES and self._age(entry) < entry.spec.stale_after

    def _reason(self, entry: _Entry) -> str | None:
        """Why nothing may be placed on the node now. Does not change while nothing happens, so it names no ages."""
        report = entry.report
        if entry.failures and (report is None or entry.failures >= _STRIKES):
            return f"unreachable since {format_moment(entry.since)}: {entry.failure}"
        if report is None:
            return "it has not reported yet"
        if report.error is not None:
            return report.error
        if self._age(entry) >= entry.spec.stale_after:
            return f"its last report is stale: sampled more than {format_duration(entry.spec.stale_after)} ago"
        if not report.gpus:
            return "it reports no GPU"
        return self._troubles.get(entry.spec.name)

    def _tell(self, name: str) -> None:
        """Tell callbacks about the node, if there is news. What a callback does may be news again: that comes after, so
        that all callbacks see all changes in the same order."""
        self._to_tell.append(name)
        if self._telling:
            return
        self._telling = True
        try:
            while self._to_tell:
                name = self._to_tell.popleft()
                entry = self._entries.get(name)
                node = None if entry is None else self._node(entry)
                if entry is not None and node is not None:
                    if entry.told is not None and replace(entry.told, age=None) == replace(node, age=None):
                        continue
                    entry.told = node
                for callback in list(self._callbacks.values()):
                    self._call(callback, name, node)
        finally:
            self._telling = False

    def _call(self, callback: OnChange, name: str, node: Node | None) -> None:
        try:
            callback(name, node)
        except Exception:  # of code that is not ours: the other callbacks, and the poller, go on
            _log.exception("a callback failed for node %s", name)

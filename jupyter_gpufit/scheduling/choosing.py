"""What a request gets now: a node, or a refusal, by its owner's quota, by selection, and by who waits before it.

quota ─→ selection ─→ delays what waits before it? ─→ selection elsewhere ─→ Choice
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from traitlets import Int

from ..errors import Forbidden, GpufitError, ImageRefused, NoFit
from ..inventory import Quota
from ..models import Allocation, Claim, Request, State
from .backfill import Guard, Outlook, Start, frees
from .entries import Entry
from .explain import in_short
from .fit import Decision
from .fleet import overlay
from .handling import Handling
from .policies import Policy
from .queueing import START_TAKES
from .quotas import Holding, admit, excess

__all__ = ["Choice", "Choosing"]

Asked = tuple[Any, ...]

_KEPT = "it is kept for a request that waits before this one"
_MOST_FOUND = 256
_FRESH = 1.0  # s; what has to end for whom is found out anew after that: time limits pass
_NOT_SELECTS = {"name", "time", "wait", "priority", "folder", "notebook", "job", "labels"}
_SELECTS = tuple(field for field in Request.__struct_fields__ if field not in _NOT_SELECTS)
"""What of a request selection goes by, beside its labels; `image`, since not every node allows each."""


@dataclass(frozen=True)
class Choice:
    """What a request gets: a placement (`decision.placement`), or a refusal."""

    decision: Decision | None
    overtakes: str | None = None
    """The allocation before it that may be delayed by it."""
    refusal: Callable[[], GpufitError] | None = None
    missing: Callable[[], str] = str
    """Why it gets none, for one that waits."""
    frees: str = ""
    """What would help, unless it is `unfit`."""
    unfit: bool = False
    """No node has enough, whoever waits before it."""


class _Found:
    """What was found out since something changed: many that wait may ask for the same."""

    def __init__(self) -> None:
        self.unfit: dict[Asked, Choice] = {}
        """Of requests that no node has enough for."""
        self.frees: dict[Asked, Start | None] = {}
        self.outlook: Outlook | None = None

    def keep(self, asked: Asked, unfit: Choice) -> None:
        """Remember it."""
        if len(self.unfit) >= _MOST_FOUND:
            self.unfit.clear()
        self.unfit[asked] = unfit

    def forget(self) -> None:
        """Something changed."""
        self.unfit.clear()
        self.frees.clear()
        self.outlook = None


class Choosing(Handling):
    """Base of `Placing`. Changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._found = _Found()

    overtakes = Int(
        8,
        help="How many later requests may go before one that waits when nobody knows whether that delays it, "
        "because what runs has no time limits.",
    ).tag(config=True)

    def _would_get(self, request: Request) -> Decision:
        """A dry run, for nobody in particular (so without quotas). Raises `ImageRefused`."""
        asked = Allocation(id="", name="", owner="", request=request, created=self._clock())
        decision = self._choose(Entry(allocation=asked, hosted=True), quotas=False).decision
        assert decision is not None, "only a quota keeps selection from being asked"
        return decision

    def _choose(self, entry: Entry, quotas: bool = True) -> Choice:
        """What the request gets now. Raises `Forbidden` or `ImageRefused` for what it can never have."""
        now = entry.allocation
        request, quota = now.request, self._cluster.inventory.quota(now.owner)
        exclude = dict(self._fleet.exclude(request, entry.avoid))
        held: list[Holding] = []
        if quotas:
            admit(request, quota)
            if _limits_holdings(quota):
                held = self._holdings(now)
                if (why := excess(request.gpus, quota, held)) is not None:
                    return self._over(request, exclude, why)
        asked = self._policy_name(), *_as_asked(entry)
        if (known := self._found.unfit.get(asked)) is not None:
            return known
        left_out = len(exclude)

        def fitting() -> Decision:
            # (Policy `claim` mounts more GPUs than were asked for.)
            while (where := (decision := self._select(request, exclude)).placement) is not None:
                if not quotas or (why := excess(len(where.gpus), quota, held)) is None:
                    break
                exclude[where.node] = why
            return decision

        decision = fitting()
        if decision.placement is None:
            unfit = Choice(decision, refusal=decision.refusal, missing=lambda: in_short(decision), unfit=True)
            if len(exclude) == left_out:  # else that is so for its owner alone
                self._found.keep(asked, unfit)
            return unfit
        if not (before := self._before(entry)):
            return Choice(decision)
        return self._behind(entry, before, decision, exclude, fitting)

    def _over(self, request: Request, exclude: Mapping[str, str], why: str) -> Choice:
        """What its owner cannot have now because of what they hold; unless nobody ever could."""
        decision = self._select(request, exclude)
        if decision.never:
            return Choice(decision, refusal=decision.refusal, missing=lambda: in_short(decision), unfit=True)
        return Choice(
            None,
            refusal=lambda: _forbidden(why),
            missing=lambda: why,
            frees="it can start as soon as you hold less",
        )

    def _behind(
        self,
        entry: Entry,
        before: list[Entry],
        first: Decision,
        exclude: dict[str, str],
        fitting: Callable[[], Decision],
    ) -> Choice:
        """What it gets if it does not delay the one that is first of those before it."""
        head, outlook = before[0], self._outlook()
        guard = Guard(outlook, head.allocation.request, self._excluded(head))
        assert first.placement is not None
        if not self._delayed(guard, entry, first, outlook):
            return Choice(first)
        exclude |= dict.fromkeys(guard.nodes if guard.start is None else (first.placement.node,), _KEPT)
        second = fitting()
        if second.placement is not None:
            return Choice(second)
        if guard.start is None and head.overtaken < self.overtakes:
            return Choice(first, overtakes=head.id)
        they = "1 request waits" if len(before) == 1 else f"{len(before)} requests wait"
        why = f"{first.request.describe()} would fit now, on {first.placement.node}, but {they} before this one"

        def refusal() -> NoFit:
            return NoFit(
                f"{why}, and may not be delayed by it; ask with --wait 10m (`wait`) to wait, too",
                stages=second.explain()["stages"],
                nearest=None,
                before=len(before),
            )

        return Choice(
            second,
            refusal=refusal,
            missing=lambda: f"{why}, and may not be delayed by it",
            frees="it can start when those before it have started, or sooner where that delays none of them",
        )

    def _delayed(self, guard: Guard, entry: Entry, decision: Decision, outlook: Outlook) -> bool:
        where, node, asked = decision.placement, decision.target, entry.allocation
        assert where is not None
        assert node is not None
        claim = Claim(
            allocation=entry.id,
            scheduler=self.id,
            owner=asked.owner,
            gpus=dict(zip(where.gpus, where.memory, strict=True)),
            shared=asked.request.shared,
            cpus=asked.request.cpus or 0.0,
            ram=asked.request.host_memory or 0,
        )
        end = None if asked.request.time is None else outlook.now + START_TAKES + float(asked.request.time)
        return guard.delayed(claim, overlay(node, [claim], outlook.claims.get(node.name, ())), end)

    def _before(self, entry: Entry) -> list[Entry]:
        """Those that wait before it, without those that only wait for their own owner to hold less."""
        before = []
        for other in self._ledger.queue():
            if other is entry or other.rank > entry.rank:
                break
            if not self._over_quota(other.allocation):
                before.append(other)
        return before

    def _comes_first(self, entry: Entry) -> bool:
        """Of one that waits: whether nobody is before it."""
        passed = False
        for other in self._ledger.entries.values():
            if other is entry:
                passed = True
            elif other.queued and (other.rank, passed) < (entry.rank, True) and not self._over_quota(other.allocation):
                return False
        return True

    def _frees(self, entry: Entry) -> tuple[Start | None, float]:
        """What has to end for one that fits nowhere now, and when that was so."""
        found, now = self._found, self._clock()
        if found.outlook is None or not 0 <= now - found.outlook.now <= _FRESH:
            found.outlook = self._outlook()
            found.frees.clear()
        if (asked := _as_asked(entry)) not in found.frees:
            found.frees[asked] = frees(found.outlook, entry.allocation.request, self._excluded(entry))
        return found.frees[asked], found.outlook.now

    def _over_quota(self, asked: Allocation) -> bool:
        quota = self._cluster.inventory.quota(asked.owner)
        if not _limits_holdings(quota):
            return False
        return excess(asked.request.gpus, quota, self._holdings(asked)) is not None

    def _holdings(self, asked: Allocation) -> list[Holding]:
        """What its owner holds beside it, here and (as far as it runs) by way of other schedulers."""
        entries = self._ledger.entries
        held = [
            Holding(name=other.allocation.name, gpus=len(other.allocation.gpus) or other.allocation.request.gpus)
            for other in entries.values()
            if other.allocation.owner == asked.owner
            and other.id != asked.id
            and other.state is not State.ENDED
            and not other.waiting
        ]
        elsewhere = {
            claim.allocation: Holding(gpus=len(claim.gpus))
            for claims in self._fleet.seen().values()
            for claim in claims
            if claim.owner == asked.owner
            and claim.allocation not in entries
            and claim.scheduler not in self._store.schedulers
        }
        return [*held, *elsewhere.values()]

    def _select(self, request: Request, exclude: Mapping[str, str]) -> Decision:
        return self._fleet.index.select(request, self._policy(), exclude)

    def _policy(self) -> Policy:
        return self._learning.policy()

    def _policy_name(self) -> str:
        return self.policy or self._cluster.inventory.policy

    def _excluded(self, entry: Entry) -> Mapping[str, str]:
        try:
            return self._fleet.exclude(entry.allocation.request, entry.avoid)
        except ImageRefused as error:
            return dict.fromkeys((node.name for node in self._fleet.index.nodes), error.message)

    def _outlook(self) -> Outlook:
        now, seen, ours = self._clock(), self._fleet.seen(), self._store.schedulers
        nodes = {node.name: node for node in self._fleet.index.nodes}
        claims = {name: (*self._ledger.claims(name), *seen.get(name, ())) for name in nodes}
        ends = self._ledger.ends(now)
        for claim in (claim for found in seen.values() for claim in found):
            if claim.allocation in self._ledger.entries:
                continue
            if claim.scheduler in ours:  # it has ended: its engine has not told yet, or it is about to be removed
                ends[claim.allocation] = now
            elif claim.expires is not None and claim.expires > now:
                ends[claim.allocation] = claim.expires
        return Outlook(nodes, claims, ends, now, self._policy())


def _limits_holdings(quota: Quota) -> bool:
    """Whether it depends on what its owner holds."""
    return quota.gpus is not None or quota.allocations is not None


def _as_asked(entry: Entry) -> Asked:
    """What selection sees of its request: those of a sweep have this in common."""
    request = entry.allocation.request
    return entry.avoid, *sorted(request.labels.items()), *(getattr(request, wish) for wish in _SELECTS)


def _forbidden(why: str) -> Forbidden:
    return Forbidden(
        f"{why}; release what you do not need, or ask with --wait 10m (`wait`) to wait until you hold less"
    )

"""The policies: what each of the four stages of selection asks of a node, and which of its GPUs are taken.

A policy is one small object with a name. `fit.py` walks the nodes through its stages and writes down the reasons;
`index.py` asks `screen`, the same verdict on arrays for many nodes at once. To add one: subclass `Policy` and
`register` it.

The patent's four stages, and the two readings of them:

    stage                 claim (to the letter)                          best-fit (what a person wants)
    1 enough              idle GPUs >= N, and their free memory in all   idle GPUs >= N, and the free memory of the N
                          >= the memory asked in all                     freest >= the memory asked in all
    2 apart               all idle GPUs: not all on one card (*)         some N of them are on N cards
    3 order               (idle GPUs, their free memory in all), ascending; then those with the model; then by name
    4 fits                every idle GPU has the memory asked            some N of them have
    mounted               every idle GPU                                 exactly those N

Two more differ from `best-fit` in stage 3 alone; they are next door, with numpy, in `potentials.py`.

(*) Where the letter leaves no sense or contradicts the rest, `Claim` deviates from it in two ways; see there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar, Self

from ..errors import InvalidValue
from ..memory import compare
from ..models import Gpu, Node, Placement, Request
from .assign import assign, free_of, offers, shortfall
from .candidates import Pool

if TYPE_CHECKING:
    from .mix import Mix
    from .shelves import Columns, Mask
    from .terrain import Terrain

__all__ = ["POLICIES", "BestFit", "Claim", "Policy", "find", "names", "register"]


class Policy(ABC):
    """How the four stages are read. Immutable. A stage returns why the node does not pass, `None` if it does."""

    name: ClassVar[str]
    by: str = "the fullest node first: fewest idle GPUs, then least free memory"
    """What stage 3 goes by, for people."""
    learns: ClassVar[bool] = False
    """Whether `learned` is another one than the policy itself."""

    @abstractmethod
    def enough(self, pool: Pool) -> str | None:
        """Stage 1: enough candidate GPUs, and enough free memory on them in all."""

    @abstractmethod
    def apart(self, pool: Pool) -> str | None:
        """Stage 2: the GPUs are not bound to one and the same physical card."""

    def order(self, pool: Pool) -> tuple[int, int]:
        """Stage 3: the key by which nodes are walked, ascending: candidates, bytes free on all. Of those with one key
        the ones that have the request's model come first, and then it is by name."""
        return len(pool.gpus), pool.total

    def ordering(self, nodes: Sequence[Node], request: Request) -> Callable[[Pool], tuple[int, int]]:
        """`order`, for a policy to which it matters what all `nodes` of the cluster have free."""
        return self.order

    def terrain(self, before: Terrain | None) -> Terrain | None:
        """What gives that order for many nodes at once, if it is not the one of `order` above. The index keeps it up to
        date; `before`: the one it has kept so far, which may be made this policy's."""
        return None

    def learned(self, mix: Mix, nodes: Iterable[Node]) -> Self:
        """The policy for what is known of what people ask of these nodes. Called on any thread; may take its time."""
        return self

    @abstractmethod
    def fits(self, pool: Pool) -> str | None:
        """Stage 4: each GPU has the memory asked of it."""

    @abstractmethod
    def place(self, pool: Pool) -> Placement:
        """The GPUs to take of a node that passed all stages."""

    @abstractmethod
    def offer(self, pool: Pool, gpus: int) -> int | None:
        """The largest size (bytes) of which this node could serve `gpus` GPUs now; `None` if it could serve no size."""

    @abstractmethod
    def could(self, request: Request, possible: Sequence[tuple[Gpu, int]]) -> bool:
        """Whether some of the `possible` GPUs, with so many bytes each, could ever pass all stages together."""

    def screen(self, columns: Columns, request: Request) -> Mask | None:
        """The verdict of stages 1, 2 and 4 together on many nodes at once, given that stage 3 is as above.

        `None` if the policy has no such form: then every node is walked.
        """
        return None


def steps(request: Request) -> list[tuple[int, int]]:
    """Each distinct size asked, largest first, with how many GPUs need at least it."""
    result, needed = [], 0
    for size, alike in groupby(sorted(request.sizes, reverse=True)):
        needed += len(list(alike))
        result.append((size, needed))
    return result


class BestFit(Policy):
    """`best-fit`, the default: exactly N GPUs, at most one of a card (unless the request says `share_card`).

    A node passes a stage when some N of its GPUs can. Wherever `claim` finds a node, this finds one.
    """

    name = "best-fit"

    def enough(self, pool: Pool) -> str | None:
        if (reason := _too_few(pool)) is not None:
            return reason
        asked = sum(pool.request.sizes)
        count = pool.request.gpus
        have = sum(sorted(pool.free, reverse=True)[:count])
        if have >= asked:
            return None
        return _too_little(pool, count, have, asked)

    def apart(self, pool: Pool) -> str | None:
        if pool.request.share_card or pool.cards >= pool.request.gpus:
            return None
        return _on_cards(pool)

    def fits(self, pool: Pool) -> str | None:
        short = shortfall(offers(pool.gpus, pool.request.share_card), pool.request.sizes)
        return None if short is None else _too_small(*short)

    def place(self, pool: Pool) -> Placement:
        chosen = assign(pool.gpus, pool.request.sizes, pool.request.share_card)
        assert chosen is not None, "placed only where it fits"
        return Placement(node=pool.node.name, gpus=tuple(gpu.uuid for gpu in chosen), memory=pool.request.sizes)

    def offer(self, pool: Pool, gpus: int) -> int | None:
        offered = offers(pool.gpus, pool.request.share_card)
        return free_of(offered[gpus - 1]) if len(offered) >= gpus else None

    def could(self, request: Request, possible: Sequence[tuple[Gpu, int]]) -> bool:
        most = {gpu.uuid: memory for gpu, memory in possible}
        offered = offers([gpu for gpu, _ in possible], request.share_card, lambda gpu: most[gpu.uuid])
        return shortfall(offered, request.sizes, lambda gpu: most[gpu.uuid]) is None

    def screen(self, columns: Columns, request: Request) -> Mask | None:
        # Stage 4 implies 1 and 2: N GPUs on N cards that each have their size have the sizes' sum, too.
        serving = columns.gpus_with if request.share_card else columns.cards_with
        (size, needed), *rest = steps(request)
        mask = serving(size) >= needed
        for size, needed in rest:
            mask &= serving(size) >= needed
        return mask


class Claim(BestFit):
    """`claim`: the patent's text to the letter. *Every* idle GPU of the node takes part in all stages, and is mounted.

    Stage 2 says that "the idle GPUs are not bound to one and the same physical card". Two things had to be decided:

    - A node with a single idle GPU passes: one GPU is not bound to another. (Else no node with one GPU would ever
      serve.) Several that are all on one card do not pass, even if only one was asked.
    - For three and more GPUs the letter would pass GPUs on fewer cards than GPUs asked, where `best-fit` (one GPU of a
      card) finds nothing. As `best-fit` is to find a node wherever `claim` does, they have to be on N cards at least,
      unless the request says `share_card`: then the letter alone holds.

    Stage 4 with several sizes: there is an assignment of the sizes as in `best-fit`, and every further GPU, of which
    no size was asked in particular, has the smallest one asked. That size is also what is reserved on it.
    """

    name = "claim"

    def enough(self, pool: Pool) -> str | None:
        if (reason := _too_few(pool)) is not None:
            return reason
        asked = sum(pool.request.sizes)
        if pool.total >= asked:
            return None
        return _too_little(pool, len(pool.gpus), pool.total, asked)

    def apart(self, pool: Pool) -> str | None:
        if len(pool.gpus) > 1 and pool.cards == 1:
            if pool.request.gpus > 1:
                return _on_cards(pool)
            return f"its {len(pool.gpus)} {pool.kind}{pool.which} are on one and the same card"
        return super().apart(pool)

    def fits(self, pool: Pool) -> str | None:
        least = min(pool.request.sizes)
        for gpu in pool.gpus:
            if free_of(gpu) < least:
                return _too_small(gpu, least)
        return super().fits(pool)

    def place(self, pool: Pool) -> Placement:
        asked = super().place(pool)
        rest = tuple(gpu.uuid for gpu in pool.gpus if gpu.uuid not in asked.gpus)
        least = min(pool.request.sizes)
        return Placement(node=asked.node, gpus=asked.gpus + rest, memory=asked.memory + (least,) * len(rest))

    def offer(self, pool: Pool, gpus: int) -> int | None:
        alone = len(pool.gpus) == 1
        cards = 1 if pool.request.share_card else gpus
        if len(pool.gpus) < gpus or pool.cards < cards or (pool.cards == 1 and not alone):
            return None
        return min(pool.free)

    def could(self, request: Request, possible: Sequence[tuple[Gpu, int]]) -> bool:
        # Which GPUs are idle together is chance, so any subset may be: those that are too small may be the busy ones.
        large = [(gpu, memory) for gpu, memory in possible if memory >= min(request.sizes)]
        one_card = len({gpu.card for gpu, _ in large}) == 1
        return super().could(request, large) and (request.gpus == 1 or not one_card)

    def screen(self, columns: Columns, request: Request) -> Mask | None:
        mask = super().screen(columns, request)
        assert mask is not None
        count = columns.count
        mask &= columns.gpus_with(min(request.sizes)) == count
        if columns.shares_cards:
            mask &= (columns.cards_with(0) > 1) | (count == 1)
        return mask


POLICIES: dict[str, Policy] = {}
_POTENTIALS = ("balance", "fragmentation")
"""Names of those of `potentials.py`, which needs numpy: they come to `POLICIES` when the first of them is asked for."""


def names() -> list[str]:
    """Of all policies."""
    return sorted({*POLICIES, *_POTENTIALS})


def register(policy: Policy) -> None:
    """Make `policy` known by its name. Raises `InvalidValue` if the name is taken."""
    if policy.name in names():
        raise InvalidValue(f"there is a policy {policy.name!r} already; give this one another name")
    POLICIES[policy.name] = policy


def find(policy: str | Policy) -> Policy:
    """The policy of that name (or the policy itself). Raises `InvalidValue` naming those there are."""
    if isinstance(policy, Policy):
        return policy
    if policy in _POTENTIALS and policy not in POLICIES:
        from .potentials import Balance, Fragmentation

        for potential in (Balance(), Fragmentation()):
            POLICIES.setdefault(potential.name, potential)
    if not isinstance(policy, str) or policy not in POLICIES:
        raise InvalidValue(f"there is no policy {policy!r}; use one of {', '.join(names())}")
    return POLICIES[policy]


register(BestFit())
register(Claim())


def _too_few(pool: Pool) -> str | None:
    if len(pool.gpus) >= pool.request.gpus:
        return None
    return f"{len(pool.gpus)} {pool.kind}{pool.which}, {pool.request.gpus} asked{pool.out_of_order}"


def _too_little(pool: Pool, taking_part: int, have: int, asked: int) -> str:
    has, wants = compare(have, asked)
    of_all = f"its {len(pool.gpus)} {pool.kind}{pool.which}"
    if len(pool.gpus) == 1:
        text = f"{pool.gpus[0].uuid} has {has} free"
    elif taking_part == 1:
        text = f"the freest of {of_all} has {has} free"
    elif taking_part < len(pool.gpus):
        text = f"the {taking_part} freest of {of_all} have {has} free in total"
    else:
        text = f"{of_all} have {has} free in total"
    return f"{text}, {wants} asked{pool.out_of_order}"


def _on_cards(pool: Pool) -> str:
    cards = "1 card" if pool.cards == 1 else f"{pool.cards} cards"
    return f"its {len(pool.gpus)} {pool.kind}{pool.which} are on {cards}, {pool.request.gpus} asked"


def _too_small(gpu: Gpu | None, size: int) -> str:
    assert gpu is not None, "stage 2 saw to it that there are enough"
    has, wants = compare(free_of(gpu), size)
    return f"{gpu.uuid} has {has} free, {wants} asked"

"""Which GPUs of a node get which of the asked sizes. Pure; used by the policies.

A card whose freest GPU serves a size serves every smaller one, too. So, with the sizes sorted largest first and the
cards by their freest GPU, an assignment exists exactly if the j-th card serves the j-th size, for every j. Among the
assignments, the one wanted leaves the most useful remainder:

    1. tightest      least free memory in total on the GPUs taken, so that the roomy ones stay whole;
    2. near          most pairs joined by NVLink, then most pairs on one NUMA node (where reported);
    3. index         the lowest indices.

How exact that is: (1) always, save on nodes larger than there are (`_MOST_MATCHED`). (2) and (3) where one size is
asked or each card offers one GPU, as long as there are few equally tight choices (`_MOST_TRIES`); beyond that, and for
several sizes on cards cut into instances, by exchanging one GPU at a time for an equally free one while that brings
them nearer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, product
from math import comb, prod

from ..models import Gpu
from .candidates import by_index

__all__ = ["assign", "offers", "shortfall"]

# Bounds, so that a decision stays quick whatever a node reports. No machine comes near the last two.
_MOST_TRIES = 12_000  # pairs of GPUs looked at in all equally tight choices, about 3 ms
_MOST_EXCHANGED = 128  # GPUs among which exchanges are looked for
_MOST_MATCHED = 500_000  # sizes² · cards
_LINK = 2**20  # one link outweighs all pairs on one NUMA node: 1024 GPUs have fewer pairs than this


def free_of(gpu: Gpu) -> int:
    """Bytes free on a candidate (for which it is known)."""
    assert gpu.memory_free is not None
    return gpu.memory_free


def offers(gpus: Sequence[Gpu], share_card: bool, memory: Callable[[Gpu], int] = free_of) -> list[Gpu]:
    """The GPU with most memory of each card (or, with `share_card`, every GPU), most memory first."""
    most_first = sorted(gpus, key=lambda gpu: (-memory(gpu), gpu.index, gpu.uuid))
    if share_card:
        return most_first
    best: dict[str, Gpu] = {}
    for gpu in most_first:
        best.setdefault(gpu.card, gpu)
    return list(best.values())


def shortfall(
    offered: Sequence[Gpu], sizes: Sequence[int], memory: Callable[[Gpu], int] = free_of
) -> tuple[Gpu | None, int] | None:
    """The first offer that is too small, with the size it would have to serve; `None` if all sizes can be served.

    The GPU is `None` when there are fewer offers than sizes.
    """
    for place, size in enumerate(sorted(sizes, reverse=True)):
        if place >= len(offered):
            return None, size
        if memory(offered[place]) < size:
            return offered[place], size
    return None


def assign(gpus: Sequence[Gpu], sizes: Sequence[int], share_card: bool) -> tuple[Gpu, ...] | None:
    """One GPU for each of `sizes` (aligned), on a card of its own unless `share_card`; `None` if there is no choice.

    All of `gpus` must be candidates. Which of the possible choices it is: see the module's docstring.
    """
    if shortfall(offers(gpus, share_card), sizes) is not None:
        return None
    cards = _cards(gpus, share_card)
    wanted = sorted(sizes, reverse=True)
    if wanted[0] == wanted[-1]:
        # One size: of each card only its tightest GPU that serves can be the right one.
        size = wanted[0]
        tight = [next(gpu for gpu in card if free_of(gpu) >= size) for card in cards if free_of(card[-1]) >= size]
        chosen = _nearest(_tightest(tight, wanted), tight)
    elif all(len(card) == 1 for card in cards):
        singles = [card[0] for card in cards]
        chosen = _nearest(_tightest(singles, wanted), singles)
    else:
        chosen = _exchange(_cheapest_matching(cards, wanted), gpus, share_card)
    return _align(chosen, sizes)


def _cards(gpus: Sequence[Gpu], share_card: bool) -> list[list[Gpu]]:
    """The GPUs by card, each card's tightest first; cards in the order of their first GPU's index."""
    cards: dict[str, list[Gpu]] = {}
    for gpu in sorted(gpus, key=by_index):
        cards.setdefault(gpu.uuid if share_card else gpu.card, []).append(gpu)
    return [sorted(card, key=free_of) for card in cards.values()]


def _tightest(gpus: Sequence[Gpu], wanted: Sequence[int]) -> list[Gpu]:
    """The largest size gets the tightest GPU that serves it, and so on down. Exact for GPUs on cards of their own.

    Why: whichever GPU an optimal choice gives the largest size, the tightest one that serves it does as well there, and
    if some smaller size holds that one, the two can change places.
    """
    left = sorted(gpus, key=lambda gpu: (free_of(gpu), gpu.index, gpu.uuid))
    frees = [free_of(gpu) for gpu in left]
    chosen = []
    for size in wanted:
        at = bisect_left(frees, size)
        chosen.append(left.pop(at))
        frees.pop(at)
    return chosen


def _nearest(chosen: list[Gpu], pool: Sequence[Gpu]) -> list[Gpu]:
    """Of all choices from `pool` with the same free memories as `chosen`, the nearest, then that of the lowest indices.

    All tightest choices have the same free memories (they are the cheapest bases of one matroid), and GPUs of the same
    free memory serve the same sizes: so these are all of them.
    """
    counts = Counter(map(free_of, chosen))
    classes = [
        (sorted((gpu for gpu in pool if free_of(gpu) == free), key=by_index), count) for free, count in counts.items()
    ]
    involved = [gpu for members, _ in classes for gpu in members]
    if len(involved) == len(chosen) or not _differ(involved):
        return chosen  # nothing to choose, or nothing to tell them apart: `_tightest` took the lowest indices
    tries = prod(comb(len(members), count) for members, count in classes)
    if tries * comb(len(chosen), 2) > _MOST_TRIES:
        return _exchange(chosen, pool, share_card=True)  # `pool` has one GPU per card
    pair = _pairs(involved)
    parts = product(*(combinations(members, count) for members, count in classes))
    picks: Iterator[list[Gpu]] = (list(chain.from_iterable(part)) for part in parts)
    return min(picks, key=lambda pick: (-_near(pick, pair), sorted(map(by_index, pick))))


def _exchange(chosen: list[Gpu], pool: Sequence[Gpu], share_card: bool) -> list[Gpu]:
    """`chosen`, its GPUs exchanged one by one for equally free ones of `pool` as long as that brings them nearer."""
    frees = set(map(free_of, chosen))
    pool = sorted((gpu for gpu in pool if free_of(gpu) in frees), key=by_index)
    if len(pool) > _MOST_EXCHANGED or not _differ(pool):
        return chosen
    pair = _pairs(pool)
    chosen = sorted(chosen, key=by_index)
    while True:
        taken = {gpu.uuid for gpu in chosen}
        cards = set() if share_card else {gpu.card for gpu in chosen}
        pull = {gpu.uuid: sum(pair.get((gpu.uuid, uuid), 0) for uuid in taken) for gpu in pool}  # to the chosen ones
        gains = [
            (pull[into.uuid] - pair[into.uuid, out.uuid] - pull[out.uuid], -place, -at)
            for place, out in enumerate(chosen)
            for at, into in enumerate(pool)
            if into.uuid not in taken
            and free_of(into) == free_of(out)
            and (into.card not in cards or into.card == out.card)
        ]
        gain, place, at = max(gains, default=(0, 0, 0))
        if gain <= 0:
            return chosen
        chosen[-place] = pool[-at]
        chosen.sort(key=by_index)


def _differ(gpus: Sequence[Gpu]) -> bool:
    """Whether anything is known by which some of the GPUs are nearer to each other than others."""
    if len(gpus) < 3:
        return False
    if len({gpu.numa for gpu in gpus}) > 1:
        return True
    here = {gpu.uuid for gpu in gpus}
    linked = [len(here.intersection(gpu.links)) for gpu in gpus]
    return any(linked) and min(linked) < len(gpus) - 1  # all joined to all (NVSwitch) tells nothing


def _pairs(gpus: Sequence[Gpu]) -> dict[tuple[str, str], int]:
    """How near each two of the GPUs are: a link counts most, then one NUMA node."""
    near: dict[tuple[str, str], int] = {}
    for one, other in combinations(gpus, 2):
        value = _LINK if other.uuid in one.links or one.uuid in other.links else 0
        value += one.numa is not None and one.numa == other.numa
        near[one.uuid, other.uuid] = near[other.uuid, one.uuid] = value
    return near


def _near(pick: Sequence[Gpu], pair: dict[tuple[str, str], int]) -> int:
    return sum(pair[one.uuid, other.uuid] for one, other in combinations(pick, 2))


def _align(chosen: Sequence[Gpu], sizes: Sequence[int]) -> tuple[Gpu, ...]:
    """The chosen GPUs in the order of the entries: larger sizes get freer GPUs, equal sizes get theirs by index."""
    entries = sorted(range(len(sizes)), key=lambda entry: -sizes[entry])
    freest_first = sorted(chosen, key=lambda gpu: (-free_of(gpu), gpu.index, gpu.uuid))
    placed: dict[int, Gpu] = {}
    start = 0
    for size, count in Counter(sizes[entry] for entry in entries).items():
        alike = sorted(freest_first[start : start + count], key=by_index)
        placed.update(zip((entry for entry in entries if sizes[entry] == size), alike, strict=True))
        start += count
    return tuple(placed[entry] for entry in range(len(sizes)))


def _cheapest_matching(cards: Sequence[Sequence[Gpu]], wanted: Sequence[int]) -> list[Gpu]:
    """A GPU on a card of its own for each size, with the least free memory in total (then the lowest indices in sum).

    Several sizes on cards that offer several GPUs each: here a size may do better on a card that is not its tightest.
    So this is an assignment problem, solved by shortest augmenting paths with potentials (Kuhn, Munkres) in
    O(sizes² · cards). The caller has made sure that a matching exists.
    """
    place = {gpu.uuid: at for at, gpu in enumerate(sorted(chain.from_iterable(cards), key=by_index))}
    if len(wanted) ** 2 * len(cards) > _MOST_MATCHED:
        return _first_matching(cards, wanted)
    option = [[next((gpu for gpu in card if free_of(gpu) >= size), None) for card in cards] for size in wanted]
    dear = max(free_of(card[-1]) for card in cards) + 1
    never = (dear * (len(wanted) + 1)) << 40  # dearer than any matching that exists; places sum to less than 2^40
    cost = [[never if gpu is None else (free_of(gpu) << 40) + place[gpu.uuid] for gpu in row] for row in option]

    no_card = len(cards)  # a card that does not exist, where each augmenting path begins
    holder = [-1] * (no_card + 1)  # card → the size it serves
    of_size, of_card = [0] * len(wanted), [0] * (no_card + 1)  # the potentials
    for size in range(len(wanted)):
        holder[no_card], at = size, no_card
        slack = [never * 2] * no_card
        came = [no_card] * no_card
        seen = [False] * (no_card + 1)
        while holder[at] != -1:
            seen[at] = True
            row = holder[at]
            for card in range(no_card):
                if not seen[card] and (value := cost[row][card] - of_size[row] - of_card[card]) < slack[card]:
                    slack[card], came[card] = value, at
            following = min((card for card in range(no_card) if not seen[card]), key=slack.__getitem__)
            step = slack[following]
            for card in range(no_card + 1):
                if seen[card]:
                    of_size[holder[card]] += step
                    of_card[card] -= step
                elif card < no_card:
                    slack[card] -= step
            at = following
        while at != no_card:
            holder[at], at = holder[came[at]], came[at]
    matched = [(holder[card], card) for card in range(no_card) if holder[card] != -1]
    return [gpu for size, card in matched if (gpu := option[size][card]) is not None]


def _first_matching(cards: Sequence[Sequence[Gpu]], wanted: Sequence[int]) -> list[Gpu]:
    """Some such matching: each size, largest first, on the card left that serves it with the least memory free."""
    left, chosen = list(cards), []
    for size in wanted:
        serving = [
            (next(gpu for gpu in card if free_of(gpu) >= size), card) for card in left if free_of(card[-1]) >= size
        ]
        gpu, card = min(serving, key=lambda pair: (free_of(pair[0]), by_index(pair[0])))
        chosen.append(gpu)
        left.remove(card)
    return chosen

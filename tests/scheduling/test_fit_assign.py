"""Which GPUs of a node get which sizes: against all choices there are."""

from __future__ import annotations

import time
from itertools import combinations

import pytest
from helpers import oracle
from helpers.clusters import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.models import Gpu, Request
from jupyter_gpufit.scheduling.assign import assign
from jupyter_gpufit.scheduling.candidates import by_index


def gpu(index: int, free: int, card: str = "", numa: int | None = None, links: tuple[int, ...] = ()) -> Gpu:
    peers = tuple(f"G{peer}" for peer in links)
    return Gpu(uuid=f"G{index}", index=index, memory_free=free, card=card, numa=numa, links=peers)


@st.composite
def machines(draw: st.DrawFn, own_cards: bool) -> list[Gpu]:
    count = draw(st.integers(1, 7))
    sizes = st.sampled_from([5, 10, 10, 20, 40])
    return [
        gpu(
            index,
            draw(sizes),
            "" if own_cards else draw(st.sampled_from(["x", "y", "z", ""])),
            draw(st.sampled_from([None, 0, 1])),
            tuple(draw(st.sets(st.integers(0, 6), max_size=3))),
        )
        for index in range(count)
    ]


asked = st.lists(st.sampled_from([0, 5, 10, 15, 20, 40]), min_size=1, max_size=4).map(tuple)


def nearness(choice: tuple[Gpu, ...]) -> tuple[int, int]:
    pairs = list(combinations(choice, 2))
    linked = sum(one.uuid in other.links or other.uuid in one.links for one, other in pairs)
    return linked, sum(one.numa is not None and one.numa == other.numa for one, other in pairs)


def choices(gpus: list[Gpu], sizes: tuple[int, ...], share_card: bool) -> list[tuple[Gpu, ...]]:
    return list(oracle.every_choice(gpus, Request(gpus=len(sizes), memory=sizes, share_card=share_card)))


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(gpus=machines(own_cards=False), sizes=asked, share_card=st.booleans())
def test_an_assignment_is_found_exactly_when_there_is_one_and_it_is_tightest(gpus, sizes, share_card) -> None:
    possible = choices(gpus, sizes, share_card)
    chosen = assign(gpus, sizes, share_card)
    assert (chosen is None) == (not possible)
    if chosen is not None:
        assert chosen in possible
        assert sum(oracle.free(chosen)) == min(sum(oracle.free(choice)) for choice in possible)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(gpus=machines(own_cards=True), sizes=asked)
def test_of_the_tightest_the_nearest_then_the_lowest_indices(gpus, sizes) -> None:
    possible = choices(gpus, sizes, False)
    if possible:
        least = min(sum(oracle.free(choice)) for choice in possible)
        tightest = [choice for choice in possible if sum(oracle.free(choice)) == least]
        best = max(map(nearness, tightest))
        expected = min(sorted(map(by_index, choice)) for choice in tightest if nearness(choice) == best)
        assert sorted(map(by_index, assign(gpus, sizes, False))) == expected


@settings(max_examples=EXAMPLES, deadline=None)
@given(gpus=machines(own_cards=False), size=st.sampled_from([5, 10, 20]), count=st.integers(1, 4))
def test_of_one_size_on_shared_cards_the_nearest_of_the_tightest_gpus(gpus, size, count) -> None:
    """Of a card's equally free GPUs the first stands for all: they have one NUMA node, and instances no links."""
    numa = {each.card: each.numa for each in gpus}
    gpus = [gpu(each.index, each.memory_free, each.card, numa[each.card]) for each in gpus]
    possible = choices(gpus, (size,) * count, False)
    if possible:
        least = min(sum(oracle.free(choice)) for choice in possible)
        best = max(nearness(choice) for choice in possible if sum(oracle.free(choice)) == least)
        assert nearness(assign(gpus, (size,) * count, False)) == best


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(
    cards=st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=4), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
def test_the_tightest_matching_of_many_sizes_with_many_cards(cards, sizes) -> None:
    """Against all subsets of the cards, size by size."""
    least = {frozenset(): 0}  # cards taken by the sizes so far → least free memory in total
    for size in sizes:
        following: dict[frozenset[int], int] = {}
        for taken, total in least.items():
            for card, frees in enumerate(cards):
                serving = [free for free in frees if free >= size]
                if card not in taken and serving:
                    now, cost = taken | {card}, total + min(serving)
                    following[now] = min(cost, following.get(now, cost))
        least = following
    gpus = [
        Gpu(uuid=f"G{card}-{at}", index=card, memory_free=free, card=f"c{card}")
        for card, frees in enumerate(cards)
        for at, free in enumerate(frees)
    ]
    chosen = assign(gpus, tuple(sizes), False)
    assert (chosen is None) == (not least)
    if chosen is not None:
        assert sum(oracle.free(chosen)) == min(least.values())


@given(gpus=machines(own_cards=False), sizes=asked, share_card=st.booleans(), data=st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_order_in_which_gpus_are_given_does_not_matter(gpus, sizes, share_card, data) -> None:
    assert assign(data.draw(st.permutations(gpus)), sizes, share_card) == assign(gpus, sizes, share_card)


def test_a_size_goes_where_the_others_still_fit_tightest() -> None:
    # The 20 fits card x tighter (40), but then the 5 would have to take 41; on y the 5 finds its 5 on x.
    gpus = [gpu(0, 40, "x"), gpu(1, 5, "x"), gpu(2, 41, "y")]
    assert [each.uuid for each in assign(gpus, (20, 5), False)] == ["G2", "G1"]
    assert [each.uuid for each in assign(gpus, (20, 5), True)] == ["G0", "G1"]


def test_equal_sizes_get_their_gpus_by_index_and_larger_sizes_the_freer_ones() -> None:
    gpus = [gpu(3, 10), gpu(1, 12), gpu(2, 40)]
    assert [each.uuid for each in assign(gpus, (8, 8), False)] == ["G1", "G3"]
    assert [each.uuid for each in assign(gpus, (8, 30, 8), False)] == ["G1", "G2", "G3"]


@pytest.mark.parametrize("count", [2, 4])
def test_linked_gpus_are_taken_together(count: int) -> None:
    # Two islands of four, interleaved, as on boards where even and odd GPUs hang on different switches.
    gpus = [gpu(at, 40, links=tuple(peer for peer in range(8) if peer % 2 == at % 2)) for at in range(1, 8)]
    chosen = assign(gpus, (10,) * count, False)
    assert {each.index % 2 for each in chosen} == {1}


def test_beyond_exact_search_exchanges_still_bring_gpus_together() -> None:
    gpus = [gpu(at, 40, numa=at % 2) for at in range(32)]
    chosen = assign(gpus, (10,) * 16, False)
    assert len({each.numa for each in chosen}) == 1


def test_machines_larger_than_there_are_do_not_hold_up_a_decision() -> None:
    many = [gpu(at, 10 + at % 7, card=f"c{at // 2}", numa=at % 3) for at in range(2000)]
    start = time.monotonic()
    chosen = assign(many, tuple(1 + at % 11 for at in range(700)), False)
    assert len({each.card for each in chosen}) == 700
    assert all(each.memory_free >= 1 + at % 11 for at, each in enumerate(chosen))
    assert len(assign(many, (5,) * 700, False)) == 700
    assert time.monotonic() - start < 30  # the unbounded search would take hours

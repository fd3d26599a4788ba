"""What policies would have made of recorded requests: the simulation, its figures, and what is concluded from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.fakes import GIB, node
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from jupyter_gpufit.models import Gpu, Node, Request
from jupyter_gpufit.scheduling import policies
from jupyter_gpufit.scheduling.fit import select
from jupyter_gpufit.scheduling.policies import BestFit
from jupyter_gpufit.scheduling.recording import Recorded
from jupyter_gpufit.scheduling.replay import (
    OVERTAKES,
    Arrival,
    Outcome,
    arrivals,
    demands,
    emptied,
    figures,
    fitting,
    replay,
)
from jupyter_gpufit.scheduling.scheduler import LocalScheduler
from jupyter_gpufit.scheduling.verdict import FEW, verdict

HOUR = 3600.0
ALL = policies.names()


def asked(at: float, lifetime: float, **wishes: Any) -> Arrival:
    return Arrival(at, Request(**wishes), lifetime)


def waits(outcome: Outcome) -> list[float | None]:
    """Of each request; `None`: it was refused."""
    return [wait if served else None for wait, served in zip(outcome.waits, outcome.served, strict=True)]


# --- what comes when, and where to


def test_arrivals_have_the_lifetimes_that_are_known_and_else_likely_ones() -> None:
    def one(id: str, at: float, gpus: int, lifetime: float | None, **wishes: Any) -> Recorded:
        ended = None if lifetime is None else at + 5 + lifetime
        placed = None if lifetime is None else at + 5
        return Recorded(id, at, Request(gpus=gpus, **wishes), False, ended=ended, placed=placed)

    recorded = [
        one("a", 1000, 1, 10),
        one("b", 1010, 1, 30),
        one("c", 1020, 1, 50),
        one("d", 1030, 2, 400),
        one("e", 1040, 1, None),
        one("f", 1050, 1, None, time=7),
        one("g", 1060, 2, None),
        one("h", 1070, 4, None),  # none with as many: the median of all
    ]
    made, lifetimes = arrivals(recorded, load=2)
    assert [arrival.at for arrival in made] == [0, 5, 10, 15, 20, 25, 30, 35]
    assert [arrival.lifetime for arrival in made] == [10, 30, 50, 400, 30, 7, 400, 40]
    assert (lifetimes.known, lifetimes.guessed) == (4, 4)
    [nothing_known], _ = arrivals([one("x", 0, 1, None)])
    assert nothing_known.lifetime == HOUR


def test_emptied_nodes_have_all_that_can_be_had() -> None:
    gpus = (
        Gpu(uuid="held", index=0, memory_total=40, memory_free=2, idle=False, allocations=("x",), memory_claimed=30),
        Gpu(uuid="idle", index=1, memory_total=40, memory_free=38),
        Gpu(uuid="lost", index=2, memory_total=None, memory_free=None, idle=False, allocatable=False, reason="lost"),
    )
    there = Node(name="a", gpus=gpus, cpus=8.0, cpus_free=1.0, ram=100, ram_free=0)
    [empty] = emptied([there, replace(there, name="b", reason="it does not answer")])
    assert [(gpu.idle, gpu.memory_free) for gpu in empty.gpus] == [(True, 40), (True, 38), (False, None)]
    assert (empty.cpus_free, empty.ram_free) == (8.0, 100)
    assert emptied([empty]) == [empty]


def test_what_never_fits_is_told_apart() -> None:
    arriving = [asked(0, 1, gpus=gpus) for gpus in (1, 3, 2, 3)]
    fits, never = fitting([node("a", 2)], arriving)
    assert ([arrival.request.gpus for arrival in fits], never) == ([1, 2], 2)


# --- the queue


def test_a_request_waits_until_something_ends_or_as_long_as_it_said() -> None:
    arriving = [
        asked(0, 100, gpus=2),
        asked(10, 50),  # does not wait
        asked(20, 50, wait=30),  # not long enough
        asked(30, 50, wait=70),  # just long enough
        asked(40, 60, gpus=2, wait=1000),
        asked(200, 1),
    ]
    outcome = replay([node("a", 2)], arriving, BestFit())
    assert waits(outcome) == [0, None, None, 70, 110, None]
    assert outcome.waits == [0, 0, 30, 70, 110, 0]
    found = figures(outcome, demands([node("a", 2)], arriving))
    assert (found.refused, found.at_once, found.wait_mean, found.wait_95) == (3, 1 / 6, 60, 110)
    # 2 GPUs for 100 s, 1 for 50 s, 2 for 60 s, of 2 GPUs in 210 s in which something ran all the time
    assert found.allocated == pytest.approx((200 + 50 + 120) / (2 * 210))
    assert found.served_gpu_hours == pytest.approx((200 + 50 + 120) / HOUR)
    assert found.refused_gpu_hours == pytest.approx((50 + 50 + 1) / HOUR)
    assert found.allocated_when_short == pytest.approx(1.0)


def test_of_those_that_wait_priority_goes_first_and_then_age() -> None:
    arriving = [
        asked(0, 10),
        asked(1, 10, wait=999),
        asked(2, 10, wait=999),
        asked(3, 10, wait=999, priority=1),
    ]
    assert waits(replay([node("a", 1)], arriving, BestFit())) == [0, 19, 28, 7]


def test_it_overtakes_as_often_as_the_scheduler() -> None:
    assert LocalScheduler.overtakes.default_value == OVERTAKES


def test_later_ones_overtake_only_so_often() -> None:
    """One GPU of two runs for long, so one that wants both waits; small ones go before it as often as they may."""
    small = [asked(10 + number, 0.5, wait=999) for number in range(OVERTAKES + 3)]
    outcome = replay([node("a", 2)], [asked(0, 100), asked(1, 10, gpus=2, wait=999), *small], BestFit())
    assert waits(outcome)[1] == 99
    assert waits(outcome)[2 : 2 + OVERTAKES] == [0] * OVERTAKES
    assert all((wait or 0) > 80 for wait in waits(outcome)[2 + OVERTAKES :])


def test_gpus_are_shared_where_memory_fits() -> None:
    arriving = [asked(at, 100, memory="6GiB", shared=True) for at in range(3)] + [asked(3, 1)]
    outcome = replay([node("a", 1)], arriving, BestFit())
    assert waits(outcome) == [0, 0, None, None]
    assert outcome.held == pytest.approx(100 * 2 * 6 / 16)
    assert demands([node("a", 1)], arriving)[0] == pytest.approx(100 / HOUR * 6 / 16)


def test_cores_and_ram_are_held_too_and_come_back_whole() -> None:
    there = [node("a", 4, cpus=8.0, cpus_free=8.0, ram=10 * GIB, ram_free=10 * GIB)]
    cores = [asked(at, 1.5, cpus=(0.2, 0.2, 1.1)[at % 3]) for at in range(50)] + [asked(100, 1, cpus=8.0)]
    assert None not in waits(replay(there, [cores[0], cores[-1]], BestFit()))
    assert waits(replay(there, cores, BestFit()))[-1] == 0
    arriving = [asked(0, 10, cpus=5.0), asked(1, 10, cpus=4.0), asked(2, 10, ram="9GiB"), asked(3, 10, ram="2GiB")]
    assert waits(replay(there, arriving, BestFit())) == [0, None, 0, None]


# --- against the same rules, written down as plainly as can be


def plain(nodes: Sequence[Node], arriving: Sequence[Arrival], policy: str) -> list[float | None]:
    """All of it anew at every moment, on the nodes as `select` sees them."""
    running: list[tuple[float, Any, Request]] = []
    waiting: list[int] = []
    overtaken = [0] * len(arriving)
    found: list[float | None] = [None] * len(arriving)

    def now_there() -> list[Node]:
        seen = []
        for one in nodes:
            gpus = []
            for gpu in one.gpus:
                sizes = [
                    (size, request.shared)
                    for _, where, request in running
                    if where.node == one.name
                    for uuid, size in zip(where.gpus, where.memory, strict=True)
                    if uuid == gpu.uuid
                ]
                free = gpu.memory_free - sum(size for size, _ in sizes)
                shareable = bool(sizes) and all(shared for _, shared in sizes)
                gpus.append(replace(gpu, memory_free=free, idle=not sizes, shareable=shareable))
            seen.append(replace(one, gpus=tuple(gpus)))
        return seen

    def start(number: int, now: float) -> bool:
        before = [other for other in waiting if rank(other) < rank(number)]
        if before and overtaken[before[0]] >= OVERTAKES:
            return False
        where = select(now_there(), arriving[number].request, policy).placement
        if where is None:
            return False
        if before:
            overtaken[before[0]] += 1
        running.append((now + arriving[number].lifetime, where, arriving[number].request))
        found[number] = now - arriving[number].at
        return True

    def rank(number: int) -> tuple[int, int]:
        return -arriving[number].request.priority, number

    def look(now: float) -> None:
        for number in list(waiting):
            if start(number, now):
                waiting.remove(number)

    moments = sorted({arrival.at for arrival in arriving})
    number = 0
    while moments:
        now = moments.pop(0)
        gone = [one for one in running if one[0] <= now]
        if gone:
            running[:] = [one for one in running if one[0] > now]
            look(now)
        for late in [one for one in waiting if arriving[one].at + arriving[one].patience <= now]:
            waiting.remove(late)
            look(now)
        while number < len(arriving) and arriving[number].at <= now:
            if not start(number, now) and arriving[number].patience:
                waiting.append(number)
                waiting.sort(key=rank)
            number += 1
        later = [one[0] for one in running] + [arriving[one].at + arriving[one].patience for one in waiting]
        moments = sorted({*moments, *(moment for moment in later if moment > now)})
    return found


@st.composite
def days(draw: st.DrawFn) -> tuple[list[Node], list[Arrival]]:
    """A few nodes, and more requests than they can serve."""
    nodes = [node(name, draw(st.integers(1, 4))) for name in ("a", "b", "c")[: draw(st.integers(1, 3))]]
    at, arriving = 0.0, []
    for _ in range(draw(st.integers(1, 40))):
        at += draw(st.sampled_from([0.0, 1.0, 2.0, 7.0]))
        shared = draw(st.booleans())
        request = Request(
            gpus=draw(st.sampled_from([1, 1, 2, 3])),
            memory=draw(st.sampled_from([4, 7, 16])) * GIB,
            shared=shared,
            wait=draw(st.sampled_from([None, 3.0, 20.0, 200.0])),
            priority=draw(st.sampled_from([0, 0, 0, 1])),
        )
        arriving.append(Arrival(at, request, draw(st.sampled_from([0.25, 1.0, 5.5, 30.5, 90.0]))))
    return nodes, arriving


@given(days(), st.sampled_from(["best-fit", "claim"]))
@settings(deadline=None)
def test_it_is_what_the_rules_say(day: tuple[list[Node], list[Arrival]], policy: str) -> None:
    nodes, arriving = day
    assert waits(replay(nodes, arriving, policies.find(policy))) == plain(nodes, arriving, policy)


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_can_be_replayed_and_gives_everything_back(policy: str) -> None:
    nodes, arriving = lab(random.Random(1), 300)
    told: list[int] = []
    outcome = replay(nodes, arriving, policies.find(policy), told.append)
    assert told == sorted(told) != []
    assert replay(nodes, arriving, policies.find(policy)) == outcome, "the same each time"
    # An hour after the last one ended there is room for all of the cluster at once.
    end = arriving[-1].at + sum(arrival.lifetime for arrival in arriving)
    whole = [Arrival(end, Request(gpus=8, node=one.name), 1.0) for one in nodes]
    assert replay(nodes, [*arriving, *whole], policies.find(policy)).served[-len(nodes) :] == [True] * len(nodes)


def test_a_potential_learns_on_the_way() -> None:
    """Told nothing, they would not differ from what they are at first."""

    class Deaf(type(policies.find("balance"))):  # type: ignore[misc]
        learns = False

    nodes, arriving = lab(random.Random(2), 400)
    heard, deaf = replay(nodes, arriving, policies.find("balance")), replay(nodes, arriving, Deaf())
    assert waits(heard) != waits(deaf)


def lab(chance: random.Random, count: int) -> tuple[list[Node], list[Arrival]]:
    """Four nodes with eight GPUs, and requests that keep them busy."""
    nodes = [node(f"n{number}", 8, 40 * GIB) for number in range(4)]
    kinds: list[dict[str, Any]] = [
        {"memory": 10 * GIB, "shared": True},
        {"memory": 25 * GIB, "shared": True},
        {"memory": 40 * GIB},
        {"gpus": 2, "memory": 40 * GIB},
        {"gpus": 8, "memory": 40 * GIB},
    ]
    at, arriving = 0.0, []
    for _ in range(count):
        at += chance.expovariate(1 / 600)
        wishes = chance.choices(kinds, (8, 4, 5, 3, 1))[0]
        wait = chance.choice([None, 4 * HOUR])
        arriving.append(Arrival(at, Request(wait=wait, **wishes), chance.expovariate(1 / (3 * HOUR))))
    return nodes, arriving


# --- the verdict


def outcomes(served: dict[str, Sequence[bool]], waited: dict[str, Sequence[float]] | None = None) -> list[Outcome]:
    return [
        Outcome(name, list(of_each), list((waited or {}).get(name, [0.0] * len(of_each))))
        for name, of_each in served.items()
    ]


def requests(count: int) -> list[Arrival]:
    return [Arrival(number * HOUR, Request(), HOUR) for number in range(count)]


def test_few_requests_tell_nothing() -> None:
    found = verdict(outcomes({"best-fit": [False] * 49, "balance": [True] * 49}), requests(49), [1.0] * 49)
    assert found.best == ()
    assert f"49 requests are too few to tell which policy serves best; ask again when there are {FEW}" in found.text


def test_where_all_are_served_at_once_nothing_matters() -> None:
    found = verdict(outcomes({"best-fit": [True] * 60, "claim": [True] * 60}), requests(60), [1.0] * 60)
    assert found.best == ("best-fit", "claim")
    assert "at this load it does not matter" in found.text


def test_a_difference_in_every_span_is_one() -> None:
    tenth = [number % 10 != 0 for number in range(500)]
    found = verdict(outcomes({"best-fit": tenth, "balance": [True] * 500}), requests(500), [1.0] * 500)
    assert (found.best, found.by) == (("balance",), "gpu-hours")
    assert found.text == (
        "balance serves these requests best: 100.0 % of the GPU hours asked for are served, against 90.0 % (best-fit). "
        "Use balance in the place of best-fit."
    )


def test_a_difference_in_one_span_is_chance() -> None:
    """However large it is: one bad day says nothing of the next."""
    bad_day = [not 100 <= number < 130 for number in range(500)]
    found = verdict(outcomes({"best-fit": bad_day, "balance": [True] * 500}), requests(500), [1.0] * 500)
    assert (found.best, found.by) == (("best-fit", "balance"), "")
    assert found.text == "No difference between best-fit and balance is larger than chance. Keep best-fit."


def test_what_is_served_comes_before_waiting_and_waiting_decides_among_equals() -> None:
    some = [number % 5 != 0 for number in range(500)]
    waited = {"best-fit": [600.0] * 500, "balance": [60.0] * 500, "claim": [0.0] * 500}
    served = {"best-fit": [True] * 500, "balance": [True] * 500, "claim": some}
    found = verdict(outcomes(served, waited), requests(500), [1.0] * 500)
    assert (found.best, found.by) == (("balance",), "waiting")
    assert "best: 100.0 % (best-fit) of the GPU hours asked for are served, against 80.0 % (claim); " in found.text
    assert "; 1 m is waited on the average, against 10 m (best-fit)." in found.text


def test_chance_alone_is_seldom_taken_for_a_difference() -> None:
    """Both refuse one in twenty, each others."""
    chance, wrong = random.Random(5), 0
    for _ in range(40):
        served = {name: [chance.random() > 0.05 for _ in range(400)] for name in ("best-fit", "balance")}
        wrong += len(verdict(outcomes(served), requests(400), [1.0] * 400).best) == 1
    assert wrong <= 6

"""Which policy would have served requests best, if that can be told from chance. Pure.

Three things count, the first before the second and the second before the third: GPU hours that were served (what was
refused is lost), requests that were served, time that was waited. Policies that chance cannot be told from in one of
them are compared by the next.

Chance: the requests are cut into spans of time (days, if there are enough of them). Another year would have brought
such spans in other numbers; so sums are made of as many of them, drawn at random with repetition (the bootstrap), of
the difference between two policies in each. Where 998 in 1,000 of these sums are on one side of zero, it is a
difference. (So many, because what happens on one day has its effects on the next.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from ..durations import format_duration
from .replay import Arrival, Outcome

__all__ = ["FEW", "Verdict", "verdict"]

FEW = 50
"""Requests before which nothing is concluded."""
SPANS = (12, 60)
"""The fewest and the most spans that requests are cut into."""
LEAST = 0.002
"""Of what was asked: differences that are smaller are none to anybody. (Of waiting: a second.)"""
_A_DAY = 86400.0
_DRAWS = 2000
_SURE = 0.002


class Verdict(Struct, frozen=True, kw_only=True):
    """The answer."""

    text: str
    """For people."""
    best: tuple[str, ...] = ()
    """Policies that nothing can be told to be better than; empty: there are too few requests to tell."""
    by: str = ""
    """In what the others are behind: `gpu-hours`, `requests`, `waiting`; empty: none is."""


@dataclass(frozen=True)
class _Measure:
    name: str
    values: Callable[[Outcome], list[float]]
    """Of each request; more is better."""
    said: Callable[[float], str]
    """A sum of these, for people."""
    least: float
    """Differences of sums that are smaller are none to anybody."""


def verdict(
    outcomes: Sequence[Outcome], arriving: Sequence[Arrival], hours: Sequence[float], now: str = "best-fit"
) -> Verdict:
    """What to say of the policies' outcomes. `hours`: as `replay.demands` gives them; `now`: the policy in use, or else
    the usual one."""
    count, names = len(arriving), tuple(outcome.policy for outcome in outcomes)
    if count < FEW:
        few = f"{count} request{' is' if count == 1 else 's are'} too few"
        return Verdict(text=f"{few} to tell which policy serves best; ask again when there are {FEW} at least.")
    if all(all(outcome.served) and not any(outcome.waits) for outcome in outcomes):
        return Verdict(
            text="Every policy serves all requests at once: at this load it does not matter which one is used. "
            "(A larger --load tells what if more came in the same time.)",
            best=names,
        )
    spans, best, clauses, behind = _spans(arriving), list(outcomes), list[str](), dict[str, str]()
    for measure in _measures(arriving, hours):
        values = {outcome.policy: measure.values(outcome) for outcome in best}
        sums = {policy: sum(of_each) for policy, of_each in values.items()}
        first = max(best, key=lambda outcome: (sums[outcome.policy], outcome.policy == now)).policy
        lost = [one for one in best if _better(values[first], values[one.policy], spans, measure.least)]
        if lost:
            best = [one for one in best if one not in lost]
            behind |= {one.policy: measure.name for one in lost}
            than = ", ".join(f"{measure.said(sums[one.policy])} ({one.policy})" for one in lost)
            whose = f" ({first})" if len(best) > 1 else ""
            clauses.append(f"{measure.said(sums[first])}{whose} {_WHAT[measure.name]}, against {than}")
    left = tuple(outcome.policy for outcome in best)
    if not clauses:
        return Verdict(text=f"No difference between {_names(names)} is larger than chance. Keep {now}.", best=left)
    text = f"{_names(left)} {'serves' if len(left) == 1 else 'serve'} these requests best: {'; '.join(clauses)}."
    if len(left) > 1:
        text += " Between these no difference is larger than chance."
    if now in left:
        text += f" Keep {now}."
    elif now in names:
        text += f" Use {'one of these' if len(left) > 1 else left[0]} in the place of {now}."
    return Verdict(text=text, best=left, by=behind.get(now) or next(iter(behind.values())))


_WHAT = {
    "gpu-hours": "of the GPU hours asked for are served",
    "requests": "of the requests are served",
    "waiting": "is waited on the average",
}


def _measures(arriving: Sequence[Arrival], hours: Sequence[float]) -> list[_Measure]:
    count, asked = len(arriving), sum(hours)
    return [
        _Measure(
            "gpu-hours",
            lambda one: [hour if served else 0.0 for hour, served in zip(hours, one.served, strict=True)],
            lambda total: f"{100 * total / (asked or 1):.1f} %",
            LEAST * asked,
        ),
        _Measure(
            "requests",
            lambda one: list(map(float, one.served)),
            lambda total: f"{100 * total / count:.1f} %",
            LEAST * count,
        ),
        _Measure(
            "waiting",
            lambda one: [-wait for wait in one.waits],
            lambda total: format_duration(-total / count),
            float(count),  # a second each
        ),
    ]


def _spans(arriving: Sequence[Arrival]) -> list[int]:
    """The span that each request is in, by number."""
    begin, end = arriving[0].at, arriving[-1].at
    fewest, most = SPANS
    count = min(most, max(fewest, int((end - begin) // _A_DAY)))
    length = (end - begin) / count or 1.0
    return [min(count - 1, int((arrival.at - begin) / length)) for arrival in arriving]


def _better(one: Sequence[float], other: Sequence[float], spans: Sequence[int], least: float) -> bool:
    """Whether `one` is more than the other by more than chance, and by `least` at least."""
    differences = [0.0] * (max(spans) + 1)
    for value, than, span in zip(one, other, spans, strict=True):
        differences[span] += value - than
    if sum(differences) < max(least, 1e-9):
        return False
    draw = random.Random(len(differences)).choices  # the same answer each time
    sums = sorted(sum(draw(differences, k=len(differences))) for _ in range(_DRAWS))
    return sums[int(_DRAWS * _SURE)] > 0


def _names(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

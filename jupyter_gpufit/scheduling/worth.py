"""What a free part of a GPU is worth to those who ask for parts of GPUs. Pure; used by `mix.py` and `potentials.py`.

Think of packing all the parts that are asked for into as few GPUs as can be (the cutting-stock problem). Each part then
has a price: how many GPUs more it would take if there were one more of it. A free part of a GPU is worth the most that
what fits into it is worth by those prices: nothing, if nothing does; a whole one, exactly 1.

The packing is found by column generation (Gilmore and Gomory, 1961): a linear programme over a few ways to fill a GPU,
to which the best way by the prices so far is added until that is worth no more than a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["WHOLE", "Values", "linear", "worth"]

Values = NDArray[np.float64]

WHOLE = 1000
"""Thousandths: parts of GPUs are counted in these."""

_MOST_SIZES = 40  # the most frequent ones; what is rarer changes next to nothing
_MOST_ROUNDS = 400
_ENOUGH = 1e-7


def worth(parts: Mapping[int, float]) -> Values:
    """`[r]`, for r thousandths of a GPU that are free: what they are worth in GPUs, from 0 to 1.

    `parts`: how often each size (thousandths) is asked for. Of none, all parts are worth what they are.
    """
    sizes = sorted((size for size in parts if 0 < size < WHOLE and parts[size] > 0), key=lambda size: -parts[size])
    sizes = sorted(sizes[:_MOST_SIZES])
    if not sizes:
        return linear()
    asked = np.array([parts[size] for size in sizes], dtype=np.float64)
    # Slightly unlike each other: equal ones would make the programme go round in circles.
    asked = asked / asked.sum() * (1 + 1e-7 * np.arange(len(sizes)))
    return _filled(sizes, _prices(sizes, asked))[0]


def linear() -> Values:
    """When nothing is known: a part is worth what it is."""
    return np.linspace(0.0, 1.0, WHOLE + 1)


def _prices(sizes: list[int], asked: Values) -> Values:
    """The shadow price of each size in the packing with the fewest GPUs."""
    ways = np.diag([float(WHOLE // size) for size in sizes])  # a column for each way in use: how many it holds of each
    for _ in range(_MOST_ROUNDS):
        prices = np.linalg.solve(ways.T, np.ones(len(sizes)))
        values, way = _filled(sizes, np.maximum(prices, 0.0))
        if values[WHOLE] <= 1 + _ENOUGH:
            break
        used, moves = np.linalg.solve(ways, np.column_stack([asked, way])).T
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(moves > 1e-12, used / moves, np.inf)
        ways[:, int(ratios.argmin())] = way
    return np.asarray(np.maximum(prices, 0.0) / max(1.0, float(values[WHOLE])))


def _filled(sizes: list[int], prices: Values) -> tuple[Values, Values]:
    """The most that can be put into each free part by those prices; and how many of each size then fill a whole GPU."""
    values = np.zeros(WHOLE + 1)
    last = np.full(WHOLE + 1, -1)
    pairs = [(size, float(price), at) for at, (size, price) in enumerate(zip(sizes, prices, strict=True)) if price > 0]
    best = [0.0] * (WHOLE + 1)
    for part in range(1, WHOLE + 1):
        most, chosen = best[part - 1], -1
        for size, price, at in pairs:
            if size > part:
                break
            if (value := best[part - size] + price) > most + 1e-15:
                most, chosen = value, at
        best[part] = most
        last[part] = chosen
    values[:] = best
    way = np.zeros(len(sizes))
    part = WHOLE
    while part > 0:
        if last[part] < 0:
            part -= 1
        else:
            way[last[part]] += 1
            part -= sizes[last[part]]
    return values, way

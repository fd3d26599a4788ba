"""What an allocation used of its GPUs, drawn: a line of memory and one of utilisation per GPU, as SVG in HTML.

Drawn with the colours of what is around it, so it reads on light and dark; without anything to install. Where something
is not known the line has a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final, Protocol

from ..durations import format_duration
from ..memory import format_memory

__all__ = ["Picture", "Public"]

_WIDTH, _HEIGHT = 320, 56
_MEMORY, _BUSY, _ASKED = "rgb(46, 160, 67)", "rgb(56, 132, 244)", "rgb(209, 134, 22)"
_NOTHING: Final = "nothing is known yet of what it uses"


class Public(Protocol):
    """What has a series: `scheduling.usage.UsageSeries`."""

    def public(self) -> dict[str, Any]:
        """As REST gives it."""


class Picture:
    """A series, to be shown: as HTML in a notebook, as its sentence elsewhere. Made by `tables.usage_picture`."""

    def __init__(self, public: Mapping[str, Any]) -> None:
        """`public`: as REST gives it."""
        self._public = public

    def __repr__(self) -> str:
        return self._public["sentence"] or _NOTHING

    def _repr_html_(self) -> str:
        times = self._public["times"]
        parts = [_gpu(at, gpu, times) for at, gpu in enumerate(self._public["gpus"])] if times else []
        return f'<div class="gpufit-usage"><div>{escape(repr(self))}</div>{"".join(parts)}</div>'


def _gpu(at: int, gpu: Mapping[str, Any], times: Sequence[float]) -> str:
    asked, memory, busy = gpu["asked"], gpu["memory"], gpu["utilization"]
    known = [size for size in memory if size is not None]
    top = max([asked, 1, *known])
    lines = [*_lines(times, busy, 100, _BUSY), *_lines(times, memory, top, _MEMORY)]
    if asked:
        lines.insert(0, _line([(0.0, asked / top), (1.0, asked / top)], _ASKED, ' stroke-dasharray="4 3"'))
    peak = format_memory(max(known)) if known else "?"
    said = f"GPU {at}: memory up to {peak}" + (f" of {format_memory(asked)} asked" if asked else "")
    said += f", over {format_duration(max(0.0, times[-1] - times[0]))}"
    legend = (
        f'<span style="color: {_MEMORY}">memory</span> · <span style="color: {_BUSY}">utilisation (of 100 %)</span>'
        + (f' · <span style="color: {_ASKED}">asked</span>' if asked else "")
    )
    return (
        f'<div title="{escape(gpu["uuid"])}">{escape(said)}<br>'
        f'<svg role="img" aria-label="{escape(said)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="border-bottom: 1px solid rgba(128, 128, 128, 0.5)">'
        f"{''.join(lines)}</svg><br><small>{legend}</small></div>"
    )


def _lines(times: Sequence[float], values: Sequence[float | None], top: float, color: str) -> list[str]:
    """One line per stretch in which the values are known."""
    span = max(times[-1] - times[0], 1e-9)
    points = [((time - times[0]) / span, value) for time, value in zip(times, values, strict=True)]
    stretches = [list(group) for known, group in groupby(points, lambda point: point[1] is not None) if known]
    return [_line([(x, (value or 0) / top) for x, value in stretch], color) for stretch in stretches]


def _line(points: Sequence[tuple[float, float]], color: str, more: str = "") -> str:
    """From lower left (0, 0) to upper right (1, 1); a single point is a short dash."""
    if len(points) == 1:
        points = [points[0], (min(1.0, points[0][0] + 0.01), points[0][1])]
    at = " ".join(f"{1 + x * (_WIDTH - 2):.1f},{1 + (1 - min(1.0, y)) * (_HEIGHT - 2):.1f}" for x, y in points)
    return f'<polyline points="{at}" fill="none" stroke="{color}" stroke-width="1.5"{more}/>'

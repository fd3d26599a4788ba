"""What an allocation really used of its GPUs: a bounded series of samples, and what follows from it. Pure.

    metering ── add ──→ UsageSeries ─┬─ usage() ──→ models.Usage (peak, how busy, what would have been enough) ──→ say
                                     ├─ public() ─→ REST: to be drawn
                                     └─ encode ───→ store

Of each GPU at most 512 points are kept. When they are full each two become one, which keeps the most memory of the
two, and sums and counts of the utilisation: so peak and mean are exact, however long it runs. Unknown stays unknown: a
sample in which the memory of a process is not known is none in which it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct

from ..durations import format_duration
from ..memory import GiB, format_memory
from ..models import GpuUse, Usage

__all__ = ["MOST_POINTS", "Point", "UsageSeries", "say"]

MOST_POINTS = 512
"""Per GPU. An even number."""
_MARGIN = 1.05
"""What is suggested is so much more than the peak, and then rounded up to whole GiB."""
_ENOUGH_SECONDS, _ENOUGH_SAMPLES = 60.0, 5
"""Less says nothing of what the rest of it would need."""


class Point(Struct, array_like=True):
    """One GPU in one sample, or in some that have been merged."""

    memory: int | None = None
    """Bytes: the most that is known; `None`: nothing is."""
    busy: int = 0
    """Sum of the utilisations that are known, in percent ..."""
    known: int = 0
    """... and their number."""

    def merged(self, other: Point) -> Point:
        memory = max((each.memory for each in (self, other) if each.memory is not None), default=None)
        return Point(memory, self.busy + other.busy, self.known + other.known)


class Track(Struct, array_like=True):
    """One GPU, over all samples."""

    uuid: str
    asked: int
    """Bytes; 0: nothing was asked for it."""
    points: list[Point] = []
    unknown: int = 0
    """Samples in which its memory was not known."""


class UsageSeries(Struct, array_like=True):
    """The samples of one allocation. Made and added to by `metering.py`; read by whoever shows it."""

    tracks: list[Track]
    """One per GPU, in the order of `Allocation.gpus`."""
    times: list[float] = []
    """Unix time of each point (of its first sample)."""
    last: float = 0.0
    """Of the last sample."""
    samples: int = 0

    @classmethod
    def of(cls, gpus: Mapping[str, int]) -> UsageSeries:
        """An empty one: uuid -> bytes asked for (0: none)."""
        return cls([Track(uuid, asked) for uuid, asked in gpus.items()])

    def moved(self, gpus: Mapping[str, int]) -> UsageSeries:
        """The one to add to from now on: this one, or if the allocation has gone to other GPUs (a job whose node was
        lost) this one under their names; an empty one where there is no telling which is which."""
        if [*gpus] == [track.uuid for track in self.tracks]:
            return self
        if len(gpus) != len(self.tracks):
            return UsageSeries.of(gpus)
        tracks = [
            Track(uuid, asked, track.points, track.unknown)
            for (uuid, asked), track in zip(gpus.items(), self.tracks, strict=True)
        ]
        return UsageSeries(tracks, self.times, self.last, self.samples)

    def add(self, at: float, readings: Sequence[tuple[int | None, int | None]]) -> None:
        """A sample: memory (bytes) and utilisation (percent) of each GPU, `None` where not known."""
        if len(self.times) >= MOST_POINTS:
            self._thin_out()
        self.last = max(at, self.last)  # a clock that was set back a little is no reason to go back
        self.times.append(self.last)
        self.samples += 1
        for track, (memory, busy) in zip(self.tracks, readings, strict=True):
            track.points.append(Point(memory, busy or 0, int(busy is not None)))
            track.unknown += memory is None

    def shift(self, by: float) -> None:
        """The clock was set by so many seconds."""
        self.times = [at + by for at in self.times]
        self.last += by if self.samples else 0.0

    def usage(self) -> Usage:
        """What follows from all samples so far."""
        gpus = tuple(_use(track) for track in self.tracks)
        seconds = self.last - self.times[0] if self.times else 0.0
        enough = seconds >= _ENOUGH_SECONDS and self.samples >= _ENOUGH_SAMPLES
        return Usage(gpus=gpus, seconds=seconds, samples=self.samples, suggested=_suggested(gpus) if enough else None)

    def public(self) -> dict[str, Any]:
        """As REST gives it, in JSON types."""
        usage = self.usage()
        return {
            "times": list(self.times),
            "gpus": [
                {
                    "uuid": track.uuid,
                    "asked": track.asked,
                    "memory": [point.memory for point in track.points],
                    "utilization": [point.busy / point.known if point.known else None for point in track.points],
                }
                for track in self.tracks
            ],
            "usage": msgspec.json.decode(msgspec.json.encode(usage)),
            "sentence": say(usage),
        }

    def encode(self) -> bytes:
        """For the store."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> UsageSeries:
        """What `encode` made. Raises `ValueError` for anything else."""
        found = msgspec.msgpack.decode(data, type=cls)
        if any(len(track.points) != len(found.times) for track in found.tracks):
            raise ValueError("its GPUs do not have as many points as there are times")
        return found

    def _thin_out(self) -> None:
        self.times = self.times[::2]
        for track in self.tracks:
            points = track.points
            track.points = [one.merged(other) for one, other in zip(points[::2], points[1::2], strict=True)]


def say(usage: Usage) -> str:
    """For people: `"asked 24 GiB on 2 GPUs, peak 9.1 and 8.7 GiB, busy 43 % of the time; --memory 10GiB would have been
    enough"`. Empty: nothing is known yet."""
    if not usage.samples:
        return ""
    busy = [gpu.busy for gpu in usage.gpus if gpu.busy is not None]
    doing = f"busy {sum(busy) / len(busy):.0f} % of the time" if busy else "how busy is not known"
    said = ", ".join([_asked(usage), _peaks(usage), doing])
    if usage.suggested is not None:
        return f"{said}; --memory {usage.suggested // GiB}GiB would have been enough"
    if usage.seconds < _ENOUGH_SECONDS or usage.samples < _ENOUGH_SAMPLES:
        long = "once" if usage.samples == 1 else f"for {format_duration(usage.seconds)}"
        return f"{said} (measured {long} only)"
    return said


# --- parts


def _use(track: Track) -> GpuUse:
    known = sum(point.known for point in track.points)
    return GpuUse(
        uuid=track.uuid,
        asked=track.asked,
        peak=max((point.memory for point in track.points if point.memory is not None), default=None),
        busy=sum(point.busy for point in track.points) / known if known else None,
        unknown=track.unknown,
    )


def _suggested(gpus: Sequence[GpuUse]) -> int | None:
    """Bytes per GPU that are less in all than what was asked for; only if every sample is known."""
    sized = [gpu for gpu in gpus if gpu.asked]
    peaks = [gpu.peak for gpu in sized if gpu.peak is not None and not gpu.unknown]
    if not sized or len(peaks) < len(sized):
        return None
    enough = max(1, ceil(max(peaks) * _MARGIN / GiB)) * GiB
    return enough if enough * len(sized) < sum(gpu.asked for gpu in sized) else None


def _asked(usage: Usage) -> str:
    sizes = [gpu.asked for gpu in usage.gpus if gpu.asked]
    gpus = f"{len(usage.gpus)} GPU{'' if len(usage.gpus) == 1 else 's'}"
    if not sizes:
        return f"asked {gpus}"
    return f"asked {_sizes(sizes if len(set(sizes)) > 1 else sizes[:1])} on {gpus}"


def _peaks(usage: Usage) -> str:
    peaks = [gpu.peak for gpu in usage.gpus]
    if not any(peak is not None for peak in peaks):
        return "peak not known"
    least = "at least " if any(gpu.unknown for gpu in usage.gpus) else ""
    return f"peak {least}{_sizes(peaks)}"


def _sizes(sizes: Sequence[int | None]) -> str:
    """`"9.1 and 8.7 GiB"`; of many, the least and the greatest."""
    known = [size for size in sizes if size is not None]
    if len(sizes) > 4 and len(known) == len(sizes):
        low, high = format_memory(min(known)), format_memory(max(known))
        return high if low == high else f"{low} to {high}"
    words = [format_memory(size) for size in sizes]
    if len(set(words)) == 1 and len(words) > 1:
        return f"{words[0]} each"
    units = {word.partition(" ")[2] for word in words if word != "?"}
    if len(units) == 1 and words[-1] != "?":
        words = [*(word.partition(" ")[0] for word in words[:-1]), words[-1]]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))

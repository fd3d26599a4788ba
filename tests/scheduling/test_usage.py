"""What an allocation used, out of samples: exact however many there were, and never more than is known."""

from __future__ import annotations

from math import isclose

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import GpuUse, Usage
from jupyter_gpufit.scheduling.usage import MOST_POINTS, UsageSeries, say

PATIENT = settings(deadline=None, max_examples=40)
MEMORY = st.none() | st.integers(0, 200 * GiB)
BUSY = st.none() | st.integers(0, 100)


def series(*samples: tuple[int | None, int | None], asked: int = 24 * GiB, every: float = 5.0) -> UsageSeries:
    """Of one GPU."""
    made = UsageSeries.of({"GPU-1": asked})
    for at, sample in enumerate(samples):
        made.add(1000.0 + at * every, [sample])
    return made


@PATIENT
@given(
    st.lists(st.tuples(MEMORY, BUSY), min_size=1, max_size=30),
    st.sampled_from([1, MOST_POINTS // 4, MOST_POINTS + 1, 3 * MOST_POINTS]),
)
def test_peak_and_mean_are_those_of_all_samples_however_many(some: list[tuple[int, int]], times: int) -> None:
    samples = (some * times)[: 4 * MOST_POINTS + 7]
    made = series(*samples)
    usage, public = made.usage(), made.public()
    memory = [each for each, _ in samples if each is not None]
    busy = [each for _, each in samples if each is not None]
    [gpu] = usage.gpus
    assert gpu.peak == max(memory, default=None)
    assert gpu.busy == (sum(busy) / len(busy) if busy else None)
    assert (usage.samples, gpu.unknown) == (len(samples), len(samples) - len(memory))
    assert isclose(usage.seconds, 5.0 * (len(samples) - 1))
    [shown] = public["gpus"]
    assert len(public["times"]) == len(shown["memory"]) == len(shown["utilization"]) <= MOST_POINTS
    assert public["times"] == sorted(public["times"])
    assert UsageSeries.decode(made.encode()).public() == public


def test_it_stays_small_for_as_long_as_it_runs() -> None:
    gpus = {f"GPU-{n}": 24 * GiB for n in range(8)}
    made = UsageSeries.of(gpus)
    for at in range(5 * MOST_POINTS):
        made.add(at * 5.0, [(20 * GiB + at, at % 101)] * 8)
    assert len(made.encode()) < 100_000
    assert len(made.times) <= MOST_POINTS


def test_the_sentence() -> None:
    made = UsageSeries.of({"GPU-1": 24 * GiB, "GPU-2": 24 * GiB})
    assert (made.usage().samples, say(made.usage())) == (0, "")
    for at in range(20):
        made.add(at * 5.0, [(int(9.15 * GiB), 40), (int(8.75 * GiB), 46)])
    assert say(made.usage()) == (
        "asked 24 GiB on 2 GPUs, peak 9.1 and 8.7 GiB, busy 43 % of the time; --memory 10GiB would have been enough"
    )
    assert made.usage().suggested == 10 * GiB


def use(
    *peaks: int | None, asked: int = 8 * GiB, busy: float | None = 10, unknown: int = 0, seconds: float = 99
) -> str:
    gpus = tuple(
        GpuUse(uuid=str(at), asked=asked, peak=peak, busy=busy, unknown=unknown) for at, peak in enumerate(peaks)
    )
    return say(Usage(gpus=gpus, seconds=seconds, samples=20))


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (use(GiB), "asked 8 GiB on 1 GPU, peak 1 GiB, busy 10 % of the time"),
        (use(GiB, GiB), "on 2 GPUs, peak 1 GiB each,"),
        (use(GiB, GiB // 2), "peak 1 GiB and 512 MiB,"),
        (use(GiB, None, unknown=3), "peak at least 1 GiB and ?,"),
        (use(GiB, unknown=3), "peak at least 1 GiB,"),
        (use(None), "peak not known, busy"),
        (use(GiB, busy=None), "peak 1 GiB, how busy is not known"),
        (use(*[n * GiB for n in range(1, 9)]), "peak 1 GiB to 8 GiB,"),
        (use(GiB, asked=0), "asked 1 GPU, peak 1 GiB"),
        (use(GiB, seconds=20), "(measured for 20 s only)"),
        (say(series((GiB, 1)).usage()), "(measured once only)"),
    ],
)
def test_what_is_not_known_is_said(said: str, part: str) -> None:
    assert part in said


ENOUGH = [(9 * GiB, 50)] * 20


def suggested(*samples: tuple[int | None, int | None], **options: float) -> int | None:
    return series(*samples, **options).usage().suggested  # type: ignore[arg-type]


def test_what_would_have_been_enough() -> None:
    assert suggested(*ENOUGH) == 10 * GiB, "the peak, a little more, in whole GiB"
    assert suggested(*[(0, 0)] * 20) == GiB, "never nothing"
    assert suggested(*ENOUGH, asked=10 * GiB) is None, "not less than what was asked"
    assert suggested(*ENOUGH, asked=0) is None, "nothing was asked"
    assert suggested(*ENOUGH[:4], every=100) is None, "too few samples"
    assert suggested(*ENOUGH, every=1) is None, "too short"
    assert suggested((None, 50), *ENOUGH) is None, "one sample that is not known may have been more"


def test_the_size_suggested_holds_for_all_gpus() -> None:
    made = UsageSeries.of({"GPU-1": 24 * GiB, "GPU-2": 8 * GiB, "extra": 0})
    for at in range(20):
        made.add(at * 5.0, [(9 * GiB, 1), (GiB, 1), (40 * GiB, 1)])
    assert made.usage().suggested == 10 * GiB, "20 GiB in all, less than 32; GPUs nobody asked a size of do not count"
    assert "asked 24 and 8 GiB on 3 GPUs" in say(made.usage())


def test_other_gpus_after_a_lost_node_go_on_with_it() -> None:
    made = series(*ENOUGH)
    assert made.moved({"GPU-1": 24 * GiB}) is made
    moved = made.moved({"GPU-9": 24 * GiB})
    moved.add(2000.0, [(12 * GiB, 0)])
    [gpu] = moved.usage().gpus
    assert (gpu.uuid, gpu.peak, moved.samples) == ("GPU-9", 12 * GiB, 21)
    assert made.moved({"a": 1, "b": 1}).samples == 0, "which is which cannot be told"


def test_a_clock_that_is_set() -> None:
    made = series(*ENOUGH)
    before = made.usage()
    made.shift(3600.0)
    assert made.times[0] == 4600.0
    assert made.usage() == before
    made.add(10.0, [(GiB, 1)])
    assert made.times == sorted(made.times)
    empty = UsageSeries.of({"a": 1})
    empty.shift(10.0)
    assert empty.last == 0.0


@pytest.mark.parametrize("rubbish", [b"", b"x", b"\xc0", msgspec.msgpack.encode([[["a", 1, [], 0]], [1.0], 1.0, 1])])
def test_what_is_damaged_is_refused(rubbish: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        UsageSeries.decode(rubbish)

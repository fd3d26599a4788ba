"""What of a report from the network is believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.cluster.checks import MAX_GPUS, MAX_PROCESSES, check_report, clean
from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import Gpu, GpuProcess, Report, StoredModel, decode, encode

PATIENT = settings(deadline=None)  # the machine may be busy with other things


def report(**keys: Any) -> Report:
    usual: dict[str, Any] = {"uuid": "GPU-1", "index": 0}
    return Report(gpus=(Gpu(**usual | keys),))


def test_an_ordinary_report_passes_unchanged() -> None:
    process = GpuProcess(pid=7, memory=None, container="a" * 64, name="python")
    fine = Report(
        host="gpu01",
        age=1.5,
        driver="550.54",
        gpus=(
            Gpu(uuid="GPU-1", index=0, memory_total=10, memory_free=3, processes=(process,), links=("GPU-2",), numa=0),
            Gpu(uuid="GPU-2", index=1, health="lost", allocatable=False, reason="fell off the bus"),
        ),
    )
    assert check_report(fine) == fine


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (report(memory_free=-1), r"gpus\[0\]\.memory_free is -1"),
        (report(memory_total=2**61), "memory_total"),
        (report(memory_total=5, memory_free=6), "memory_free is 6, more than its memory_total of 5"),
        (report(index=-1), "index"),
        (report(uuid=""), "uuid is ''"),
        (report(uuid="x" * 129), "uuid"),
        (report(uuid="GPU\x1b[31m"), "cannot be the uuid of a GPU"),
        (report(uuid="all"), "uuid is 'all'"),
        (report(uuid="0"), "uuid is '0'"),
        (report(uuid="GPU-1,GPU-2"), "uuid is 'GPU-1,GPU-2'"),
        (report(card="GPU\x1b[31m"), "cannot be an identifier"),
        (report(uuid="GPU-1 "), "uuid"),
        (report(parent=""), "parent"),
        (report(links=("",)), "links"),
        (report(links=tuple(map(str, range(300)))), "300 links"),
        (report(processes=(GpuProcess(pid=-1),)), r"processes\[0\]\.pid is -1"),
        (report(processes=(GpuProcess(pid=1, memory=-5),)), "memory is -5"),
        (report(processes=(GpuProcess(pid=1, container="\n"),)), "container"),
        (report(processes=tuple(GpuProcess(pid=1) for _ in range(MAX_PROCESSES + 1))), "4097 processes"),
        (Report(gpus=tuple(Gpu(uuid=str(n), index=n) for n in range(MAX_GPUS + 1))), "1025 GPUs"),
        (Report(gpus=(Gpu(uuid="a", index=0), Gpu(uuid="a", index=1))), "GPU a twice"),
        (Report(schema=2), "schema is 2"),
        (Report(age=-1.0), "age is -1"),
        (Report(age=float("nan")), "age is nan"),
    ],
)
def test_what_cannot_be_is_refused_and_named(odd: Report, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        check_report(odd)


def test_what_is_only_shown_is_made_fit_to_be_shown() -> None:
    odd = report(
        model="\x1b[31mA100\n" + "x" * 10_000, utilization=250, temperature=-300, power=1e9, numa=-1, reason="\x00"
    )
    (gpu,) = check_report(odd).gpus
    assert gpu.model.startswith("[31mA100 xxx")
    assert len(gpu.model) == 100
    assert (gpu.utilization, gpu.temperature, gpu.power, gpu.numa, gpu.reason) == (None, None, None, None, None)


def test_models_that_can_be_asked_for_are_believed() -> None:
    fine = (
        StoredModel(name="llama-7b", size=5, modified=1e9),
        StoredModel(name="模型"),
        StoredModel(name="empty", size=0),
    )
    assert check_report(Report(models=fine)).models == fine
    assert check_report(Report()).models is None
    assert check_report(Report(models=())).models == ()


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "a\nb", "\x1b[31mred", "\u202egnp", " a", "a" * 256, "a" * 10**6, "模" * 86]
)
def test_models_that_cannot_are_left_out(name: str) -> None:
    odd = Report(models=(StoredModel(name=name), StoredModel(name="fine", size=1)))
    assert check_report(odd).models == (StoredModel(name="fine", size=1),), "and the node stays"


def test_what_is_impossible_of_a_model_is_unknown() -> None:
    odd = [(-1, float("nan")), (2**61, -1.0), (None, float("inf")), (2**70, 1e12)]
    report = Report(models=tuple(StoredModel(name=f"m{at}", size=s, modified=m) for at, (s, m) in enumerate(odd)))
    assert check_report(report).models == tuple(StoredModel(name=f"m{at}") for at in range(4))


@pytest.mark.parametrize("name", ["m{}", "\n{}", "same"])
def test_a_million_models(name: str) -> None:
    many = Report(models=tuple(StoredModel(name=name.format(at)) for at in range(10**6)))
    models = check_report(many).models
    assert models is not None
    assert len(models) == {"m{}": 1000, "\n{}": 0, "same": 1}[name]


def test_an_error_stays_an_error_whatever_its_text() -> None:
    assert check_report(Report(error="\n")).error == "its reporter says that it cannot be relied on"


def test_the_effective_view_is_not_for_a_reporter_to_make() -> None:
    (gpu,) = check_report(report(allocations=("a",), shareable=True)).gpus
    assert (gpu.allocations, gpu.shareable) == ((), False)


@PATIENT
@given(st.text(), st.integers(1, 50))
def test_cleaned_text_is_one_printable_line_and_stays_so(text: str, most: int) -> None:
    line = clean(text, most)
    assert len(line) <= most
    assert line.isprintable()
    assert clean(line, most) == line


@PATIENT
@given(st.builds(Report, gpus=st.lists(st.builds(Gpu), max_size=3).map(tuple)))
def test_whatever_has_the_right_types_is_believed_or_refused(odd: Report) -> None:
    try:
        checked = check_report(odd)
    except InvalidValue:
        return
    assert check_report(decode(encode(checked), Report)) == checked
    texts = [
        checked.host,
        *(model.name for model in checked.models or ()),
        *(gpu.model for gpu in checked.gpus),
        *(gpu.uuid for gpu in checked.gpus),
    ]
    assert all(text.isprintable() for text in texts)

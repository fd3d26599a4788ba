"""What `%gpufit panel` says: pure functions from the form, the server's answers and the clock to sentences."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from jupyter_gpufit.models import Gpu, Node, Request
from jupyter_gpufit.notebook.panel import Form, cluster_line, dry_run, model_of, model_table, read, row_of
from jupyter_gpufit.notebook.paneldesk import page_of
from jupyter_gpufit.scheduling.fit import select

GIB = 2**30
NOW = 1_000_000.0


def node(name: str, count: int, free: int, model: str = "NVIDIA A100-SXM4-40GB", **more: Any) -> Node:
    gpus = tuple(
        Gpu(uuid=f"GPU-{name}-{at}", index=at, model=model, memory_total=free, memory_free=free) for at in range(count)
    )
    return Node(name=name, gpus=gpus, age=1.0, **more)


NODES = [node("gpu01", 4, 80 * GIB, "NVIDIA A100-SXM4-80GB"), node("gpu02", 1, 40 * GIB), node("gpu03", 2, 40 * GIB)]


def changed(one: Node, **changes: Any) -> Node:
    gpus = tuple(msgspec.structs.replace(gpu, **changes) for gpu in one.gpus)
    return msgspec.structs.replace(one, gpus=gpus)


def tried(form: Form, nodes: list[Node] = NODES, **more: Any) -> Any:
    """The dry run of a form, by the real selection."""
    request, wrong = read(form)
    assert request is not None, wrong
    gpus = {gpu.uuid: gpu for one in nodes for gpu in one.gpus}
    return dry_run(select(nodes, request).explain() | more, form, request, gpus)


# --- the form


def test_a_form_is_the_request_that_it_looks_like() -> None:
    form = Form(gpus=" 2 ", memory="16GiB, 8GiB", image="", time="2h", wait="10m", shared=True)
    assert read(form) == (Request(gpus=2, memory=("16GiB", "8GiB"), time="2h", wait="10m", shared=True), {})


def test_an_empty_memory_is_no_wish() -> None:
    assert read(Form(memory=" "))[0] == Request(gpus=1)


def test_what_of_the_machine_is_asked() -> None:
    assert read(Form(memory="", cpus=" 8 ", ram="64GiB"))[0] == Request(gpus=1, cpus=8, ram="64GiB")


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("gpus", "0", "gpus is 0; ask for a whole number from 1 to 1024"),
        ("gpus", "two", "'two' is not a number of GPUs; write a whole number, such as 2"),
        ("gpus", "", "'' is not a number of GPUs"),
        ("gpus", "1_0", "'1_0' is not a number of GPUs"),
        ("gpus", "\u0663", "'\u0663' is not a number of GPUs"),
        ("gpus", "x" * 10_000, "'xxxxxxxxxxxxxxxxxxxx'… is not a number of GPUs"),
        ("memory", "16QiB", "'16QiB' is not a size of memory; write it like '16GiB'"),
        ("memory", "16", "'16' has no unit; write '16GiB'"),
        ("memory", "1GiB,2GiB", "memory has 2 sizes for 1 GPU;"),
        ("cpus", "0", "cpus is 0; ask for more than 0 and at most 4096 cores, such as 8 or 0.5"),
        ("cpus", "all", "'all' is not a number of cores; write one such as 8, or 0.5"),
        ("ram", "64", "'64' has no unit; write '64GiB'"),
        ("ram", "1MiB", "ram is '1MiB'; ask for 64 MiB of the machine's memory at least"),
        ("time", "soon", "'soon' is not a duration; write it like '90s'"),
        ("wait", "-1h", "'-1h' is negative"),
        ("image", "x" * 600, "image"),
    ],
)
def test_what_is_wrong_is_said_of_the_field_where_it_is(field: str, text: str, said: str) -> None:
    request, wrong = read(dataclasses.replace(Form(), **{field: text}))
    assert request is None
    assert list(wrong) == [field]
    assert said in wrong[field]
    assert "\n" not in wrong[field]
    assert len(wrong[field]) < 200


def test_two_mistakes_are_both_said() -> None:
    assert set(read(Form(gpus="0", time="soon"))[1]) == {"gpus", "time"}


# --- the dry run


def test_where_it_would_go() -> None:
    dry = tried(Form(gpus="2", memory="16GiB"))
    assert (dry.fits, dry.text) == (True, "gpu03: 2 × A100-40GB, tightest of 2 that fit")
    assert tried(Form(gpus="3")).text == "gpu01: 3 × A100-80GB, the only node that fits"


def test_how_many_fit_is_known_without_the_stages() -> None:
    assert tried(Form(gpus="2"), stages=[]).text.endswith("tightest of 2 that fit")


def test_another_policy_has_another_order() -> None:
    assert tried(Form(gpus="1"), policy="spread").text.endswith("first by policy spread of 3 that fit")


def test_nowhere_says_why_and_offers_what_would_fit() -> None:
    form = Form(gpus="2", memory="100GiB", time="1h", image="cuda")
    dry = tried(form)
    assert dry.fits is False
    assert dry.text.startswith("No node of this cluster could ever give 2 GPUs with 100 GiB each")
    assert dry.offered == "2 GPUs with 80 GiB each"
    assert dry.offer == dataclasses.replace(form, memory="80GiB")
    assert any("gpu01" in reason for reason in dry.reasons)
    assert tried(dry.offer).fits, "what is offered does fit"


def test_an_offer_fits_also_where_free_memory_is_no_round_number() -> None:
    nodes = [node("odd", 2, 40 * GIB - 12345)]
    dry = tried(Form(gpus="2", memory="40GiB"), nodes)
    assert dry.offer is not None
    assert tried(dry.offer, nodes).fits


def test_one_that_may_wait_is_told_so_unless_it_is_in_vain() -> None:
    taken = [changed(one, idle=False) for one in NODES]
    assert "would wait for up to 10 m" in tried(Form(wait="10m"), taken).text
    assert "would wait" not in tried(Form(gpus="9", wait="10m")).text


def test_many_reasons_are_cut_short() -> None:
    dry = tried(Form(gpus="9"), [node(f"n{at}", 1, GIB) for at in range(20)])
    assert len(dry.reasons) == 4
    assert dry.reasons[-1] == "… and 17 more nodes (%gpufit explain has them all)"


# --- the cluster


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("", "GPU"),
    ],
)
def test_models_are_short(model: str, short: str) -> None:
    assert model_of(Gpu(uuid="a", index=0, model=model)) == short


def test_the_cluster_in_a_line() -> None:
    assert cluster_line([]) == "The cluster has no nodes; gpufit.toml names them."
    assert cluster_line(NODES) == "3 nodes, 7 GPUs: 7 idle."
    out = [node(f"x{at}", 1, GIB, reason="it does not answer") for at in range(5)]
    line = cluster_line([*NODES, *out])
    assert line.startswith("8 nodes, 12 GPUs: 7 idle. 5 nodes cannot be used now: x0 (it does not answer); ")
    assert "x3" not in line


def test_the_cluster_by_model() -> None:
    busy = changed(node("gpu04", 1, 10 * GIB), idle=False)
    assert model_table([*NODES, busy])[1] == [["A100-40GB", "4", "3", "40 GiB"], ["A100-80GB", "4", "4", "80 GiB"]]


# --- allocations


def allocation(**more: Any) -> dict[str, Any]:
    return {
        "id": "id-1",
        "name": "train",
        "state": "running",
        "node": "gpu03",
        "gpus": ["GPU-gpu03-0", "GPU-gpu03-1"],
        "memory": [16 * GIB, 16 * GIB],
        "version": 3,
        "time": None,
        "expires": None,
    } | more


def row(**more: Any) -> Any:
    gpus = {gpu.uuid: gpu for one in NODES for gpu in one.gpus}
    marks = {key: more.pop(key) for key in ("here", "wanted") if key in more}
    return row_of(allocation(**more), gpus, NOW, **marks)


def test_one_that_runs() -> None:
    one = row(time=7200.0, expires=NOW + 4365)
    assert one.title == "'train': 2 GPUs with 16 GiB each on gpu03 (2 × A100-40GB)"
    assert one.state == "running · 1 h 12 m left"
    assert (one.can_attach, one.can_extend, one.can_release, one.ended) == (True, True, True, False)
    assert not row(here=True).can_attach
    assert not row().can_extend, "it has no time limit"


def test_time_left_does_not_change_each_second() -> None:
    said = {row(expires=NOW + left).state for left in range(130, 179)}
    assert said == {"running · 2 m left"}


def test_one_that_waits_says_what_is_asked_where_it_stands_and_why() -> None:
    queue = {
        "position": 2,
        "of": 3,
        "until": NOW + 600,
        "missing": "No node has 2 GPUs now.",
        "frees": "",
        "start": None,
    }
    one = row(state="pending", node=None, gpus=[], memory=[], queue=queue, request={"gpus": 2, "memory": "16GiB"})
    assert one.title == "'train': 2 GPUs with 16 GiB each"
    assert one.state == "waiting, 2 of 3"
    assert one.note == "No node has 2 GPUs now; it waits for up to 10 m more"
    assert row(state="pending", gpus=[], memory=[], request={"from": "the future"}).title == "'train' on gpu03"


def test_one_that_starts_says_how_far_it_is() -> None:
    one = row(state="starting", progress={"phase": "pulling", "current": GIB, "total": 4 * GIB})
    assert (one.state, one.part) == ("pulling the image 1 GiB of 4 GiB", 0.25)
    assert row(state="starting", wanted=True).wanted


def test_one_that_ended_says_why_and_can_be_done_nothing_to() -> None:
    one = row(state="ended", reason="failed", message="the image is not there\nits last lines", wanted=True)
    assert (one.state, one.note) == ("ended (failed)", "the image is not there")
    assert (one.can_attach, one.can_release, one.can_extend, one.wanted) == (False,) * 4
    assert one.ended
    assert not row(state="stopping").can_release


# --- without widgets


def test_the_page_has_it_all_and_escapes_it() -> None:
    evil = "<img src=x onerror=alert(1)>"
    held = [allocation(name=evil, warning=evil)]
    nodes = [node("n1", 1, GIB, model=evil), node(evil, 1, GIB, reason=evil)]
    page = page_of(nodes, evil, held, held[0], evil, evil)
    assert "<img" not in page.html
    assert page.html.count("&lt;img") >= 6
    assert "(here)" in page.text
    assert "1 idle" in page.text
    assert "You hold no GPUs." in page_of([], None, [], None).text

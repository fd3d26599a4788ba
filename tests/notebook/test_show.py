"""What people read."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpufit.models import Gpu, Node, Request, StoredModel
from jupyter_gpufit.notebook.jobs import sent
from jupyter_gpufit.notebook.obtain import is_what_is_asked
from jupyter_gpufit.notebook.progress import fraction, sentence, standing
from jupyter_gpufit.notebook.show import (
    Page,
    allocation_table,
    describe,
    explanation,
    gpu_table,
    model_table,
    node_table,
    text_table,
    usage_table,
    used,
)

GIB = 2**30


def test_tables_are_aligned_and_wrapped_in_their_widest_column() -> None:
    assert (
        text_table(("name", "count"), [["a", "1"], ["long name", "100"]])
        == "name       count\na              1\nlong name    100"
    )
    table = text_table(("node", "why"), [["n1", "word " * 30]], width=40)
    assert max(map(len, table.splitlines())) <= 40
    assert len(table.splitlines()) > 3


def test_a_page_escapes_what_comes_from_outside() -> None:
    page = Page().say("<b>").table(("<th>",), [["<td>"]])
    assert page.text == "<b>\n\n<th>\n<td>"
    for bad in ("<b>", "<th>", "<td>"):
        assert bad not in page.html.replace("<table><thead><tr><th style", "").replace("<tr><td style", "")
    assert set(page._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_an_allocation_in_a_few_words() -> None:
    allocation = {"id": "i", "name": "train", "node": "n1", "gpus": ["a", "b"], "memory": [16 * GIB] * 2}
    assert describe(allocation) == "'train': 2 GPUs with 16 GiB each on n1"
    assert describe(allocation | {"memory": [16 * GIB, 8 * GIB]}) == "'train': 2 GPUs with 16 GiB, 8 GiB on n1"
    assert describe(allocation | {"gpus": ["a"], "memory": [0]}) == "'train': 1 GPU on n1"
    assert describe(allocation | {"gpus": [], "memory": [], "node": None}) == "'train'"
    asked = allocation | {"request": {"cpus": 8.0, "ram": 64 * GIB}}
    assert describe(asked) == "'train': 2 GPUs with 16 GiB each, 8 CPUs, 64 GiB RAM on n1"
    assert describe(asked | {"gpus": ["a"], "memory": [0], "request": {"cpus": 1.0}}) == "'train': 1 GPU, 1 CPU on n1"


def test_a_job_that_was_just_asked_for() -> None:
    one = {"name": "s-2", "state": "pending", "job": {"sweep": {"lr": "2"}}}
    assert sent(one, "%gpufit") == "'s-2' (lr=2) waits for GPUs. Follow it: %gpufit logs -f s-2"
    place = sent(one | {"queue": {"position": 2, "of": 3}}, "%gpufit")
    assert place.startswith("'s-2' (lr=2) waits for GPUs, number 2 of 3 in the queue.")
    assert sent(one | {"node": "n1", "state": "starting"}, "%gpufit").startswith("'s-2' (lr=2) starts on n1.")


@pytest.mark.parametrize(
    ("held", "wishes", "same"),
    [
        ({}, {}, True),
        ({}, {"model": "llama"}, True),  # a wish, which any node may grant
        ({}, {"model": "llama", "require_model": True}, False),
        ({"model": "llama"}, {"model": "llama", "require_model": True}, False),
        ({"model": "llama", "require_model": True}, {"model": "llama", "require_model": True}, True),
        ({"model": "llama", "require_model": True}, {"model": "gemma", "require_model": True}, False),
        ({}, {"write_models": True}, False),
        ({"write_models": True}, {"write_models": True}, True),
        ({}, {"gpus": 2}, False),
        ({"cpus": 8.0, "ram": 64 * GIB}, {}, True),  # which asks for nothing that it has not
        ({"cpus": 8.0, "ram": 64 * GIB}, {"cpus": 8, "ram": "64GiB"}, True),
        ({"cpus": 8.0}, {"cpus": 4}, False),
        ({"cpus": 8.0}, {"cpus": 8, "ram": "64GiB"}, False),
        ({"ram": 64 * GIB}, {"ram": "32GiB"}, False),
    ],
)
def test_what_is_held_already(held: dict[str, Any], wishes: dict[str, Any], same: bool) -> None:
    one = {"name": "a", "state": "running", "job": None, "memory": [GIB], "request": held}
    assert is_what_is_asked(one, Request(memory=GIB, **wishes)) is same
    assert not is_what_is_asked(one | {"job": {"run": "fit.py"}}, Request(memory=GIB, **wishes))


def test_allocations() -> None:
    one = {
        "id": "i",
        "name": "train",
        "state": "running",
        "reason": None,
        "node": "n1",
        "gpus": ["a"],
        "memory": [GIB],
        "expires": 1000.0,
        "message": "",
    }
    ended = one | {"id": "j", "state": "ended", "reason": "expired", "message": "Its time is over."}
    _, rows = allocation_table([one, ended], here="i", now=400.0)
    assert rows == [
        ["train (here)", "running", "n1", "1", "1 GiB", "10 m", ""],
        ["train", "ended (expired)", "n1", "1", "1 GiB", "", "Its time is over."],
    ]


def test_what_was_asked_of_the_machine_is_shown_where_any_was() -> None:
    one = {"id": "i", "name": "a", "state": "running", "node": "n1", "gpus": ["a"], "memory": [GIB], "expires": None}
    headers, rows = allocation_table([one, one | {"request": {"cpus": 1.5, "ram": 64 * GIB}}])
    assert headers == ("allocation", "state", "node", "GPUs", "memory each", "CPUs", "RAM", "time left", "note")
    assert [row[5:7] for row in rows] == [["", ""], ["1.5", "64 GiB"]]
    headers, rows = allocation_table([one, one | {"request": {"ram": 64 * GIB}}])
    assert (headers[5:], rows[1][5:]) == (("RAM", "time left", "note"), ["64 GiB", "", ""])


def test_what_a_machine_has_left_where_that_is_known() -> None:
    full = Node(name="n1", cpus=8, cpus_free=6.5, ram=64 * GIB, ram_free=48 * GIB)
    lost = Node(name="n2", cpus=8, cpus_free=8, ram=64 * GIB, ram_free=64 * GIB, reason="unreachable")
    headers, rows = node_table(iter([full, lost, Node(name="n3")]), machine=True)
    assert headers == ("node", "GPUs", "idle", "most free", "CPUs free", "RAM free", "note")
    assert [row[4:] for row in rows] == [
        ["6.5/8", "48 GiB of 64 GiB", ""],
        ["", "", "unreachable"],
        ["", "", ""],
    ]
    assert node_table([full])[0] == node_table([Node(name="n3")], machine=True)[0], "at a glance, and of nothing known"


def test_nodes_and_their_gpus() -> None:
    gpus = (
        Gpu(
            uuid="GPU-0",
            index=0,
            model="A100",
            memory_total=40 * GIB,
            memory_free=None,
            idle=False,
            allocatable=False,
            reason="MIG",
        ),
        Gpu(
            uuid="MIG-0",
            index=0,
            model="A100",
            memory_total=5 * GIB,
            memory_free=5 * GIB,
            parent="GPU-0",
            mig_profile="1g.5gb",
        ),
        Gpu(uuid="GPU-1", index=1, model="A100", memory_total=40 * GIB, memory_free=GIB, idle=False, utilization=90),
        Gpu(uuid="GPU-2", index=2, memory_total=40 * GIB, allocatable=False, idle=False, reason="lost", health="lost"),
    )
    nodes = [
        Node(name="n1", gpus=gpus),
        Node(name="n2", reason="unreachable"),
        Node(name="n3", gpus=gpus[1:2], reason="stale"),
    ]
    _, rows = node_table(nodes)
    assert rows == [
        ["n1", "2 × A100", "1/2", "5 GiB", "lost"],
        ["n2", "no GPU", "0/0", "", "unreachable"],
        ["n3", "1 × A100", "0/1", "", "stale"],
    ]
    _, rows = gpu_table(nodes)
    assert [row[3:] for row in rows] == [
        ["? of 40 GiB", "", "not usable", "MIG"],
        ["5 GiB of 5 GiB", "", "idle", ""],
        ["1 GiB of 40 GiB", "90 %", "busy", ""],
        ["? of 40 GiB", "", "not usable", "lost"],
        ["5 GiB of 5 GiB", "", "not usable", "stale"],
    ]


def test_a_decision_node_by_node() -> None:
    decision = {
        "node": "b",
        "summary": "2 GPUs: b.",
        "stages": [
            {"stage": 1, "title": "enough", "passed": ["b", "c", "d"], "rejected": {"a": "1 idle GPU, 2 asked"}},
            {"stage": 4, "title": "memory", "passed": ["b", "c"], "rejected": {"d": "GPU-1 has 1 GiB free"}},
        ],
    }
    table = explanation(decision).text.split("\n\n")[1].splitlines()
    assert [line.split(maxsplit=3) for line in table[1:]] == [
        ["b", "✓", "✓", "chosen"],
        ["c", "✓", "✓", "fits too; number 2 in the order"],
        ["d", "✓", "✗", "GPU-1 has 1 GiB free"],
        ["a", "✗", "·", "1 idle GPU, 2 asked"],
    ]
    assert "no node" in explanation({"stages": []}).text
    many = {"stages": [{"stage": 1, "title": "", "rejected": {f"n{at}": "no" for at in range(500)}}]}
    assert "... and 300 more nodes" in explanation(many).text


def test_progress_in_one_line() -> None:
    allocation = {"name": "train", "node": "n1", "state": "starting", "progress": None}
    pulling = allocation | {"progress": {"phase": "pulling", "current": GIB, "total": 4 * GIB, "message": ""}}
    assert sentence(pulling, 12.3) == "train on n1: pulling the image 1 GiB of 4 GiB, 12 s"
    assert fraction(pulling) == 0.25
    assert fraction(allocation) is None
    waiting = allocation | {"node": None, "state": "pending", "progress": {"phase": "placing", "message": "2 before"}}
    assert sentence(waiting, 0) == "train: waiting for GPUs (2 before), 0 s"
    assert sentence(allocation | {"state": "stopping"}, 1) == "train on n1: giving everything back, 1 s"


def test_one_that_waits_says_where_it_stands() -> None:
    queue = {
        "position": 2,
        "of": 3,
        "until": 1600.0,
        "missing": "No node has 2 GPUs now.",
        "frees": "it can start when 'a' on n1 ends",
        "start": 1300.0,
    }
    assert standing(queue, 1000.0) == (
        "number 2 of 3 in the queue; No node has 2 GPUs now; it can start when 'a' on n1 ends, in 5 m at the latest; "
        "it waits for up to 10 m more"
    )
    bare = queue | {"missing": "", "frees": "", "start": None}
    assert standing(bare, 2000.0) == "number 2 of 3 in the queue; it waits for up to 0 s more"
    waiting = {"name": "train", "node": None, "state": "pending", "progress": {"phase": "placing"}, "queue": bare}
    assert sentence(waiting, 3).startswith("train: waiting for GPUs, number 2 of 3 in the queue; it waits")
    one = waiting | {"id": "i", "gpus": [], "memory": [], "message": queue["missing"], "queue": queue}
    _, [row] = allocation_table([one], now=1000.0)
    assert (row[1], row[-1]) == ("pending (2 of 3 waiting)", standing(queue, 1000.0))


def test_jobs_tell_what_they_run_without_being_wide() -> None:
    job = {"run": "fit.py", "args": ["--epochs", "9"], "sweep": {"lr": "1e-3"}, "env": ["KEY"]}
    one = {"id": "i", "name": "fit", "state": "running", "reason": None, "node": "n1", "gpus": ["a"], "memory": [GIB]}
    one |= {"expires": None, "message": "", "job": job, "attempt": 1}
    failed = one | {"state": "ended", "reason": "failed", "exit_code": 3, "attempt": 2}
    failed["message"] = "failed after 2 s; its last lines were:\nlast"
    long = one | {"job": job | {"run": "python -m " + "x" * 3000}}
    notes = [(row[1], row[-1]) for row in allocation_table([one, failed, long], now=0.0)[1]]
    assert notes[0] == ("running", "runs fit.py lr=1e-3 --epochs 9")
    assert notes[1] == ("ended (failed, exit code 3)", "runs fit.py lr=1e-3 --epochs 9, attempt 2; failed after 2 s")
    assert notes[2][1].endswith("x…")
    assert len(notes[2][1]) < 60


def test_models_and_what_was_used() -> None:
    models = (StoredModel(name="llama", size=GIB, modified=0.0), StoredModel(name="odd", modified=1e300))
    nodes = [Node(name="n1", models=models), Node(name="n2"), Node(name="n3", models=())]
    _, rows = model_table(nodes)
    assert rows == [["n1", "llama", "1 GiB", "1970-01-01 00:00:00 UTC"], ["n1", "odd", "?", ""]]
    gpu = {"uuid": "GPU-1", "asked": 24 * GIB, "peak": None, "busy": 43.2}
    assert usage_table({"usage": None})[1] == []
    assert usage_table({"usage": {"gpus": [gpu]}})[1] == [["GPU-1", "24 GiB", "?", "43 %"]]
    assert used({"usage": None}) == used({}) == ""
    usage = {"gpus": [gpu | {"peak": 9 * GIB}], "seconds": 90.0, "samples": 9, "suggested": 10 * GIB}
    assert used({"usage": usage}).endswith("--memory 10GiB would have been enough.")
    assert used({"usage": usage | {"suggested": None}}) == ""

"""The DataFrames of `%gpufit nodes | gpus | allocations`, as a notebook shows them."""

from __future__ import annotations

import re
import warnings

import pandas as pd

from jupyter_gpufit.cluster import tables
from jupyter_gpufit.models import Allocation, Gpu, Node, Request, State
from jupyter_gpufit.notebook.frames import Table

GIB = 2**30
FREE = Gpu(uuid="GPU-a", index=0, model="A100", memory_total=40 * GIB, memory_free=30 * GIB, utilization=5)
LOST = Gpu(uuid="GPU-b", index=1, model="A100", idle=False, allocatable=False, health="lost", reason="<b>fell off</b>")


def test_what_tells_nothing_is_left_out_and_named() -> None:
    table = Table(tables.gpus([Node(name="n1", gpus=(FREE,), age=0.0)]))
    head, row, rest = repr(table).splitlines()
    assert head.split() == ["node", "index", "model", "idle", "memory_total", "memory_free", "utilization", "processes"]
    assert row.split() == ["n1", "0", "A100", "✓", "40", "GiB", "30", "GiB", "5", "%", "0"]
    assert rest.startswith("not shown: uuid, shareable, memory_used,")
    html = table._repr_html_()
    assert "memory_free" in html
    assert "GPU-a" not in html
    assert rest in html
    assert list(table.columns) == list(tables.GPU_COLUMNS), "it has them all the same"
    assert table.uuid.tolist() == ["GPU-a"]


def test_what_is_not_in_order_is_seen() -> None:
    table = Table(tables.gpus([Node(name="n1", gpus=(FREE, LOST), age=0.0)]))
    text, html = repr(table), table._repr_html_()
    for word in ("health", "lost", "allocatable", "reason", "fell off"):
        assert word in text
        assert word in html
    assert "<b>" not in html
    dimmed = re.findall(r"([^{}]*)\{[^{}]*opacity: 0.6", html)
    assert "_row1_" in "".join(dimmed)
    assert "_row0_" not in "".join(dimmed)


def test_no_colour_but_half_transparent_ones() -> None:
    html = Table(tables.gpus([Node(name="n1", gpus=(FREE, LOST), age=0.0)]))._repr_html_()
    assert not re.search(r"(?<![-\w])color\s*:|#[0-9a-f]{6}\b|background-color", html)
    assert "linear-gradient" in html


def test_rows_that_are_too_many_and_none() -> None:
    many = Table(tables.nodes([Node(name=f"n{number}", age=0.0) for number in range(100)]))
    assert "and 40 more rows" in repr(many)
    assert "and 40 more rows" in many._repr_html_()
    assert (many.shape[0], "n59" in repr(many), "n60" in repr(many)) == (100, True, False)
    none = Table(tables.allocations([]))
    assert repr(none) == "no rows"
    assert "no rows" in none._repr_html_()


def test_a_moment_is_shown_without_a_warning() -> None:
    one = Allocation(id="1", name="train", owner="me", request=Request(), created=1e9 + 1e-6 / 3, state=State.PENDING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "2001-09-" in repr(Table(tables.allocations([one])))


def test_a_selection_is_an_ordinary_frame() -> None:
    table = Table(tables.gpus([Node(name="n1", gpus=(FREE,), age=0.0)]))
    assert type(table[["node"]]) is pd.DataFrame

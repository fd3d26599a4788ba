"""The cluster as DataFrames."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit.cluster import tables
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import Allocation, EndReason, Gpu, GpuProcess, Node, Request, State, StoredModel

PATIENT = settings(deadline=None)  # the machine may be busy with other things

A100 = Gpu(
    uuid="GPU-1",
    index=0,
    model="NVIDIA A100",
    memory_total=40 * GiB,
    memory_free=10 * GiB,
    memory_used=20 * GiB,
    idle=False,
    utilization=35,
    temperature=50,
    power=99.6,
    processes=(GpuProcess(pid=1), GpuProcess(pid=2)),
    allocations=("a", "b"),
)
LOST = Gpu(uuid="GPU-2", index=1, idle=False, allocatable=False, health="lost", reason="fell off the bus")
FREE = Gpu(uuid="GPU-3", index=2, memory_total=40 * GiB, memory_free=40 * GiB)
MODELS = (StoredModel(name="mistral-7b"), StoredModel(name="llama-7b", size=13 * GiB, modified=1e9))
NODES = [
    Node(
        name="n1",
        gpus=(A100, LOST, FREE),
        age=1.5,
        driver="550",
        cuda="12.4",
        labels={"room": "b12"},
        models=MODELS,
        cpus=8,
        cpus_free=6.5,
        ram=64 * GiB,
        ram_free=48 * GiB,
    ),
    Node(name="n2", reason="unreachable since 12:00", launcher="process"),
]
ALLOCATIONS = [
    Allocation(id="1", name="train", owner="me", request=Request(gpus=2), created=1e9, state=State.PENDING),
    Allocation(
        id="2",
        name="old",
        owner="me",
        request=Request(gpus=2, image="lab/x", shared=True, cpus=1.5, ram=16 * GiB),
        created=1e9,
        ended=1e9 + 0.5,
        state=State.ENDED,
        reason=EndReason.RELEASED,
        node="n1",
        gpus=("GPU-1", "GPU-2"),
        memory=(GiB, 2 * GiB),
    ),
]
TABLES: list[tuple[Callable[[Any], pd.DataFrame], Sequence[Any], dict[str, str]]] = [
    (tables.nodes, NODES, tables.NODE_COLUMNS),
    (tables.gpus, NODES, tables.GPU_COLUMNS),
    (tables.models, NODES, tables.MODEL_COLUMNS),
    (tables.allocations, ALLOCATIONS, tables.ALLOCATION_COLUMNS),
]
every_table = pytest.mark.parametrize(
    ("make", "rows", "columns"), TABLES, ids=["nodes", "gpus", "models", "allocations"]
)


def dtypes(columns: dict[str, str]) -> dict[str, Any]:
    return {column: pd.api.types.pandas_dtype(dtype) for column, dtype in columns.items()}


@every_table
@pytest.mark.parametrize("count", [0, 1, 2])
def test_columns_and_dtypes_are_always_the_same(make: Any, rows: Any, columns: dict[str, str], count: int) -> None:
    table = make(rows[:count])
    assert table.dtypes.to_dict() == dtypes(columns)
    assert list(table.columns) == list(columns)
    assert table.index.is_unique


def test_nodes() -> None:
    table = tables.nodes(NODES).set_index("node")
    assert list(table.loc["n1", ["usable", "gpus", "idle", "memory_total", "memory_free"]]) == [
        True,
        2,
        1,
        80 * GiB,
        50 * GiB,
    ]
    assert table.loc["n1", "labels"] == '{"room": "b12"}'
    machine = ["cpus", "cpus_free", "ram", "ram_free"]
    assert list(table.loc["n1", machine]) == [8, 6.5, 64 * GiB, 48 * GiB]
    assert table.loc["n2", machine].isna().all(), "unknown, not zero"
    assert (table.loc["n2", "usable"], table.loc["n2", "launcher"]) == (False, "process")
    assert table.loc["n2", ["gpus", "idle", "memory_total", "memory_free", "age"]].isna().all(), "unknown, not zero"


def test_gpus() -> None:
    table = tables.gpus(NODES).set_index("uuid")
    assert list(table.index) == ["GPU-1", "GPU-2", "GPU-3"]
    first = table.loc["GPU-1"]
    assert (first.node, first.memory_free, first.utilization, first.processes) == ("n1", 10 * GiB, 35, 2)
    assert first.allocations == "a b"
    assert table.loc["GPU-2", ["memory_total", "memory_free", "utilization"]].isna().all(), "unknown, not zero"
    assert table.loc["GPU-2", "reason"] == "fell off the bus"
    assert table[table.idle & (table.memory_free > 20 * GiB)].index.tolist() == ["GPU-3"], "made to compute with"
    stale = msgspec.structs.replace(NODES[0], reason="its last report is stale")
    assert tables.gpus([stale]).reason.tolist() == ["n1: its last report is stale"] * 3


def test_models() -> None:
    table = tables.models([*NODES, Node(name="n3", models=(StoredModel(name="odd", modified=1e300, size=0),))])
    assert table[["node", "name"]].to_numpy().tolist() == [["n1", "llama-7b"], ["n1", "mistral-7b"], ["n3", "odd"]]
    assert table["size"].tolist() == [13 * GiB, pd.NA, 0]
    assert table.modified[0] == pd.Timestamp("2001-09-09T01:46:40Z")
    assert table.modified.isna().tolist() == [False, True, True]
    shown = cells(tables.style(table))
    assert shown["size"] == ["13 GiB", "?", "0 B"]
    assert shown["modified"][1:] == ["?", "?"]


def test_allocations() -> None:
    table = tables.allocations(ALLOCATIONS).set_index("name")
    assert list(table.loc["old", ["gpus", "memory", "uuids", "image", "shared"]]) == [
        2,
        3 * GiB,
        "GPU-1 GPU-2",
        "lab/x",
        True,
    ]
    assert (table.loc["old", "state"], table.loc["old", "reason"]) == ("ended", "released")
    assert list(table.loc["old", ["cpus", "ram"]]) == [1.5, 16 * GiB]
    assert table.loc["train", ["gpus", "memory", "cpus", "ram", "expires", "ended", "reason"]].isna().all()
    assert table.loc["old", "created"] == pd.Timestamp("2001-09-09T01:46:40Z")
    assert (table.ended - table.created)["old"] == pd.Timedelta("500ms")


def test_what_rest_gives_makes_the_same_tables() -> None:
    nodes = msgspec.to_builtins(NODES)
    pd.testing.assert_frame_equal(tables.nodes(nodes), tables.nodes(NODES))
    pd.testing.assert_frame_equal(tables.gpus(nodes), tables.gpus(NODES))
    pd.testing.assert_frame_equal(tables.models(nodes), tables.models(NODES))
    public = [msgspec.json.decode(msgspec.json.encode(each.public())) for each in ALLOCATIONS]
    pd.testing.assert_frame_equal(tables.allocations(public), tables.allocations(ALLOCATIONS))


@PATIENT
@given(st.lists(st.builds(Node, gpus=st.lists(st.builds(Gpu), max_size=2).map(tuple)), max_size=2))
def test_any_nodes(nodes: list[Node]) -> None:
    things = (one for node in nodes for one in (*node.gpus, *(node.models or ())))
    if any(abs(value) >= 2**62 for one in things for value in _integers(one)):
        return
    for make, _, columns in TABLES[:-1]:
        assert make(nodes).dtypes.to_dict() == dtypes(columns)


def _integers(one: Gpu | StoredModel) -> list[int]:
    return [value for key in one.__struct_fields__ if isinstance(value := getattr(one, key), int)]


# --- for people


def cells(styled: Any) -> dict[str, list[str]]:
    """Column → what its cells show."""
    html = styled.to_html()
    heads = re.findall(r"<th [^>]*>(.*?)</th>", html)
    texts = re.findall(r"<td [^>]*>(.*?)</td>", html)
    return {head: texts[at :: len(heads)] for at, head in enumerate(heads)}


@every_table
@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_table_can_be_styled(make: Any, rows: Any, columns: dict[str, str], count: int) -> None:
    assert list(cells(tables.style(make(rows[:count])))) == list(columns)


def test_sizes_units_and_unknown() -> None:
    shown = cells(tables.style(tables.gpus(NODES)))
    assert shown["memory_free"] == ["10 GiB", "?", "40 GiB"]
    assert shown["utilization"] == ["35 %", "?", "?"]
    assert (shown["temperature"][0], shown["power"][0]) == ("50 °C", "100 W")
    assert shown["idle"] == ["–", "–", "✓"]
    assert shown["reason"] == ["", "fell off the bus", ""]
    shown = cells(tables.style(tables.allocations(ALLOCATIONS)))
    assert shown["memory"] == ["?", "3 GiB"]
    assert (shown["cpus"][1], shown["ram"][1]) == ("1.5", "16 GiB")
    assert re.fullmatch(r"2001-09-\d\d \d\d:\d\d", shown["created"][0])
    shown = cells(tables.style(tables.nodes(NODES)))
    assert [shown[column] for column in ("idle", "cpus", "cpus_free", "ram_free")] == [
        ["1", "?"],
        ["8", "?"],
        ["6.5", "?"],
        ["48 GiB", "?"],
    ]


def test_bars_show_the_share() -> None:
    html = tables.style(tables.gpus(NODES)).to_html()
    shares = re.findall(r"linear-gradient\(90deg, rgba\(.*?, 0.35\) ([\d.]+)%, transparent \1%\)", html)
    assert sorted(map(float, shares)) == [25.0, 35.0, 50.0, 100.0], (
        "of memory free and used, utilisation; none if unknown"
    )
    assert not re.search(r"(?<!-)color:", html), "the text's colour is the theme's"


def test_what_nodes_wrote_of_themselves_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    gpu = Gpu(uuid=evil, index=0, model=evil, reason=evil, allocatable=False)
    models = (StoredModel(name=evil),)
    node = Node(name=evil, reason=evil, gpus=(gpu,), driver=evil, labels={evil: evil}, age=0.0, models=models)
    for table in (tables.nodes([node]), tables.gpus([node]), tables.models([node])):
        assert "<script" not in tables.style(table).to_html()


def test_a_part_of_a_table_can_be_styled() -> None:
    table = tables.gpus(NODES)
    assert cells(tables.style(table[table.idle][["uuid", "memory_free"]])) == {
        "uuid": ["GPU-3"],
        "memory_free": ["40 GiB"],
    }


def test_importing_it_does_not_load_pandas() -> None:
    code = "import sys, jupyter_gpufit.cluster.tables; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

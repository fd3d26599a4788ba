"""What an allocation used, as a DataFrame and as a picture."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pandas as pd
import pytest

from jupyter_gpufit.cluster import tables
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.scheduling.usage import UsageSeries


def series(samples: int = 20) -> UsageSeries:
    made = UsageSeries.of({"GPU-1": 24 * GiB, "<script>": 0})
    for at in range(samples):
        made.add(1e9 + 5 * at, [(9 * GiB, 40), (None if at == 10 else GiB, None)])
    return made


@pytest.mark.parametrize("samples", [0, 1, 20])
def test_columns_are_always_the_same(samples: int) -> None:
    table = tables.usage(series(samples))
    assert {column: str(dtype) for column, dtype in table.dtypes.items()} == {
        "memory_0": "Int64",
        "utilization_0": "Float64",
        "memory_1": "Int64",
        "utilization_1": "Float64",
    }
    assert (table.index.name, str(table.index.dtype), len(table)) == ("time", "datetime64[ns, UTC]", samples)


def test_what_is_in_it() -> None:
    table = tables.usage(series())
    assert table.index[1] - table.index[0] == pd.Timedelta("5s")
    assert table.memory_0.max() == 9 * GiB
    assert table.memory_1.isna().sum() == 1, "unknown, not zero"
    assert table.utilization_1.isna().all()
    assert table.attrs["asked"] == [24 * GiB, 0]
    assert table.attrs["sentence"].startswith("asked 24 GiB on 2 GPUs, peak at least 9 and 1 GiB, busy 40 %")


def test_what_rest_gives_makes_the_same() -> None:
    public = json.loads(json.dumps(series().public()))
    pd.testing.assert_frame_equal(tables.usage(public), tables.usage(series()))
    assert tables.usage_picture(public)._repr_html_() == tables.usage_picture(series())._repr_html_()


def test_the_picture_is_a_line_for_each_that_is_known() -> None:
    html = tables.usage_picture(series())._repr_html_()
    ElementTree.fromstring(html.replace("<br>", "<br/>"))
    assert len(re.findall("<svg", html)) == 2
    assert len(re.findall("<polyline", html)) == 3 + 2, "asked, memory and utilisation; a gap where it is not known"
    assert "<script" not in html
    points = [float(number) for number in re.split("[ ,]", " ".join(re.findall(r'points="([^"]*)"', html)))]
    assert min(points) >= 0
    assert max(points) <= 320
    assert repr(tables.usage_picture(series())) == tables.usage(series()).attrs["sentence"]


def test_of_nothing_and_of_one_sample() -> None:
    assert "nothing is known yet" in tables.usage_picture(series(0))._repr_html_()
    assert "<svg" in tables.usage_picture(series(1))._repr_html_()


def test_the_picture_needs_no_pandas() -> None:
    code = """
import sys
from jupyter_gpufit.cluster import tables
from jupyter_gpufit.scheduling.usage import UsageSeries
tables.usage_picture(UsageSeries.of({"g": 1}))._repr_html_()
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

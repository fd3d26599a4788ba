"""The short version of `bench/soak.py`: some clients, three engines, and everything that can fail fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.soak import NOTHING, soak
from helpers.trouble import FAULTS

from .engines import Cluster


@pytest.mark.timeout(400)
async def test_nothing_is_lost_or_left(cluster: Cluster, kernel_image: str, tmp_path: Path) -> None:
    figures = await soak(cluster, tmp_path, kernel_image, allocations=14, minutes=0.25, seed=7, clients=3)
    del figures["memory (s, MiB)"]
    shown = json.dumps(figures, indent=2)
    # What a dockerd leaves that was killed in the middle of a start, no engine knows of; so nobody can remove it.
    ours = [name for name in NOTHING if name != "processes left in containers"]
    assert {name: figures[name] for name in ours if figures[name]} == {}, shown
    assert figures["allocations made"] > 5, shown
    assert figures["counts"]["cells ok"] > 0, shown
    assert set(figures["faults"]) == set(FAULTS), shown
    assert figures["looks at the engines"] > 20, shown

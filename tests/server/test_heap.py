"""The garbage collector is relieved on large clusters, and only there."""

from __future__ import annotations

import gc

import pytest
from helpers.fakes import node
from helpers.office import MakeOffice, Parts

from jupyter_gpufit.server import heap


@pytest.mark.parametrize("large", [False, True])
async def test_what_is_there_for_good_is_left_alone_until_the_server_stops(
    make_office: MakeOffice, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    before, parts = gc.get_freeze_count(), Parts()
    monkeypatch.setattr(heap, "LARGE", 10)
    for number in range(9 if large else 2):
        parts.cluster.put(node(f"more{number}"))
    async with make_office(parts=parts):
        assert (gc.get_freeze_count() > before) is large
    assert gc.get_freeze_count() <= before

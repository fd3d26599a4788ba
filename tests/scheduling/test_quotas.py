"""What one person may have: the sums and the sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpufit._gpufit_toml import parse
from jupyter_gpufit.errors import Forbidden, InventoryError
from jupyter_gpufit.inventory import Inventory, Quota
from jupyter_gpufit.models import Request
from jupyter_gpufit.scheduling.quotas import Holding, admit, excess

FILE = Path("/etc/gpufit.toml")
NODE = '[[node]]\nname = "a"\n'


def test_without_a_quota_everything_may_be_asked() -> None:
    asked = Request(gpus=1000, time="300d", wait="300d", priority=100)
    assert admit(asked, Quota()) == asked
    assert excess(1000, Quota(), [Holding(gpus=1000)]) is None


@given(
    st.integers(1, 9),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 3),
    st.lists(st.integers(0, 5), max_size=4),
)
def test_it_is_never_more_than_the_quota(
    asked: int, gpus: int | None, allocations: int | None, held: list[int]
) -> None:
    quota, holdings = Quota(gpus=gpus, allocations=allocations), [Holding(gpus=count, name="x") for count in held]
    fits = (gpus is None or sum(held) + asked <= gpus) and (allocations is None or len(held) + 1 <= allocations)
    assert (excess(asked, quota, holdings) is None) == fits
    if not (gpus is None or asked <= gpus) or allocations == 0:
        with pytest.raises(Forbidden):
            admit(Request(gpus=asked), quota)


def test_a_forbidden_request_says_what_is_asked_and_what_is_allowed() -> None:
    with pytest.raises(Forbidden) as refused:
        admit(Request(gpus=3), Quota(gpus=2))
    assert refused.value.message.startswith("3 GPUs are asked, and your quota is 2 GPUs at once; ask for less")
    assert refused.value.details == {"quota": "gpus", "asked": 3, "most": 2}
    with pytest.raises(Forbidden, match="--time 7201 s is asked, and your quota is 7200 s at most"):
        admit(Request(time=7201), Quota(time=7200))  # never "2 h is asked, and your quota is 2 h"


def test_many_holdings_are_not_all_named() -> None:
    held = [*(Holding(gpus=1, name=f"n{i}") for i in range(5)), Holding(gpus=2), Holding(gpus=2)]
    sentence = excess(1, Quota(gpus=9), held)
    assert sentence is not None
    assert "you hold 9 GPUs ('n0', 'n1', 'n2', 3 more)" in sentence


# --- in gpufit.toml


def quotas_of(text: str) -> Inventory:
    return parse(NODE + text, FILE)


def test_a_file_without_quotas_has_none() -> None:
    assert quotas_of("").quota("ann") == Quota()


def test_ones_own_quota_goes_before_that_of_all() -> None:
    inventory = quotas_of(
        """
        [quota]
        gpus = 4
        time = "2h"
        wait = 60
        [quota.owner.ann]
        gpus = 8
        time = "unlimited"
        priority = 10
        [quota.owner."bob@lab.example"]
        allocations = 1
        """
    )
    assert inventory.quota("eve") == Quota(gpus=4, time=7200, wait=60, priority=0)
    assert inventory.quota("ann") == Quota(gpus=8, time=None, wait=60, priority=10)
    assert inventory.quota("bob@lab.example") == Quota(gpus=4, allocations=1, time=7200, wait=60, priority=0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[quota]\ngpu = 4", r"\[quota\]: gpu: there is no such key; did you mean 'gpus'"),
        ("[quota]\ngpus = -1", r"\[quota\]: gpus = -1: is negative; write 0 or more, or 'unlimited'"),
        ('[quota]\ngpus = "four"', "gpus = 'four': has to be a whole number"),
        ("[quota]\ngpus = 1.5", "gpus = 1.5"),
        ("[quota]\ngpus = true", "gpus = True"),
        ('[quota]\ntime = "soon"', "time = 'soon'.* is not a duration"),
        ("[quota]\nwait = 0", "wait = 0"),
        ("[quota]\npriority = 101", "priority = 101: is not from -100 to 100"),
        ("[quota]\nowner = 3", r"write \[quota.owner.NAME\]"),
        ("[quota.owner]\nann = 3", r"write \[quota.owner.NAME\]"),
        ("[quota.owner.ann]\ngpus = {}", r"\[quota.owner.ann\]: gpus"),
        ("[quota.owner.ann]\nowner = {}", r"\[quota.owner.ann\]: owner: there is no such key"),
        ("[[quota]]\ngpus = 1", r"write \[quota\] on a line of its own"),
        ("[quotas]\ngpus = 1", "quotas: there is no such key; did you mean 'quota'"),
    ],
)
def test_a_quota_that_cannot_be_meant(text: str, says: str) -> None:
    with pytest.raises(InventoryError, match=says) as refused:
        quotas_of(text)
    assert refused.value.message.startswith(f"{FILE}: ")


def test_the_documentation_is_right_about_quotas() -> None:
    """The example of docs/queue.md is read, and its table has every key."""
    import re

    page = (Path(__file__).parent.parent.parent / "docs" / "queue.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    inventory = quotas_of(example)
    assert inventory.quota("ann").gpus == 8
    keys: list[Any] = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert keys == list(Quota.__struct_fields__)

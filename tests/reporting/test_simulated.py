"""Simulated nodes: the spec, and GPUs that behave."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.reporting import by_uuid
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import Claim, Gpu, Report, decode, encode
from jupyter_gpufit.reporting.catalogue import CATALOGUE
from jupyter_gpufit.reporting.simulated import SimulatedNode
from jupyter_gpufit.reporting.simulated_spec import parse_simulated
from jupyter_gpufit.reporting.source import SimulatedSource

NOW = 1_790_000_000.0


def node(spec: str, claims: tuple[Claim, ...] = (), name: str = "n1") -> tuple[Gpu, ...]:
    return SimulatedNode(name, spec).report(claims, NOW).gpus


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_model_of_the_table(name: str) -> None:
    gpus = node(f"simulated:3x{name}")
    assert len(gpus) == 3
    for index, gpu in enumerate(gpus):
        assert (gpu.index, gpu.model, gpu.allocatable, gpu.idle, gpu.utilization) == (
            index, CATALOGUE[name].name, True, True, 0,
        )  # fmt: skip
        assert gpu.memory_total is not None
        assert gpu.memory_free is not None
        size = int(name.rpartition("-")[2].removesuffix("GB"))
        assert 0.9 * size * 10**9 < gpu.memory_total < 1.08 * size * 2**30, "about what it says on the box"
        assert 0.95 * gpu.memory_total < gpu.memory_free < gpu.memory_total


def test_several_models_and_a_count_left_out() -> None:
    gpus = node("simulated: 2xA100-80GB, l4-24gb")
    assert [gpu.model for gpu in gpus] == ["NVIDIA A100-SXM4-80GB"] * 2 + ["NVIDIA L4"]
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert gpus[0].links == (gpus[1].uuid,)
    assert gpus[2].links == ()


def test_gpus_of_one_board_share_a_card() -> None:
    cards = [gpu.card for gpu in node("simulated:4xK80-12GB,1xT4-16GB")]
    assert cards[0] == cards[1] != cards[2] == cards[3]
    assert len(set(cards)) == 3


def test_names_are_the_same_in_every_process_and_differ_between_nodes() -> None:
    code = (
        "from jupyter_gpufit.reporting.simulated import SimulatedNode\n"
        "print(*(gpu.uuid for gpu in SimulatedNode('n1', '2xA100-40GB?mig=1:1g.5gb*2').report((), 0).gpus))"
    )
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    here = [gpu.uuid for gpu in node("simulated:2xA100-40GB?mig=1:1g.5gb*2")]
    assert there == here
    assert len(set(here)) == 4
    assert not set(here) & {gpu.uuid for gpu in node("2xA100-40GB?mig=1:1g.5gb*2", name="n2")}


def test_mig() -> None:
    parent, *parts, other = node("simulated:2xA100-40GB?mig=0:3g.20gb,1g.5gb*4")
    assert (parent.allocatable, parent.idle, other.allocatable) == (False, False, True)
    assert parent.reason
    assert [part.mig_profile for part in parts] == ["3g.20gb"] + ["1g.5gb"] * 4
    assert {(part.parent, part.card, part.allocatable) for part in parts} == {(parent.uuid, parent.card, True)}
    assert sum(part.memory_total or 0 for part in parts) <= 40 * GiB
    assert 19 * GiB < (parts[0].memory_free or 0) <= 20 * GiB
    assert {part.utilization for part in parts} == {None}


def test_a_foreign_load() -> None:
    gpus = node("simulated:4xT4-16GB?load=1:10GiB@80%&load=3:100GiB@100%&load=3:1GiB@100%")
    idle, loaded, _, full = gpus
    assert (idle.idle, loaded.idle) == (True, False)
    assert loaded.memory_used == 10 * GiB
    assert (loaded.memory_free or 0) + 10 * GiB == idle.memory_free
    assert (loaded.utilization, full.utilization, full.memory_free) == (80, 100, 0)
    assert (loaded.power or 0) > 2 * (idle.power or 0)
    assert (loaded.temperature or 0) > (idle.temperature or 0)
    (process,) = loaded.processes
    assert (process.memory, process.container) == (10 * GiB, None)


def test_a_load_on_mig_instances() -> None:
    gpus = node("A100-40GB?load=0.1:2GiB@10%&mig=0:1g.5gb*2")
    assert [gpu.idle for gpu in gpus] == [False, True, False]
    gpus = node("A100-40GB?load=0:2GiB&mig=0:1g.5gb*2")
    assert [len(gpu.processes) for gpu in gpus] == [0, 1, 1]


def test_others_come_and_go() -> None:
    simulated = SimulatedNode("n1", "simulated:16xA100-40GB?foreign=30%&seed=3")
    busy = [[not gpu.idle for gpu in simulated.report((), NOW + 60 * minute).gpus] for minute in range(240)]
    share = sum(map(sum, busy)) / (16 * 240)
    assert 0.2 < share < 0.4
    assert all(any(column) and not all(column) for column in zip(*busy, strict=True)), "on every GPU, now and then"
    assert simulated.report((), NOW) == SimulatedNode("n1", simulated.spec).report((), NOW), "all agree"
    other = SimulatedNode("n1", "simulated:16xA100-40GB?foreign=30%&seed=4")
    assert [gpu.idle for gpu in other.report((), NOW).gpus] != [gpu.idle for gpu in simulated.report((), NOW).gpus]


@pytest.mark.parametrize("health", ["lost", "unhealthy", "unknown"])
def test_faults(health: str) -> None:
    gpus = node(f"simulated:3xL4-24GB?fault=1:{health}")
    assert [gpu.allocatable for gpu in gpus] == [True, False, True]
    assert gpus[1].health == health
    assert gpus[1].reason
    assert (gpus[1].memory_free is None) == (health != "unhealthy")


def test_a_fault_of_a_parent_takes_its_instances_along() -> None:
    assert {gpu.health for gpu in node("A100-40GB?mig=0:1g.5gb*2&fault=0:lost")} == {"lost"}
    assert [gpu.health for gpu in node("A100-40GB?mig=0:1g.5gb*2&fault=0.1:lost")] == ["ok", "ok", "lost"]


def test_an_allocation_uses_what_it_has_more_and_more() -> None:
    simulated = SimulatedNode("n1", "simulated:2xA100-40GB")
    first, second = (gpu.uuid for gpu in simulated.report((), NOW).gpus)
    claim = Claim(allocation="a1", scheduler="s", gpus={first: 16 * GiB}, pids=frozenset({4321, 4322}))
    used, loads = [], []
    for seconds in range(0, 120, 2):
        gpus = by_uuid(simulated.report([claim], NOW + seconds).gpus)
        (process,) = gpus[first].processes
        assert process.pid == 4321
        assert process.memory == gpus[first].memory_used
        assert not gpus[first].idle
        assert gpus[second].idle
        used.append(process.memory or 0)
        loads.append(gpus[first].utilization or 0)
    assert used == sorted(used)
    assert used[0] < GiB
    assert 13 * GiB < used[-1] <= 16 * GiB, "never more than it reserved"
    assert max(loads) > 60
    assert len(set(loads)) > 10
    gone = by_uuid(simulated.report([], NOW + 200).gpus)[first]
    assert (gone.idle, gone.memory_used, gone.utilization) == (True, 0, 0)
    again = by_uuid(simulated.report([claim], NOW + 300).gpus)[first]
    assert (again.memory_used or 0) < GiB, "it begins anew"


def test_processes_bear_the_container_and_a_mere_reservation_has_none() -> None:
    simulated = SimulatedNode("n1", "simulated:1xA100-40GB")
    uuid = simulated.report((), NOW).gpus[0].uuid
    container = "c" * 64
    running = Claim(allocation="a1", scheduler="s", gpus={uuid: GiB}, container=container)
    reserved = Claim(allocation="a2", scheduler="s", gpus={uuid: GiB})
    elsewhere = Claim(allocation="a3", scheduler="s", gpus={"GPU-other": GiB}, container=container)
    (gpu,) = simulated.report([running, reserved, elsewhere], NOW).gpus
    assert [process.container for process in gpu.processes] == [container]
    (gpu,) = simulated.report([reserved], NOW).gpus
    assert gpu.idle


def test_shared_allocations_never_use_more_than_there_is() -> None:
    simulated = SimulatedNode("n1", "simulated:1xT4-16GB?load=0:6GiB@50%")
    uuid = simulated.report((), NOW).gpus[0].uuid
    claims = [
        Claim(allocation=f"a{n}", scheduler="s", gpus={uuid: 8 * GiB}, shared=True, pids=frozenset({n + 1}))
        for n in range(3)
    ]
    simulated.report(claims, NOW)
    (gpu,) = simulated.report(claims, NOW + 100).gpus
    assert len(gpu.processes) == 4
    assert gpu.memory_free == 0
    assert sum(process.memory or 0 for process in gpu.processes) == gpu.memory_used


@given(
    st.floats(0, 4e9), st.integers(0, 40 * GiB), st.sampled_from(["", "?foreign=80%", "?mig=0:2g.10gb*3&foreign=50%"])
)
def test_figures_are_always_possible(now: float, reserved: int, options: str) -> None:
    simulated = SimulatedNode("n1", f"simulated:2xA100-40GB{options}")
    uuids = [gpu.uuid for gpu in simulated.report((), now).gpus]
    claim = Claim(allocation="a", scheduler="s", gpus=dict.fromkeys(uuids, reserved), pids=frozenset({1}))
    for later in (0.0, 7.5, 1000.0):
        report = simulated.report([claim], now + later)
        for gpu in report.gpus:
            assert gpu.memory_total is not None
            assert 0 <= (gpu.memory_free or 0) <= gpu.memory_total
            assert 0 <= (gpu.memory_used or 0) <= gpu.memory_total
            assert 0 <= (gpu.utilization or 0) <= 100
            assert 0 <= (gpu.power or 0) <= 400
        assert decode(encode(report), Report) == report


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("simulated:", "write it like"),
        ("simulated:4xA100", "did you mean A100-40GB or A100-80GB"),
        ("simulated:4xZ999", "there are A10-24GB"),
        ("simulated:0xA100-40GB", "0 GPUs"),
        ("simulated:2000xA100-40GB", "2000 GPUs"),
        ("simulated:-1xA100-40GB", "write it like"),
        ("simulated:4xA100-40GB?loud=1", "no option 'loud'"),
        ("simulated:4xA100-40GB?mig=4:1g.5gb", "GPUs 0 to 3"),
        ("simulated:4xA100-40GB?mig=0:1g.10gb*9", "no instance"),
        ("simulated:4xA100-40GB?mig=0:9g.90gb", "no instance"),
        ("simulated:4xA100-40GB?mig=0:3g.20gb*3", "do not fit"),
        ("simulated:4xT4-16GB?mig=0:1g.5gb", "no MIG"),
        ("simulated:4xT4-16GB?load=0", "colon"),
        ("simulated:4xT4-16GB?load=0:lots", "size of memory"),
        ("simulated:4xT4-16GB?load=0:1GiB@101%", "write it like"),
        ("simulated:4xT4-16GB?load=0.0:1GiB", "no MIG instance 0"),
        ("simulated:4xT4-16GB?foreign=much", "foreign=30%"),
        ("simulated:4xT4-16GB?seed=x", "whole number"),
        ("simulated:4xT4-16GB?fault=0:tired", "lost, unhealthy, unknown"),
    ],
)
def test_specs_that_cannot_be(spec: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=says.replace("?", ".")):
        parse_simulated(spec)


@given(st.text(alphabet="simulated:?&=*@%.,0123456789xA-GBTgLV_loadmigfutsnr+ é", max_size=60))
def test_a_spec_is_understood_or_refused_in_words(text: str) -> None:
    try:
        spec = parse_simulated(text)
    except InvalidValue:
        return
    gpus = SimulatedNode("n1", spec).report((), NOW).gpus
    assert len(spec.models) + sum(map(len, spec.mig.values())) == len(gpus) > 0


async def test_as_a_source() -> None:
    claims: list[Claim] = []
    source = SimulatedSource("n1", "simulated:1xL4-24GB", lambda: claims)
    (gpu,) = (await source.fetch(1.0)).gpus
    assert gpu.idle
    claims.append(Claim(allocation="a", scheduler="s", gpus={gpu.uuid: GiB}, pids=frozenset({7})))
    (gpu,) = (await source.fetch(1.0)).gpus
    assert [process.pid for process in gpu.processes] == [7]
    await source.close()
    with pytest.raises(InvalidValue):
        SimulatedSource("n1", "simulated:4xnothing")

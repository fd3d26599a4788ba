"""Faults: which ones count, for whom, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from helpers.reporting import Machine, by_uuid
from standins.nvml import StandinGpu, StandinMig

from jupyter_gpufit.models import Gpu, Report
from jupyter_gpufit.reporting.health import APPLICATION_XIDS, CLEAN_READS, Health
from jupyter_gpufit.reporting.reading import Reading, Xid

Read = Callable[[], Awaitable[Report]]


def reading(*gpus: Gpu, xids: tuple[Xid, ...] = (), faults: dict[str, str] | None = None) -> Reading:
    return Reading(report=Report(gpus=gpus), xids=xids, faults=faults or {})


GPU = Gpu(uuid="GPU-a", index=0, memory_total=10, memory_free=10)


# --- through NVML


async def test_an_xid_makes_its_gpu_unhealthy_until_several_clean_reads(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-b"))
    await read()
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-b", xid=(79,)))
    for _ in range(CLEAN_READS):
        gpus = by_uuid((await read()).gpus)
        assert (gpus["GPU-b"].health, gpus["GPU-b"].allocatable, gpus["GPU-b"].idle) == ("unhealthy", False, False)
        assert "Xid 79" in (gpus["GPU-b"].reason or "")
        assert gpus["GPU-a"].allocatable
    gpu = by_uuid((await read()).gpus)["GPU-b"]
    assert (gpu.health, gpu.allocatable, gpu.idle, gpu.reason) == ("ok", True, True, None)


async def test_application_xids_do_not(machine: Machine, read: Read) -> None:
    assert {13, 31, 43, 45, 68, 109} == APPLICATION_XIDS
    machine.has(StandinGpu("GPU-a"))
    await read()
    machine.has(StandinGpu("GPU-a", xid=(13, 31, 43, 45, 68, 109)))
    for _ in range(2):
        (gpu,) = (await read()).gpus
        assert (gpu.health, gpu.allocatable) == ("ok", True)


async def test_an_xid_of_a_parent_takes_its_instances_along(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-p", mig=(StandinMig("MIG-a"),), xid=(48,)))
    gpus = by_uuid((await read()).gpus)
    assert (gpus["MIG-a"].health, gpus["MIG-a"].allocatable) == ("unhealthy", False)
    assert "GPU-p" in (gpus["MIG-a"].reason or "")
    assert "Xid 48" in (gpus["MIG-a"].reason or "")
    assert gpus["GPU-a"].health == "ok"


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"remapped_rows": (0, 1, 0, 1)}, "could not be remapped"),
        ({"remapped_rows": (0, 1, 1, 0)}, "wait to be remapped"),
        ({"ecc_uncorrected": 2}, "2 uncorrected ECC errors"),
    ],
)
async def test_memory_faults_last_as_long_as_the_driver_shows_them(
    machine: Machine, read: Read, state: dict[str, object], says: str
) -> None:
    machine.has(StandinGpu("GPU-a", **state))  # type: ignore[arg-type]
    for _ in range(CLEAN_READS + 2):
        (gpu,) = (await read()).gpus
        assert (gpu.health, gpu.allocatable) == ("unhealthy", False)
        assert says in (gpu.reason or "")
    machine.has(StandinGpu("GPU-a"))
    for _ in range(CLEAN_READS):
        (gpu,) = (await read()).gpus
    assert (gpu.health, gpu.allocatable) == ("ok", True)


async def test_corrected_errors_and_remapped_rows_are_no_fault(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a", ecc_corrected=900, remapped_rows=(3, 1, 0, 0)))
    (gpu,) = (await read()).gpus
    assert (gpu.health, gpu.allocatable) == ("ok", True)


async def test_a_gpu_without_events_is_reported_all_the_same(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a", faults={"events": "error:3"}), StandinGpu("GPU-b", xid=(79,)))
    first, second = (await read()).gpus
    assert (first.health, second.health) == ("ok", "unhealthy")


async def test_waiting_for_events_may_fail(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a"), faults={"event_wait": "error:999"})
    assert [gpu.allocatable for gpu in (await read()).gpus] == [True]
    machine.has(StandinGpu("GPU-a", xid=(79,)))
    await read()
    assert [gpu.health for gpu in (await read()).gpus] == ["unhealthy"], "it listens again"


# --- pure


def test_a_new_fault_starts_the_count_anew() -> None:
    health = Health(clean_reads=3)
    seen = []
    for xids in [(Xid("GPU-a", 79),), (), (), (Xid("GPU-a", 62),), (), (), ()]:
        (gpu,) = health.conclude(reading(GPU, xids=xids)).gpus
        seen.append(gpu.health)
    assert seen == ["unhealthy"] * 6 + ["ok"]


def test_a_read_without_memory_is_not_a_clean_one() -> None:
    health = Health(clean_reads=1)
    health.conclude(reading(GPU, xids=(Xid("GPU-a", 79),)))
    unknown = Gpu(uuid="GPU-a", index=0, health="unknown", allocatable=False, idle=False, reason="unknown: memory")
    assert health.conclude(reading(unknown)).gpus[0].health == "unhealthy"
    assert health.conclude(reading(GPU)).gpus[0].health == "ok"


def test_an_xid_of_one_instance_leaves_the_others_alone() -> None:
    parent = Gpu(uuid="GPU-p", index=0, allocatable=False, idle=False, reason="MIG mode is on")
    parts = [Gpu(uuid=f"MIG-{n}", index=n, parent="GPU-p", card="GPU-p") for n in range(2)]
    gpus = Health().conclude(reading(parent, *parts, xids=(Xid("MIG-1", 62),))).gpus
    assert [gpu.health for gpu in gpus] == ["ok", "ok", "unhealthy"]


def test_a_report_with_an_error_changes_nothing_that_is_known() -> None:
    health = Health()
    health.conclude(reading(GPU))
    broken = Report(error="mismatch")
    assert health.conclude(Reading(report=broken)) == broken
    assert [gpu.health for gpu in health.conclude(reading()).gpus] == ["lost"]


def test_a_nameless_gpu_that_was_never_seen() -> None:
    nameless = Gpu(uuid="", index=3, health="lost", allocatable=False, idle=False, reason="lost: no handle")
    (gpu,) = Health().conclude(reading(nameless)).gpus
    assert gpu.uuid == gpu.card == "unknown-3"
    assert gpu.reason == "lost: no handle"

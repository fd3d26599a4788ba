"""What a report says of a machine, read by the real bindings from the stand-in library."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

import pytest
from helpers.reporting import PATIENCE, Machine, by_uuid
from standins.nvml import GIB, StandinGpu, StandinMig, k80

from jupyter_gpufit.models import Report
from jupyter_gpufit.reporting.sampler import Sampler

Read = Callable[[], Awaitable[Report]]


async def test_every_field(machine: Machine, read: Read) -> None:
    machine.has(
        StandinGpu(
            "GPU-a",
            name="NVIDIA A100-SXM4-40GB",
            memory_used=8 * GIB,
            memory_reserved=GIB // 2,
            utilization=73,
            temperature=61,
            power=312_400,
            pci="00000000:F1:00.0",
            numa_node=1,
            processes={os.getpid(): 7 * GIB, 4_190_001: None},
        ),
        driver="555.42.02",
        cuda=12050,
    )
    before = time.time()
    report = await read()
    assert (report.driver, report.cuda, report.host) == ("555.42.02", "12.5", os.uname().nodename)
    assert before - 1 <= report.time <= time.time() + 1
    assert 0 <= report.age < PATIENCE
    (gpu,) = report.gpus
    assert (gpu.uuid, gpu.index, gpu.model, gpu.card) == ("GPU-a", 0, "NVIDIA A100-SXM4-40GB", "GPU-a")
    assert (gpu.memory_total, gpu.memory_used) == (40 * GIB, 8 * GIB)
    assert gpu.memory_free == 40 * GIB - 8 * GIB - GIB // 2
    assert (gpu.utilization, gpu.temperature, gpu.power, gpu.numa) == (73, 61, 312.4, 1)
    assert (gpu.mig_profile, gpu.parent, gpu.links) == (None, None, ())
    assert (gpu.allocatable, gpu.reason, gpu.health, gpu.idle) == (True, None, "ok", False)
    ours, other = gpu.processes
    assert (ours.pid, ours.memory, other.pid, other.memory) == (os.getpid(), 7 * GIB, 4_190_001, None)
    assert ours.name
    assert other.name is None


async def test_a_gpu_without_processes_is_idle(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a", memory_used=GIB, utilization=0, graphics_processes={77: GIB}))
    (gpu,) = (await read()).gpus
    assert gpu.idle
    assert gpu.processes == ()


async def test_what_nvml_does_not_support_is_null(machine: Machine, read: Read) -> None:
    machine.has(
        StandinGpu(
            "GPU-a",
            name=None,
            utilization=None,
            temperature=None,
            power=None,
            pci="",
            numa_node=None,
            multi_gpu_board=None,
            ecc_uncorrected=None,
            ecc_corrected=None,
            remapped_rows=None,
            mig_capable=False,
        )
    )
    (gpu,) = (await read()).gpus
    assert (gpu.utilization, gpu.temperature, gpu.power, gpu.numa) == (None, None, None, None)
    assert (gpu.model, gpu.card, gpu.memory_free) == ("", "GPU-a", 40 * GIB)
    assert (gpu.allocatable, gpu.idle, gpu.health) == (True, True, "ok")


@pytest.mark.parametrize("call", ["utilization", "temperature", "power", "pci", "board", "numa", "ecc", "nvlink"])
async def test_a_metric_that_fails_is_null_and_the_rest_is_there(machine: Machine, read: Read, call: str) -> None:
    machine.has(StandinGpu("GPU-a", pci="00000000:F1:00.0", faults={call: "error:999"}))
    (gpu,) = (await read()).gpus
    assert getattr(gpu, call, None) is None
    assert (gpu.memory_free, gpu.allocatable, gpu.idle) == (40 * GIB, True, True)


async def test_mig_instances_are_gpus_and_their_parent_is_not_allocatable(machine: Machine, read: Read) -> None:
    instances = (
        StandinMig("MIG-a", memory_used=GIB, gpu_instance=3, processes={4242: GIB}),
        StandinMig("MIG-b", name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", memory_total=20 * GIB, slices=3),
    )
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-p", mig=instances), StandinGpu("GPU-z"))
    report = await read()
    assert [gpu.uuid for gpu in report.gpus] == ["GPU-a", "GPU-p", "MIG-a", "MIG-b", "GPU-z"]
    gpus = by_uuid(report.gpus)
    parent, first, second = gpus["GPU-p"], gpus["MIG-a"], gpus["MIG-b"]
    assert (parent.allocatable, parent.idle, parent.processes) == (False, False, ())
    assert "MIG mode is on" in (parent.reason or "")
    assert (first.parent, first.card, first.mig_profile, first.index) == ("GPU-p", "GPU-p", "1g.5gb", 0)
    assert (first.allocatable, first.idle, first.memory_free, first.utilization) == (True, False, 4 * GIB, None)
    assert [process.pid for process in first.processes] == [4242]
    assert (second.mig_profile, second.index, second.idle, second.memory_total) == ("3g.20gb", 1, True, 20 * GIB)
    assert "A100" in second.model


async def test_mig_profile_without_its_name(machine: Machine, read: Read) -> None:
    plain = StandinMig("MIG-a", name="GRID", memory_total=9856 * 2**20, slices=2)
    machine.has(StandinGpu("GPU-p", mig=(plain,)))
    assert by_uuid((await read()).gpus)["MIG-a"].mig_profile == "2g.10gb"


async def test_mig_mode_without_an_instance(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-p", mig=()))
    (parent,) = (await read()).gpus
    assert not parent.allocatable
    assert "no instance" in (parent.reason or "")


async def test_a_changed_mig_layout_is_no_loss(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-p", mig=(StandinMig("MIG-a"), StandinMig("MIG-b", gpu_instance=2))))
    await read()
    machine.has(StandinGpu("GPU-p", mig=(StandinMig("MIG-c"),)))
    assert [gpu.uuid for gpu in (await read()).gpus] == ["GPU-p", "MIG-c"]


async def test_gpus_of_one_board_share_a_card(machine: Machine, read: Read) -> None:
    machine.has(
        *k80(0x700, "GPU-a", "GPU-b"),
        *k80(0x900, "GPU-c", "GPU-d"),
        StandinGpu("GPU-e", board_id=0x700),  # a board id means nothing without MultiGpuBoard
    )
    gpus = by_uuid((await read()).gpus)
    assert gpus["GPU-a"].card == gpus["GPU-b"].card
    assert gpus["GPU-c"].card == gpus["GPU-d"].card
    assert len({gpus[uuid].card for uuid in ("GPU-a", "GPU-c", "GPU-e")}) == 3
    assert gpus["GPU-e"].card == "GPU-e"


async def test_a_mig_instance_is_on_the_board_of_its_parent(machine: Machine, read: Read) -> None:
    board = {"multi_gpu_board": 1, "board_id": 5}
    machine.has(StandinGpu("GPU-a", **board), StandinGpu("GPU-p", mig=(StandinMig("MIG-a"),), **board))  # type: ignore[arg-type]
    assert len({gpu.card for gpu in (await read()).gpus}) == 1


async def test_nvlinks(machine: Machine, read: Read) -> None:
    switch = "00000000:C0:00.0"
    machine.has(
        StandinGpu("GPU-a", pci="00000000:01:00.0", nvlink=("00000000:02:00.0", "-", "00000000:02:00.0")),
        StandinGpu("GPU-b", pci="00000000:02:00.0", nvlink=("00000000:01:00.0", "-", "-")),
        StandinGpu("GPU-c", pci="00000000:03:00.0", nvlink=("-", switch)),
        StandinGpu("GPU-d", pci="00000000:04:00.0", nvlink=(switch,)),
        StandinGpu("GPU-e", pci="00000000:05:00.0", nvlink=("-",)),
    )
    links = {gpu.uuid: gpu.links for gpu in (await read()).gpus}
    assert links == {
        "GPU-a": ("GPU-b",),
        "GPU-b": ("GPU-a",),
        "GPU-c": ("GPU-d",),
        "GPU-d": ("GPU-c",),
        "GPU-e": (),
    }


@pytest.mark.parametrize(
    ("faults", "health", "says"),
    [
        ({"all": "error:15"}, "lost", "lost"),
        ({"memory": "error:15"}, "lost", "lost"),
        ({"handle": "error:999"}, "unknown", "handle"),
        ({"handle": "error:4"}, "unknown", "Insufficient Permissions"),
        ({"uuid": "error:999"}, "unknown", "uuid"),
        ({"memory": "error:999"}, "unknown", "memory"),
        ({"processes": "error:999"}, "unknown", "processes"),
        ({"temperature": "error:16"}, "unhealthy", "reset"),
    ],
)
async def test_a_gpu_that_fails_is_there_with_the_reason_and_the_others_as_usual(
    machine: Machine, read: Read, faults: dict[str, str], health: str, says: str
) -> None:
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-b", faults=faults), StandinGpu("GPU-c", power=70_000))
    first, broken, last = (await read()).gpus
    assert (broken.allocatable, broken.idle, broken.health, broken.index) == (False, False, health, 1)
    assert says in (broken.reason or "")
    assert broken.memory_free is None or "memory" not in faults
    assert (first.uuid, first.allocatable, first.idle) == ("GPU-a", True, True)
    assert (last.uuid, last.allocatable, last.idle, last.power) == ("GPU-c", True, True, 70.0)


async def test_memory_that_is_not_supported_is_unknown_not_zero(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a", memory_total=None))
    (gpu,) = (await read()).gpus
    assert (gpu.memory_total, gpu.memory_free, gpu.memory_used, gpu.allocatable) == (None, None, None, False)
    assert "memory" in (gpu.reason or "")


async def test_where_nvml_lists_no_processes_the_load_tells(machine: Machine, read: Read) -> None:
    faults = {"processes": "error:3"}
    machine.has(StandinGpu("GPU-a", faults=faults, utilization=0), StandinGpu("GPU-b", faults=faults, utilization=40))
    assert [(gpu.allocatable, gpu.idle) for gpu in (await read()).gpus] == [(True, True), (True, False)]


async def test_a_gpu_whose_handle_is_lost_keeps_its_name(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-b", memory_used=GIB, processes={9: GIB}))
    await read()
    machine.has(StandinGpu("GPU-a"), StandinGpu("GPU-b", faults={"all": "error:15"}))
    first, lost = (await read()).gpus
    assert (lost.uuid, lost.model, lost.memory_total) == ("GPU-b", "NVIDIA A100-SXM4-40GB", 40 * GIB)
    assert (lost.health, lost.allocatable, lost.memory_free, lost.processes) == ("lost", False, None, ())
    assert first.allocatable


async def test_a_gpu_that_is_not_listed_any_more_is_lost_with_its_instances(machine: Machine, read: Read) -> None:
    parent = StandinGpu("GPU-p", mig=(StandinMig("MIG-a"),))
    machine.has(StandinGpu("GPU-a"), parent)
    await read()
    machine.has(StandinGpu("GPU-a"))
    gpus = by_uuid((await read()).gpus)
    assert {uuid: (gpu.health, gpu.allocatable) for uuid, gpu in gpus.items()} == {
        "GPU-a": ("ok", True),
        "GPU-p": ("lost", False),
        "MIG-a": ("lost", False),
    }
    machine.has(StandinGpu("GPU-a"), parent)
    gpus = by_uuid((await read()).gpus)
    assert gpus["MIG-a"].health == "unhealthy", "not trusted at once"
    for _ in range(5):
        gpus = by_uuid((await read()).gpus)
    assert (gpus["MIG-a"].health, gpus["MIG-a"].allocatable) == ("ok", True)


@pytest.mark.parametrize(
    ("fault", "says"),
    [("init", "reboot"), ("count", "reboot")],
)
async def test_a_driver_of_another_version_is_a_node_that_says_so(
    machine: Machine, sampler: Sampler, fault: str, says: str
) -> None:
    machine.has(StandinGpu("GPU-a"), faults={fault: "error:18"})
    report = await sampler.fetch(PATIENCE)
    assert report.gpus == ()
    assert report.error is not None
    assert says in report.error
    assert "version" in report.error
    machine.has(StandinGpu("GPU-a"))
    report = await sampler.fetch(PATIENCE)
    assert (report.error, len(report.gpus)) == (None, 1), "it was repaired, and no restart of ours was needed"


async def test_without_a_driver_and_without_nvml(
    machine: Machine, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = await sampler.fetch(PATIENCE)  # the stand-in has no file: "driver not loaded"
    assert "not loaded" in (report.error or "")
    monkeypatch.delenv("LD_LIBRARY_PATH")
    bare = Sampler(PATIENCE, PATIENCE)
    report = await bare.fetch(PATIENCE)
    await bare.close()
    assert "libnvidia-ml.so.1" in (report.error or "")
    assert report.gpus == ()


async def test_names_that_are_no_text(machine: Machine, read: Read) -> None:
    machine.has(StandinGpu("GPU-a"))
    machine.file.write_bytes(machine.file.read_bytes().replace(b"name = NVIDIA", b"name = \xff\xfe"))
    (gpu,) = (await read()).gpus
    assert (gpu.uuid, gpu.model, gpu.allocatable) == ("GPU-a", "", True)

"""The stand-in NVML, asked through the real bindings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .nvml import GIB, StandinGpu, StandinMig, build, environment, k80, write

pytest.importorskip("pynvml")

ASK = """
import json, sys, pynvml as n
def ask(function, *args):
    try:
        return function(*args)
    except n.NVMLError as error:
        return {"error": error.value}
n.nvmlInit()
out = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    m = ask(n.nvmlDeviceGetMemoryInfo, h, n.nvmlMemory_v2)
    v1 = ask(n.nvmlDeviceGetMemoryInfo, h)
    procs = ask(n.nvmlDeviceGetComputeRunningProcesses, h)
    out.append({
        "uuid": n.nvmlDeviceGetUUID(h), "name": ask(n.nvmlDeviceGetName, h), "index": n.nvmlDeviceGetIndex(h),
        "memory": m if isinstance(m, dict) else [m.total, m.reserved, m.used, m.free],
        "memory_v1": v1 if isinstance(v1, dict) else [v1.total, v1.used, v1.free],
        "temperature": ask(n.nvmlDeviceGetTemperature, h, n.NVML_TEMPERATURE_GPU),
        "temperature_v": ask(n.nvmlDeviceGetTemperatureV, h, n.NVML_TEMPERATURE_GPU),
        "power": ask(n.nvmlDeviceGetPowerUsage, h), "power_limit": ask(n.nvmlDeviceGetEnforcedPowerLimit, h),
        "pci": n.nvmlDeviceGetPciInfo(h).busId, "board": [n.nvmlDeviceGetMultiGpuBoard(h), n.nvmlDeviceGetBoardId(h)],
        "mig": ask(n.nvmlDeviceGetMigMode, h), "numa": ask(n.nvmlDeviceGetNumaNodeId, h),
        "processes": procs if isinstance(procs, dict) else [[p.pid, p.usedGpuMemory, p.gpuInstanceId] for p in procs],
        "ecc": ask(n.nvmlDeviceGetTotalEccErrors, h, 1, 0), "rows": ask(n.nvmlDeviceGetRemappedRows, h),
        "brand": ask(n.nvmlDeviceGetBrand, h), "link": ask(n.nvmlDeviceGetNvLinkState, h, 0),
        "common": ask(n.nvmlDeviceGetTopologyCommonAncestor, h, n.nvmlDeviceGetHandleByIndex(0)),
        "instances": [],
    })
    for j in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
        g = ask(n.nvmlDeviceGetMigDeviceHandleByIndex, h, j)
        if isinstance(g, dict):
            continue
        parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(g)
        out[-1]["instances"].append({
            "uuid": n.nvmlDeviceGetUUID(g), "parent": n.nvmlDeviceGetUUID(parent), "is": n.nvmlDeviceIsMigDeviceHandle(g).value,
            "ids": [n.nvmlDeviceGetGpuInstanceId(g), n.nvmlDeviceGetComputeInstanceId(g)],
            "slices": n.nvmlDeviceGetAttributes(g).gpuInstanceSliceCount, "free": n.nvmlDeviceGetMemoryInfo(g).free,
            "temperature": ask(n.nvmlDeviceGetTemperature, g, 0),
        })
print(json.dumps([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(), out]))
"""  # noqa: E501


@pytest.fixture(scope="session")
def libdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def python(code: str, libdir: Path, file: Path, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    env = os.environ | environment(libdir, file)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=timeout)


def test_gpus_as_written(libdir: Path, tmp_path: Path) -> None:
    mig = StandinMig("MIG-a", memory_used=GIB, gpu_instance=3, slices=2, processes={7: GIB})
    file = write(
        tmp_path / "gpus",
        [
            StandinGpu(
                "GPU-a", memory_used=2 * GIB, memory_reserved=GIB, processes={4242: GIB, 4243: None}, nvlink=("-",)
            ),
            StandinGpu("GPU-b", power=None, temperature=None, mig=(mig,), numa_node=1, topology={"GPU-a": 20}),
            *k80(0x7700, "GPU-c", "GPU-d", ecc_uncorrected=None, remapped_rows=None),
        ],
        driver="555.1",
    )
    answer = python(ASK, libdir, file)
    assert answer.returncode == 0, answer.stderr
    driver, cuda, (a, b, c, d) = json.loads(answer.stdout)
    assert (driver, cuda) == ("555.1", 12040)
    assert a["uuid"] == "GPU-a"
    assert a["name"] == "NVIDIA A100-SXM4-40GB"
    assert a["index"] == 0
    assert a["memory"] == [40 * GIB, GIB, 2 * GIB, 37 * GIB]
    assert a["memory_v1"] == [40 * GIB, 3 * GIB, 37 * GIB]
    assert a["temperature"] == a["temperature_v"] == 35
    assert (a["power"], a["power_limit"]) == (60_000, 400_000)
    assert [p[:2] for p in a["processes"]] == [[4242, GIB], [4243, None]]
    assert a["rows"] == [0, 0, 0, 0]
    assert a["ecc"] == 0
    assert a["mig"] == [0, 0]
    assert a["link"] == 0
    assert b["power"] == b["temperature"] == {"error": 3}
    assert b["mig"] == [1, 1]
    assert b["numa"] == 1
    assert b["common"] == 20
    assert b["processes"] == [[7, GIB, 3]]
    assert b["instances"] == [
        {
            "uuid": "MIG-a",
            "parent": "GPU-b",
            "is": 1,
            "ids": [3, 0],
            "slices": 2,
            "free": 4 * GIB,
            "temperature": {"error": 3},
        }
    ]
    assert c["board"] == d["board"] == [1, 0x7700]
    assert c["pci"] != d["pci"]
    assert c["rows"] == c["ecc"] == c["mig"] == {"error": 3}


def test_a_call_that_fails(libdir: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "gpus", [StandinGpu("GPU-a", faults={"memory": "error:999"})])
    _, _, (gpu,) = json.loads(python(ASK, libdir, file).stdout)
    assert gpu["memory"] == {"error": 999}
    assert gpu["temperature"] == 35


def test_init_errors(libdir: Path, tmp_path: Path) -> None:
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value, e)"
    mismatch = write(tmp_path / "gpus", [], faults={"init": "error:18"})
    assert python(code, libdir, mismatch).stdout.startswith("18 ")
    assert python(code, libdir, tmp_path / "absent").stdout == "9 Driver Not Loaded\n"


def test_hang_and_crash(libdir: Path, tmp_path: Path) -> None:
    code = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0))"
    hanging = write(tmp_path / "hang", [StandinGpu("GPU-a", faults={"memory": "hang"})])
    with pytest.raises(subprocess.TimeoutExpired):
        python(code, libdir, hanging, timeout=2)
    crashing = write(tmp_path / "crash", [StandinGpu("GPU-a", faults={"memory": "crash"})])
    assert python(code, libdir, crashing).returncode == -6


def test_a_running_process_sees_the_file_change(libdir: Path, tmp_path: Path) -> None:
    code = """
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByUUID("GPU-a")
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, events)
try:
    n.nvmlEventSetWait(events, 50)
except n.NVMLError_Timeout:
    print("quiet", flush=True)
event = n.nvmlEventSetWait(events, 10000)
print(event.eventData, n.nvmlDeviceGetUUID(event.device), n.nvmlDeviceGetMemoryInfo(h).used, flush=True)
input()
try:
    n.nvmlDeviceGetMemoryInfo(h)
except n.NVMLError_GpuIsLost:
    print("lost")
"""
    file = write(tmp_path / "gpus", [StandinGpu("GPU-a")])
    env = os.environ | environment(libdir, file)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "quiet\n"
        write(file, [StandinGpu("GPU-a", xid=(79,), memory_used=5)])
        assert process.stdout.readline() == "79 GPU-a 5\n"
        write(file, [])
        assert process.communicate("\n")[0] == "lost\n"


def test_in_the_process_itself(libdir: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "gpus", [StandinGpu("GPU-a")])
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from standins import nvml
nvml.in_process(Path({str(libdir)!r}), Path({str(file)!r}))
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount())
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert answer.stdout == "1\n", answer.stderr

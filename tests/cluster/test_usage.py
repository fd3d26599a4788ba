"""What an allocation uses, on a real engine: the figures are those that the stand-in NVML was told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.frontend import FrontEnd, eventually
from helpers.jupyterserver import server_process
from helpers.machines import machines
from standins.nvml import StandinGpu

from .engines import Engine, gpu_uuid

GIB = 2**30
FOREIGN = 1
"""A pid that is in no container: init's."""
KEPT_TO = "import os; print(os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'], os.environ['TF_FORCE_GPU_ALLOW_GROWTH'])"


def does(engine: Engine, busy: int, memory: Mapping[int, int]) -> None:
    """The one GPU of that host: how busy it is, and what its processes (by pid) have there."""
    used = sum(memory.values())
    engine.set_gpus([StandinGpu(gpu_uuid("gpu01", 0), memory_used=used, utilization=busy, processes=dict(memory))])


def pid(engine: Engine, name: str) -> int:
    """Of the main process of that allocation's container, as the host counts."""
    try:
        [container] = engine.client().containers.list(filters={"name": f"gpufit-{name}-"})
        return int(container.attrs["State"]["Pid"])
    finally:
        engine.close_clients()


async def used(front: FrontEnd, name: str, last: tuple[int, float]) -> Any:
    """What REST says of it, once its last sample is `last`: bytes and percent."""
    said: Any = None

    async def there() -> bool:
        nonlocal said
        said = (await front.gpufit("GET", f"allocations/{name}/usage", expect=200)).json
        [gpu] = said["gpus"]
        return bool(said["times"]) and (gpu["memory"][-1], gpu["utilization"][-1]) == last

    await eventually(there)
    return said


async def test_figures_and_the_guard(engine: Engine, kernel_image: str, tmp_path: Path) -> None:
    does(engine, 0, {})
    config = {"LocalScheduler.sample_period": 0.5}
    with machines([engine], tmp_path, kernel_image, 'enforce = "stop"') as inventory:
        async with server_process(tmp_path, inventory=inventory, config=config) as server, server.front() as front:
            made = await front.request(gpus=1, memory="16GiB", name="train", shared=True, wait="60s")
            assert made["state"] == "running", made
            notebook = await front.open("study.ipynb")
            await front.gpufit("POST", "allocations/train/attach", {"session": notebook.session}, expect=202)
            await notebook.on(made["kernel_id"])
            assert (await notebook.run(KEPT_TO)).text == "0.3937 true\n", "16 GiB of 40, and a little less"

            train = pid(engine, "train")
            await used(front, "train", (0, 0))
            does(engine, 80, {train: 9 * GIB, FOREIGN: 2 * GIB})
            said = await used(front, "train", (9 * GIB, 80))
            does(engine, 20, {train: 3 * GIB})
            said = await used(front, "train", (3 * GIB, 20))
            [use] = said["usage"]["gpus"]
            assert (use["asked"], use["peak"], use["unknown"]) == (16 * GIB, 9 * GIB, 0)
            assert said["sentence"].startswith("asked 16 GiB on 1 GPU, peak 9 GiB, busy ")

            does(engine, 0, {})
            other = await front.request(gpus=1, memory="16GiB", name="other", shared=True, wait="60s")
            assert (other["state"], other["gpus"]) == ("running", made["gpus"])
            does(engine, 100, {train: 18 * GIB, pid(engine, "other"): 4 * GIB})
            await used(front, "other", (4 * GIB, 100))

            async def over() -> bool:
                now = (await front.gpufit("GET", "allocations/train", expect=200)).json
                return now["state"] == "ended"

            await eventually(over)
            ended = (await front.gpufit("GET", "allocations/train", expect=200)).json
            assert ended["reason"] == "over-memory"
            assert ended["message"].startswith("it used 18 GiB (asked 16 GiB) on GPU 0 of gpu01, which it shares")
            assert ended["usage"]["gpus"][0]["peak"] == 18 * GIB
            assert (await front.gpufit("GET", "allocations/other", expect=200)).json["state"] == "running"
            does(engine, 0, {})
            await front.release("other")
    assert "Traceback" not in server.log, server.log

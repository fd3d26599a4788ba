"""The scheduler with the real cluster cache: what one reserves, the other shows."""

from __future__ import annotations

import pytest
from helpers.fakes import GIB, FakeEngine, FakeHost
from helpers.lab import Lab, eventually

from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.errors import NoFit
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.models import Gpu, GpuProcess, Report
from jupyter_gpufit.scheduling.scheduler import LocalScheduler


def report(used: int = 0, container: str | None = None) -> Report:
    """Two GPUs of 16 GiB; `container` uses `used` of the first."""
    processes = (GpuProcess(pid=7, memory=used, container=container),) if container else ()
    return Report(
        gpus=(
            Gpu(
                uuid="G0",
                index=0,
                memory_total=16 * GIB,
                memory_free=16 * GIB - used,
                memory_used=used,
                processes=processes,
            ),
            Gpu(uuid="G1", index=1, memory_total=16 * GIB, memory_free=16 * GIB, memory_used=0),
        )
    )


class CachedLab(Lab):
    """A `Lab` with node `a` in a real cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.cache.set_inventory(Inventory(nodes=(NodeSpec(name="a", docker="unix:///nowhere"),)))
        self.cache.reported("a", report())
        self.host = FakeHost(self.script)
        self.scheduler = self.host.scheduler = LocalScheduler(self.cache, self._launcher, self.host)

    def held(self, name: str) -> set[str]:
        return {gpu.uuid for gpu in self.cache.node(name).gpus if gpu.allocations}


async def test_what_an_allocation_uses_itself_is_not_counted_twice() -> None:
    async with CachedLab() as lab:
        shared = await lab.running(memory="6GiB", shared=True)
        assert shared.gpus == ("G0",)
        [unit] = lab.engines["a"].containers
        for used in (0, 3, 6):  # it takes what it reserved, bit by bit
            lab.cache.reported("a", report(used * GIB, unit))
            (gpu, other) = lab.cache.node("a").gpus
            assert gpu.memory_free == 10 * GIB
            assert gpu.allocations == (shared.id,)
            assert gpu.shareable
            assert other.idle
        with pytest.raises(NoFit):
            await lab.request(gpus=2)
        again = await lab.request(memory="10GiB", shared=True)
        assert again.gpus == ("G0",), "the tightest: what is left of the shared one"
        await lab.end(shared.id)
        await lab.end(again.id)
        await lab.running(gpus=2, memory="16GiB")  # at once: the last report still shows what has ended


async def test_foreign_use_and_a_node_that_fails_are_respected() -> None:
    async with CachedLab() as lab:
        lab.cache.reported("a", report(GIB, "somebody-elses"))
        assert (await lab.running()).gpus == ("G1",)
        with pytest.raises(NoFit):
            await lab.request()
        lab.cache.failed("a", "connection refused")
        lab.cache.failed("a", "connection refused")
        with pytest.raises(NoFit) as refused:
            await lab.request()
        assert "connection refused" in refused.value.details["stages"][0]["rejected"]["a"]


async def test_cores_are_counted_once_and_given_back() -> None:
    lab = CachedLab()
    lab.engines["a"] = FakeEngine("a", machine=(8.0, 64 * GIB))
    async with lab:
        await eventually(lambda: lab.cache.node("a").cpus == 8)
        held = await lab.running(cpus=5, ram="60GiB")
        shown = lab.cache.node("a")
        assert (shown.cpus_free, shown.ram_free) == (3, 4 * GIB)
        with pytest.raises(NoFit) as refused:
            await lab.request(cpus=4)
        assert "3 of its 8 cores free, 4 asked" in refused.value.details["stages"][0]["rejected"]["a"]
        waiting = await lab.request(cpus=4, wait="1h")
        await lab.end(held.id)
        await lab.until(waiting.id, "running")
        assert lab.cache.node("a").cpus_free == 4

"""What a scheduler that died leaves on a real engine is removed by the next one on its store, whatever its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.inventory import Inventory
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Gpu, Report, Request
from jupyter_gpufit.scheduling.scheduler import LocalScheduler

pytestmark = pytest.mark.docker

SLEEP = ["{python}", "-c", "import time; time.sleep(1e6)"]


def scheduler(containers, store: Path, **options) -> LocalScheduler:
    cache = Cache()
    cache.set_inventory(Inventory(nodes=(containers.spec,)))
    gpus = (Gpu(uuid=uuid, index=n, memory_total=2**34, memory_free=2**34) for n, uuid in enumerate(containers.uuids))
    cache.reported(containers.spec.name, Report(gpus=tuple(gpus)))
    return LocalScheduler(cache, make_launcher, store=store, **options)


def states(containers) -> list[str]:
    return sorted(item["State"] for item in containers.engine.client().api.containers(all=True))


async def test_created_running_and_exited_ones_are_removed_and_nobody_elses(containers, tmp_path, eventually):
    dead = scheduler(containers, tmp_path, reap_grace=1e6)
    await dead.open()
    known = await dead.request(Request(), "ann", kernel_id="k")
    await dead.prepared(known.id)
    await dead.launch(known.id, SLEEP, {}, {})
    dead.remember(known.id, b"how to go on with its kernel")
    await dead.ready(known.id, "k")
    async with containers.opened(dead.id) as ours:
        # As if its last moments had not reached the disk: no allocation knows these.
        await ours.prepare()
        await ours.run(await ours.prepare(), SLEEP[2])
        exited = await ours.prepare()
        await ours.run(exited, "import time; time.sleep(1)")
        await ours.ended(exited)
        await dead.close(release=False)
        async with containers.opened("somebody-else") as theirs:
            other = await theirs.prepare()
            expected = ["created", "created", "exited", "running", "running"]
            await eventually(lambda: states(containers) == expected, "the list to show what the events told")
            alive = scheduler(containers, tmp_path, reap_grace=0.1)
            await alive.open()
            try:
                await eventually(lambda: containers.left() == [f"/{other.name}"], "all of the dead one's to be gone")
                assert alive.get(known.id).state == "ended"
                everything = await alive.request(
                    Request(gpus=len(containers.uuids), memory="16GiB"), "ann", kernel_id="l"
                )
                await alive.prepared(everything.id)
            finally:
                await alive.close()
            await theirs.launcher.stop(other)
    await containers.clean()

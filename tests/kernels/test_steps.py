"""A kernel's way up and down with a launcher that fails at each step, or does not answer: nothing leaks, and nothing on
the way down raises or hangs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.multikernelmanager import AsyncMultiKernelManager

from jupyter_gpufit.errors import GpufitError, LaunchError, NodeUnreachable
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.kernels import service as services
from jupyter_gpufit.kernels.provisioner import GpufitProvisioner
from jupyter_gpufit.kernels.service import Service
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Endpoint, EndReason, Launch, State, Unit

if TYPE_CHECKING:
    from conftest import Cluster  # type: ignore[import-not-found]


class Wrapped:
    """A real launcher, with `faults`: step → what is raised there; `"hang"`: it does not come back, `"slow"`: late."""

    faults: dict[str, Any] = {}  # noqa: RUF012  (set by tests)

    def __init__(self, spec: NodeSpec) -> None:
        self._launcher: Any = make_launcher(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    async def _at(self, step: str) -> None:
        fault = self.faults.get(step)
        if fault == "hang":
            await asyncio.sleep(3600)
        elif fault == "slow":
            await asyncio.sleep(3)
            raise NodeUnreachable("the node does not answer")
        elif fault is not None:
            raise fault

    async def prepare(self, launch: Launch, on_progress: Any) -> Unit:
        await self._at("prepare")
        unit: Unit = await self._launcher.prepare(launch, on_progress)
        return unit

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        await self._at("start")
        endpoint: Endpoint = await self._launcher.start(unit, command, files, env)
        if self.faults.get("connect"):
            return Endpoint(host=endpoint.host, ports=(1, 2, 3, 4, 5))  # where nobody answers
        return endpoint

    async def interrupt(self, unit: Unit) -> None:
        await self._at("interrupt")
        await self._launcher.interrupt(unit)

    async def stop(self, unit: Unit, grace: float = 0.0) -> None:
        await self._at("stop")
        await self._launcher.stop(unit, grace)

    def exit_code(self, unit: Unit) -> int | None:
        code: int | None = self._launcher.exit_code(unit)
        return None if "unreachable" in self.faults else code


@pytest.fixture(autouse=True)
def _faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wrapped, "faults", {})
    monkeypatch.setattr(services, "make_launcher", Wrapped)


@asynccontextmanager
async def service_here() -> AsyncIterator[Service]:
    """Used by all kernels of this event loop."""
    service = await services.open_service()
    await service.settled()
    try:
        yield service
    finally:
        Wrapped.faults.clear()
        await service.close()


@asynccontextmanager
async def kernel(cluster: Cluster, **config: Any) -> AsyncIterator[AsyncKernelManager]:
    manager = AsyncKernelManager(kernel_name=cluster.kernelspec("ours", **config))
    await manager.start_kernel()
    try:
        yield manager
    finally:
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


def provisioner(manager: Any) -> GpufitProvisioner:
    assert isinstance(manager.provisioner, GpufitProvisioner)
    return manager.provisioner


async def ended(service: Service, cluster: Cluster) -> tuple[EndReason | None, str]:
    """Wait for the end of the one allocation there was."""
    async with asyncio.timeout(60):
        while True:
            [one] = service.scheduler.allocations(ended=True)
            if one.state is State.ENDED and not cluster.held():
                return one.reason, one.message
            await service.scheduler.changed(one.id, one.version, 0.2)


@pytest.mark.parametrize(
    ("step", "fault", "told"),
    [
        ("prepare", LaunchError("the disk is full"), "the disk is full"),
        ("start", LaunchError("the disk is full", logs="a\nb"), "the disk is full"),
        ("connect", True, "did not answer within 2 s"),
    ],
)
async def test_a_start_that_fails_leaves_nothing(cluster_here: Cluster, step: str, fault: Any, told: str) -> None:
    Wrapped.faults[step] = fault
    async with service_here() as service:
        kernels = AsyncMultiKernelManager(connection_dir=str(cluster_here.directory))
        name = cluster_here.kernelspec("ours", start_timeout=2.0)
        with pytest.raises(GpufitError, match=told):
            await kernels.start_kernel(kernel_name=name)
        reason, message = await ended(service, cluster_here)
        assert reason is EndReason.FAILED
        assert told in message
        await asyncio.sleep(0.01)
        assert list(kernels._pending_kernels) == []
        await kernels.shutdown_all()
        # The GPUs can be had again.
        Wrapped.faults.clear()
        kernel_id = await kernels.start_kernel(kernel_name="gpufit")
        await kernels.shutdown_kernel(kernel_id, now=True)
        kernels.context.destroy(linger=0)
    assert cluster_here.held() == []


@pytest.mark.parametrize("step", ["prepare", "start", "connect"])
async def test_a_start_that_is_cancelled_leaves_nothing(cluster_here: Cluster, step: str) -> None:
    Wrapped.faults[step] = "hang"
    async with service_here() as service:
        manager = AsyncKernelManager(kernel_name="gpufit")
        starting = asyncio.create_task(manager.start_kernel())
        await asyncio.sleep(1.0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert (await ended(service, cluster_here))[0] is EndReason.CANCELLED
        manager.context.destroy(linger=0)


@pytest.mark.parametrize("step", ["prepare", "start", "connect"])
async def test_a_restart_that_fails_leaves_nothing(cluster_here: Cluster, step: str) -> None:
    async with service_here() as service, kernel(cluster_here) as manager:
        provisioner(manager).start_timeout = 2.0
        Wrapped.faults[step] = True if step == "connect" else LaunchError("the disk is full")
        with pytest.raises(GpufitError):
            await manager.restart_kernel(now=True)
        assert (await ended(service, cluster_here))[0] is EndReason.FAILED
        assert not await manager.is_alive()


async def test_a_node_that_cannot_be_reached_is_not_a_dead_kernel(cluster_here: Cluster) -> None:
    async with service_here() as service, kernel(cluster_here, stop_timeout=1.0) as manager:
        lost = NodeUnreachable("the node does not answer")
        Wrapped.faults.update({"unreachable": True, "stop": lost, "interrupt": lost})
        assert await manager.is_alive()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, 0):
            await manager.signal_kernel(number)
        assert await manager.is_alive()
        [one] = service.scheduler.allocations()
        assert one.state is State.RUNNING
        Wrapped.faults.clear()


@pytest.mark.parametrize("fault", ["slow", NodeUnreachable("the node does not answer")])
async def test_a_shutdown_comes_back_and_the_gpus_stay_reserved_until_it_is_confirmed(
    cluster_here: Cluster, fault: Any
) -> None:
    async with service_here() as service:
        async with kernel(cluster_here, stop_timeout=1.0) as manager:
            Wrapped.faults["stop"] = fault
            async with asyncio.timeout(30):
                await manager.shutdown_kernel(now=True)
            [one] = service.scheduler.allocations(ended=True)
            assert (one.state, one.reason) == (State.STOPPING, EndReason.RELEASED)
            assert cluster_here.held() == list(one.gpus)
        Wrapped.faults.clear()
    assert cluster_here.held() == []


async def test_what_is_kept_of_a_kernel_is_enough_to_go_on_with_it(cluster_here: Cluster) -> None:
    async with service_here() as service, kernel(cluster_here) as manager:
        info = json.loads(json.dumps(await provisioner(manager).get_provisioner_info()))
        other = AsyncKernelManager(kernel_name="gpufit")
        again = GpufitProvisioner(kernel_id=manager.kernel_id, kernel_spec=manager.kernel_spec, parent=other)
        await again.load_provisioner_info(info)
        assert again.has_process
        assert await again.poll() is None
        assert again.connection_info == provisioner(manager).connection_info
        assert await again.get_provisioner_info() == info
        await again.kill()
        assert await again.wait() != 0
        await again.cleanup()
        assert (await ended(service, cluster_here))[0] is EndReason.RELEASED


async def test_encryption_that_is_required_is_there_on_loopback_too(cluster_here: Cluster) -> None:
    async with service_here():
        manager = AsyncKernelManager(kernel_name="gpufit", transport_encryption="required")
        await manager.start_kernel()
        assert manager.curve_publickey is not None
        keys = manager.curve_publickey, manager.session.key, manager.ports
        await manager.restart_kernel(now=True)
        assert (manager.curve_publickey, manager.session.key, manager.ports) == keys
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)

"""What allocations use: whose memory it is, which reports count, and what is done about too much of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import GIB, node
from helpers.lab import Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.cluster.effective import used_by_each
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.models import Allocation, Claim, EndReason, Gpu, GpuProcess, Node, Report, State
from jupyter_gpufit.scheduling import metering
from jupyter_gpufit.scheduling.usage import UsageSeries, say

NOW = 1_000_000.0
CONTAINER = "c0ffee" * 10


# --- whose memory it is

CLAIM = Claim(allocation="a", scheduler="s", owner="me", gpus={"g": 8 * GIB}, container=CONTAINER)
PLAIN = Claim(allocation="p", scheduler="s", owner="me", gpus={"g": 8 * GIB}, pids=frozenset({5, 6}))


def gpu(*processes: GpuProcess, idle: bool = False) -> Gpu:
    return Gpu(uuid="g", index=0, processes=processes, idle=idle)


def process(memory: int | None, pid: int = 1, container: str | None = CONTAINER) -> GpuProcess:
    return GpuProcess(pid=pid, memory=memory, container=container)


@pytest.mark.parametrize(
    ("on_it", "own", "why"),
    [
        (gpu(process(3), process(4, 2)), 7, "its processes together"),
        (gpu(process(3), process(40, 2, "d" * 64)), 3, "not those of another container"),
        (gpu(process(3), process(40, 5, None)), 3, "nor those of another allocation's"),
        (gpu(process(3), process(40, 9, None)), 3, "nor one that is in no container, where those are told"),
        (gpu(process(40, 9, None)), None, "one that may be its own: none is told of"),
        (gpu(process(40, 5, None)), 0, "nor, where it is another's"),
        (gpu(process(3), process(None, 2)), None, "one whose memory is not known"),
        (gpu(process(3), process(None, 2, "d" * 64)), 3, "one of another whose memory is not known"),
        (gpu(), None, "in use, and there is no list of processes"),
        (gpu(idle=True), 0, "nothing computes there"),
        (gpu(process(3, container=CONTAINER[:12])), 3, "a short id"),
    ],
)
def test_whose_memory_it_is(on_it: Gpu, own: int | None, why: str) -> None:
    assert used_by_each([on_it], [CLAIM, PLAIN])["a"] == {"g": own}, why


def test_plain_processes_are_known_by_their_numbers() -> None:
    on_it = gpu(process(3, 5, None), process(40, 9, None))
    assert used_by_each([on_it], [CLAIM, PLAIN]) == {"p": {"g": 3}, "a": {"g": None}}
    elsewhere = replace(gpu(process(1, 1, "d" * 64)), uuid="h")
    both = used_by_each([on_it, elsewhere], [CLAIM, PLAIN])
    assert both["a"] == {"g": 0, "h": 0}, "this node tells of containers"
    unheard = used_by_each([on_it, elsewhere], [CLAIM, replace(PLAIN, pids=frozenset())])
    assert unheard["p"] == {"g": None, "h": None}, "what runs for it is not known yet: it may be any of these"


def test_the_cache_knows_by_the_claims_of_all_who_say_something() -> None:
    cache = Cache()
    cache.set_inventory(Inventory(nodes=(NodeSpec(name="n", docker="unix:///d"),)))
    assert cache.uses("n", "a") == cache.uses("elsewhere", "a") == {}
    cache.reported("n", Report(gpus=(gpu(process(3), process(4, 5, None)),)))
    cache.set_claims("ledger", "n", [CLAIM, replace(PLAIN, pids=frozenset())])
    assert (cache.uses("n", "a"), cache.uses("n", "p")) == ({"g": 3}, {"g": None})
    cache.set_claims("engine", "n", [PLAIN])
    assert (cache.uses("n", "a"), cache.uses("n", "p")) == ({"g": 3}, {"g": 4})


# --- samples


class Metered(Lab):
    """A lab whose clocks stand still, and which samples when it is told to."""

    def __init__(self, *nodes: Node, enforce: str = "warn", **options: Any) -> None:
        self.now = NOW
        specs = (NodeSpec(name="a", docker="unix:///d", enforce=enforce),)
        super().__init__(*(nodes or (node("a", 2),)), specs=specs, clock=lambda: self.now, **options)
        self.age = 0.0

    async def open(self) -> None:
        await self.scheduler.open()
        self.meter = self.scheduler._metering
        self.meter._monotonic = lambda: self.now
        self.meter._period = 1e6

    async def __aenter__(self) -> Metered:
        self._before = asyncio.all_tasks()
        await self.open()
        return self

    def doing(self, *uses: tuple[str, Sequence[int | None], int | None], **more: Any) -> None:
        """What node `a` reports from now on: GPU by GPU, the name of an allocation (or of something else), the memory
        of each of its processes, and how busy the GPU is."""
        gpus = []
        for at, (name, memory, busy) in enumerate(uses):
            units = [entry.unit for entry in self.scheduler._ledger.entries.values() if entry.allocation.name == name]
            container = units[0].id if units and units[0] else "e" * 64
            made = tuple(GpuProcess(pid=n, memory=each, container=container) for n, each in enumerate(memory))
            gpus.append(replace(node("a", len(uses)).gpus[at], processes=made, idle=not made, utilization=busy))
        self.cluster.put(replace(node("a", len(uses)), gpus=tuple(gpus), **({"age": self.age} | more)))

    async def pass_time(self, seconds: float = 5.0, times: int = 1) -> None:
        """Time passes, and there is a sample each time."""
        for _ in range(times):
            self.now += seconds
            await self.meter.sample()

    async def usage(self, name: str = "job") -> UsageSeries:
        return await self.scheduler.usage(self.scheduler.get(name).id)


@asynccontextmanager
async def metered(*nodes: Node, gpus: int = 2, memory: Any = "8GiB", **options: Any) -> AsyncIterator[Metered]:
    async with Metered(*nodes, **options) as lab:
        await lab.running(gpus=gpus, memory=memory, name="job")
        yield lab


async def test_figures_are_what_the_node_said() -> None:
    async with metered() as lab:
        lab.doing(("job", [GIB, GIB], 20), ("job", [GIB], 0))
        await lab.pass_time(times=10)
        lab.doing(("job", [3 * GIB, GIB], 100), ("job", [GIB], 0))
        await lab.pass_time(times=10)
        public = (await lab.usage()).public()
        assert public["times"] == [NOW + 5.0 * n for n in range(1, 21)]
        first, second = public["gpus"]
        assert first["memory"] == [2 * GIB] * 10 + [4 * GIB] * 10
        assert first["utilization"] == [20] * 10 + [100] * 10
        assert (first["uuid"], first["asked"]) == ("GPU-a-0", 8 * GIB)
        assert second["memory"] == [GIB] * 20
        usage = lab.scheduler.get("job").usage
        assert usage is not None
        assert usage.samples < 20, "told now and then"
        ended = await lab.end(lab.scheduler.get("job").id)
        assert ended.usage is not None
        assert ended.usage.samples == 20, "and when it ends"
        assert [use.busy for use in ended.usage.gpus] == [60.0, 0.0]
        assert say(ended.usage) == (
            "asked 8 GiB on 2 GPUs, peak 4 and 1 GiB, busy 30 % of the time; --memory 5GiB would have been enough"
        )
        assert (await lab.usage()).public() == public
        await lab.pass_time()
        assert (await lab.usage()).public() == public, "also out of the store"


async def test_it_is_final_before_its_end_is_told() -> None:
    async with metered() as lab:
        told: list[Allocation] = []
        lab.scheduler.subscribe(told.append)
        lab.doing(("job", [GIB], 1), ("job", [GIB], 1))
        await lab.pass_time()
        lab.doing(("job", [2 * GIB], 1), ("job", [GIB], 1))
        await lab.pass_time()
        await lab.end(lab.scheduler.get("job").id)
        samples = [one.usage.samples if one.usage else 0 for one in told]
        assert samples == sorted(samples)
        assert {one.usage and one.usage.samples for one in told if one.state is not State.RUNNING} == {2}


async def test_what_was_reported_before_it_ran_is_of_others() -> None:
    async with metered(gpus=1) as lab:
        for age in (7.0, 2.0, 2.0):  # it ran 5 s before the first sample
            lab.age = age
            lab.doing(("job", [GIB], 90 if age > 5 else 10), ("", [], 0))
            await lab.pass_time()
        [track] = (await lab.usage()).public()["gpus"]
        assert track["utilization"] == [10, 10]
        lab.now -= 3000
        lab.meter._monotonic = lambda: lab.now + 3000
        await lab.pass_time()
        assert (await lab.usage()).samples == 3, "a clock that was set keeps no sample away"


async def test_a_peak_between_two_samples_counts() -> None:
    async with metered(gpus=1) as lab:
        for memory in (GIB, 5 * GIB, 2 * GIB):
            lab.now += 1
            lab.doing(("job", [memory], 1), ("", [], 0))
        await lab.pass_time()
        lab.now += 1
        lab.doing(("job", [3 * GIB], 1), ("", [], 0))
        await lab.pass_time()
        [track] = (await lab.usage()).public()["gpus"]
        assert track["memory"] == [2 * GIB, 3 * GIB], "what was before the first sample was not looked at"
        for memory in (7 * GIB, 2 * GIB):
            lab.now += 1
            lab.doing(("job", [memory], 1), ("", [], 0))
        await lab.pass_time()
        [track] = (await lab.usage()).public()["gpus"]
        assert track["memory"][-1] == 7 * GIB


@pytest.mark.parametrize(
    "silent", [{"reason": "its last report is stale"}, {"reporting": False}, {"age": None}], ids=str
)
async def test_a_node_that_says_nothing_gives_no_sample(silent: dict[str, Any]) -> None:
    async with metered(gpus=1) as lab:
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        lab.doing(("job", [GIB], 1), ("", [], 0), **silent)
        await lab.pass_time(times=3)
        assert (await lab.usage()).samples == 1
        lab.cluster.remove("a")
        await lab.pass_time()
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        assert (await lab.usage()).samples == 2


async def test_a_peak_is_not_lost_where_the_last_report_does_not_know() -> None:
    async with metered(gpus=1) as lab:
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        for memory in ([7 * GIB], [GIB, None]):
            lab.now += 1
            lab.doing(("job", memory, 1), ("", [], 0))
        await lab.pass_time()
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        [use] = (await lab.usage()).usage().gpus
        assert (use.peak, use.unknown) == (7 * GIB, 1)


async def test_one_report_is_one_sample_also_if_others_take_long_to_be_read() -> None:
    async with metered(gpus=1) as lab:
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        await lab.running(gpus=1, name="next")
        kept = lab.meter._kept

        async def slow(id: str, part: str) -> bytes | None:
            lab.now += 3  # the reports get older meanwhile
            lab.cluster.put(replace(reported, age=lab.now - since))
            return await kept(id, part)

        lab.meter._kept = slow
        [reported], since = lab.cluster.nodes(), lab.now
        lab.meter._entries = dict(reversed(lab.meter._entries.items()))  # the new one is looked at first
        await lab.meter.sample()
        assert (await lab.usage()).samples == 1


async def test_one_report_is_one_sample() -> None:
    async with metered(gpus=1) as lab:
        for age in (0.0, 5.0, 10.0, 2.0):  # the third time it is older by what has passed: the same one
            lab.age = age
            lab.doing(("job", [GIB], 1), ("", [], 0))
            await lab.pass_time()
        assert (await lab.usage()).times == [NOW + 5.0, NOW + 18.0]


async def test_what_is_not_known_is_not_nothing() -> None:
    async with metered() as lab:
        lab.doing(("job", [GIB], 50), ("job", [GIB], None))
        await lab.pass_time(times=20)
        lab.doing(("job", [GIB, None], None), ("job", [GIB], None))
        await lab.pass_time()
        usage = (await lab.usage()).usage()
        assert [(use.peak, use.busy, use.unknown) for use in usage.gpus] == [(GIB, 50.0, 1), (GIB, None, 0)]
        assert usage.suggested is None


async def test_whose_a_process_is_may_be_known_a_moment_later() -> None:
    """The same report, and what holds the GPU has become clearer, or less so."""
    async with metered(gpus=1) as lab:
        lab.doing(("job", [GIB], 50), ("", [], 0))
        await lab.pass_time()
        lab.now += 5
        lab.doing(("job", [2 * GIB], 50), ("", [], 0))
        lab.cluster.uses = lambda *_: {}  # type: ignore[method-assign]
        await lab.meter.sample()
        assert (await lab.usage()).usage().gpus[0].unknown == 0


async def test_a_kernel_that_restarts_has_no_samples_meanwhile() -> None:
    async with metered(gpus=1) as lab:
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        await lab.scheduler.stop_unit(lab.scheduler.get("job").id)
        await lab.pass_time()
        assert (await lab.usage()).samples == 1


async def test_a_job_that_goes_to_another_node_goes_on() -> None:
    async with Metered(node("a", 1), node("b", 2)) as lab:
        made = await lab.job(gpus=1, memory="8GiB", name="job", node="a")
        lab.doing(("job", [3 * GIB], 50))
        await lab.pass_time(times=3)
        entry = lab.scheduler._ledger.entries[made.id]
        moved = replace(entry.allocation, node="b", gpus=("GPU-b-1",))
        entry.allocation = moved
        await lab.pass_time()
        lab.now += 5
        lab.cluster.put(replace(node("b", 2), age=0.0))
        await lab.meter.sample()
        series = await lab.usage()
        assert (series.tracks[0].uuid, series.samples, series.usage().gpus[0].peak) == ("GPU-b-1", 5, 3 * GIB)
        entry.allocation = made


async def test_a_clock_that_is_set_moves_what_was() -> None:
    passed = [NOW]
    async with metered(gpus=1, steady=lambda: passed[0]) as lab:
        lab.meter._monotonic = lambda: passed[0]
        lab.doing(("job", [GIB], 1), ("", [], 0))
        for _ in range(2):
            passed[0] += 5
            await lab.pass_time()
        lab.now -= 3600
        passed[0] += 5
        await lab.pass_time()
        times = (await lab.usage()).times
        assert times == pytest.approx([lab.now - 10, lab.now - 5, lab.now], abs=6)
        assert times == sorted(times)


async def test_policy_claim_asks_nothing_of_the_other_gpus() -> None:
    async with metered(gpus=1, policy="claim") as lab:
        assert len(lab.scheduler.get("job").gpus) == 2
        lab.doing(("job", [GIB], 1), ("job", [15 * GIB], 1))
        await lab.pass_time(times=3)
        assert [track["asked"] for track in (await lab.usage()).public()["gpus"]] == [8 * GIB, 0]
        assert lab.scheduler.get("job").warning == ""


async def test_nothing_is_known_of_one_that_never_ran() -> None:
    async with Metered() as lab:
        lab.script.fail("prepare", RuntimeError("no"))
        made = await lab.request(name="job")
        await lab.until(made.id, "ended")
        assert (await lab.usage()).public()["sentence"] == ""


async def test_it_samples_by_itself() -> None:
    async with Lab(node("a", 1), sample_period=0.01) as lab:
        made = await lab.running()
        while (await lab.scheduler.usage(made.id)).samples < 2:  # noqa: ASYNC110  (nobody says when)
            await asyncio.sleep(0.01)


# --- another server


async def test_it_goes_on_after_a_crash(tmp_path: Path) -> None:
    first = Metered(store=tmp_path)
    await first.__aenter__()
    await first.running(name="job", memory="8GiB", gpus=1)
    first.doing(("job", [4 * GIB], 100), ("", [], 0))
    await first.pass_time(times=8)
    second = Metered(of=first, store=tmp_path)
    await first.kill()
    second.now = first.now + 60
    second.host.kernels = {}
    async with second as lab:
        await eventually(lambda: lab.scheduler.get("job").state is State.RUNNING)
        await lab.scheduler.restored()
        before = (await lab.usage()).samples
        assert before >= 6, "of the last half minute some may be lost"
        lab.doing(("job", [GIB], 0), ("", [], 0))
        await lab.pass_time()
        usage = (await lab.usage()).usage()
        assert (usage.samples, usage.gpus[0].peak) == (before + 1, 4 * GIB)
        lab.may_leave = False


async def test_a_series_that_is_damaged_is_begun_anew(tmp_path: Path) -> None:
    async with Metered(store=tmp_path) as lab:
        made = await lab.running(name="job", gpus=1)
        lab.scheduler._store.keep(made.id, metering.PART, b"rubbish")
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        assert (await lab.usage()).samples == 1


# --- more than its size


async def test_more_than_its_size_is_warned_of() -> None:
    async with metered() as lab:
        lab.doing(("job", [8 * GIB + GIB // 4], 1), ("job", [GIB], 1))
        await lab.pass_time(times=5)
        assert lab.scheduler.get("job").warning == "", "a little more is tolerated"
        lab.doing(("job", [11 * GIB], 1), ("job", [GIB], 1))
        await lab.pass_time()
        assert lab.scheduler.get("job").warning == "", "one sample may be chance"
        await lab.pass_time()
        now = lab.scheduler.get("job")
        assert now.warning_kind == "memory"
        assert now.warning == (
            "allocation 'job' uses 11 GiB (asked 8 GiB) on GPU 0 of a; "
            "others there may run out of memory: free some, or ask for more the next time"
        )
        version = now.version
        await lab.pass_time(times=3)
        assert lab.scheduler.get("job").version <= version + 1, "it is said once (and now and then what it uses)"
        lab.doing(("job", [7 * GIB], 1), ("job", [GIB], 1))
        await lab.pass_time()
        assert lab.scheduler.get("job").warning == ""


async def test_what_is_not_known_takes_no_warning_back() -> None:
    async with metered(gpus=1) as lab:
        over, unknown = ("job", [11 * GIB], 1), ("job", [11 * GIB, None], 1)
        for doing, warned in ((over, False), (unknown, False), (over, True), (unknown, True), (over, True)):
            lab.doing(doing, ("", [], 0))
            await lab.pass_time()
            assert (lab.scheduler.get("job").warning_kind == "memory") is warned
        lab.doing(("job", [GIB], 1), ("", [], 0))
        await lab.pass_time()
        assert lab.scheduler.get("job").warning == ""


async def test_a_warning_that_another_took_the_place_of_comes_again() -> None:
    async with metered(gpus=1) as lab:
        id = lab.scheduler.get("job").id
        lab.doing(("job", [11 * GIB], 1), ("", [], 0))
        await lab.pass_time(times=2)
        lab.scheduler._ledger.entries[id].allocation = replace(lab.scheduler.get(id), warning_kind="time")
        await lab.pass_time()
        assert lab.scheduler.get(id).warning_kind == "time"
        lab.scheduler._ledger.entries[id].allocation = replace(lab.scheduler.get(id), warning="", warning_kind="")
        await lab.pass_time()
        assert lab.scheduler.get(id).warning_kind == "memory"


async def test_a_gpu_that_its_node_does_not_report_any_more_keeps_nobody_from_being_sampled() -> None:
    async with metered(gpus=1) as lab:
        await lab.running(gpus=1, memory="8GiB", name="next")
        lab.doing(("job", [11 * GIB], 1), ("next", [GIB], 1))
        await lab.pass_time()
        lab.now += 1
        lab.doing(("job", [11 * GIB], 1), ("next", [GIB], 1))
        lab.now += 1
        lab.doing(reason="the driver does not answer")
        await lab.pass_time()
        assert (await lab.usage("job")).samples == (await lab.usage("next")).samples == 2


async def test_nothing_asked_is_nothing_exceeded() -> None:
    async with metered(memory=0) as lab:
        lab.doing(("job", [15 * GIB], 1), ("job", [GIB], 1))
        await lab.pass_time(times=4)
        assert lab.scheduler.get("job").warning == ""


async def sharing(lab: Metered) -> None:
    for name in ("job", "other"):
        await lab.running(gpus=1, memory="6GiB", name=name, shared=True)
    assert lab.scheduler.get("job").gpus == lab.scheduler.get("other").gpus


async def test_who_shares_is_stopped_where_the_inventory_says_so() -> None:
    async with Metered(node("a", 1), enforce="stop") as lab:
        await sharing(lab)
        lab.doing(("job", [7 * GIB], 1))
        await lab.pass_time()
        assert lab.scheduler.get("job").state is State.RUNNING
        await lab.pass_time()
        ended = await lab.until(lab.scheduler.get("job").id, "ended")
        assert (ended.reason, ended.message) == (
            EndReason.OVER_MEMORY,
            "it used 7 GiB (asked 6 GiB) on GPU 0 of a, which it shares with others (gpufit.toml says to stop it then)",
        )
        assert ended.usage is not None
        assert ended.usage.gpus[0].peak == 7 * GIB
        assert lab.scheduler.get("other").state is State.RUNNING


async def test_who_shares_is_only_warned_otherwise() -> None:
    async with Metered(node("a", 1)) as lab:
        await sharing(lab)
        lab.doing(("job", [7 * GIB], 1))
        await lab.pass_time(times=4)
        assert (lab.scheduler.get("job").state, lab.scheduler.get("job").warning_kind) == (State.RUNNING, "memory")


async def test_who_is_alone_is_warned_of_what_would_happen() -> None:
    async with Metered(node("a", 1), enforce="stop") as lab:
        await lab.running(gpus=1, memory="6GiB", name="job", shared=True)
        lab.doing(("job", [7 * GIB], 1))
        await lab.pass_time(times=3)
        assert "it is stopped as soon as another allocation shares that GPU" in lab.scheduler.get("job").warning
        lab.doing(("", [], 0))
        await lab.running(gpus=1, memory="6GiB", name="other", shared=True)
        lab.doing(("job", [7 * GIB], 1))
        await lab.pass_time(times=2)
        assert (await lab.until(lab.scheduler.get("job").id, "ended")).reason is EndReason.OVER_MEMORY


async def test_a_warning_of_a_server_that_died_is_taken_back() -> None:
    async with metered() as lab:
        lab.doing(("job", [11 * GIB], 1), ("job", [GIB], 1))
        await lab.pass_time(times=2)
        lab.meter._meters.clear()
        lab.doing(("job", [GIB], 1), ("job", [GIB], 1))
        await lab.pass_time()
        assert lab.scheduler.get("job").warning == ""

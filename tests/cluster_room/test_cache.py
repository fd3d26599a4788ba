"""What is kept of every node, and who is told what when it changes. Time is a number here."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from jupyter_gpufit.cluster import cache as module
from jupyter_gpufit.cluster.cache import Cache
from jupyter_gpufit.cluster.effective import used_by_each
from jupyter_gpufit.errors import NotFound
from jupyter_gpufit.inventory import Inventory, NodeSpec
from jupyter_gpufit.memory import GiB
from jupyter_gpufit.models import Claim, Gpu, GpuProcess, Node, Report, StoredModel
from jupyter_gpufit.scheduling.needs import Cluster


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Cache:
    cache = Cache(clock=clock, wall=lambda: 1_700_000_000 + clock.now)
    cache.set_inventory(inventory("n1", "n2"))
    return cache


def inventory(*nodes: str | NodeSpec) -> Inventory:
    return Inventory(nodes=tuple(node if isinstance(node, NodeSpec) else NodeSpec(name=node) for node in nodes))


def report(free: int = 40 * GiB, **keys: object) -> Report:
    gpu = Gpu(uuid="GPU-1", index=0, memory_total=40 * GiB, memory_free=free)
    return Report(**{"gpus": (gpu,), "driver": "550"} | keys)  # type: ignore[arg-type]


def claim(allocation: str = "a", **keys: object) -> Claim:
    return Claim(**{"allocation": allocation, "scheduler": "s", "gpus": {"GPU-1": GiB}} | keys)  # type: ignore[arg-type]


class Told(list[tuple[str, Node | None]]):
    """What a callback was told, in order."""

    def __call__(self, name: str, node: Node | None) -> None:
        self.append((name, node))

    def take(self) -> list[str]:
        names = [name if node else f"-{name}" for name, node in self]
        self.clear()
        return names


def test_is_what_the_scheduler_needs(cache: Cache) -> None:
    cluster: Cluster = cache
    assert [node.name for node in cluster.nodes()] == ["n1", "n2"]
    assert cluster.spec("n1") == NodeSpec(name="n1")
    with pytest.raises(NotFound, match="no node 'n3'; the nodes are n1, n2"):
        cluster.spec("n3")


# --- usable or not


def test_a_node_that_said_nothing_yet(cache: Cache) -> None:
    node = cache.node("n1")
    assert (node.gpus, node.age, node.reason) == ((), None, "it has not reported yet")
    assert cache.unheard() == ["n1", "n2"]


def test_a_good_report_and_its_age(cache: Cache, clock: Clock) -> None:
    cache.reported("n1", report(age=3.0, time=5.0))
    assert (cache.node("n1").reason, cache.node("n1").age, cache.node("n1").driver) == (None, 3.0, "550")
    assert cache.stale_in("n1") == 27.0
    clock.now += 10
    assert cache.node("n1").age == 13.0, "by our clock, whatever time the node thinks it is"
    assert cache.unheard() == ["n2"]


def test_a_report_gets_stale(cache: Cache, clock: Clock) -> None:
    cache.reported("n1", report(age=3.0))
    clock.now += 27
    node = cache.node("n1")
    assert node.reason == "its last report is stale: sampled more than 30 s ago"
    assert node.gpus, "shown all the same"
    cache.reported("n1", report())
    assert cache.node("n1").reason is None


def test_one_failed_poll_does_not_make_a_node_unusable_two_do(cache: Cache, clock: Clock) -> None:
    cache.reported("n1", report())
    assert cache.failed("n1", "connection refused") == 1
    assert cache.node("n1").reason is None
    clock.now += 5
    assert cache.failed("n1", "no answer") == 2
    reason = cache.node("n1").reason or ""
    assert reason.startswith("unreachable since 20")
    assert reason.endswith(": no answer")
    assert cache.node("n1").gpus
    cache.reported("n1", report())
    assert cache.node("n1").reason is None
    assert cache.failed("n1", "again") == 1, "counted anew"


def test_a_node_that_never_reported_is_unreachable_at_the_first_failure(cache: Cache) -> None:
    cache.failed("n1", "there is no host of that name")
    assert "there is no host of that name" in (cache.node("n1").reason or "")
    assert cache.unheard() == ["n2"]


def test_an_engine_that_does_not_answer_is_a_reason_and_recovers(cache: Cache) -> None:
    told: list[tuple[str, str | None]] = []
    cache.reported("n1", report())
    cache.on_change(lambda name, node: told.append((name, node and node.reason)))
    told.clear()
    trouble = "its Docker engine does not answer since 12:00: Connection refused"
    cache.set_trouble("n1", trouble)
    cache.set_trouble("n1", trouble)
    cache.reported("n1", report())
    assert told == [("n1", trouble)], "said once"
    assert cache.node("n1").gpus, "shown all the same"
    cache.set_trouble("n1", None)
    assert told[1:] == [("n1", None)]


def test_what_a_launcher_says_survives_a_new_report_address_and_is_cleaned(cache: Cache) -> None:
    cache.set_trouble("n1", "ssh:\x1b[31m refused\r\n" + "x" * 9999)
    cache.set_inventory(Inventory(nodes=(NodeSpec(name="n1", report="http://n1:1"), NodeSpec(name="n2"))))
    cache.reported("n1", report())
    reason = cache.node("n1").reason or ""
    assert reason.startswith("ssh: [31m refused x")
    assert len(reason) <= 500


def test_a_node_with_an_engine_is_heard_once_its_launcher_spoke(cache: Cache) -> None:
    cache.set_inventory(Inventory(nodes=(NodeSpec(name="n1", docker="ssh://n1"), NodeSpec(name="n2"))))
    cache.reported("n1", report())
    cache.reported("n2", report())
    told: list[str] = []
    cache.on_change(lambda name, _: told.append(name))
    told.clear()
    assert cache.unheard() == ["n1"]
    assert cache.node("n1").reason is None, "usable: nobody said otherwise"
    cache.set_trouble("n1", None)
    assert cache.unheard() == []
    assert told == ["n1"], "whoever waits is told, although the node did not change"


def test_a_report_that_cannot_be_relied_on(cache: Cache) -> None:
    cache.reported("n1", report(error="NVML does not answer since 40 s"))
    assert cache.node("n1").reason == "NVML does not answer since 40 s"
    assert cache.node("n1").gpus, "the last known"
    cache.reported("n1", Report())
    assert cache.node("n1").reason == "it reports no GPU"


# --- claims


def test_claims_of_all_sources_count_and_are_replaced_per_source(cache: Cache) -> None:
    cache.reported("n1", report())
    cache.set_claims("ledger", "n1", [claim("a")])
    cache.set_claims("engine", "n1", [claim("a", container="c" * 64), claim("theirs")])
    assert cache.node("n1").gpus[0].allocations == ("a", "theirs")
    assert cache.node("n1").gpus[0].memory_free == 38 * GiB
    assert {each.allocation: each.container for each in cache.claims("n1")} == {"a": "c" * 64, "theirs": None}
    cache.set_claims("engine", "n1", [])
    assert cache.node("n1").gpus[0].allocations == ("a",)
    cache.set_claims("ledger", "n1", [])
    assert cache.node("n1").gpus[0].idle


def test_claims_outlive_the_node_in_the_inventory(cache: Cache) -> None:
    cache.set_claims("ledger", "n3", [claim()])
    cache.set_inventory(inventory("n3"))
    cache.reported("n3", report())
    cache.set_inventory(inventory("n1"))
    cache.set_inventory(inventory("n3"))
    cache.reported("n3", report())
    assert not cache.node("n3").gpus[0].idle


def test_what_was_given_up_is_free_at_once(cache: Cache, clock: Clock) -> None:
    """Whoever releases and asks again at once does not have to wait for the next report."""

    def running(age: float = 0.0, container: str = "box-of-a") -> Report:
        process = GpuProcess(pid=7, memory=30 * GiB, container=container)
        gpu = replace(report(free=10 * GiB).gpus[0], memory_used=30 * GiB, processes=(process,), idle=False)
        return Report(gpus=(gpu,), age=age)

    def idle() -> bool:
        (gpu,) = cache.node("n1").gpus
        assert gpu.memory_free == (40 if gpu.idle else 10) * GiB
        return gpu.idle

    cache.set_claims("ledger", "n1", [claim(container="box-of-a")])
    cache.set_claims("engine", "n1", [claim(container="box-of-a")])
    cache.reported("n1", running())
    clock.now += 1
    cache.set_claims("engine", "n1", [])
    assert not idle(), "it may still run: the scheduler has not confirmed it"
    cache.set_claims("ledger", "n1", [])
    assert idle()
    clock.now += 4
    cache.reported("n1", running(age=4.5))
    assert idle(), "this one was sampled before the end, too"
    cache.reported("n1", running(container="box-of-b"))
    assert not idle(), "somebody else's"
    cache.reported("n1", running())
    assert not idle(), "sampled after the end, and still there: whatever it is"


def test_of_what_was_given_up_not_more_is_kept_than_reports_can_tell(cache: Cache, clock: Clock) -> None:
    for number in range(100):
        cache.set_claims("engine", "n1", [claim(f"a{number}", container=f"box-{number}")])
        clock.now += 1
    assert len(cache._entries["n1"].past) <= 30, "as old as a report may be"
    cache.reported("n1", report())
    assert cache._entries["n1"].past == []


# --- telling


def test_told_of_every_node_at_first_and_then_of_changes_only(cache: Cache, clock: Clock) -> None:
    told = Told()
    end = cache.on_change(told)
    assert told.take() == ["n1", "n2"]
    cache.reported("n1", report())
    assert told.take() == ["n1"]
    clock.now += 5
    cache.reported("n1", report())
    assert told.take() == [], "it is only younger"
    cache.reported("n1", report(free=GiB))
    assert told[0][1] == cache.node("n1")
    assert told.take() == ["n1"]
    cache.set_claims("ledger", "n1", [claim()])
    assert told.take() == ["n1"]
    cache.set_claims("ledger", "n1", [claim()])
    assert told.take() == [], "nothing new"
    end()
    end()
    cache.set_claims("ledger", "n1", [])
    assert told.take() == []


def test_told_when_time_makes_a_node_unusable(cache: Cache, clock: Clock) -> None:
    told = Told()
    cache.reported("n1", report())
    cache.on_change(told)
    told.take()
    clock.now += 29
    cache.refresh("n1")
    assert told.take() == []
    clock.now += 1
    cache.refresh("n1")
    assert told.take() == ["n1"]


def test_told_of_a_changed_inventory(cache: Cache) -> None:
    told = Told()
    cache.reported("n1", report())
    cache.on_change(told)
    told.take()
    cache.set_inventory(inventory(NodeSpec(name="n1", ram=GiB), "n3"))
    assert sorted(told.take()) == ["-n2", "n1", "n3"], "n1 looks the same, and its entry is another"
    assert cache.spec("n1").ram == GiB
    assert cache.node("n1").reason is None, "its report is still good"
    cache.set_inventory(inventory(NodeSpec(name="n1", ram=GiB), "n3"))
    assert told.take() == []
    cache.set_inventory(inventory(NodeSpec(name="n1", report="http://elsewhere:9477"), "n3"))
    assert told.take() == ["n1"]
    assert cache.node("n1").reason == "it has not reported yet", "what another reporter said is not its report"


def test_what_is_said_of_a_node_that_left_is_dropped(cache: Cache) -> None:
    told = Told()
    cache.set_inventory(inventory("n2"))
    cache.on_change(told)
    told.take()
    cache.reported("n1", report())
    assert cache.failed("n1", "x") == 0
    cache.refresh("n1")
    assert cache.stale_in("n1") is None
    assert told.take() == []


def test_all_callbacks_see_all_changes_in_one_order(cache: Cache) -> None:
    """Also if the first of them makes a change while it is told of one."""

    def meddler(name: str, node: Node | None) -> None:
        if name == "n1" and node is not None and node.gpus and node.gpus[0].idle:
            cache.set_claims("ledger", "n1", [claim()])

    told = Told()
    cache.on_change(meddler)
    cache.on_change(told)
    told.clear()
    cache.reported("n1", report())
    assert [node.gpus[0].idle for _, node in told if node] == [True, False]


def test_a_callback_that_fails_keeps_nobody_else_from_hearing(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    def broken(name: str, node: Node | None) -> None:
        raise RuntimeError("a fault")

    told = Told()
    with caplog.at_level(logging.CRITICAL + 1):
        cache.on_change(broken)
        cache.on_change(told)
        told.clear()
        cache.reported("n1", report())
    assert told.take() == ["n1"]


def test_whether_its_reporter_answers(cache: Cache, clock: Clock) -> None:
    assert cache.node("n1").reporting, "nothing is known yet"
    cache.failed("n1", "refused")
    assert not cache.node("n1").reporting
    cache.reported("n1", report())
    cache.failed("n1", "refused")
    assert cache.node("n1").reporting, "one failure is no silence"
    cache.failed("n1", "refused")
    assert not cache.node("n1").reporting
    cache.reported("n1", report())
    cache.set_trouble("n1", "its Docker engine does not answer")
    assert cache.node("n1").reporting, "the engine is another matter"
    clock.now += cache.spec("n1").stale_after
    assert not cache.node("n1").reporting


# --- what allocations use


def test_what_is_used_is_worked_out_once_for_all(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample asks for every allocation: of many on one node that would be their number to the power of three."""
    asked: list[None] = []
    monkeypatch.setattr(module, "used_by_each", lambda *args: asked.append(None) or used_by_each(*args))
    claims = [
        Claim(allocation=id, scheduler="s", owner="me", gpus={"GPU-1": GiB}, container=id * 64, shared=True)
        for id in "abcdef"
    ]
    cache.set_claims("ledger", "n1", claims)
    for size in (1, 2):
        processes = tuple(GpuProcess(pid=at, memory=size, container=id * 64) for at, id in enumerate("abcde"))
        cache.reported("n1", Report(gpus=(Gpu(uuid="GPU-1", index=0, processes=processes, idle=False),)))
        assert [cache.uses("n1", id) for id in "abcdef"] == [{"GPU-1": size}] * 5 + [{"GPU-1": 0}]
        assert len(asked) == size
    cache.set_claims("ledger", "n1", claims[1:])
    assert (cache.uses("n1", "a"), cache.uses("n1", "b")) == ({}, {"GPU-1": 2})


# --- models


def test_the_models_of_a_node_that_has_a_store(cache: Cache) -> None:
    with_store = NodeSpec(name="n1", models="/srv/models", models_write=False)
    cache.set_inventory(inventory(with_store, "n2"))
    node = cache.node("n1")
    assert (node.models, node.model_store, node.models_write) == (None, True, False), "not known yet"
    bert = (StoredModel(name="bert", size=1),)
    for name in ("n1", "n2"):
        cache.reported(name, report(models=bert))
    assert cache.node("n1").models == bert
    node = cache.node("n2")
    assert (node.models, node.model_store) == (None, False), "what is not mounted is of no use"
    cache.failed("n1", "no answer")
    cache.failed("n1", "no answer")
    assert cache.node("n1").models == bert, "still what it said last"
    cache.set_inventory(inventory(replace(with_store, models="/other"), "n2"))
    assert cache.node("n1").models is None, "that was another directory"
    cache.reported("n1", report())
    assert cache.node("n1").models is None


def test_the_same_models_are_no_news(cache: Cache) -> None:
    cache.set_inventory(inventory(NodeSpec(name="n1", models="/srv/models")))
    cache.reported("n1", report(models=(StoredModel(name="bert", size=1),)))
    told = Told()
    cache.on_change(told)
    told.clear()
    first = cache.node("n1").models
    cache.reported("n1", report(models=(StoredModel(name="bert", size=1),)))
    assert told == []
    assert cache.node("n1").models is first, "so that nobody has to compare a thousand"
    cache.reported("n1", report(models=(StoredModel(name="bert", size=2),)))
    assert told.take() == ["n1"]


# --- the machine around the GPUs


def of_host(cache: Cache, name: str = "n1") -> tuple[float | None, ...]:
    node = cache.node(name)
    return node.cpus, node.cpus_free, node.ram, node.ram_free


def test_a_machine_is_not_known_until_its_launcher_tells(cache: Cache) -> None:
    told = Told()
    cache.on_change(told)
    told.clear()
    assert of_host(cache) == (None, None, None, None)
    cache.set_host("n1", 8.0, 64 * GiB)
    cache.set_host("n1", 8.0, 64 * GiB)
    assert of_host(cache) == (8, 8, 64 * GiB, 64 * GiB)
    assert told.take() == ["n1"], "once"
    cache.reported("n1", report())
    assert of_host(cache) == (8, 8, 64 * GiB, 64 * GiB)
    told.clear()
    cache.set_host("n1", 8.0, None)
    assert of_host(cache) == (8, 8, None, None)
    cache.set_host("n1", None, None)
    cache.set_host("n2", None, None)
    assert of_host(cache) == (None, None, None, None)
    assert told.take() == ["n1", "n1"]


def test_what_allocations_asked_of_the_machine_is_not_free(cache: Cache) -> None:
    cache.set_host("n1", 8.0, 64 * GiB)
    told = Told()
    cache.on_change(told)
    told.clear()
    cache.set_claims("ledger", "n1", [claim("a", cpus=2.5, ram=GiB)])
    assert of_host(cache) == (8, 5.5, 64 * GiB, 63 * GiB)
    cache.set_claims("engine", "n1", [claim("a", cpus=2.5, ram=GiB, container="c"), claim("b", cpus=0.1), claim("c")])
    assert of_host(cache) == (8, 5.4, 64 * GiB, 63 * GiB), "once, although two tell of it"
    cache.set_claims("engine", "n1", [claim("b", cpus=7), claim("d", ram=80 * GiB)])
    assert of_host(cache) == (8, 0, 64 * GiB, 0), "never less than nothing"
    assert told.take() == ["n1"] * 3
    cache.set_claims("ledger", "n1", [])
    cache.set_claims("engine", "n1", [])
    assert of_host(cache) == (8, 8, 64 * GiB, 64 * GiB)


def test_what_one_may_have_is_the_inventorys_and_what_is_known_of_a_machine_outlasts_it(cache: Cache) -> None:
    cache.set_host("n1", 8.0, 64 * GiB)
    cache.set_claims("ledger", "n1", [claim(cpus=3)])
    assert (cache.node("n1").cpus_limit, cache.node("n1").ram_limit) == (None, None)
    cache.set_inventory(inventory(NodeSpec(name="n1", cpus=4, ram=GiB)))
    assert (cache.node("n1").cpus_limit, cache.node("n1").ram_limit) == (4, GiB)
    assert of_host(cache) == (8, 5, 64 * GiB, 64 * GiB)
    cache.set_inventory(inventory("n2"))
    cache.set_inventory(inventory("n1"))
    assert of_host(cache) == (8, 5, 64 * GiB, 64 * GiB)

"""What the policy in use learns of requests: when, off the way of decisions, and what is left of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from helpers.fakes import GIB, node
from helpers.lab import Lab, eventually
from msgspec.structs import replace

from jupyter_gpufit.errors import Conflict, Forbidden, InvalidValue, NeverFits, NoFit
from jupyter_gpufit.inventory import Inventory, Quota
from jupyter_gpufit.models import Node, Request
from jupyter_gpufit.scheduling import learning, policies
from jupyter_gpufit.scheduling.learning import MIX, Learning, learn
from jupyter_gpufit.scheduling.mix import FEW, Mix
from jupyter_gpufit.scheduling.policies import BestFit, Policy, find
from jupyter_gpufit.scheduling.potentials import Potential

ENOUGH = 2 * FEW


def mix_of(count: int) -> Mix:
    mix = Mix()
    for _ in range(count):
        mix.count(Request(gpus=2, memory="8GiB"))
    return mix


def kept_mix(lab: Lab) -> Mix:
    return lab.scheduler._learning._mix


def decides(lab: Lab) -> Policy:
    """The policy that decides now."""
    return lab.scheduler.explain(Request()).rules


def knows(lab: Lab) -> bool:
    policy = decides(lab)
    return isinstance(policy, Potential) and policy.knows


def learning_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpufit learning"]


class Slow(BestFit):
    """Learns when it is let, or fails to, and remembers of what."""

    name = "slow"
    learns = True
    known = 0

    def __init__(self) -> None:
        self.may_end, self.fails = threading.Event(), False
        self.may_end.set()
        self.lessons: list[tuple[int, list[str]]] = []
        self.threads: set[str] = set()

    def learned(self, mix: Mix, nodes: Any) -> Self:
        self.threads.add(threading.current_thread().name)
        self.lessons.append((mix.seen, sorted(one.name for one in nodes)))
        assert self.may_end.wait(20)
        if self.fails:
            raise ValueError("nothing can be learned from this")
        one = type(self)()
        one.known = mix.seen
        return one


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    monkeypatch.setattr(policies, "POLICIES", dict(policies.POLICIES))
    policy = Slow()
    policies.register(policy)
    return policy


# --- what is learned, and when (pure)


def test_it_is_learned_when_there_is_much_more_to_go_by() -> None:
    chosen, nodes = find("balance"), [node("a", 4)]
    nothing = learn(chosen, mix_of(FEW - 1), nodes, None)
    assert nothing is not None
    assert (nothing.seen, nothing.error) == (0, None)
    assert isinstance(nothing.policy, Potential)
    assert not nothing.policy.knows
    assert learn(chosen, mix_of(FEW - 1), nodes, nothing) is None
    first = learn(chosen, mix_of(FEW), nodes, nothing)
    assert first is not None
    assert (first.seen, first.chosen) == (FEW, chosen)
    assert isinstance(first.policy, Potential)
    assert first.policy.knows
    assert learn(chosen, mix_of(2 * FEW - 1), nodes, first) is None
    assert learn(chosen, mix_of(2 * FEW), nodes, first) is not None
    assert learn(find("fragmentation"), mix_of(FEW), nodes, first) is not None, "another policy"


def test_it_is_learned_anew_for_another_cluster() -> None:
    chosen, mix = find("balance"), mix_of(FEW)
    nodes = [node(f"n{at}", 2) for at in range(10)]
    known = learn(chosen, mix, nodes, None)
    assert learn(chosen, mix, nodes, known) is None
    assert learn(chosen, mix, [*nodes, node("more", 2)], known) is None, "not more than a tenth"
    assert learn(chosen, mix, nodes[1:], known) is None
    assert learn(chosen, mix, [*nodes, node("more", 3)], known) is not None
    assert learn(chosen, mix, nodes[2:], known) is not None
    one = node("other", 1)
    other = replace(one, gpus=(replace(one.gpus[0], model="another"),))
    assert learn(chosen, mix, [*nodes, other], known) is not None, "a kind that there was none of"
    lost = [replace(each, gpus=tuple(replace(gpu, allocatable=False) for gpu in each.gpus)) for each in nodes[:2]]
    assert learn(chosen, mix, [*lost, *nodes[2:]], known) is not None


def test_what_cannot_be_learned_leaves_what_was_known() -> None:
    chosen, nodes = Slow(), [node("a")]
    known = learn(chosen, mix_of(FEW), nodes, None)
    assert known is not None
    chosen.fails = True
    failed = learn(chosen, mix_of(2 * FEW), nodes, known)
    assert failed is not None
    assert (failed.policy, failed.seen) == (known.policy, 2 * FEW)
    assert isinstance(failed.error, ValueError)
    assert learn(chosen, mix_of(2 * FEW), nodes, failed) is None, "not tried again until there is more"

    def prepare(policy: Policy) -> None:
        raise ValueError(f"{policy.name} cannot be prepared")

    unprepared = learn(find("balance"), mix_of(2 * FEW), nodes, None, prepare)
    assert unprepared is not None
    assert (unprepared.policy, str(unprepared.error)) == (find("balance"), "balance cannot be prepared")
    other = Slow()
    other.fails = True
    at_once = learn(other, mix_of(FEW), nodes, known)
    assert at_once is not None
    assert at_once.policy is other


# --- what is counted


async def test_each_request_is_counted_once_when_it_is_asked() -> None:
    async with Lab(node("a", 2), node("b", 4)) as lab:
        for asked, gpus in enumerate((1, 2), 1):
            await lab.running(gpus=gpus, name=f"n{gpus}")
            assert kept_mix(lab).seen == asked
        with pytest.raises(NoFit):
            await lab.request(gpus=4)
        with pytest.raises(NeverFits):
            await lab.request(gpus=5)
        assert kept_mix(lab).seen == 4, "refused ones count"
        assert {shape.gpus for shape in kept_mix(lab).counts} == {1, 2, 4, 5}

        lab.scheduler.explain(Request(gpus=2))
        with pytest.raises(InvalidValue):
            await lab.request(model="no-such-model", require_model=True)
        with pytest.raises(Conflict):
            await lab.request(gpus=2, name="n2")  # it is there
        assert kept_mix(lab).seen == 4, "what was not asked of the cluster does not count"

        waiting = await lab.request(gpus=4, wait="10m")
        for name in ("n1", "n2"):
            await lab.end(lab.scheduler.get(name).id)
        await lab.until(waiting.id, "running")
        assert kept_mix(lab).seen == 5, "it counted when it was asked, not when it was tried again"

        await lab.end(waiting.id)
        await lab.submit(gpus=1, sweep={"lr": ["1", "2", "3"]})
        assert kept_mix(lab).seen == 8, "each one of a sweep"
        with pytest.raises(NeverFits):
            await lab.submit(gpus=9)
        assert kept_mix(lab).seen == 9


async def test_what_nobody_may_have_by_their_quota_does_not_count() -> None:
    async with Lab(node("a", 4)) as lab:
        lab.cluster.inventory = Inventory(nodes=(), all_quota=Quota(gpus=2))
        with pytest.raises(Forbidden):
            await lab.request(gpus=3)
        assert kept_mix(lab).seen == 0


# --- the policy that decides


@pytest.mark.parametrize("name", ["balance", "fragmentation"])
async def test_the_policy_learns_from_what_is_asked_while_it_decides(name: str) -> None:
    async with Lab(node("a", 4), node("b", 2), policy=name) as lab:
        assert (lab.scheduler.about("me").policy, decides(lab)) == (name, find(name))
        for _ in range(FEW):
            assert not knows(lab)
            await lab.end((await lab.request()).id)
        await eventually(lambda: knows(lab))
        policy = lab.scheduler._learning.policy()
        terrain = lab.scheduler._fleet.index._terrain
        assert terrain is not None, "it is prepared: the first decision by it waits for nothing"
        assert (policy.name, knows(lab), decides(lab)) == (name, True, policy)
        assert lab.scheduler._fleet.index._terrain == terrain == (policy, terrain[1])
        assert lab.scheduler._outlook().policy is policy
        made = await lab.request()
        assert made.node in ("a", "b")
        again = lab.scheduler.explain(Request(gpus=2)).explain()
        assert (again["policy"], again["stages"][2]["title"]) == (name, policy.by)


async def test_requests_of_a_queue_are_placed_by_it_too() -> None:
    async with Lab(node("a", 2), node("b", 2), policy="balance") as lab:
        for _ in range(ENOUGH):
            lab.scheduler._learning.count(Request(gpus=2))
        await eventually(lambda: knows(lab))
        first, second = await lab.running(gpus=2), await lab.running(gpus=2)
        waits = await lab.request(gpus=2, wait="10m")
        assert waits.queue is not None
        assert "it can start when" in waits.queue.frees
        await lab.end(first.id)
        assert (await lab.until(waits.id, "running")).node == first.node
        await lab.end(second.id)


async def test_what_was_learned_is_there_again_after_a_restart(tmp_path: Path) -> None:
    async with Lab(node("a", 2), store=tmp_path) as lab:
        for _ in range(ENOUGH):
            await lab.end((await lab.request(gpus=2)).id)
        assert decides(lab) is find("best-fit")
    async with Lab(node("a", 2), store=tmp_path, policy="balance") as lab:
        assert kept_mix(lab).seen == ENOUGH
        await eventually(lambda: knows(lab))


async def test_it_is_written_now_and_then_and_a_crash_loses_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "WRITE_AFTER", 0.2)
    dead = Lab(node("a", 2), store=tmp_path)
    await dead.__aenter__()
    written: list[bytes] = []
    note = dead.scheduler._learning._note

    def noted(name: str, data: bytes) -> None:
        written.append(data)
        note(name, data)

    dead.scheduler._learning._note = noted
    for _ in range(10):
        with pytest.raises(NeverFits):
            await dead.request(gpus=5)
    await eventually(lambda: written != [])
    assert len(written) < 10, "not each time"
    last = Mix.decode(written[-1]).seen
    monkeypatch.setattr(learning, "WRITE_AFTER", 60.0)
    with pytest.raises(NeverFits):
        await dead.request(gpus=5)
    await dead.kill()
    async with Lab(of=dead, store=tmp_path) as lab:
        assert kept_mix(lab).seen == last


async def test_counts_that_cannot_be_read_are_begun_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Lab(node("a"), store=tmp_path) as lab:
        lab.scheduler._store.note(MIX, b"no mix")
    async with Lab(node("a"), store=tmp_path) as lab:
        assert kept_mix(lab).seen == 0
        assert "the mix of requests cannot be read" in caplog.text
        await lab.running()


async def test_each_scheduler_has_counts_of_its_own_and_one_that_has_none_begins_with_those_left(
    tmp_path: Path,
) -> None:
    async with Lab(node("a", 4), store=tmp_path) as lab:
        async with Lab(of=lab, store=tmp_path) as other:
            for _ in range(2):
                await other.end((await other.request()).id)
        await lab.end((await lab.request(gpus=3)).id)
        assert (kept_mix(lab).seen, kept_mix(other).seen) == (1, 2)
    (tmp_path / "gpufit.sqlite").unlink()
    async with Lab(of=lab, store=tmp_path) as heir:
        assert kept_mix(heir).seen == 2
        assert {shape.gpus for shape in kept_mix(heir).counts} == {1}


# --- off the way of decisions


async def test_learning_keeps_nobody_waiting_and_is_done_once_at_a_time(slow: Slow) -> None:
    slow.may_end.clear()
    async with Lab(node("a", 4), policy="slow") as lab:
        await eventually(lambda: bool(slow.lessons))
        for _ in range(ENOUGH):
            await lab.end((await lab.request()).id)
        assert decides(lab) is slow, "it decides by what it knows"
        assert len(slow.lessons) == len(learning_threads()) == 1
        slow.may_end.set()
        await eventually(lambda: not learning_threads())
        await lab.end((await lab.request()).id)
        await eventually(lambda: isinstance(decides(lab), Slow) and decides(lab).known == ENOUGH + 1)  # type: ignore[attr-defined]
        assert slow.threads == {"gpufit learning"}
        assert len(slow.lessons) == 2


async def test_what_fails_to_learn_fails_nobody(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    slow.fails = True
    async with Lab(node("a", 4), policy="slow") as lab:
        for _ in range(ENOUGH):
            await lab.end((await lab.request()).id)
        await eventually(lambda: "policy slow could not learn from 25 requests" in caplog.text)
        assert "nothing can be learned from this" in caplog.text
        await lab.running()
        assert decides(lab) is slow
        tries = len(slow.lessons)
        assert tries <= 4, "not at each request"
        slow.fails = False
        for _ in range(ENOUGH):
            lab.scheduler._learning.count(Request())
        await eventually(lambda: decides(lab) is not slow)


async def test_a_thread_that_cannot_be_had_fails_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: Slow
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "gpufit learning":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        async with Lab(node("a", 4), policy="slow") as lab:
            for _ in range(ENOUGH):
                await lab.end((await lab.request()).id)
            assert decides(lab) is slow
            assert "policy slow does not learn now: can't start new thread" in caplog.text
            patched.undo()
            await lab.end((await lab.request()).id)
            await eventually(lambda: decides(lab) is not slow)


async def test_closing_waits_for_what_is_being_learned(slow: Slow) -> None:
    slow.may_end.clear()
    async with Lab(node("a"), policy="slow"):
        await eventually(lambda: bool(slow.lessons))
        asyncio.get_running_loop().call_later(0.1, slow.may_end.set)
    assert learning_threads() == []


async def test_closing_does_not_wait_for_ever(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learning, "CLOSE_WITHIN", 0.1)
    slow.may_end.clear()
    async with Lab(node("a"), policy="slow"):
        await eventually(lambda: bool(slow.lessons))
    [left] = learning_threads()
    assert "still being learned; nobody waits for it any more" in caplog.text
    slow.may_end.set()
    await asyncio.to_thread(left.join, 10)
    assert not left.is_alive()


async def test_one_that_ends_after_its_loop_is_quiet(slow: Slow) -> None:
    slow.may_end.clear()

    def program() -> None:
        async def main() -> None:
            Learning(lambda: "slow", lambda: (), {}, lambda *_: None, logging.getLogger()).start()

        asyncio.run(main())

    await asyncio.to_thread(program)
    [left] = learning_threads()
    slow.may_end.set()
    await asyncio.to_thread(left.join, 10)
    assert not left.is_alive(), "(an error of the thread would be a warning, which fails the test)"


# --- the policy is changed, or the cluster


async def test_a_policy_that_is_chosen_now_decides_now() -> None:
    async with Lab(node("a", 4)) as lab:
        for _ in range(ENOUGH):
            lab.scheduler._learning.count(Request(gpus=2))
        assert decides(lab) is find("best-fit")
        assert learning_threads() == [], "which learns nothing"
        for name in ("balance", "fragmentation"):
            lab.cluster.inventory = Inventory(nodes=(), policy=name)
            assert decides(lab) is find(name)
            await eventually(lambda: knows(lab))
            assert decides(lab).name == name
        lab.cluster.inventory = Inventory(nodes=(), policy="claim")
        assert decides(lab) is find("claim")
        lab.scheduler.policy = "balance"  # what is configured goes before the inventory
        assert decides(lab) is find("balance")


async def test_it_learns_anew_when_the_cluster_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(learning, "FIRST_LOOK", 0.05)
    async with Lab(node("a", 2), policy="balance") as lab:
        for _ in range(ENOUGH):
            lab.scheduler._learning.count(Request(gpus=2))
        await eventually(lambda: knows(lab))
        before = decides(lab)
        await asyncio.sleep(0.2)
        assert decides(lab) is before, "nothing has changed"
        lab.cluster.put(node("b", 1, memory=80 * GIB))
        await eventually(lambda: decides(lab) is not before)
        now = decides(lab)
        assert isinstance(now, Potential)
        assert {kind.total for kind in now.demand.prices} == {16 * GIB, 80 * GIB}


async def test_nodes_that_report_only_after_the_start_are_learned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lab(node("a", 2), store=tmp_path) as lab:
        for _ in range(ENOUGH):
            lab.scheduler._learning.count(Request(gpus=2))
    monkeypatch.setattr(learning, "FIRST_LOOK", 0.05)
    async with Lab(Node(name="a", reason="not heard from"), store=tmp_path, policy="balance") as lab:
        await asyncio.sleep(0.1)
        assert not knows(lab)
        lab.cluster.put(node("a", 2))
        await eventually(lambda: knows(lab))


async def test_a_policy_that_there_is_none_of_is_told_to_whoever_asks(caplog: pytest.LogCaptureFixture) -> None:
    async with Lab(node("a"), policy="nonsense") as lab:
        for ask in (lab.request, lab.submit):
            asked: Callable[[], Any] = ask
            with pytest.raises(InvalidValue, match="no policy 'nonsense'; use one of balance, best-fit, claim"):
                await asked()
        with pytest.raises(InvalidValue, match="nonsense"):
            lab.scheduler.explain(Request())
    assert "Traceback" not in caplog.text

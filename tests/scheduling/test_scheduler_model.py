"""The scheduler whole, over make-believe engines and a real store, killed and closed between any two of its steps.

The event loop's time stands still unless a rule lets it pass, and a rule lets the loop take so many turns: so each run
is the same again, and a kill comes at every step there is. Beside it: `test_allocations_model.py`, which knows each
event of the state machine; here is what drives it. (`test_scheduler_random.py` is the same with real time.)
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.fakes import node
from helpers.fuzzing import effort
from helpers.lab import Lab
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpufit.errors import ClaimLost, GpufitError, LaunchError, NodeUnreachable
from jupyter_gpufit.models import Allocation, Job, Request, State
from jupyter_gpufit.scheduling.allocations import Entry, Limits
from jupyter_gpufit.scheduling.events import Work

NODES = {"a": 2, "b": 3}
LIMITS = Limits(
    attempts=3,
    launch_within=20,
    ready_within=30,
    restart_within=3,
    kernel_within=1,
    lost_after=20,
    warn_before=(6, 2),
    retry_first=0.1,
    retry_most=1,
    again_first=0.5,
    again_most=2,
    requeue_wait=30,
)
POINTS = [
    "prepare",
    "prepare:made",
    "start",
    "start:running",
    "stop",
    "stop:gone",
    "kernel",
    "kernel:launched",
    "units",
    "halt",
    "job:start",
    "job:started",
    "job:collect",
]
FAILURES = {
    "fails": LaunchError("it failed"),
    "no answer": NodeUnreachable("no answer"),
    "another's": ClaimLost("another has them"),
}
ORDER = list(State)


class StillLoop(asyncio.SelectorEventLoop):
    """Its time passes only when somebody says so."""

    moment = 1000.0

    def time(self) -> float:
        return self.moment


class Inline(Executor):
    """In place of the store's thread: what is to be written is, at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, do: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(do(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Complaints(logging.Handler):
    """What the scheduler logs as an error: here nothing fails that it has not got to know how to take."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


class Office(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="gpufit-model-"))
        self.runner = asyncio.Runner(loop_factory=StillLoop)
        self.loop = self.runner.get_loop()
        assert isinstance(self.loop, StillLoop)
        self.skew = 1_000_000.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("jupyter_gpufit.scheduling.store.ThreadPoolExecutor", Inline)
        numbers = itertools.count()
        self.patch.setattr("secrets.token_hex", lambda size: f"{next(numbers):0{2 * size}x}")
        self.complaints = Complaints()
        self.log = logging.Logger("gpufit model")
        self.log.addHandler(self.complaints)
        self.told: dict[str, Allocation] = {}
        self.people: set[asyncio.Task[Any]] = set()
        self.promised: set[str] = set()
        """Allocations of which somebody has been told that they are there."""
        self.given_back: set[str] = set()
        """Of which somebody has been told that they will end."""
        self.disturbed: set[str] = set()
        """Of which somebody wants something that may not have begun."""
        self.lab = self.new_lab()
        self.run(self.open())

    def new_lab(self, of: Lab | None = None) -> Lab:
        nodes = () if of else [node(name, gpus) for name, gpus in NODES.items()]
        options = {"store": self.home, "steady": self.loop.time, "log": self.log}
        return Lab(*nodes, of=of, limits=LIMITS, clock=lambda: self.skew + self.loop.time(), **options)

    async def open(self) -> None:
        await self.drive(self.lab.scheduler.open())
        self.lab.scheduler.subscribe(self.tell)

    def tell(self, now: Allocation) -> None:
        before = self.told.get(now.id)
        if before is not None:
            assert before.version < now.version
            moved = now.request.job is not None and now.state is State.PENDING and before.node is not None
            assert moved or ORDER.index(before.state) <= ORDER.index(now.state), "states come in one order"
        self.told[now.id] = now

    # --- the loop

    def run(self, doing: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(doing)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
        self.say_troubles()

    async def drive(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """All of it, with as many turns, and as much time, as it takes."""
        task = asyncio.ensure_future(doing)
        for _ in range(3000):
            await self.turns(20)
            if task.done():
                return task.result()
            self.loop.moment += 0.02
        raise AssertionError(f"it does not end: {task}")

    def person(self, doing: Coroutine[Any, Any, Any]) -> None:
        """Somebody does that, beside all else; is told so if it cannot be."""

        async def does() -> None:
            with suppress(GpufitError):
                await doing

        async def begin() -> None:
            task = asyncio.ensure_future(does())
            self.people.add(task)

        self.run(begin())

    def say_troubles(self) -> None:
        """What launchers find out about their engines."""
        for launcher in self.lab.launchers:
            if launcher.opened and not launcher.closed and launcher.on_trouble is not None:
                silent = not launcher.engine.reachable
                if silent != getattr(launcher, "said_silent", False):
                    launcher.said_silent = silent  # type: ignore[attr-defined]
                    launcher.on_trouble("the engine does not answer" if silent else None)
                    launcher.tell_claims()

    # --- people

    @initialize()
    def some_run(self) -> None:
        for hosted in (True, True, False):
            self.request(1, False, None, None, 0, hosted)
        self.run(self.turns(40))

    @precondition(lambda self: len(self.entries()) < 6)
    @rule(
        gpus=st.integers(1, 3),
        shared=st.booleans(),
        wait=st.sampled_from([None, 5]),
        time=st.sampled_from([None, 10]),
        priority=st.sampled_from([0, 0, 1]),
        hosted=st.sampled_from([True, True, False]),
    )
    def request(
        self, gpus: int, shared: bool, wait: float | None, time: float | None, priority: int, hosted: bool
    ) -> None:
        wish = Request(gpus=gpus, memory=8, shared=shared, wait=wait, time=time, priority=priority)
        lab = self.lab

        async def ask() -> None:
            kernel = None if hosted else f"foreign-{len(self.told)}"
            allocation = await lab.scheduler.request(wish, "me", kernel_id=kernel)
            self.promised.add(allocation.id)
            if kernel is not None:
                await lab.scheduler.prepared(allocation.id)
                await lab.scheduler.launch(allocation.id, ["python"], {}, {})
                await lab.scheduler.ready(allocation.id, kernel)

        self.person(ask())

    @precondition(lambda self: len(self.entries()) < 6)
    @rule(
        gpus=st.integers(1, 2),
        retries=st.sampled_from([0, 2]),
        wait=st.sampled_from([None, 0]),
        jobs=st.sampled_from([1, 2]),
    )
    def submit(self, gpus: int, retries: int, wait: float | None, jobs: int) -> None:
        wish = Request(gpus=gpus, memory=8, wait=wait, job=Job(run="train.py", retries=retries))
        lab = self.lab

        async def ask() -> None:
            made = await lab.scheduler.submit(wish, "me", {"lr": ["1", "2"]} if jobs > 1 else {})
            self.promised |= {allocation.id for allocation in made}

        self.person(ask())

    @precondition(lambda self: self.entries())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        id, lab = self.pick(data), self.lab

        async def give_back() -> None:
            await lab.scheduler.release(id)
            self.given_back.add(id)

        self.disturbed.add(id)
        self.person(give_back())

    @precondition(lambda self: self.entries())
    @rule(data=st.data())
    def restart_kernel(self, data: st.DataObject) -> None:
        id, lab = self.pick(data), self.lab

        async def restart() -> None:
            await lab.scheduler.stop_unit(id)
            await lab.scheduler.restart_unit(id)
            await lab.scheduler.launch(id, ["python"], {}, {})

        self.disturbed.add(id)
        self.person(restart())

    @precondition(lambda self: self.entries())
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        self.person(self.lab.scheduler.extend(self.pick(data), 10))

    # --- what goes wrong

    @rule(point=st.sampled_from(POINTS), failure=st.sampled_from(sorted(FAILURES)))
    def fails_next_time(self, point: str, failure: str) -> None:
        self.lab.script.fail(point, FAILURES[failure])

    @rule(name=st.sampled_from(sorted(NODES)), how=st.sampled_from(["engine", "both", "well", "well"]))
    def node_changes(self, name: str, how: str) -> None:
        engine = self.lab.engines[name]
        engine.reachable = how == "well"
        [raw] = [one for one in self.lab.cluster.raw if one.name == name]
        reason = "unreachable: no answer" if how == "both" else None
        now = msgspec.structs.replace(raw, reporting=how != "both", reason=reason)

        async def say() -> None:
            self.lab.cluster.put(now)
            self.say_troubles()

        self.run(say())

    @precondition(lambda self: self.boxes("running"))
    @rule(data=st.data(), code=st.sampled_from([0, 1]), with_node=st.booleans())
    def unit_dies(self, data: st.DataObject, code: int, with_node: bool) -> None:
        name, id = data.draw(st.sampled_from(self.boxes("running")))

        async def die() -> None:
            if (name, id) in self.boxes("running"):  # the loop took a turn
                self.lab.engines[name].crash(id, code, with_node=with_node)

        self.run(die())

    @precondition(lambda self: self.boxes())
    @rule(data=st.data())
    def unit_is_stuck(self, data: st.DataObject) -> None:
        name, id = data.draw(st.sampled_from(self.boxes()))
        self.lab.engines[name].stuck ^= {id}

    # --- time

    @rule(count=st.sampled_from([1, 2, 3, 5, 8, 13, 40]))
    def goes_on(self, count: int) -> None:
        self.run(self.turns(count))

    @rule(seconds=st.sampled_from([0.02, 0.2, 1, 4, 12]))
    def time_passes(self, seconds: float) -> None:
        async def passes() -> None:
            for _ in range(8):
                self.loop.moment += seconds / 8
                await self.turns(12)

        self.run(passes())

    @rule(seconds=st.sampled_from([-3600, -5, 5, 3600]))
    def clock_jumps(self, seconds: float) -> None:
        self.skew += seconds

    # --- the process dies, or is stopped

    @rule(written=st.booleans())
    def kill(self, written: bool) -> None:
        before = self.as_it_is()
        self.run(self.drive(self.lab.kill(written)))
        self.next_one()
        if written:
            self.look_at_what_was_taken_up(before)

    @rule(keep=st.booleans())
    def stop(self, keep: bool) -> None:
        before = self.as_it_is()
        self.run(self.drive(self.lab.scheduler.close(release=not keep)))
        assert asyncio.all_tasks(self.loop) <= self.people, "left"
        self.next_one()
        if keep:
            self.look_at_what_was_taken_up(before)

    def as_it_is(self) -> list[tuple[Entry, bool]]:
        """All there is, and whether its kernel could be taken back."""

        async def look_at_the_clock() -> None:
            self.lab.scheduler._clock()  # should it have jumped: what lies ahead is moved by that

        self.run(look_at_the_clock())
        memories = self.lab.scheduler._store.memories
        undisturbed = {id: each for id, each in self.entries().items() if id not in self.disturbed}
        data = [(msgspec.json.encode(each), "kernel" in memories.get(id, {})) for id, each in undisturbed.items()]
        self.disturbed.clear()
        return [(msgspec.json.decode(each, type=Entry), remembered) for each, remembered in data]

    def next_one(self) -> None:
        self.run(self.turns(20))
        assert all(task.done() for task in self.people), "somebody is never told"
        self.check_people()
        self.lab = self.new_lab(self.lab)
        self.told.clear()  # what was not written did not happen
        self.run(self.open())
        for id in self.promised:
            assert self.lab.scheduler.get(id), "a promise is kept, whatever happens"
        for id in self.given_back:
            assert self.lab.scheduler.get(id).state in (State.STOPPING, State.ENDED)

    def check_people(self) -> None:
        for task in [task for task in self.people if task.done()]:
            self.people.discard(task)
            task.result()

    def look_at_what_was_taken_up(self, left: list[tuple[Entry, bool]]) -> None:
        for before, remembered in left:
            was, now = before.allocation, self.lab.scheduler.get(before.id)
            if before.job is not None:
                assert "server" not in now.message, f"it does not go on: {now}"
                continue
            box = None if was.unit is None else self.lab.engines[was.unit.node].containers.get(was.unit.id)
            whole = box is not None and box.state == "running"
            in_peace = before.launched and not (
                before.restarting or before.stop_wanted or before.busy - {Work.TAKE_BACK}
            )
            over = was.expires is not None and was.expires <= self.skew + self.loop.time()
            lost = was.unreachable_since is not None
            if was.state is State.RUNNING and remembered and whole and in_peace and not over and not lost:
                assert (now.state, now.kernel_id, now.unit) == (State.RUNNING, was.kernel_id, was.unit), now
                assert now.expires == was.expires
            elif before.queued and before.hosted and was.message:
                assert "server" not in now.message, f"not queued again: {now}"

    # --- what always holds

    def entries(self) -> dict[str, Entry]:
        return {id: each for id, each in self.lab.scheduler._ledger.entries.items() if each.state is not State.ENDED}

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.entries(), key=lambda id: self.entries()[id].allocation.created)))

    def boxes(self, state: str | None = None) -> list[tuple[str, str]]:
        return [
            (name, box.unit.id)
            for name, engine in sorted(self.lab.engines.items())
            for box in engine.containers.values()
            if state in (None, box.state)
        ]

    @invariant()
    def no_two_units_run_on_one_gpu(self) -> None:
        for engine in self.lab.engines.values():
            assert all(count == 1 for count in engine.holders().values())

    @invariant()
    def what_is_held_is_a_live_allocations(self) -> None:
        for name in NODES:
            held = {claim.allocation for claim in self.lab.cluster.claims(name)}
            assert held == {id for id, each in self.entries().items() if each.allocation.node == name}

    @invariant()
    def nothing_went_wrong_that_has_no_name(self) -> None:
        assert not self.complaints.seen, "\n".join(self.complaints.seen)
        self.check_people()

    def teardown(self) -> None:
        """All is well again, and everything is released: everything ends, and nothing is left."""
        try:
            self.run(self.heal())
        finally:
            self.runner.close()
            self.patch.undo()
            shutil.rmtree(self.home)

    async def heal(self) -> None:
        self.lab.script._failures.clear()
        for name, engine in self.lab.engines.items():
            engine.reachable, engine.stuck = True, set()
            self.lab.cluster.put(node(name, NODES[name]))
        self.say_troubles()
        for id in self.entries():
            await self.drive(self.lab.scheduler.release(id))
        await self.drive(self.until_nothing_is_left())
        for each in self.lab.scheduler.allocations(ended=True):
            assert each.state is State.ENDED
            assert each.reason
        await self.drive(self.lab.scheduler.close())
        await self.turns(20)
        assert self.lab.host.kernels == {}
        assert self.lab.jobs.kept == {}
        assert all(task.done() for task in self.people)
        assert asyncio.all_tasks() == {asyncio.current_task(), *(task for task in self.people)} - self.people
        self.check_people()

    async def until_nothing_is_left(self) -> None:
        while self.entries() or self.boxes() or any(self.lab.held(name) for name in NODES):  # noqa: ASYNC110
            await asyncio.sleep(0)


# Not shrunk: that takes longer than reading it. (For a shorter one: without `phases`, and patience.)
Office.TestCase.settings = effort(15, stateful_step_count=30, phases=[Phase.generate])
TestOffice = Office.TestCase

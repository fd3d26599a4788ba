"""The state machine against a model of the world: whatever happens in whatever order, nothing is held twice or leaks.

The model keeps what the ledger cannot know: which units really exist on which node, and which of them run. Work that
the ledger has asked for is *under way* until a rule lets it come back, with whatever outcome is possible.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
from helpers.fuzzing import effort
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jupyter_gpufit.models import Allocation, EndReason, Job, Placement, Queued, Request, State, Unit
from jupyter_gpufit.scheduling import events as ev
from jupyter_gpufit.scheduling.allocations import Entry, Ledger, Limits
from jupyter_gpufit.scheduling.events import Event, Failure, Instruction, Work

NODES = {"a": 2, "b": 3}
LIMITS = Limits(attempts=3, lost_after=200, retry_most=8, warn_before=(60, 20), requeue_wait=300)
WORK = {
    ev.Place: Work.PLACE,
    ev.Prepare: Work.PREPARE,
    ev.StartKernel: Work.START_KERNEL,
    ev.StartUnit: Work.START_UNIT,
    ev.RunJob: Work.START_UNIT,
    ev.StopKernel: Work.STOP_KERNEL,
    ev.StopUnit: Work.STOP_UNIT,
    ev.TakeBack: Work.TAKE_BACK,
}
ORDER = list(State)


@dataclass
class Box:
    """A unit as it is on its node, known or not."""

    unit: Unit
    gpus: frozenset[str]
    shared: bool
    running: bool = False
    debris: bool = False
    """Left on a node that did not answer when it was made; never started."""
    left: bool = False
    """Of a job that has gone to another node."""


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.ledger = Ledger("s0", LIMITS)
        self.count = 0
        self.under_way: dict[tuple[str, Work], Instruction] = {}
        self.cancelled: set[tuple[str, Work]] = set()
        self.boxes: dict[str, Box] = {}
        self.names: set[str] = set()
        self.published: dict[str, list[object]] = {}
        self.saved: dict[str, bytes] = {}
        self.told: dict[str, Allocation] = {}
        self.ended: dict[str, Entry] = {}
        self.alarms: set[tuple[float, str]] = set()
        self.silent: dict[str, bool] = {}
        """Nodes whose engine does not answer, and whether their reporter does."""
        self.silent_since: dict[str, float] = {}
        """Since when neither answers, as this scheduler knows it."""
        self.broken: set[str] = set()
        """GPUs."""
        self.remembered: set[str] = set()
        """Allocations whose kernel another scheduler could take back."""
        self.crashes = 0
        self.set_by = 0.0
        """By how much the clock is being set."""

    # --- the scheduler's part, in short

    def send(self, event: Event) -> None:
        self.do(self.ledger.handle(event, self.now))
        if event.id in self.ended:
            self.ledger.forget(event.id)

    def do(self, instructions: list[Instruction]) -> None:
        for what in instructions:
            work = WORK.get(type(what))
            if work is not None:
                assert (what.id, work) not in self.under_way, f"{work} of {what.id} twice at once"
                self.under_way[what.id, work] = what
                entry = self.ledger.entries[what.id]
                assert entry.live or work in (Work.STOP_KERNEL, Work.STOP_UNIT), f"{work} of one that ends"
                if isinstance(what, ev.StopUnit):
                    assert entry.allocation.reason is not EndReason.NODE_LOST, "nobody is there to stop it"
                if isinstance(what, ev.Prepare):
                    assert what.launch.name not in self.names, "a unit's name used twice"
                    self.names.add(what.launch.name)
                    self.mount_check(what)
            elif isinstance(what, ev.Cancel):
                assert (what.id, what.work) in self.under_way
                self.cancelled.add((what.id, what.work))
            elif isinstance(what, ev.Publish):
                self.published[what.node] = self.ledger.claims(what.node)
            elif isinstance(what, ev.Clean):
                for box in self.boxes.values():
                    box.left |= (box.unit.allocation, box.unit.node) == (what.id, what.node)
            elif isinstance(what, ev.Save):
                self.saved[what.id] = msgspec.json.encode(self.ledger.entries[what.id])
            elif isinstance(what, ev.Wake):
                self.alarms.add((what.at, what.id))
            else:
                self.tell(self.ledger.entries[what.id])

    def tell(self, entry: Entry) -> None:
        now, before = entry.allocation, self.told.get(entry.id)
        if before is not None:
            assert before.version < now.version
            moved = now.request.job is not None and now.state is State.PENDING and before.node is not None
            assert moved or ORDER.index(before.state) <= ORDER.index(now.state), "states come in one order"
            if before.state is State.RUNNING and now.state is State.RUNNING:
                assert (before.node, before.gpus) == (now.node, now.gpus)
                assert (before.expires is None) == (now.expires is None)
                assert before.expires is None or before.expires <= now.expires - self.set_by, "time is only added"
        if now.reason is EndReason.NODE_LOST and (before is None or before.reason is not EndReason.NODE_LOST):
            since = self.silent_since.get(str(now.node))
            assert since is not None, "given up, although somebody there answers"
            assert self.now - since >= LIMITS.lost_after
        self.told[entry.id] = now
        if now.state is State.ENDED:
            self.ended[entry.id] = entry
            self.remembered.discard(entry.id)
            del self.saved[entry.id]

    def mount_check(self, what: ev.Prepare) -> None:
        [claim] = [claim for claim in self.ledger.claims(what.node) if claim.allocation == what.id]
        assert claim.gpus == what.launch.gpus, "prepared for other GPUs than are reserved"

    def back(self, id: str, work: Work, event: type[Event], **fields: object) -> None:
        del self.under_way[id, work]
        self.cancelled.discard((id, work))
        self.send(event(id=id, **fields))

    # --- what people and kernels do

    @precondition(lambda self: len(self.ledger.entries) < 6)
    @rule(
        gpus=st.integers(1, 3),
        shared=st.booleans(),
        hosted=st.booleans(),
        wait=st.sampled_from([None, 60]),
        time=st.sampled_from([None, 100]),
        priority=st.sampled_from([0, 0, 1]),
        retries=st.sampled_from([None, None, 0, 2]),
    )
    def request(
        self,
        gpus: int,
        shared: bool,
        hosted: bool,
        wait: int | None,
        time: int | None,
        priority: int,
        retries: int | None,
    ) -> None:
        self.count += 1
        job = None if retries is None else Job(run="train.py", retries=retries, turn=self.count % 3)
        wait = 0 if wait is None and job is not None else wait
        request = Request(gpus=gpus, memory=8, shared=shared, wait=wait, time=time, priority=priority, job=job)
        kernel = None if hosted or job is not None else f"foreign-{self.count}"
        self.send(ev.Requested(id=f"x{self.count}", name="n", owner="me", request=request, kernel_id=kernel))

    @precondition(lambda self: len(self.ledger.entries) > 1)
    @rule(data=st.data(), how=st.sampled_from(["asked", "kernel gone", "kernel failed", "idle"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        id = self.pick(data)
        if how == "kernel failed":
            self.send(ev.KernelFailed(id=id, message="it never answered"))
        elif how != "idle":
            self.send(ev.ReleaseAsked(id=id, kernel_gone=how == "kernel gone"))
        elif self.ledger.entries[id].allocation.warning_kind == "idle":
            self.send(ev.ReleaseAsked(id=id, reason=EndReason.IDLE, message="it did nothing"))

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data(), event=st.sampled_from([ev.StopAsked, ev.RestartAsked, ev.LaunchAsked]))
    def kernel_manager(self, data: st.DataObject, event: type[Event]) -> None:
        id = self.pick(data)
        entry = self.ledger.entries[id]
        if event is not ev.LaunchAsked or entry.prepared:  # the scheduler checks that
            self.send(event(id=id))

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data())
    def kernel_answers(self, data: st.DataObject) -> None:
        id = self.pick(data)
        if self.ledger.entries[id].launched and self.ledger.entries[id].job is None:
            self.remembered.add(id)  # the provisioner does so just before
            self.send(ev.KernelReady(id=id, kernel_id="k"))

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data(), seconds=st.sampled_from([1, 50, 200]))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        id = self.pick(data)
        before = self.ledger.entries[id].allocation
        self.send(ev.ExtendAsked(id=id, seconds=seconds))
        now = self.ledger.entries[id].allocation
        if before.state is State.RUNNING and before.expires is not None:
            assert now.expires == before.expires + seconds
            assert now.warning_kind in ("", "gpu"), "a broken GPU stays broken"

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data(), event=st.sampled_from([ev.Idled, ev.Stirred]))
    def idleness(self, data: st.DataObject, event: type[Event]) -> None:
        self.send(event(id=self.pick(data), **({"until": self.now + 60} if event is ev.Idled else {})))

    @precondition(lambda self: any(box.running for box in self.boxes.values()))
    @rule(data=st.data(), code=st.sampled_from([0, 1, 1]), with_node=st.booleans())
    def unit_dies(self, data: st.DataObject, code: int, with_node: bool) -> None:
        box = data.draw(st.sampled_from([box for box in self.boxes.values() if box.running]))
        box.running = False
        id, unit = box.unit.allocation, box.unit.id
        self.send(ev.UnitExited(id=id, unit=unit, message="it died", code=code, with_node=with_node))

    @precondition(lambda self: self.live())
    @rule(seconds=st.sampled_from([0.5, 5, 40, 130, 400]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for alarm in sorted(alarm for alarm in self.alarms if alarm[0] <= self.now):
            self.alarms.discard(alarm)
            self.send(ev.Woken(id=alarm[1]))
        for entry in self.live():
            assert min(entry.deadlines.values(), default=self.now + 1) > self.now, "slept through it"
            if entry.state is State.RUNNING and entry.allocation.expires is not None and not entry.moving:
                assert entry.allocation.expires > self.now

    @precondition(lambda self: self.live())
    @rule(seconds=st.sampled_from([-3600, -10, 10, 3600]))
    def clock_is_set(self, seconds: float) -> None:
        """Nothing happens by that, sooner or later."""
        left = {entry.id: {what: at - self.now for what, at in entry.deadlines.items()} for entry in self.live()}
        self.now += seconds
        self.set_by = seconds
        self.silent_since = {node: since + seconds for node, since in self.silent_since.items()}
        self.do(self.ledger.clock_set(seconds, self.now))
        self.set_by = 0.0
        for entry in self.live():
            assert left[entry.id] == {what: at - self.now for what, at in entry.deadlines.items()}
            if entry.state is State.RUNNING and "expire" in entry.deadlines:
                assert entry.deadlines["expire"] == entry.allocation.expires
        self.time_passes(0)

    @precondition(lambda self: self.ledger.queue())
    @rule(data=st.data())
    def room(self, data: st.DataObject) -> None:
        """There may be room: those that wait are told where they stand, and placed, all or those before one."""
        queue = self.ledger.queue()
        assert [entry.rank for entry in queue] == sorted(entry.rank for entry in queue)
        for place, entry in enumerate(queue, 1):
            said = Queued(position=place, of=len(queue), until=self.now, missing="2 GPUs more")
            self.send(ev.Ranked(id=entry.id, queue=said))
        before = data.draw(st.sampled_from([None, *(entry.id for entry in queue)]))
        self.do(self.ledger.retry_waiting(self.now, None if before is None else self.ledger.entries[before]))

    # --- what becomes of nodes

    @precondition(lambda self: any(entry.allocation.node for entry in self.live()))
    @rule(data=st.data(), what=st.sampled_from(["silent", "silent, reports", "answers", "answers", "gpu"]))
    def node_changes(self, data: st.DataObject, what: str) -> None:
        node = data.draw(st.sampled_from(sorted({str(each.allocation.node) for each in self.live()} - {"None"})))
        if what == "gpu":
            self.broken ^= {data.draw(st.sampled_from([f"{node}0", f"{node}1"]))}
        elif what == "answers":
            self.silent.pop(node, None)
        else:
            self.silent[node] = what == "silent, reports"
        if self.silent.get(node, True):
            self.silent_since.pop(node, None)
        else:
            self.silent_since.setdefault(node, self.now)
        self.tell_of_nodes()

    def tell_of_nodes(self) -> None:
        """What `Execution` does when something changed on a node; also for what has been placed there since."""
        for id, entry in list(self.ledger.entries.items()):
            node = entry.allocation.node
            if node is None or entry.state is State.ENDED:
                continue
            if node in self.silent:
                self.send(ev.NodeSilent(id=id, why="no answer", reporting=self.silent[node]))
            elif entry.allocation.unreachable_since is not None:
                self.send(ev.NodeHeard(id=id))
            broken = {uuid: "lost" for uuid in entry.allocation.gpus if uuid in self.broken}
            if broken != entry.broken:
                self.send(ev.GpusChanged(id=id, broken=broken))

    # --- what comes of the work

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def comes_back(self, data: st.DataObject) -> None:
        id, work = data.draw(st.sampled_from(sorted(self.under_way)))
        self.come_back(id, work, lambda options: data.draw(st.sampled_from(options)))

    @precondition(lambda self: self.ledger.entries)
    @rule(data=st.data())
    def goes_well(self, data: st.DataObject) -> None:
        """One comes to run, if nothing is in the way: far into a life, where chance alone seldom leads."""
        id = self.pick(data)
        for _ in range(8):
            entry = self.ledger.entries.get(id)
            if entry is None or not entry.live or (entry.state is State.RUNNING and not entry.busy):
                return
            if works := sorted(entry.busy - {Work.START_KERNEL}):
                self.come_back(id, works[0], lambda options: options[0])
            elif entry.prepared:
                self.send(ev.LaunchAsked(id=id))
            elif Work.START_KERNEL in entry.busy and entry.launched:
                self.come_back(id, Work.START_KERNEL, lambda options: options[0])
            elif entry.launched:
                self.remembered.add(id)
                self.send(ev.KernelReady(id=id, kernel_id="k"))

    def come_back(self, id: str, work: Work, choose) -> None:
        what = self.under_way[id, work]
        ways = ["good", "bad"] + (["cancelled"] * 3 if (id, work) in self.cancelled else [])
        on_a_node = isinstance(what, ev.Prepare | ev.StartUnit | ev.RunJob | ev.StopUnit)
        silent = on_a_node and self.node_of(what) in self.silent
        if silent:
            ways.remove("good")
        way = choose(ways)
        failures = [Failure.CANCELLED] if way == "cancelled" else [f for f in Failure if f is not Failure.CANCELLED]
        if silent and way == "bad":
            failures = [Failure.UNREACHABLE]
        if isinstance(what, ev.Place):
            placement = self.place(what) if way == "good" and id in self.ledger.entries else None
            if placement is not None:
                waits = [entry.id for entry in self.ledger.queue() if entry.id != id]
                overtakes = choose([None, *waits])
                before = {waiting: self.ledger.entries[waiting].overtaken for waiting in waits}
                self.back(id, work, ev.Placed, placement=placement, overtakes=overtakes)
                if id in self.ledger.entries and self.ledger.entries[id].live:
                    for waiting in waits:
                        assert self.ledger.entries[waiting].overtaken == before[waiting] + (waiting == overtakes)
                self.tell_of_nodes()
            else:
                self.back(id, work, ev.NotPlaced, message="nothing fits", never=choose([False, False, True]))
        elif isinstance(what, ev.Prepare):
            if way == "good":
                self.back(id, work, ev.Prepared, unit=self.make(what).unit)
            else:
                failure = choose(failures)
                if failure not in (Failure.CLAIM_LOST, Failure.ERROR, Failure.UNFIT) and choose([True, False]):
                    self.make(what).debris = failure is Failure.UNREACHABLE  # it is there, and nobody knows
                self.back(id, work, ev.PrepareFailed, failure=failure, message="no unit")
        elif isinstance(what, ev.StartUnit | ev.RunJob):
            box = self.boxes.get(what.unit.id)
            assert box is not None, "a unit is started that was removed"
            if way == "good":
                box.running = True
                self.back(id, work, ev.UnitStarted, ports=(1, 2, 3, 4, 5))
            else:
                failure = choose(failures)
                if failure is Failure.UNREACHABLE and choose([True, False]):
                    box.running = True  # it was told to, and nobody heard of it
                self.back(id, work, ev.UnitStartFailed, failure=failure, message="no start", logs="lines\n")
        elif isinstance(what, ev.StartKernel):
            if way == "good" and id in self.ledger.entries and self.ledger.entries[id].launched:
                self.remembered.add(id)
                self.back(id, work, ev.KernelStarted, kernel_id="k")
            else:
                self.back(id, work, ev.KernelStartFailed, failure=choose(failures), message="no kernel")
        elif isinstance(what, ev.StopKernel):
            self.back(id, work, ev.KernelStopped)
        elif isinstance(what, ev.TakeBack):
            entry, box = self.ledger.entries.get(id), self.boxes.get(what.unit.id)
            if entry is not None and entry.job is not None and not entry.began and box is not None and box.running:
                self.send(ev.UnitStarted(id=id))  # it was told to, by the one that died
            if way == "good":
                self.back(id, work, ev.TakenBack, kernel_id="k")
            else:
                self.back(id, work, ev.TakeBackFailed, failure=choose(failures), message="it is another's")
        elif isinstance(what, ev.StopUnit):
            if way == "good":
                self.remove(what)
                self.back(id, work, ev.UnitGone, logs="", outputs=choose([None, "/outputs"]))
            else:
                failure = choose([Failure.UNREACHABLE, Failure.ERROR])
                failure = Failure.CANCELLED if way == "cancelled" else failure
                self.back(id, work, ev.StopFailed, failure=failure, message="it is still there")

    def node_of(self, what: ev.Prepare | ev.StartUnit | ev.RunJob | ev.StopUnit) -> str:
        return what.unit.node if isinstance(what, ev.StartUnit | ev.RunJob) else what.node

    def place(self, what: ev.Place) -> Placement | None:
        request = self.ledger.entries[what.id].allocation.request
        for node, count in NODES.items():
            if node in what.avoid or node in self.silent:
                continue
            claims = self.ledger.claims(node)
            free = [
                uuid
                for uuid in (f"{node}{i}" for i in range(count))
                if uuid not in self.broken
                and all(uuid not in claim.gpus or (claim.shared and request.shared) for claim in claims)
            ]
            if len(free) >= request.gpus:
                return Placement(node=node, gpus=tuple(free[: request.gpus]), memory=request.sizes)
        return None

    def make(self, what: ev.Prepare) -> Box:
        unit = Unit(
            id=f"u{len(self.names)}-{what.launch.name}", name=what.launch.name, node=what.node, allocation=what.id
        )
        box = self.boxes[unit.id] = Box(unit, frozenset(what.launch.gpus), what.launch.shared)
        return box

    def remove(self, what: ev.StopUnit) -> None:
        if what.unit is not None:
            self.boxes.pop(what.unit.id, None)
            return
        for box in list(self.boxes.values()):
            if (box.unit.allocation, box.unit.node) == (what.id, what.node):
                del self.boxes[box.unit.id]

    # --- the process dies

    @precondition(lambda self: self.live())
    @rule()
    def crash(self) -> None:
        """`kill -9`, and a new scheduler on the same store. What was under way may have done its part, or not."""
        for (_, work), what in list(self.under_way.items()):
            if work is Work.PREPARE and len(self.under_way) % 2:
                self.make(what)
            if work is Work.START_UNIT and what.unit.id in self.boxes and len(self.under_way) % 2:
                self.boxes[what.unit.id].running = True
        self.under_way, self.cancelled, self.alarms, self.published = {}, set(), set(), {}
        left = {id: msgspec.json.decode(data, type=Entry) for id, data in self.saved.items()}
        self.told = {id: entry.allocation for id, entry in left.items()}
        self.crashes += 1
        self.ledger = Ledger(f"s{self.crashes}", LIMITS)
        self.do(self.ledger.restore(left.values(), self.now, "the server died", self.remembered))
        for id in [id for id in self.ended if id in self.ledger.entries]:
            self.ledger.forget(id)
        # This scheduler knows nothing yet of how long a node has been silent.
        self.silent_since = dict.fromkeys((node for node, reporting in self.silent.items() if not reporting), self.now)
        for id, before in left.items():
            entry = self.ledger.entries.get(id) or self.ended[id]
            self.taken_up_as_it_has_to_be(before, entry)
        self.tell_of_nodes()

    def taken_up_as_it_has_to_be(self, before: Entry, entry: Entry) -> None:
        was, now = before.allocation, entry.allocation
        assert (now.created, now.owner, now.name, now.request) == (was.created, was.owner, was.name, was.request)
        runs = was.unit is not None and before.launched and not before.restarting and not before.stop_wanted
        if before.job is not None and before.live:
            begins = {Work.TAKE_BACK} if runs else {Work.STOP_UNIT}
            assert entry.live, "jobs go on"
            assert entry.rank == before.rank
            assert now.node is not None or entry.waiting or before.moving
            assert now.node is None or (entry.busy, now.node, now.gpus) == (begins, was.node, was.gpus)
        elif was.state is State.RUNNING and runs and entry.id in self.remembered:
            assert (now.state, now.node, now.gpus, now.unit) == (State.RUNNING, was.node, was.gpus, was.unit)
            assert (now.expires, now.kernel_id) == (was.expires, was.kernel_id)
            assert entry.busy == {Work.TAKE_BACK}
            assert now.expires is None or entry.deadlines["expire"] == now.expires
        elif before.queued and before.hosted:
            assert (entry.queued, entry.rank) == (True, before.rank)
            assert entry.deadlines["wait"] == was.created + was.request.wait
        else:
            assert entry.state in (State.STOPPING, State.ENDED)

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.ledger.entries)))

    # --- what always holds

    def live(self) -> list[Entry]:
        return [entry for entry in self.ledger.entries.values() if entry.state is not State.ENDED]

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        for node in NODES:
            holders = Counter(uuid for claim in self.ledger.claims(node) for uuid in claim.gpus)
            for claim in self.ledger.claims(node):
                assert claim.shared or all(holders[uuid] == 1 for uuid in claim.gpus)

    @invariant()
    def no_two_units_run_on_one_gpu(self) -> None:
        running = [box for box in self.boxes.values() if box.running and not self.given_up(box)]
        for box in running:
            for other in running:
                assert box is other or not box.gpus & other.gpus or (box.shared and other.shared)

    @invariant()
    def nothing_runs_twice_at_once(self) -> None:
        """But on a node that was given up, perhaps."""
        running = Counter(box.unit.allocation for box in self.boxes.values() if box.running and not self.given_up(box))
        assert all(count == 1 for count in running.values()), running

    @invariant()
    def a_reservation_is_a_live_allocations(self) -> None:
        held = {claim.allocation: node for node in NODES for claim in self.ledger.claims(node)}
        placed = {entry.id: entry.allocation.node for entry in self.live() if entry.allocation.node is not None}
        assert held == placed
        assert sum(len(self.ledger.claims(node)) for node in NODES) == len(placed)

    @invariant()
    def what_is_being_placed_holds_nothing(self) -> None:
        for entry in self.live():
            assert Work.PLACE not in entry.busy or entry.allocation.node is None

    @invariant()
    def the_cluster_was_told(self) -> None:
        for node in NODES:
            assert self.published.get(node, []) == self.ledger.claims(node)

    @invariant()
    def a_unit_has_a_reservation_around_it(self) -> None:
        """Or it is left on a node that did not answer, or its node was given up: then it is the reaper's."""
        for box in self.boxes.values():
            entry = self.ledger.entries.get(box.unit.allocation)
            covered = entry is not None and entry.state is not State.ENDED and entry.allocation.node == box.unit.node
            assert covered or box.debris or self.given_up(box)

    def given_up(self, box: Box) -> bool:
        entry = self.ended.get(box.unit.allocation)
        return box.left or (entry is not None and entry.allocation.reason is EndReason.NODE_LOST)

    @invariant()
    def what_is_under_way_is_known(self) -> None:
        for entry in self.live():
            assert entry.busy <= {work for id, work in self.under_way if id == entry.id}

    @invariant()
    def who_watches_knows(self) -> None:
        for entry in self.ledger.entries.values():
            if entry.id in self.told or entry.state is not State.PENDING:
                assert self.told[entry.id] == entry.allocation

    @invariant()
    def nothing_stands_still(self) -> None:
        """What is neither running in peace nor queued has work under way, or a moment at which something happens."""
        alarms = {id for at, id in self.alarms}
        for entry in self.live():
            peace = entry.state is State.RUNNING and entry.unit is not None
            assert peace or entry.busy or entry.waiting or (entry.deadlines and entry.id in alarms), entry

    @invariant()
    def what_is_shown_is_so(self) -> None:
        for entry in self.live():
            now = entry.allocation
            assert now.queue is None or entry.queued
            assert (now.unreachable_since is not None) == (now.node in self.silent and now.node is not None)
            assert "lost" not in entry.deadlines or now.unreachable_since is not None, "given up for another's silence"
            assert "expire" not in entry.deadlines or now.expires is not None
            assert not now.warning or entry.live
            if now.state is State.RUNNING and entry.live and set(now.gpus) & self.broken:
                assert entry.broken, "it does not say that its GPU is broken"

    @invariant()
    def nobody_holds_for_ever_what_ends_some_day(self) -> None:
        for id, end in self.ledger.ends(self.now).items():
            assert end >= self.now
            assert self.ledger.entries[id].allocation.node is not None

    @invariant()
    def what_ended_is_settled(self) -> None:
        for entry in self.ended.values():
            now = entry.allocation
            assert now.reason is not None
            assert now.ended is not None
            assert (now.unit, now.queue, now.unreachable_since, now.warning) == (None, None, None, "")
            assert not entry.busy

    def teardown(self) -> None:
        """Everything is released, and from now on all goes well: everything ends, and nothing is left."""
        self.silent, self.silent_since = {}, {}
        self.tell_of_nodes()
        for entry in self.live():
            self.send(ev.ReleaseAsked(id=entry.id))
        for _ in range(200):
            if not self.live():
                break
            for id, work in sorted(self.under_way):
                self.come_back(id, work, lambda options: options[-1] if options[-1] == "cancelled" else options[0])
            self.time_passes(10)
        assert not self.live()
        assert all(not self.ledger.claims(node) for node in NODES)
        for box in self.boxes.values():
            assert box.debris or self.given_up(box)


World.TestCase.settings = effort(150, stateful_step_count=60)
TestWorld = World.TestCase

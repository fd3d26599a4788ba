"""What `%gpufit panel` does, on its thread: over a client that can be slow, refuse, and die. No widgets, no kernel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpufit.errors import GpufitError, NoFit, NotFound
from jupyter_gpufit.models import Gpu, Node, Request
from jupyter_gpufit.notebook.panel import Row, Shown
from jupyter_gpufit.notebook.panelloop import Loop, Pace, Task
from jupyter_gpufit.notebook.panelwork import Panel

GIB = 2**30
QUICK = Pace(typing=0.05, moving=0.02, watched=0.05, idle=0.05, cluster=0.05, apart=0.0)
STILL = Pace(typing=0.05, moving=60, watched=60, idle=60, cluster=60, apart=0.0)


class Server:
    """A `Client`, as far as a panel asks one."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answers.set()
        self.given_up = False
        self.problem: Exception | None = None
        self.state = "running"

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        assert threading.current_thread().name == "gpufit-panel", "nobody else may wait for the server"
        self.given_up = not self.answers.wait(20)
        assert not self.given_up
        if self.problem is not None:
            raise self.problem

    def about(self) -> dict[str, Any]:
        raise NotFound("an older server")

    def cluster(self) -> tuple[list[Node], str | None]:
        self._ask("cluster")
        gpus = tuple(Gpu(uuid=f"GPU-{at}", index=at, model="Tesla T4", memory_free=16 * GIB) for at in range(4))
        return [Node(name="n1", gpus=gpus)], None

    def explain(self, request: Request, *, stages: bool = True) -> dict[str, Any]:
        self._ask(f"explain {request.gpus}{' stages' if stages else ''}")
        if request.gpus > 4:
            stage = {"rejected": {"n1": f"4 idle GPUs, {request.gpus} asked"}}
            return {
                "node": None,
                "summary": "No node has that.",
                "nearest": {"node": "n1", "gpus": 4, "memory": 8 * GIB},
                "stages": [stage] if stages else [],
            }
        return {
            "node": "n1",
            "gpus": [f"GPU-{at}" for at in range(request.gpus)],
            "policy": "best-fit",
            "fitting": ["n1"],
        }

    def request(self, request: Request) -> dict[str, Any]:
        self._ask("request")
        if request.gpus > 4:
            raise NoFit("No node has that now.")
        number = len(self.held) + 1
        made = {
            "id": f"id-{number}",
            "name": f"a{number}",
            "state": self.state,
            "version": 1,
            "node": "n1",
            "gpus": ["GPU-0"],
            "memory": [GIB],
            "time": request.time,
            "expires": None,
        }
        self.held[made["id"]] = made
        return dict(made)

    def allocations(self, *, ended: bool = False) -> list[dict[str, Any]]:
        self._ask("allocations")
        return [dict(one) for one in self.held.values() if ended or one["state"] != "ended"]

    def get(self, name: str) -> dict[str, Any]:
        if name not in self.held:
            raise NotFound(f"no allocation is called {name!r}")
        return dict(self.held[name])

    def release(self, id: str) -> dict[str, Any]:
        self._ask("release")
        return self.become(id, state="ended", reason="released")

    def extend(self, id: str, seconds: float) -> dict[str, Any]:
        self._ask("extend")
        return self.become(id, time=seconds, expires=time.time() + seconds)

    def become(self, id: str, **changes: Any) -> dict[str, Any]:
        self.held[id] |= changes | {"version": self.held[id]["version"] + 1}
        return dict(self.held[id])


class Desk:
    """The notebook, as far as a panel acts on one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.here: dict[str, Any] | None = None
        self.busy = False
        self.leaves = False
        self.problem: Exception | None = None

    def client(self) -> Any:
        return self.server

    def note(self) -> str:
        return ""

    def attach(self, allocation: dict[str, Any]) -> tuple[str, bool]:
        if self.problem is not None:
            raise self.problem
        self.here = allocation
        return f"attached to {allocation['name']}", self.leaves

    def detach(self) -> str:
        self.here = None
        return "detached"

    def leave_allocation(self, allocation: dict[str, Any]) -> None:
        if self.here is not None and self.here["id"] == allocation["id"]:
            self.here = None


class Room:
    """A panel, its desk and server, and all that it has shown."""

    def __init__(self, pace: Pace = QUICK) -> None:
        self.server = Server()
        self.desk = Desk(self.server)
        self.seen: list[Shown] = []
        self.panel = Panel(self.desk, self.seen.append, pace=pace)
        self.panel.start()

    def until(self, holds: Callable[[Shown], Any], what: str = "") -> Shown:
        deadline = time.monotonic() + 10
        while not holds(self.panel.shown):
            assert time.monotonic() < deadline, f"{what}: {self.panel.shown}"
            time.sleep(0.005)
        return self.panel.shown

    def row(self, id: str = "id-1") -> Row:
        return next(row for row in self.panel.shown.rows if row.id == id)

    def granted(self) -> str:
        self.panel.request()
        self.until(lambda shown: shown.rows)
        return "id-1"


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.server.answers.set()
    room.panel.close()
    assert not panel_threads()


def panel_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpufit-panel"]


# --- the form, and the dry run


def test_it_shows_what_there_is_and_where_the_form_would_go(room: Room) -> None:
    shown = room.until(lambda shown: shown.dry)
    assert shown.cluster == "1 node, 4 GPUs: 4 idle."
    assert shown.dry is not None
    assert shown.dry.text == "n1: 1 × T4, the only node that fits"


def test_typing_is_tried_once_when_it_stops() -> None:
    room = Room(STILL)
    try:
        room.until(lambda shown: shown.dry)
        room.server.asked.clear()
        for text in ("1", "12", "123", "3"):
            room.panel.edit(gpus=text)
        room.until(lambda shown: shown.dry and "3 × T4" in shown.dry.text)
        assert room.server.asked == ["explain 3"]
    finally:
        room.panel.close()


def test_a_mistake_is_said_in_its_field_and_asks_nobody() -> None:
    room = Room(STILL)
    try:
        room.until(lambda shown: shown.dry)
        room.server.asked.clear()
        room.panel.edit(memory="16QiB")
        shown = room.until(lambda shown: shown.wrong)
        assert "'16QiB' is not a size" in shown.wrong["memory"]
        assert shown.dry is None
        room.panel.request()
        assert room.until(lambda shown: shown.said).failed
        assert room.server.asked == []
    finally:
        room.panel.close()


def test_what_fits_nowhere_is_explained_and_its_nearest_can_be_taken(room: Room) -> None:
    room.panel.edit(gpus="9")
    shown = room.until(lambda shown: shown.dry and shown.dry.offer)
    assert shown.dry is not None
    assert shown.dry.reasons == ("n1: 4 idle GPUs, 9 asked",)
    room.panel.take_over()
    shown = room.until(lambda shown: shown.forms == 1 and shown.dry and shown.dry.fits)
    assert (shown.form.gpus, shown.form.memory) == ("4", "8GiB")


def test_a_slow_server_holds_nobody_up(room: Room) -> None:
    room.until(lambda shown: shown.dry)
    room.server.answers.clear()
    for count in range(100):
        room.panel.edit(gpus=str(count))
    room.panel.request()
    room.panel.release("id-1")
    room.panel.wake()
    room.panel.edit(gpus="2")
    assert not room.server.given_up, "it is still being waited for"
    room.server.answers.set()
    room.until(lambda shown: shown.dry and "2 × T4" in shown.dry.text)


def test_closing_does_not_wait_for_a_server_that_never_answers(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "CLOSES_WITHIN", 0.05)
    room.until(lambda shown: shown.dry)
    room.server.answers.clear()
    room.panel.request()
    while room.server.asked[-1] != "request":
        time.sleep(0.005)
    seen = len(room.seen)
    room.panel.close()
    assert not room.server.given_up, "it is still being waited for"
    room.server.answers.set()
    [left] = panel_threads()
    left.join(10)
    assert not left.is_alive()
    assert len(room.seen) == seen, "nothing is shown any more"


# --- what is asked for


def test_a_request_is_granted_once_however_often_one_clicks(room: Room) -> None:
    room.until(lambda shown: shown.dry)
    room.server.answers.clear()
    for _ in range(5):
        room.panel.request()
    room.server.answers.set()
    room.until(lambda shown: shown.rows)
    room.until(lambda shown: "granted" in shown.said)
    assert room.server.asked.count("request") == 1
    assert room.panel.shown.rows[0].title == "'a1': 1 GPU with 1 GiB on n1 (1 × T4)"


def test_a_refusal_is_the_servers_sentence(room: Room) -> None:
    room.panel.edit(gpus="9")
    room.panel.request()
    shown = room.until(lambda shown: shown.failed)
    assert (shown.said, shown.said_of) == ("No node has that now.", "")


def test_a_server_that_does_not_answer_is_said_and_forgotten_when_it_does(room: Room) -> None:
    room.until(lambda shown: shown.dry)
    room.server.problem = GpufitError("the server does not answer; see whether it runs")
    room.panel.wake()
    assert room.until(lambda shown: shown.trouble).trouble == "the server does not answer; see whether it runs"
    room.server.problem = None
    room.until(lambda shown: not shown.trouble)


def test_a_mistake_of_our_own_is_a_sentence_and_no_end(room: Room) -> None:
    room.until(lambda shown: shown.dry)
    room.server.problem = TypeError("wat")
    shown = room.until(lambda shown: shown.failed)
    assert "TypeError: wat" in shown.said
    room.server.problem = None
    room.granted()


def test_release_and_its_end_are_shown(room: Room) -> None:
    id = room.granted()
    room.panel.release(id)
    room.until(lambda shown: shown.rows and shown.rows[0].ended)
    assert room.row().state == "ended (released)"
    room.until(lambda shown: not shown.said)


def test_more_time_and_a_span_that_is_none(room: Room) -> None:
    id = room.granted()
    room.panel.extend(id, "soon")
    shown = room.until(lambda shown: shown.failed)
    assert "'soon' is not a duration" in shown.said
    assert shown.said_of == id
    room.panel.extend(id, "1h")
    room.until(lambda shown: "has 1 h now" in shown.said)


# --- attaching


def test_attach_and_detach(room: Room) -> None:
    id = room.granted()
    room.panel.attach(id)
    shown = room.until(lambda shown: shown.here)
    assert "Its local kernel is kept." in shown.where
    room.until(lambda _: room.row().here)
    room.panel.detach(id)
    room.until(lambda shown: not shown.here)
    assert room.panel.shown.where == "This notebook's cells run in its local kernel."


def test_one_that_does_not_run_yet_is_attached_once_it_does(room: Room) -> None:
    room.server.state = "starting"
    id = room.granted()
    room.panel.attach(id)
    room.until(lambda _: room.row().wanted)
    assert "once that runs" in room.panel.shown.said
    assert room.desk.here is None
    room.server.become(id, state="running")
    room.until(lambda shown: shown.here)
    assert not room.row().wanted


def test_one_that_ends_instead_says_why(room: Room) -> None:
    room.server.state = "starting"
    id = room.granted()
    room.panel.attach(id)
    room.until(lambda _: room.row().wanted)
    room.server.become(id, state="ended", reason="failed", message="no such image")
    assert "no such image" in room.until(lambda shown: shown.failed).said


def test_what_was_to_be_attached_can_be_let_be(room: Room) -> None:
    room.server.state = "starting"
    id = room.granted()
    room.panel.attach(id)
    room.until(lambda _: room.row().wanted)
    room.panel.detach(id)
    room.until(lambda _: not room.row().wanted)
    room.server.become(id, state="running")
    room.until(lambda _: room.row().state == "running")
    assert room.desk.here is None


def test_a_running_cell_is_waited_for_and_not_left_half_way(room: Room) -> None:
    id = room.granted()
    room.desk.busy = True
    room.panel.attach(id)
    room.until(lambda shown: "once the cell that runs is done" in shown.said)
    assert room.desk.here is None
    room.desk.busy = False
    room.panel.wake()
    room.until(lambda shown: shown.here)
    room.desk.busy = True
    room.panel.detach(id)
    assert "A cell runs on 'a1'" in room.until(lambda shown: shown.failed).said
    assert room.desk.here is not None


def test_an_attach_that_fails_says_why(room: Room) -> None:
    id = room.granted()
    room.desk.problem = GpufitError("the kernel cannot be reached")
    room.panel.attach(id)
    shown = room.until(lambda shown: shown.failed)
    assert (shown.said, shown.said_of) == ("the kernel cannot be reached", id)


def test_a_notebook_that_leaves_ends_the_panel(room: Room) -> None:
    id = room.granted()
    room.desk.leaves = True
    room.panel.attach(id)
    for thread in panel_threads():
        thread.join(10)
    assert room.panel.closed
    assert not panel_threads()


# --- the thread


def test_a_view_that_breaks_ends_it() -> None:
    def show(_: Shown) -> None:
        raise RuntimeError("the comm is closed")

    panel = Panel(Desk(Server()), show, pace=QUICK)
    panel.start()
    for thread in panel_threads():
        thread.join(10)
    assert panel.closed
    assert not panel_threads()


def test_it_asks_seldom_when_nothing_moves_and_nobody_is_there() -> None:
    room = Room(Pace(lately=0.0, idle=60.0, apart=0.0))
    try:
        room.until(lambda shown: shown.dry)
        time.sleep(0.2)
        assert room.server.asked.count("allocations") == 1
        room.panel.wake()
        while room.server.asked.count("allocations") < 2:
            time.sleep(0.005)
    finally:
        room.panel.close()


def test_what_is_due_sooner_stays() -> None:
    done: list[str] = []
    loop = Loop("gpufit-panel", lambda task: done.append(task.of))
    now = time.monotonic()
    loop.due(Task("look", lambda: None, "soon"), now)
    loop.due(Task("look", lambda: None, "late"), now + 60)
    loop.due(Task("try", lambda: None, "first"), now)
    loop.due(Task("try", lambda: None, "put off"), now + 60, later=True)
    loop.start()
    while not done:
        time.sleep(0.005)
    loop.close()
    assert done == ["soon"]

"""The swap, in a real Jupyter server. An ordinary kernel stands for the allocation's: no GPU, no engine is needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.fakes import node
from helpers.frontend import FrontEnd, Notebook, eventually
from helpers.jupyterserver import Here, directories, server_here
from helpers.lab import Lab

from jupyter_gpufit.errors import Conflict, InvalidValue, NotFound
from jupyter_gpufit.kernels import attach as attach_module
from jupyter_gpufit.kernels.adopt import ServerKernelHost
from jupyter_gpufit.kernels.attach import Attachment, Attachments
from jupyter_gpufit.kernels.beside import beside
from jupyter_gpufit.kernels.idle import KernelWatch
from jupyter_gpufit.models import Allocation, EndReason, Request, State

ASK = "from comm import create_comm; create_comm(target_name='jupyter_gpufit', data={'action': '%s'})"
HEAR = """
heard = []
get_ipython().kernel.comm_manager.register_target(
    'jupyter_gpufit.local', lambda comm, message: heard.append(message['content']['data']))
"""


class Desk:
    """A server, its attachments, and a person in front of it."""

    def __init__(self, here: Here, front: FrontEnd) -> None:
        self.here, self.front = here, front
        self.kernels, self.sessions = here.app.kernel_manager, here.app.session_manager
        self.changes: list[dict[str, Any]] = []
        self.released: list[str] = []
        self.extended: list[str] = []
        self.attachments = Attachments(
            self.sessions,
            self.kernels,
            self.release,
            self.changed,
            logging.getLogger("attachments"),
            self.beside,
            self.extend,
            lambda one: self.allocations.get(one.id, one),
        )
        self.allocations: dict[str, Allocation] = {}

    def changed(self, attachment: Attachment) -> None:
        self.changes.append(attachment.public())

    def beside(self, id: str) -> list[str]:
        return [other for other, one in self.allocations.items() if other != id and one.state is State.RUNNING]

    async def release(self, id: str) -> None:
        """As the scheduler does: say so, stop the kernel, say so."""
        self.released.append(id)
        await self.end(id, EndReason.RELEASED)

    async def grant(self, id: str = "a1") -> Allocation:
        """A running allocation, whose kernel is an ordinary one of this server."""
        kernel_id = await self.kernels.start_kernel()
        return self.record(id, kernel_id, State.RUNNING)

    def record(self, id: str, kernel_id: str | None, state: State, reason: EndReason | None = None) -> Allocation:
        self.allocations[id] = made = Allocation(
            id=id,
            name=f"name-{id}",
            owner="me",
            request=Request(),
            created=0.0,
            state=state,
            reason=reason,
            kernel_id=kernel_id,
        )
        return made

    async def extend(self, id: str, data: dict[str, Any], info: dict[str, Any]) -> None:
        self.extended.append(f"{id} by {data['time']}")

    async def end(self, id: str, reason: EndReason) -> None:
        kernel_id = self.allocations[id].kernel_id
        assert kernel_id is not None
        self.attachments.follow(self.record(id, kernel_id, State.STOPPING, reason))
        host = ServerKernelHost(self.kernels)
        host.before_stop = self.attachments.before_stop
        await host.stop(kernel_id)
        self.attachments.follow(self.record(id, kernel_id, State.ENDED, reason))

    def states(self) -> list[str]:
        return [change["state"] for change in self.changes]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in directories(tmp_path).items():
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def desk_at(home: Path, **config: Any) -> AsyncIterator[Desk]:
    async with server_here(home, config) as here, here.front() as front:
        desk = Desk(here, front)
        try:
            yield desk
        finally:
            await desk.attachments.close()
            ours = ("kernels/attach.py", "kernels/remotes.py", "kernels/idle.py")
            assert [task for task in asyncio.all_tasks() if any(file in str(task) for file in ours)] == []


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_at(tmp_path) as made:
        yield made


async def attached(desk: Desk, path: str = "a.ipynb", id: str = "a1") -> tuple[Notebook, Allocation, str]:
    """A notebook with `x = 1` in its local kernel, attached; and the local kernel's id."""
    notebook = await desk.front.open(path)
    await notebook.run(HEAR + "x = 1")
    local = notebook.kernel_id
    allocation = desk.allocations.get(id) or await desk.grant(id)
    await desk.attachments.attach(allocation, session=notebook.session)
    await notebook.on(str(allocation.kernel_id))
    return notebook, allocation, local


async def test_swaps_only_after_what_is_queued_has_run(desk: Desk) -> None:
    notebook = await desk.front.open()
    allocation = await desk.grant()
    await notebook.run("import time; ran = []")
    cells = notebook.run_all([f"time.sleep(0.3); ran.append({i}); print({i})" for i in range(5)])
    await cells[0]
    answer = await desk.attachments.attach(allocation, path="a.ipynb")
    assert answer.public() == {
        "allocation": "a1", "session": notebook.session, "path": "a.ipynb", "state": "waiting",
        "kernel_id": notebook.kernel_id, "local_kernel_id": notebook.kernel_id,
    }  # fmt: skip
    local = notebook.kernel_id
    assert [(await cell).text for cell in cells] == [f"{i}\n" for i in range(5)]
    assert all(cell.kernel_id == local for cell in cells)
    await notebook.on(str(allocation.kernel_id))
    assert (await notebook.run("x = 41; x + 1")).text == "42\n"
    assert "NameError" in str((await notebook.run("ran")).error)
    assert desk.states() == ["waiting", "attached"]
    assert desk.changes[-1]["kernel_id"] == allocation.kernel_id


async def test_a_front_end_that_sends_cell_after_cell_is_not_interrupted(desk: Desk) -> None:
    notebook = await desk.front.open()
    allocation = await desk.grant()
    first = notebook.send("import time; time.sleep(0.5)")
    await desk.attachments.attach(allocation, session=notebook.session)
    await first
    for i in range(20):  # each as soon as the one before is done, as nbclient does
        assert (await notebook.run(f"time.sleep(0.02); print({i})")).text == f"{i}\n"
    await notebook.on(str(allocation.kernel_id))


async def test_detach_returns_to_the_local_kernel_with_its_variables(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    await notebook.run("remote = 1")
    await desk.attachments.detach("a1")
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    assert await notebook.value("heard") == "[{'action': 'stop', 'allocation': 'a1'}]"
    assert desk.states() == ["waiting", "attached", "detached"]
    assert desk.changes[-1]["kernel_id"] == local
    assert allocation.kernel_id in desk.kernels, "the allocation goes on"
    assert desk.released == []
    # ... and back again: what ran there is still there.
    await desk.attachments.attach(allocation, session=notebook.session)
    await notebook.on(str(allocation.kernel_id))
    assert await notebook.value("remote") == "1"


async def test_release_gives_the_notebook_back_before_the_kernel_goes(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    looks: list[str] = []

    async def look() -> (
        None
    ):  # a front end that polls all the time: a server drops the session of a kernel that is gone
        while True:
            looks.extend(model["kernel"]["id"] for model in await desk.sessions.list_sessions())
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await desk.release("a1")
    looking.cancel()
    assert set(looks) == {str(allocation.kernel_id), local}
    assert looks[-1] == local
    assert allocation.kernel_id not in desk.kernels
    await notebook.on(local)
    assert await notebook.value("x") == "1"


async def test_release_while_waiting(desk: Desk) -> None:
    notebook = await desk.front.open()
    await notebook.run(HEAR)
    allocation = await desk.grant()
    cell = notebook.send("import time; time.sleep(1); print('done')")
    await desk.attachments.attach(allocation, session=notebook.session)
    await desk.release("a1")
    assert (await cell).text == "done\n"
    assert await notebook.value("heard") == "[{'action': 'stop', 'allocation': 'a1'}]"
    assert desk.states() == ["waiting", "detached"]
    assert len(notebook.kernels_seen) == 1


async def test_closing_while_a_notebook_is_detached_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    detaching = asyncio.Event()

    class Sessions:
        async def get_session(self, **_: str) -> None:
            detaching.set()
            await asyncio.Event().wait()

    async def release(_: str) -> None: ...

    told: list[str] = []
    attachments = Attachments(Sessions(), {}, release, lambda one: told.append(one.state), logging.getLogger("closing"))
    attachments._all.append(
        Attachment(
            allocation="a",
            session="s",
            path="x.ipynb",
            name="x.ipynb",
            type="notebook",
            local_kernel="local",
            local_kernelspec="python3",
            remote_kernel="remote",
        )
    )
    detach = asyncio.create_task(attachments.detach("a"))
    await detaching.wait()
    await attachments.close()
    await detach
    assert told == ["detached"]
    assert [record for record in caplog.records if record.name == "closing"] == []


async def test_a_remote_kernel_that_dies_gives_the_notebook_back(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    manager = desk.kernels.get_kernel(allocation.kernel_id)
    manager._restarter.restart_limit = 0
    desk.kernels._kernels[allocation.kernel_id].provisioner.process.kill()
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    assert await notebook.value("heard") == "[{'action': 'stop', 'allocation': 'a1', 'reason': 'failed'}]"
    assert notebook.session == (await notebook.model())["id"]
    assert [model["id"] for model in await desk.sessions.list_sessions()] == [notebook.session]


async def test_a_remote_kernel_that_the_server_has_forgotten_already(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    await desk.kernels.shutdown_kernel(allocation.kernel_id)
    assert await desk.sessions.list_sessions() == [], "the server has dropped the session"
    desk.attachments.follow(desk.record("a1", allocation.kernel_id, State.ENDED, EndReason.FAILED))
    await notebook.on(local)
    assert await notebook.value("x") == "1"


async def test_a_notebook_shut_down_while_attached_takes_its_local_kernel_with_it(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    await notebook.shutdown()
    desk.attachments.follow(desk.record("a1", allocation.kernel_id, State.ENDED, EndReason.RELEASED))
    await eventually(lambda: local not in desk.kernels)
    assert desk.kernels.list_kernel_ids() == []
    assert await desk.sessions.list_sessions() == []


async def test_a_notebook_shut_down_while_the_allocation_goes_on_being_stopped(desk: Desk) -> None:
    """`DELETE /api/sessions` shuts the kernel down, which ends its allocation, which gives the notebook back; and only
    then deletes the session."""
    notebook, allocation, local = await attached(desk)
    shutdown = desk.kernels.shutdown_kernel

    async def as_the_provisioner(kernel_id: str, **kwargs: Any) -> None:
        await shutdown(kernel_id, **kwargs)
        if kernel_id == allocation.kernel_id:
            desk.attachments.follow(desk.record("a1", kernel_id, State.STOPPING, EndReason.RELEASED))
            await asyncio.sleep(0.1)

    desk.kernels.shutdown_kernel = as_the_provisioner
    await notebook.shutdown()
    await eventually(lambda: local not in desk.kernels)
    assert await desk.sessions.list_sessions() == []


async def test_a_local_kernel_shut_down_by_somebody_while_parked(desk: Desk) -> None:
    notebook, _, local = await attached(desk)
    await desk.front.api("DELETE", f"api/kernels/{local}", expect=204)
    await desk.release("a1")
    fresh = await notebook.off(str(desk.allocations["a1"].kernel_id))
    assert fresh != local
    assert (await notebook.model())["kernel"]["name"] == "python3"
    assert (await notebook.run("print('alive')")).text == "alive\n"


async def test_another_kernel_chosen_for_an_attached_notebook_is_respected(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    answer = await desk.front.api(
        "PATCH", f"api/sessions/{notebook.session}", {"kernel": {"name": "python3"}}, expect=200
    )
    chosen = answer.json["kernel"]["id"]
    desk.attachments.follow(desk.record("a1", allocation.kernel_id, State.STOPPING, EndReason.RELEASED))
    await notebook.on(chosen)
    await eventually(lambda: local not in desk.kernels)
    assert (await notebook.model())["kernel"]["id"] == chosen


async def test_another_kernel_chosen_while_waiting(desk: Desk) -> None:
    notebook = await desk.front.open()
    allocation = await desk.grant()
    notebook.send("import time; time.sleep(60)")
    await desk.attachments.attach(allocation, session=notebook.session)
    answer = await desk.front.api(
        "PATCH", f"api/sessions/{notebook.session}", {"kernel": {"name": "python3"}}, expect=200
    )
    await eventually(lambda: desk.states() == ["waiting", "detached"])
    assert (await notebook.model())["kernel"]["id"] == answer.json["kernel"]["id"]


async def test_attaching_twice_is_attaching_once(desk: Desk) -> None:
    notebook, allocation, _ = await attached(desk)
    before = desk.states()
    again = await desk.attachments.attach(allocation, session=notebook.session)
    assert again.state == "attached"
    assert again.public()["kernel_id"] == allocation.kernel_id
    assert desk.states() == before
    # Likewise while it waits.
    other = await desk.front.open("b.ipynb")
    other.send("import time; time.sleep(1)")
    first = await desk.attachments.attach(allocation, session=other.session)
    assert await desk.attachments.attach(allocation, path="b.ipynb") is first


async def test_moves_to_another_allocation_and_keeps_its_local_kernel(desk: Desk) -> None:
    notebook, first, local = await attached(desk)
    second = await desk.grant("a2")
    cells = notebook.run_all(["import time; time.sleep(0.5)", "print('not lost')"])
    answer = await desk.attachments.attach(second, session=notebook.session)
    assert answer.local_kernel == local
    assert (await cells[1]).text == "not lost\n"
    await notebook.on(str(second.kernel_id))
    assert notebook.kernels_seen == [local, first.kernel_id, second.kernel_id]
    await eventually(lambda: not desk.attachments.of("a1"))
    await desk.release("a2")
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    assert await notebook.value("[h['allocation'] for h in heard]") == "['a1', 'a2']"
    assert [(change["allocation"], change["state"]) for change in desk.changes] == [
        ("a1", "waiting"), ("a1", "attached"), ("a2", "waiting"), ("a2", "attached"),
        ("a1", "detached"), ("a2", "detached"),
    ]  # fmt: skip


async def test_a_cell_that_is_run_before_the_page_has_moved_is_not_lost(desk: Desk) -> None:
    """It is sent to the allocation that the notebook is about to leave, and runs there."""
    notebook, first, local = await attached(desk)
    second = await desk.grant("a2")
    notebook._poll = 3.0  # as a page that looks every few seconds
    await asyncio.sleep(0.5)  # the look before that
    await desk.attachments.attach(second, session=notebook.session)

    async def at(kernel_id: str | None) -> bool:
        return bool((await notebook.model())["kernel"]["id"] == kernel_id)

    while not await at(second.kernel_id):  # noqa: ASYNC110  (this page hears no events)
        await asyncio.sleep(0.05)
    assert (await notebook.run("import time; time.sleep(4); print('not lost')")).text == "not lost\n"
    await notebook.on(str(second.kernel_id))
    assert notebook.kernels_seen == [local, first.kernel_id, second.kernel_id]
    await eventually(lambda: not desk.attachments.of("a1"))
    assert [one.state for one in desk.attachments.of("a2")] == ["attached"]


async def test_the_allocation_left_ends_while_the_notebook_moves(desk: Desk) -> None:
    notebook, _, local = await attached(desk)
    second = await desk.grant("a2")
    notebook.send("import time; time.sleep(60)")
    await desk.attachments.attach(second, session=notebook.session)
    await desk.release("a1")
    await notebook.on(str(second.kernel_id))
    await desk.release("a2")
    await notebook.on(local)
    assert await notebook.value("x") == "1"


async def test_the_allocation_to_move_to_ends_first(desk: Desk) -> None:
    notebook, first, local = await attached(desk)
    second = await desk.grant("a2")
    cell = notebook.send("import time; time.sleep(1); print('here')")
    await desk.attachments.attach(second, session=notebook.session)
    await desk.release("a2")
    assert (await cell).text == "here\n"
    assert (await notebook.model())["kernel"]["id"] == first.kernel_id
    assert local in desk.kernels
    assert [one.state for one in desk.attachments.of("a1")] == ["attached"]


async def test_a_notebook_shut_down_while_waiting(desk: Desk) -> None:
    notebook = await desk.front.open()
    allocation = await desk.grant()
    notebook.send("import time; time.sleep(60)")
    await desk.attachments.attach(allocation, session=notebook.session)
    await notebook.shutdown()
    await eventually(lambda: desk.states() == ["waiting", "detached"])
    assert allocation.kernel_id in desk.kernels
    assert desk.attachments.of("a1") == []


async def test_a_kernel_restarted_while_waiting(desk: Desk) -> None:
    notebook = await desk.front.open()
    allocation = await desk.grant()
    notebook.send("import time; time.sleep(60)")
    await desk.attachments.attach(allocation, session=notebook.session)
    await asyncio.sleep(0.5)
    await notebook.restart()
    await notebook.on(str(allocation.kernel_id), within=30)
    assert desk.states() == ["waiting", "attached"]


async def test_a_restart_of_the_attached_kernel_changes_nothing(desk: Desk) -> None:
    notebook, allocation, local = await attached(desk)
    await notebook.run("y = 2")
    await notebook.restart()
    assert "NameError" in str((await notebook.run("y")).error)
    assert [one.state for one in desk.attachments.of("a1")] == ["attached"]
    await notebook.run(ASK % "detach")  # heard also from the kernel after the restart
    await notebook.on(local)
    assert allocation.kernel_id in desk.kernels


@pytest.mark.parametrize("action", ["detach", "release"])
async def test_asked_by_the_remote_kernel_itself(desk: Desk, action: str) -> None:
    notebook, allocation, local = await attached(desk)
    cells = notebook.run_all(
        [
            ASK % action + "; import time; time.sleep(0.5); print('asked')",
            "print('queued')",
            "time.sleep(0.2); print('too')",
        ]
    )
    assert [(await cell).text for cell in cells] == ["asked\n", "queued\n", "too\n"]
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    if action == "release":
        await eventually(lambda: desk.allocations["a1"].state is State.ENDED)
        assert desk.released == ["a1"]
        assert allocation.kernel_id not in desk.kernels
    else:
        assert desk.released == []
        assert allocation.kernel_id in desk.kernels


@pytest.mark.parametrize(("more", "released"), [("", ["a1"]), (", 'all': True", ["a1", "a2"])])
async def test_release_all_asked_by_the_remote_kernel(desk: Desk, more: str, released: list[str]) -> None:
    notebook, _, local = await attached(desk)
    await desk.grant("a2")
    await notebook.run((ASK % "release").replace("'release'", f"'release'{more}"))
    await notebook.on(local)
    await eventually(lambda: desk.allocations[released[-1]].state is State.ENDED)
    assert desk.released == released


async def test_more_time_is_given_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was started on its GPUs is heard by its provisioner, too, when another notebook is attached."""
    notebook, allocation, _ = await attached(desk)
    provisioner = desk.kernels.get_kernel(str(allocation.kernel_id)).provisioner
    asks = (ASK % "extend").replace("'extend'", "'extend', 'time': '%s'")
    monkeypatch.setattr(provisioner, "listens", True, raising=False)
    await notebook.run(asks % "1h")
    await asyncio.sleep(0.3)
    assert desk.extended == []
    monkeypatch.setattr(provisioner, "listens", False)
    await notebook.run(asks % "2h")
    await eventually(lambda: desk.extended)
    assert desk.extended == ["a1 by 2h"]


async def test_what_somebody_holds_beside_an_allocation() -> None:
    async with Lab(node("a", 4)) as lab:
        mine, too, other = [await lab.request(owner) for owner in ("me", "me", "somebody else")]
        assert beside(lab.scheduler, mine.id) == [too.id]
        assert beside(lab.scheduler, other.id) == []
        assert beside(lab.scheduler, "unknown") == []
        for one in (mine, too, other):
            await lab.scheduler.release(one.id)
        await eventually(lambda: not lab.scheduler.allocations())


async def test_other_words_from_a_remote_kernel_do_nothing(desk: Desk) -> None:
    notebook, allocation, _ = await attached(desk)
    await notebook.run(ASK % "format-the-disk")
    await notebook.run(
        "from comm import create_comm; create_comm(target_name='jupyter_gpufit', data={'action': ['detach']})"
    )
    await notebook.run("create_comm(target_name='other', data={'action': 'detach'})")
    await asyncio.sleep(0.3)
    assert notebook.kernel_id == allocation.kernel_id
    assert [one.state for one in desk.attachments.of("a1")] == ["attached"]


async def test_several_notebooks_on_one_allocation(desk: Desk) -> None:
    one, _, local_one = await attached(desk, "one.ipynb")
    two, _, local_two = await attached(desk, "two.ipynb")
    await one.run("shared = 1")
    assert await two.value("shared") == "1"
    await desk.release("a1")
    await one.on(local_one)
    await two.on(local_two)
    assert await one.value("x") == await two.value("x") == "1"
    assert desk.attachments.of("a1") == []


async def test_a_parked_local_kernel_is_not_culled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_module, "_PARKED_PERIOD", 0.2)
    culling = {"cull_idle_timeout": 2, "cull_interval": 1}
    async with desk_at(tmp_path, MappingKernelManager=culling) as desk:
        forgotten = await desk.kernels.start_kernel()
        notebook, _, local = await attached(desk)
        await eventually(lambda: forgotten not in desk.kernels)  # the culler works, and has had its chance
        await asyncio.sleep(1.5)
        assert local in desk.kernels
        await desk.attachments.detach("a1")
        await notebook.on(local)
        assert await notebook.value("x") == "1"


async def test_a_renamed_notebook(desk: Desk) -> None:
    notebook, allocation, _ = await attached(desk)
    await desk.front.api(
        "PATCH", f"api/sessions/{notebook.session}", {"path": "sub/b.ipynb", "name": "b.ipynb"}, expect=200
    )
    await desk.attachments.detach("a1")
    assert desk.changes[-1]["path"] == "sub/b.ipynb"
    assert (await notebook.model())["path"] == "sub/b.ipynb"
    await desk.attachments.attach(allocation, path="/sub/b.ipynb")
    await notebook.on(str(allocation.kernel_id))


async def test_what_cannot_be_attached(desk: Desk) -> None:
    notebook, allocation, _ = await attached(desk)
    with pytest.raises(NotFound, match=r"no running notebook 'nowhere\.ipynb'"):
        await desk.attachments.attach(allocation, path="nowhere.ipynb")
    with pytest.raises(InvalidValue, match="by `session`"):
        await desk.attachments.attach(allocation)
    with pytest.raises(InvalidValue, match="by `session`"):
        await desk.attachments.attach(allocation, session=notebook.session, path=notebook.path)
    for over in (State.STOPPING, State.ENDED):
        with pytest.raises(Conflict, match=f"is {over}; attach to another one"):
            await desk.attachments.attach(desk.record("a3", allocation.kernel_id, over), session=notebook.session)
    with pytest.raises(Conflict, match="does not run under this server"):
        await desk.attachments.attach(desk.record("a4", "elsewhere", State.RUNNING), session=notebook.session)
    direct = await desk.front.open("direct.ipynb")
    with pytest.raises(Conflict, match="was started on allocation"):
        await desk.attachments.attach(desk.record("a5", direct.kernel_id, State.RUNNING), session=direct.session)


async def test_closing_in_the_middle_leaves_nothing(desk: Desk) -> None:
    await attached(desk, "one.ipynb")
    second = await desk.grant("a2")
    busy = await desk.front.open("busy.ipynb")
    busy.send("import time; time.sleep(60)")
    await desk.attachments.attach(second, session=busy.session)
    desk.attachments.follow(desk.record("a1", desk.allocations["a1"].kernel_id, State.STOPPING, EndReason.RELEASED))
    await desk.attachments.close()
    # The scheduler closes after us, and stops its kernels.
    await desk.release("a2")
    assert desk.attachments.of("a2") == []


async def test_a_watch_whose_closing_is_cancelled_is_closed(desk: Desk) -> None:
    kernel_id = await desk.kernels.start_kernel()
    watch = KernelWatch(desk.kernels.get_kernel(kernel_id), lambda: True)
    watch.start()
    assert await watch.idle()
    closing = asyncio.create_task(watch.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert watch._client.context.closed


async def test_who_waits_for_a_comm_is_not_told_what_cells_print(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = await desk.front.open()
    asked: list[dict[str, Any]] = []
    topics: list[bytes] = []
    watch = KernelWatch(desk.kernels.get_kernel(notebook.kernel_id), lambda: True, asked.append)
    feed = watch._client.session.feed_identities

    def fed(parts: list[bytes]) -> Any:
        topics.append(parts[0])
        return feed(parts)

    monkeypatch.setattr(watch._client.session, "feed_identities", fed)
    watch.start()
    try:
        while not watch._less:  # until it knows them
            await notebook.run("print('what they are called')")
        for process in range(2):  # another one calls its topics otherwise
            topics.clear()
            await notebook.run("print('x')\ndisplay('y')\n'z'")
            await notebook.run(ASK % "release")
            await eventually(lambda: asked)
            asked.clear()
            assert {topic.partition(b"-")[0] for topic in topics} == {b"comm"}
            assert await watch.idle()
            cell = notebook.send("import time; time.sleep(0.5)")
            assert await watch.idle()
            assert cell.is_done
            if not process:
                await notebook.restart()
                await notebook.reconnect()
    finally:
        await watch.close()


async def test_attaches_that_cross_each_other_end_with_the_last_one(desk: Desk) -> None:
    notebook = await desk.front.open()
    one, other = await desk.grant("a1"), await desk.grant("a2")
    await notebook.run("import time; x = 1")
    local = notebook.kernel_id
    cell = notebook.send("time.sleep(1); print(x)")
    both = [desk.attachments.attach(which, session=notebook.session) for which in (one, other) * 3]
    assert [answer.state for answer in await asyncio.gather(*both)][-1] == "waiting"
    assert (await cell).text == "1\n"
    await notebook.on(str(other.kernel_id))
    assert [(each.allocation, each.state) for each in desk.attachments.of("a1") + desk.attachments.of("a2")] == [
        ("a2", "attached")
    ]
    await desk.attachments.detach("a2")
    await notebook.on(local)
    assert await notebook.value("x") == "1"


# --- before the allocation runs


async def starting(desk: Desk, id: str = "a1") -> str:
    """An allocation that starts, and the kernel that will be its."""
    desk.record(id, None, State.STARTING)
    return str(await desk.kernels.start_kernel())


async def test_attached_before_it_runs(desk: Desk) -> None:
    notebook = await desk.front.open()
    await notebook.run("x = 1")
    local, remote = notebook.kernel_id, await starting(desk)
    answer = await desk.attachments.attach(desk.record("a1", None, State.PENDING), path="a.ipynb")
    assert (answer.public()["state"], answer.public()["kernel_id"]) == ("waiting", local)
    assert [one.public() for one in await desk.attachments.present()] == [answer.public()]
    desk.attachments.follow(desk.record("a1", None, State.STARTING))
    again = await desk.attachments.attach(desk.allocations["a1"], session=notebook.session)
    assert again is answer, "attaching twice is attaching once"
    assert await notebook.value("x") == "1", "until then its own kernel is as ever"
    cells = notebook.run_all(["import time; time.sleep(0.5)", "print('not lost')"])
    desk.attachments.follow(desk.record("a1", remote, State.RUNNING))
    assert (await cells[1]).text == "not lost\n"
    await notebook.on(remote)
    assert notebook.kernels_seen == [local, remote]
    assert desk.states() == ["waiting", "attached"]
    await desk.release("a1")
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    assert await desk.attachments.present() == []


@pytest.mark.parametrize("reason", [EndReason.CANCELLED, EndReason.FAILED])
async def test_it_ends_before_it_runs(desk: Desk, reason: EndReason) -> None:
    notebook = await desk.front.open()
    local = notebook.kernel_id
    await desk.attachments.attach(desk.record("a1", None, State.PENDING), session=notebook.session)
    busy = notebook.send("import time; time.sleep(1); print('done')")
    desk.attachments.follow(desk.record("a1", None, State.ENDED, reason))
    await eventually(lambda: desk.states() == ["waiting", "detached"])
    assert not busy.is_done, "nobody waits for a kernel that need not be told anything"
    assert desk.changes[-1]["kernel_id"] == local
    assert (await busy).text == "done\n"
    assert notebook.kernels_seen == [local]
    assert await desk.attachments.present() == []


async def test_a_notebook_that_was_closed_does_not_come_back_when_the_start_fails(desk: Desk) -> None:
    notebook = await desk.front.open()
    await desk.attachments.attach(desk.record("a1", None, State.STARTING), session=notebook.session)
    await notebook.shutdown()
    desk.attachments.follow(desk.record("a1", None, State.ENDED, EndReason.FAILED))
    await eventually(lambda: desk.states() == ["waiting", "detached"])
    assert await desk.sessions.list_sessions() == []
    assert desk.kernels.list_kernel_ids() == []


@pytest.mark.parametrize("gone", ["shut down", "another kernel"])
async def test_nothing_waits_in_a_queue_for_a_notebook_that_is_gone(desk: Desk, gone: str) -> None:
    """A page would go on saying that it is attached as soon as the allocation runs."""
    notebook = await desk.front.open()
    await desk.attachments.attach(desk.record("a1", None, State.PENDING), session=notebook.session)
    if gone == "shut down":
        await notebook.shutdown()
    else:
        await desk.front.api("PATCH", f"api/sessions/{notebook.session}", {"kernel": {"name": "python3"}}, expect=200)
    await eventually(lambda: desk.states() == ["waiting", "detached"])
    assert await desk.attachments.present() == []


async def test_detached_before_it_runs(desk: Desk) -> None:
    notebook, remote = await desk.front.open(), await starting(desk)
    local = notebook.kernel_id
    await desk.attachments.attach(desk.allocations["a1"], session=notebook.session)
    await desk.attachments.detach("a1")
    assert desk.states() == ["waiting", "detached"]
    desk.attachments.follow(desk.record("a1", remote, State.RUNNING))
    await asyncio.sleep(1.0)  # an idle kernel is found to be idle within this
    assert (await notebook.model())["kernel"]["id"] == local


async def test_stays_where_it_is_until_the_other_runs(desk: Desk) -> None:
    notebook, first, local = await attached(desk)
    remote = await starting(desk, "a2")
    answer = await desk.attachments.attach(desk.allocations["a2"], session=notebook.session)
    assert answer.local_kernel == local
    await notebook.run("y = 2")
    assert notebook.kernel_id == first.kernel_id
    assert [(one.allocation, one.state) for one in await desk.attachments.present()] == [
        ("a1", "attached"),
        ("a2", "waiting"),
    ]
    desk.attachments.follow(desk.record("a2", remote, State.RUNNING))
    await notebook.on(remote)
    assert notebook.kernels_seen == [local, first.kernel_id, remote]
    await eventually(lambda: not desk.attachments.of("a1"))
    await desk.release("a2")
    await notebook.on(local)
    assert await notebook.value("x") == "1"


async def test_the_one_it_is_on_ends_before_the_other_runs(desk: Desk) -> None:
    notebook, _, local = await attached(desk)
    remote = await starting(desk, "a2")
    await desk.attachments.attach(desk.allocations["a2"], session=notebook.session)
    await desk.release("a1")
    await notebook.on(local)
    assert await notebook.value("x") == "1"
    desk.attachments.follow(desk.record("a2", remote, State.RUNNING))
    await notebook.on(remote)


async def test_it_runs_or_ends_while_the_notebook_is_looked_up(desk: Desk) -> None:
    notebook, remote = await desk.front.open(), await starting(desk)
    as_asked = desk.allocations["a1"]
    desk.record("a1", remote, State.RUNNING)  # whose change was told before anybody waited for it
    await desk.attachments.attach(as_asked, session=notebook.session)
    await notebook.on(remote)
    as_asked = desk.record("a2", None, State.STARTING)
    desk.record("a2", None, State.ENDED, EndReason.FAILED)
    with pytest.raises(Conflict, match="is ended"):
        await desk.attachments.attach(as_asked, session=notebook.session)
    assert desk.attachments.of("a2") == []


async def test_a_kernel_that_is_listed_a_moment_later(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, remote = await desk.front.open(), await starting(desk)
    local = notebook.kernel_id
    await desk.attachments.attach(desk.allocations["a1"], session=notebook.session)
    manager = desk.kernels._kernels.pop(remote)
    desk.attachments.follow(desk.record("a1", remote, State.RUNNING))
    await asyncio.sleep(0.3)
    assert desk.states() == ["waiting"]
    desk.kernels._kernels[remote] = manager
    await notebook.on(remote)
    # One that runs elsewhere never is.
    monkeypatch.setattr(attach_module, "_LISTED_WITHIN", 0.1)
    await desk.attachments.attach(desk.record("a2", None, State.STARTING), session=notebook.session)
    desk.attachments.follow(desk.record("a2", "elsewhere", State.RUNNING))
    await eventually(lambda: desk.states()[-1] == "detached")
    assert desk.attachments.of("a2") == []
    assert (await notebook.model())["kernel"]["id"] == remote
    assert local in desk.kernels


async def test_those_that_wait_are_shown_by_the_names_they_have_now(desk: Desk) -> None:
    notebook = await desk.front.open()
    await desk.attachments.attach(desk.record("a1", None, State.PENDING), session=notebook.session)
    renamed = {"path": "sub/b.ipynb", "name": "b.ipynb"}
    await desk.front.api("PATCH", f"api/sessions/{notebook.session}", renamed, expect=200)
    assert [one.path for one in await desk.attachments.present()] == ["sub/b.ipynb"]

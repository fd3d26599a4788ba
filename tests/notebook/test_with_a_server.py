"""The magic in notebooks of a real Jupyter server over simulated nodes: forwarding, then the swap of the session."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpufit.cli.check import FrontEnd, Step
from jupyter_gpufit.cli.demo import DemoServer
from jupyter_gpufit.models import Request
from jupyter_gpufit.notebook.cells import Reply, run_cell
from jupyter_gpufit.notebook.channels import WebSocketChannel
from jupyter_gpufit.notebook.client import Json, RestClient, is_running
from jupyter_gpufit.notebook.forward import Forwarder, Link
from jupyter_gpufit.notebook.messages import Message
from jupyter_gpufit.notebook.outputs import TerminalOutputs
from jupyter_gpufit.notebook.transport import Http

DEADLINE = 60.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    home = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        with DemoServer(home / "work", lab=False) as server:
            yield server


@pytest.fixture
def client(demo: DemoServer) -> Iterator[RestClient]:
    client = RestClient(demo.server)
    yield client
    for allocation in client.allocations():
        client.release(allocation["id"])
    until(lambda: not client.allocations(), "everything is given back")


@pytest.fixture
def notebook(demo: DemoServer, client: RestClient, request: pytest.FixtureRequest) -> Iterator[FrontEnd]:
    with FrontEnd(demo.server, f"{request.node.name}.ipynb") as front_end:
        good(front_end.run("%load_ext jupyter_gpufit\nimport os\nhome = os.getpid()"))
        yield front_end


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, f"it does not come about that {what}"
        time.sleep(0.05)


def good(step: Step) -> str:
    assert step.ok, step
    return step.output


class Everything:
    """What all cells that were sent at once give, as a front end that queues them sees it."""

    def __init__(self, front_end: FrontEnd, cells: list[str]) -> None:
        channel = front_end._follow()
        assert isinstance(channel, WebSocketChannel)
        channel.listen(True)
        self.kernel = front_end.kernel
        sent = [
            channel.send(
                "shell",
                "execute_request",
                {"code": cell, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False},
            )
            for cell in cells
        ]
        self.text = dict.fromkeys(sent, "")
        self.replies: dict[str, Json] = {}
        deadline = time.monotonic() + DEADLINE
        idle: set[str] = set()
        while len(self.replies) < len(sent) or len(idle) < len(sent):
            assert time.monotonic() < deadline, self.text
            message = channel.receive(0.5)
            if message is None or message.parent not in self.text:
                continue
            if message.type == "status" and message.content["execution_state"] == "idle":
                idle.add(message.parent)
            self._take(message)
        channel.listen(False)
        self.outputs = list(self.text.values())
        self.states = [self.replies[request]["status"] for request in sent]

    def _take(self, message: Message) -> None:
        content = message.content
        if message.type == "execute_reply":
            self.replies[message.parent] = content
        elif message.type == "stream":
            self.text[message.parent] += content["text"]
        elif "data" in content:
            self.text[message.parent] += content["data"].get("text/plain", "") + "\n"


def test_run_all_is_forwarded_then_the_session_is_swapped(notebook: FrontEnd, client: RestClient) -> None:
    local = notebook.kernel
    done = Everything(
        notebook,
        [
            "%gpufit request 2 --memory 16GiB --name train",
            "import os; print(os.getpid(), flush=True)",
            "print('home' in globals())",
        ],
    )
    assert done.states == ["ok"] * 3, done.outputs
    remote_pid = int(done.outputs[1].split()[0])
    assert done.outputs[2] == "False\n"
    allocation = client.get("train")
    assert allocation["node"] == "atlas"
    until(lambda: notebook.kernel == allocation["kernel_id"], "the session is swapped")
    # The same kernel, with what the forwarded cells made there.
    assert good(notebook.run("print(os.getpid())")) == f"{remote_pid}\n"
    # The whole notebook again, from the top.
    assert good(notebook.run("%load_ext jupyter_gpufit")) is not None
    assert "nothing to do" in notebook_says(notebook, "%gpufit request 2 --memory 16GiB --name train")
    assert len(client.allocations()) == 1
    assert good(notebook.run("%gpufit release"))
    assert notebook.kernel == local
    assert good(notebook.run("print(os.getpid() == home)")) == "True\n"


def test_cores_and_ram_are_asked_for_shown_and_asked_for_again(notebook: FrontEnd, client: RestClient) -> None:
    asked = "%gpufit request --cpus 1 --ram 2GiB --name sized"
    good(notebook.run(asked))
    allocation = client.get("sized")
    assert (allocation["request"]["cpus"], allocation["request"]["ram"]) == (1, 2 * 2**30)
    until(lambda: notebook.kernel == allocation["kernel_id"], "the session is swapped")
    names = ("GPUFIT_CPUS", "GPUFIT_RAM", "OMP_NUM_THREADS")
    told = notebook_says(notebook, f"import os; print(*(os.environ[name] for name in {names}))")
    assert told.split() == ["1", str(2 * 2**30), "1"]
    again = notebook_says(notebook, asked)
    assert f"already runs on 1 GPU, 1 CPU, 2 GiB RAM on {allocation['node']} ('sized'); nothing to do" in again
    node = next(one for one in client.nodes() if one.name == allocation["node"])
    assert node.cpus is not None
    assert (node.cpus_free, node.ram_free) == (node.cpus - 1, (node.ram or 0) - 2 * 2**30)
    good(notebook.run("%gpufit detach"))
    until(lambda: "True" in notebook.run("print(os.getpid() == home)").output, "cells run in the local kernel")
    assert "1 GPU, 1 CPU, 2 GiB RAM" in notebook.run("%gpufit request --cpus 0.5 --name sized").output, "not that one"
    assert "You hold 'sized': 1 GPU, 1 CPU, 2 GiB RAM" in notebook_says(notebook, asked + " --no-attach")
    assert re.search(r"atlas\s.*1024 asked", notebook_says(notebook, "%gpufit explain --cpus 1024"))
    frame = notebook_says(notebook, "nodes = %gpufit nodes\nprint(nodes.set_index('node').cpus_free.to_dict())")
    assert f"'{node.name}': {node.cpus - 1:g}" in frame


def notebook_says(notebook: FrontEnd, cell: str) -> str:
    """For a cell that does not move the session, although it looks like one that does."""
    done = Everything(notebook, [cell])
    assert done.states == ["ok"], done.outputs
    return done.outputs[0]


def test_run_all_with_a_release_at_its_end_never_leaves_the_local_kernel(
    notebook: FrontEnd, client: RestClient
) -> None:
    local = notebook.kernel
    done = Everything(
        notebook,
        [
            "%gpufit request 1 --memory 1GiB",
            "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
            "%gpufit release",
            "print(home)",
        ],
    )
    assert done.states == ["ok"] * 4, done.outputs
    assert re.fullmatch(r"(GPU|MIG)-\S+\n", done.outputs[1])
    assert done.outputs[3].strip().isdigit()
    assert client.allocations() == []
    assert notebook.kernel == local


def test_detach_in_the_attached_kernel_stops_the_local_kernels_forwarding(
    notebook: FrontEnd, client: RestClient
) -> None:
    local = notebook.kernel
    good(notebook.run("%gpufit request 1 --name side"))
    good(notebook.run("x = 'there'"))
    good(notebook.run("%gpufit detach"))
    assert notebook.kernel == local
    until(lambda: "True" in notebook.run("print(os.getpid() == home)").output, "cells run in the local kernel")
    assert client.get("side")["state"] == "running"
    good(notebook.run("%gpufit attach side"))
    assert good(notebook.run("print(x)")) == "there\n"


def test_an_error_in_a_forwarded_cell_stops_the_others(notebook: FrontEnd) -> None:
    done = Everything(notebook, ["%gpufit request 1", "1 / 0", "never = 1"])
    assert done.states == ["ok", "error", "aborted"]
    error = list(done.replies.values())[1]
    assert error["ename"] == "ZeroDivisionError"


def test_an_interrupt_of_the_notebooks_kernel_reaches_the_remote_one(demo: DemoServer, notebook: FrontEnd) -> None:
    channel = notebook._follow()
    kernel = notebook.kernel
    channel.listen(True)
    content: Json = {"silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    channel.send("shell", "execute_request", {"code": "%gpufit request 1 --name stopped", **content})
    cell = channel.send(
        "shell", "execute_request", {"code": "import time\nprint('on', flush=True)\ntime.sleep(600)", **content}
    )
    deadline = time.monotonic() + DEADLINE
    reply = Reply(status="")
    asked = False
    while not reply.status:
        assert time.monotonic() < deadline
        message = channel.receive(0.5)
        if message is None or message.parent != cell:
            continue
        if message.type == "stream" and not asked:
            asked = True
            Http(demo.server).call("POST", f"api/kernels/{kernel}/interrupt", {})
        if message.type == "execute_reply":
            reply = Reply(status=message.content["status"], error=message.content)
    channel.listen(False)
    assert reply.error is not None
    assert reply.error["ename"] == "KeyboardInterrupt"


def test_a_kernel_that_dies_in_a_forwarded_cell_is_told_in_a_sentence(notebook: FrontEnd, client: RestClient) -> None:
    done = Everything(
        notebook,
        [
            "%gpufit request 1 --name mortal",
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        ],
    )
    assert done.states == ["ok", "error"]
    reply = list(done.replies.values())[1]
    assert reply["ename"] == "AllocationLost", reply
    assert "'mortal'" in reply["evalue"]
    assert "jupyter_gpufit/" not in "\n".join(reply["traceback"])


def test_one_cell_on_gpus_of_its_own(notebook: FrontEnd, client: RestClient) -> None:
    out = good(
        notebook.run(
            "%%gpufit -n 2 --memory 8GiB --push home --pull there\nimport os\nthere = os.getpid()\nprint(home)"
        )
    )
    assert out.splitlines()[-2].strip().isdigit() or "running" in out
    assert good(notebook.run("print(there != home)")) == "True\n"
    assert client.allocations() == []


class Printed(TerminalOutputs):
    """What a cell printed and displayed."""

    allow_stdin = False

    def __init__(self) -> None:
        super().__init__(None)
        self.text = ""

    def stream(self, name: str, text: str) -> None:
        self.text += text

    def display(self, content: Json, *, update: bool = False) -> None:
        self.text += content["data"]["text/plain"]


@pytest.fixture
def shell() -> Any:
    """What forwarding needs of one."""
    return SimpleNamespace(displayhook=SimpleNamespace(prompt_count=1))


@pytest.fixture
def counting(client: RestClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Allocations that the server was asked for."""
    asked: list[str] = []
    get = client.get
    monkeypatch.setattr(client, "get", lambda name: (asked.append(name), get(name))[1])
    return asked


def running(client: RestClient, name: str) -> Json:
    allocation = client.request(Request(gpus=1, name=name))
    while not is_running(allocation):
        allocation = client.changed(allocation["id"], allocation["version"])
    return allocation


def test_each_cell_asks_once_whether_the_allocation_is_there(
    client: RestClient, shell: Any, counting: list[str]
) -> None:
    link = Link(client, running(client, "asked"), shell, Printed())
    try:
        assert link.run("x = 1").status == "ok"
        counting.clear()
        for cell in range(3):
            assert is_running(link.look(anew=True))
            assert is_running(link.look()), "of a moment ago"
            assert link.run("x += 1").status == "ok"
            assert len(counting) == cell + 1
        client.release("asked")  # elsewhere
        assert not is_running(link.look()), "the cell that ran last is no reason to believe that it is there"
    finally:
        link.close()


@pytest.fixture
def forwarding(client: RestClient) -> Iterator[Any]:
    """Runs cells in a kernel without a session, which could not be swapped: its cells are forwarded."""
    http = Http(client.server)
    kernel = http.call("POST", "api/kernels", {"name": "python3"})["id"]
    channel = client.channel({"kernel_id": kernel, "name": "local"})

    def run(code: str) -> tuple[Reply, str]:
        outputs = Printed()
        return run_cell(channel, code, outputs), outputs.text

    run("%load_ext jupyter_gpufit\nhome = 1")
    yield run
    channel.close()
    http.call("DELETE", f"api/kernels/{kernel}")


def test_a_cell_right_after_a_release_elsewhere_runs_in_the_local_kernel(forwarding: Any, client: RestClient) -> None:
    assert forwarding("%gpufit request 1 --name gone")[0].status == "ok"
    assert forwarding("print('home' in globals())")[1] == "False\n"
    client.release("gone")
    reply, said = forwarding("print('home' in globals())")
    assert reply.error is None
    assert said == "'gone' has been released: this notebook's cells run in its local kernel again.\nTrue\n"


def test_forwarded_output_can_be_captured_and_redirected(forwarding: Any) -> None:
    forwarding("%gpufit request 1 --name captured")
    large = "print('a' * 200_000); display({'text/plain': 'b' * 200_000}, raw=True)"
    said = forwarding(f"%%gpufit captured\n{large}")[1]
    assert len(said) == 400_001
    local = "%gpufit detach\n%load_ext jupyter_gpufit"
    assert forwarding(local)[0].error is None
    captured = (
        "from IPython.utils.capture import capture_output\nwith capture_output() as got:\n"
        f"    get_ipython().run_cell_magic('gpufit', 'captured', {large!r})\n"
        "print(len(got.stdout), [len(one.data['text/plain']) for one in got.outputs])"
    )
    assert forwarding(captured)[1] == "200001 [200000]\n"
    redirected = (
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as got:\n"
        f"    get_ipython().run_cell_magic('gpufit', 'captured', {large!r})\nprint(len(got.getvalue()))"
    )
    assert forwarding(redirected)[1] == "b" * 200_000 + "200001\n"


def test_single_cells_share_a_connection_while_it_is_good(client: RestClient, shell: Any) -> None:
    forwarder = Forwarder(shell)
    allocation = running(client, "single")
    link, alone = forwarder.link_to(client, allocation)
    link.outputs = Printed()
    assert alone
    assert link.run("x = 1").status == "ok"
    forwarder.done(link, last=False)
    again, _ = forwarder.link_to(client, allocation)
    assert again is link
    Http(client.server).call("POST", f"api/kernels/{allocation['kernel_id']}/restart", {})
    until(lambda: not link.well, "it is told")
    other, _ = forwarder.link_to(client, allocation)
    other.outputs = Printed()
    assert other is not link
    assert other.run("x").error is not None, "another process, without the variables; and no other trouble"
    forwarder.done(other, last=True)
    assert not other.well
    forwarder.close()


def test_large_and_small_messages_come_whole(client: RestClient) -> None:
    channel = client.channel(running(client, "large"))
    outputs = Printed()
    try:
        code = "print('a' * 900_000)\ndisplay({'text/plain': 'b' * 5_000_000}, raw=True)\nprint('c')\n"
        assert run_cell(channel, code, outputs).status == "ok"
        assert outputs.text == "a" * 900_000 + "\n" + "b" * 5_000_000 + "c\n"
    finally:
        channel.close()


def test_what_there_is(notebook: FrontEnd) -> None:
    assert "atlas" in good(notebook.run("%gpufit"))
    assert good(notebook.run("df = %gpufit nodes\nprint(list(df['node']))")) == "['atlas', 'brook', 'cedar', 'dune']\n"
    assert "23" in good(notebook.run("df = %gpufit gpus\nprint(len(df))"))
    assert good(notebook.run("df = %gpufit allocations\nprint(len(df))")) == "0\n"
    step = notebook.run("%gpufit request 9 --memory 80GiB --no-attach")
    assert not step.ok
    assert re.search(r"brook +✗", step.output)
    assert "could ever give 9 GPUs" in step.output


def test_the_token_is_in_nothing_that_is_shown(demo: DemoServer, notebook: FrontEnd) -> None:
    token = demo.server.token
    assert token
    out = good(
        notebook.run("print(repr(get_ipython()._gpufit.client.server), vars(get_ipython()._gpufit.client._http))")
    )
    assert token not in out
    assert token not in demo.last_words(10_000).replace("\n", "") or "token=" in demo.last_words(10_000)


def test_a_server_without_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnASocket(DemoServer):
        def _command(self) -> list[str]:
            words = [word for word in super()._command() if not word.startswith(("--ServerApp.port", "--ServerApp.ip"))]
            return [*words, f"--ServerApp.sock={tmp_path / 's'}"]

    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    with OnASocket(tmp_path / "work", lab=False) as demo, FrontEnd(demo.server, "x.ipynb") as notebook:
        assert demo.server.socket is not None
        good(notebook.run("%load_ext jupyter_gpufit"))
        done = Everything(notebook, ["%gpufit request 1 --memory 1GiB", "print(6 * 7)", "%gpufit release"])
        assert done.states == ["ok"] * 3, done.outputs
        assert done.outputs[1] == "42\n"


def test_a_panel_takes_the_notebook_along_and_leaves_a_page(notebook: FrontEnd, client: RestClient) -> None:
    """Through the panel itself; what its widgets do is in `test_panel_kernel.py`."""
    local = notebook.kernel
    good(notebook.run("%gpufit panel\npanel = get_ipython()._gpufit._panel_desk._panel"))
    good(notebook.run("panel.edit(gpus='2', memory='16GiB'); panel.request()"))
    until(lambda: [one["state"] for one in client.allocations()] == ["running"], "the request is granted")
    [allocation] = client.allocations()
    seen = "print(panel.shown.dry.text, [row.state for row in panel.shown.rows])"
    until(lambda: "['running']" in good(notebook.run(seen)), "the panel shows it")
    assert re.search(r": 2 × \S+, (tightest of|the only)", good(notebook.run(seen)))
    good(notebook.run(f"panel.attach({allocation['id']!r})"))
    until(lambda: notebook.kernel == allocation["kernel_id"], "the session is swapped")
    assert "works in the local kernel" in notebook.run("%gpufit panel").output
    good(notebook.run("%gpufit release"))
    assert notebook.kernel == local
    left = "import threading; print(panel.closed, [one.name for one in threading.enumerate() if 'panel' in one.name])"
    assert good(notebook.run(left)) == "True []\n"

"""The magic in notebooks of a real Jupyter server over simulated nodes: forwarding, then the swap of the session."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpufit.cli.check import FrontEnd, Step
from jupyter_gpufit.cli.demo import DemoServer
from jupyter_gpufit.notebook.cells import Reply
from jupyter_gpufit.notebook.channels import Message, WebSocketChannel
from jupyter_gpufit.notebook.client import Json, RestClient
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

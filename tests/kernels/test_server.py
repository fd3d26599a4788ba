"""Kernels of a real Jupyter server, over its REST API: start, restart, death, and failure of each.

One server for almost all of it; each test gives back all it took.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.cells import Cell, ready, run_cell
from helpers.jupyter import HttpError, JupyterServer, until

if TYPE_CHECKING:
    from conftest import Cluster  # type: ignore[import-not-found]

WHERE = "import os; print(os.environ['GPUFIT_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"
SECRETS = {"AWS_SECRET_ACCESS_KEY": "hush", "JUPYTERHUB_API_TOKEN": "hush-hush", "MY_SETTING": "hush"}
ALLOCATIONS = "gpufit/api/v1/allocations"
BEFORE: list[str] = []
"""Allocations of the tests before, which the server remembers."""


@pytest.fixture(scope="module")
def running(shared_cluster: Cluster) -> Iterator[JupyterServer]:
    """The server. It stops as it should in the end, whatever it went through."""
    quick = ["--KernelRestarter.time_to_dead=0.5", "--KernelRestarter.restart_limit=3"]
    with JupyterServer(shared_cluster.directory / "root", SECRETS, *quick) as server:
        yield server
    assert "Kernel does not exist" not in server.log  # a start that failed is not among the kernels to shut down


@pytest.fixture
def server(running: JupyterServer, shared_cluster: Cluster) -> Iterator[JupyterServer]:
    """The server, with nothing running before and after."""
    BEFORE[:] = []
    BEFORE[:] = [one["id"] for one in allocations(running, ended=True)]
    yield running
    for session in running.get("api/sessions"):
        running.delete(f"api/sessions/{session['id']}")
    for kernel in running.kernels():
        running.delete(f"api/kernels/{kernel['id']}")
    for one in allocations(running):
        running.delete(f"{ALLOCATIONS}/{one['id']}")
    until(lambda: allocations(running) == [])
    shared_cluster.nothing_left()


def allocations(server: JupyterServer, ended: bool = False) -> list[dict[str, Any]]:
    """Those that this test made."""
    found = server.get(f"{ALLOCATIONS}?ended={int(ended)}")["allocations"]
    return [one for one in found if one["id"] not in BEFORE]


def the_end(server: JupyterServer) -> dict[str, Any]:
    """The one allocation that this test made, once it has ended."""
    [ended] = until(lambda: [one for one in allocations(server, ended=True) if one["state"] == "ended"])
    return dict(ended)


def until_running(server: JupyterServer, made: dict[str, Any]) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        now: dict[str, Any] = server.get(f"{ALLOCATIONS}/{made['id']}")
        assert now["state"] != "ended", now["message"]
        return now if now["state"] == "running" else None

    return dict(until(look))


def pid_of(client: Any) -> int:
    return int(run_cell(client, "import os; os.getpid()").result)


def living_children(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if "State:\tZ" not in Path(f"/proc/{child}/status").read_text()]


# --- what a kernel is


def test_from_the_kernel_picker(server: JupyterServer, shared_cluster: Cluster) -> None:
    (server.root / "data").mkdir()
    kernel = shared_cluster.kernelspec("two", gpus=2, memory="2GiB", node="large")
    session = server.start_session(kernel, "data/notebook.ipynb")
    kernel_id = session["kernel"]["id"]
    with server.client(kernel_id) as client:
        node, uuids = run_cell(client, WHERE).stdout.split()
        assert node == "large"
        assert sorted(uuids.split(",")) == shared_cluster.held()
        assert len(shared_cluster.held()) == 2
    [allocation] = allocations(server)
    assert (allocation["state"], allocation["kernel_id"], allocation["node"]) == ("running", kernel_id, "large")
    assert sorted(allocation["gpus"]) == shared_cluster.held()
    assert allocation["memory"] == [2 * 2**30] * 2
    server.delete(f"api/sessions/{session['id']}")
    assert the_end(server)["reason"] == "released"
    assert shared_cluster.held() == []


def test_it_works_where_its_notebook_is_and_sees_nothing_of_the_server(server: JupyterServer) -> None:
    (server.root / "here").mkdir()
    session = server.start_session("gpufit", "here/notebook.ipynb")
    with server.client(session["kernel"]["id"]) as client:
        told = run_cell(client, "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))").stdout
    cwd, seen = json.loads(told)
    assert cwd == str(server.root / "here")
    assert seen["JPY_SESSION_NAME"].endswith("here/notebook.ipynb")
    assert "JPY_PARENT_PID" not in seen
    assert "hush" not in told
    assert server.token not in told


def test_an_allocation_made_by_rest(server: JupyterServer, shared_cluster: Cluster) -> None:
    made = server.post(ALLOCATIONS, {"gpus": 1, "memory": "4GiB", "name": "train"})
    running = until_running(server, made)
    with server.client(running["kernel_id"]) as client:
        assert run_cell(client, WHERE).stdout.split() == [running["node"], *running["gpus"]]
        assert "'train'" in run_cell(client, "%gpufit").stdout
    server.delete(f"{ALLOCATIONS}/{made['id']}")
    assert the_end(server)["reason"] == "released"
    assert shared_cluster.held() == []
    until(lambda: server.kernels() == [])


def test_shutting_its_kernel_down_releases_an_allocation_made_by_rest(server: JupyterServer) -> None:
    running = until_running(server, server.post(ALLOCATIONS, {"gpus": 1}))
    server.delete(f"api/kernels/{running['kernel_id']}")
    assert the_end(server)["reason"] == "released"


def test_streams_results_errors_input_comms_and_displays(server: JupyterServer) -> None:
    session = server.start_session("gpufit")
    with server.client(session["kernel"]["id"]) as client:
        rich = run_cell(
            client, "from IPython.display import HTML, display; h = display(HTML('<b>1</b>'), display_id=True)"
        )
        assert rich.displays[0]["text/html"] == "<b>1</b>"
        assert "line 2" in run_cell(client, "x = 1\nraise ValueError(x)").traceback.replace("----> ", "line ")
        opened = run_cell(client, "from comm import create_comm; c = create_comm(target_name='t', data={'a': 1})")
        assert opened.comms == [("t", {"a": 1})]
        message = client.execute("print(input('name? ') + '!')", allow_stdin=True)
        asked = client.get_stdin_msg(timeout=30)
        assert asked["content"]["prompt"] == "name? "
        client.input("ada")
        assert Cell.of(client, message).stdout.endswith("ada!\n")
        assert len(run_cell(client, "print('x' * 5_000_000)").stdout) == 5_000_001


def test_the_connection_file_is_for_its_owner_alone(server: JupyterServer, shared_cluster: Cluster) -> None:
    session = server.start_session("gpufit")
    file = shared_cluster.directory / "runtime" / f"kernel-{session['kernel']['id']}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


# --- interrupt, restart, death


WORK = {
    "subprocess": "import subprocess; subprocess.run(['sleep', '600'])",
    "shell": "!sleep 600",
    "workers": """
import multiprocessing, time
workers = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)) for _ in range(2)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
""",
}


@pytest.mark.parametrize("work", WORK)
def test_interrupt_by_rest_reaches_child_processes(server: JupyterServer, work: str) -> None:
    session = server.start_session("gpufit")
    kernel_id = session["kernel"]["id"]
    with server.client(kernel_id) as client:
        pid = pid_of(client)
        message = client.execute(WORK[work])
        until(lambda: living_children(pid))
        server.post(f"api/kernels/{kernel_id}/interrupt")
        cell = Cell.of(client, message)
        assert cell.error.startswith("KeyboardInterrupt") or work == "shell"
        until(lambda: not living_children(pid))
        assert run_cell(client, "6 * 7").result == "42"


def test_restart_by_rest_keeps_node_gpus_and_ports(server: JupyterServer, shared_cluster: Cluster) -> None:
    session = server.start_session("gpufit")
    kernel_id, before = session["kernel"]["id"], shared_cluster.held()
    with server.client(kernel_id) as client:
        where, pid = run_cell(client, WHERE).stdout, pid_of(client)
        run_cell(client, "x = 1")
        for _ in range(2):
            server.post(f"api/kernels/{kernel_id}/restart")
            ready(client)  # the same client goes on: same ports, same keys
            assert run_cell(client, WHERE).stdout == where
            assert run_cell(client, "x").error.startswith("NameError")
            assert "gpufit:" not in run_cell(client, "1").stderr
            after = pid_of(client)
            assert after != pid
            assert not Path(f"/proc/{pid}").exists()
            pid = after
    assert shared_cluster.held() == before
    assert [one["state"] for one in allocations(server)] == ["running"]


def test_a_kernel_that_is_killed_comes_back_on_the_same_gpus_and_says_why(
    server: JupyterServer, shared_cluster: Cluster
) -> None:
    session = server.start_session("gpufit")
    kernel_id, before = session["kernel"]["id"], shared_cluster.held()
    with server.client(kernel_id) as client:
        where, pid = run_cell(client, WHERE).stdout, pid_of(client)
        os.kill(pid, signal.SIGKILL)
        cell = until(lambda: (said := try_cell(client, WHERE)) and said.stdout and said)
        assert cell.stdout == where
        assert "SIGKILL" in cell.stderr
        assert "variables are gone" in cell.stderr
        assert run_cell(client, "1").stderr == ""
    assert shared_cluster.held() == before


def try_cell(client: Any, code: str) -> Cell | None:
    try:
        return run_cell(client, code, timeout=2)
    except queue.Empty:
        return None


@pytest.mark.parametrize("delay", [0.0, 0.4])
def test_a_kernel_is_shut_down_while_it_restarts(server: JupyterServer, delay: float) -> None:
    """Jupyter by itself answers 500, and the kernel goes on."""
    session = server.start_session("gpufit")
    kernel_id = session["kernel"]["id"]
    with server.client(kernel_id) as client:
        os.kill(pid_of(client), signal.SIGKILL)
        until(lambda: "SIGKILL" in server.request("GET", f"api/kernels/{kernel_id}").get("reason", ""))
        time.sleep(delay)
        server.delete(f"api/sessions/{session['id']}")
    assert server.kernels() == []
    assert the_end(server)["reason"] == "released"


def test_a_kernel_that_dies_again_and_again_is_given_up_and_gives_its_gpus_back(
    server: JupyterServer, shared_cluster: Cluster
) -> None:
    server.start_session("gpufit")
    killed: set[int] = set()
    deadline = time.monotonic() + 90
    while server.kernels() and time.monotonic() < deadline:
        for pid in shared_cluster.kernel_pids():
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.2)
    ended = the_end(server)
    assert ended["reason"] == "failed"
    assert "SIGKILL" in ended["message"]
    assert 1 < len(killed) <= 4  # the first, and as many restarts as there may be
    assert server.kernels() == []


def test_a_time_limit_ends_the_kernel(server: JupyterServer, shared_cluster: Cluster) -> None:
    until_running(server, server.post(ALLOCATIONS, {"gpus": 1, "memory": "1GiB", "time": "2s"}))
    assert the_end(server)["reason"] == "expired"
    assert shared_cluster.held() == []
    until(lambda: server.kernels() == [])


def test_release_from_within_a_notebook_that_was_started_on_its_gpus(server: JupyterServer) -> None:
    session = server.start_session("gpufit")
    with server.client(session["kernel"]["id"]) as client:
        assert run_cell(client, "%gpufit release").status == "ok"
    assert the_end(server)["reason"] == "released"
    until(lambda: server.kernels() == [])


def test_release_all_from_within_a_notebook_that_was_started_on_its_gpus(
    server: JupyterServer, shared_cluster: Cluster
) -> None:
    until_running(server, server.post(ALLOCATIONS, {"gpus": 1, "memory": "1GiB"}))
    session = server.start_session("gpufit")
    with server.client(session["kernel"]["id"]) as client:
        assert run_cell(client, "%gpufit release --all").status == "ok"
    until(lambda: shared_cluster.held() == [])
    until(lambda: server.kernels() == [])


# --- starts that fail


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"gpus": "two"}, ["gpus", "str"]),
        ({"gpus": 99}, ["99"]),
        ({"image": "lab/torch"}, ["lab/torch"]),
        ({"node": "nowhere"}, ["nowhere"]),
    ],
)
def test_a_kernel_that_cannot_start_says_why_in_the_dialog(
    server: JupyterServer, shared_cluster: Cluster, config: dict[str, Any], told: list[str]
) -> None:
    with pytest.raises(HttpError) as caught:
        server.start_session(shared_cluster.kernelspec("wrong", **config))
    for part in told:
        assert part in caught.value.body
    assert shared_cluster.held() == []
    assert server.kernels() == []
    assert allocations(server) == []


BROKEN = {
    "ends at once": ("import sys; sys.exit(3)", "exit code 3"),
    "ends after a while": (
        "import sys, time; time.sleep(1); print('no CUDA here', file=sys.stderr); sys.exit(4)",
        "no CUDA here",
    ),
    "never answers": ("import time; time.sleep(600)", "did not answer within 4 s"),
    "image too old": (
        "import sys; print('gpufit: this image is too old', file=sys.stderr); sys.exit(90)",
        "this image is too old",
    ),
    "no such module": ("import nothing_of_that_name", "nothing_of_that_name"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_kernel_that_fails_while_it_starts_leaves_nothing_and_its_log_is_told(
    server: JupyterServer, shared_cluster: Cluster, how: str
) -> None:
    program, told = BROKEN[how]
    broken = shared_cluster.kernelspec("broken", program, start_timeout=4.0)
    with pytest.raises(HttpError) as caught:
        server.start_session(broken)
    assert told in caught.value.body
    ended = the_end(server)
    assert ended["reason"] == "failed"
    assert told in ended["message"]
    assert ended["message"].count("last lines") <= 1
    assert shared_cluster.held() == []
    assert server.kernels() == []
    # The server goes on: the next kernel starts.
    server.start_session("gpufit", "other.ipynb")
    assert len(shared_cluster.held()) == 1


FLAKY = """
import pathlib, runpy, sys
counter = pathlib.Path({counter!r})
count = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(count + 1))
if count:
    print("the second start finds the disk full", file=sys.stderr)
    sys.exit(5)
sys.argv[0] = "ipykernel_launcher"
runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("by", ["death", "REST"])
def test_a_restart_that_fails_gives_the_gpus_back_and_tells(
    server: JupyterServer, shared_cluster: Cluster, tmp_path: Path, by: str
) -> None:
    flaky = shared_cluster.kernelspec("flaky", FLAKY.format(counter=str(tmp_path / "counter")))
    session = server.start_session(flaky)
    kernel_id = session["kernel"]["id"]
    with server.client(kernel_id) as client:
        if by == "death":
            os.kill(pid_of(client), signal.SIGKILL)
        else:
            with pytest.raises(HttpError):
                server.post(f"api/kernels/{kernel_id}/restart")
    ended = the_end(server)
    assert ended["reason"] == "failed"
    assert "disk full" in ended["message"]
    # nobody waits for a kernel that will not come, and nothing is left to shut down
    until(lambda: server.kernels() == [])
    assert shared_cluster.held() == []


# --- the server stops


@pytest.mark.parametrize("moment", ["running", "starting", "restarting"])
def test_a_server_that_stops_takes_its_kernels_along(cluster_here: Cluster, moment: str) -> None:
    slow = cluster_here.kernelspec("slow", "import time; time.sleep(600)")
    with JupyterServer(cluster_here.directory / "root", {}, "--KernelRestarter.time_to_dead=0.2") as server:
        if moment == "starting":
            with pytest.raises(OSError, match=r"timed out"):
                server.post("api/sessions", session_model(slow), timeout=2.0)
        else:
            server.start_session("gpufit")
        assert len(cluster_here.held()) == 1
        if moment == "restarting":
            [pid] = cluster_here.kernel_pids()
            os.kill(pid, signal.SIGKILL)
            until(lambda: cluster_here.kernel_pids() not in ([], [pid]))
    assert cluster_here.held() == []
    assert "InvalidStateError" not in server.log


def session_model(kernel: str) -> dict[str, Any]:
    return {"path": "n.ipynb", "name": "n.ipynb", "type": "notebook", "kernel": {"name": kernel}}

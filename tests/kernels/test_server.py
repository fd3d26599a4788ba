"""Kernels of a real Jupyter server, over its REST API: start, restart, death, and failure of each."""

from __future__ import annotations

import json
import os
import queue
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cells import Cell, run_cell
from helpers.jupyter import HttpError, JupyterServer, until

WHERE = "import os; print(os.environ['GPUFIT_NODE'], os.environ['CUDA_VISIBLE_DEVICES'])"
SECRETS = {"AWS_SECRET_ACCESS_KEY": "hush", "JUPYTERHUB_API_TOKEN": "hush-hush", "MY_SETTING": "hush"}


@pytest.fixture
def server(cluster_file: Path, tmp_path: Path) -> Iterator[JupyterServer]:
    env = SECRETS | {"GPUFIT_GPUS": "2", "GPUFIT_MEMORY": "2GiB", "GPUFIT_NODE": "large"}
    with JupyterServer(tmp_path / "root", env, "--KernelRestarter.time_to_dead=0.5") as server:
        yield server
        assert "Traceback" not in server.log, server.log


def pid_of(client: Any) -> int:
    return int(run_cell(client, "import os; os.getpid()").result)


def allocations(server: JupyterServer, ended: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"gpufit/api/v1/allocations?ended={int(ended)}")["allocations"]
    return found


def the_end(server: JupyterServer) -> dict[str, Any]:
    """The one allocation there was, once it has ended."""
    [ended] = until(lambda: [one for one in allocations(server, ended=True) if one["state"] == "ended"])
    return dict(ended)


def test_from_the_kernel_picker(server: JupyterServer, held: Callable[[], list[str]]) -> None:
    (server.root / "data").mkdir()
    session = server.start_session("gpufit", "data/notebook.ipynb")
    kernel_id = session["kernel"]["id"]
    with server.client(kernel_id) as client:
        node, uuids = run_cell(client, WHERE).stdout.split()
        assert node == "large"
        assert sorted(uuids.split(",")) == held()
        assert len(held()) == 2
        cwd, name, seen = run_cell(
            client, "import json, os; print(os.getcwd(), os.environ['JPY_SESSION_NAME'], json.dumps(dict(os.environ)))"
        ).stdout.split(maxsplit=2)
        assert cwd == str(server.root / "data")
        assert name.endswith("data/notebook.ipynb")
        assert "hush" not in seen
        assert server.token not in seen
        assert "JPY_PARENT_PID" not in seen
    [allocation] = allocations(server)
    assert (allocation["state"], allocation["kernel_id"], allocation["node"]) == ("running", kernel_id, "large")
    assert sorted(allocation["gpus"]) == held()
    server.delete(f"api/sessions/{session['id']}")
    until(lambda: held() == [])
    assert the_end(server)["reason"] == "released"


def test_an_allocation_made_by_rest(server: JupyterServer, held: Callable[[], list[str]]) -> None:
    made = server.post("gpufit/api/v1/allocations", {"gpus": 1, "memory": "4GiB", "name": "train"})
    running = until(lambda: (now := server.get(f"gpufit/api/v1/allocations/{made['id']}"))["state"] == "running" and now)
    with server.client(running["kernel_id"]) as client:
        assert run_cell(client, WHERE).stdout.split() == [running["node"], *running["gpus"]]
        assert "'train'" in run_cell(client, "%gpufit").stdout
    server.delete(f"gpufit/api/v1/allocations/{made['id']}")
    until(lambda: held() == [])
    until(lambda: server.kernels() == [])
    assert server.get(f"gpufit/api/v1/allocations/{made['id']}")["reason"] == "released"


def test_restart_by_rest_keeps_node_gpus_and_ports(server: JupyterServer, held: Callable[[], list[str]]) -> None:
    session = server.start_session("gpufit")
    kernel_id, before = session["kernel"]["id"], held()
    with server.client(kernel_id) as client:
        where, pid = run_cell(client, WHERE).stdout, pid_of(client)
        run_cell(client, "x = 1")
        for _ in range(2):
            server.post(f"api/kernels/{kernel_id}/restart")
            # the same client goes on: same ports, same keys
            client.wait_for_ready(timeout=60)
            assert run_cell(client, WHERE).stdout == where
            assert run_cell(client, "x").error.startswith("NameError")
            assert "gpufit:" not in run_cell(client, "1").stderr
            assert (after := pid_of(client)) != pid
            assert not Path(f"/proc/{pid}").exists()
            pid = after
    assert held() == before
    [allocation] = allocations(server)
    assert allocation["state"] == "running"
    server.delete(f"api/kernels/{kernel_id}")
    until(lambda: held() == [])


def test_a_kernel_that_is_killed_comes_back_on_the_same_gpus_and_says_why(
    server: JupyterServer, held: Callable[[], list[str]]
) -> None:
    session = server.start_session("gpufit")
    kernel_id, before = session["kernel"]["id"], held()
    with server.client(kernel_id) as client:
        where, pid = run_cell(client, WHERE).stdout, pid_of(client)
        os.kill(pid, signal.SIGKILL)
        cell = until(lambda: (said := try_cell(client, WHERE)) and said.stdout and said)
        assert cell.stdout == where
        assert "SIGKILL" in cell.stderr
        assert "variables are gone" in cell.stderr
        assert run_cell(client, "1").stderr == ""
    assert held() == before
    server.delete(f"api/kernels/{kernel_id}")
    until(lambda: held() == [])


def try_cell(client: Any, code: str) -> Cell | None:
    try:
        return run_cell(client, code, timeout=2)
    except queue.Empty:
        return None


def test_a_kernel_that_dies_again_and_again_is_given_up_and_gives_its_gpus_back(
    server: JupyterServer, held: Callable[[], list[str]]
) -> None:
    session = server.start_session("gpufit")
    kernel_id = session["kernel"]["id"]
    for _ in range(20):
        if not server.kernels():
            break
        with server.client(kernel_id, ready=False) as client:
            client.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
            time.sleep(0.6)
    until(lambda: server.kernels() == [])
    until(lambda: held() == [])
    ended = the_end(server)
    assert ended["reason"] == "failed"
    assert "SIGKILL" in ended["message"]


def test_a_time_limit_ends_the_kernel(server: JupyterServer, held: Callable[[], list[str]]) -> None:
    made = server.post("gpufit/api/v1/allocations", {"gpus": 1, "memory": "1GiB", "time": "3s"})
    until(lambda: server.get(f"gpufit/api/v1/allocations/{made['id']}")["state"] == "running")
    until(lambda: server.get(f"gpufit/api/v1/allocations/{made['id']}")["reason"] == "expired")
    until(lambda: held() == [] and server.kernels() == [])


def test_release_from_within_a_notebook_that_was_started_on_its_gpus(
    server: JupyterServer, held: Callable[[], list[str]]
) -> None:
    session = server.start_session("gpufit")
    with server.client(session["kernel"]["id"]) as client:
        cell = run_cell(client, "%gpufit release")
        assert cell.status == "ok"
        until(lambda: held() == [])
        until(lambda: server.kernels() == [])


def test_interrupt_by_rest_reaches_child_processes(server: JupyterServer) -> None:
    session = server.start_session("gpufit")
    kernel_id = session["kernel"]["id"]
    with server.client(kernel_id) as client:
        pid = pid_of(client)
        message = client.execute("import subprocess; subprocess.run(['sleep', '600'])")
        until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())
        server.post(f"api/kernels/{kernel_id}/interrupt")
        assert Cell.of(client, message).error.startswith("KeyboardInterrupt")
        until(lambda: not living_children(pid))


def living_children(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if "State:\tZ" not in Path(f"/proc/{child}/status").read_text()]


def test_a_server_that_stops_takes_its_kernels_along(cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]]) -> None:
    with JupyterServer(tmp_path / "root") as server:
        server.start_session("gpufit")
        assert len(held()) == 1
    assert held() == []
    assert "Traceback" not in server.log, server.log


# --- starts that fail


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"GPUFIT_GPUS": "two"}, ["GPUFIT_GPUS", "'two'"]),
        ({"GPUFIT_GPUS": "99"}, ["99"]),
        ({"GPUFIT_IMAGE": "lab/torch"}, ["lab/torch"]),
        ({"GPUFIT_NODE": "nowhere"}, ["nowhere"]),
    ],
)
def test_a_kernel_that_cannot_start_says_why_in_the_dialog(
    cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]], variables: dict[str, str], told: list[str]
) -> None:
    with JupyterServer(tmp_path / "root", variables) as server:
        with pytest.raises(HttpError) as caught:
            server.start_session("gpufit")
        for part in told:
            assert part in caught.value.body
        assert held() == []
        assert server.kernels() == []
        assert allocations(server) == []
    # ... and it stops as if nothing had been: a start that failed is not among the kernels to shut down
    assert "404" not in server.log
    assert "does not exist" not in server.log


BROKEN = {
    "ends at once": "import sys; sys.exit(3)",
    "ends after a while": "import sys, time; time.sleep(1); print('no CUDA here', file=sys.stderr); sys.exit(4)",
    "never answers": "import time; time.sleep(600)",
    "image too old": "import sys; print('gpufit: this image is too old', file=sys.stderr); sys.exit(90)",
    "no such module": "import nothing_of_that_name",
}


def kernelspec_that(tmp_path: Path, name: str, program: str) -> None:
    """A kernelspec of ours whose kernel is `program`."""
    package = tmp_path / "programs"
    package.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    (package / f"{module}.py").write_text(program)
    spec = json.loads((Path(__file__).parents[2] / "kernelspec" / "kernel.json").read_text())
    spec["argv"] = ["{python}", "-m", module, "-f", "{connection_file}"]
    spec["env"] = {"PYTHONPATH": str(package)}
    spec["metadata"]["kernel_provisioner"]["config"] |= {"start_timeout": 4.0}
    directory = tmp_path / "share" / "kernels" / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps(spec))


@pytest.mark.parametrize("how", BROKEN)
def test_a_kernel_that_fails_while_it_starts_leaves_nothing_and_its_log_is_told(
    cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]], how: str
) -> None:
    kernelspec_that(tmp_path, "broken", BROKEN[how])
    with JupyterServer(tmp_path / "root") as server:
        with pytest.raises(HttpError) as caught:
            server.start_session("broken")
        body = caught.value.body
        told = {
            "ends at once": "exit code 3",
            "ends after a while": "no CUDA here",
            "never answers": "did not answer within 4 s",
            "image too old": "this image is too old",
            "no such module": "nothing_of_that_name",
        }
        assert told[how] in body
        until(lambda: held() == [])
        assert server.kernels() == []
        ended = the_end(server)
        assert ended["reason"] == "failed"
        assert told[how] in ended["message"]
        # The server goes on: the next kernel starts.
        server.start_session("gpufit", "other.ipynb")
        assert len(held()) == 1
    assert "does not exist" not in server.log


FLAKY = """
import os, pathlib, runpy, sys
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
    cluster_file: Path, tmp_path: Path, held: Callable[[], list[str]], by: str
) -> None:
    kernelspec_that(tmp_path, "flaky", FLAKY.format(counter=str(tmp_path / "counter")))
    with JupyterServer(tmp_path / "root", {}, "--KernelRestarter.time_to_dead=0.5") as server:
        session = server.start_session("flaky")
        kernel_id = session["kernel"]["id"]
        with server.client(kernel_id) as client:
            if by == "death":
                os.kill(pid_of(client), signal.SIGKILL)
            else:
                with pytest.raises(HttpError):
                    server.post(f"api/kernels/{kernel_id}/restart")
            until(lambda: held() == [])
        # nobody waits for a kernel that will not come, and nothing is left to shut down
        until(lambda: server.kernels() == [])
        ended = the_end(server)
        assert ended["reason"] == "failed"
        assert "disk full" in ended["message"]


def test_the_connection_file_is_for_its_owner_alone(server: JupyterServer) -> None:
    session = server.start_session("gpufit")
    file = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"kernel-{session['kernel']['id']}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

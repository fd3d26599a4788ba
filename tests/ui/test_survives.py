"""`kill -9` of the Jupyter server under a notebook whose cell is running on an engine, seen in a real browser.

The page is not reloaded: it is left as the person left it, and its server comes back at the same address.
"""

from __future__ import annotations

import pytest
from cluster.engines import Engine
from helpers.browser import LOCAL, REMOTE, Notebook
from helpers.jupyter import JupyterServer
from helpers.machines import containers

# It runs until it is let go, and says so again and again meanwhile.
LONG = """import os, time
print("began", flush=True)
while not os.path.exists("/tmp/go"):
    print(".", end="", flush=True)
    time.sleep(0.2)
print("let go", flush=True)
x + 1"""


@pytest.fixture
def server(engine_server: JupyterServer) -> JupyterServer:
    return engine_server


def test_a_running_cell_survives_kill_9_of_its_server(engine: Engine, notebook: Notebook) -> None:
    server = notebook.server
    notebook.open(
        "long.ipynb", "%load_ext jupyter_gpufit\n%gpufit request 2 --memory 16GiB --name train", "x = 41", LONG
    )
    notebook.run(0)
    notebook.until(lambda: notebook.ran([0]), "the request")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    notebook.run(1)
    notebook.until(lambda: notebook.ran([1]), "the variable")
    notebook.run(2)
    notebook.until(lambda: "began" in notebook.output(2), "the long cell to run")
    [before] = notebook.allocations()
    [session] = server.get("api/sessions")
    held = containers(engine)

    server.kill()
    notebook.page.wait_for_timeout(3000)  # the person's page notices that its server is gone
    notebook.dismiss()
    notebook.picture("killed")
    server.start_again()

    [after] = notebook.allocations()
    assert (after["id"], after["kernel_id"], after["gpus"]) == (before["id"], before["kernel_id"], before["gpus"])
    assert after["state"] == "running"
    assert containers(engine) == held, "the same container"
    [again] = server.get("api/sessions")
    assert (again["id"], again["path"], again["kernel"]["id"]) == (
        session["id"],
        session["path"],
        session["kernel"]["id"],
    )

    def connected() -> bool:
        notebook.dismiss()
        return bool(server.get(f"api/kernels/{after['kernel_id']}")["connections"])

    notebook.until(connected, "the page to be connected again")
    [container] = engine.client().containers.list()
    assert container.exec_run(["touch", "/tmp/go"]).exit_code == 0
    notebook.until(lambda: notebook.ran([2]), "the cell to end")
    assert "let go" in notebook.output(2)
    assert notebook.output(2).rstrip().endswith("42"), "its result, too"
    assert notebook.kernel() == REMOTE
    notebook.picture("survived")
    assert notebook.do("x").strip() == "41"

    notebook.do("%gpufit release")
    notebook.until(lambda: notebook.idle_in(LOCAL), "a kernel of the notebook's own")
    assert notebook.do("6 * 7").strip() == "42"
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    notebook.until(lambda: containers(engine) == [], "the container to be gone")

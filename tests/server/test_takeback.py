"""`kill -9` of a Jupyter server, and the same person's next one at the same address: the notebook just goes on.

Here on simulated GPUs and plain processes; `tests/cluster/test_takeback.py` does it over an engine.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.frontend import FrontEnd, Notebook, eventually
from helpers.person import Person, attached, long_cell, same


@pytest.fixture
def person(tmp_path: Path, simulated: Path) -> Iterator[Person]:
    made = Person(tmp_path, simulated, GPUFIT_CLAIMS_DIR=str(tmp_path / "claims"))
    yield made
    made.check_logs()


async def test_a_running_cell_and_all_around_it_goes_on(person: Person, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    async with person.serve() as first, first.front() as front:
        notebook, made = await attached(front, time="1h", name="train")
        direct = await front.open("direct.ipynb", "gpufit")
        await direct.run("y = 2")
        await notebook.run("x = 41")
        cell = notebook.send(long_cell(str(flag)))
        await eventually(lambda: "began" in cell.text)
        await first.kill()

        async with person.serve() as second:
            # The very first answers have all of it.
            [model] = [one for one in (await front.api("GET", "api/sessions")).json if one["path"] == "a.ipynb"]
            assert (model["id"], model["kernel"]["id"]) == (notebook.session, made["kernel_id"])
            assert model["kernel"]["execution_state"] == "busy"
            assert same(await front.allocation(made["id"]), made)

            flag.touch()
            await cell.done()
            assert "let go" in cell.text
            assert cell.text.endswith("42\n"), cell.text
            assert cell.status == "ok"
            assert await notebook.value("x") == "41"
            assert set(notebook.kernels_seen[1:]) == {made["kernel_id"]}
            assert not notebook.gone
            assert await direct.value("y") == "2", "what was started by the kernel picker, too"

            # It is an ordinary kernel.
            cell = notebook.send("import time; time.sleep(100)")
            await eventually(lambda: _state(front, notebook, "busy"))
            await notebook.interrupt()
            assert "KeyboardInterrupt" in str((await cell).error)
            await eventually(lambda: _state(front, notebook, "idle"))
            await notebook.restart()
            assert "NameError" in str((await notebook.run("x")).error)
            await notebook.run("x = 7")
            await second.kill()

        async with person.serve() as third:  # and again
            assert await notebook.value("x") == "7"
            assert same(await front.allocation(made["id"]), made)

            # Its local kernel died with the first server: it gets a fresh one.
            await front.gpufit("POST", f"allocations/{made['id']}/detach", {}, expect=200)
            await notebook.off(made["kernel_id"])
            assert (await notebook.run("x")).error == "NameError: name 'x' is not defined"
            assert (await notebook.model())["kernel"]["name"] == "python3"

            await direct.shutdown()
            await front.release("train")
            await eventually(lambda: _nothing(front))
            assert "taken back" in third.log


async def test_what_ran_while_nobody_was_there_is_replayed_to_the_tab_that_comes_back(
    person: Person, tmp_path: Path
) -> None:
    """The page's connection is down for longer than the server: what the cell says, and its reply, wait for it."""
    flag = tmp_path / "go"
    async with person.serve() as first, first.front() as front:
        notebook, _ = await attached(front)
        await notebook.run("x = 1")
        cell = notebook.send(long_cell(str(flag)))
        await eventually(lambda: "began" in cell.text)
        notebook.offline = True
        await first.kill()
        async with person.serve():
            flag.touch()
            await eventually(lambda: _state(front, notebook, "idle"))
            assert not cell.is_done
            notebook.offline = False
            await cell.done()
            assert cell.text.endswith("let go\n2\n"), cell.text


async def test_a_notebook_that_was_on_its_way_is_given_the_kernel(person: Person, tmp_path: Path) -> None:
    """Its local kernel, whose end of work the swap waited for, died with the server."""
    async with person.serve() as first, first.front() as front:
        notebook = await front.open("a.ipynb")
        made = await front.request(gpus=1)
        notebook.send("import time; time.sleep(100)")
        await front.gpufit("POST", f"allocations/{made['id']}/attach", {"session": notebook.session}, expect=202)
        await eventually(lambda: notebook.session.encode() in _content(tmp_path / "data" / "gpufit"))
        await first.kill()
        async with person.serve():
            await notebook.on(made["kernel_id"])
            assert await notebook.value("6 * 7") == "42"
            await front.release(made["id"])
            await notebook.off(made["kernel_id"])


async def test_on_stop_keep_and_on_stop_release(person: Person, tmp_path: Path) -> None:
    async with person.serve(GpufitExtension__on_stop="keep") as first, first.front() as front:
        notebook, made = await attached(front)
        await notebook.run("x = 1")
        local = await front.open("local.ipynb")
        file = tmp_path / "runtime" / f"kernel-{notebook.kernel_id}.json"
        key = json.loads(file.read_text())["key"]
        store = tmp_path / "data" / "gpufit"
        assert key.encode() in _content(store)
        assert {path.stat().st_mode & 0o777 for path in store.iterdir()} == {0o600}
        await first.stop()
        async with person.serve() as second:
            await eventually(lambda: not notebook.gone)
            assert same(await front.allocation(made["id"]), made)
            assert await notebook.value("x") == "1"
            assert (await front.api("GET", f"api/sessions/{local.session}")).status == 404, "of a local kernel"
            await second.stop()
            assert list((tmp_path / "claims").glob("*.json")) == [], "by default all is given back"
            assert not file.exists()
            assert key.encode() not in _content(store), "nothing secret is left behind"
    assert all(key not in server.log for server in person.servers)


async def test_a_process_that_died_meanwhile_is_restarted_on_the_same_gpus(person: Person) -> None:
    async with person.serve() as first, first.front() as front:
        notebook, made = await attached(front)
        pid = int(await notebook.value("__import__('os').getpid()"))
        await first.kill()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not psutil.pid_exists(pid))
        async with person.serve():
            cell = await notebook.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
            assert cell.stdout.strip() == made["gpus"][0]
            assert "the kernel before this one ended" in cell.stderr
            await front.release(made["id"])


async def test_a_queued_request_has_its_old_place(person: Person) -> None:
    async with person.serve() as first, first.front() as front:
        holder = await front.request(gpus=4, memory="1GiB", node="large")
        queued = [
            (
                await front.gpufit(
                    "POST", "allocations", {"gpus": 4, "node": "large", "wait": "10m", "name": name}, expect=202
                )
            ).json
            for name in ("one", "two")
        ]
        await first.kill()
        async with person.serve():
            for before in queued:
                now = await front.allocation(before["id"])
                assert (now["state"], now["created"]) == ("pending", before["created"])
            await front.release(holder["id"])
            await front.allocation("one", lambda one: one["state"] == "running")
            assert (await front.allocation("two"))["state"] == "pending"
            await front.release("two")
            await front.release("one")


def _content(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


async def _state(front: FrontEnd, notebook: Notebook, state: str) -> bool:
    model = (await front.api("GET", f"api/kernels/{notebook.kernel_id}", expect=200)).json
    return bool(model["execution_state"] == state)


async def _nothing(front: FrontEnd) -> bool:
    return (await front.gpufit("GET", "allocations", expect=200)).json["allocations"] == []

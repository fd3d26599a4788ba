"""A notebook's local kernel forwards its cells to a real remote kernel: all that a front end gets to see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.notebooks import LocalKernel


@pytest.fixture
def attached(kernel: LocalKernel) -> Iterator[LocalKernel]:
    """A notebook that runs on an allocation called `train`."""
    outcome = kernel.run("%gpufit request 2 --memory 16GiB --name train")
    assert outcome.ok, outcome
    yield kernel
    assert kernel.run("%gpufit release --all").ok


def pid(kernel: LocalKernel) -> int:
    return int(kernel.run("__import__('os').getpid()").value())


def test_cells_after_the_request_run_there_and_after_the_release_here(kernel: LocalKernel) -> None:
    here = pid(kernel)
    kernel.run("kept = 'local'")
    outcome = kernel.run("%gpufit request 2 --memory 16GiB --name train")
    assert outcome.ok, outcome
    assert "this notebook runs on 'train': 2 GPUs with 16 GiB each on n1" in outcome.text()
    assert pid(kernel) != here
    assert kernel.run("kept").reply["ename"] == "NameError"
    assert kernel.run("kept = 'remote'\nkept").value() == "'remote'"
    released = kernel.run("%gpufit release")
    assert released.ok, released
    assert pid(kernel) == here
    assert kernel.run("kept").value() == "'local'"


def test_all_cells_of_run_all_are_queued_at_once(kernel: LocalKernel) -> None:
    here = pid(kernel)
    sent = [
        kernel.send(code)
        for code in ("%gpufit request 1 --name all", "import os; os.getpid()", "%gpufit release", "os = 1")
    ]
    assert kernel.finish(sent[0]).ok
    assert int(kernel.finish(sent[1]).value()) != here
    assert kernel.finish(sent[2]).ok
    assert kernel.finish(sent[3]).ok


def test_streams_arrive_live(attached: LocalKernel, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    request = attached.send(
        "import sys, time, pathlib\nprint('first', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists():\n    time.sleep(0.02)\nprint('last', file=sys.stderr)"
    )
    so_far = attached.finish(request, until=lambda outcome: "first" in outcome.text())
    assert not so_far.idle
    go_on.touch()
    assert attached.finish(request).text("stderr") == "last\n"


def test_displays_keep_their_ids_and_bundles(attached: LocalKernel) -> None:
    outcome = attached.run(
        "from IPython.display import display, HTML, clear_output\n"
        "shown = display(HTML('<b>x</b>'), display_id='some-id')\n"
        "shown.update(HTML('<i>y</i>'))\n"
        "clear_output(wait=True)\n"
        "display({'image/png': 'aGVsbG8=', 'text/plain': 'p'}, raw=True, metadata={'image/png': {'width': 3}})\n"
        "'the result'"
    )
    assert outcome.ok, outcome
    assert [kind for kind, _ in outcome.messages] == [
        "display_data",
        "update_display_data",
        "clear_output",
        "display_data",
        "execute_result",
    ]
    first, second = outcome.of("display_data")
    assert first["data"]["text/html"] == "<b>x</b>"
    assert first["transient"]["display_id"] == "some-id"
    assert outcome.of("update_display_data")[0]["transient"]["display_id"] == "some-id"
    assert outcome.of("clear_output")[0]["wait"] is True
    assert second["data"]["image/png"] == "aGVsbG8="
    assert second["metadata"] == {"image/png": {"width": 3}}
    assert outcome.result == "'the result'"


def test_an_error_is_the_remote_one_and_stops_run_all(attached: LocalKernel) -> None:
    failing = attached.send("def boom():\n    1 / 0\nboom()")
    after = attached.send("never = 1")
    outcome = attached.finish(failing)
    assert outcome.reply["status"] == "error"
    assert outcome.reply["ename"] == "ZeroDivisionError"
    (error,) = outcome.of("error")
    assert error["ename"] == "ZeroDivisionError"
    assert error["evalue"] == "division by zero"
    text = "\n".join(error["traceback"])
    assert "boom" in text
    assert "jupyter_gpufit" not in text
    assert attached.finish(after).reply["status"] == "aborted"
    assert attached.run("never").reply["ename"] == "NameError"


def test_syntax_errors_and_remote_magics_are_the_remote_kernels(attached: LocalKernel) -> None:
    assert attached.run("def (:").reply["ename"] == "SyntaxError"
    assert "Wall time" in attached.run("%%time\nx = 3").text()
    assert attached.run("await __import__('asyncio').sleep(0, 'slept')").value() == "'slept'"


def test_counters_and_history_agree(attached: LocalKernel) -> None:
    outcome = attached.run("6 * 7")
    count = outcome.reply["execution_count"]
    assert outcome.of("execute_result")[0]["execution_count"] == count
    assert attached.run(f"Out[{count}]").value() == "42"
    assert attached.run("_ + 1").value() == "43"
    attached.run("%gpufit detach")
    assert attached.run(f"In[{count}]").value() == "'6 * 7'"
    attached.run("%gpufit attach train")


def test_input_is_asked_of_the_person(attached: LocalKernel) -> None:
    request = attached.send("input('name? ') + '!'", allow_stdin=True)
    outcome = attached.finish(request, answer="Ada")
    assert outcome.asked == [{"prompt": "name? ", "password": False}]
    assert outcome.value() == "'Ada!'"
    request = attached.send("import getpass; len(getpass.getpass('secret? '))", allow_stdin=True)
    outcome = attached.finish(request, answer="four")
    assert outcome.asked == [{"prompt": "secret? ", "password": True}]
    assert outcome.value() == "4"


def test_input_where_nobody_can_be_asked_is_an_error_and_not_a_hang(attached: LocalKernel) -> None:
    assert attached.run("input()").reply["ename"] == "StdinNotImplementedError"


def test_interrupt_stops_the_remote_work_with_its_children(attached: LocalKernel) -> None:
    request = attached.send("import subprocess, time\nprint('on', flush=True)\nsubprocess.run(['sleep', '600'])")
    attached.finish(request, until=lambda outcome: "on" in outcome.text())
    attached.manager.interrupt_kernel()
    outcome = attached.finish(request)
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert attached.run("'alive'").value() == "'alive'"
    children = psutil.Process(attached.manager.provisioner.pid).children(recursive=True)
    assert not [child for child in children if child.name() == "sleep"]


def test_a_second_interrupt_gives_up(attached: LocalKernel) -> None:
    request = attached.send(
        "import time\nprint('on', flush=True)\nend = time.time() + 8\nwhile time.time() < end:\n"
        "    try:\n        time.sleep(0.1)\n    except KeyboardInterrupt:\n        print('no', flush=True)"
    )
    attached.finish(request, until=lambda outcome: "on" in outcome.text())
    attached.manager.interrupt_kernel()
    attached.finish(request, until=lambda outcome: "no" in outcome.text())
    attached.manager.interrupt_kernel()
    outcome = attached.finish(request)
    assert outcome.reply["status"] == "error"
    assert "may still be running" in outcome.reply["evalue"]
    # The next cell waits for the one that still runs, and has only its own output.
    assert attached.run("'next'").value() == "'next'"


def test_much_output_comes_whole_in_few_messages(attached: LocalKernel) -> None:
    outcome = attached.run("for i in range(200_000):\n    print(i)")
    lines = outcome.text().split()
    assert len(lines) == 200_000
    assert lines[-1] == "199999"
    assert len(outcome.of("stream")) < 2_000


def test_a_large_result_comes_through(attached: LocalKernel) -> None:
    outcome = attached.run("from IPython.display import display\ndisplay({'text/html': 'x' * 50_000_000}, raw=True)")
    assert outcome.ok
    assert len(outcome.of("display_data")[0]["data"]["text/html"]) == 50_000_000


def test_a_pager_and_the_next_cells_text(attached: LocalKernel) -> None:
    outcome = attached.run("len?")
    assert outcome.reply["payload"][0]["source"] == "page"
    assert "number of items" in outcome.reply["payload"][0]["data"]["text/plain"]


def test_lines_of_gpufit_stay_here_also_between_others(attached: LocalKernel) -> None:
    outcome = attached.run("a = 20\n%gpufit\nprint(a + 1)\nb = a + 2\nb")
    assert outcome.ok, outcome
    page = outcome.of("display_data")[0]["data"]["text/plain"]
    assert "run on 'train': 2 GPUs with 16 GiB each on n1" in page
    assert "21" in outcome.text()
    assert outcome.result == "22"


def test_what_follows_a_release_in_its_cell_runs_here(kernel: LocalKernel) -> None:
    kernel.run("where = 'here'")
    kernel.run("%gpufit request 1")
    kernel.run("where = 'there'")
    outcome = kernel.run("print(where)\n%gpufit release\nprint(where)\nwhere")
    assert outcome.ok, outcome
    assert [word for word in outcome.text().split() if "here" in word and ":" not in word] == ["there", "here"]
    assert outcome.result == "'here'"


def test_what_front_ends_run_for_themselves_stays_here(attached: LocalKernel) -> None:
    attached.run("mine = 'there'")
    silent = attached.run("mine", silent=True)
    assert silent.reply["status"] == "error"
    assert attached.run("mine", store_history=False).reply["status"] == "error"
    expressions = attached.run("", user_expressions={"x": "1 + 1"}).reply["user_expressions"]
    assert expressions["x"]["data"]["text/plain"] == "2"
    attached.client.is_complete("for x in y:")
    assert attached.client.get_shell_msg(timeout=10)["content"]["status"] == "incomplete"


def test_a_dead_kernel_is_told_in_a_sentence(attached: LocalKernel) -> None:
    outcome = attached.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.reply["ename"] == "AllocationLost"
    assert "the kernel died" in outcome.reply["evalue"]
    assert "'train' on n1" in outcome.reply["evalue"]
    assert "jupyter_gpufit/" not in "\n".join(outcome.reply["traceback"])


def test_a_kernel_that_was_started_anew_does_not_pass_for_the_old_one(attached: LocalKernel) -> None:
    assert attached.run("x = 1").ok
    attached.run("held.restart('train')", silent=True)
    time.sleep(1.5)  # until it is noticed; without that, the cell itself would find out
    outcome = attached.run("x = 2")
    assert outcome.reply["ename"] == "AllocationLost", outcome
    assert "its variables are gone" in outcome.reply["evalue"]
    assert attached.run("x = 3\nx").value() == "3"


def test_an_allocation_that_ended_by_itself_is_an_error_once(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name brief")
    kernel.run(
        "from jupyter_gpufit.models import EndReason; held.end('brief', EndReason.EXPIRED, 'Its 2 h are over.')",
        silent=True,
    )
    outcome = kernel.run("x = 'where'")
    assert outcome.reply["ename"] == "AllocationLost"
    assert "Its 2 h are over" in outcome.reply["evalue"]
    assert kernel.run("'x' in globals() and x").value() == "False"
    assert kernel.run("'held' in globals()").value() == "True"


def test_an_allocation_that_was_released_elsewhere_is_a_remark(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name gone")
    kernel.run("held.release(held.get('gone')['id']); held.changed(held.get('gone')['id'], 0)", silent=True)
    outcome = kernel.run("'held' in globals()")
    assert outcome.value() == "True"
    assert "'gone' has been released" in outcome.text("stderr")


def test_the_server_can_stop_it(attached: LocalKernel) -> None:
    here = int(attached.run("__import__('os').getpid()", silent=False).value())
    identity = attached.run("%gpufit").of("display_data")[0]["data"]["text/plain"]
    assert "run on 'train'" in identity
    session = attached.client.session
    for allocation in ("id-other", None):
        if allocation is None:
            answer = attached.run("", user_expressions={"id": "held.get('train')['id']"}).reply["user_expressions"][
                "id"
            ]
            allocation = answer["data"]["text/plain"].strip("'")
        content = {
            "comm_id": f"comm-{allocation}",
            "target_name": "jupyter_gpufit.local",
            "data": {"action": "stop", "allocation": allocation},
        }
        attached.client.shell_channel.send(session.msg("comm_open", content))
        moved = pid(attached) != here
        assert moved == (allocation != "id-other")
    attached.run("%gpufit attach train")


def test_completion_and_inspection_know_the_names_there(attached: LocalKernel) -> None:
    attached.run("only_there_and_long = 5\ndef documented():\n    'What it does.'")
    for _ in range(10):  # the first answer may come too late, and is then the local kernel's
        matches = attached.client.complete("only_th", reply=True, timeout=30)["content"]["matches"]
        if matches:
            break
    assert matches == ["only_there_and_long"]
    reply = attached.client.inspect("documented", reply=True, timeout=30)["content"]
    assert "What it does." in reply["data"]["text/plain"]
    assert "release" in attached.client.complete("%gpufit rel", reply=True, timeout=30)["content"]["matches"]
    # The local kernel answers for itself where the other one knows nothing, and after a detach.
    reply = attached.client.inspect("LocalSideOnly", reply=True, timeout=30)["content"]
    assert reply["found"] is False
    attached.run("%gpufit detach")
    assert attached.client.complete("only_th", reply=True, timeout=30)["content"]["matches"] == []
    attached.run("%gpufit attach train")


def make_slider(kernel: LocalKernel) -> str:
    """A slider on the allocation; its comm's id."""
    outcome = kernel.run(
        "import ipywidgets\nslider = ipywidgets.IntSlider(3)\n"
        "slider.observe(lambda change: print('moved', change.new), 'value')\nslider"
    )
    assert outcome.ok, outcome
    models = [content for content in outcome.of("comm_open") if content["target_name"] == "jupyter.widget"]
    slider = next(model for model in models if model["data"]["state"].get("_model_name") == "IntSliderModel")
    return str(slider["comm_id"])


def move(kernel: LocalKernel, comm_id: str, value: int, subshell: str | None = None) -> str:
    """What the front end sends when the person moves it; the message's id."""
    content = {"comm_id": comm_id, "data": {"method": "update", "state": {"value": value}, "buffer_paths": []}}
    message = kernel.client.session.msg("comm_msg", content)
    if subshell is not None:
        message["header"]["subshell_id"] = subshell
    kernel.client.shell_channel.send(message)
    return str(message["header"]["msg_id"])


def test_widgets_work_both_ways(attached: LocalKernel) -> None:
    slider = make_slider(attached)
    assert "moved 8" in Waiter(attached, move(attached, slider, 8)).to_idle()
    assert attached.run("slider.value").value() == "8"


def test_a_widget_moved_while_a_cell_runs_disturbs_it_not(attached: LocalKernel, tmp_path: Path) -> None:
    slider = make_slider(attached)
    session = attached.client.session
    attached.client.control_channel.send(session.msg("create_subshell_request"))
    subshell = attached.client.get_control_msg(timeout=30)["content"]["subshell_id"]
    go_on = tmp_path / "go_on"
    cell = attached.send(
        f"import pathlib, time\nprint('on', flush=True)\nwhile not pathlib.Path({str(go_on)!r}).exists():\n"
        "    time.sleep(0.02)\nprint('done')\nslider.value"
    )
    attached.finish(cell, until=lambda outcome: "on" in outcome.text())
    moved = move(attached, slider, 9, subshell)
    time.sleep(0.5)  # the subshell has it
    go_on.touch()
    text, results = "", []
    idle: set[str] = set()
    while idle != {cell, moved}:
        message = attached.client.get_iopub_msg(timeout=30)
        parent = message["parent_header"].get("msg_id")
        if message["msg_type"] == "stream":
            text += message["content"]["text"]
        elif message["msg_type"] == "execute_result":
            results.append(message["content"]["data"]["text/plain"])
        elif (
            message["msg_type"] == "status"
            and message["content"]["execution_state"] == "idle"
            and parent in (cell, moved)
        ):
            idle.add(parent)
    assert "done" in text
    assert "moved 9" in text
    assert results == ["3"]
    assert attached.run("slider.value").value() == "9"
    attached.client.control_channel.send(session.msg("delete_subshell_request", {"subshell_id": subshell}))
    attached.client.get_control_msg(timeout=30)


class Waiter:
    """The streams that one message makes."""

    def __init__(self, kernel: LocalKernel, request: str) -> None:
        self.kernel, self.request = kernel, request

    def to_idle(self) -> str:
        text = ""
        while True:
            message = self.kernel.client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != self.request:
                continue
            if message["msg_type"] == "stream":
                text += message["content"]["text"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return text

"""`%gpufit panel` in a real kernel with real widgets: what a front end would see of them, and send."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from helpers.notebooks import LOAD, LocalKernel, Outcome
from nbconvert import HTMLExporter

VIEW = "application/vnd.jupyter.widget-view+json"
HELPERS = """
import threading
import ipywidgets, ipywidgets.widgets.widget as widget_module
def panel_threads():
    return [thread.name for thread in threading.enumerate() if thread.name == 'gpufit-panel']
def known():
    return set(widget_module._instances)
def panel():
    return get_ipython()._gpufit._panel_desk
def texts():
    return [one.value for one in list(widget_module._instances.values()) if isinstance(one, ipywidgets.HTML)]
ipywidgets.Text(), ipywidgets.Button(), ipywidgets.Checkbox()
before = known()
"""


@pytest.fixture(autouse=True)
def loaded(kernel: LocalKernel) -> Iterator[None]:
    """The magics anew, over a client of their own."""
    assert kernel.run(LOAD + HELPERS).ok
    yield
    assert kernel.run("magics.unload(get_ipython())", silent=True).ok
    assert value(kernel, "panel_threads()") == []


def value(kernel: LocalKernel, expression: str) -> Any:
    """What an expression gives in the local kernel, also while cells are forwarded."""
    reply = kernel.run("", user_expressions={"it": expression}, store_history=False).reply
    answer = reply["user_expressions"]["it"]
    assert answer["status"] == "ok", answer
    return ast.literal_eval(answer["data"]["text/plain"])


def until(kernel: LocalKernel, expression: str) -> Any:
    deadline = time.monotonic() + 30
    while not (found := value(kernel, expression)):
        assert time.monotonic() < deadline, (
            expression,
            value(kernel, "[repr(panel()._panel and panel()._panel.shown)]"),
        )
        time.sleep(0.05)
    return found


def says(kernel: LocalKernel, text: str) -> None:
    """Wait until one of the widgets shows this."""
    until(kernel, f"any({text!r} in shown for shown in texts())")


def opened(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Comm id → state, of the widgets that a cell made."""
    return {one["comm_id"]: one["data"]["state"] for one in outcome.of("comm_open")}


def tell(kernel: LocalKernel, comm_id: str, data: dict[str, Any]) -> None:
    """What a front end sends."""
    client = kernel.client
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm_id, "data": data}))


def write(kernel: LocalKernel, widgets: dict[str, dict[str, Any]], label: str, text: str) -> None:
    comm_id = next(id for id, state in widgets.items() if state.get("description") == label)
    tell(kernel, comm_id, {"method": "update", "state": {"value": text}, "buffer_paths": []})


def click(kernel: LocalKernel, label: str) -> None:
    """The button of that name that is shown."""
    comm_id = value(
        kernel,
        f"[id for id, one in widget_module._instances.items() if isinstance(one, ipywidgets.Button) "
        f"and one.description == {label!r} and one.layout.display != 'none'][0]",
    )
    tell(kernel, comm_id, {"method": "custom", "content": {"event": "click"}})


def test_the_widgets_come_with_a_page_for_where_there_are_none(kernel: LocalKernel) -> None:
    outcome = kernel.run("%gpufit panel")
    assert outcome.ok, outcome
    [shown] = outcome.of("display_data")
    assert shown["data"][VIEW]["model_id"] in opened(outcome)
    for kind in ("text/plain", "text/html"):
        assert "2 nodes, 4 GPUs: 4 idle." in shown["data"][kind]
        assert "You hold no GPUs." in shown["data"][kind]
    assert "unreachable: no route to host" in shown["data"]["text/plain"]
    assert not outcome.text("stderr")
    # As whoever has no kernel sees it (nbconvert, and likewise GitHub).
    cell = nbformat.v4.new_code_cell("%gpufit panel", outputs=[nbformat.v4.new_output("display_data", shown["data"])])
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "<div>You hold no GPUs.</div>" in page


def test_what_is_typed_is_tried_and_what_is_wrong_is_said(kernel: LocalKernel) -> None:
    widgets = opened(kernel.run("%gpufit panel"))
    says(kernel, "n1: 1 GPU")
    write(kernel, widgets, "Memory", "16QiB")
    says(kernel, "&#x27;16QiB&#x27; is not a size of memory")
    write(kernel, widgets, "Memory", "<b>")
    says(kernel, "&#x27;&lt;b&gt;&#x27; is not a size")
    write(kernel, widgets, "Memory", "")
    write(kernel, widgets, "GPUs", "9")
    says(kernel, "4 idle GPUs, 9 asked")
    click(kernel, "Request")
    says(kernel, "No node has that now.")
    assert value(kernel, "any('<b>' in one.replace('<b>This', '') for one in texts())") is False


def test_what_a_subshell_is_told_while_a_cell_runs_counts_at_once(kernel: LocalKernel) -> None:
    """ipykernel may run what widgets are told in another thread, beside a cell."""
    kernel.run("%gpufit panel")
    says(kernel, "n1: 1 GPU")
    outcome = kernel.run(
        "import time\n"
        "field = next(one for one in list(widget_module._instances.values()) if one.__dict__.get('_trait_values', {})"
        ".get('description') == 'GPUs')\n"
        "threading.Thread(target=lambda: field.set_state({'value': '3'})).start()\n"
        "until = time.monotonic() + 30\n"
        "while not any('n1: 3 GPUs' in text for text in texts()) and time.monotonic() < until: time.sleep(0.01)\n"
        "print('seen' if time.monotonic() < until else 'too late')"
    )
    assert outcome.text() == "seen\n", outcome


def test_from_the_buttons_to_a_cell_there_and_back(kernel: LocalKernel) -> None:
    here = kernel.run("import os; os.getpid()").value()
    kernel.run("%gpufit panel")
    says(kernel, "n1: 1 GPU")
    click(kernel, "Request")
    until(kernel, "held.allocations() != []")
    until(kernel, "bool(held.changed('id-1', 0)) and held.get('id-1')['state'] == 'running'")
    says(kernel, "running")
    click(kernel, "Attach")
    says(kernel, "Its local kernel is kept.")
    assert kernel.run("import os; os.getpid()").value() != here
    again = kernel.run("%gpufit panel")
    assert VIEW in again.of("display_data")[0]["data"], "nobody here follows a session: the widgets live on"
    click(kernel, "Detach")
    says(kernel, "cells run in its local kernel.")
    assert kernel.run("os.getpid()").value() == here
    click(kernel, "Release")
    until(kernel, "held.get('id-1')['state'] == 'stopping'")
    until(kernel, "bool(held.changed('id-1', 0)) and held.allocations() == []")
    says(kernel, "ended (released)")
    assert value(kernel, "held.calls") == ["request", "attach", "detach", "release"]


def test_once_more_is_a_second_view_of_the_same(kernel: LocalKernel) -> None:
    first = kernel.run("%gpufit panel")
    count = value(kernel, "len(known())")
    second = kernel.run("%gpufit panel\n%gpufit panel")
    views = [shown["data"][VIEW]["model_id"] for shown in (*first.of("display_data"), *second.of("display_data"))]
    assert len(views) == 3
    assert len(set(views)) == 1
    assert value(kernel, "len(known())") == count
    assert value(kernel, "panel_threads()") == ["gpufit-panel"]


@pytest.mark.parametrize(
    "end",
    [
        "magics.unload(get_ipython())",
        "magics.load(get_ipython())",
        "panel()._view.root.close()",
        "ipywidgets.Widget.close_all()",
        "Close",
    ],
)
def test_nothing_is_left_however_it_ends(kernel: LocalKernel, end: str) -> None:
    kernel.run(
        "events = {name: len(get_ipython().events.callbacks[name]) for name in ('pre_run_cell', 'post_run_cell')}"
    )
    assert kernel.run("%gpufit panel").ok
    assert kernel.run("%gpufit request 1 --no-attach").ok
    says(kernel, "running")
    assert value(kernel, "panel_threads()") == ["gpufit-panel"]
    if end == "Close":
        click(kernel, end)
        until(kernel, "panel_threads() == []")
        assert kernel.run("%gpufit release").ok
    else:
        outcome = kernel.run(end)
        assert outcome.ok, outcome
        [left] = outcome.of("update_display_data")
        assert VIEW not in left["data"]
        assert "The panel is closed." in left["data"]["text/plain"]
        assert "alloc-1" in left["data"]["text/html"]
    until(kernel, "panel_threads() == []")
    assert value(kernel, "len(known() - before)") == 0
    assert value(kernel, "events == {name: len(get_ipython().events.callbacks[name]) for name in events}")


def test_one_that_was_closed_opens_again_with_what_was_written(kernel: LocalKernel) -> None:
    widgets = opened(kernel.run("%gpufit panel"))
    write(kernel, widgets, "GPUs", "3")
    says(kernel, "n1: 3 GPUs")
    for end in ("panel().close()", "panel()._panel.close()"):  # (the latter: it could not be shown any more)
        kernel.run(end)
        again = opened(kernel.run("%gpufit panel"))
        assert [state["value"] for state in again.values() if state.get("description") == "GPUs"] == ["3"]
        assert value(kernel, "panel_threads()") == ["gpufit-panel"]


def test_a_notebook_that_follows_its_session_gets_a_page_in_its_place(kernel: LocalKernel) -> None:
    """As under a Jupyter server: the front end goes to another kernel, where these widgets mean nothing."""
    kernel.run("held.has_session = lambda: True", silent=True)
    assert kernel.run("%gpufit panel").ok
    outcome = kernel.run("%gpufit request 1")
    left = [one for one in outcome.of("update_display_data") if "Its local kernel is kept" in str(one)]
    assert len(left) == 1, outcome
    assert VIEW not in left[0]["data"]
    assert value(kernel, "panel_threads()") == []
    assert value(kernel, "len(known() - before)") == 0
    page = kernel.run("%gpufit panel").of("display_data")[0]["data"]
    assert VIEW not in page
    assert "%gpufit detach" in page["text/plain"]


def test_a_notebook_that_cannot_follow_keeps_its_panel(kernel: LocalKernel) -> None:
    kernel.run(
        "from jupyter_gpufit.errors import GpufitError\n"
        "def refuse(id): raise GpufitError('the server says no')\n"
        "held.has_session, held.attach = lambda: True, refuse",
        silent=True,
    )
    assert kernel.run("%gpufit panel").ok
    outcome = kernel.run("%gpufit request 1")
    assert "the server says no" in outcome.text("stderr")
    assert VIEW in outcome.of("update_display_data")[-1]["data"]
    assert value(kernel, "panel_threads()") == ["gpufit-panel"]

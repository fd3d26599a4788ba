"""What came packed from a remote kernel goes on as it is in a real local kernel; but what captures it there sees it."""

from __future__ import annotations

import pytest
from helpers.notebooks import LocalKernel

SETUP = """
import json
from IPython.utils.capture import capture_output
from jupyter_gpufit.notebook.messages import Message
from jupyter_gpufit.notebook.outputs import KernelOutputs
outputs = KernelOutputs(get_ipython())
def came(kind, **content):
    return Message(channel="iopub", type=kind, body=json.dumps(content).encode())
stream = came("stream", name="stderr", text="s")
shown = came("display_data", data={"text/plain": "d"}, metadata={"m": 1}, transient={"display_id": "i"})
update = came("update_display_data", data={"text/plain": "u"}, metadata={}, transient={"display_id": "i"})
"""


@pytest.fixture
def local(kernel: LocalKernel) -> LocalKernel:
    assert kernel.run(SETUP).ok
    return kernel


def test_it_is_published_as_it_came_and_after_what_was_printed_here(local: LocalKernel) -> None:
    outcome = local.run(
        "print('here', end='')\noutputs.begin()\n"
        "assert all([outputs.relay(shown), outputs.relay(stream), outputs.relay(update)])\n"
        "outputs.stream('stdout', 'e')"
    )
    assert outcome.ok, outcome
    assert outcome.messages == [
        ("stream", {"name": "stdout", "text": "here"}),
        ("display_data", {"data": {"text/plain": "d"}, "metadata": {"m": 1}, "transient": {"display_id": "i"}}),
        ("stream", {"name": "stderr", "text": "s"}),
        ("update_display_data", {"data": {"text/plain": "u"}, "metadata": {}, "transient": {"display_id": "i"}}),
        ("stream", {"name": "stdout", "text": "e"}),
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("caught = capture_output()\ncaught.__enter__()", "caught.__exit__(None, None, None)", (False, False)),
        (
            "hook = lambda message: message\nget_ipython().display_pub.register_hook(hook)",
            "get_ipython().display_pub.unregister_hook(hook)",
            (False, True),
        ),
        (
            "import contextlib, io\nredirect = contextlib.redirect_stderr(io.StringIO())\nredirect.__enter__()",
            "redirect.__exit__(None, None, None)",
            (True, False),
        ),
    ],
    ids=["captured", "hooked", "redirected"],
)
def test_whoever_has_a_hand_in_output_gets_to_see_it(
    local: LocalKernel, before: str, after: str, expected: tuple[bool, bool]
) -> None:
    outcome = local.run(f"{before}\ndid = outputs.relay(shown), outputs.relay(stream)\n{after}\ndid")
    assert outcome.value() == str(expected)

"""Running one remote cell, message by message, on a channel that says what the test wants."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any

import pytest

from jupyter_gpufit.errors import GpufitError
from jupyter_gpufit.notebook import cells
from jupyter_gpufit.notebook.cells import Interrupted, RemoteError, evaluate, run_cell
from jupyter_gpufit.notebook.channels import Channel
from jupyter_gpufit.notebook.messages import KernelGone, Message, pack, unpack

REQUEST = "request-1"
Step = Message | BaseException | None


def said(kind: str, channel: str = "iopub", parent: str = REQUEST, **content: Any) -> Message:
    return Message(channel=channel, type=kind, body=content, parent=parent, id=f"id-{kind}")


def stream(text: str, name: str = "stdout") -> Message:
    return said("stream", name=name, text=text)


REPLY = said("execute_reply", "shell", status="ok", execution_count=3)
IDLE = said("status", execution_state="idle")


class Script:
    """A channel that gives one step after the other; an exception is raised (a Ctrl-C comes while one waits, too)."""

    def __init__(self, *steps: Step, before: tuple[Step, ...] = ()) -> None:
        self.steps: deque[Step] = deque(steps)
        self.before: deque[Step] = deque(before)
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        self.interrupts = 0
        self.listening = self.keep = False
        self.well = True
        self.serving = threading.RLock()
        self.refuses_interrupt = False

    def send(self, channel: str, kind: str, content: dict[str, Any], **more: Any) -> str:
        assert self.listening or kind != "execute_request"
        self.sent.append((channel, kind, content))
        return REQUEST

    def receive(self, timeout: float) -> Message | None:
        steps = self.steps if self.listening else self.before
        if not steps:
            if self.listening:
                raise AssertionError("it waits for ever")
            return None
        step = steps.popleft()
        if isinstance(step, BaseException):
            raise step
        return step

    def listen(self, on: bool) -> None:
        self.listening = on

    def interrupt(self) -> None:
        self.interrupts += 1
        if self.refuses_interrupt:
            raise GpufitError("the server does not answer")

    def close(self) -> None: ...


class Seen:
    """Outputs, as a list."""

    def __init__(
        self, allow_stdin: bool = True, answer: str | BaseException = "answer", *, relays: bool = False
    ) -> None:
        self.allow_stdin = allow_stdin
        self.relays = relays
        self.answer = answer
        self.seen: list[tuple[str, Any]] = []

    def begin(self) -> None: ...

    def stream(self, name: str, text: str) -> None:
        self.seen.append((name, text))

    def display(self, content: dict[str, Any], *, update: bool = False) -> None:
        self.seen.append(("update" if update else "display", content))

    def relay(self, message: Message) -> bool:
        if self.relays:
            self.seen.append(("relay", message.body))
        return self.relays

    def result(self, content: dict[str, Any]) -> None:
        self.seen.append(("result", content))

    def clear(self, wait: bool) -> None:
        self.seen.append(("clear", wait))

    def comm(self, message: Message, channel: Channel) -> None:
        self.seen.append(("comm", message.content["comm_id"]))

    def ask(self, prompt: str, password: bool) -> str:
        self.seen.append(("ask", (prompt, password)))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def payload(self, payload: dict[str, Any]) -> None:
        self.seen.append(("payload", payload))


def test_streams_are_put_together_and_order_is_kept() -> None:
    outputs = Seen()
    channel = Script(
        stream("a"),
        stream("b"),
        stream("c", "stderr"),
        stream("d"),
        said("display_data", data={}),
        stream("e"),
        REPLY,
        IDLE,
    )
    assert run_cell(channel, "x", outputs).count == 3
    assert outputs.seen == [
        ("stdout", "ab"),
        ("stderr", "c"),
        ("stdout", "d"),
        ("display", {"data": {}}),
        ("stdout", "e"),
    ]
    assert channel.listening is False


@pytest.mark.parametrize("relays", [True, False])
def test_a_large_display_is_taken_apart_only_where_it_must_be(relays: bool) -> None:
    large = {"data": {"text/plain": "x" * 100_000}}
    header = {"msg_type": "display_data", "msg_id": "id-1"}
    message = unpack(pack("iopub", header, large, parent={"msg_id": REQUEST}))
    outputs = Seen(relays=relays)
    run_cell(Script(stream("before"), message, stream("after"), REPLY, IDLE), "x", outputs)
    first, shown, last = outputs.seen
    assert (first, last) == (("stdout", "before"), ("stdout", "after"))
    assert shown == (("relay", json.dumps(large).encode()) if relays else ("display", large))


def test_a_stream_that_does_not_end_is_shown_meanwhile() -> None:
    outputs = Seen()
    run_cell(Script(stream("a"), None, stream("b"), REPLY, IDLE), "x", outputs)
    assert outputs.seen == [("stdout", "a"), ("stdout", "b")]


def test_large_pieces_are_not_put_together() -> None:
    outputs = Seen()
    run_cell(Script(stream("a" * 700_000), stream("b" * 700_000), REPLY, IDLE), "x", outputs)
    assert [len(text) for _, text in outputs.seen] == [700_000, 700_000]


def test_what_belongs_to_others_is_not_shown() -> None:
    outputs = Seen()
    run_cell(Script(said("stream", parent="other", name="stdout", text="no"), REPLY, IDLE), "x", outputs)
    assert outputs.seen == []


def test_the_reply_may_come_after_the_end_of_the_output() -> None:
    assert run_cell(Script(IDLE, None, REPLY), "x", Seen()).count == 3


@pytest.mark.parametrize("only", [REPLY, IDLE])
def test_when_one_half_of_the_end_is_lost_it_is_not_waited_for_for_ever(
    only: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_TAIL", -1.0)
    assert run_cell(Script(only, None), "x", Seen()).status == "ok"


def test_an_error_whose_reply_is_lost_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_TAIL", -1.0)
    reply = run_cell(Script(said("error", ename="KeyboardInterrupt"), IDLE, None), "x", Seen())
    assert (reply.status, reply.error) == ("error", {"ename": "KeyboardInterrupt"})


def test_a_kernel_that_is_shut_down_while_the_cell_runs_is_gone() -> None:
    outputs = Seen()
    goes = said("shutdown_reply", parent="other", status="ok", restart=False)
    with pytest.raises(KernelGone, match="shut down while the cell ran"):
        run_cell(Script(stream("a"), goes), "x", outputs)
    assert outputs.seen == [("stdout", "a")]


def test_an_error_is_in_the_reply() -> None:
    failed = said("execute_reply", "shell", status="error", ename="KeyError", evalue="'x'", traceback=["line"])
    reply = run_cell(Script(said("error", ename="KeyError"), failed, IDLE), "x", Seen())
    assert reply.error is not None
    error = RemoteError.make(reply.error)
    assert (type(error).__name__, str(error), error._render_traceback_()) == ("KeyError", "'x'", ["line"])
    assert RemoteError.make({"ename": "not a name"})._render_traceback_() == ["RemoteError: "]


def test_a_first_interrupt_is_passed_on_and_the_end_waited_for() -> None:
    channel = Script(KeyboardInterrupt(), stream("cleaning up"), REPLY, IDLE)
    outputs = Seen()
    assert run_cell(channel, "x", outputs).status == "ok"
    assert channel.interrupts == 1
    assert outputs.seen == [("stdout", "cleaning up")]


def test_a_second_interrupt_gives_up() -> None:
    channel = Script(stream("a"), KeyboardInterrupt(), None, KeyboardInterrupt())
    outputs = Seen()
    with pytest.raises(Interrupted, match="may still be running"):
        run_cell(channel, "x", outputs)
    assert channel.interrupts == 1
    assert outputs.seen == [("stdout", "a")]
    assert channel.listening is False


def test_an_interrupt_that_cannot_be_passed_on_is_said() -> None:
    channel = Script(KeyboardInterrupt(), REPLY, IDLE)
    channel.refuses_interrupt = True
    outputs = Seen()
    run_cell(channel, "x", outputs)
    assert outputs.seen == [("stderr", "cannot interrupt the remote kernel: the server does not answer\n")]


def test_input_is_answered() -> None:
    channel = Script(stream("a"), said("input_request", "stdin", prompt="? ", password=True), REPLY, IDLE)
    outputs = Seen(answer="secret")
    run_cell(channel, "x", outputs)
    assert outputs.seen == [("stdout", "a"), ("ask", ("? ", True))]
    assert channel.sent[-1] == ("stdin", "input_reply", {"value": "secret", "status": "ok"})


def test_an_interrupt_instead_of_an_answer_interrupts_there() -> None:
    channel = Script(said("input_request", "stdin", prompt="", password=False), REPLY, IDLE)
    run_cell(channel, "x", Seen(answer=KeyboardInterrupt()))
    assert channel.interrupts == 1
    assert "input_reply" not in [kind for _, kind, _ in channel.sent]


@pytest.mark.parametrize("state", ["restarting", "dead"])
def test_a_kernel_that_dies(state: str) -> None:
    outputs = Seen()
    with pytest.raises(KernelGone, match="died while the cell ran"):
        run_cell(Script(stream("last words"), said("status", parent="", execution_state=state)), "x", outputs)
    assert outputs.seen == [("stdout", "last words")]


def test_a_kernel_that_died_before() -> None:
    channel = Script(before=(said("status", parent="", execution_state="restarting"),))
    with pytest.raises(KernelGone, match="since the last cell"):
        run_cell(channel, "x", Seen())
    assert channel.sent == []


def test_a_lost_connection() -> None:
    outputs = Seen()
    with pytest.raises(KernelGone, match="the wire"):
        run_cell(Script(stream("a"), KernelGone("the wire")), "x", outputs)
    assert outputs.seen == [("stdout", "a")]


def test_comms_of_others_are_passed_on_and_our_own_is_a_wish() -> None:
    outputs = Seen()
    own = said("comm_open", target_name="jupyter_gpufit", data={"action": "release"}, comm_id="own")
    reply = run_cell(Script(said("comm_msg", parent="other", comm_id="c1", data={}), own, REPLY, IDLE), "x", outputs)
    assert outputs.seen == [("comm", "c1")]
    assert reply.wish == "release"


def test_hidden_code_is_silent_and_its_errors_are_raised() -> None:
    answered = said(
        "execute_reply",
        "shell",
        status="ok",
        user_expressions={"a": {"status": "ok", "data": {"text/plain": "42"}}},
    )
    channel = Script(answered, IDLE)
    assert evaluate(channel, "code", Seen(), {"a": "6 * 7"}) == {"a": "42"}
    content = channel.sent[0][2]
    assert (content["silent"], content["store_history"], content["allow_stdin"]) == (True, False, False)
    broken = said(
        "execute_reply", "shell", status="ok", user_expressions={"a": {"status": "error", "ename": "NameError"}}
    )
    with pytest.raises(RemoteError) as raised:
        evaluate(Script(broken, IDLE), "code", Seen(), {"a": "x"})
    assert type(raised.value).__name__ == "NameError"


def test_whether_one_can_be_asked_is_told_to_the_kernel() -> None:
    channel = Script(REPLY, IDLE)
    run_cell(channel, "x", Seen(allow_stdin=False))
    assert channel.sent[0][2]["allow_stdin"] is False


# --- the wire


def test_frames_are_what_jupyter_server_reads_and_writes() -> None:
    from jupyter_client.session import Session
    from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1

    session = Session(key=b"")
    message = session.msg("stream", {"text": "ü", "name": "stdout"})
    frame = serialize_msg_to_ws_v1(message, "iopub", session.pack)
    read = unpack(frame)
    assert (read.channel, read.type, read.content, read.id) == (
        "iopub",
        "stream",
        {"text": "ü", "name": "stdout"},
        message["header"]["msg_id"],
    )
    header = {"msg_id": "m", "msg_type": "comm_msg"}
    frame = pack("shell", header, {"data": 1}, parent={"msg_id": "p"}, metadata={"k": 2}, buffers=[b"\0\1", b""])
    channel, parts = deserialize_msg_from_ws_v1(frame)
    assert channel == "shell"
    assert [bytes(part) for part in parts[4:]] == [b"\0\1", b""]
    again = unpack(frame)
    assert (again.parent, again.metadata, again.content, again.buffers) == ("p", {"k": 2}, {"data": 1}, (b"\0\1", b""))


@pytest.mark.parametrize("frame", [b"", b"\x05", b"\xff" * 16, pack("shell", {"msg_type": "x"}, {})[:60]])
def test_a_broken_frame_is_an_error_that_the_reader_can_tell(frame: bytes) -> None:
    with pytest.raises(ValueError, match="not a kernel message"):
        unpack(frame)

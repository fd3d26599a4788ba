"""Run one cell in a remote kernel, from the local kernel's main thread, as if it ran here.

Streams live and coalesced, rich displays with their ids, `clear_output`, results, widgets' comms, `input()`; an error
there is raised here with the remote traceback, so that *Run All* stops as it would for a local one. A KeyboardInterrupt
here interrupts there and waits for the end; a second one gives up waiting.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct

from ..errors import GpufitError
from .channels import Channel
from .messages import DISPLAYS, KernelGone, Message
from .outputs import Outputs

__all__ = ["Interrupted", "RemoteError", "Reply", "evaluate", "run_cell", "serve"]

_STEP = 0.25  # s; how often the main thread wakes while nothing comes
_TAIL = 5.0  # s; how long after the reply the cell's last output may be silent before we stop waiting for it
_SHOW = 0.05  # s; output is shown at most this often, so that a flood costs bandwidth and not messages
_SHOW_CHARS = 2**20  # of one stream message
_OWN_TARGET = "jupyter_gpufit"
_RELAYED = (*DISPLAYS, "stream")


class RemoteError(Exception):
    """A remote cell raised. Raised as a subclass that has the remote exception's name, and shown with its traceback."""

    def __init__(self, evalue: str, traceback: list[str]) -> None:
        super().__init__(evalue)
        self._traceback = traceback

    @classmethod
    def make(cls, content: dict[str, Any]) -> RemoteError:
        """From the content of an `error` message, or of a reply that has status `error`."""
        name = str(content.get("ename") or "RemoteError")
        kind = type(name if name.isidentifier() else "RemoteError", (cls,), {})
        error: RemoteError = kind(
            str(content.get("evalue") or ""), [str(line) for line in content.get("traceback") or []]
        )
        return error

    def _render_traceback_(self) -> list[str]:
        """Called by IPython: what to show instead of a local traceback, whose frames mean nothing to the person."""
        return self._traceback or [f"{type(self).__name__}: {self}"]


class Interrupted(KeyboardInterrupt):
    """The person interrupted twice: the cell may still run there, and nobody waits for it."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class Reply(Struct, kw_only=True):
    """How a remote cell ended."""

    status: str = "ok"
    """`ok`, `error`, or `aborted` (a cell before it, by the same sender, failed)."""
    count: int | None = None
    """Its execution count there."""
    expressions: dict[str, Any] = {}
    """Answers to the user expressions."""
    error: dict[str, Any] | None = None
    """`ename`, `evalue`, `traceback`."""
    wish: str | None = None
    """`detach`, `release` or `release --all`, if the cell used the `%gpufit` of the kernel there."""


def run_cell(
    channel: Channel,
    code: str,
    outputs: Outputs,
    *,
    silent: bool = False,
    store_history: bool = True,
    expressions: dict[str, str] | None = None,
) -> Reply:
    """Run `code` and show what it does on `outputs`, until it has ended. An error in it is in the reply, not raised.

    Raises `KernelGone` if the kernel dies, and `Interrupted` at the second KeyboardInterrupt.
    """
    content = {
        "code": code,
        "silent": silent,
        "store_history": store_history and not silent,
        "user_expressions": expressions or {},
        "allow_stdin": outputs.allow_stdin and not silent,
        "stop_on_error": True,
    }
    return serve(channel, "execute_request", content, outputs)


def evaluate(channel: Channel, code: str, outputs: Outputs, expressions: dict[str, str]) -> dict[str, str]:
    """Run `code` there, hidden and outside the history, then give the text (`repr`) of each of `expressions`.

    Raises `RemoteError`, `KernelGone` or `Interrupted`. Called for push and pull.
    """
    reply = run_cell(channel, code, outputs, silent=True, expressions=expressions)
    if reply.error is not None:
        raise RemoteError.make(reply.error)
    texts = {}
    for name, answer in reply.expressions.items():
        if answer.get("status") != "ok":
            raise RemoteError.make(answer)
        texts[name] = str(answer["data"]["text/plain"])
    return texts


def serve(channel: Channel, kind: str, content: dict[str, Any], outputs: Outputs, **more: Any) -> Reply:
    """Send a message of that kind to the shell channel, and show what it does, until the kernel is idle again.

    Raises `KernelGone` and `Interrupted` like `run_cell`. Also called for widgets (`comms.py`), whose messages get
    no reply.
    """
    with channel.serving:
        # What is left to read is of a cell that was given up on.
        while (message := channel.receive(0)) is not None:
            if message.tells_death:
                raise KernelGone("the kernel died since the last cell")
        channel.listen(True)
        outputs.begin()
        try:
            request = channel.send("shell", kind, content, **more)
            return _Run(channel, request, outputs, None if kind == "execute_request" else Reply()).to_the_end()
        finally:
            channel.listen(False)


class _Run:
    def __init__(self, channel: Channel, request: str, outputs: Outputs, reply: Reply | None) -> None:
        self._channel = channel
        self._request = request
        self._outputs = outputs
        self._reply = reply
        self._error: dict[str, Any] | None = None
        self._idle = False
        self._interrupts = 0
        self._stream: tuple[str, list[str]] | None = None
        self._stream_since = 0.0
        self._stream_chars = 0
        self._asked: Message | None = None
        self._wish: str | None = None

    def to_the_end(self) -> Reply:
        heard = time.monotonic()
        while not (self._idle and self._reply is not None):
            try:
                if self._asked is not None:
                    self._answer(self._asked)
                message = self._channel.receive(self._patience())
                if message is not None:
                    self._handle(message)
                    heard = time.monotonic()
                if self._stream is not None and (message is None or time.monotonic() - self._stream_since >= _SHOW):
                    self._show_stream()
                if (self._idle or self._reply is not None) and time.monotonic() - heard > _TAIL:
                    break  # the other one was lost on the way: a KeyboardInterrupt can strike between any two lines
            except KeyboardInterrupt:
                self._interrupt()
            except KernelGone:
                self._show_stream()
                raise
        self._show_stream()
        reply = self._reply or Reply(status="ok" if self._error is None else "error")
        if reply.error is None and reply.status == "error":
            reply.error = self._error or {}
        reply.wish = self._wish
        return reply

    def _patience(self) -> float:
        if self._stream is None:
            return _STEP
        return max(0.0, self._stream_since + _SHOW - time.monotonic())

    def _handle(self, message: Message) -> None:
        if message.tells_death:
            raise KernelGone("the kernel died while the cell ran")
        if message.tells_shutdown:
            # It interrupts the cell and goes, and answers nothing any more.
            raise KernelGone("the kernel was shut down while the cell ran")
        if message.type == "comm_open" and message.content.get("target_name") == _OWN_TARGET:
            data = message.content.get("data") or {}
            self._wish = str(data.get("action")) + (" --all" if data.get("all") else "")
            return
        if message.channel == "iopub" and message.type.startswith("comm_"):
            # Also those that answer another request, such as a widget's callback on a thread.
            self._show_stream()
            self._outputs.comm(message, self._channel)
            return
        if message.parent != self._request:
            return
        if message.channel == "iopub" and isinstance(message.body, bytes) and message.type in _RELAYED:
            self._show_stream()
            if self._outputs.relay(message):
                return
        content = message.content
        if message.channel == "iopub":
            self._handle_output(message.type, content)
        elif message.channel == "stdin" and message.type == "input_request":
            self._asked = message
        elif message.channel == "shell" and message.type == "execute_reply":
            status = str(content.get("status", "ok"))
            self._reply = Reply(
                status=status,
                count=content.get("execution_count"),
                expressions=content.get("user_expressions") or {},
                error=content if status == "error" else None,
            )
            if status == "ok":
                for payload in content.get("payload") or []:
                    self._show_stream()
                    self._outputs.payload(payload)

    def _handle_output(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            name, text = str(content.get("name", "stdout")), str(content.get("text", ""))
            if self._stream is not None and (self._stream[0] != name or self._stream_chars + len(text) > _SHOW_CHARS):
                self._show_stream()
            if self._stream is None:
                self._stream, self._stream_since, self._stream_chars = (name, []), time.monotonic(), 0
            self._stream[1].append(text)
            self._stream_chars += len(text)
            return
        self._show_stream()
        if kind == "status":
            if content.get("execution_state") == "idle":
                self._idle = True
        elif kind == "display_data":
            self._outputs.display(content)
        elif kind == "update_display_data":
            self._outputs.display(content, update=True)
        elif kind == "execute_result":
            self._outputs.result(content)
        elif kind == "clear_output":
            self._outputs.clear(bool(content.get("wait")))
        elif kind == "error":
            self._error = content

    def _answer(self, asked: Message) -> None:
        self._show_stream()
        value = self._outputs.ask(str(asked.content.get("prompt", "")), bool(asked.content.get("password")))
        self._asked = None
        self._channel.send("stdin", "input_reply", {"value": value, "status": "ok"}, parent={"msg_id": asked.id})

    def _interrupt(self) -> None:
        """The person pressed Ctrl-C, or the stop button."""
        self._asked = None
        self._interrupts += 1
        if self._interrupts > 1:
            self._show_stream()
            raise Interrupted(
                "stopped waiting; the cell may still be running on the allocation (%gpufit release ends it)"
            ) from None
        try:
            self._channel.interrupt()
        except KeyboardInterrupt:
            self._interrupt()
        except GpufitError as problem:
            self._outputs.stream("stderr", f"cannot interrupt the remote kernel: {problem}\n")

    def _show_stream(self) -> None:
        if self._stream is not None:
            (name, texts), self._stream = self._stream, None
            self._outputs.stream(name, "".join(texts))

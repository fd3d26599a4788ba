"""Where the output of a remote cell goes: into the local cell that sent it, as if it had been made there.

KernelOutputs     in an ipykernel: published on its iopub channel, mime bundles and display ids as they are
TerminalOutputs   in terminal IPython: printed
"""

from __future__ import annotations

import builtins
import getpass
import sys
from typing import Any, Protocol

from .channels import Channel
from .messages import Message

__all__ = ["KernelOutputs", "Outputs", "TerminalOutputs", "outputs_of"]


class Outputs(Protocol):
    """What a remote cell can do to the local notebook."""

    @property
    def allow_stdin(self) -> bool:
        """Whether whoever sent the local cell can be asked for input."""

    def begin(self) -> None:
        """What comes now follows what has been printed here."""

    def stream(self, name: str, text: str) -> None:
        """Print `text` on `stdout` or `stderr`."""

    def display(self, content: dict[str, Any], *, update: bool = False) -> None:
        """Content of a `display_data` or `update_display_data` message."""

    def relay(self, message: Message) -> bool:
        """Publish a display, or a large piece of a stream, as it came; false if it has to be taken apart."""

    def result(self, content: dict[str, Any]) -> None:
        """Content of an `execute_result` message."""

    def clear(self, wait: bool) -> None:
        """Clear the local cell's output."""

    def comm(self, message: Message, channel: Channel) -> None:
        """Pass a widget's message (`comm_…`) on to the front end, and what that answers to `channel`."""

    def ask(self, prompt: str, password: bool) -> str:
        """Ask the person; may raise KeyboardInterrupt."""

    def payload(self, payload: dict[str, Any]) -> None:
        """A pager's content, or text for the next cell."""


_Way = tuple[Any, Any, Any, bytes]
"""Session, socket, parent and topic of what is published; none where something (`%%capture`, an Output widget) has put
itself in the place of who publishes, or into its hooks."""


def outputs_of(shell: Any) -> Outputs:
    """The right one for the local `shell`."""
    return KernelOutputs(shell) if hasattr(shell, "kernel") else TerminalOutputs(shell)


def _ask(prompt: str, password: bool) -> str:
    # Both are ipykernel's own while a cell runs: they ask the front end.
    return getpass.getpass(prompt) if password else builtins.input(prompt)


class KernelOutputs:
    """Republishes on the local kernel's iopub channel."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._behind = True

    @property
    def allow_stdin(self) -> bool:
        return bool(getattr(self._shell.kernel, "_allow_stdin", False))

    def begin(self) -> None:
        self._behind = True

    def stream(self, name: str, text: str) -> None:
        target = sys.stderr if name == "stderr" else sys.stdout
        target.write(text)
        target.flush()

    def display(self, content: dict[str, Any], *, update: bool = False) -> None:
        self._shell.display_pub.publish(
            data=content.get("data") or {},
            metadata=content.get("metadata") or {},
            transient=content.get("transient") or {},
            update=update,
        )

    def relay(self, message: Message) -> bool:
        way = _streams() if message.type == "stream" else self._displays()
        if way is None:
            return False
        self._flush()
        session, socket, parent, topic = way
        # (It takes bytes for what is packed already.)
        session.send(socket, message.type, message.body, parent=parent, ident=topic)
        return True

    def result(self, content: dict[str, Any]) -> None:
        hook = self._shell.displayhook
        self._flush()
        result = {"data": content.get("data") or {}, "metadata": content.get("metadata") or {}}
        result["execution_count"] = hook.prompt_count
        hook.session.send(hook.pub_socket, "execute_result", result, parent=hook.parent_header, ident=hook.topic)

    def clear(self, wait: bool) -> None:
        self._shell.display_pub.clear_output(wait)

    def comm(self, message: Message, channel: Channel) -> None:
        from .comms import relay

        relay(message, channel, self._shell, self)

    def ask(self, prompt: str, password: bool) -> str:
        return _ask(prompt, password)

    def payload(self, payload: dict[str, Any]) -> None:
        # `ask_exit` is for the remote kernel; here it would end the local one.
        if payload.get("source") != "ask_exit":
            self._shell.payload_manager.write_payload(payload)

    def _displays(self) -> _Way | None:
        from ipykernel.zmqshell import ZMQDisplayPublisher

        publisher: Any = self._shell.display_pub
        replaced = type(publisher) is not ZMQDisplayPublisher
        if replaced or publisher._hooks or getattr(publisher, "store_display_history", False):
            return None
        return publisher.session, publisher.pub_socket, publisher.parent_header, publisher.topic

    def _flush(self) -> None:
        # Once, since `stream` does it each time: two threads have to wait for each other for it.
        if self._behind:
            self._behind = False
            sys.stdout.flush()
            sys.stderr.flush()


def _streams() -> _Way | None:
    from ipykernel.iostream import OutStream

    for stream in (sys.stdout, sys.stderr):  # which of them it is the message knows
        replaced = type(stream) is not OutStream
        if replaced or getattr(stream, "echo", None) is not None or getattr(stream, "_hooks", None):
            return None
    out: Any = sys.stdout
    return out.session, out.pub_thread, out.parent_header, out.topic


class TerminalOutputs:
    """Prints what a terminal can show."""

    allow_stdin = True

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def begin(self) -> None:
        """What is printed is in order."""

    def stream(self, name: str, text: str) -> None:
        target = sys.stderr if name == "stderr" else sys.stdout
        target.write(text)
        target.flush()

    def display(self, content: dict[str, Any], *, update: bool = False) -> None:
        text = (content.get("data") or {}).get("text/plain")
        if text and not update:
            print(text)

    def relay(self, message: Message) -> bool:
        return False

    def result(self, content: dict[str, Any]) -> None:
        text = (content.get("data") or {}).get("text/plain")
        if text is not None:
            lines = "\n" if "\n" in text else ""
            print(f"Out[{self._shell.displayhook.prompt_count}]: {lines}{text}")

    def clear(self, wait: bool) -> None:
        print("\033[2K\r", end="")

    def comm(self, message: Message, channel: Channel) -> None:
        """A terminal has no widgets."""

    def ask(self, prompt: str, password: bool) -> str:
        return _ask(prompt, password)

    def payload(self, payload: dict[str, Any]) -> None:
        if payload.get("source") == "page":
            print((payload.get("data") or {}).get("text/plain", ""))
        elif payload.get("source") == "set_next_input":
            self._shell.set_next_input(payload.get("text", ""), replace=payload.get("replace", False))

"""What the Jupyter server has to say to whoever works in this kernel: warnings, and answers to what was asked here.

    control channel   gpufit_notice        {"text": …, "answers": id of the question, if it is an answer, "error": bool}
                      gpufit_notice_reply  {"status": "ok"}

A warning is shown at once, with the cell that runs, however silent it is (ipykernel reads the control channel in a
thread of its own). While no cell runs it is kept for the beginning of the next one: only what a cell prints gets into
the notebook. A newer one takes its place, and an empty text takes it back.

Put into every unit beside `attached.py`, so it depends on nothing but ipykernel and Python 3.8.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["KIND", "Notices"]

KIND = "gpufit_notice"


class Notices:
    """Of one shell. Made by `attached.load_ipython_extension`."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel: Any = getattr(shell, "kernel", None)
        self._lock = threading.Lock()  # it is told in the control channel's thread
        self._cells: list[Any] = []  # requests of the cell that runs, and of those that it runs
        self._kept = ""
        self._questions: dict[str, Question] = {}

    def begin(self) -> None:
        """Hear, and show. Quiet in a shell that is no kernel's, and with an ipykernel before 6."""
        handlers = getattr(self._kernel, "control_handlers", None)
        if handlers is None or not hasattr(self._kernel, "get_parent"):
            return
        handlers[KIND] = self.heard
        if hasattr(self._kernel, "process_control"):
            self._kernel.process_control = self._quietly(self._kernel.process_control)
        self._shell.events.register("pre_run_cell", self._before_cell)
        self._shell.events.register("post_run_cell", self._after_cell)

    def end(self) -> None:
        """Undo `begin`."""
        handlers = getattr(self._kernel, "control_handlers", None)
        if handlers is None or handlers.pop(KIND, None) is None:
            return
        vars(self._kernel).pop("process_control", None)
        self._shell.events.unregister("pre_run_cell", self._before_cell)
        self._shell.events.unregister("post_run_cell", self._after_cell)

    def answer(self, id: str, ask: Callable[[], None], within: float) -> tuple[str, bool] | None:
        """What is told in answer to question `id`, which `ask` puts, and whether it is an error. `None`: nothing yet.

        One that comes later is shown as any notice is.
        """
        question = self._questions[id] = Question()
        try:
            ask()
            return question.answer if question.answered.wait(within) else None
        finally:
            self._questions.pop(id, None)

    def heard(self, stream: Any, ident: Any, message: dict[str, Any]) -> None:
        """Called by ipykernel, as the handler of such a message."""
        content = message.get("content")
        if isinstance(content, dict):
            self._take(str(content.get("text") or ""), content.get("answers"), bool(content.get("error")))
        self._kernel.session.send(stream, f"{KIND}_reply", {"status": "ok"}, parent=message, ident=ident)

    # ---

    def _take(self, text: str, question: Any, error: bool) -> None:
        with self._lock:
            asked = self._questions.get(question) if isinstance(question, str) else None
            if asked is not None:
                asked.answer = (text, error)
                asked.answered.set()
            elif self._cells and text:
                self._show(text, self._cells[-1])
            else:
                self._kept = text

    def _show(self, text: str, cell: Any) -> None:
        output = {"name": "stderr", "text": f"{text}\n"}
        self._kernel.session.send(self._kernel.iopub_socket, "stream", output, parent=cell, ident=b"stream.stderr")

    def _before_cell(self, *_: object) -> None:
        """Called by IPython, also when a cell runs another one."""
        cell = self._kernel.get_parent("shell")
        with self._lock:
            if self._cells and _id(self._cells[0]) != _id(cell):
                self._cells.clear()  # of one that never came to its end
            self._cells.append(cell)
            text, self._kept = self._kept, ""
        if text:
            self._show(text, cell)  # not by `print`: that waits a moment, and the cell would come first

    def _after_cell(self, *_: object) -> None:
        """Called by IPython."""
        with self._lock:
            if self._cells:
                self._cells.pop()

    def _quietly(self, process_control: Any) -> Any:
        """ipykernel says `busy` and `idle` around each message, and whoever hears `idle` (a front end, the server)
        would think that the running cell has ended. So this kind is handled without."""

        async def process(message: Any) -> None:
            if (ours := self._ours(message)) is None:
                await process_control(message)
            else:
                self.heard(self._kernel.control_stream, *ours)

        return process

    def _ours(self, message: Any) -> Any:
        session = self._kernel.session
        if session is None:
            return None
        try:
            idents, parts = session.feed_identities(message, copy=False)
            # (Without its content, as ipykernel itself looks at a message that is read again.)
            if session.deserialize(parts, content=False, copy=False)["header"]["msg_type"] != KIND:
                return None
            return idents, session.deserialize(parts, content=True, copy=False)
        except Exception:  # whatever is wrong with it, ipykernel says so
            return None


class Question:
    """One whose answer is waited for."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.answer: tuple[str, bool] | None = None


def _id(message: Any) -> Any:
    return (message or {}).get("header", {}).get("msg_id")

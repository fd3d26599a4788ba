"""`jupyter gpufit demo --check`: go through a notebook as a front end does, in a session of a real server.

A session is made for the notebook, cells go over its kernel's websocket, and when the server points the session at
another kernel (attach, release), the following cells go there.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..errors import GpufitError, NotFound
from ..notebook.cells import Reply, run_cell
from ..notebook.channels import Channel, WebSocketChannel
from ..notebook.client import Json, RestClient
from ..notebook.discovery import Server
from ..notebook.messages import Message
from ..notebook.transport import Http

__all__ = ["FrontEnd", "Step", "check"]

_FOLLOW_WITHIN = 30.0  # s in which the server points the session at the other kernel, or GPUs are given back
_MOVES = re.compile(r"^%gpufit\s+(request|attach|detach|release)\b(?!.*--no-attach)", re.MULTILINE)


class Step(Struct, kw_only=True):
    """What one cell gave."""

    cell: str
    ok: bool
    output: str
    kernel: str
    """Id of the kernel that the session had."""
    seconds: float


def check(server: Server, notebook: Path, *, as_json: bool = False) -> int:
    """Run all cells of `notebook` and print what each gave. 0, or 1 if one failed or something was left behind."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    steps: list[Step] = []
    with FrontEnd(server, notebook.name) as front_end:
        for cell in cells:
            if cell["cell_type"] != "code":
                continue
            step = front_end.run("".join(cell["source"]))
            steps.append(step)
            if not as_json:
                _print(len(steps), step)
            if not step.ok:
                break  # as Run All does
    left = _left(RestClient(server))
    if as_json:
        print(json.dumps({"steps": [_public(step) for step in steps], "left": left}, indent=2))
    failed = [step for step in steps if not step.ok]
    if left:
        print(f"still held: {', '.join(one['name'] for one in left)}", file=sys.stderr)
    elif not failed and not as_json:
        print(f"All {len(steps)} cells ran, on {len({step.kernel for step in steps})} kernels; nothing is held.")
    return 1 if failed or left else 0


def _left(client: RestClient) -> list[Json]:
    """What is still held, after the time that giving back takes."""
    deadline = time.monotonic() + _FOLLOW_WITHIN
    while (left := client.allocations()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _print(number: int, step: Step) -> None:
    lines = step.cell.strip().splitlines()
    print(f"[{number}] " + "\n    ".join(lines))
    for line in step.output.rstrip().splitlines():
        print(f"    │ {line}")
    print(f"    {'ok' if step.ok else 'FAILED'}, {step.seconds:.1f} s\n", flush=True)


def _public(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in step.__struct_fields__}


class FrontEnd:
    """One notebook, opened in a server, without a screen. A context manager; its end closes the notebook."""

    def __init__(self, server: Server, path: str, kernel_name: str = "python3") -> None:
        self._server = server
        self._http = Http(server)
        self._path = path
        self._kernel_name = kernel_name
        self._session = ""
        self._kernel = ""
        self._channel: Channel | None = None

    def __enter__(self) -> FrontEnd:
        body = {"path": self._path, "name": self._path, "type": "notebook", "kernel": {"name": self._kernel_name}}
        self._session = self._http.call("POST", "api/sessions", body)["id"]
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        try:
            self._http.call("DELETE", f"api/sessions/{self._session}")
        except NotFound:
            return  # the server closed it before

    def run(self, code: str) -> Step:
        """Run one cell in the kernel that the session has; if the cell moves the notebook, wait until it has moved."""
        began = time.monotonic()
        outputs = _Collected()
        ok = True
        channel = self._follow()
        kernel = self._kernel
        try:
            reply = run_cell(channel, code, outputs)
            outputs.fail(reply)
            ok = reply.status == "ok"
            if ok and _MOVES.search(code):
                self._until_moved(kernel)
        except GpufitError as problem:
            outputs.stream("stderr", problem.message)
            ok = False
        seconds = time.monotonic() - began
        return Step(cell=code, ok=ok, output=outputs.text(), kernel=kernel, seconds=round(seconds, 3))

    @property
    def kernel(self) -> str:
        """Id of the kernel that the session has now."""
        return str(self._http.call("GET", f"api/sessions/{self._session}")["kernel"]["id"])

    def _follow(self) -> Channel:
        kernel = self.kernel
        if self._channel is None or kernel != self._kernel:
            self._close()
            self._kernel = kernel
            self._channel = WebSocketChannel(self._server, kernel, lambda: self._interrupt(kernel))
        return self._channel

    def _interrupt(self, kernel: str) -> None:
        self._http.call("POST", f"api/kernels/{kernel}/interrupt", {})

    def _until_moved(self, kernel: str) -> None:
        deadline = time.monotonic() + _FOLLOW_WITHIN
        while self.kernel == kernel:
            if time.monotonic() > deadline:
                raise GpufitError(f"the notebook's session still has its kernel after {_FOLLOW_WITHIN:.0f} s")
            time.sleep(0.1)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class _Collected:
    """Outputs as text."""

    allow_stdin = False

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._displays: dict[str, int] = {}

    def text(self) -> str:
        return "".join(self._parts)

    def begin(self) -> None:
        """Nothing else is shown."""

    def stream(self, name: str, text: str) -> None:
        self._parts.append(text)

    def display(self, content: dict[str, Any], *, update: bool = False) -> None:
        text = str((content.get("data") or {}).get("text/plain", "")) + "\n"
        name = (content.get("transient") or {}).get("display_id")
        if update and name in self._displays:
            self._parts[self._displays[name]] = text
            return
        if name:
            self._displays[name] = len(self._parts)
        self._parts.append(text)

    def relay(self, message: Message) -> bool:
        return False

    def result(self, content: dict[str, Any]) -> None:
        self.display(content)

    def clear(self, wait: bool) -> None:
        self._parts.clear()
        self._displays.clear()

    def comm(self, message: Message, channel: Channel) -> None:
        """No widgets on no screen."""

    def ask(self, prompt: str, password: bool) -> str:
        return ""

    def payload(self, payload: dict[str, Any]) -> None:
        """Likewise no pager."""

    def fail(self, reply: Reply) -> None:
        if reply.error is not None:
            self._parts.append("\n".join(str(line) for line in reply.error.get("traceback") or []) + "\n")

"""A front end without a screen: does to a Jupyter server what JupyterLab does, so that tests see what a person would.

    async with FrontEnd(url, token) as front:
        notebook = await front.open("a.ipynb")                    # session and kernel
        cell = await notebook.run("1 + 1")                         # a finished cell: .text, .outputs, .error
        cells = notebook.run_all(["x = 1", "print(x)"])            # Run All: everything is sent at once
        await cells[-1]
        await notebook.on(kernel_id)                               # wait until it has followed its session there
        answer = await front.gpufit("POST", "allocations", {"gpus": 1})

As in JupyterLab, a notebook follows its session when the session is found to have another kernel, and cells that are
not finished then are *lost*: awaiting them raises `CellLost`.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, Self

import aiohttp

__all__ = ["Answer", "Cell", "CellLost", "EventStream", "FrontEnd", "Notebook", "eventually"]

LONG = 60.0  # s; how long anything may take before a test is called failed


class CellLost(Exception):
    """The notebook went to another kernel before the cell was done: JupyterLab shows `[ ]` for it."""


async def eventually(condition: Callable[[], Any], within: float = LONG, step: float = 0.05) -> Any:
    """What `condition` (sync or async) gives once that is true. Fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {condition} (last: {value!r})"
        await asyncio.sleep(step)


class Answer:
    """Of the server: `.status`, `.headers`, `.text`, `.json`, and how many `.seconds` it took."""

    def __init__(self, status: int, headers: Any, body: bytes, seconds: float) -> None:
        self.status, self.headers, self.body, self.seconds = status, headers, body, seconds

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:2000]!r}>"


class Cell:
    """A cell that was sent. Await it for it to be done."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.outputs: list[dict[str, Any]] = []
        """As in nbformat, streams joined; `display_id`s are followed."""
        self.status: str | None = None
        """`ok`, `error`, `aborted`, once it is done."""
        self.count: int | None = None
        self.kernel_id = ""
        self._idle = False
        self._done: asyncio.Future[Cell] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, Cell]:
        return self.done().__await__()

    async def done(self, within: float = LONG) -> Cell:
        """The cell, once it is done. Raises `CellLost`, or fails after `within` seconds."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._done), within)
        except TimeoutError:
            raise AssertionError(f"not done within {within:.0f} s: {self.code!r} (so far: {self.outputs})") from None

    @property
    def text(self) -> str:
        """All that a person reads: streams, `text/plain` of results and displays, errors."""
        return "".join(_text(output) for output in self.outputs)

    @property
    def stdout(self) -> str:
        """What it printed."""
        return "".join(output["text"] for output in self.outputs if output.get("name") == "stdout")

    @property
    def stderr(self) -> str:
        """Likewise, on standard error."""
        return "".join(output["text"] for output in self.outputs if output.get("name") == "stderr")

    @property
    def error(self) -> str | None:
        """`"ZeroDivisionError: division by zero"`."""
        for output in self.outputs:
            if output["output_type"] == "error":
                return f"{output['ename']}: {output['evalue']}"
        return None

    @property
    def is_done(self) -> bool:
        return self._done.done()

    def _lose(self, why: str) -> None:
        if not self._done.done():
            self._done.set_exception(CellLost(f"{self.code!r}: {why}"))
            self._done.exception()  # nobody has to await it

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "status":
            self._idle = self._idle or content["execution_state"] == "idle"
        elif kind == "execute_reply":
            self.status, self.count = content["status"], content.get("execution_count")
        elif kind == "stream":
            last = self.outputs[-1] if self.outputs else {}
            if last.get("output_type") == "stream" and last["name"] == content["name"]:
                last["text"] += content["text"]
            else:
                self.outputs.append({"output_type": "stream", **content})
        elif kind in ("display_data", "execute_result", "error"):
            self.outputs.append({"output_type": kind, **content})
        elif kind == "update_display_data":
            for output in self.outputs:
                if output.get("transient", {}).get("display_id") == content["transient"]["display_id"]:
                    output["data"] = content["data"]
        elif kind == "clear_output":
            self.outputs.clear()
        if self._idle and self.status is not None and not self._done.done():
            self._done.set_result(self)


class Notebook:
    """An open notebook. Follows its session from kernel to kernel."""

    def __init__(self, front: FrontEnd, session: dict[str, Any], poll: float) -> None:
        self._front = front
        self.session: str = session["id"]
        self.path: str = session["path"]
        self.kernel_id: str = session["kernel"]["id"]
        """The kernel that cells are sent to now."""
        self.kernels_seen = [self.kernel_id]
        self.gone = False
        """The server has no such session any longer."""
        self.statuses: list[str] = []
        """What the kernel said of itself, as `restarting` or `dead`."""
        self.answer_input: Callable[[str], str] = lambda prompt: ""
        """Called for `input()`."""
        self.offline = False
        """Whether it does not come back when its connection is lost."""
        self.comms: list[dict[str, Any]] = []
        """Comm messages that came without a cell."""
        self._poll = poll
        self._cells: dict[str, Cell] = {}
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._outbox: asyncio.Queue[str] = asyncio.Queue()
        self._client = uuid.uuid4().hex
        self._tasks: list[asyncio.Task[None]] = []
        self._moved = asyncio.Event()

    # --- cells

    def send(self, code: str, **content: Any) -> Cell:
        """Send a cell, as Shift-Enter does; returns at once."""
        cell = Cell(code)
        cell.kernel_id = self.kernel_id
        message_id = uuid.uuid4().hex
        self._cells[message_id] = cell
        request = {"code": code, "silent": False, "store_history": True, "allow_stdin": True, "stop_on_error": True}
        self._send("shell", "execute_request", {**request, "user_expressions": {}, **content}, message_id)
        return cell

    async def run(self, code: str, within: float = LONG) -> Cell:
        """Send a cell and wait until it is done."""
        return await self.send(code).done(within)

    def run_all(self, codes: list[str]) -> list[Cell]:
        """*Run All*: send every cell at once."""
        return [self.send(code) for code in codes]

    async def value(self, expression: str) -> str:
        """What `print(expression)` prints."""
        cell = await self.run(f"print({expression})")
        assert cell.error is None, cell.text
        return cell.text.strip()

    # --- the kernel

    async def on(self, kernel_id: str, within: float = LONG) -> None:
        """Wait until the notebook has followed its session to that kernel."""
        await eventually(lambda: self.kernel_id == kernel_id and self._socket is not None, within)

    async def off(self, kernel_id: str, within: float = LONG) -> str:
        """Wait until the notebook has followed its session to another kernel than that; its id."""
        await eventually(lambda: self.kernel_id != kernel_id and self._socket is not None, within)
        return self.kernel_id

    async def interrupt(self) -> None:
        await self._front.api("POST", f"api/kernels/{self.kernel_id}/interrupt", {}, expect=204)

    async def restart(self) -> None:
        """*Kernel > Restart*."""
        for cell in self._cells.values():
            cell._lose("restarted")
        self._cells.clear()
        await self._front.api("POST", f"api/kernels/{self.kernel_id}/restart", {}, expect=200)

    async def reconnect(self) -> None:
        """Leave the kernel's channels, and connect to them anew: what JupyterLab does after a restart."""
        before, self._socket = self._socket, None
        self._moved.set()
        await eventually(lambda: self._socket is not None and self._socket is not before)

    def send_comm(self, comm_id: str, data: dict[str, Any]) -> None:
        """Send what a widget does when somebody moves it."""
        self._send("shell", "comm_msg", {"comm_id": comm_id, "data": data})

    async def model(self) -> dict[str, Any]:
        """Its session, as the server has it."""
        answer = await self._front.api("GET", f"api/sessions/{self.session}", expect=200)
        model: dict[str, Any] = answer.json
        return model

    async def shutdown(self) -> None:
        """*Shut Down Notebook*: its session goes, and with it the kernel that it has now."""
        await self._front.api("DELETE", f"api/sessions/{self.session}", expect=204)
        await self.close()

    async def close(self) -> None:
        """Close the tab; the session goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._socket is not None:
            await self._socket.close()
            self._socket = None
        self._front._notebooks.discard(self)

    # ---

    async def _start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._talk())]
        await eventually(lambda: self._socket is not None)

    def _send(self, channel: str, kind: str, content: dict[str, Any], message_id: str | None = None) -> None:
        header = {
            "msg_id": message_id or uuid.uuid4().hex,
            "msg_type": kind,
            "username": "",
            "session": self._client,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": "5.3",
        }
        empty: dict[str, Any] = {}
        message = {"header": header, "parent_header": empty, "metadata": empty, "content": content, "channel": channel}
        self._outbox.put_nowait(json.dumps(message))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll)
            try:
                answer = await self._front.api("GET", f"api/sessions/{self.session}")
            except aiohttp.ClientError:  # no server just now
                continue
            self.gone = answer.status == 404
            if answer.status == 200 and answer.json["kernel"]["id"] != self.kernel_id:
                self.path = answer.json["path"]
                self._move_to(answer.json["kernel"]["id"])

    def _move_to(self, kernel_id: str) -> None:
        for cell in self._cells.values():
            cell._lose(f"the notebook went from kernel {self.kernel_id} to {kernel_id}")
        self._cells.clear()
        self._outbox = asyncio.Queue()
        self.kernel_id = kernel_id
        self._socket = None  # the one that there is goes to the kernel before
        self.kernels_seen.append(kernel_id)
        self._moved.set()

    async def _talk(self) -> None:
        while True:
            self._moved.clear()
            # Also while it connects: a server takes a minute to say that a kernel which died does not answer.
            await _first_of(self._converse(), self._wait_moved())

    async def _converse(self) -> None:
        path = f"api/kernels/{self.kernel_id}/channels?session_id={self._client}"
        while self.offline:  # noqa: ASYNC110  (a test says when)
            await asyncio.sleep(self._poll)
        try:
            async with self._front._client.ws_connect(self._front.url + path, max_msg_size=0) as socket:
                self._socket = socket
                await _first_of(self._hear(socket), self._speak(socket))
        except aiohttp.ClientError:  # the kernel is gone; the session tells where to go
            await asyncio.sleep(self._poll)
        finally:
            self._socket = None

    async def _wait_moved(self) -> None:
        await self._moved.wait()

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        outbox = self._outbox
        while True:
            await socket.send_str(await outbox.get())

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                continue  # with buffers
            message = json.loads(frame.data)
            kind, parent = message["header"]["msg_type"], message.get("parent_header") or {}
            cell = self._cells.get(parent.get("msg_id", ""))
            if kind == "input_request":
                self._send("stdin", "input_reply", {"value": self.answer_input(message["content"]["prompt"])})
            elif cell is not None:
                cell._take(message)
            elif kind == "status" and message["content"]["execution_state"] in ("restarting", "dead", "starting"):
                self.statuses.append(message["content"]["execution_state"])
            elif kind.startswith("comm_"):
                self.comms.append(message)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Until one of them is done; the others are cancelled. Raises what that one raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class EventStream:
    """What a server's event bus said since we listen."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def of(self, schema: str) -> list[dict[str, Any]]:
        """Those of a schema whose id ends so: `of("allocation/v1")`."""
        return [event for event in self.seen if event["schema_id"].endswith(schema)]

    async def until(self, condition: Callable[[dict[str, Any]], bool], within: float = LONG) -> dict[str, Any]:
        """The first event for which `condition` is true, past or to come."""
        try:
            return await self._until(condition, within)
        except AssertionError:
            raise AssertionError(f"no such event within {within:.0f} s, but: {self.seen}") from None

    async def _until(self, condition: Callable[[dict[str, Any]], bool], within: float) -> dict[str, Any]:
        found: dict[str, Any] = await eventually(
            lambda: next((event for event in self.seen if condition(event)), None), within
        )
        return found


class FrontEnd:
    """One browser window, so to speak, on one Jupyter server."""

    def __init__(self, url: str, token: str, *, poll: float = 0.2) -> None:
        """`url` ends in `/`. `poll`: seconds between looks at what kernels sessions have (JupyterLab: up to 10)."""
        self.url, self.token = url, token
        self._poll = poll
        self._notebooks: set[Notebook] = set()

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"token {self.token}"} if self.token else {}
        self._client = aiohttp.ClientSession(headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        for notebook in list(self._notebooks):
            await notebook.close()
        await self._client.close()
        await asyncio.sleep(0)  # aiohttp's connections close in the next turn of the loop

    async def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expect: int | None = None,
        data: bytes | BinaryIO | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Any call; `body` goes as JSON, `data` as it is. With `expect`, fails unless the answer has that status."""
        began = time.monotonic()
        kwargs: dict[str, Any] = {"data": data} if data is not None else {} if body is None else {"json": body}
        async with self._client.request(method, self.url + path, headers=headers, **kwargs) as response:
            answer = Answer(response.status, response.headers, await response.read(), time.monotonic() - began)
        if expect is not None:
            assert answer.status == expect, f"{method} {path}: {answer}"
        return answer

    async def gpufit(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """A call of the extension's REST."""
        return await self.api(method, f"gpufit/api/v1/{path}", body, **more)

    async def request(self, within: float = LONG, **wishes: Any) -> dict[str, Any]:
        """`POST allocations`, and wait until it runs, or ended: the allocation as it is then."""
        answer = await self.gpufit("POST", "allocations", wishes, expect=202)
        return await self.allocation(answer.json["id"], lambda one: one["state"] in ("running", "ended"), within)

    async def allocation(
        self, id_or_name: str, condition: Callable[[dict[str, Any]], bool] = lambda _: True, within: float = LONG
    ) -> dict[str, Any]:
        """The allocation once `condition` is true of it."""
        deadline = time.monotonic() + within
        after = -1
        while True:
            query = f"?after={after}&wait=2" if after >= 0 else ""
            one: dict[str, Any] = (await self.gpufit("GET", f"allocations/{id_or_name}{query}", expect=200)).json
            if condition(one):
                return one
            assert time.monotonic() < deadline, f"not within {within:.0f} s; the allocation is {one}"
            after = one["version"]

    async def release(self, id_or_name: str, within: float = LONG) -> dict[str, Any]:
        """`DELETE allocations/{id}`, and wait until it has ended."""
        answer = await self.gpufit("DELETE", f"allocations/{id_or_name}")
        assert answer.status in (200, 202), answer
        return await self.allocation(answer.json["id"], lambda one: one["state"] == "ended", within)

    async def open(self, path: str = "a.ipynb", kernel: str = "python3", within: float = LONG) -> Notebook:
        """Open a notebook (it need not exist as a file) on a new kernel."""
        name = path.rsplit("/", 1)[-1]
        body = {"path": path, "name": name, "type": "notebook", "kernel": {"name": kernel}}
        async with asyncio.timeout(within):
            answer = await self.api("POST", "api/sessions", body, expect=201)
        return await self.take(answer.json)

    async def take(self, session: dict[str, Any]) -> Notebook:
        """Open a notebook whose session exists already, as a second browser window does."""
        notebook = Notebook(self, session, self._poll)
        self._notebooks.add(notebook)
        await notebook._start()
        return notebook

    async def kernels(self) -> list[str]:
        """Ids of all kernels that run."""
        return [kernel["id"] for kernel in (await self.api("GET", "api/kernels", expect=200)).json]

    @asynccontextmanager
    async def events(self) -> AsyncIterator[EventStream]:
        """Listen to the server's event bus."""
        stream = EventStream()

        async def listen(socket: aiohttp.ClientWebSocketResponse) -> None:
            async for frame in socket:
                stream.seen.append(json.loads(frame.data))

        async with self._client.ws_connect(self.url + "api/events/subscribe", max_msg_size=0) as socket:
            task = asyncio.create_task(listen(socket))
            try:
                yield stream
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _text(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    if output["output_type"] == "error":
        return "\n".join(output["traceback"])
    return str(output["data"].get("text/plain", "")) + "\n"

"""A real Jupyter server in a process of its own, and its REST API.

with JupyterServer(root, env) as server:
    session = server.post("api/sessions", {...})
    with server.client(session["kernel"]["id"]) as client: run_cell(client, "1 + 1")
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.cells import ready
from jupyter_client.blocking.client import BlockingKernelClient

__all__ = ["HttpError", "JupyterServer", "until"]

NOT_NEEDED = ("jupyterlab", "jupyter_lsp", "jupyter_server_terminals", "notebook_shim")
"""Extensions that would take seconds to load."""


class HttpError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:2000]}")
        self.status, self.body = status, body


def until(condition: Callable[[], Any], timeout: float = 60.0, what: str = "") -> Any:
    """The first true value of `condition`, looked at again and again. Fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, what or f"not within {timeout:.0f} s: {condition}"
        time.sleep(0.1)
    return value


class JupyterServer:
    """Use as a context manager."""

    def __init__(self, root: Path, env: Mapping[str, str] | None = None, *arguments: str, lab: bool = False) -> None:
        """`lab`: with JupyterLab."""
        self.root = root
        self.log_file = root.parent / f"{root.name}-server.log"
        self._env = {**os.environ, **(env or {})}
        without = f"--ServerApp.jpserver_extensions={dict.fromkeys(NOT_NEEDED, False)}"
        self._module = "jupyterlab" if lab else "jupyter_server"
        self._arguments = arguments if lab else (without, *arguments)
        self._bare = any("'jupyter_gpufit': False" in argument for argument in arguments)
        self.token = "secret-token-of-the-server"
        self._port = 0  # any

    def __enter__(self) -> JupyterServer:
        self.root.mkdir(exist_ok=True)
        self._log = self.log_file.open("wb")
        return self._start()

    def start_again(self) -> None:
        """After `kill`: the same person's next server, at the same address."""
        self._port = urllib.parse.urlsplit(self.url).port or 0
        self._start()

    def _start(self) -> JupyterServer:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", self._module, "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                f"--port={self._port}",
                *(
                    "--ServerApp.port_retries=0",
                    f"--ServerApp.root_dir={self.root}",
                    f"--IdentityProvider.token={self.token}",
                ),
                *self._arguments,
            ],
            env=self._env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            info = until(self._info, 60, "the server did not start")
            self.url: str = info["url"]
            self.pid: int = info["pid"]
            until(self._answers, 60, "the server does not answer")
        except BaseException:
            self.kill()
            print(self.log)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._log.close()

    def kill(self) -> None:
        """`kill -9`, of the server alone."""
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    # --- REST

    def request(self, method: str, path: str, body: Any = None, timeout: float = 120.0) -> Any:
        """The JSON that the server answers. Raises `HttpError`."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"token {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise HttpError(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def post(self, path: str, body: Any = None, timeout: float = 120.0) -> Any:
        return self.request("POST", path, {} if body is None else body, timeout)

    def delete(self, path: str) -> Any:
        return self.request("DELETE", path)

    def start_session(self, kernel: str, path: str = "notebook.ipynb") -> dict[str, Any]:
        """A session as a front end makes it for a notebook."""
        name = path.rpartition("/")[2]
        session: dict[str, Any] = self.post(
            "api/sessions", {"path": path, "name": name, "type": "notebook", "kernel": {"name": kernel}}
        )
        return session

    def kernels(self) -> list[dict[str, Any]]:
        kernels: list[dict[str, Any]] = self.get("api/kernels")
        return kernels

    @contextmanager
    def client(self, kernel_id: str) -> Iterator[BlockingKernelClient]:
        """A client of one of its kernels, straight to the kernel."""
        file = Path(self._env["JUPYTER_RUNTIME_DIR"]) / f"kernel-{kernel_id}.json"
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels()
        try:
            ready(client)
            yield client
        finally:
            client.stop_channels()

    def _info(self) -> dict[str, Any] | None:
        assert self.process.poll() is None, f"the server ended:\n{self.log}"
        file = Path(self._env["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{self.process.pid}.json"
        try:
            info: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError):
            return None
        return info

    def _answers(self) -> bool:
        """Whether it answers, and our part of it too; the nodes have reported by then."""
        try:
            nodes = self.get("gpufit/api/v1/nodes")["nodes"]
        except OSError:
            return False
        except HttpError as error:
            if error.status == 404 and self._bare:
                return True
            if error.status != 503:
                raise
            return False
        return all(node["age"] is not None or "not reported" not in (node["reason"] or "") for node in nodes)

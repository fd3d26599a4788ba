"""Finding the server of a kernel, and talking to it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jupyter_gpufit.errors import Forbidden, GpufitError, InvalidValue, NoFit, NotFound
from jupyter_gpufit.models import Job, Request
from jupyter_gpufit.notebook import client as client_module
from jupyter_gpufit.notebook.client import RestClient, connect
from jupyter_gpufit.notebook.discovery import Server, find_server, kernel_id_of, running_servers, server_at
from jupyter_gpufit.notebook.transport import ExtensionMissing, Http, ServerUnreachable


class Answers(BaseHTTPRequestHandler):
    """Answers what `script` says for a path, and remembers what it was asked."""

    script: ClassVar[dict[str, tuple[int, Any]]] = {}
    asked: ClassVar[list[tuple[str, str, str | None, Any]]] = []

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(
            (self.command, self.path, self.headers.get("Authorization"), json.loads(body) if body else None)
        )
        status, answer = self.script.get(self.path.split("?")[0], (404, {"message": "Not Found"}))
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    Answers.script, Answers.asked = {}, []
    http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Server(url=f"http://127.0.0.1:{http.server_port}/base/", token="the-token", pid=os.getpid())
    http.shutdown()
    thread.join()
    http.server_close()


API = "/base/gpufit/api/v1/"


# --- which server


def write(runtime: Path, pid: int, **info: Any) -> None:
    runtime.mkdir(exist_ok=True)
    info = {"pid": pid, "url": "http://localhost:8888/", "token": "t", "root_dir": "/"} | info
    (runtime / f"jpserver-{pid}.json").write_text(json.dumps(info))


def dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def test_the_server_that_started_this_kernel(tmp_path: Path) -> None:
    write(tmp_path, os.getpid(), url="http://localhost:8888/a/")
    write(tmp_path, os.getppid(), url="http://localhost:8889/b")
    (tmp_path / "jpserver-7.json").write_text("{half")
    found = find_server({"JPY_PARENT_PID": str(os.getppid())}, tmp_path)
    assert found is not None
    assert (found.url, found.token) == ("http://localhost:8889/b/", "t")
    assert find_server({"JPY_PARENT_PID": "1"}, tmp_path) is None
    assert find_server({}, tmp_path) is None


def test_servers_that_died_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, dead_pid())
    assert list(running_servers(tmp_path)) == []
    assert list(running_servers(tmp_path / "nothing")) == []


def test_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    write(tmp_path, os.getpid(), url="http+unix://%2Frun%2Fx/base/", sock="/run/x", base_url="/base/")
    (found,) = running_servers(tmp_path)
    assert (found.socket, found.url) == ("/run/x", "http://localhost/base/")


def test_under_a_hub_the_token_is_the_hubs(tmp_path: Path) -> None:
    environment = {
        "JPY_PARENT_PID": str(os.getpid()),
        "JUPYTERHUB_API_TOKEN": "hub",
        "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:5000/user/ada/",
        "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/",
    }
    found = find_server(environment, tmp_path)
    assert found is not None
    assert (found.url, found.token) == ("http://127.0.0.1:5000/user/ada/", "hub")
    write(tmp_path, os.getpid(), token="")
    found = find_server(environment, tmp_path)
    assert found is not None
    assert (found.url, found.token) == ("http://localhost:8888/", "hub")


def test_a_server_with_a_password_alone_is_let_in_by_the_token_that_is_given(tmp_path: Path) -> None:
    environment = {"JPY_PARENT_PID": str(os.getpid()), "GPUFIT_TOKEN": "given"}
    write(tmp_path, os.getpid(), token="")
    found = find_server(environment, tmp_path)
    assert found is not None
    assert found.token == "given"
    write(tmp_path, os.getpid(), token="its own")
    found = find_server(environment, tmp_path)
    assert found is not None
    assert found.token == "its own"


@pytest.mark.parametrize(
    ("url", "token", "found"),
    [
        ("http://h:1/lab?token=abc", "", ("http://h:1/", "abc")),
        ("http://h:1/user/ada/lab/tree/x.ipynb", "t", ("http://h:1/user/ada/", "t")),
        ("h:8888", "", ("http://h:8888/", "")),
        ("https://h/base", "", ("https://h/base/", "")),
    ],
)
def test_a_server_by_its_address(url: str, token: str, found: tuple[str, str]) -> None:
    server = server_at(url, token)
    assert (server.url, server.token) == found


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidValue, match="is not the address"):
        server_at("ftp://h")


def test_a_server_does_not_show_its_token() -> None:
    assert "secret" not in repr(Server(url="http://h/", token="secret"))


def test_the_kernels_id_is_in_its_connection_files_name() -> None:
    assert kernel_id_of("/x/kernel-12-ab.json") == "12-ab"
    assert kernel_id_of("/x/other.json") is None
    assert kernel_id_of(None) is None


# --- talking to it


def test_the_token_goes_in_a_header_and_never_in_an_address(server: Server) -> None:
    Answers.script[API + "allocations"] = (202, {"id": "a"})
    RestClient(server).request(Request(gpus=2, memory="16GiB", name="train"))
    ((method, path, authorization, body),) = Answers.asked
    assert (method, path, authorization) == ("POST", API + "allocations", "token the-token")
    assert body == {"gpus": 2, "memory": [16 * 2**30, 16 * 2**30], "name": "train"}


def test_errors_are_raised_as_what_they_were(server: Server) -> None:
    client = RestClient(server)
    Answers.script[API + "allocations"] = (
        409,
        {"error": "no-fit", "message": "No node has that now.", "details": {"stages": [1]}},
    )
    with pytest.raises(NoFit, match="No node has that now") as raised:
        client.request(Request())
    assert raised.value.details == {"stages": [1]}
    Answers.script[API + "allocations/x"] = (
        404,
        {"error": "not-found", "message": "none is called 'x'", "details": {}},
    )
    with pytest.raises(NotFound, match="none is called 'x'"):
        client.get("x")
    Answers.script[API + "allocations/y"] = (418, {"error": "teapot", "message": "short and stout"})
    with pytest.raises(GpufitError, match="short and stout"):
        client.get("y")


@pytest.mark.parametrize(
    ("status", "answer", "error", "said"),
    [
        (404, {"message": "Not Found"}, ExtensionMissing, "no jupyter_gpufit extension; install"),
        (403, {"message": "Forbidden"}, Forbidden, "does not accept this token"),
        (403, {"error": "forbidden", "message": "Forbidden", "details": {}}, Forbidden, "does not accept this token"),
        (403, {"error": "forbidden", "message": "it is Ada's", "details": {}}, Forbidden, "it is Ada's"),
        (302, "<html>", Forbidden, "does not accept this token"),
        (500, {"message": "boom"}, ServerUnreachable, "answers 500 boom"),
        (502, "<html>", ServerUnreachable, "answers 502"),
    ],
)
def test_a_server_that_does_not_do_it(
    server: Server, status: int, answer: Any, error: type[GpufitError], said: str
) -> None:
    Answers.script[API + "nodes"] = (status, answer)
    with pytest.raises(error, match=said):
        RestClient(server).nodes()


def test_names_are_quoted(server: Server) -> None:
    Answers.script[API + "allocations/..%2F..%2Fkernels%3Fx"] = (200, {"id": "a"})
    assert RestClient(server).get("../../kernels?x") == {"id": "a"}


def test_nobody_there() -> None:
    with pytest.raises(ServerUnreachable, match="does not answer"):
        Http(Server(url="http://127.0.0.1:9/")).call("GET", "api")


def test_the_session_is_found_by_the_kernels_id_and_kept(server: Server) -> None:
    Answers.script["/base/api/sessions"] = (
        200,
        [{"id": "s1", "kernel": {"id": "other"}}, {"id": "s2", "kernel": {"id": "mine"}}],
    )
    Answers.script[API + "allocations/a/attach"] = (202, {"state": "waiting"})
    client = RestClient(server, "mine")
    assert client.attach("a") == {"state": "waiting"}
    Answers.script["/base/api/sessions"] = (200, [{"id": "s2", "kernel": {"id": "remote"}}])
    assert client.attach("a") == {"state": "waiting"}
    assert [body for method, _, _, body in Answers.asked if method == "POST"] == [{"session": "s2"}] * 2
    assert RestClient(server, "unknown").attach("a") is None
    assert RestClient(server).attach("a") is None


def test_jobs_logs_and_files(server: Server) -> None:
    Answers.script = {
        API + "jobs": (202, {"allocations": [], "submission": "s"}),
        API + "submissions/s": (202, {"allocations": [{"id": "a"}], "submission": None}),
        API + "allocations/a/logs": (200, {"logs": "x\n", "mark": "m", "over": False}),
        API + "allocations/a/usage": (200, {"sentence": ""}),
        API + "allocations/a/files": (202, {"id": "t"}),
        API + "transfers/t": (200, {"id": "t"}),
    }
    client = RestClient(server)
    request = Request(memory="1GiB", folder="/home/ada", job=Job(run="fit.py", env={"KEY": "secret"}))
    assert client.submit(request, {"lr": ["1", "2"]}) == [{"id": "a"}]
    assert client.log("a", tail=5, after="", wait=60)["mark"] == "m"
    assert client.logs("a") == "x\n"
    assert client.usage("a") == {"sentence": ""}
    client.transfer("a", "upload", "/home/ada", ("b", "c/"))
    client.transferred("t", 3)
    client.cancel_transfer("t")
    asked = [(method, path.removeprefix(API), body) for method, path, _, body in Answers.asked]
    job = {"run": "fit.py", "env": {"KEY": "secret"}}
    body = {"request": {"memory": [2**30], "folder": "/home/ada", "job": job}, "sweep": {"lr": ["1", "2"]}}
    assert asked == [
        ("POST", "jobs", body),
        ("GET", "submissions/s?wait=4.0", None),
        ("GET", "allocations/a/logs?tail=5&after=&wait=4.0", None),
        ("GET", "allocations/a/logs?tail=200", None),
        ("GET", "allocations/a/usage", None),
        ("POST", "allocations/a/files", {"do": "upload", "folder": "/home/ada", "paths": ["b", "c/"]}),
        ("GET", "transfers/t?after=3&wait=1.0", None),
        ("DELETE", "transfers/t", None),
    ]


def test_the_notebook_is_that_of_the_session(server: Server) -> None:
    Answers.script["/base/api/sessions"] = (200, [{"id": "s", "kernel": {"id": "mine"}}])
    Answers.script["/base/api/sessions/s"] = (200, {"id": "s", "path": "work/a.ipynb"})
    assert RestClient(server, "mine").notebook() == "work/a.ipynb"
    assert RestClient(server, "other").notebook() is None
    assert RestClient(server).notebook() is None


def test_what_a_panel_asks_again_and_again_is_no_activity(server: Server) -> None:
    """A hub may stop a server that nobody uses, though a panel is open there."""
    client = RestClient(server)
    Answers.script = {
        API + "about": (200, {}),
        API + "allocations": (200, {"allocations": []}),
        API + "explain": (200, {}),
        API + "nodes": (200, {"nodes": []}),
    }
    client.about()
    client.allocations()
    client.cluster()
    for stages in (True, False):
        client.explain(Request(), stages=stages)
    paths = [path for _, path, _, _ in Answers.asked]
    assert len(paths) == 5
    assert all("no_track_activity=1" in path for path in paths), paths
    assert [path for path in paths if "stages=" in path] == [f"{API}explain?no_track_activity=1&stages=false"]


# --- which client


class Shell:
    kernel = None


def test_the_client_of_a_kernel_of_a_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "runtime", os.getpid(), url=server.url, token="the-token")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    embedded = object()
    monkeypatch.setattr(client_module, "embedded", lambda: embedded)

    Answers.script[API + "nodes"] = (200, {"nodes": [], "inventory_error": None})
    found, note = connect(Shell())
    assert isinstance(found, RestClient)
    assert note is None

    del Answers.script[API + "nodes"]
    found, note = connect(Shell())
    assert found is embedded
    assert note is not None
    assert "no jupyter_gpufit extension" in note
    assert "scheduler of its own" in note

    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert connect(Shell()) == (embedded, None)

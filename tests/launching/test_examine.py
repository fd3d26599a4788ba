"""The doctor's questions to an engine, where a make-believe one will do. Real ones: tests/cluster/test_doctor.py."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cluster import certificates

from jupyter_gpufit.diagnosis import Check
from jupyter_gpufit.inventory import NodeSpec
from jupyter_gpufit.launching.examine import api, docker_command, remedy, runtime, secure


@pytest.mark.parametrize(
    ("version", "verdict", "says"),
    [("1.41", "right", "1.41 ("), ("1.39", "wrong", "its API is 1.39"), ("", "not-checked", "cannot be read")],
)
def test_api(version: str, verdict: str, says: str) -> None:
    found = api({"ApiVersion": version})
    assert found.verdict == verdict
    assert says in found.message


@pytest.mark.parametrize(
    ("about", "verdict", "says"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, "right", "`nvidia` runtime"),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, "right", "nvidia.com/gpu=0"),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": None}, "not-checked", "--deep tries it"),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "amd.com/gpu=0"}]}, "not-checked", "--deep tries it"),
    ],
)
def test_runtime(about: dict[str, Any], verdict: str, says: str) -> None:
    found = runtime(about)
    assert found.verdict == verdict
    assert says in found.message
    assert bool(found.fix) == (verdict != "right")


@pytest.mark.parametrize(
    ("docker", "tls", "command"),
    [
        (None, None, "docker"),
        ("unix:///var/run/docker.sock", None, "docker"),
        ("ssh://me@gpu01", None, "docker -H ssh://me@gpu01"),
        ("tcp://gpu01:2376", "/my files", "DOCKER_CERT_PATH='/my files' docker -H tcp://gpu01:2376 --tlsverify"),
    ],
)
def test_what_is_to_be_typed(docker: str | None, tls: str | None, command: str) -> None:
    assert docker_command(NodeSpec(name="n", docker=docker, tls=tls)) == command


@pytest.mark.parametrize("docker", ["unix:///run/docker.sock", "ssh://gpu01"])
def test_what_needs_no_tls(docker: str) -> None:
    assert secure(NodeSpec(name="n", docker=docker)).verdict == "right"


def test_plain_is_said_aloud() -> None:
    found = secure(NodeSpec(name="n", docker="tcp://gpu01:2375", insecure=True))
    assert (found.verdict, found.check) == ("right", "tls")
    assert "whoever reaches gpu01:2375 is root there" in found.message


def test_remedies() -> None:
    assert "nvidia-ctk" in remedy("its engine cannot give GPUs to containers")
    assert remedy("something else") == ""


class Handler(BaseHTTPRequestHandler):
    """A `GET /_ping` that everybody may ask."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Quiet(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """A visitor that does not talk as we do."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    certificates.make(tmp_path / "tls", "127.0.0.1")
    return tmp_path / "tls"


@contextmanager
def serving(context: ssl.SSLContext | None) -> Iterator[int]:
    """Its port."""
    server = Quiet(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def looked_at(files: Path) -> Callable[[int, str], Check]:
    def look(port: int, host: str = "127.0.0.1") -> Check:
        return secure(NodeSpec(name="n", docker=f"tcp://{host}:{port}", tls=str(files)))

    return look


def test_an_engine_that_lets_in_whoever_comes(files: Path, looked_at: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server-cert.pem", files / "server-key.pem")
    with serving(context) as port:
        found = looked_at(port)
        assert found.verdict == "wrong"
        assert "lets in whoever comes, without a certificate" in found.message
        assert "--tlsverify" in found.fix
        named = looked_at(port, "localhost")
        assert named.verdict == "wrong"
        assert "its certificate is not accepted" in named.message
        assert "localhost" in named.message


def test_a_port_that_does_not_talk_tls(looked_at: Any) -> None:
    with serving(None) as port:
        found = looked_at(port)
    assert (found.verdict, found.check) == ("wrong", "tls")
    assert "does not talk TLS" in found.message


def test_a_port_that_is_closed_says_nothing_of_tls(looked_at: Any) -> None:
    with serving(None) as port:
        pass
    found = looked_at(port)
    assert found.verdict == "not-checked"
    assert "Connection refused" in found.message

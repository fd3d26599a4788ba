"""The doctor's questions to a node's engine. They block: asked in a worker's thread, each with a time limit."""

from __future__ import annotations

import http.client
import re
import shlex
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker.errors

from ..diagnosis import Check, right, unchecked, wrong
from ..errors import NodeUnreachable
from ..inventory import NodeSpec
from .engine import Engine, check_readable, said

__all__ = [
    "OLDEST_API",
    "api",
    "docker_command",
    "engine_answers",
    "image_there",
    "not_in_time",
    "remedy",
    "runtime",
    "secure",
]

OLDEST_API = (1, 40)
"""The first API of Docker that knows device requests (Docker 19.03)."""
_TALKS_WITHIN = 4.0  # s
_TOOLKIT = (
    "sudo apt-get install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker "
    "&& sudo systemctl restart docker    # on that machine"
)


def docker_command(spec: NodeSpec) -> str:
    """The `docker` command line for that node's engine, as typed here."""
    if spec.docker is None or spec.docker == "unix:///var/run/docker.sock":
        return "docker"
    command = f"docker -H {shlex.quote(spec.docker)}"
    return f"DOCKER_CERT_PATH={shlex.quote(spec.tls)} {command} --tlsverify" if spec.tls else command


# --- the connection


def secure(spec: NodeSpec) -> Check:
    """`tls`: whether what is said to the engine can be read, or said, by others."""
    url = urlsplit(spec.docker or "")
    if url.scheme == "unix":
        return right("tls", "a socket of this machine")
    if url.scheme == "ssh":
        return right("tls", "by ssh")
    if spec.tls is None:
        return right("tls", f"none, by insecure = true in gpufit.toml: whoever reaches {url.netloc} is root there")
    try:
        folder = Path(spec.tls).expanduser()
        for name in ("ca.pem", "cert.pem", "key.pem"):
            check_readable(folder / name, spec)
        ours = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        anonymous = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        ours.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    except NodeUnreachable as error:
        return wrong("tls", error.message, f"scp {spec.name}:DIRECTORY/{{ca,cert,key}}.pem {shlex.quote(spec.tls)}")
    except (ssl.SSLError, OSError) as error:
        return wrong("tls", f"the TLS files in {spec.tls!r} cannot be used: {_words(error)}", _new_certificate(spec))
    try:
        _ping(url.hostname or "", url.port or 2376, ours)
    except ssl.SSLError as error:
        return wrong("tls", *_why_refused(spec, error))
    except (OSError, http.client.HTTPException) as error:
        return unchecked("tls", f"{url.netloc} does not get so far: {_words(error)}")
    if _lets_in(url.hostname or "", url.port or 2376, anonymous):
        return wrong(
            "tls",
            f"{url.netloc} lets in whoever comes, without a certificate: that is root for everybody on the network",
            "dockerd --tlsverify --tlscacert=ca.pem …    # on that machine: `tlsverify` in /etc/docker/daemon.json",
        )
    return right("tls", "its certificate is accepted, ours too, and nobody gets in without one")


def _ping(host: str, port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(host, port, timeout=_TALKS_WITHIN, context=context)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status
    finally:
        connection.close()


def _lets_in(host: str, port: int, anonymous: ssl.SSLContext) -> bool:
    try:
        return _ping(host, port, anonymous) == 200
    except (OSError, http.client.HTTPException):  # ssl.SSLError is an OSError
        return False


def _why_refused(spec: NodeSpec, error: ssl.SSLError) -> tuple[str, str]:
    words = _words(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {words}", _new_certificate(spec)
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return (
            f"what answers at {urlsplit(spec.docker or '').netloc} does not talk TLS",
            "dockerd --tlsverify …    # on that machine; Docker's port with TLS is 2376",
        )
    return f"it does not accept our certificate: {words}", _new_certificate(spec)


def _new_certificate(spec: NodeSpec) -> str:
    host = urlsplit(spec.docker or "").hostname
    return f'tls = "…"    # in gpufit.toml: a directory with ca.pem, cert.pem and key.pem that go with {host}'


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, TimeoutError):
        return f"no answer within {_TALKS_WITHIN:.0f} s"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


# --- what it says of itself


def engine_answers(engine: Engine, spec: NodeSpec) -> tuple[Check, dict[str, Any]]:
    """`engine`, and its answer to `GET /version` and `GET /info` (empty if there is none)."""
    began = time.monotonic()
    try:
        with engine.answering():
            client = engine.client()
            about = {**client.info(), **client.version()}
    except NodeUnreachable as error:
        return wrong("engine", error.message, _when_silent(spec, error.message)), {}
    except docker.errors.APIError as error:
        return wrong("engine", f"{spec.docker} answers with an error: {said(error)}", _when_silent(spec, "")), {}
    took = max(1, round((time.monotonic() - began) * 1000))
    return right("engine", f"{spec.docker} answers in {took} ms: Docker {about.get('Version', '?')}"), about


def _when_silent(spec: NodeSpec, complaint: str) -> str:
    scheme = urlsplit(spec.docker or "").scheme
    if "ermission denied" in complaint and scheme == "unix":
        return "sudo usermod -aG docker $USER    # and log in again"
    if scheme == "ssh":
        return f"{docker_command(spec)} version    # what ssh says here has to be mended first"
    return "sudo systemctl restart docker    # on that machine; and is it that address, and that port?"


def not_in_time(spec: NodeSpec, seconds: float) -> Check:
    """`engine`, if it did not answer."""
    return wrong("engine", f"{spec.docker} did not answer within {seconds:.0f} s", _when_silent(spec, ""))


def api(about: dict[str, Any]) -> Check:
    """`api`: whether it knows what is asked of it."""
    version = str(about.get("ApiVersion", ""))
    oldest = ".".join(map(str, OLDEST_API))
    numbers = re.fullmatch(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return unchecked("api", f"its API version {version!r} cannot be read")
    if (int(numbers[1]), int(numbers[2])) < OLDEST_API:
        fix = "https://docs.docker.com/engine/install    # Docker 19.03 or later"
        return wrong("api", f"its API is {version}; {oldest} is the first by which GPUs can be given", fix)
    return right("api", f"{version} ({oldest} or later is needed)")


def runtime(about: dict[str, Any]) -> Check:
    """`runtime`: whether it can give GPUs to containers, as far as it says by itself."""
    if "nvidia" in (about.get("Runtimes") or {}):
        return right("runtime", "it has the `nvidia` runtime")
    devices = [str(device.get("ID", "")) for device in about.get("DiscoveredDevices") or ()]
    if named := [device for device in devices if device.startswith("nvidia.com/")]:
        return right("runtime", f"it has CDI devices: {', '.join(named[:4])}{' …' if len(named) > 4 else ''}")
    return unchecked(
        "runtime",
        "it names neither an `nvidia` runtime nor CDI devices; NVIDIA's hook, which it does not tell of, may be there "
        "all the same: --deep tries it",
        _TOOLKIT,
    )


def remedy(words: str) -> str:
    """What mends an engine that refused, by these words, to start a container; empty: unknown."""
    if "cannot give GPUs" in words:
        return _TOOLKIT
    if missing := re.search(r"source path does not exist: (\S+)", words):
        return f"sudo mkdir -p {missing[1]}    # on that machine; or mount another directory in gpufit.toml"
    if "is not an address of that machine's own" in words:
        return 'address = "…"    # in gpufit.toml: that machine\'s name, instead of a number'
    return ""


def image_there(engine: Engine, spec: NodeSpec) -> Check:
    """`image`: whether the node has the image that its containers get by default."""
    fix = f"{docker_command(spec)} pull {shlex.quote(spec.image)}"
    try:
        with engine.answering():
            found = engine.client().inspect_image(spec.image)
    except docker.errors.ImageNotFound:
        if spec.pull == "never":
            return wrong("image", f"{spec.image} is not there, and gpufit.toml says pull = 'never'", fix)
        return unchecked("image", f"{spec.image} is not there yet; the first request waits until it is pulled", fix)
    except docker.errors.APIError as error:
        return wrong("image", f"{spec.image}: the engine says {said(error)}", fix)
    except NodeUnreachable as error:
        return unchecked("image", error.message)
    return right("image", f"{spec.image} is there ({found.get('Size', 0) / 2**30:.1f} GiB)")

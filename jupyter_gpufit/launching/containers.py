"""What is asked of an engine for one unit, and what its answers say. Pure: no calls.

Nothing of a launch's command, environment or files is in what is created, so `docker inspect` shows none of it: they
are put in at start, as files of the directory `/gpufit`.
"""

from __future__ import annotations

import io
import ipaddress
import os
import shlex
import tarfile
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from ..errors import LaunchError, NodeUnfit
from ..inventory import MODELS, NodeSpec
from ..models import Launch, Unit
from . import labels
from .base import IMAGE_UNUSABLE, Places, fill_in, threads

__all__ = [
    "GPUFIT",
    "HOME",
    "OUTPUTS",
    "PORTS",
    "WORK",
    "Reach",
    "archive",
    "check_disk",
    "check_folder",
    "create_body",
    "host_ports",
    "ours",
    "reach",
    "run_script",
    "unit",
    "why_not_made",
    "why_not_started",
]

GPUFIT = "/gpufit"
WORK = "/work"
OUTPUTS = "/outputs"
HOME = f"{GPUFIT}/home"
"""Where a unit is at home whose user is not one of the image."""
NAME = "gpufit"
"""What that user is called, as far as programs ask the environment (some fail if nobody tells)."""
PORTS = (52001, 52002, 52003, 52004, 52005)
LOG_SIZE = "8m"
CUDA_LIKE = [["gpu"]]

# The files come before the start, so it does not wait; only one made long ago is started first (see docker.py).
ENTRYPOINT = ["/bin/sh", "-c", f"until [ -e {GPUFIT}/run ]; do sleep 0.1; done; exec /bin/sh {GPUFIT}/run"]


class Reach(Struct, frozen=True):
    """How the kernels of a node are reached."""

    bind: str
    """The node's address on which their ports are published."""
    host: str
    """The address to dial."""
    encrypt: bool


def reach(spec: NodeSpec) -> Reach:
    """On loopback in plaintext if the node is this machine, else encrypted: on its address if that is given as a
    number, on all of its addresses if it is a name."""
    host = spec.reached_at
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        if host == "localhost":
            return Reach("127.0.0.1", "127.0.0.1", False)
        return Reach("0.0.0.0", host, True)  # published on the node, not listened on here
    if address.is_loopback:
        return Reach(str(address), str(address), False)
    return Reach(str(address), str(address), True)


def ours() -> str:
    """The user of this process, as Docker takes it: what is written to a mounted folder has to belong to them."""
    return f"{os.getuid()}:{os.getgid()}"


def check_folder(spec: NodeSpec, folder: str) -> str:
    """What is to be mounted for `folder`: its real path, as a link could lead anywhere on the node. Blocks.

    Raises `LaunchError` for one that cannot be mounted at its own path, whatever the node has there.
    """
    path = PurePosixPath(folder)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[1] in ("proc", "sys", "dev"):
        raise LaunchError(f"the folder {folder!r} cannot be mounted in a container; work in another one", logs="")
    taken = [GPUFIT] if spec.models is None else [GPUFIT, MODELS]
    if any(path.is_relative_to(place) for place in taken):
        raise LaunchError(
            f"the folder {folder!r} cannot be mounted: containers have something of their own there "
            f"({' and '.join(taken)}); work in another one",
            logs="",
        )
    real = os.path.realpath(folder)
    if not (spec.shares(folder) and spec.shares(real)):
        leads = "" if real == folder else f", to which {folder!r} leads,"
        raise LaunchError(
            f"the folder {real!r}{leads} is not shared with {spec.name}; add it to `shared` in gpufit.toml, if that "
            "machine has it at the same path",
            logs="",
        )
    return real


def create_body(
    spec: NodeSpec,
    launch: Launch,
    image: str,
    bind: str,
    source: str = "",
    us: str = "",
    says: Container[str] = (),
    cores: float | None = None,
) -> dict[str, Any]:
    """The body of Docker's `POST /containers/create` for `launch`. With a folder: its real path is `source`, and the
    unit's user `us` (default: itself; ours). `says`: names of the variables that the image sets; `cores`: how many
    the machine has, if that is known."""
    wanted = launch.host_ports or ("",) * len(PORTS)
    ports = {
        f"{port}/tcp": [{"HostIp": bind, "HostPort": str(given)}]
        for port, given in zip(PORTS, wanted, strict=True)
        if not launch.workspace  # a job has no kernel
    }
    mounts = [
        _bind(mount.source, mount.target, mount.read_only) for mount in spec.mounts if mount.target != launch.folder
    ]
    environment = []
    if spec.models is not None:
        mounts.append(_bind(spec.models, MODELS, not (launch.write_models and spec.models_write)))
        environment.append(f"GPUFIT_MODELS={MODELS}")
    if launch.folder is not None:
        mounts.append(_bind(source or launch.folder, launch.folder, False))
        environment += [f"HOME={HOME}", f"USER={NAME}", f"LOGNAME={NAME}"]
    if not launch.gpus:  # images made for CUDA say "all", and an engine whose default runtime is NVIDIA's obeys
        environment.append("NVIDIA_VISIBLE_DEVICES=void")
    host: dict[str, Any] = {
        "Init": True,  # a kernel that is process 1 does not interrupt what has child processes
        "ShmSize": spec.shm_size,
        "PidsLimit": spec.pids,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "Mounts": mounts,
        "PortBindings": ports,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": LOG_SIZE, "max-file": "2"}},
        "RestartPolicy": {"Name": "no"},
    }
    if (ram := spec.ram if launch.ram is None else launch.ram) is not None:
        host |= {"Memory": ram, "MemorySwap": ram}  # equal: no swap on top
    if (cpus := spec.cpus if launch.cpus is None else launch.cpus) is not None:
        host["NanoCpus"] = round(min(cpus, cores or cpus) * 1e9)  # engines refuse a limit beyond what there is
    environment += [f"{name}={count}" for name, count in threads(launch.cpus).items() if name not in says]
    if launch.gpus:
        host["DeviceRequests"] = [{"DeviceIDs": list(launch.gpus), "Capabilities": CUDA_LIKE}]
    body: dict[str, Any] = {
        "Image": image,
        "Entrypoint": ENTRYPOINT,
        "Env": environment,
        "Labels": labels.encode(launch),
        "ExposedPorts": {port: {} for port in ports},
        "HostConfig": host,
    }
    if (work := launch.folder or (WORK if launch.workspace else spec.workdir)) is not None:
        body["WorkingDir"] = work
    if launch.folder is not None:
        body["User"] = us or ours()
        host["GroupAdd"] = [str(group) for group in os.getgroups()]  # a folder may be a group's
    return body


def _bind(source: str, target: str, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}  # no such source is an error


def unit(spec: NodeSpec, id: str, name: str, allocation: str) -> Unit:
    """The unit that is the container `id`."""
    return Unit(
        id=id,
        name=name,
        node=spec.name,
        allocation=allocation,
        inner_ip="0.0.0.0",  # its own network namespace's
        inner_ports=PORTS,
        encrypt=reach(spec).encrypt,
    )


def run_script(command: Sequence[str], env: Mapping[str, str], work: str = WORK) -> bytes:
    """The shell script that becomes `command`, with `env` set; `work`: where it works."""
    places = Places(GPUFIT, work, OUTPUTS)
    lines = ["#!/bin/sh", "exec 2>&1  # of two streams the engine does not keep the order"]
    lines += [f"export {name}={shlex.quote(fill_in(value, places))}" for name, value in env.items()]
    words = [shlex.quote(fill_in(word, places)) for word in command]
    if command[0] == "{python}":
        lines += [
            "python=$(command -v python3 || command -v python) || {",
            '    echo "gpufit: this image has no python3 on its PATH ($PATH);'
            " use one with Python and 'ipykernel>=7.4'\" >&2",
            f"    exit {IMAGE_UNUSABLE}",
            "}",
        ]
        words[0] = '"$python"'
    lines.append(f"exec {' '.join(words)}")
    return "\n".join((*lines, "")).encode()


def archive(files: Mapping[str, bytes], owner: tuple[int, int] | None, folders: Iterable[str] = ()) -> bytes:
    """`files` as a tar to unpack at `/`, and `folders` (absolute), theirs alone whose uid and gid is `owner`.

    Without an owner (the image names a user that it does not have) everybody in the container may read and write them.
    """
    uid, gid = owner or (0, 0)
    folder_mode, file_mode = (0o777, 0o666) if owner is None else (0o700, 0o600)
    now = int(time.time())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(path: str, mode: int, content: bytes | None) -> None:
            info = tarfile.TarInfo(path)
            info.uid, info.gid, info.mode, info.mtime = uid, gid, mode, now
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.size = len(content or b"")
            tar.addfile(info, None if content is None else io.BytesIO(content))

        root = GPUFIT.strip("/")
        add(root, folder_mode, None)
        made: set[str] = set()
        for name, content in files.items():
            parts = name.split("/")
            if not all(parts) or ".." in parts:
                raise LaunchError(f"file {name!r} would lie outside the unit's directory")
            for depth in range(1, len(parts)):
                if (folder := "/".join(parts[:depth])) not in made:
                    made.add(folder)
                    add(f"{root}/{folder}", folder_mode, None)
            add(f"{root}/{name}", file_mode, content)
        for name in folders:
            add(name.strip("/"), folder_mode, None)
    return buffer.getvalue()


def host_ports(inspected: Mapping[str, Any]) -> tuple[int, ...]:
    """The node's ports on which `PORTS` are published, from `GET /containers/{id}/json` of a running container."""
    published = inspected["NetworkSettings"]["Ports"]
    try:
        return tuple(int(published[f"{port}/tcp"][0]["HostPort"]) for port in PORTS)
    except (KeyError, IndexError, TypeError):
        raise LaunchError(f"the engine has not published the kernel's ports ({published})") from None


def check_disk(node: str, words: str) -> None:
    """Raises `NodeUnfit` if the engine's `words` are that its disk is full."""
    if "no space left on device" in words.lower() or "disk quota exceeded" in words.lower():
        raise NodeUnfit(
            f"the disk of {node} is full ({words.rstrip('.')}); free some there, for example by `docker system prune`",
            logs="",
        ) from None


def why_not_made(words: str, node: str, folder: str) -> str:
    """An engine's refusal to make a container, for people. `folder`: what of here was to be mounted."""
    if folder and words.rstrip().endswith(f"bind source path does not exist: {folder}"):
        return (
            f"the folder {folder!r} is not on {node}, and gpufit.toml says that it is shared there; "
            "see that it is mounted on that machine, or take it out of `shared`"
        )
    return f"{node} cannot make a container: {words}"


def why_not_started(words: str, bind: str) -> str:
    """An engine's refusal to start a container, for people. `bind`: where its ports were to be published."""
    if "No such container" in words:
        return "its container was removed by somebody before it was started; request again"
    if "could not select device driver" in words:
        return "its engine cannot give GPUs to containers; install nvidia-container-toolkit on that machine"
    if "port is already allocated" in words or "address already in use" in words:
        return f"a port the kernel had before its restart is in use by another program now ({words}); request again"
    if "cannot assign requested address" in words:
        return (
            f"{bind} is not an address of that machine's own; in gpufit.toml give its name as the address, "
            "and kernels are published on all of its addresses"
        )
    return words

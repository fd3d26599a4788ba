"""`gpufit.toml`: which nodes the cluster has.

    find      --inventory, $GPUFIT_INVENTORY, the Jupyter config path   → the file, or None
    load      the file → Inventory; None → this machine is the cluster

Every error is an `InventoryError` whose message says where (file, `[[node]]`, key), the value, why, and what to write.
The cluster's poller calls `load`, also on every change (in a thread: it reads files and may ask the local engine).
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from .errors import InventoryError

__all__ = ["MODELS", "OWN", "POLICIES", "Inventory", "Mount", "NodeSpec", "Quota", "find", "load"]

POLICIES: Final = ("best-fit", "claim", "fragmentation", "balance")
"""What `policy` may be: the names of `scheduling/policies.py` (a test compares the two)."""
FILE: Final = "gpufit.toml"
MODELS: Final = "/models"
"""Where containers get the node's model store."""
OWN: Final = ("/gpufit", "/work", "/outputs")
"""Directories that containers have of their own (`launching/containers.py`)."""


class Mount(Struct, frozen=True, kw_only=True):
    """A host directory that containers of a node get."""

    source: str
    target: str
    read_only: bool = True


class NodeSpec(Struct, frozen=True, kw_only=True):
    """One `[[node]]`, with the `[defaults]` filled in. Durations in seconds, sizes in bytes."""

    name: str
    docker: str | None = None
    """`unix://…`, `tcp://host:port` or `ssh://user@host`; `None`: plain processes on this machine."""
    report: str = "local"
    """`http(s)://host:port`, `local`, or `simulated:SPEC`."""
    report_token_file: str | None = None
    address: str | None = None
    """Where kernel ports are reached; default: the docker host."""
    monitor_period: float = 5.0
    timeout: float = 4.0
    stale_after: float = 30.0
    """A report older than this is not acted on. Default in a file: at least three monitoring periods and a timeout."""
    idle_after: float | None = None
    """An allocation whose kernel and GPUs do nothing for so long is released; `None`: never."""
    idle_warning: float = 600.0
    """So long before that it is warned; half of `idle_after` if that is less."""
    image: str = "quay.io/jupyter/pytorch-notebook:cuda12-latest"
    images: tuple[str, ...] = ()
    """Globs of images people may ask for; `image` is always allowed."""
    pull: str = "missing"
    """`missing`, `never` or `always`."""
    shm_size: int = 2**30
    ram: int | None = None
    """The most host memory (bytes) a container may have; one that asks for none gets so much. `None`: no limit."""
    cpus: float | None = None
    """The most cores, likewise."""
    pids: int = 4096
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()
    tls: str | None = None
    """Directory with `ca.pem`, `cert.pem` and `key.pem`, as Docker names them."""
    insecure: bool = False
    """Plain `tcp://` Docker without TLS is refused unless this is true."""
    allow_plaintext: bool = False
    """Kernels whose ipykernel is too old for CurveZMQ are refused unless this is true."""
    models: str | None = None
    """Directory of its model store, on the node."""
    models_write: bool = True
    """Whether a request may ask to write there."""
    shared: tuple[str, ...] = ()
    """Directories that the node has at the same path as this machine (NFS): a request's folder below one of them is
    mounted, not copied."""
    enforce: str = "warn"
    """What becomes of an allocation that uses more memory of a GPU than it asked for: `warn`; `stop` ends it, if it
    shares that GPU with others."""
    labels: dict[str, str] = {}

    @property
    def launcher(self) -> str:
        """`docker` or `process`."""
        return "process" if self.docker is None else "docker"

    @property
    def reached_at(self) -> str:
        """`address`, or what that is by default: the host of `docker`; loopback for `unix://` and plain processes."""
        if self.address is not None:
            return self.address
        return (urlsplit(self.docker).hostname if self.docker else None) or "127.0.0.1"

    def shares(self, folder: str) -> bool:
        """Whether the node has `folder` (an absolute path of this machine), too. A plain process has all this machine
        has."""
        path = PurePosixPath(folder)
        if ".." in path.parts:  # it is not where it seems to be
            return False
        return self.launcher == "process" or any(path.is_relative_to(shared) for shared in self.shared)

    def allows(self, image: str) -> bool:
        """Whether containers of `image` may run there."""
        return image == self.image or any(fnmatchcase(image, pattern) for pattern in self.images)


class Quota(Struct, frozen=True, kw_only=True):
    """What one person may have: `[quota]`, and over it `[quota.owner.NAME]`. `None`: no limit."""

    gpus: int | None = None
    """GPUs at once, of all their allocations together."""
    allocations: int | None = None
    """Allocations at once, waiting ones not counted."""
    time: float | None = None
    """Seconds that an allocation may last; also the time of one that asks for none."""
    wait: float | None = None
    """Seconds that a request may wait."""
    priority: int | None = None
    """The highest priority that may be asked for. In a file that has any quota it is 0 unless said."""


class Inventory(Struct, frozen=True, kw_only=True):
    """The cluster, as described by one file (or by nothing: this machine)."""

    nodes: tuple[NodeSpec, ...]
    policy: str = "best-fit"
    path: str | None = None
    """The file it came from."""
    all_quota: Quota = Quota()
    """Of everybody who has no quota of their own."""
    own_quotas: dict[str, Quota] = {}
    """Owner -> their quota, with what it does not say filled in from `all_quota`."""

    def quota(self, owner: str) -> Quota:
        """What `owner` may have."""
        return self.own_quotas.get(owner, self.all_quota)


# --- finding and reading the file -------------------------------------------------------------------------------------


def find(path: str | os.PathLike[str] | None = None) -> Path | None:
    """The inventory to read: `path` (of `--inventory`), else `$GPUFIT_INVENTORY`, else the first `gpufit.toml` on the
    Jupyter config path; `None` if there is none.

    One that was named is returned whether it exists or not: `load` says what is wrong with it. Called by the poller
    (again on every look for changes) and the command line.
    """
    if named := path or os.environ.get("GPUFIT_INVENTORY"):
        return Path(named).expanduser().absolute()
    from jupyter_core.paths import jupyter_config_path

    files = (os.path.join(folder, FILE) for folder in jupyter_config_path())
    # os.path's, not Path's: a directory that is closed to us is no error.
    return next((Path(file) for file in files if os.path.isfile(file)), None)


def load(path: Path | None) -> Inventory:
    """Read and validate `path`; with `None`, describe this machine. Raises `InventoryError`.

    Blocks for as long as the disk takes, or with `None` the local Docker Engine (about a second at most).
    """
    if path is None:
        from ._this_machine import this_machine

        return Inventory(nodes=(this_machine(),))
    from ._gpufit_toml import parse

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InventoryError(f"{path}: cannot be read: {error.strerror or error}", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise InventoryError(
            f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}", file=str(path)
        ) from None
    return parse(text, path)

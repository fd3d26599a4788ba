"""`gpufit.toml`: which nodes the cluster has. (`load` finds, reads and validates it; `watch`ing for changes is the poller's.)"""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Inventory", "Mount", "NodeSpec"]


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
    image: str = "quay.io/jupyter/pytorch-notebook:cuda12-latest"
    images: tuple[str, ...] = ()
    """Globs of images people may ask for; `image` is always allowed."""
    pull: str = "missing"
    """`missing`, `never` or `always`."""
    shm_size: int = 2**30
    ram: int | None = None
    """Limit of host memory of a container."""
    cpus: float | None = None
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
    labels: dict[str, str] = {}

    @property
    def launcher(self) -> str:
        """`docker` or `process`."""
        return "process" if self.docker is None else "docker"


class Inventory(Struct, frozen=True, kw_only=True):
    """The cluster, as described by one file (or by nothing: this machine)."""

    nodes: tuple[NodeSpec, ...]
    policy: str = "best-fit"
    path: str | None = None
    """The file it came from."""

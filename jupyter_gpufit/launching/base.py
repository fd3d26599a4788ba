"""What both launchers share, and `make_launcher`, the only name the other rooms need.

The parts of this room, and who uses them:

    make_launcher(spec) ─┬─ docker.DockerLauncher     containers of one engine
                         │     engine, dial (its client) · containers, labels, users (what is made) · pulling
                         │     prepared (what is known of one) · files, asking (in and out of it) · halting, removing
                         │     events → states (what is known without asking)
                         └─ process.ProcessLauncher   processes on this machine
                               supervisor, line, spare (our end) · supervise (its end) · ports
                               directory (all claims), sweeping (what was left)
    both                       claims (what fits together) · worker (the node's own threads) · printed (logs)
                               carrying, tarring (files in and out)
                               machine (how large it is)
    for the doctor             examine
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from ..errors import ImageRefused
from ..inventory import NodeSpec
from ..memory import format_memory

if TYPE_CHECKING:
    from ..scheduling.needs import Launcher

__all__ = [
    "IMAGE_REFUSED",
    "IMAGE_UNUSABLE",
    "KEPT",
    "LOG_LINES",
    "SETTLES_WITHIN",
    "Places",
    "check_image",
    "describe_end",
    "environment",
    "fill_in",
    "keep",
    "make_launcher",
    "refusal",
    "threads",
]

IMAGE_UNUSABLE = 90
"""Exit code of a unit whose image lacks what a kernel needs (kernels/bootstrap/launch.py, and our own run script)."""
IMAGE_REFUSED = (IMAGE_UNUSABLE, 127)
"""... or lacks the shell to say it (the init's code for a program that is not there)."""
SETTLES_WITHIN = 0.05
"""Seconds for which a unit's end is kept back after `start` returned, for its caller to note first that it runs."""
LOG_LINES = 50
"""How many of a failed unit's last lines people are shown."""
KEPT = 1000
"""How much is remembered of units that exist no more."""

T = TypeVar("T")

_PASSED = """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR
    LD_LIBRARY_PATH DYLD_LIBRARY_PATH CUDA_HOME CUDA_PATH VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONPATH
    JUPYTER_PATH JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR IPYTHONDIR MPLCONFIGDIR HF_HOME TORCH_HOME SSL_CERT_FILE
    SSL_CERT_DIR REQUESTS_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy
""".split()  # noqa: SIM905


def make_launcher(spec: NodeSpec) -> Launcher:
    """The launcher for a node of the inventory. Connects to nothing yet (`open` does). Called by the scheduler."""
    if spec.launcher == "process":
        from .process import ProcessLauncher

        return ProcessLauncher(spec)
    from .docker import DockerLauncher

    return DockerLauncher(spec)


def environment(source: Mapping[str, str]) -> dict[str, str]:
    """What of the server's environment (`source`) a local process may see: an allow-list. The rest holds tokens (of a
    Hub, of clouds), and `JPY_PARENT_PID`, with which a kernel would exit at once. A container sees none of it."""
    return {name: value for name, value in source.items() if name in _PASSED or name.startswith("LC_")}


class Places(Struct, frozen=True):
    """A unit's directories, as what runs in it has them."""

    gpufit: str
    """`{gpufit}`: its files (`Launcher.start`)."""
    work: str
    """`{work}`: where it works."""
    outputs: str
    """`{outputs}`: what a job makes, and gets to keep."""


def threads(cpus: float | None) -> dict[str, str]:
    """Variables by which programs in a unit that asked for `cpus` cores start so many threads (most would start one for
    each core of the machine, and 128 threads on 8 cores are slower than 8)."""
    if cpus is None:
        return {}
    return dict.fromkeys(("OMP_NUM_THREADS", "PYTHON_CPU_COUNT"), str(math.ceil(cpus)))


def fill_in(text: str, places: Places) -> str:
    """`text` of a command, an environment or a path, with the unit's directories put in."""
    return re.sub(r"\{(gpufit|work|outputs)\}", lambda match: str(getattr(places, match[1])), text)


def keep(known: dict[str, T], key: str, value: T) -> None:
    """Put it into `known`, and forget there what is older than the last `KEPT`."""
    known[key] = value
    while len(known) > KEPT:
        del known[next(iter(known))]


def check_image(spec: NodeSpec, image: str) -> None:
    """Raises `ImageRefused` unless the inventory allows `image` on this node."""
    if spec.allows(image):
        return
    allowed = ", ".join((spec.image, *spec.images))
    raise ImageRefused(f"image {image!r} is not allowed on {spec.name}; allowed there: {allowed}", image=image)


def refusal(lines: Sequence[str]) -> str | None:
    """Why a unit's image could not be used, by its last `lines`: the last one that starts with `gpufit: `, or what the
    init complains of. To be asked only for an exit code in `IMAGE_REFUSED`."""
    said = [line.strip().removeprefix("gpufit: ") for line in lines if line.strip().startswith("gpufit: ")]
    if not said and any("exec /bin/sh failed" in line for line in lines):
        return "this image has no /bin/sh, with which a kernel is started; use one that has"
    return said[-1] if said else None


def describe_end(code: int, *, memory: bool = False, limit: int | None = None, said: str | None = None) -> str:
    """One sentence for people on an end with exit code `code`; `memory`: it was killed for memory, of which it had
    `limit` bytes; `said`: its own reason."""
    if memory:
        return (
            f"killed for memory: limit {format_memory(limit)}" if limit else "killed for memory: the node had none left"
        )
    if said:
        return said
    if 128 < code < 128 + signal.NSIG:
        try:
            return f"killed by {signal.Signals(code - 128).name} (exit code {code})"
        except ValueError:
            return f"killed by signal {code - 128} (exit code {code})"
    return f"ended with exit code {code}"

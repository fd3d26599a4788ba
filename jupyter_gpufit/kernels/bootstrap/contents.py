"""What is put into a unit: `launch.py`, which starts the kernel, `attached.py`, which is its `%gpufit`, and
`notices.py`, by which it hears what is to come (`completing.py` is a part of the former); and the memory guard, which
`guard.py` tells of.

They run there with no other package than ipykernel. This module, which does not run there, says what goes where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ...models import Allocation
from .guard import guard_files
from .launch import ALLOW_PLAINTEXT, IMAGE_UNUSABLE, SAYS

__all__ = [
    "ALLOW_PLAINTEXT",
    "IMAGE_UNUSABLE",
    "SAYS",
    "command",
    "environment",
    "files",
    "held",
    "magic_files",
    "notice",
]

_CONNECTION_FILE = "{connection_file}"
_PYTHONS = ("python", "python3", "{python}")


def files(connection_name: str, connection: bytes, shown: str = "") -> dict[str, bytes]:
    """What `Scheduler.launch` puts into the unit's gpufit directory: path relative to it → content.

    `shown` is what the first cell that runs shows.
    """
    sources = _sources()
    return {**sources, connection_name: connection} | ({"notice.txt": shown.encode()} if shown else {})


def magic_files() -> dict[str, bytes]:
    """`%gpufit` alone, for a notebook that runs as a job (`jobs/contents.py`): a `remote` directory to import from."""
    return {name: content for name, content in _sources().items() if name.startswith("remote/")}


def notice(last_words: str) -> str:
    """What the first cell shows of how the kernel before ended."""
    if not last_words:
        return ""
    return (
        f"gpufit: the kernel before this one ended: {last_words}\n"
        "This is a new one on the same GPUs; its variables are gone."
    )


def command(
    argv: Sequence[str], connection_name: str, cwd: str | None = None, allow_plaintext: bool = False
) -> list[str]:
    """The unit's command for a kernelspec's `argv`. What is no Python module is started as the kernelspec says."""
    connection_file = f"{{gpufit}}/{connection_name}"
    words = [word.replace(_CONNECTION_FILE, connection_file) for word in argv]
    if words[:1] and words[0] in _PYTHONS:
        words[0] = "{python}"
    if words[:2] != ["{python}", "-m"]:
        return words
    options = [*(["--cwd", cwd] if cwd else []), *([ALLOW_PLAINTEXT] if allow_plaintext else [])]
    return ["{python}", "{gpufit}/launch.py", *options, connection_file, "--", *words[1:]]


def environment(allocation: Allocation, direct: bool) -> Mapping[str, str]:
    """What the kernel can read of its allocation. `direct`: its notebook was started on it, and has no local kernel."""
    return {"GPUFIT_ATTACHED": "1", **held(allocation), "GPUFIT_DIRECT": "1" if direct else "0"}


def held(allocation: Allocation) -> dict[str, str]:
    """What a kernel, and likewise a job (`jobs/contents.py`), can read of what it holds."""
    told = {
        "GPUFIT_ALLOCATION": allocation.id,
        "GPUFIT_NAME": allocation.name,
        "GPUFIT_NODE": allocation.node or "",
        "GPUFIT_GPUS": ",".join(allocation.gpus),
        "GPUFIT_MEMORY": ",".join(str(size) for size in allocation.memory),
    }
    asked = allocation.request
    wishes = {
        "GPUFIT_MODEL": asked.model or "",
        "GPUFIT_CPUS": "" if asked.cpus is None else f"{asked.cpus:g}",
        "GPUFIT_RAM": "" if asked.host_memory is None else str(asked.host_memory),
    }
    return told | {name: wish for name, wish in wishes.items() if wish}


@cache
def _sources() -> dict[str, bytes]:
    here = Path(__file__).parent
    return {
        "launch.py": (here / "launch.py").read_bytes(),
        "remote/jupyter_gpufit/__init__.py": (here / "attached.py").read_bytes(),
        "remote/jupyter_gpufit/completing.py": (here / "completing.py").read_bytes(),
        "remote/jupyter_gpufit/notices.py": (here / "notices.py").read_bytes(),
        **guard_files(),
    }

"""`%gpufit` in a kernel that runs on the GPUs: what it holds, and the way back. The same notebook runs here from the
top.

Put into every unit as its `jupyter_gpufit` (in a container there is no other), so it depends on nothing but IPython and
the standard library of Python 3.8. Where the whole package is installed, its `load_ipython_extension` uses this when it
finds itself in such a kernel. It cannot reach the Jupyter server; it asks by opening a comm, which the server listens
for.

    comm_open  target_name "jupyter_gpufit"  data {"action": "detach" | "release", "allocation": id}
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NoReturn

TARGET = "jupyter_gpufit"
LOCAL_ONLY = ("nodes", "gpus", "allocations", "explain", "attach", "logs")
VERBS = ("request", "detach", "release", *LOCAL_ONLY)

HELP = """%gpufit in a kernel that runs on the GPUs:

    %gpufit                     what this kernel holds
    %gpufit detach              back to the notebook's local kernel; the GPUs stay held, and so do this kernel's
                                variables
    %gpufit release             give the GPUs back, and back to the local kernel
    %gpufit request N …         nothing to do if that is what this kernel holds
    %%gpufit                    the cell runs here, where every cell of this notebook runs

The other verbs (nodes, gpus, allocations, explain, attach, logs) work in the local kernel.
"""


class Held:
    """What this kernel's allocation holds, as its environment tells."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.allocation = environment.get("GPUFIT_ALLOCATION", "")
        self.name = environment.get("GPUFIT_NAME", "")
        self.node = environment.get("GPUFIT_NODE", "")
        self.gpus = [uuid for uuid in environment.get("GPUFIT_GPUS", "").split(",") if uuid]
        self.memory = [int(size) for size in environment.get("GPUFIT_MEMORY", "").split(",") if size]
        self.direct = environment.get("GPUFIT_DIRECT") == "1"

    def __str__(self) -> str:
        noun = "GPU" if len(self.gpus) == 1 else "GPUs"
        sizes = sorted(set(self.memory))
        each = "" if len(self.gpus) == 1 or len(sizes) > 1 else " each"
        return f"{len(self.gpus)} {noun} with {', '.join(size_text(size) for size in sizes)}{each} on {self.node}"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext jupyter_gpufit`, and `launch.py` at the kernel's start. Registering once more changes nothing."""
    held = Held(os.environ)

    def gpufit(line: str) -> None:
        run(held, line)

    def gpufit_cell(line: str, cell: str) -> None:
        # Only what `run_here` has left alone comes here.
        usage(
            f"%%gpufit {line.strip()}: this kernel holds {held.name!r} alone; cells for another allocation, or GPUs of "
            f"their own, run from the local kernel. {way_back(held)}"
        )

    gpufit.__doc__ = HELP
    shell.register_magic_function(gpufit, "line", "gpufit")
    shell.register_magic_function(gpufit_cell, "cell", "gpufit")
    transforms = shell.input_transformers_cleanup
    transforms[:] = [transform for transform in transforms if getattr(transform, "gpufit", None) is None]
    transforms.append(run_here(held))
    shell.set_hook("complete_command", lambda _shell, _event: list(VERBS), str_key="%gpufit")


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext jupyter_gpufit`."""
    transforms = shell.input_transformers_cleanup
    transforms[:] = [transform for transform in transforms if getattr(transform, "gpufit", None) is None]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpufit", None)


def run_here(held: Held) -> Callable[[list[str]], list[str]]:
    """An input transformer: a `%%gpufit` cell that this kernel is meant to run is run as any other cell is."""

    def transform(lines: list[str]) -> list[str]:
        if not lines or not lines[0].startswith("%%gpufit"):
            return lines
        words = lines[0][len("%%gpufit") :].split()
        names = [
            word
            for at, word in enumerate(words)
            if not word.startswith("-") and (at == 0 or words[at - 1] not in PUSHES)
        ]
        others = [word for word in words if word.startswith("-") and word.partition("=")[0] not in PUSHES]
        if others or names not in ([], [held.name], [held.allocation]):
            return lines
        # A line in its place keeps the line numbers of tracebacks; but another cell magic has to come first.
        return lines[1:] if lines[1:2] and lines[1].startswith("%%") else ["# runs in this kernel\n", *lines[1:]]

    transform.gpufit = True  # type: ignore[attr-defined]  # how it is found again
    return transform


PUSHES = ("--push", "--pull")  # of no effect: the names are here, and stay here


def run(held: Held, line: str) -> None:
    """One `%gpufit …` line."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        usage(f"%gpufit {line}: {error}")
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb == "":
        show(held)
    elif verb == "request":
        request(held, rest)
    elif verb == "release":
        release(held, rest)
    elif verb == "detach":
        if held.direct:
            usage(
                "this notebook was started on the GPUs, and has no local kernel to go back to; "
                "choose one with Kernel > Change Kernel…"
            )
        ask("detach", held)
        print("Once this cell is done the notebook returns to its local kernel; its GPUs stay held.")
    elif verb in LOCAL_ONLY:
        print(f"%gpufit {verb} works in the local kernel. {way_back(held)}")
    elif verb in ("help", "-h", "--help", "?"):
        print(HELP)
    else:
        usage(f"%gpufit has no verb {verb!r}; it knows: {', '.join(VERBS)}")


def show(held: Held) -> None:
    """`%gpufit` alone."""
    print(f"This kernel holds {held}, as allocation {held.name!r}:")
    for uuid, size in zip(held.gpus, held.memory):  # noqa: B905  (Python 3.8)
        print(f"    {uuid}  {size_text(size)}")
    print(way_back(held))


def release(held: Held, words: list[str]) -> None:
    """`%gpufit release`."""
    names = [word for word in words if not word.startswith("-")]
    if names not in ([], [held.name], [held.allocation]):
        others = " ".join(names)
        usage(f"this kernel holds {held.name!r} alone; {others!r} is released from the local kernel. {way_back(held)}")
    ask("release", held)
    where = "this kernel ends" if held.direct else "the notebook returns to its local kernel"
    print(f"Once this cell is done the GPUs are given back, and {where}.")


def request(held: Held, words: list[str]) -> None:
    """Nothing to do if it asks for what is held; else say what to do."""
    parser = Parser(prog="%gpufit request", add_help=False, allow_abbrev=False)
    parser.add_argument("gpus", nargs="?", type=int, default=1)
    parser.add_argument("-m", "--memory", nargs="+", default=[])
    parser.add_argument("--name")
    asked, _ = parser.parse_known_args(words)
    sizes = [size_bytes(part) for word in asked.memory for part in word.split(",") if part]
    sizes = sizes * asked.gpus if len(sizes) <= 1 else sizes
    same_size = asked.gpus == len(held.gpus) and (not sizes or sorted(sizes) == sorted(held.memory))
    if asked.name == held.name or (asked.name is None and same_size):
        print(f"This notebook already runs on {held} ({held.name!r}); nothing to do.")
        return
    usage(
        f"this notebook already runs on {held} ({held.name!r}), which is not what is asked for here. {way_back(held)}"
    )


def ask(action: str, held: Held) -> None:
    """Ask the Jupyter server, which listens to what this kernel publishes."""
    from comm import create_comm

    create_comm(target_name=TARGET, data={"action": action, "allocation": held.allocation})


def way_back(held: Held) -> str:
    """What to do to be where the other verbs work."""
    if held.direct:
        return "To give them back: %gpufit release, or shut this kernel down."
    return "To go back: %gpufit detach (the GPUs stay held) or %gpufit release (they are given back)."


class Parser(argparse.ArgumentParser):
    """Says what is wrong as IPython does, and does not exit."""

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        usage(f"{self.prog}: {message}")


def usage(message: str) -> NoReturn:
    """End the line with `message`, without a traceback."""
    from IPython.core.error import UsageError

    raise UsageError(message)


def size_bytes(text: str) -> int:
    """Bytes meant by `"16GiB"`, as `jupyter_gpufit.memory` reads them."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])(ib|i|b)?|b)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        usage(f"{text!r} is not a size of memory; write it like '16GiB'")
    number, unit, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    return int(Fraction(number) * base ** ("kmgt".index(unit.lower()) + 1 if unit else 0))


def size_text(size: int) -> str:
    """`size` bytes for people, rounded down."""
    for unit, exponent in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        tenths = size * 10 // 1024**exponent
        if tenths >= 10:
            whole, tenth = divmod(tenths, 10)
            return f"{whole}.{tenth} {unit}" if tenth else f"{whole} {unit}"
    return f"{size} B"

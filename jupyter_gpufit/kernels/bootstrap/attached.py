"""`%gpufit` in a kernel that runs on the GPUs: what it holds, and the way back. The same notebook runs here from the
top.

Put into every unit as its `jupyter_gpufit` (in a container there is no other), so it depends on nothing but IPython,
`notices.py` and `completing.py` beside it, and the standard library of Python 3.8. Where the whole package is
installed, its `load_ipython_extension` uses this when it finds itself in such a kernel. It cannot reach the Jupyter
server; it asks by opening a comm, which the server listens for.

    comm_open  target_name "jupyter_gpufit"  data {"action": "detach" | "release", "allocation": id}
    ... with "all": true for `release --all`: all that the same person holds
    ... {"action": "extend", "allocation": id, "time": "1h", "ask": id of the question}, answered by a notice

Until that is done (the notebook leaves once this kernel has nothing left to do) the cells that are sent here meanwhile
run here. One that counts on GPUs beyond that must not: `request` and the like say so, and *Run All* stops.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NoReturn
from uuid import uuid4

from .completing import complete_no_longer, complete_with
from .notices import Notices

TARGET = "jupyter_gpufit"
TERMINAL_TOO = ("nodes", "gpus", "allocations", "explain", "train", "logs", "usage", "upload", "download", "models")
LOCAL_ONLY = ("panel", "attach", *TERMINAL_TOO)
VERBS = ("request", "extend", "detach", "release", *LOCAL_ONLY)

OPTIONS = {
    "request": ("--memory", "--cpus", "--ram", "--name", "--help"),
    "release": ("--all", "--help"),
    "": ("--help",),
}
"""What can be completed after a verb; after the others what the last entry has."""

ANSWERED_WITHIN = 5.0
"""Seconds in which the server says whether there is more time."""

LEAVES_WITHIN = 20.0
"""Seconds of idleness after which a `release` or `detach` that was asked for is done, or was never heard."""

HELP = """%gpufit in a kernel that runs on the GPUs:

    %gpufit                     what this kernel holds
    %gpufit extend 1h           an hour more, if its time is limited
    %gpufit detach              back to the notebook's local kernel; the GPUs stay held, and so do this kernel's
                                variables
    %gpufit release             give the GPUs back, and back to the local kernel
    %gpufit release --all       ... and give back everything else that you hold
    %gpufit request N …         nothing to do if that is what this kernel holds
    %%gpufit                    the cell runs here, where every cell of this notebook runs

The other verbs (panel, nodes, gpus, allocations, explain, attach, train, logs, usage, upload, download, models) work
in the local kernel; all but panel and attach in a terminal, too: jupyter gpufit VERB
"""


class Held:
    """What this kernel's allocation holds, as its environment tells."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.allocation = environment.get("GPUFIT_ALLOCATION", "")
        self.name = environment.get("GPUFIT_NAME", "")
        self.node = environment.get("GPUFIT_NODE", "")
        self.gpus = [uuid for uuid in environment.get("GPUFIT_GPUS", "").split(",") if uuid]
        self.memory = [int(size) for size in environment.get("GPUFIT_MEMORY", "").split(",") if size]
        self.cpus = float(environment.get("GPUFIT_CPUS") or 0)
        self.ram = int(environment.get("GPUFIT_RAM") or 0)
        """Of the machine, as far as any was asked for; else 0."""
        self.direct = environment.get("GPUFIT_DIRECT") == "1"
        self.job = environment.get("GPUFIT_JOB") == "1"
        """This kernel runs a notebook that is a job: nobody watches, and no server hears what is asked here."""

    def __str__(self) -> str:
        parts = [f"{len(self.gpus)} {'GPU' if len(self.gpus) == 1 else 'GPUs'}"]
        if any(sizes := sorted(set(self.memory))):
            each = "" if len(self.gpus) == 1 or len(sizes) > 1 else " each"
            parts[0] += f" with {', '.join(size_text(size) for size in sizes)}{each}"
        if self.cpus:
            parts.append(f"{self.cpus:g} {'CPU' if self.cpus == 1 else 'CPUs'}")
        if self.ram:
            parts.append(f"{size_text(self.ram)} RAM")
        return f"{', '.join(parts)} on {self.node}"


class Leaving:
    """What was asked for last, until it is done: `release` or `detach`. Kept on the shell, which outlives a reload.

    Nobody tells this kernel that it is done. A kernel that goes on, and was idle for long since, has stayed (or come
    back: then whoever attaches a notebook to it takes the mark away, see `notebook/forward.py`).
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def begin(self, action: str) -> None:
        """The server was asked."""
        self._shell.__dict__[MARK] = (action, None)

    def refuse(self, held: Held) -> None:
        """Raises `UsageError` if this kernel is about to be left."""
        action, _ = self._shell.__dict__.get(MARK, (None, None))
        if action == "release":
            usage(f"{held.name!r} is being given back; run this again in a moment")
        if action == "detach":
            usage(
                f"this notebook is about to return to its local kernel ({held.name!r} stays held); run this again in a "
                "moment"
            )

    def before_cell(self, *_: object) -> None:
        """Called by IPython."""
        action, idle_since = self._shell.__dict__.get(MARK, (None, None))
        if action is not None and idle_since is not None and time.monotonic() - idle_since > LEAVES_WITHIN:
            del self._shell.__dict__[MARK]

    def after_cell(self, *_: object) -> None:
        """Called by IPython."""
        if MARK in self._shell.__dict__:
            self._shell.__dict__[MARK] = (self._shell.__dict__[MARK][0], time.monotonic())


MARK = "_gpufit_leaving"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext jupyter_gpufit`, and `launch.py` at the kernel's start. Registering once more changes nothing."""
    unload_ipython_extension(shell)
    held, leaving, notices = Held(os.environ), Leaving(shell), Notices(shell)

    def gpufit(line: str) -> None:
        run(held, line, leaving, notices)

    def gpufit_cell(line: str, cell: str) -> None:
        # Only what `run_here` has left alone comes here.
        leaving.refuse(held)
        usage(
            f"%%gpufit {line.strip()}: this kernel holds {held.name!r} alone; cells for another allocation, or GPUs of "
            f"their own, run from the local kernel. {way_back(held)}"
        )

    gpufit.__doc__ = HELP
    shell.register_magic_function(gpufit, "line", "gpufit")
    shell.register_magic_function(gpufit_cell, "cell", "gpufit")
    shell.input_transformers_cleanup.append(run_here(held))
    for event, callback in (("pre_run_cell", leaving.before_cell), ("post_run_cell", leaving.after_cell)):
        shell.events.register(event, callback)
    notices.begin()
    shell.__dict__["_gpufit_bootstrap"] = leaving, notices
    complete_with(shell, lambda before: completions(held, before))


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext jupyter_gpufit`."""
    transforms = shell.input_transformers_cleanup
    transforms[:] = [transform for transform in transforms if getattr(transform, "gpufit", None) is None]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpufit", None)
    leaving, notices = shell.__dict__.pop("_gpufit_bootstrap", (None, None))
    if leaving is not None:
        notices.end()
        for event, callback in (("pre_run_cell", leaving.before_cell), ("post_run_cell", leaving.after_cell)):
            shell.events.unregister(event, callback)
    complete_no_longer(shell)


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
        if not held.job and (others or names not in ([], [held.name], [held.allocation])):
            return lines
        # A line in its place keeps the line numbers of tracebacks; but another cell magic has to come first.
        return lines[1:] if lines[1:2] and lines[1].startswith("%%") else ["# runs in this kernel\n", *lines[1:]]

    transform.gpufit = True  # type: ignore[attr-defined]  # how it is found again
    return transform


PUSHES = ("--push", "--pull")  # of no effect: the names are here, and stay here
HELPS = {"-h", "--help"}


def run(held: Held, line: str, leaving: Leaving, notices: Notices) -> None:
    """One `%gpufit …` line."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        usage(f"the line cannot be read: {str(error).lower()}")  # it may hold a secret (train --env)
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb == "":
        show(held)
    elif verb in ("help", "-h", "--help", "?") or HELPS.intersection(rest):
        print(HELP)
    elif held.job and verb in VERBS:
        # No error: the notebook goes on, as it does where it was written.
        print(f"%gpufit {verb}: nothing to do, this notebook runs as a job on {held}.")
    elif verb == "request":
        leaving.refuse(held)
        request(held, rest)
    elif verb == "extend":
        leaving.refuse(held)
        extend(held, rest, notices)
    elif verb == "release":
        release(held, rest, leaving)
    elif verb == "detach":
        if held.direct:
            usage(
                "this notebook was started on the GPUs, and has no local kernel to go back to; "
                "choose one with Kernel > Change Kernel…"
            )
        leaving.refuse(held)
        ask("detach", held, leaving)
        print("Once this cell is done the notebook returns to its local kernel; its GPUs stay held.")
    elif verb in LOCAL_ONLY:
        leaving.refuse(held)
        # An error, not a remark: `df = %gpufit gpus` would go on with nothing in df.
        terminal = f", or in a terminal: jupyter gpufit {verb} …" if verb in TERMINAL_TOO else ""
        usage(f"%gpufit {verb} works in the local kernel{terminal}. {way_back(held)}")
    else:
        usage(f"%gpufit has no verb {verb!r}; it knows: {', '.join(VERBS)}")


def show(held: Held) -> None:
    """`%gpufit` alone."""
    print(f"This kernel holds {held}, as allocation {held.name!r}:")
    for uuid, size in zip(held.gpus, held.memory):  # noqa: B905  (Python 3.8)
        print(f"    {uuid}  {size_text(size) if size else ''}".rstrip())
    print(way_back(held))


def release(held: Held, words: list[str], leaving: Leaving) -> None:
    """`%gpufit release`."""
    names = [word for word in words if not word.startswith("-")]
    unknown = [word for word in words if word.startswith("-") and word != "--all"]
    if unknown:
        usage(f"there is no option {unknown[0]} (%gpufit release --help shows how)")
    everything = "--all" in words
    if everything and names:
        usage(f"--all and {names[0]!r}; say one of them")
    if names not in ([], [held.name], [held.allocation]):
        others = " ".join(names)
        usage(f"this kernel holds {held.name!r} alone; {others!r} is released from the local kernel. {way_back(held)}")
    ask("release", held, leaving, everything)
    where = "this kernel ends" if held.direct else "the notebook returns to its local kernel"
    what = "all GPUs that you hold" if everything else "the GPUs"
    print(f"Once this cell is done {what} are given back, and {where}.")


def request(held: Held, words: list[str]) -> None:
    """Nothing to do if it asks for what is held; else say what to do."""
    parser = Parser(prog="%gpufit request", add_help=False, allow_abbrev=False)
    parser.add_argument("gpus", nargs="?", type=int, default=1)
    parser.add_argument("-m", "--memory", nargs="+", default=[])
    parser.add_argument("--cpus", type=float)
    parser.add_argument("--ram")
    parser.add_argument("--name")
    asked, _ = parser.parse_known_args(words)
    sizes = [size_bytes(part) for word in asked.memory for part in word.split(",") if part]
    sizes = sizes * asked.gpus if len(sizes) <= 1 else sizes
    same_size = (
        asked.gpus == len(held.gpus)
        and (not sizes or sorted(sizes) == sorted(held.memory))
        and (asked.cpus is None or max(0.01, round(asked.cpus, 2)) == held.cpus)  # engines count no finer
        and (asked.ram is None or size_bytes(asked.ram) == held.ram)
    )
    if asked.name == held.name or (asked.name is None and same_size):
        print(f"This notebook already runs on {held} ({held.name!r}); nothing to do.")
        return
    usage(
        f"this notebook already runs on {held} ({held.name!r}), which is not what is asked for here. {way_back(held)}"
    )


def extend(held: Held, words: list[str], notices: Notices) -> None:
    """`%gpufit extend [NAME] SPAN`; what cannot be meant for a span the server says."""
    names, spans = words[:-1], words[-1:]
    if len(names) > 1 or not spans or spans[0].startswith("-"):
        usage("write how much more time: %gpufit extend 1h")
    if names not in ([], [held.name], [held.allocation]):
        usage(
            f"this kernel holds {held.name!r} alone; {names[0]!r} is extended from the local kernel. {way_back(held)}"
        )
    question = uuid4().hex
    answer = notices.answer(question, lambda: tell("extend", held, time=spans[0], ask=question), ANSWERED_WITHIN)
    if answer is None:
        usage(
            "the server did not answer; say it in a line of its own, not inside a block, or in a terminal: "
            f"jupyter gpufit extend {held.name} {spans[0]}"
        )
    text, error = answer
    if error:
        usage(text)
    print(text)


def ask(action: str, held: Held, leaving: Leaving, everything: bool = False) -> None:
    """Ask the Jupyter server for what is done once this cell is."""
    tell(action, held, **({"all": True} if everything else {}))
    leaving.begin(action)


def tell(action: str, held: Held, **more: Any) -> None:
    """Tell the Jupyter server, which listens to what this kernel publishes."""
    from comm import create_comm

    create_comm(target_name=TARGET, data={"action": action, "allocation": held.allocation, **more})


def way_back(held: Held) -> str:
    """What to do to be where the other verbs work."""
    if held.job:
        return "They are given back when the notebook ends: it runs as a job."
    if held.direct:
        return "To give them back: %gpufit release, or shut this kernel down."
    return "To go back: %gpufit detach (the GPUs stay held) or %gpufit release (they are given back)."


# --- completion


def completions(held: Held, before: str) -> list[str]:
    """What the last word of `before` can become, in this kernel."""
    words = before.split()
    word = "" if before[-1:].isspace() else words.pop()
    if words[0] == "%%gpufit":
        known = [held.name, *PUSHES]
    elif len(words) == 1:
        known = list(VERBS)
    else:
        known = [held.name] if words[1] == "release" and len(words) == 2 else []
        known += OPTIONS.get(words[1], OPTIONS[""])
    return [one for one in known if one.startswith(word) and one not in words]


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
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])(ib|i|b)?|(b))?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        usage(f"{text!r} is not a size of memory; write it like '16GiB'")
    number, unit, suffix, plain = match.groups()
    if not (unit or plain) and Fraction(number):
        usage(f"{text!r} has no unit; write '{number}GiB'")
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

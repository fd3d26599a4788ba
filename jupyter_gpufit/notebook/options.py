"""Options of the magics and of `jupyter gpufit`: how requests, jobs and files are written on any command line, and
what is meant by them. Pure, but for a look whether what a job runs is a file.

A mistake raises `InvalidValue`: what is wrong, why, and what to write instead. It never repeats the value of a job's
variable, which may be a secret.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ..durations import parse_duration
from ..errors import InvalidValue
from ..memory import parse_memory
from ..models import Job, Request

__all__ = [
    "Parser",
    "add_files",
    "add_job",
    "add_logs",
    "add_request",
    "add_span",
    "add_variables",
    "meant",
    "parse_cpus",
    "parse_gpus",
    "parse_ram",
    "request_of",
    "split_args",
    "submission_of",
]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `InvalidValue` where argparse ends the program, and proposes what was meant."""

    runs = False
    """Whether it is of a verb that runs something, which may have options of its own (`add_job`)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"add_help": False, "allow_abbrev": False, "argument_default": None} | options)

    def error(self, message: str) -> NoReturn:
        raise InvalidValue(f"{message.removeprefix('argument ')} ({self.prog} --help shows how)")

    def parse_known_args(  # type: ignore[override]  # typeshed has it as overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does, with a sentence of our own for values that it would take for something else."""
        return super().parse_known_args(self._with_values(sys.argv[1:] if args is None else args), namespace)

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """Gives an option the `-5GiB` that follows it (argparse thinks it an option), and refuses `16 GiB`."""
        options = {name: action for action in self._actions if action.nargs is None for name in action.option_strings}
        done: list[str] = []
        for at, word in enumerate(words):
            option = options.get(words[at - 1]) if at else None
            if option is not None and _NEGATIVE.match(word):
                done[-1] = f"{done[-1]}={word}" if done[-1].startswith("--") else done[-1] + word
                continue
            name, equals, value = word.partition("=")
            sized, number = (options.get(name), value) if equals else (option, word)
            unit = words[at + 1] if at + 1 < len(words) else ""
            if sized is not None and sized.type in _SIZED and _apart(sized.type, number, unit):
                flag, size = name if equals else words[at - 1], f"{number} {unit}"
                self.error(f"argument {flag}: {size} are two words; write {number}{unit} (no space), or '{size}'")
            done.append(word)
        return done

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`, but tells what an unknown option may have been meant to be."""
        found, unknown = self.parse_known_args(list(words))
        self.refuse(unknown)
        return found

    def refuse(self, unknown: Sequence[str]) -> None:
        """Raises `InvalidValue` if there are words that no argument takes."""
        if unknown:
            word = unknown[0].split("=")[0]
            if word.startswith("-"):
                if self.runs:
                    near = meant(word, [name for name in self.option_names() if name != "--help"])
                    self.error(
                        f"there is no option {word}{near or ';'} what the script itself gets comes last, after --"
                    )
                self.error(f"there is no option {word}{meant(word, self.option_names())}")
            if self.runs:  # the word may be the rest of a secret
                self.error(
                    "there is a word too many: put a command, and a value with spaces, in quotes; what the script "
                    "itself gets comes last, after --"
                )
            self.error(f"{word!r} is one word too many")

    def option_names(self) -> list[str]:
        """All options, in their long form where there is one."""
        return [max(action.option_strings, key=len) for action in self._actions if action.option_strings]


_NEGATIVE = re.compile(r"-\.?\d")
_BARE = re.compile(r"[\d.]+")


def _apart(read: Callable[[str], Any], number: str, unit: str) -> bool:
    """Whether the two words are one size (or duration) that was written with a space."""
    if not (_BARE.fullmatch(number) and unit.isalpha()):
        return False
    try:
        read(number + unit)
    except argparse.ArgumentTypeError:
        return False
    return True


def meant(word: str, known: Iterable[str]) -> str:
    """`"; did you mean …?"` if one of `known` is like `word`."""
    bare = {name.lstrip("-"): name for name in known}  # --lr is not like --ram for its dashes
    near = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.6)
    return f"; did you mean {bare[near[0]]}?" if near else ""


# --- a request


def add_request(parser: argparse.ArgumentParser, *, cell: bool = False, job: bool = False) -> None:
    """Give `parser` the options of a request. For a cell, and for a job, N is one, since the first word is an
    allocation's name, or what is run."""
    if job:
        parser.add_argument("-n", "--gpus", metavar="N", type=_gpus, help="how many GPUs (1)")
        parser.add_argument("--name", help="what to call it")
    elif cell:
        parser.add_argument(
            "-n", "--gpus", metavar="N", type=_gpus, help="make an allocation of N GPUs for this cell alone"
        )
    else:
        parser.add_argument("gpus", metavar="N", nargs="?", type=_gpus, help="how many GPUs (1)")
        parser.add_argument("-n", "--gpus", dest="gpus_option", metavar="N", type=_gpus, help=argparse.SUPPRESS)
        parser.add_argument("--name", help="what to call the allocation")
    parser.add_argument(
        "-m",
        "--memory",
        metavar="SIZE",
        type=_memory,
        help="free memory per GPU: 16GiB, or 16GiB,8GiB for one size each",
    )
    parser.add_argument("--cpus", metavar="N", type=_cpus, help="cores of the machine for it alone: 8, or 0.5")
    parser.add_argument("--ram", metavar="SIZE", type=_ram, help="the machine's own memory for it alone: 64GiB")
    parser.add_argument("--image", help="container image (if the inventory allows it)")
    parser.add_argument("--time", metavar="SPAN", type=_duration, help="give the GPUs back after this long: 90m, 2h")
    if job:
        parser.add_argument(
            "--wait", metavar="SPAN", type=_patience, help="if nothing fits now, wait up to this long (1d); 0: do not"
        )
    else:
        parser.add_argument("--wait", metavar="SPAN", type=_duration, help="if nothing fits now, wait up to this long")
    parser.add_argument(
        "--priority", metavar="N", type=_priority, help="of those that wait, the ones with a higher N come first (0)"
    )
    parser.add_argument("--shared", action="store_true", help="may share GPUs with other --shared allocations")
    parser.add_argument("--node", metavar="GLOB", help="only these nodes")
    parser.add_argument("--gpu-model", metavar="GLOB", help="only GPU models of this name: A100, '*A100*80GB*'")
    parser.add_argument("--model", metavar="NAME", help="a model of the nodes' stores: rather on a node that has it")
    parser.add_argument("--require-model", action="store_true", help="... only on such a node")
    parser.add_argument("--write-models", action="store_true", help="the node's models (/models) can be written, too")
    parser.add_argument("--label", metavar="KEY=VALUE", action="append", type=_label, help="only nodes with this label")
    parser.add_argument("--share-card", action="store_true", help="may take several GPUs of one physical card (MIG)")


def request_of(
    options: argparse.Namespace, folder: str | None = None, notebook: str | None = None, job: Job | None = None
) -> Request:
    """The request that parsed options ask for; `folder` and `notebook` are where it is asked. Raises `InvalidValue`."""
    one, other = options.gpus, getattr(options, "gpus_option", None)
    if one is not None and other is not None and one != other:
        raise InvalidValue(f"{one} GPUs are asked, and {other} with --gpus; say it once")
    memory = options.memory if options.memory is not None else (0,)
    gpus = one or other or len(memory)
    return Request(
        gpus=gpus,
        memory=memory[0] if len(memory) == 1 else memory,
        cpus=options.cpus,
        ram=options.ram,
        name=getattr(options, "name", None),
        image=options.image,
        time=options.time,
        wait=options.wait,
        priority=options.priority or 0,
        shared=options.shared,
        node=options.node,
        gpu_model=options.gpu_model,
        model=options.model,
        require_model=options.require_model,
        write_models=options.write_models,
        labels=dict(options.label or ()),
        share_card=options.share_card,
        folder=folder,
        notebook=notebook,
        job=job,
    )


# --- a job


def add_job(parser: argparse.ArgumentParser) -> None:
    """Give `parser` what says what a job runs, and how; what follows `--` is not for it (`split_args`)."""
    if isinstance(parser, Parser):
        parser.runs = True
    parser.add_argument("run", metavar="WHAT", help='script.py, notebook.ipynb, or "a command …" in quotes')
    add_request(parser, job=True)
    parser.add_argument(
        "--env",
        metavar="K=V",
        action="append",
        type=_variable,
        help="a variable it gets; K alone: as it is here, so that a secret is written nowhere",
    )
    parser.add_argument("--retries", metavar="N", type=_count, help="start it again up to N times if it fails (0)")
    parser.add_argument("--launcher", metavar="torchrun", help="torchrun: one process per GPU")
    parser.add_argument(
        "--sweep", metavar="K=V1,V2", action="append", type=_sweep, help="a job for each value; several: for each pair"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="show what it prints, until it has ended")


def split_args(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a line that runs something, and what it is given itself: all after the first `--`."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def submission_of(
    options: argparse.Namespace, folder: str, here: Mapping[str, str], notebook: str | None = None
) -> tuple[Request, dict[str, list[str]]]:
    """The request with the job that parsed options ask for, and its sweep. `here` is the environment of who asks.

    Raises `InvalidValue`.
    """
    env: dict[str, str] = {}
    for name, value in options.env or ():
        if value is None and name not in here:
            raise InvalidValue(f"--env {name}: there is no variable {name} here; set it, or write {name}=VALUE")
        env[name] = here[name] if value is None else value
    sweep: dict[str, list[str]] = {}
    for name, values in options.sweep or ():
        if name in sweep:
            raise InvalidValue(f"--sweep {name} is there twice; write all its values in one: {name}=V1,V2")
        sweep[name] = values
    # A name with a blank in it is one word only in quotes, of which the line has taken off one layer.
    spaced = " " in options.run and os.path.isfile(os.path.join(folder, options.run))
    job = Job(
        run=shlex.quote(options.run) if spaced else options.run,
        args=tuple(options.args),
        env=env,
        retries=options.retries or 0,
        launcher=options.launcher,
    )
    return request_of(options, folder, notebook, job), sweep


# --- what else there is to say


def add_span(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the word that says how much more time an allocation shall have."""
    parser.add_argument("time", metavar="SPAN", type=_duration, help="how much more time: 30m, 1h")


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of `logs`."""
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what it prints, until it has ended")
    parser.add_argument("--tail", metavar="LINES", type=_count, default=200, help="how many lines (200)")


def add_files(parser: argparse.ArgumentParser, which: str) -> None:
    """Give `parser` what `upload` and `download` take; `which` is the option that names the allocation."""
    parser.add_argument("paths", metavar="PATH", nargs="+", help="files and directories, relative to this folder")
    parser.add_argument(which, dest="allocation", metavar="NAME", help="the allocation, by name or id")


def add_variables(parser: argparse.ArgumentParser) -> None:
    """Give `parser` what says which variables travel with a cell."""
    parser.add_argument("--push", metavar="A,B", type=_names, default=(), help="copy these variables there first")
    parser.add_argument("--pull", metavar="A,B", type=_names, default=(), help="copy these variables back afterwards")


# --- one value


def _typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def typed(text: str) -> Any:
        try:
            return parse(text)
        except InvalidValue as problem:
            raise argparse.ArgumentTypeError(problem.message) from None

    return typed


def parse_gpus(text: str) -> int:
    """A number of GPUs as it is written; also in a form (`panel.py`)."""
    if not re.fullmatch(r"-?[0-9]{1,9}", text):  # `int` takes more than people mean to write
        shown = repr(text) if len(text) <= 40 else f"{text[:20]!r}…"
        raise InvalidValue(f"{shown} is not a number of GPUs; write a whole number, such as 2")
    return Request(gpus=int(text)).gpus  # it knows the bounds


def parse_cpus(text: str) -> float | None:
    """A number of cores as it is written; also in a form (`panel.py`)."""
    if not re.fullmatch(r"-?([0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9})", text):
        shown = repr(text) if len(text) <= 40 else f"{text[:20]!r}…"
        raise InvalidValue(f"{shown} is not a number of cores; write one such as 8, or 0.5")
    cores = float(text)
    return Request(cpus=int(cores) if cores.is_integer() else cores).cpus  # so that it says what was written


def parse_ram(text: str) -> int | None:
    """A size of the machine's own memory as it is written; likewise."""
    return Request(ram=text).host_memory


_gpus, _cpus, _ram = _typed(parse_gpus), _typed(parse_cpus), _typed(parse_ram)


@_typed
def _priority(text: str) -> int:
    try:
        priority = int(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is not a priority; write a whole number, such as 5 or -5") from None
    return Request(priority=priority).priority


@_typed
def _memory(text: str) -> tuple[int, ...]:
    return tuple(parse_memory(size) for size in text.split(","))


_duration = _typed(parse_duration)


@_typed
def _patience(text: str) -> float:
    return 0.0 if text in ("0", "0s") else parse_duration(text)


_SIZED = (_memory, _ram, _duration, _patience)
"""Of values that have a unit."""


@_typed
def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidValue(f"{text!r} is not a label; write it like room=b12")
    return key, value


@_typed
def _variable(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and name.isascii()):  # what it is instead may be a secret
        raise InvalidValue("what is before '=' is not the name of a variable; write it like --env WANDB_MODE=offline")
    return name, value if equals else None


@_typed
def _sweep(text: str) -> tuple[str, list[str]]:
    name, equals, listed = text.partition("=")
    values = listed.split(",")
    if not (equals and name.isidentifier() and name.isascii() and all(values)):
        raise InvalidValue(f"{text!r} is not a list of values; write it like lr=1e-3,1e-4")
    return name, values


@_typed
def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InvalidValue(f"{text!r} is not a number of times; write a whole number, such as 3")
    return int(text)


@_typed
def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not name.isidentifier():
            raise InvalidValue(f"{name!r} is not the name of a variable; write names like a,b")
    return names

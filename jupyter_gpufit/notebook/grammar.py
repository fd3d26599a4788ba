"""What can be written after `%gpufit` and `%%gpufit`, and how a request is written on any command line. Pure.

A mistake raises `InvalidValue`: what is wrong, why, and what to write instead. `cli/app.py` shares a request's options.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ..durations import parse_duration
from ..errors import InvalidValue
from ..memory import parse_memory
from ..models import Request

__all__ = ["VERBS", "Parser", "add_request", "complete", "help_of", "parse_cell", "parse_line", "request_of"]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `InvalidValue` where argparse ends the program, and proposes what was meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"add_help": False, "allow_abbrev": False, "argument_default": None} | options)

    def error(self, message: str) -> NoReturn:
        raise InvalidValue(f"{message.removeprefix('argument ')} (usage: {self.usage_line()})")

    def usage_line(self) -> str:
        """Its usage, in one line."""
        return " ".join(self.format_usage().removeprefix("usage: ").split())

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
                self.error(f"there is no option {word}{meant(word, self.option_names())}")
            self.error(f"{word!r} is one word too many")

    def option_names(self) -> list[str]:
        """All options, in their long form where there is one."""
        return [max(action.option_strings, key=len) for action in self._actions if action.option_strings]


def meant(word: str, known: Iterable[str]) -> str:
    """`"; did you mean …?"` if one of `known` is like `word`."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


# --- a request


def add_request(parser: argparse.ArgumentParser, *, cell: bool = False) -> None:
    """Give `parser` the options of a request. For a cell N is one, since its first word is an allocation's name."""
    if cell:
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
    parser.add_argument("--image", help="container image (if the inventory allows it)")
    parser.add_argument("--time", metavar="SPAN", type=_duration, help="give the GPUs back after this long: 90m, 2h")
    parser.add_argument("--wait", metavar="SPAN", type=_duration, help="if nothing fits now, wait up to this long")
    parser.add_argument("--shared", action="store_true", help="may share GPUs with other --shared allocations")
    parser.add_argument("--node", metavar="GLOB", help="only these nodes")
    parser.add_argument("--model", metavar="GLOB", help="only these GPU models, such as '*A100*'")
    parser.add_argument("--label", metavar="KEY=VALUE", action="append", type=_label, help="only nodes with this label")
    parser.add_argument("--share-card", action="store_true", help="may take several GPUs of one physical card (MIG)")


def request_of(options: argparse.Namespace) -> Request:
    """The request that parsed options ask for. Raises `InvalidValue`."""
    one, other = options.gpus, getattr(options, "gpus_option", None)
    if one is not None and other is not None and one != other:
        raise InvalidValue(f"{one} GPUs are asked, and {other} with --gpus; say it once")
    memory = options.memory if options.memory is not None else (0,)
    gpus = one or other or len(memory)
    return Request(
        gpus=gpus,
        memory=memory[0] if len(memory) == 1 else memory,
        name=getattr(options, "name", None),
        image=options.image,
        time=options.time,
        wait=options.wait,
        shared=options.shared,
        node=options.node,
        model=options.model,
        labels=dict(options.label or ()),
        share_card=options.share_card,
    )


def _typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def typed(text: str) -> Any:
        try:
            return parse(text)
        except InvalidValue as problem:
            raise argparse.ArgumentTypeError(problem.message) from None

    return typed


@_typed
def _gpus(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is not a number of GPUs; write a whole number, such as 2") from None
    return Request(gpus=count).gpus  # it knows the bounds


@_typed
def _memory(text: str) -> tuple[int, ...]:
    return tuple(parse_memory(size) for size in text.split(","))


_duration = _typed(parse_duration)


@_typed
def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InvalidValue(f"{text!r} is not a label; write it like room=b12")
    return key, value


@_typed
def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not name.isidentifier():
            raise InvalidValue(f"{name!r} is not the name of a variable; write names like a,b")
    return names


# --- the verbs


def _request_verb(parser: Parser) -> None:
    add_request(parser)
    parser.add_argument("--no-attach", action="store_true", help="only hold the GPUs; cells go on running here")


def _name(parser: Parser, *, required: bool = False) -> None:
    parser.add_argument("name", metavar="NAME", nargs=None if required else "?", help="the allocation's name or id")


def _allocations_verb(parser: Parser) -> None:
    parser.add_argument("--ended", action="store_true", help="also those that have ended lately")


def _release_verb(parser: Parser) -> None:
    _name(parser)
    parser.add_argument("--all", action="store_true", help="everything I hold")


def _logs_verb(parser: Parser) -> None:
    _name(parser)
    parser.add_argument("--tail", metavar="LINES", type=int, default=200, help="how many lines (200)")


VERBS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "nodes": ("the machines, as a DataFrame", lambda parser: None),
    "gpus": ("their GPUs, as a DataFrame", lambda parser: None),
    "allocations": ("what I hold, as a DataFrame", _allocations_verb),
    "request": ("get N GPUs; this notebook's next cells run on them", _request_verb),
    "explain": ("where a request would go, and why: the four stages, node by node", add_request),
    "attach": ("run this notebook's cells on an allocation I hold", lambda parser: _name(parser, required=True)),
    "detach": ("run this notebook's cells here again; keep the GPUs", lambda parser: None),
    "release": ("give GPUs back", _release_verb),
    "logs": ("what an allocation printed", _logs_verb),
}
"""Verb → what it does, and what gives its parser its arguments."""


def parser_of(verb: str) -> Parser:
    """The parser of one verb's arguments."""
    about, arguments = VERBS[verb]
    parser = Parser(prog=f"%gpufit {verb}", description=about)
    arguments(parser)
    parser.set_defaults(help=False)
    return parser


def cell_parser() -> Parser:
    """The parser of what follows `%%gpufit`."""
    parser = Parser(prog="%%gpufit", description="run just this cell on an allocation")
    _name(parser)
    add_request(parser, cell=True)
    parser.add_argument("--push", metavar="A,B", type=_names, default=(), help="copy these variables there first")
    parser.add_argument("--pull", metavar="A,B", type=_names, default=(), help="copy these variables back afterwards")
    parser.set_defaults(help=False)
    return parser


def parse_line(line: str) -> tuple[str, argparse.Namespace]:
    """Verb (empty for none) and options of a `%gpufit` line. Raises `InvalidValue`."""
    words = _words(line)
    if not words:
        return "", argparse.Namespace(help=False)
    verb = words[0]
    if verb in _HELP | {"help"}:
        return "", argparse.Namespace(help=True)
    if verb not in VERBS:
        known = ", ".join(VERBS)
        raise InvalidValue(f"%gpufit has no {verb!r}{meant(verb, VERBS) or f'; it has: {known}'}")
    if _HELP.intersection(words):
        return verb, argparse.Namespace(help=True)
    return verb, parser_of(verb).parse(words[1:])


def parse_cell(line: str) -> argparse.Namespace:
    """Options of a `%%gpufit` line. Raises `InvalidValue`."""
    words = _words(line)
    if _HELP.intersection(words):
        return argparse.Namespace(help=True)
    options = cell_parser().parse(words)
    new = options.gpus is not None or options.memory is not None
    if options.name is not None and new:
        raise InvalidValue(
            f"an allocation ({options.name!r}) and a request for a new one; name an allocation, "
            "or ask for GPUs with -n and --memory"
        )
    if not new and (wish := next((wish for wish in _WISHES if getattr(options, wish)), None)):
        raise InvalidValue(f"--{wish.replace('_', '-')} is of a new allocation; say how many GPUs it has, with -n")
    options.new = new
    return options


_HELP = {"-h", "--help"}
_WISHES = ("image", "time", "wait", "shared", "node", "model", "label", "share_card")


def help_of(verb: str | None = None) -> str:
    """What `%gpufit VERB --help` shows; without a verb, all of it."""
    if verb is not None:
        return (cell_parser() if verb == "%%gpufit" else parser_of(verb)).format_help()
    verbs = "\n".join(f"  {'%gpufit ' + verb:<24}{about}" for verb, (about, _) in VERBS.items())
    return (
        f"  {'%gpufit':<24}what I hold, and the cluster at a glance\n{verbs}\n"
        f"  {'%%gpufit':<24}run just this cell on an allocation\n\n%gpufit VERB --help tells a verb's options."
    )


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise InvalidValue(f"{line.strip()!r} cannot be read: {str(problem).lower()}") from None


# --- completion


def complete(before: str, names: Callable[[], Iterable[str]], nodes: Callable[[], Iterable[str]]) -> list[str]:
    """What the last word of `before` (the line up to the cursor) can become.

    `names` and `nodes` give the names of allocations and nodes; they are called only when such a one can come here.
    """
    words = before.split()
    word = "" if not words or before[-1:].isspace() else words.pop()
    if not words:
        return []
    cell = words[0].startswith("%%")
    done = words[1:]
    verb = "" if cell or not done else done[0]
    if not cell and not done:
        return _starting(word, VERBS)
    if not cell and verb not in VERBS:
        return []
    parser = cell_parser() if cell else parser_of(verb)
    last = next((action for action in parser._actions if words[-1] in action.option_strings), None)
    if last is not None and last.nargs != 0:  # the word is that option's value
        return _starting(word, nodes()) if last.dest == "node" else []
    if word.startswith("-"):
        return _starting(word, [name for name in parser.option_names() if name not in done])
    takes_name = any(action.dest == "name" and not action.option_strings for action in parser._actions)
    if takes_name and not any(not other.startswith("-") for other in (done if cell else done[1:])):
        return _starting(word, names())
    return []


def _starting(word: str, all_: Iterable[str]) -> list[str]:
    return sorted(name for name in all_ if name.startswith(word))

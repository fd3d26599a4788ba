"""What can be written after `%gpufit` and `%%gpufit`, and how a request is written on any command line. Pure.

A mistake raises `InvalidValue`: what is wrong, why, and what to write instead. `cli/app.py` shares a request's options.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ..durations import parse_duration
from ..errors import InvalidValue
from ..memory import parse_memory
from ..models import Request

__all__ = [
    "VERBS",
    "Parser",
    "add_request",
    "add_span",
    "cell_parser",
    "help_of",
    "parse_cell",
    "parse_gpus",
    "parse_line",
    "parser_of",
    "request_of",
]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `InvalidValue` where argparse ends the program, and proposes what was meant."""

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
            if sized is not None and sized.type in (_memory, _duration) and _apart(sized.type, number, unit):
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
                self.error(f"there is no option {word}{meant(word, self.option_names())}")
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
    parser.add_argument(
        "--priority", metavar="N", type=_priority, help="of those that wait, the ones with a higher N come first (0)"
    )
    parser.add_argument("--shared", action="store_true", help="may share GPUs with other --shared allocations")
    parser.add_argument("--node", metavar="GLOB", help="only these nodes")
    parser.add_argument("--model", metavar="GLOB", help="only GPU models of this name: A100, '*A100*80GB*'")
    parser.add_argument("--label", metavar="KEY=VALUE", action="append", type=_label, help="only nodes with this label")
    parser.add_argument("--share-card", action="store_true", help="may take several GPUs of one physical card (MIG)")


def add_span(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the word that says how much more time an allocation shall have."""
    parser.add_argument("time", metavar="SPAN", type=_duration, help="how much more time: 30m, 1h")


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
        priority=options.priority or 0,
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


def parse_gpus(text: str) -> int:
    """A number of GPUs as it is written; also in a form (`panel.py`)."""
    if not re.fullmatch(r"-?[0-9]{1,9}", text):  # `int` takes more than people mean to write
        shown = repr(text) if len(text) <= 40 else f"{text[:20]!r}…"
        raise InvalidValue(f"{shown} is not a number of GPUs; write a whole number, such as 2")
    return Request(gpus=int(text)).gpus  # it knows the bounds


_gpus = _typed(parse_gpus)


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


def _extend_verb(parser: Parser) -> None:
    _name(parser)
    add_span(parser)


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
    "extend": ("more time for an allocation whose time is limited", _extend_verb),
    "release": ("give GPUs back", _release_verb),
    "logs": ("what an allocation printed", _logs_verb),
    "panel": ("all of this as a form with buttons", lambda parser: None),
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


_EXAMPLES = {
    "panel": "%gpufit panel",
    "nodes": "df = %gpufit nodes",
    "gpus": "df = %gpufit gpus",
    "allocations": "df = %gpufit allocations",
    "request": "%gpufit request 2 --memory 16GiB",
    "explain": "%gpufit explain 2 --memory 16GiB",
    "attach": "%gpufit attach train",
    "detach": "%gpufit detach",
    "extend": "%gpufit extend train 1h",
    "release": "%gpufit release",
    "logs": "%gpufit logs train",
}
"""Verb → a line that can be typed so."""

_HELP = {"-h", "--help"}
_WISHES = ("image", "time", "wait", "priority", "shared", "node", "model", "label", "share_card")


def help_of(verb: str | None = None) -> str:
    """What `%gpufit VERB --help` shows; without a verb, all of it."""
    if verb is not None:
        return (cell_parser() if verb == "%%gpufit" else parser_of(verb)).format_help()
    lines = [
        ("%gpufit", "what I hold, and the cluster at a glance"),
        *((example, VERBS[verb][0]) for verb, example in _EXAMPLES.items()),
        ("%%gpufit train", "run just this cell on an allocation I hold"),
        ("%%gpufit -n 1 --push x", "... or on GPUs of its own, with variable x"),
    ]
    width = max(len(example) for example, _ in lines) + 2
    return (
        "\n".join(f"  {example:<{width}}{about}" for example, about in lines)
        + "\n\n%gpufit VERB --help tells a verb's options."
    )


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise InvalidValue(f"{line.strip()!r} cannot be read: {str(problem).lower()}") from None

"""What can be written after `%gpufit` and `%%gpufit`: the verbs. Their options, which the command line has, too, are
those of `options.py`.

A mistake raises `InvalidValue`: what is wrong, why, and what to write instead.
"""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Callable

from ..errors import InvalidValue
from .options import Parser, add_files, add_job, add_logs, add_request, add_span, add_variables, meant, split_args

__all__ = ["VERBS", "cell_parser", "help_of", "parse_cell", "parse_line", "parser_of"]


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
    add_logs(parser)


def _upload_verb(parser: Parser) -> None:
    add_files(parser, "--to")


def _download_verb(parser: Parser) -> None:
    add_files(parser, "--from")


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
    "train": ("run a script, a notebook or a command on GPUs, unattended: a job", add_job),
    "logs": ("what an allocation printed; -f goes on until it has ended", _logs_verb),
    "usage": ("what an allocation really used of its GPUs, as a DataFrame", _name),
    "upload": ("copy files of this folder to where an allocation works", _upload_verb),
    "download": ("copy files from where an allocation works to this folder", _download_verb),
    "models": ("the models in the nodes' stores, as a DataFrame", lambda parser: None),
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


@functools.cache  # each forwarded cell is such a cell
def cell_parser() -> Parser:
    """The parser of what follows `%%gpufit`."""
    parser = Parser(prog="%%gpufit", description="run just this cell on an allocation")
    _name(parser)
    add_request(parser, cell=True)
    add_variables(parser)
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
    words, args = split_args(words) if verb == "train" else (words, [])
    if _HELP.intersection(words):
        return verb, argparse.Namespace(help=True)
    options = parser_of(verb).parse(words[1:])
    options.args = args
    return verb, options


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
    "train": "%gpufit train fit.py -n 2 -m 8GiB -- --lr 1e-3",
    "logs": "%gpufit logs -f train",
    "usage": "df = %gpufit usage train",
    "upload": "%gpufit upload data/",
    "download": "%gpufit download results.csv",
    "models": "df = %gpufit models",
}
"""Verb → a line that can be typed so."""

_HELP = {"-h", "--help"}
_WISHES = (
    *("image", "time", "wait", "priority", "shared", "node", "gpu_model", "model", "require_model", "write_models"),
    *("label", "share_card", "cpus", "ram"),
)


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
        said = str(problem).lower()
        if "--env" in line:
            raise InvalidValue(f"the line cannot be read: {said}") from None
        raise InvalidValue(f"{line.strip()!r} cannot be read: {said}") from None

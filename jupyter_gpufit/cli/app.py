"""`jupyter gpufit …`: the verbs of `%gpufit`, for terminals and scripts.

They talk to the Jupyter server that runs for this user and has the extension: an allocation lives in a server. Without
one, what only looks (nodes, gpus, models, explain) looks at the inventory's machines itself.

Exit codes: 0 done; 1 it could not be done (nothing fits, nobody answers); 2 what was written cannot be meant. `train
--follow` and `logs -f` of a job end with the job's own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import __version__
from ..errors import Conflict, GpufitError, InvalidValue, NotPlaced
from ..kernels.extended import extended
from ..notebook.client import Client, Json, has_ended, is_running, latest
from ..notebook.jobs import carry, code_of, ended, folder_here, follow_log, sent
from ..notebook.obtain import granted
from ..notebook.options import (
    add_files,
    add_job,
    add_logs,
    add_request,
    add_span,
    request_of,
    split_args,
    submission_of,
)
from ..notebook.progress import Progress, follow
from ..notebook.show import (
    allocation_table,
    describe,
    explanation,
    gpu_table,
    model_table,
    node_table,
    text_table,
    usage_table,
    used,
)
from . import bench, demo, doctor, reporter
from .asking import client_of, look
from .parsers import CommandParser, MainParser, VerbParser

__all__ = ["main"]

_PROMPT = "jupyter gpufit"
_ALL = 100_000  # lines of a log


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Called by the `jupyter-gpufit` script."""
    try:
        words, args = split_args(sys.argv[1:] if argv is None else list(argv))
        options = _parser().parse(words)
        if args and not hasattr(options, "run"):
            raise InvalidValue("only `train` runs something that could take what comes after --")
        options.args = args
        for option in _EVERYWHERE:  # after the verb, or before it
            setattr(options, option, getattr(options, option, None) or getattr(options, f"first_{option}"))
        code: int = options.func(options)
        return code
    except SystemExit as finished:  # --help, --version
        return finished.code if isinstance(finished.code, int) else 0
    except InvalidValue as problem:
        print(f"jupyter gpufit: {problem.message}", file=sys.stderr)
        return 2
    except GpufitError as problem:
        print(f"jupyter gpufit: {problem.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:  # one of our own has a sentence
        print(f"jupyter gpufit: {stopped}" if str(stopped) else "jupyter gpufit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


_EVERYWHERE = ("json", "inventory", "server", "token")


def _add_common(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    def add(option: str, about: str, **more: Any) -> None:
        parser.add_argument(f"--{option}", dest=prefix + option, help=about, **more)

    add("json", "print JSON", action="store_true")
    add("inventory", "look at the machines of this gpufit.toml, without a server", metavar="FILE")
    add("server", "the Jupyter server to ask (default: the one that runs)", metavar="URL")
    add("token", "its token; $GPUFIT_TOKEN is better, because others see a command's words", metavar="TOKEN")


def _parser() -> CommandParser:
    parser = MainParser(
        prog="jupyter gpufit",
        description="GPUs for notebooks, from the machines of gpufit.toml. Without a verb: what I hold, and the "
        "machines. attach and detach are about a notebook, and work only in one: %gpufit attach NAME.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    _add_common(parser, "first_")
    parser.set_defaults(func=_status)
    verbs = parser.add_subparsers(metavar="VERB", parser_class=VerbParser)

    def verb(name: str, about: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about)
        made.set_defaults(func=run)
        _add_common(made)
        return made

    verb("nodes", "the machines", _nodes)
    verb("gpus", "their GPUs", _gpus)
    add_request(verb("request", "get GPUs, and hold them until they are released", _request))
    add_request(verb("explain", "where a request would go, and why", _explain))
    made = verb("allocations", "what I hold", _allocations)
    made.add_argument("--ended", action="store_true", help="also those that have ended lately")
    made = verb("extend", "more time for an allocation whose time is limited", _extend)
    made.add_argument("name", metavar="NAME", help="the allocation's name or id")
    add_span(made)
    made = verb("release", "give GPUs back", _release)
    made.add_argument("name", metavar="NAME", nargs="?", help="the allocation's name or id")
    made.add_argument("--all", action="store_true", help="everything I hold")
    add_job(verb("train", "run a script, a notebook or a command of this folder on GPUs, unattended: a job", _train))
    made = verb("logs", "what an allocation printed; -f goes on until it has ended", _logs)
    made.add_argument("name", metavar="NAME", help="the allocation's name or id")
    add_logs(made)
    made = verb("usage", "what an allocation really used of its GPUs", _usage)
    made.add_argument("name", metavar="NAME", help="the allocation's name or id")
    add_files(verb("upload", "copy files of this folder to where an allocation works", _upload), "--to")
    add_files(verb("download", "copy files from where an allocation works to this folder", _download), "--from")
    verb("models", "the models in the nodes' stores", _models)
    doctor.add_arguments(verb("doctor", doctor.ABOUT, doctor.run))
    bench.add_parser(verbs, _add_common)
    reporter.add_parser(verbs)
    demo.add_parser(verbs)
    return parser


# --- the verbs


def _status(options: argparse.Namespace) -> int:
    with client_of(options, looks=True) as client:
        held, nodes = client.allocations(), look(client)
    if options.json:
        import msgspec

        _print_json({"allocations": held, "nodes": msgspec.to_builtins(nodes)})
        return 0
    if held:
        _print_table(*allocation_table(held))
    else:
        print("You hold no GPUs.")
    print()
    _print_table(*node_table(nodes))
    return 0


def _nodes(options: argparse.Namespace) -> int:
    with client_of(options, looks=True) as client:
        nodes = look(client)
    if options.json:
        _print_json(nodes)
    else:
        _print_table(*node_table(nodes, machine=True))
    return 0


def _gpus(options: argparse.Namespace) -> int:
    with client_of(options, looks=True) as client:
        nodes = look(client)
    if options.json:
        import msgspec

        _print_json([{"node": node.name, **msgspec.to_builtins(gpu)} for node in nodes for gpu in node.gpus])
    else:
        _print_table(*gpu_table(nodes))
    return 0


def _explain(options: argparse.Namespace) -> int:
    request = request_of(options)
    with client_of(options, looks=True) as client:
        decision = client.explain(request)
    if options.json:
        _print_json(decision)
    else:
        print(explanation(decision).text)
    return 0 if decision.get("node") else 1


def _models(options: argparse.Namespace) -> int:
    with client_of(options, looks=True) as client:
        nodes = look(client)
    if options.json:
        import msgspec

        _print_json([{"node": node.name, **msgspec.to_builtins(one)} for node in nodes for one in node.models or ()])
    else:
        _print_table(*model_table(nodes))
    return 0


def _request(options: argparse.Namespace) -> int:
    request = request_of(options, folder_here())
    with client_of(options) as client:
        with _refusals(options):
            (allocation,) = granted(client, None, lambda: [client.request(request)])
        progress = Progress()
        try:
            allocation = follow(client, allocation, lambda now: is_running(now) or has_ended(now), progress)
        except KeyboardInterrupt:
            client.release(allocation["id"])
            follow(client, latest(client, allocation), has_ended, progress)
            progress.done(f"Cancelled {allocation['name']!r}; nothing is held.")
            raise
    if options.json:
        _print_json(allocation)
    if not is_running(allocation):
        why = allocation.get("message") or allocation.get("reason")
        raise Conflict(f"allocation {allocation['name']!r} did not start: {why}")
    progress.done(f"{describe(allocation)} is running; in a notebook: %gpufit attach {allocation['name']}")
    return 0


@contextlib.contextmanager
def _refusals(options: argparse.Namespace) -> Iterator[None]:
    """Shows why nothing fits, node by node."""
    try:
        yield
    except NotPlaced as refused:
        if options.json:
            _print_json({"error": refused.code, "message": refused.message, "details": refused.details})
        else:
            print(explanation(refused.details).text, file=sys.stderr)
        raise


def _train(options: argparse.Namespace) -> int:
    _check_follow(options)
    request, sweep = submission_of(options, folder_here(), os.environ)
    with client_of(options) as client:
        with _refusals(options):
            made = granted(client, None, lambda: client.submit(request, sweep))
        if options.json:
            _print_json(made)
        for allocation in made:
            print(sent(allocation, _PROMPT), file=sys.stderr if options.json or options.follow else sys.stdout)
        if not options.follow:
            return 0
        over = [_follow(client, allocation, _ALL) for allocation in made]
    return next((code for code in map(code_of, over) if code), 0)


def _check_follow(options: argparse.Namespace) -> None:
    if options.json and options.follow:
        raise InvalidValue("--json and --follow: what it prints is no JSON; say one of them")


def _follow(client: Client, allocation: Json, tail: int) -> Json:
    """Its log goes to stdout, and what is said of it to stderr."""

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    over = follow_log(client, allocation, Progress(), _PROMPT, tail, tell)
    tell(ended(over))
    return over


def _allocations(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        allocations = client.allocations(ended=options.ended)
    if options.json:
        _print_json(allocations)
    elif allocations:
        _print_table(*allocation_table(allocations))
    else:
        print("You hold no GPUs.")
    return 0


def _extend(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        allocation = client.extend(client.get(options.name)["id"], options.time)
    if options.json:
        _print_json(allocation)
    else:
        print(extended(allocation, time.time()))
    return 0


def _release(options: argparse.Namespace) -> int:
    if bool(options.name) == options.all:
        raise InvalidValue("name the allocation to release, or say --all")
    with client_of(options) as client:
        doomed = client.allocations() if options.all else [client.get(options.name)]
        for allocation in doomed:
            client.release(allocation["id"])
        progress = Progress()
        over: list[Json] = [follow(client, latest(client, one), has_ended, progress) for one in doomed]
    if options.json:
        _print_json(over)
    else:
        for allocation in over:
            print(f"Released {describe(allocation)}.")
            for said in (allocation.get("job") and ended(allocation), used(allocation)):
                if said:
                    print(said)
        if not over:
            print("You hold no GPUs; there is nothing to release.")
    return 0


def _logs(options: argparse.Namespace) -> int:
    _check_follow(options)
    with client_of(options) as client:
        allocation = client.get(options.name)
        if options.follow:
            over = _follow(client, allocation, options.tail)
            return code_of(over) if over.get("job") else 0
        text = client.logs(allocation["id"], options.tail)
    if options.json:
        _print_json({"logs": text})
    else:
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    return 0


def _usage(options: argparse.Namespace) -> int:
    with client_of(options) as client:
        series = client.usage(client.get(options.name)["id"])
    if options.json:
        _print_json(series)
    else:
        _print_table(*usage_table(series))
        print(series["sentence"] or "Nothing has been measured so far.")
    return 0


def _upload(options: argparse.Namespace) -> int:
    return _carry("upload", options)


def _download(options: argparse.Namespace) -> int:
    return _carry("download", options)


def _carry(do: str, options: argparse.Namespace) -> int:
    with client_of(options) as client:
        if options.allocation is not None:
            allocation = client.get(options.allocation)
        else:
            held = client.allocations()
            if len(held) != 1:
                option = "--to" if do == "upload" else "--from"
                names = ", ".join(one["name"] for one in held) or "no GPUs"
                raise InvalidValue(f"you hold {names}; say which allocation is meant: {option} NAME")
            (allocation,) = held
        transfer = carry(client, allocation, do, folder_here(), options.paths, Progress())
    if options.json:
        _print_json(transfer)
    return 0


# --- output


def _print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 10_000
    print(text_table(headers, rows, width))


def _print_json(value: Any) -> None:
    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2))


if __name__ == "__main__":
    sys.exit(main())

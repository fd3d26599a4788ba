"""`jupyter gpufit …`: the verbs of `%gpufit`, for terminals and scripts.

They talk to the Jupyter server that runs for this user and has the extension: an allocation lives in a server. Without
one, what only looks (nodes, gpus, explain) looks at the inventory's machines itself.

Exit codes: 0 done; 1 it could not be done (nothing fits, nobody answers); 2 what was written cannot be meant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import __version__
from ..errors import Conflict, Forbidden, GpufitError, InvalidValue, NotPlaced, Unavailable
from ..kernels.extended import extended
from ..models import Node
from ..notebook.client import Client, Json, RestClient, embedded, has_ended, is_running, latest
from ..notebook.discovery import running_servers, server_at, with_token
from ..notebook.grammar import Parser, add_request, add_span, meant, request_of
from ..notebook.progress import Progress, follow
from ..notebook.show import allocation_table, describe, explanation, gpu_table, node_table, text_table
from ..notebook.transport import ExtensionMissing, ServerUnreachable
from . import demo, doctor, reporter

__all__ = ["main"]

_NOTEBOOK_ONLY = ("attach", "detach")
_SILENT = logging.NullHandler()  # what a scheduler of our own logs is said in our words, on one line


class CommandParser(Parser):
    """With `-h`, as programs have it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"add_help": True} | options)


class MainParser(CommandParser):
    """Of the whole command: it knows the verbs, and those that there are in a notebook alone."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Called by argparse for every value; of these, only the verb is one of several."""
        verbs = list(action.choices or ())
        if action.choices is None or value in verbs:
            return
        if value in _NOTEBOOK_ONLY:
            name = " NAME" if value == "attach" else ""
            raise InvalidValue(
                f"{value!r} is about a notebook, and works only in one: %gpufit {value}{name}; here there are: "
                + ", ".join(verbs)
            )
        raise InvalidValue(f"there is no {value!r}{meant(str(value), verbs) or '; there are: ' + ', '.join(verbs)}")


class VerbParser(CommandParser):
    """Of one verb: answers itself for what it does not know, because it knows what that may have been meant to be."""

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Called by argparse."""
        found, unknown = super().parse_known_args(args, namespace)
        self.refuse(unknown)
        return found, []


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Called by the `jupyter-gpufit` script."""
    try:
        options = _parser().parse(sys.argv[1:] if argv is None else list(argv))
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
    except KeyboardInterrupt:
        print("jupyter gpufit: interrupted", file=sys.stderr)
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
    made = verb("logs", "what an allocation printed", _logs)
    made.add_argument("name", metavar="NAME", help="the allocation's name or id")
    made.add_argument("--tail", metavar="LINES", type=int, default=200, help="how many lines (200)")
    doctor.add_arguments(verb("doctor", doctor.ABOUT, doctor.run))
    reporter.add_parser(verbs)
    demo.add_parser(verbs)
    return parser


# --- the verbs


def _status(options: argparse.Namespace) -> int:
    with _client(options, looks=True) as client:
        held, nodes = client.allocations(), _look(client)
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
    with _client(options, looks=True) as client:
        nodes = _look(client)
    if options.json:
        _print_json(nodes)
    else:
        _print_table(*node_table(nodes))
    return 0


def _gpus(options: argparse.Namespace) -> int:
    with _client(options, looks=True) as client:
        nodes = _look(client)
    if options.json:
        import msgspec

        _print_json([{"node": node.name, **msgspec.to_builtins(gpu)} for node in nodes for gpu in node.gpus])
    else:
        _print_table(*gpu_table(nodes))
    return 0


def _explain(options: argparse.Namespace) -> int:
    request = request_of(options)
    with _client(options, looks=True) as client:
        decision = client.explain(request)
    if options.json:
        _print_json(decision)
    else:
        print(explanation(decision).text)
    return 0 if decision.get("node") else 1


def _request(options: argparse.Namespace) -> int:
    request = request_of(options)
    with _client(options) as client:
        try:
            allocation = client.request(request)
        except NotPlaced as refused:
            if options.json:
                _print_json({"error": refused.code, "message": refused.message, "details": refused.details})
            else:
                print(explanation(refused.details).text, file=sys.stderr)
            raise
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


def _allocations(options: argparse.Namespace) -> int:
    with _client(options) as client:
        allocations = client.allocations(ended=options.ended)
    if options.json:
        _print_json(allocations)
    elif allocations:
        _print_table(*allocation_table(allocations))
    else:
        print("You hold no GPUs.")
    return 0


def _extend(options: argparse.Namespace) -> int:
    with _client(options) as client:
        allocation = client.extend(client.get(options.name)["id"], options.time)
    if options.json:
        _print_json(allocation)
    else:
        print(extended(allocation, time.time()))
    return 0


def _release(options: argparse.Namespace) -> int:
    if bool(options.name) == options.all:
        raise InvalidValue("name the allocation to release, or say --all")
    with _client(options) as client:
        doomed = client.allocations() if options.all else [client.get(options.name)]
        for allocation in doomed:
            client.release(allocation["id"])
        progress = Progress()
        ended: list[Json] = [follow(client, latest(client, one), has_ended, progress) for one in doomed]
    if options.json:
        _print_json(ended)
    else:
        for allocation in ended:
            print(f"Released {describe(allocation)}.")
        if not ended:
            print("You hold no GPUs; there is nothing to release.")
    return 0


def _logs(options: argparse.Namespace) -> int:
    with _client(options) as client:
        text = client.logs(client.get(options.name)["id"], options.tail)
    if options.json:
        _print_json({"logs": text})
    else:
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    return 0


# --- whom to ask


@contextlib.contextmanager
def _client(options: argparse.Namespace, *, looks: bool = False) -> Iterator[Client]:
    """The server of this person, or, if the command only looks, a scheduler of our own over the inventory."""
    client = _find(options, looks)
    try:
        yield client
    finally:
        client.close()


def _find(options: argparse.Namespace, looks: bool) -> Client:
    token = options.token or os.environ.get("GPUFIT_TOKEN") or ""
    if options.server:
        client = RestClient(server_at(options.server, token or os.environ.get("JUPYTER_TOKEN") or ""))
        client.check()
        return client
    why = ""
    if options.inventory is None:
        for server in running_servers():
            client = RestClient(with_token(server, token or os.environ.get("JUPYTERHUB_API_TOKEN") or ""))
            try:
                client.check()
            except (ExtensionMissing, Forbidden, ServerUnreachable) as problem:
                why = why or f" ({problem.message})"
            else:
                return client
    if looks:
        return _own(options.inventory)
    if options.inventory is not None:
        raise InvalidValue(
            "--inventory is for looking at machines (nodes, gpus, explain); an allocation lives in a Jupyter server, "
            "which has its own inventory"
        )
    raise ServerUnreachable(
        f"no running Jupyter server with jupyter_gpufit was found{why}; an allocation lives in one. Start it with: "
        "jupyter lab, or name it with --server"
    )


def _own(inventory: str | None) -> Client:
    """A scheduler of our own. Raises `Unavailable` if there is nothing to see because of the inventory."""
    logging.getLogger("jupyter_gpufit").addHandler(_SILENT)
    client = embedded(inventory)
    nodes, error = client.cluster()
    if error and not nodes:
        client.close()
        raise Unavailable(f"the inventory cannot be used: {error}")
    return client


# --- output


def _look(client: Client) -> list[Node]:
    """The nodes; says so if the inventory is not taken up."""
    nodes, error = client.cluster()
    if error:
        print(f"jupyter gpufit: the inventory cannot be used as it is: {error}", file=sys.stderr)
    return nodes


def _print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 10_000
    print(text_table(headers, rows, width))


def _print_json(value: Any) -> None:
    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2))


if __name__ == "__main__":
    sys.exit(main())

"""`jupyter gpufit bench policies`: which policy would have served best what was really asked for here."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..durations import format_duration, format_moment
from ..errors import GpufitError, InvalidValue, NotFound, Unavailable
from ..models import MAX_CPUS, Node
from ..notebook.progress import Progress
from ..notebook.show import text_table
from .asking import client_of, look

if TYPE_CHECKING:
    from ..scheduling.recording import History
    from ..scheduling.replay import Figures, Lifetimes, Outcome
    from ..scheduling.verdict import Verdict

__all__ = ["Answer", "add_parser", "said"]

_ABOUT = (
    "Replay the requests that were made here, as they are recorded, with each policy, on these machines, and say which "
    "would have served them best. docs/policies.md says what is recorded, and what the figures mean."
)
_SEVERAL = re.compile(r"([1-9]\d{0,3})\s*\*\s*(.+)", re.ASCII)
_MOST_NODES = 2000
_USUAL = "best-fit"
_WIDTH = 100


def add_parser(subparsers: Any, add_common: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the verb to `jupyter gpufit` (an `argparse` subparsers object); sets `func`. Called by `cli/app.py`."""
    bench = subparsers.add_parser("bench", help="which policy would have served my requests best", description=_ABOUT)
    parser = bench.add_subparsers(metavar="WHAT", required=True, parser_class=type(bench)).add_parser(
        "policies", help=_ABOUT, description=_ABOUT
    )
    add = parser.add_argument
    add(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="what is recorded, of several people together: requests.jsonl, or directories with it (default: mine)",
    )
    add(
        "--nodes",
        metavar="SPEC",
        action="append",
        help="on machines that do not exist, such as 4*8xA100-40GB (may be said several times), instead of those there "
        "are. They have all the cores and RAM that anybody asks",
    )
    add(
        "--load",
        metavar="FACTOR",
        type=_factor,
        default=1.0,
        help="requests come so many times as fast: 1.5 is half as many again in the same time",
    )
    add_common(parser)
    parser.set_defaults(func=_run)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no factor; give a number from 0.01 to 100, such as 1.5")
    return factor


def _run(options: argparse.Namespace) -> int:
    from ..scheduling import policies
    from ..scheduling.replay import arrivals, demands, emptied, figures, fitting, replay
    from ..scheduling.verdict import verdict

    history = _history(options.files)
    there, now = _nodes(options)
    nodes = emptied(there)
    if not any(gpu.allocatable for node in nodes for gpu in node.gpus):
        raise Unavailable("there is no GPU that can be used now; name machines with --nodes 4*8xA100-40GB")
    made, lifetimes = arrivals(history.requests, options.load)
    arriving, never = fitting(nodes, made)
    if not arriving:
        raise Unavailable(f"none of the {len(made)} requests could ever run on these nodes; name others with --nodes")
    hours = demands(nodes, arriving)
    outcomes: list[Outcome] = []
    first = now or _USUAL
    compared = [policies.find(name) for name in sorted(policies.names(), key=lambda name: (name != first, name))]
    with _Telling(len(arriving) * len(compared)) as telling:
        for policy in compared:
            outcomes.append(replay(nodes, arriving, policy, telling.of(policy.name, len(outcomes) * len(arriving))))
    answer = Answer(
        requests=len(made),
        since=history.requests[0].asked,
        until=history.requests[-1].asked,
        lifetimes=lifetimes,
        never_fit=never,
        lines_broken=history.broken,
        lines_of_other_versions=history.newer,
        load=options.load,
        nodes=len(nodes),
        nodes_left_out=len(there) - len(nodes),
        gpus=sum(gpu.allocatable for node in nodes for gpu in node.gpus),
        in_use=now,
        policies=tuple(figures(outcome, hours) for outcome in outcomes),
        verdict=verdict(outcomes, arriving, hours, first),
    )
    if options.json:
        print(json.dumps(msgspec.to_builtins(answer), indent=2))
    else:
        print(said(answer, shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else 10_000))
    return 0


# --- what is replayed, and where


def _history(named: Sequence[Path]) -> History:
    """What is recorded in the files; of this person, if none is named. Raises `NotFound`."""
    from ..kernels.service import default_store
    from ..scheduling import recording

    paths: list[Path] = []
    try:
        for path in named or [default_store()]:
            paths += recording.files(path) if path.is_dir() else [path] if named else []
        paths = list({os.path.realpath(path): path for path in paths}.values())  # one that is named twice is one
    except OSError as error:
        raise _unreadable(error) from None
    if not paths:
        where = ", ".join(map(str, named)) or str(default_store())
        raise NotFound(
            f"nothing is recorded in {where} so far: a server writes {recording.FILE} there as requests are made "
            "(unless c.LocalScheduler.record_requests is false; a server with a `store` of its own, there)"
        )
    try:
        history = recording.read(paths)
    except OSError as error:
        raise _unreadable(error) from None
    if not history.requests:
        odd = _odd(history.broken, history.newer)
        raise NotFound(f"no request is recorded in {', '.join(map(str, paths))}" + (f": {odd}" if odd else ""))
    return history


def _unreadable(error: OSError) -> NotFound:
    return NotFound(f"{error.filename}: cannot be read: {error.strerror or error}")


def _nodes(options: argparse.Namespace) -> tuple[list[Node], str | None]:
    """The nodes, and the policy that is in use there; `None`: nobody uses them."""
    if options.nodes:
        if options.inventory or options.server:
            raise InvalidValue("--nodes are machines that do not exist; leave --inventory and --server out")
        return _imagined(options.nodes), None
    with client_of(options, looks=True) as client:
        nodes = look(client)
        try:
            policy = str(client.about()["policy"])
        except GpufitError:  # an older server
            policy = _USUAL
    return nodes, policy


def _imagined(specs: Iterable[str]) -> list[Node]:
    from ..cluster.effective import effective
    from ..reporting.simulated import SimulatedNode

    nodes: list[Node] = []
    for spec in specs:
        several = _SEVERAL.fullmatch(spec.strip())
        for _ in range(int(several[1]) if several else 1):
            if len(nodes) >= _MOST_NODES:
                raise InvalidValue(f"--nodes {spec!r}: more than {_MOST_NODES} nodes are too many to replay on")
            name = f"node{len(nodes) + 1:04}"
            try:
                gpus = SimulatedNode(name, several[2] if several else spec).report((), time.time()).gpus
            except InvalidValue as error:
                raise InvalidValue(f"--nodes {spec!r}: {error.message}") from None
            cores, ram = float(MAX_CPUS), 2**50
            nodes.append(
                Node(name=name, gpus=effective(gpus, ()), age=0.0, cpus=cores, cpus_free=cores, ram=ram, ram_free=ram)
            )
    return nodes


class _Telling:
    """How far it is, on a terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._progress, self._said = total, Progress(), False

    def __enter__(self) -> _Telling:
        return self

    def __exit__(self, *_: object) -> None:
        if self._said and sys.stderr.isatty():
            sys.stderr.write("\r\033[K")  # what follows begins on an empty line
            sys.stderr.flush()

    def of(self, policy: str, before: int) -> Callable[[int], None]:
        def tell(done: int) -> None:
            self._said = True
            percent = 100 * (before + done) // self._total
            self._progress.tell(f"replaying with {policy}: {percent} % of all", before + done, self._total)

        return tell


# --- what is said


class Answer(Struct, frozen=True, kw_only=True):
    """All that there is to say; with `--json` as it is."""

    requests: int
    since: float
    until: float
    lifetimes: Lifetimes
    never_fit: int
    lines_broken: int
    lines_of_other_versions: int
    load: float
    nodes: int
    nodes_left_out: int
    gpus: int
    in_use: str | None
    policies: tuple[Figures, ...]
    verdict: Verdict


def said(answer: Answer, width: int) -> str:
    """What was replayed, the figures of each policy, and what follows from them."""
    above, below = (
        textwrap.fill(text, _WIDTH, break_on_hyphens=False)  # a policy's name is one word
        for text in (" ".join(_replayed(answer)), answer.verdict.text)
    )
    return "\n\n".join((above, text_table(*_table(answer), width), below))


def _table(answer: Answer) -> tuple[list[str], list[list[str]]]:
    headers = "policy|at once|mean wait|95 % wait|refused|GPU hours refused|GPU hours served|allocated|when short"
    rows = [
        [
            f"{one.policy} (in use)" if one.policy == answer.in_use else one.policy,
            _percent(one.at_once),
            format_duration(one.wait_mean),
            format_duration(one.wait_95),
            str(one.refused),
            f"{one.refused_gpu_hours:.1f}",
            f"{one.served_gpu_hours:.1f}",
            _percent(one.allocated),
            _percent(one.allocated_when_short),
        ]
        for one in answer.policies
    ]
    return headers.split("|"), rows


def _percent(part: float | None) -> str:
    return "?" if part is None else f"{100 * part:.1f} %"


def _replayed(answer: Answer) -> Iterator[str]:
    faster = "" if answer.load == 1 else f", replayed {answer.load:g} times as fast"
    span = format_duration(answer.until - answer.since)
    where = f"{_count(answer.nodes, 'node')} with {_count(answer.gpus, 'GPU')}"
    yield f"{_count(answer.requests, 'request')} in {span} since {format_moment(answer.since)}{faster}, on {where}."
    if (guessed := answer.lifetimes.guessed) > 0:
        usual = (
            "the median of those with as many, or their time limit if that is less"
            if answer.lifetimes.known
            else "their time limit, or an hour if they have none"
        )
        yield f"For how long {guessed} of them need GPUs is not known: they get {usual}."
    if (never := answer.never_fit) > 0:
        yield f"{never} could never run on these nodes, and {_is(never)} left out."
    if (away := answer.nodes_left_out) > 0:
        yield f"{_count(away, 'node')} cannot be used now, and {_is(away)} left out."
    if odd := _odd(answer.lines_broken, answer.lines_of_other_versions):
        yield f"Not read: {odd}."


def _odd(broken: int, others: int) -> str:
    parts = []
    if broken:
        parts.append(f"{_count(broken, 'line')} that {_is(broken)} broken")
    if others:
        parts.append(f"{_count(others, 'line')} of another version of jupyter_gpufit")
    return " and ".join(parts)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"

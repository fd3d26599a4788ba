"""Completion: what can become of a line so far (`complete`), and the names that it needs (`Known`).

A server may take seconds to answer, or never do. So names are fetched on a thread: Tab waits for it a moment, and shows
what was fetched before if that is not enough.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..errors import GpufitError
from .client import Client
from .grammar import VERBS, cell_parser, parser_of

__all__ = ["Known", "complete"]

_WITHIN = 0.25  # s


class Known(Mapping[str, Callable[[], list[str]]]):
    """Kind of name (of an option's value) → what gives all names of that kind. See `complete`."""

    def __init__(self, client: Callable[[], Client]) -> None:
        """`client` may take its time, too."""
        self._client = client
        self._names: dict[str, list[str]] = {}
        self._fetching: dict[str, threading.Thread] = {}
        self._fetch: dict[str, Callable[[Client], list[str]]] = {
            "name": lambda client: [allocation["name"] for allocation in client.allocations()],
            "node": lambda client: [node.name for node in client.nodes()],
            "model": lambda client: sorted({one.name for node in client.nodes() for one in node.models or ()}),
            "gpu_model": lambda client: sorted(
                {gpu.model for node in client.nodes() for gpu in node.gpus if gpu.model}
            ),
            "label": lambda client: sorted(
                {f"{key}={value}" for node in client.nodes() for key, value in node.labels.items()}
            ),
        }

    def __getitem__(self, kind: str) -> Callable[[], list[str]]:
        self._fetch[kind]  # KeyError, if there is no such kind
        return lambda: self._soon(kind)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetch)

    def __len__(self) -> int:
        return len(self._fetch)

    def _soon(self, kind: str) -> list[str]:
        thread = self._fetching.get(kind)
        if thread is None or not thread.is_alive():
            thread = self._fetching[kind] = threading.Thread(
                target=self._refresh, args=(kind,), name=f"gpufit-complete-{kind}", daemon=True
            )
            thread.start()
        thread.join(_WITHIN)
        return self._names.get(kind, [])

    def _refresh(self, kind: str) -> None:
        try:
            self._names[kind] = self._fetch[kind](self._client())
        except GpufitError:
            self._names.pop(kind, None)  # while the server does not answer there is nothing to propose


def complete(before: str, known: Mapping[str, Callable[[], Iterable[str]]]) -> list[str]:
    """What the last word of `before` (the line up to the cursor) can become.

    `known` gives the names of allocations (`name`), nodes (`node`) and stored models (`model`), models of GPUs
    (`gpu_model`) and labels (`label`); each is called only when such a one can come here.
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
        return _values(word, last.dest, known)
    option, equals, value = word.partition("=")
    if equals and any(option in action.option_strings for action in parser._actions):
        dest = next(action.dest for action in parser._actions if option in action.option_strings)
        return [f"{option}={found}" for found in _values(value, dest, known)]
    options = [name for name in (*parser.option_names(), "--help") if name not in done]
    if word.startswith("-"):
        return _starting(word, options)
    if verb in _OF_FILES:
        return [] if word else sorted(options)  # files are IPython's own business
    takes_name = any(action.dest == "name" and not action.option_strings for action in parser._actions)
    names = []
    if takes_name and not any(not other.startswith("-") for other in (done if cell else done[1:])):
        names = _starting(word, known["name"]())
    return names if word else [*names, *sorted(options)]


_OF_FILES = ("train", "upload", "download")
_SUGGESTED = {
    "memory": ("8GiB", "16GiB", "24GiB", "40GiB", "80GiB"),
    "cpus": ("1", "2", "4", "8", "16"),
    "ram": ("8GiB", "16GiB", "32GiB", "64GiB", "128GiB"),
    "time": ("30m", "1h", "4h", "1d"),
    "wait": ("1m", "10m", "1h"),
    "launcher": ("torchrun",),
}


def _values(word: str, dest: str, known: Mapping[str, Callable[[], Iterable[str]]]) -> list[str]:
    if dest in _SUGGESTED:
        return [value for value in _SUGGESTED[dest] if value.startswith(word)]
    if dest == "allocation":
        return _starting(word, known["name"]())
    return _starting(word, known[dest]()) if dest in known and dest != "name" else []


def _starting(word: str, all_: Iterable[str]) -> list[str]:
    return sorted({shlex.quote(name) for name in all_ if name.startswith(word)})

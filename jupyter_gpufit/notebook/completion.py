"""Names for completion: what is known at once, and what can be had while a person barely notices.

A server may take seconds to answer, or never do. So names are fetched on a thread: Tab waits for it a moment, and shows
what was fetched before if that is not enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from ..errors import GpufitError
from .client import Client

__all__ = ["Known"]

_WITHIN = 0.25  # s


class Known(Mapping[str, Callable[[], list[str]]]):
    """Kind of name (of an option's value) → what gives all names of that kind. See `grammar.complete`."""

    def __init__(self, client: Callable[[], Client]) -> None:
        """`client` may take its time, too."""
        self._client = client
        self._names: dict[str, list[str]] = {}
        self._fetching: dict[str, threading.Thread] = {}
        self._fetch: dict[str, Callable[[Client], list[str]]] = {
            "name": lambda client: [allocation["name"] for allocation in client.allocations()],
            "node": lambda client: [node.name for node in client.nodes()],
            "model": lambda client: sorted({gpu.model for node in client.nodes() for gpu in node.gpus if gpu.model}),
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

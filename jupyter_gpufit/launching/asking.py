"""What an engine is asked of one container, and answers in more than a few bytes: read as it comes. Blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import docker.errors

from ..scheduling.logs import Piece
from .engine import CALL_WITHIN, CONNECT_WITHIN
from .printed import chosen, frames, since, stamped

__all__ = ["ask_printed"]

CHUNK = 2**16
AT_ONCE = 2000
"""Lines that an engine is asked for first when only news are wanted: it looks at no more of a long log then."""
PARTS = 64
"""Parts of long lines that may be among the last ones (16 KiB each, and to an engine a line of their own)."""


def ask_printed(client: Any, container: str, tail: int | None = None, after: str = "") -> Sequence[Piece]:
    """What the container printed (`Launcher.logs`); nothing if it is gone."""
    start = since(after)
    if start is None:
        lines = "all" if tail is None else str(tail + PARTS)
        return chosen(stamped(frames(_ask(client, container, lines, None))), tail, False)
    # An engine takes the last ones, and of these those since then.
    few = list(frames(_ask(client, container, str(AT_ONCE), start)))
    answer: Iterable[bytes] = few
    if len(few) >= AT_ONCE:  # there may be more
        answer = frames(_ask(client, container, "all", start))
    return chosen(stamped(answer, after), tail, True)


def _ask(client: Any, container: str, tail: str, start: str | None) -> Iterator[bytes]:
    params = {"stdout": 1, "stderr": 1, "timestamps": 1, "tail": tail}
    if start is not None:
        params["since"] = start
    response = client.get(
        client._url("/containers/{0}/logs", container),
        params=params,
        stream=True,
        timeout=(CONNECT_WITHIN, CALL_WITHIN),
    )
    with response:
        try:
            client._raise_for_status(response)
        except docker.errors.APIError:  # it is gone
            return
        yield from response.iter_content(CHUNK)

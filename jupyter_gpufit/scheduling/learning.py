"""What the policy in use knows of what people ask, learned anew now and then, off the way of decisions.

    request ─ count ─→ Mix ─ a minute later ─→ the store
                        └─ many more of them, or other GPUs ─→ a thread: `learn` ─→ the policy that decides from then on

A policy that people choose decides at once; what there is to know of requests it knows a moment later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import InvalidValue
from ..models import Node, Request
from .mix import FEW, Kind, Mix, gpus_there
from .policies import Policy, find

__all__ = ["Learned", "Learning", "learn"]

MIX = "mix"
"""Name of the store's fact."""
WRITE_AFTER = 60.0
"""Seconds that requests are counted before the counts are written. A crash loses those of this time."""
FIRST_LOOK, LOOK_EVERY = 1.0, 10.0
"""Seconds between two looks at whether the cluster is another one: soon after the start it often is."""
OTHER = 0.1
"""So much more or less GPUs of a kind are another cluster."""
CLOSE_WITHIN = 5.0

Ready = Callable[[], None]


@dataclass(frozen=True)
class Learned:
    """What a policy has learned, and of what."""

    chosen: Policy
    """The policy as people choose it, which knows nothing."""
    policy: Policy
    """The one that knows."""
    seen: int
    """Requests that had been counted."""
    gpus: Mapping[Kind, int]
    ready: Ready | None = None
    """To be called when the policy begins to decide."""
    error: Exception | None = None
    """Why there was nothing to learn: `policy` is the one before."""


def learn(
    chosen: Policy,
    mix: Mix,
    nodes: Sequence[Node],
    before: Learned | None,
    prepare: Callable[[Policy], Ready | None] = lambda _: None,
) -> Learned | None:
    """What `chosen` learns; `None` if what it knows from `before` will still do. What it raises is in the answer.
    Pure, if `prepare` is."""
    gpus = gpus_there(nodes)
    if before is not None and before.chosen is not chosen:
        before = None  # that is what another policy knew
    if before is not None and not mix.due(before.seen) and not _other(gpus, before.gpus):
        return None
    kept = chosen if before is None else before.policy
    found = Learned(chosen, kept, mix.seen if mix.seen >= FEW else 0, gpus)
    try:
        policy = chosen.learned(mix, nodes)
        return replace(found, policy=policy, ready=prepare(policy))
    except Exception as error:
        return replace(found, error=error)


def _other(now: Mapping[Kind, int], then: Mapping[Kind, int]) -> bool:
    for kind in now.keys() | then.keys():
        few, many = sorted((now.get(kind, 0), then.get(kind, 0)))
        if many - few > OTHER * many:
            return True
    return False


class Learning:
    """Made by the scheduler; used on its event loop.

    `name()` is the policy that people chose, `nodes()` are the nodes as they are now; `facts` are the store's, and
    `note` writes one. `prepare` is the index's, so that no decision waits for what a new policy works out first.
    """

    def __init__(
        self,
        name: Callable[[], str],
        nodes: Callable[[], Sequence[Node]],
        facts: Mapping[str, bytes],
        note: Callable[[str, bytes], None],
        log: logging.Logger,
        prepare: Callable[[], Callable[[Policy], Ready]] | None = None,
    ) -> None:
        self._name, self._nodes, self._note, self._log, self._prepare = name, nodes, note, log, prepare
        self._mix = Mix()
        if (kept := facts.get(MIX)) is not None:
            try:
                self._mix = Mix.decode(kept)
            except InvalidValue as error:
                log.error("%s; requests are counted from the start again", error)
        self._known: Learned | None = None
        self._loop = asyncio.get_running_loop()
        self._work: tuple[threading.Thread, asyncio.Future[None]] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Learn from what is known, and look now and then whether there is more."""
        self._look_on(FIRST_LOOK)

    def policy(self) -> Policy:
        """The policy that decides now. Raises `InvalidValue` if there is none of the name that was chosen."""
        chosen = find(self._name())
        if not chosen.learns:
            return chosen
        if self._known is None or self._known.chosen is not chosen:
            self._look()
            return chosen
        return self._known.policy

    def count(self, request: Request) -> None:
        """This was asked for."""
        self._mix.count(request)
        if self._writing is None and not self._closed:
            self._writing = self._loop.call_later(WRITE_AFTER, self._write)
        if self._mix.due(0 if self._known is None else self._known.seen):
            self._look()

    async def close(self) -> None:
        """Write what was counted, and wait until nothing is being learned any more."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        if self._writing is not None:
            self._writing.cancel()
            self._write()
        if self._work is None:
            return
        thread, work = self._work
        if (await asyncio.wait([work], timeout=CLOSE_WITHIN))[0]:
            thread.join(CLOSE_WITHIN)  # it has nothing left to do
        else:
            self._log.warning("what people ask for is still being learned; nobody waits for it any more")

    # --- inside

    def _write(self) -> None:
        self._writing = None
        self._note(MIX, self._mix.encode())

    def _look_on(self, pause: float) -> None:
        self._look()
        self._looking = self._loop.call_later(pause, self._look_on, min(2 * pause, LOOK_EVERY))

    def _look(self) -> None:
        """Learn if it pays, in a thread; one at a time."""
        if self._closed or self._work is not None:
            return
        with suppress(InvalidValue):  # there is no such policy, which whoever asks for something is told
            chosen = find(self._name())
            if chosen.learns:
                self._learn(chosen)

    def _learn(self, chosen: Policy) -> None:
        mix, nodes, before = self._mix.encode(), self._nodes(), self._known
        work: asyncio.Future[None] = self._loop.create_future()

        def run() -> None:
            found: Learned | None = None
            try:
                found = learn(chosen, Mix.decode(mix), nodes, before, self._prepared)
            finally:
                with suppress(RuntimeError):  # nobody has waited for it
                    self._loop.call_soon_threadsafe(learned, found)

        def learned(found: Learned | None) -> None:
            self._work = None
            work.set_result(None)
            if found is None:
                return
            self._known = replace(found, ready=None)
            if found.ready is not None:
                found.ready()
            if found.error is not None:
                self._log.error(
                    "policy %s could not learn from %d requests, and goes by what it knew before",
                    chosen.name,
                    found.seen,
                    exc_info=found.error,
                )

        thread = threading.Thread(target=run, name="gpufit learning", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many
            self._log.warning("policy %s does not learn now: %s", chosen.name, error)
        else:
            self._work = thread, work

    def _prepared(self, policy: Policy) -> Ready | None:
        """In the thread: what makes the policy ready to decide, once it is called on the loop."""
        if (prepare := self._prepare) is None:
            return None
        asked: Future[Callable[[Policy], Ready]] = Future()

        def ask() -> None:
            try:
                asked.set_result(prepare())
            except Exception as error:
                asked.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(ask)
        except RuntimeError:  # the loop has ended: nobody decides any more
            return None
        try:
            work = asked.result(CLOSE_WITHIN)
        except TimeoutError:  # it has other things to do, or is about to end: the first decision will take a while
            return None
        return work(policy)

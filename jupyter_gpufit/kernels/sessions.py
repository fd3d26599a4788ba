"""The sessions of allocations' kernels outlive the server: what notebook had which kernel, and whose cell it runs.

    watch     a session, an attachment or a cell changes ─→ `Scheduler.remember` (parts `sessions`, `worked`)
    restore   once the kernels are taken back: sessions and attachments as they were, and see what the kernels do

A server keeps its sessions in memory, and drops each whose kernel is not there. So the restored ones have to be there
before anybody asks (`server/gate.py`). The local kernels of attached notebooks have died with their server: a notebook
whose kernel was on its way to the allocation's is given that one, and one that is detached gets a fresh local kernel.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from jupyter_server.services.sessions.sessionmanager import SessionManager
from msgspec import Struct
from tornado.web import HTTPError

from ..models import Allocation, State
from ..scheduling.api import Scheduler
from .attachment import Attachment
from .takeback import Worked, settle
from .topics import DOINGS, hear_less

if TYPE_CHECKING:
    from .attach import Attachments

__all__ = ["Sessions"]

_HEARD_WITHIN = 2.0  # s that a start waits for what the kernels say
_SAME_AGAIN = 30.0  # s for which it is not remembered anew that a front end ran a cell
_LONGEST_NAME = 200
_CHANGES = ("INSERT", "UPDATE", "DELETE")


class _Session(Struct, frozen=True, kw_only=True):
    id: str
    path: str
    name: str
    type: str
    local_kernel: str | None = None
    """Of an attached notebook."""
    local_kernelspec: str | None = None


class _Remembered(Struct, frozen=True, kw_only=True):
    root: str
    """The server's root directory: paths mean something only there."""
    sessions: tuple[_Session, ...]


class Sessions:
    """Made by the server extension; used on its event loop."""

    def __init__(
        self,
        sessions: Any,
        kernels: Any,
        scheduler: Scheduler,
        attachments: Attachments,
        root: str,
        log: logging.Logger,
    ) -> None:
        """`sessions` and `kernels` are the server's session and kernel managers, `root` is its root directory."""
        self._sessions, self._kernels = sessions, kernels
        self._scheduler, self._attachments = scheduler, attachments
        self._root, self._log = root, log
        self._told: dict[str, bytes | None] = {}
        self._listening: dict[str, _Listener] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: asyncio.Handle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def restore(self) -> None:
        """Have sessions and attachments as they were, for all kernels that were taken back. Takes some seconds at most;
        a kernel that has not said by then what it does is waited for in the background."""
        heard = []
        for allocation in self._scheduler.allocations():
            kernel_id = allocation.kernel_id
            if allocation.state is State.RUNNING and kernel_id is not None and kernel_id in self._kernels:
                try:
                    await self._restore(allocation)
                except Exception:  # such as: the kernel ended meanwhile. The others' sessions are there all the same
                    self._log.exception("the sessions of allocation %s were not restored", allocation.name)
                known = asyncio.Event()
                worked = self._scheduler.recall(allocation.id, "worked")
                self._tasks.append(asyncio.create_task(settle(self._kernels, kernel_id, worked, known, self._log)))
                heard.append(asyncio.create_task(known.wait()))
        if heard:
            _, late = await asyncio.wait(heard, timeout=_HEARD_WITHIN)
            for each in late:
                each.cancel()

    def watch(self) -> None:
        """From now on remember."""
        if isinstance(self._sessions, SessionManager):
            self._sessions.cursor  # noqa: B018  (makes the table)
            connection: sqlite3.Connection = self._sessions.connection
            connection.create_function("gpufit_changed", 0, self.changed)
            for change in _CHANGES:
                connection.execute(f"DROP TRIGGER IF EXISTS temp.gpufit_{change}")
                connection.execute(
                    f"CREATE TEMP TRIGGER gpufit_{change} AFTER {change} ON session BEGIN SELECT gpufit_changed(); END"
                )
        else:
            self._log.warning("%s: sessions will not survive this server", type(self._sessions).__name__)
        self._unsubscribe = self._scheduler.subscribe(lambda _: self.changed())
        self.changed()

    def changed(self, *_: object) -> None:
        """A session, an attachment or an allocation did. Never raises: a database calls it."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    async def close(self) -> None:
        """Stop. What is remembered stays so."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            if isinstance(self._sessions, SessionManager):
                for change in _CHANGES:
                    self._sessions.connection.execute(f"DROP TRIGGER IF EXISTS temp.gpufit_{change}")
        if self._looking is not None:
            self._looking.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listening.values():
            listener.close()
        self._listening.clear()

    # --- back

    async def _restore(self, allocation: Allocation) -> None:
        data = self._scheduler.recall(allocation.id, "sessions")
        try:
            left = None if data is None else msgspec.json.decode(data, type=_Remembered)
        except msgspec.DecodeError:
            self._log.warning("the sessions of allocation %s cannot be read", allocation.name)
            return
        if left is None or left.root != self._root:
            return
        self._told[allocation.id] = data
        for session in left.sessions:
            has = await self._kernel_of(session)
            if has is None:
                await self._sessions.save_session(
                    session.id, path=session.path, name=session.name, type=session.type, kernel_id=allocation.kernel_id
                )
            elif has != allocation.kernel_id:
                continue  # it was on its way from another allocation to this one
            if session.local_kernel is not None and session.local_kernelspec is not None:
                self._attachments.restore(
                    Attachment(
                        allocation=allocation.id,
                        session=session.id,
                        path=session.path,
                        name=session.name,
                        type=session.type,
                        local_kernel=session.local_kernel,
                        local_kernelspec=session.local_kernelspec,
                        remote_kernel=str(allocation.kernel_id),
                        state="attached",
                    )
                )

    async def _kernel_of(self, session: _Session) -> str | None:
        """The kernel it has; `None`: there is no such session (a server that keeps its sessions on disk has it)."""
        try:
            model = await self._sessions.get_session(session_id=session.id)
        except HTTPError:
            return None
        return str(model["kernel"]["id"])

    # --- remembering

    def _look(self) -> None:
        self._looking = None
        rows = self._rows()
        live = {one.id: one for one in self._scheduler.allocations() if one.kernel_id is not None}
        for allocation in live.values():
            if allocation.kernel_id in self._kernels:
                self._tell(allocation, rows)
                self._listen(allocation)
        for id in [id for id in self._listening if id not in live]:
            self._listening.pop(id).close()
            self._told.pop(id, None)

    def _rows(self) -> list[sqlite3.Row]:
        """All sessions as they are kept. (`list_sessions` drops those whose kernel is gone.)"""
        if not isinstance(self._sessions, SessionManager):
            return []
        columns = "session_id, path, name, type, kernel_id"
        return list(self._sessions.connection.execute(f"SELECT {columns} FROM session"))

    def _tell(self, allocation: Allocation, rows: list[sqlite3.Row]) -> None:
        attached = {one.session: one for one in self._attachments.of(allocation.id) if one.state != "detached"}
        found = {
            row["session_id"]: _Session(id=row["session_id"], path=row["path"], name=row["name"], type=row["type"])
            for row in rows
            if row["kernel_id"] == allocation.kernel_id or row["session_id"] in attached
        }
        for id, one in attached.items():
            if id in found:
                found[id] = msgspec.structs.replace(
                    found[id], local_kernel=one.local_kernel, local_kernelspec=one.local_kernelspec
                )
        sessions = tuple(found.values())
        data = msgspec.json.encode(_Remembered(root=self._root, sessions=sessions)) if sessions else None
        if data != self._told.get(allocation.id):
            self._told[allocation.id] = data
            self._scheduler.remember(allocation.id, data, "sessions")

    def _listen(self, allocation: Allocation) -> None:
        if allocation.id not in self._listening and allocation.state is State.RUNNING:
            id, manager = allocation.id, self._kernels.get_kernel(allocation.kernel_id)
            self._listening[id] = _Listener(
                manager, lambda worked: self._scheduler.remember(id, msgspec.json.encode(worked), "worked")
            )


class _Listener:
    """Hears whose cells a kernel runs."""

    def __init__(self, manager: Any, on_work: Callable[[Worked], None]) -> None:
        self._on_work = on_work
        self._session = manager.session
        self._last = Worked(session="", at=0.0)
        self._stream = manager.connect_iopub()
        self._less = False
        self._stream.on_recv(self._hear)

    def close(self) -> None:
        """Stop."""
        if not self._stream.closed():
            self._stream.close()

    def _hear(self, parts: list[bytes]) -> None:
        if self._less and not parts[0].endswith(b".execute_input"):
            return
        self._less = self._less or hear_less(self._stream.socket, parts, (DOINGS,))
        try:
            _, parts = self._session.feed_identities(parts)
            if self._session.unpack(parts[1])["msg_type"] != "execute_input":
                return
            session = self._session.unpack(parts[2])["session"]
        except (ValueError, KeyError, IndexError, TypeError):
            return  # no message of a kernel
        now = time.time()
        if not isinstance(session, str) or not 0 < len(session) <= _LONGEST_NAME:
            return
        if session != self._last.session or now - self._last.at > _SAME_AGAIN:
            self._last = Worked(session=session, at=now)
            self._on_work(self._last)

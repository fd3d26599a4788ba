"""Allocations on disk, so that they survive the process: SQLite, one file per scheduler that runs.

    scheduler ── save, forget ──→ what is to be written ── the store's own thread ──→ gpufit.sqlite (WAL)
              ←── entries, schedulers ── once, when it is opened

Nobody waits for the disk: `save` puts the entry's JSON into a dictionary, and the thread writes what has gathered there
in one transaction. A crash may so lose the last moments; what they had started carries our label, and is found by it.

Several servers of one person may run at once. The file is locked while it is in use (SQLite's exclusive mode, gone with
the process however it dies), and a second scheduler in the same directory takes the next free file of
`gpufit.sqlite`, `gpufit-2.sqlite`, …; what dead ones left in files that nobody uses it takes over, when it is opened,
and a server also now and then (`adopt`). So that two never believe in one id, each opening makes a new scheduler id;
the former ones are remembered, to know what is ours to clean up.

Schedulers that are *embedded* in a program (nbclient, a magic without a server) use `embedded.sqlite`,
`embedded-2.sqlite`, … of the same directory, and take over only those: a server that died may be started again, and
then wants its own back. A server takes over both kinds.

Beside each entry its *memories* are kept: what it takes to go on with its kernel. They have the kernel's keys in them.
So the file is its owner's alone (mode 0600 in a directory of 0700), and what is deleted is overwritten, also
in the write-ahead log, within a second or so.

*Facts* are what the scheduler knows apart from any allocation (what people ask for): few, small, and its own. One that
has none of a name begins with what it finds in the files that it takes over when it is opened.

What is *kept* of an allocation (what it printed, what it used) stays until its entry is forgotten. It may be large, so
it is not held in memory, but read when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import StoreError
from ..models import State
from .entries import Entry

__all__ = ["MEMORY", "Store", "StoreLocked"]

MEMORY: Literal[":memory:"] = ":memory:"
SCHEMA = 4
AGAIN = 5.0
"""Seconds after a transaction that failed (a full disk), until it is tried again."""
GATHER = 0.01
"""Seconds that changes are gathered before they are written in one transaction."""
TIDY = 1.0
"""Seconds that what was deleted may still be in the write-ahead log, if that was emptied just before: emptying it waits
for the disk to sync, twice, and whoever waits for what they saved to be written then waits for that."""
MOST_FILES = 64
MOST_IDS = 1000
"""Former scheduler ids that are remembered, latest first."""

_TABLES = """
    CREATE TABLE entries (id TEXT PRIMARY KEY, ended INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE schedulers (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
"""
_SINCE_2 = """
    CREATE TABLE memories (id TEXT, part TEXT, data BLOB NOT NULL, PRIMARY KEY (id, part)) WITHOUT ROWID;
"""
_SINCE_3 = """
    CREATE TABLE kept (id TEXT, part TEXT, data BLOB NOT NULL, PRIMARY KEY (id, part));
"""
_SINCE_4 = """
    CREATE TABLE facts (name TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
"""
_KEPT_OF_LIVE = "SELECT id, part, data FROM kept WHERE id IN (SELECT id FROM entries WHERE NOT ended)"


class StoreLocked(StoreError):
    """Another process uses the file."""


class Store:
    """The entries of one scheduler on disk. Made by `open`, by the scheduler; used from one event loop."""

    def __init__(
        self, path: Path | None, connection: sqlite3.Connection, thread: ThreadPoolExecutor, log: logging.Logger
    ) -> None:
        self.path = path
        """The file; `None`: in memory."""
        self.scheduler = ""
        """Id of the scheduler that uses it now."""
        self.schedulers: set[str] = set()
        """All ids whose units are ours: the present one, former ones, and those of dead schedulers taken over. One
        object as long as there is the store, which grows."""
        self.memories: dict[str, dict[str, bytes]] = {}
        """Allocation → part → what is remembered."""
        self.facts: dict[str, bytes] = {}
        """By name."""
        self.alone = True
        """Whether nobody else used the directory when it was opened."""
        self._connection, self._thread, self._log = connection, thread, log
        self._waiting: dict[str, tuple[bool, bytes] | None] = {}
        self._memories_waiting: dict[tuple[str, str], bytes | None] = {}
        self._kept_waiting: dict[tuple[str, str], bytes | None] = {}
        self._facts_waiting: dict[str, bytes] = {}
        self._free: dict[Path, float] = {}  # other files with something live in them -> since when nobody uses them
        self._stuck: list[sqlite3.Connection] = []  # of files that could not be emptied when they were taken over
        self._lock = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._next: asyncio.Future[None] | None = None  # the last write that somebody waits for
        self._begun = False  # ... it or another one since
        self._untidy = False  # what was deleted is still in the write-ahead log
        self._tidied = -TIDY  # when that was emptied last, by the loop's clock
        self._loop: asyncio.AbstractEventLoop
        self._closed = False

    @classmethod
    async def open(
        cls, where: Path | Literal[":memory:"], log: logging.Logger | None = None, embedded: bool = False
    ) -> tuple[Store, list[Entry]]:
        """The store in directory `where` (made if missing), and the entries in it. `embedded`: see above.

        Raises `StoreError` when the file cannot be used: not ours to read, no database, of a newer version.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="gpufit store")
        log = log or logging.getLogger(__name__)
        work = thread.submit(cls._open, where, thread, log, embedded)
        try:
            store, entries = await asyncio.shield(asyncio.wrap_future(work))
        except BaseException:
            thread.submit(_close_late, work)
            thread.shutdown(wait=False)
            raise
        store._loop = asyncio.get_running_loop()
        store._tidy_later()  # of a process before this one, which may have been killed just before it did
        return store, entries

    def save(self, entry: Entry) -> None:
        """Write `entry` as it is now, soon. Never blocks, never fails (what the disk says is logged)."""
        self._put(entry.id, (entry.state is State.ENDED, msgspec.json.encode(entry)))

    def forget(self, id: str) -> None:
        """Remove an entry, soon."""
        self._put(id, None)

    def remember(self, id: str, part: str, memory: bytes | None) -> None:
        """Keep `memory` with the entry, soon, in the place of what was remembered of that `part` before; `None`: forget
        it. As `save`: with it in one transaction, if they come close together."""
        parts = self.memories.setdefault(id, {})
        if memory is None:
            parts.pop(part, None)
        else:
            parts[part] = memory
        if not parts:
            del self.memories[id]
        with self._lock:
            if self._closed:
                return
            self._memories_waiting[id, part] = memory
        self._write_later()

    def forget_memories(self, id: str) -> None:
        """Nobody will go on with its kernel."""
        for part in list(self.memories.get(id, ())):
            self.remember(id, part, None)

    def note(self, name: str, fact: bytes) -> None:
        """Keep `fact`, soon, in the place of the one of that name. As `save`."""
        self.facts[name] = fact
        with self._lock:
            if self._closed:
                return
            self._facts_waiting[name] = fact
        self._write_later()

    def keep(self, id: str, part: str, data: bytes | None) -> None:
        """Keep `data` with the entry until that is forgotten, soon, in the place of what was kept as that `part`
        before; `None`: no longer. As `save`."""
        with self._lock:
            if self._closed:
                return
            self._kept_waiting[id, part] = data
        self._write_later()

    async def kept(self, id: str, part: str) -> bytes | None:
        """What is kept as that part."""
        if self._closed:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read_kept, id, part)

    async def adopt(self, wait: float) -> list[Entry]:
        """Take over what servers and programs that ended since left in their files, as `open` does, but not what has
        ended; returns those entries. A file in which something waits for the server that it had is left alone until
        nobody has used it for `wait` seconds.

        When it returns, `schedulers` and `memories` have theirs. If it is cancelled, they may be in this store's file
        all the same, for whoever opens that next. Raises `StoreError`; then nothing was taken.
        """
        if self._closed or self.path is None:
            return []
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._adopt, wait)
        entries, schedulers, memories = await work
        self.schedulers |= schedulers
        for id, part, data in memories:
            self.memories.setdefault(id, {})[part] = data
        return entries

    async def flush(self) -> None:
        """Wait until all that was saved is written. Raises `StoreError` if it cannot be."""
        if self._closed:
            return
        with self._lock:
            if not (self._writing or self._is_waiting()):
                return
        if self._next is None or self._begun:  # else it takes what is there when its turn comes, for everybody
            self._begun = False
            self._next = asyncio.get_running_loop().run_in_executor(self._thread, self._write, True)
        await asyncio.shield(self._next)

    async def close(self) -> None:
        """Write what is left, and let go of the file. Idempotent. A disk that refuses is logged."""
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._end))
            self._thread.shutdown(wait=False)

    # --- on the store's thread

    @classmethod
    def _open(
        cls, where: Path | Literal[":memory:"], thread: ThreadPoolExecutor, log: logging.Logger, embedded: bool
    ) -> tuple[Store, list[Entry]]:
        if where == MEMORY:
            memory = cls(None, _connect(None), thread, log)
            return memory, memory._begin([])
        with _errors(where):
            where.mkdir(parents=True, exist_ok=True, mode=0o700)
        store: Store | None = None
        others: list[sqlite3.Connection] = []
        alone = not embedded  # which does not look at those of servers
        for file in _files(where, "embedded" if embedded else "gpufit"):
            if store is not None and not file.exists():
                break
            try:
                if store is None:
                    store = cls(file, _connect(file), thread, log)
                else:
                    others.append(_connect(file))
            except StoreLocked:
                alone = False  # that is somebody else's
                continue
            except StoreError as error:
                if store is None:
                    raise
                log.warning("left alone: %s", error)
        for file in () if embedded else takewhile(Path.exists, _files(where, "embedded")):
            try:
                others.append(_connect(file))
            except StoreLocked:
                alone = False
                continue
            except StoreError as error:
                log.warning("left alone: %s", error)
        if store is None:
            raise StoreLocked(f"{MOST_FILES} schedulers have a store in {where} already; use another directory")
        store.alone = alone
        try:
            return store, store._begin(others)
        except BaseException:
            store._connection.close()
            raise
        finally:
            for other in others:
                other.close()

    def _begin(self, others: list[sqlite3.Connection]) -> list[Entry]:
        """Make a new scheduler id, take over what dead schedulers left in `others`, and read all entries."""
        self.scheduler = secrets.token_hex(8)
        with _errors(self.path), self._connection as here:
            for there in others:
                _copy(there, here)
                facts = there.execute("SELECT name, data FROM facts").fetchall()
                here.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", facts)
            here.execute("DELETE FROM kept WHERE id NOT IN (SELECT id FROM entries)")
            here.execute("INSERT INTO schedulers (id) VALUES (?)", (self.scheduler,))
            here.execute("DELETE FROM schedulers WHERE number <= (SELECT MAX(number) FROM schedulers) - ?", (MOST_IDS,))
        with _errors(self.path):
            for there in others:
                _empty(there)
            self.schedulers |= _ids(self._connection)
            rows = self._connection.execute("SELECT id, data FROM entries").fetchall()
            for id, part, data in self._connection.execute("SELECT id, part, data FROM memories"):
                self.memories.setdefault(id, {})[part] = data
            self.facts = dict(self._connection.execute("SELECT name, data FROM facts").fetchall())
        return sorted(self._entries(rows), key=lambda entry: entry.allocation.created)

    def _adopt(self, wait: float) -> tuple[list[Entry], set[str], list[tuple[str, str, bytes]]]:
        assert self.path is not None
        others: list[sqlite3.Connection] = []
        now = time.monotonic()
        try:
            for kind in ("gpufit", "embedded"):
                for file in takewhile(Path.exists, _files(self.path.parent, kind)):
                    if file != self.path and (there := self._left_in(file, now, wait)) is not None:
                        others.append(there)
            return self._take_from(others)
        finally:
            for there in others:
                if there not in self._stuck:
                    there.close()

    def _left_in(self, file: Path, now: float, wait: float) -> sqlite3.Connection | None:
        """The file, if nobody uses it and it has something that is to be taken over now."""
        there: sqlite3.Connection | None = None
        try:
            there = _connect(file)
            with _errors(file):
                rows = there.execute("SELECT id, data FROM entries WHERE NOT ended").fetchall()
                remembered = {id for (id,) in there.execute("SELECT DISTINCT id FROM memories")}
        except StoreError as error:
            if not isinstance(error, StoreLocked):  # `open` has told, or will
                self._log.debug("left alone: %s", error)
            rows = []
        if not rows:
            self._free.pop(file, None)
        else:
            since = self._free.setdefault(file, now)
            if now - since >= wait or not any(id in remembered or _queued_for_kernel(data) for id, data in rows):
                del self._free[file]
                return there
        if there is not None:
            there.close()
        return None

    def _take_from(
        self, others: list[sqlite3.Connection]
    ) -> tuple[list[Entry], set[str], list[tuple[str, str, bytes]]]:
        if not others:
            return [], set(), []
        with _errors(self.path), self._connection as here:
            known = {id for (id,) in here.execute("SELECT id FROM entries")}
            for there in others:
                _copy(there, here)
            new = [
                (id, data)
                for id, data in here.execute("SELECT id, data FROM entries WHERE NOT ended")
                if id not in known
            ]
            memories = [row for row in here.execute("SELECT id, part, data FROM memories") if row[0] not in known]
            ids = _ids(here)
        for there in others:
            try:
                _empty(there)
            except sqlite3.Error as error:  # they are ours all the same: nobody may use it before we end
                self._log.warning("what was taken over is still in its file, which is kept locked: %s", error)
                self._stuck.append(there)
        return sorted(self._entries(new), key=lambda entry: entry.allocation.created), ids, memories

    def _entries(self, rows: list[tuple[str, bytes]]) -> Iterator[Entry]:
        for id, data in rows:
            try:
                yield msgspec.json.decode(data, type=Entry)
            except (msgspec.DecodeError, ValueError) as error:
                # Its unit, if there is one, is removed by its label.
                self._log.error("allocation %s in %s cannot be read, and is given up: %s", id, self.path, error)

    def _put(self, id: str, row: tuple[bool, bytes] | None) -> None:
        with self._lock:
            if self._closed:
                return
            self._waiting[id] = row
        self._write_later()

    def _write_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER, self._write_soon)

    def _write_soon(self) -> None:
        self._timer = None
        with self._lock:
            idle = self._closed or not self._is_waiting()  # what was waited for is written already
        if not idle:
            self._thread.submit(self._write)

    def _write_again(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(AGAIN, self._write_soon)

    def _is_waiting(self) -> bool:
        return bool(self._waiting or self._memories_waiting or self._kept_waiting or self._facts_waiting)

    def _write(self, strict: bool = False) -> None:
        with self._lock:
            self._writing = self._begun = True
        try:
            self._write_now(strict)
        finally:
            self._writing = False

    def _write_now(self, strict: bool) -> None:
        with self._lock:
            rows, self._waiting = self._waiting, {}
            memories, self._memories_waiting = self._memories_waiting, {}
            keeping, self._kept_waiting = self._kept_waiting, {}
            facts, self._facts_waiting = self._facts_waiting, {}
        if not rows and not memories and not keeping and not facts:
            return
        kept = [(id, *row) for id, row in rows.items() if row is not None]
        gone = [(id,) for id, row in rows.items() if row is None]
        remembered = [(*key, data) for key, data in memories.items() if data is not None]
        forgotten = [key for key, data in memories.items() if data is None]
        parts = [(*key, data) for key, data in keeping.items() if data is not None]
        no_parts = [key for key, data in keeping.items() if data is None]
        try:
            with self._connection as here:
                here.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", kept)
                here.executemany("DELETE FROM entries WHERE id = ?", gone)
                here.executemany("INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", remembered)
                here.executemany("DELETE FROM memories WHERE id = ? AND part = ?", forgotten)
                here.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", parts)
                here.executemany("DELETE FROM kept WHERE id = ? AND part = ?", no_parts)
                here.executemany("DELETE FROM kept WHERE id = ?", gone)
                here.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))
        except sqlite3.Error as error:
            with self._lock:  # with the next one; what is newer by then stays
                self._waiting = rows | self._waiting
                self._memories_waiting = memories | self._memories_waiting
                self._kept_waiting = keeping | self._kept_waiting
                self._facts_waiting = facts | self._facts_waiting
            message = f"{self.path} cannot be written: {error}; allocations would not survive a crash now"
            self._log.error(message)
            self._loop.call_soon_threadsafe(self._write_again)
            if strict:
                raise StoreError(message) from error
            return
        if not self._untidy and (forgotten or any(ended for _, ended, _ in kept)):
            self._untidy = True
            self._loop.call_soon_threadsafe(self._tidy_later)

    def _tidy_later(self, wait: float = 0.0) -> None:
        wait = max(wait, self._tidied + TIDY - self._loop.time())
        if wait > 0:
            self._loop.call_later(wait, self._tidy_later)
        elif not self._closed:
            self._tidied = self._loop.time()
            self._thread.submit(self._tidy)

    def _tidy(self) -> None:
        """What was deleted goes out of the write-ahead log, too."""
        self._untidy = False
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            self._untidy = True
            self._log.error("what was deleted from %s is still in its write-ahead log: %s", self.path, error)
            if not self._closed:
                self._loop.call_soon_threadsafe(self._tidy_later, AGAIN)

    def _read_kept(self, id: str, part: str) -> bytes | None:
        with self._lock:
            if self._waiting.get(id, ()) is None:  # it is about to be forgotten
                return None
            if (id, part) in self._kept_waiting:
                return self._kept_waiting[id, part]
        try:
            rows = self._connection.execute("SELECT data FROM kept WHERE id = ? AND part = ?", (id, part)).fetchall()
        except sqlite3.Error as error:
            self._log.error("%s cannot be read: %s", self.path, error)
            return None
        return rows[0][0] if rows else None

    def _end(self) -> None:
        try:
            self._write()
            if self._untidy:
                self._tidy()
        finally:
            for connection in (*self._stuck, self._connection):
                connection.close()


def _copy(there: sqlite3.Connection, here: sqlite3.Connection) -> None:
    """What a dead scheduler left that has not ended. First into ours: doubly known is harmless, since nobody starts
    anything under a former id."""
    ids = there.execute("SELECT id FROM schedulers ORDER BY number").fetchall()
    here.executemany("INSERT OR IGNORE INTO schedulers (id) VALUES (?)", ids)
    rows = there.execute("SELECT id, ended, data FROM entries WHERE NOT ended").fetchall()
    here.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?)", rows)
    memories = there.execute("SELECT id, part, data FROM memories").fetchall()
    here.executemany("INSERT OR IGNORE INTO memories VALUES (?, ?, ?)", memories)
    here.executemany("INSERT OR IGNORE INTO kept VALUES (?, ?, ?)", there.execute(_KEPT_OF_LIVE).fetchall())


def _empty(there: sqlite3.Connection) -> None:
    """It is ours now. What had ended stays."""
    with there:
        there.execute("DELETE FROM entries WHERE NOT ended")
        there.execute("DELETE FROM kept WHERE id NOT IN (SELECT id FROM entries)")
        there.execute("DELETE FROM memories")


def _queued_for_kernel(data: bytes) -> bool:
    """Of an entry: whether it waits for GPUs that a kernel of its server, as it is started again, is to have."""
    try:
        entry = msgspec.json.decode(data, type=Entry)
    except (msgspec.DecodeError, ValueError):
        return False
    return entry.queued and entry.job is None


def _ids(connection: sqlite3.Connection) -> set[str]:
    return {id for (id,) in connection.execute("SELECT id FROM schedulers")}


def _files(where: Path, kind: str) -> list[Path]:
    return [where / (f"{kind}.sqlite" if n == 1 else f"{kind}-{n}.sqlite") for n in range(1, MOST_FILES + 1)]


def _close_late(work: Future[tuple[Store, list[Entry]]]) -> None:
    """On the store's thread, after an opening that nobody waits for any more."""
    if work.exception() is None:
        work.result()[0]._connection.close()


def _connect(path: Path | None) -> sqlite3.Connection:
    """A connection that holds the file for itself alone, its tables made."""
    with _errors(path):
        if path is not None and not path.exists():
            # Never open a file that may be in use: closing it would drop the locks that this process has on it (POSIX).
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(path or MEMORY, timeout=0, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _since_3(data: bytes) -> bytes:
    """An entry with the word that a request has for a model of GPU since then: `model` became one of a node's store."""
    try:
        entry = msgspec.json.decode(data)
        request = entry["allocation"]["request"]
        request["gpu_model"] = request.pop("model")
    except (msgspec.DecodeError, TypeError, KeyError):  # it names none; or cannot be read: that is told when it is
        return data
    return msgspec.json.encode(entry)


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL: then it needs no shared memory, either
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("BEGIN IMMEDIATE")  # takes the lock, which is then kept
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for since, tables in ((0, _TABLES), (1, _SINCE_2), (2, _SINCE_3), (3, _SINCE_4)):
        for statement in filter(str.strip, tables.split(";") if version <= since else ()):
            connection.execute(statement)
    if version in (1, 2):
        rows = connection.execute("SELECT id, data FROM entries").fetchall()
        connection.executemany("UPDATE entries SET data = ? WHERE id = ?", [(_since_3(data), id) for id, data in rows])
    if version < SCHEMA:
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    connection.commit()
    if version > SCHEMA:
        raise StoreError(
            f"{path} has version {version}, this jupyter_gpufit knows {SCHEMA}; update jupyter_gpufit, or move the "
            "file away to begin with none (release what it holds first, with the version that wrote it)"
        )


@contextmanager
def _errors(path: Path | None) -> Iterator[None]:
    """What SQLite and the system say, as sentences."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreLocked(f"{path} is in use by another process (it is locked)") from error
        if "no such" not in str(error):
            raise StoreError(
                f"{path} cannot be used: {error}; check its permissions and the space on its disk"
            ) from error
        raise _damaged(path, error) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}; check its permissions") from error


def _damaged(path: Path | None, error: Exception) -> StoreError:
    return StoreError(
        f"{path} is damaged, or no database of ours: {error}; move it away to begin with none (containers it knew of "
        "then have to be removed by hand: docker ps --filter label=io.github.jupyter-gpufit.allocation)"
    )

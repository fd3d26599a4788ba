"""The supervisor of one local unit: a small process of its own, parent of all that the unit forks.

    python -I -S supervise.py

    in:   {"do": "begin", "directory", "record", "log", "log_size", "ram", "outlive"} (first of all, what it is for)
          · {"do": "start", "argv", "env", "cwd"} · {"do": "signal", "signal"} · {"do": "stop", "grace"}
          · {"do": "halt", "grace"} (end the main process; files stay)
    out:  {"event": "started", "pid"} · {"event": "refused", "error"} · {"event": "exited", "code", "memory"}
          · {"event": "stuck", "pids"} (SIGKILL does not end them) · {"event": "gone"}     one JSON object per line

It makes itself the *subreaper* (prctl(2), Linux) of its descendants, so that daemons which left their session and their
parent are still its own, and found. When its input ends the server is gone, however it died. Then it waits `outlive`
seconds for the next server, which comes by the Unix socket `door` in the unit's directory and is told with "taken over"
what has happened; if none comes, everything here is killed and the unit's files are removed.

It imports only the standard library, and of that only what it needs for a start: a kernel may be waiting for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which would have to be imported for it
if TYPE_CHECKING:
    from typing import Any

TICK = 0.5  # s between looks at memory and parent
STUCK_AFTER = 8.0  # s after which a process that SIGKILL does not end counts as stuck (it hangs in a driver)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DOOR = "door"
LINUX = sys.platform == "linux"


# --- the process table ------------------------------------------------------------------------------------------------


def processes() -> dict[int, tuple[int, str]]:
    """pid → (parent's pid, state letter) of every process on this machine."""
    if not LINUX:
        listing = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = (line.split(None, 2) for line in listing.splitlines())
        return {int(pid): (int(parent), state[:1]) for pid, parent, state in rows}
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split(None, 2)[:2]  # a name may hold anything, also ")"
                table[int(name)] = (int(parent), state.decode())
    return table


def descendants(*roots: int) -> dict[int, set[int]]:
    """For each of `roots`: pids of all living (not zombie) processes below it."""
    table = processes()
    for _ in range(3):  # the table is read process by process: one whose parent is missing has a new one by now
        if all(parent in table or parent == 0 for parent, _ in table.values()):
            break
        table = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, set[int]] = {}
    for root in roots:
        below, queue = set(), [root]
        while queue:
            for child in children.get(queue.pop(), ()):
                queue.append(child)
                if table[child][1] not in "ZX":
                    below.add(child)
        found[root] = below
    return found


def resident(pids: set[int]) -> int:
    """Bytes these processes have in memory, pages they share counted for each of them (an upper bound)."""
    total = 0
    if LINUX:
        for pid in pids:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    elif pids:
        command = ["ps", "-o", "rss=", "-p", ",".join(map(str, pids))]
        total = 1024 * sum(map(int, subprocess.run(command, capture_output=True, text=True).stdout.split()))
    return total


def proportional(pids: set[int]) -> int:
    """The same with each shared page counted once (`Pss` of proc_pid_smaps(5)); slow, so asked only when it matters."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            total += resident({pid})
    return total


# --- its parts --------------------------------------------------------------------------------------------------------


class Log:
    """What the unit prints, in two files of at most `size` / 2 bytes, named by where they begin (`printed.from_files`):
    `PATH.` and how many bytes the unit had printed before, in 20 digits."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.half = path, max(size // 2, 1)
        self.end = 0
        self.older: str | None = None
        self.begin()

    def begin(self) -> None:
        self.newer = f"{self.path}.{self.end:020d}"
        self.file = open(self.newer, "wb", buffering=0)  # noqa: SIM115  (open for as long as we live)

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk costs what was printed, not the kernel
            if self.file.tell() + len(data) > self.half:
                if self.older is not None:
                    os.unlink(self.older)
                self.older = self.newer
                self.file.close()
                self.end += max(len(data) - self.half, 0)
                self.begin()
            self.end += self.file.write(data[-self.half :])


def prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Supervisor:
    """One loop over: commands, what the unit prints, ended children, the clock."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.ram: int | None = None
        self.log: Any = None
        self.parent: int | None = os.getppid()  # as long as it is the one that we hear
        self.reads, self.writes = 0, 1
        self.door: Any = None
        self.server: Any = None  # its end of the door
        self.alone_since: float | None = None
        self.main: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.out_of_memory = False
        self.kill_at: float | None = None
        self.selector = selectors.DefaultSelector()
        self.commands = b""

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes the loop
        for end in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(end, lambda *_: sys.exit(0))
        self.selector.register(self.reads, selectors.EVENT_READ, self.command)
        self.selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        try:
            look = time.monotonic() + TICK
            while self.wanted():
                next_at = look if self.kill_at is None else min(look, self.kill_at)
                for key, _ in self.selector.select(max(next_at - time.monotonic(), 0)):
                    key.data()
                self.kill_in_time()
                self.reap()
                if time.monotonic() >= look:
                    self.watch_memory()
                    look = time.monotonic() + TICK
        finally:  # told to stop, or the server is gone, or somebody ended us
            while left := self.end_all():  # its claim stays for as long as one of them lives, and so do we
                self.send(event="stuck", pids=sorted(left))
            if self.config:
                self.remove_files()
            self.send(event="gone")

    def remove_files(self) -> None:
        import shutil  # a start need not wait for it

        shutil.rmtree(self.config["directory"], ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(self.config["record"])

    # --- the server

    def wanted(self) -> bool:
        """Whether there is a server, or one may still come."""
        if self.parent not in (None, os.getppid()):
            self.lose_server()  # some child of it may hold the other end of our input
        return self.alone_since is None or time.monotonic() - self.alone_since < self.config["outlive"]

    def send(self, **message: Any) -> None:
        if self.alone_since is None:
            with contextlib.suppress(OSError):  # the server is gone: our input ends, too
                os.write(self.writes, json.dumps(message).encode() + b"\n")

    def lose_server(self) -> None:
        if self.door is None:
            sys.exit(0)
        self.parent, self.commands = None, b""
        self.let_go_of_errors()
        self.selector.unregister(self.reads)
        if self.server is not None:
            self.server.close()
        self.alone_since = time.monotonic()

    def let_go_of_errors(self) -> None:
        """Ours go where those of the server went: to somebody who may wait for the end of them, as a shell's pipe."""
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.close(null)

    def open_door(self) -> None:
        import socket  # others need not wait for it

        os.chdir(self.config["directory"])  # the path of a socket has to be short
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(DOOR)
        self.door.listen()
        os.chdir("/")
        self.selector.register(self.door, selectors.EVENT_READ, self.let_in)

    def let_in(self) -> None:
        """Another server; one that comes while there is one is turned away."""
        server, _ = self.door.accept()
        if self.alone_since is None:
            server.close()
            return
        self.server, self.alone_since = server, None
        self.reads = self.writes = server.fileno()
        self.selector.register(self.reads, selectors.EVENT_READ, self.command)
        main = None if self.main is None else self.main.pid
        self.send(event="taken over", pid=main, code=self.code, memory=self.out_of_memory)

    # --- commands

    def command(self) -> None:
        try:
            data = os.read(self.reads, 65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self.lose_server()
            return
        *lines, self.commands = (self.commands + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            getattr(self, "do_" + message.pop("do"))(**message)

    def do_begin(self, **config: Any) -> None:
        self.config, self.ram = config, config["ram"]
        self.log = Log(config["log"], config["log_size"])
        if config["outlive"] > 0:
            self.open_door()

    def do_start(self, argv: list[str], env: dict[str, str], cwd: str | None) -> None:
        try:
            self.main = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # should we be killed: it too
            )
        except OSError as error:
            self.send(event="refused", error=f"{error.strerror}: {error.filename or argv[0]}")
            return
        self.selector.register(self.main.stdout.fileno(), selectors.EVENT_READ, self.output)  # type: ignore[union-attr]
        self.send(event="started", pid=self.main.pid)

    def do_signal(self, signal: int) -> None:
        for pid in descendants(os.getpid())[os.getpid()]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal)

    def do_halt(self, grace: float) -> None:
        if self.main and self.code is None:
            self.main.terminate()
            self.kill_at = time.monotonic() + grace

    def kill_in_time(self) -> None:
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.kill_at = None
            if self.main and self.code is None:
                self.main.kill()

    def do_stop(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        if grace > 0 and self.main and self.code is None:
            self.main.terminate()
            while self.main.poll() is None and time.monotonic() < deadline:
                for key, _ in self.selector.select(0.02):
                    if key.data == self.output:  # it may have to print before it can end
                        self.output()
        sys.exit(0)

    # --- what the unit does

    def output(self) -> None:
        """Take what it printed; at the end of file nobody can print any more."""
        stdout = self.main.stdout  # type: ignore[union-attr]
        data = os.read(stdout.fileno(), 65536)  # type: ignore[union-attr]
        if data:
            self.log.write(data)
        else:
            self.selector.unregister(stdout)  # type: ignore[arg-type]

    def reap(self) -> None:
        """Bury the dead. When the main process ended, the unit has: the rest is killed, then it is said."""
        if self.main and self.code is None and self.ended():
            while left := self.end_all():
                self.send(event="stuck", pids=sorted(left))
            self.send(event="exited", code=self.code, memory=self.out_of_memory)
        self.bury()

    def ended(self) -> bool:
        status = self.main.poll() if self.main else None
        if status is not None:
            self.code = 128 - status if status < 0 else status
        return status is not None

    def bury(self) -> bool:
        """Adopted orphans; whether we have no children any more, and so, being the subreaper, no descendants at all.

        The main process is left to `Popen`, which would miss its exit code otherwise.
        """
        if not LINUX:
            return not descendants(os.getpid())[os.getpid()]
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is None or (self.main and self.code is None and info.si_pid == self.main.pid):
                    return False
                os.waitpid(info.si_pid, os.WNOHANG)
            except ChildProcessError:
                return True

    def watch_memory(self) -> None:
        if self.ram is None or self.main is None or self.code is not None:
            return
        pids = descendants(os.getpid())[os.getpid()]
        if resident(pids) > self.ram and proportional(pids) > self.ram:
            self.out_of_memory = True
            self.main.kill()

    def end_all(self) -> set[int]:
        """SIGKILL all descendants, those too that are forked meanwhile. Returns those that do not end."""
        me, deadline = os.getpid(), time.monotonic() + STUCK_AFTER
        while not self.bury():
            left = descendants(me)[me]
            if left and time.monotonic() > deadline:
                return left
            for number in (signal.SIGSTOP, signal.SIGKILL):  # first stop them all: what is stopped does not fork
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
            if self.code is None:
                self.ended()
            time.sleep(0.002)
        self.drain()
        return set()

    def drain(self) -> None:
        """The last of what was printed: nobody holds the other end any more."""
        stdout = self.main.stdout if self.main else None
        while stdout and stdout.fileno() in self.selector.get_map():
            self.output()


if __name__ == "__main__":
    Supervisor().run()

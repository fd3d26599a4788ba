"""What the scheduler needs from the rooms to its right, as protocols; they import this, never the reverse.

Launcher     starts and stops units on one node            (launching/base.py, docker.py, process.py)
KernelHost   runs the kernel of an allocation              (kernels/adopt.py: the server's kernel manager, or our own)
JobHost      a job's files, on this machine and in its unit  (jobs/host.py)
Cluster      what is known of the nodes                    (cluster/cache.py)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..inventory import Inventory, NodeSpec
from ..models import Allocation, Claim, Endpoint, Launch, Node, Progress, Request, Unit
from .logs import Piece

__all__ = ["KILLED", "Cluster", "JobHost", "KernelHost", "Launcher", "OnExit", "OnHost", "OnProgress", "OnTrouble"]

KILLED = 137
"""Exit code of what SIGKILL ended, or was removed while it ran, as Docker counts (128 + signal)."""

OnProgress = Callable[[Progress], None]
OnExit = Callable[[Unit, int, str], None]
"""Called on the event loop when a unit ended by itself: the unit, its exit code, one sentence for people."""
OnTrouble = Callable[[str | None], None]
"""Called on the event loop when it turns out why nothing can be started on the node (for people), or that (again)
something can (`None`)."""
OnHost = Callable[[float | None, int | None], None]
"""Called on the event loop with the machine's cores and the bytes of its own memory, as its engine says; `None`: it
does not."""


class Launcher(Protocol):
    """Starts and stops units on one node. One instance per node; used from one event loop; never blocks it.

    Order of calls for one unit: `prepare` → `start` → any of `interrupt`, `logs`, `exit_code` → `stop` (always, exactly
    when the allocation is done with the unit; idempotent). A `prepare` or `start` that raises, or is cancelled, has
    undone all it did.
    """

    node: str
    kind: str
    """`docker` or `process`."""

    async def open(
        self,
        on_exit: OnExit,
        on_claims: Callable[[Sequence[Claim]], None],
        on_trouble: OnTrouble | None = None,
        on_host: OnHost | None = None,
    ) -> None:
        """Connect, and keep watching what runs there. Never raises for a node that is down: it keeps trying, and says
        so by `on_trouble`; for one that is well it calls that with `None` once it knows.

        `on_claims` is called (on the event loop) with the claims of *all* gpufit units on the node, whoever's, at
        first and whenever they change; `on_host` at first and each time the node's engine is reached anew. Called once,
        by the scheduler, when it takes up the node.
        """

    async def take_over(self, unit: Unit) -> None:
        """Go on with a unit that a process before this one started.

        Called by the scheduler once for each allocation that it takes back, before it asks anything else of the unit.
        Quiet for one that has ended meanwhile: `exit_code` tells. Raises `NodeUnreachable`, and may be called again.
        """

    async def was_started(self, unit: Unit) -> bool:
        """Whether a unit that is there runs, or has run: also if the process that called `start` died meanwhile.

        Called by the scheduler of a job that a process before this one was starting. Raises `NodeUnreachable`.
        """

    async def prepare(self, launch: Launch, on_progress: OnProgress) -> Unit:
        """Make a unit that is ready to start, and claim its GPUs against all other schedulers of this node.

        Pulls a missing image with progress. Raises `ClaimLost`, `ImageRefused`, `NodeUnreachable` or `LaunchError`.
        Called by the scheduler for a placed allocation, and for a restart (then the unit before is gone already).
        """

    async def start(
        self, unit: Unit, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        """Put `files` (path relative to the unit's gpufit directory → content) in, run `command`, read the ports back.

        In `command` and in the values of `env`, `{gpufit}` stands for the unit's gpufit directory; the command's first
        word may be `{python}`. `env` is added to the unit's allow-listed environment; it must hold no secret.
        Called by the provisioner, through the scheduler, when the kernel manager launches.
        Raises `LaunchError` (with the last log lines in `details["logs"]`) when it exits at once.
        """

    def doubt(self) -> None:
        """Somebody has reason to think that the node does not answer any more: find out, and say so by `on_trouble`.

        Called by the scheduler when the node's reporter falls silent. Quiet, and harmless if all is well.
        """

    def exit_code(self, unit: Unit) -> int | None:
        """Exit code if it is *confirmed* that the unit ended, else `None`; from known state, no call. A node that
        cannot be reached is not a dead unit."""

    def describe_exit(self, unit: Unit) -> str:
        """One sentence for people on how the unit ended (killed for memory, with the limit; exit code ...)."""

    def failed_with_node(self, unit: Unit) -> bool:
        """Whether a unit that ended did so because of its node (its engine was started anew, the machine rebooted), and
        not by itself. From known state."""

    async def put(self, unit: Unit, archive: Path, on_progress: OnProgress, into: str = "") -> None:
        """Unpack `archive` (an uncompressed tar of relative names, on this machine) in the unit's directory `into`:
        absolute, or relative to where it works; an empty one is that itself. The files belong to the unit's user.

        Of a unit that is prepared, or runs. `on_progress` hears of phase `uploading`, in bytes. Raises
        `NodeUnreachable`, `NodeUnfit` (no room there), `LaunchError`. What was put stays in the unit if cancelled.
        """

    async def fetch(self, unit: Unit, path: str, archive: Path, limit: int, on_progress: OnProgress) -> None:
        """Write a tar of `path` (a file or directory of the unit; relative to where it works) to the file `archive`;
        names in it begin with the last part of `path`. Also of a unit that has ended, as long as it is there.

        Raises `NotFound` if there is none, `LaunchError` if it is more than `limit` bytes, `NodeUnreachable`. After an
        error, or cancelled, `archive` is not there.
        """

    async def halt(self, unit: Unit, grace: float) -> None:
        """SIGTERM to it, and SIGKILL `grace` seconds later; returns when it has ended. It stays, to be fetched from,
        until `stop`, and its GPUs stay claimed. Quiet if it has ended. Its end is no news (`OnExit`)."""

    async def interrupt(self, unit: Unit) -> None:
        """SIGINT to the unit's kernel and its child processes (what the kernel's own interrupt does not reach)."""

    async def stop(self, unit: Unit, grace: float = 0.0) -> None:
        """End the unit and remove every trace of it; returns when it is confirmed gone. Quiet if it is gone already.

        Raises `NodeUnreachable` if that cannot be confirmed now, `LaunchError` if the node says that it cannot do it.
        """

    async def logs(self, unit: Unit, tail: int | None = None, after: str = "") -> Sequence[Piece]:
        """What the unit printed: its last `tail` lines, or all that is kept; with `after` (the mark of a piece), only
        what came after that. No more than a few MiB: what is left is had by asking again."""

    async def units(self) -> Sequence[tuple[Unit, Claim]]:
        """All gpufit units on this node, in any state, whoever's. Raises `NodeUnreachable`."""

    async def close(self) -> None:
        """Stop watching, join the worker. Leaves units alone."""


class KernelHost(Protocol):
    """Runs the kernels of allocations under a Jupyter kernel manager."""

    async def start(self, allocation: Allocation) -> str:
        """Start a `gpufit` kernel for an allocation whose unit is prepared; returns its id once the kernel answers.

        One that raises or is cancelled has undone all it did, or sees to it by itself.
        """

    async def take_back(self, allocation: Allocation, memory: bytes) -> str:
        """Go on with the kernel that a process before this one ran in the allocation; returns its id, as it was.

        `memory` is what the provisioner had `Scheduler.remember`ed. Does not wait for the kernel to answer: its node
        may be unreachable now, and it may be busy for hours. Raises why it cannot be gone on with.
        """

    def forget(self, kernel_id: str) -> None:
        """Remove what a process before this one left on disk of a kernel that nobody goes on with (its keys)."""

    async def stop(self, kernel_id: str) -> None:
        """Shut the kernel down without giving its GPUs back (the scheduler does that). Quiet if there is none, or if
        somebody else is shutting it down."""

    def idle_since(self, kernel_id: str) -> float | None:
        """Since when (Unix time) the kernel has had nothing to do, as far as is known without asking it; `None`: it is
        busy, or that is not known. Called by `idleness.py`."""

    async def quiet(self, kernel_id: str, within: float) -> bool:
        """Whether the kernel itself says, `within` seconds, that it runs no cell. Never raises. Likewise."""


class JobHost(Protocol):
    """What jobs need beside a launcher: their files on this machine, and what is put into their units.

    Order of calls for one job: `check_in` → for each attempt `start`, `collect` → `forget`.
    """

    async def check_in(self, ids: Sequence[str], request: Request) -> None:
        """Look at the files of a job that is about to be asked for, and keep what its unit will get of `folder`, as it
        is now, once for each allocation of `ids` (those of a sweep share it). All or nothing.

        Raises `InvalidValue`: no such script, a link that leads out of the folder, more than the size limit, ….
        """

    async def start(
        self, allocation: Allocation, unit: Unit, spec: NodeSpec, launcher: Launcher, on_progress: OnProgress
    ) -> Endpoint:
        """Put its files into its prepared unit (with the outputs of the attempt before, if there was one), and have
        the launcher start it. Raises what `Launcher.put` and `Launcher.start` raise; what it put is undone with the
        unit. An end at once is no error: the launcher tells of it."""

    async def collect(
        self, allocation: Allocation, unit: Unit, spec: NodeSpec, launcher: Launcher, on_progress: OnProgress
    ) -> str | None:
        """Bring home the outputs of a unit that has ended (and is still there): to the directory it returns; `None`:
        there are none. Called after each attempt, and again if the server died meanwhile, or if removing the unit
        failed (then it may be gone): what is home already is replaced.

        Raises `NodeUnreachable` or, where there is no room on this machine, `StoreError`: it is called again. Raises
        `LaunchError` with a sentence for people if it cannot be done (too large): the unit is removed all the same.
        """

    def forget(self, id: str) -> None:
        """The job has ended: remove what is kept for it (not its outputs). Quiet if there is nothing. Also called for
        ids of `check_in` that were refused after all."""

    def forget_others(self, known: Container[str]) -> None:
        """Remove what is kept for jobs that are not `known`: a server died between `check_in` and the request."""


class Cluster(Protocol):
    """What is known of the nodes. Asking it asks no node."""

    inventory: Inventory
    """The one in force; the scheduler goes by its `policy`, its quotas and its nodes' `idle_after`."""

    def nodes(self) -> Sequence[Node]:
        """All nodes of the inventory, usable or not, in the effective view, by name."""

    def spec(self, node: str) -> NodeSpec:
        """The node's entry in the inventory. Raises `NotFound`."""

    def uses(self, node: str, allocation: str) -> Mapping[str, int | None]:
        """Bytes that the allocation's own processes use of each GPU of `node`, as last reported; `None`: that is not
        known. Empty: of the node nothing is."""

    def set_claims(self, source: str, node: str, claims: Sequence[Claim]) -> None:
        """What `source` (`"ledger"`, or `"engine"`: what runs there) says is held on `node`; replaces what it said
        before. An allocation that both name counts once."""

    def set_trouble(self, node: str, trouble: str | None) -> None:
        """What the node's launcher says: why nothing can be started there (a reason why the node is not usable), or
        `None`, that it can be. Until the first word of it a node counts as one where something can."""

    def set_host(self, node: str, cpus: float | None, ram: int | None) -> None:
        """The machine's cores, and the bytes of its own memory, as the node's launcher says. Until then, and with
        `None`, they are not known: a request that asks for any is not placed there."""

    def on_change(self, callback: Callable[[str, Node | None], None]) -> Callable[[], None]:
        """Call back (on the event loop, at first for every node, then with each changed, added or (`None`) removed
        one), until the returned function is called. The scheduler keeps its selection index and its launchers by it."""

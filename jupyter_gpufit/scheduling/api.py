"""What handlers, magics and the provisioner know of a scheduler: this interface, and nothing else.

Today the scheduler lives in their own process (`scheduler.py`); later it may be a service that many servers share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ..models import Allocation, Endpoint, EndReason, Node, Request, Unit
from .about import About
from .fit import Decision
from .logs import Log
from .needs import Launcher
from .usage import UsageSeries

__all__ = ["Scheduler"]


class Scheduler(Protocol):
    """The one writer of allocations: takes requests, places, reserves, launches, releases."""

    id: str
    """Goes into the labels of everything it starts."""

    # --- for people: handlers, magics, command line

    def nodes(self) -> Sequence[Node]:
        """All nodes, usable or not, by name."""

    def about(self, owner: str) -> About:
        """What `owner` has to know to ask for something: policy, images, quota, the usual time."""

    def explain(self, request: Request) -> Decision:
        """A dry run of `request`: the decision, with its four stages. Reserves nothing."""

    async def request(self, request: Request, owner: str, *, kernel_id: str | None = None) -> Allocation:
        """Place and reserve now (or queue, if nothing fits and it has a `wait`); prepare and start in the background.
        Returns within the time of a decision.

        Without `kernel_id` the scheduler has its `KernelHost` start the kernel once the unit is prepared. With it, the
        caller (the provisioner of that kernel, started by somebody else) goes on with `prepared`, `launch` and `ready`.
        Raises `NoFit`, `NeverFits`, `Forbidden` (more than the owner's quota), `Conflict` (name taken), `ImageRefused`,
        `InvalidValue`, `Unavailable` (starting or stopping).
        """

    async def submit(
        self, request: Request, owner: str, sweep: Mapping[str, Sequence[str]] | None = None
    ) -> list[Allocation]:
        """Ask for a job (`request.job`), or with a `sweep` for one for each combination of its values, as for a kernel
        with `request`: for all of them, or for none. One that says nothing of `wait` waits for a day.

        A job runs unattended, also when this process ends: the next scheduler takes it up. Raises what `request` does,
        and what `JobHost.check_in` does.
        """

    def allocations(self, owner: str | None = None, ended: bool = False) -> Sequence[Allocation]:
        """Allocations that have not ended (and with `ended` the recent ones that have), oldest first."""

    def get(self, id_or_name: str, owner: str | None = None) -> Allocation:
        """The allocation of that id, or else the latest of that name (a live one first). Raises `NotFound`."""

    async def release(
        self, id: str, reason: EndReason = EndReason.RELEASED, message: str = "", *, kernel_gone: bool = False
    ) -> Allocation:
        """Begin to end it, from whatever state it is in (a start in progress is cancelled and undone); idempotent.
        Returns at once with the allocation as it is then; `changed` tells when it has ended. Raises `NotFound`.

        `kernel_gone`: said by the provisioner, whose kernel manager is shutting the kernel down already, so that the
        `KernelHost` need not be asked to.
        """

    async def extend(self, id: str, seconds: float) -> Allocation:
        """Give it `seconds` more time, counted from when it would end now; also before it runs. Clears its warning.

        Raises `NotFound`, `Conflict` (it has no time limit, or ends or has ended), `Forbidden` (longer than the quota).
        """

    async def changed(self, id: str, version: int, timeout: float) -> Allocation:
        """The allocation as soon as its `version` is greater than `version`, or as it is after `timeout` seconds."""

    async def logs(self, id: str, tail: int | None = None, after: str = "") -> Log:
        """What it printed (kept after the end, up to a limit): the last `tail` lines, or all; with `after` (a
        `Log.mark`) only what came after that. A job's is that of all its attempts. Raises `NodeUnreachable`."""

    async def usage(self, id: str) -> UsageSeries:
        """What it used of its GPUs, as far as that is known by now; also after the end. Raises `NotFound`."""

    def keep(self, id: str, part: str, data: bytes | None) -> None:
        """Keep `data` (`None`: no longer) until nobody can ask about the allocation any more, some time after its end;
        also should this process die."""

    async def kept(self, id: str, part: str) -> bytes | None:
        """What was kept last as that part, by this process or one before it."""

    def subscribe(self, callback: Callable[[Allocation], None]) -> Callable[[], None]:
        """Call back with each allocation that changed, until the returned function is called."""

    # --- for the kernel in it: called by the provisioner

    async def prepared(self, id: str) -> Unit:
        """Wait until the allocation's unit is prepared. Raises what went wrong if it ends before."""

    async def launch(
        self, id: str, command: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str]
    ) -> Endpoint:
        """Start the prepared unit (`Launcher.start`). If that fails the allocation ends `failed`, and it raises
        `LaunchError`."""

    async def ready(self, id: str, kernel_id: str) -> Allocation:
        """The kernel answers: the allocation is running."""

    async def failed(self, id: str, message: str) -> None:
        """The kernel will never answer (died while starting, or restarted too often): the allocation ends `failed`."""

    def remember(self, id: str, memory: bytes | None, part: str = "kernel") -> None:
        """Keep `memory` for as long as the allocation lives, also should this process die (`None`: no longer). What the
        provisioner remembers as `kernel` makes the allocation one that a next scheduler takes back. May hold secrets.
        Quiet for an allocation that has ended; one without a store on disk remembers nothing."""

    def recall(self, id: str, part: str = "kernel") -> bytes | None:
        """What was remembered last of that part, by this process or one before it."""

    def resuming(self, id: str) -> bool:
        """Whether its kernel is being taken back: to be gone on with, not to be started."""

    async def stop_unit(self, id: str) -> None:
        """Stop and remove its unit, confirmed, and keep its GPUs reserved (for a restart). Quiet if there is none.

        Raises `NodeUnreachable` or `LaunchError` if that cannot be confirmed now. If it is not restarted within half a
        minute (`restart_within`), the allocation ends.
        """

    async def restart_unit(self, id: str, died: str = "") -> Unit:
        """Prepare a new unit on the same node, the same GPUs, the same ports; the one before is confirmed gone first.

        As long as the node's engine is known not to answer it waits for that. `died`: how the unit before ended, if
        nobody had asked for it. Raises `NodeUnreachable` (it may be tried again), or why the allocation ends.
        """

    def unit(self, id: str) -> AbstractAsyncContextManager[tuple[Launcher, Unit]]:
        """The launcher and the unit of a running allocation, to copy files (`jobs/transfers.py`). Raises `NotFound`,
        `Conflict` (it does not run), `NodeUnreachable`."""

    async def interrupt(self, id: str) -> None:
        """`Launcher.interrupt`; never raises."""

    def exit_code(self, id: str) -> int | None:
        """`Launcher.exit_code`: from known state, no call; `None` also when the node is unreachable."""

    def describe_exit(self, id: str) -> str:
        """`Launcher.describe_exit`."""

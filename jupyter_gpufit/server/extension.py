"""The server extension: starts the service with the server, and stops it with the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Enum, Unicode, default

from ..errors import GpufitError, Unavailable
from ..kernels.adopt import ServerKernelHost
from ..kernels.attach import Attachment, Attachments
from ..kernels.beside import beside
from ..kernels.leases import current, expect_current, set_current
from ..kernels.notices import extend
from ..kernels.rounds import Rounds
from ..kernels.service import Service, default_owner, default_store, open_service
from ..kernels.sessions import Sessions
from ..scheduling.api import Scheduler
from .events import Events
from .gate import Gate
from .handlers import routes
from .heap import settle
from .submissions import Submissions

if TYPE_CHECKING:
    from ..jobs.transfers import Transfers

__all__ = ["GpufitExtension"]

_NOT_YET = "the gpufit service of this server has not started yet; try again in a moment"


class GpufitExtension(ExtensionApp):
    """GPUs for notebooks: `c.GpufitExtension.…` in `jupyter_gpufit_config.py` or `jupyter_server_config.py`."""

    name = "jupyter_gpufit"
    extension_url = "/gpufit/api/v1/nodes"
    load_other_extensions = True

    inventory = Unicode(
        "",
        config=True,
        help="Path of gpufit.toml. Empty: $GPUFIT_INVENTORY, then the Jupyter config path, then this machine alone.",
    )
    owner = Unicode(config=True, help="Whose allocations this server makes. Default: the hub's user, or the system's.")
    store = Unicode(
        config=True,
        help="Directory of the ledger of allocations (SQLite; servers may share it). Default: in Jupyter's data.",
    )

    on_stop = Enum(
        ["release", "keep"],
        "release",
        config=True,
        help=(
            "What becomes of running kernels on GPUs when this server is stopped: 'release' shuts them down and gives "
            "the GPUs back; 'keep' lets them go on, and the next server with the same `store` takes them back, as "
            "after a crash. (Plain processes wait for it for `LocalScheduler.outlive` seconds, containers for ever.) "
            "Jobs always go on."
        ),
    )

    @default("owner")
    def _default_owner(self) -> str:
        return default_owner()

    @default("store")
    def _default_store(self) -> str:
        return str(default_store())

    _service: Service | None = None
    _attachments: Attachments | None = None
    _rounds: Rounds | None = None
    _submissions: Submissions | None = None
    _events: Events | None = None
    _sessions: Sessions | None = None
    _gate: Gate | None = None
    _opening: asyncio.Task[None] | None = None
    _stopping: asyncio.Task[None] | None = None
    _failure: str | None = None
    _unsubscribe: tuple[Callable[[], None], ...] = ()

    # --- what the handlers use

    @property
    def scheduler(self) -> Scheduler:
        """Raises `Unavailable` while there is none."""
        if self._service is None:
            raise Unavailable(self._failure or _NOT_YET)
        return self._service.scheduler

    @property
    def attachments(self) -> Attachments:
        """Likewise."""
        if self._attachments is None:
            raise Unavailable(self._failure or _NOT_YET)
        return self._attachments

    @property
    def rounds(self) -> Rounds:
        """Likewise."""
        if self._rounds is None:
            raise Unavailable(self._failure or _NOT_YET)
        return self._rounds

    @property
    def transfers(self) -> Transfers:
        """Likewise."""
        if self._service is None:
            raise Unavailable(self._failure or _NOT_YET)
        return self._service.transfers

    @property
    def submissions(self) -> Submissions:
        """Likewise."""
        if self._submissions is None:
            raise Unavailable(self._failure or _NOT_YET)
        return self._submissions

    @property
    def inventory_error(self) -> str | None:
        """Why the latest gpufit.toml was not taken up, if so."""
        return self._failure if self._service is None else self._service.inventory_error

    # --- called by jupyter_server

    def initialize_settings(self) -> None:
        """Called while the server loads extensions."""
        self.settings["jupyter_gpufit"] = self
        assert self.serverapp is not None
        for log in (self.serverapp.log, logging.getLogger("tornado.application")):
            log.addFilter(_without_our_tracebacks)
        expect_current()
        self._gate = Gate(self.serverapp.web_app, self.serverapp.base_url)

    def initialize_handlers(self) -> None:
        """Called while the server loads extensions."""
        self.handlers.extend(routes())

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Called once the server's event loop runs. Returns when the scheduler is there, or cannot be."""
        if self._service is None and self._opening is None:
            self._failure = None
            # A task, so that a server that is stopped at once need not wait for it.
            self._opening = asyncio.create_task(self._open(serverapp))
            await asyncio.wait({self._opening})

    async def stop_extension(self) -> None:
        """Called when the server stops, also if it never started. Releases what this server's scheduler holds, or lets
        it go on (`on_stop`).

        A second signal calls it again, and would shut down all kernels that the first call has not let go of yet: it
        waits for that one.
        """
        if self._stopping is None or self._stopping.done():
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        keep = self.on_stop == "keep"
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait({opening})
        self._failure = "this server is stopping"
        service, self._service = self._service, None
        attachments, self._attachments = self._attachments, None
        events, self._events = self._events, None
        rounds, self._rounds = self._rounds, None
        submissions, self._submissions = self._submissions, None
        sessions, self._sessions = self._sessions, None
        unsubscribe, self._unsubscribe = self._unsubscribe, ()
        if keep and self._gate is not None:
            self._gate.shut()  # until we are gone: a front end must not find missing what is let go of
        async with AsyncExitStack() as undo:  # from the last to the first, whatever one of them raises
            if events is not None:
                undo.callback(events.close)
            for stop in unsubscribe:
                undo.callback(stop)
            undo.callback(_no_longer_current, service)
            if service is not None:
                undo.push_async_callback(service.close, keep)
            for part in (attachments, sessions, rounds, submissions):
                if part is not None:
                    undo.push_async_callback(part.close)

    def current_activity(self) -> list[str]:
        """Called by a server that shuts down when nothing goes on: also a request that is queued is something."""
        return [] if self._service is None else [one.id for one in self._service.scheduler.allocations()]

    # ---

    async def _open(self, serverapp: Any) -> None:
        try:
            await self._open_service(serverapp)
        except GpufitError as error:
            # The server goes on without us; whoever asks is told why.
            self._failure = f"gpufit did not start: {error.message}"
            self.log.error(self._failure)
        except Exception as error:
            self._failure = f"gpufit did not start: {type(error).__name__}: {error}; the server's log says more"
            self.log.exception("gpufit did not start")
        finally:
            self._opening = None
            if self._service is None:
                set_current(None)  # kernels need not wait for us
            if self._gate is not None:
                self._gate.open()

    async def _open_service(self, serverapp: Any) -> None:
        host, keep = ServerKernelHost(serverapp.kernel_manager), self.on_stop == "keep"
        service = await open_service(
            _path(self.inventory) if self.inventory else None,
            host=host,
            store=_path(self.store),
            keep=keep,
            owner=self.owner,
            log=self.log,
            config=self.config,
        )
        try:
            await self._connect(serverapp, service, host)
        except BaseException:  # such as: the server is stopped already
            if self._attachments is not None:
                await self._attachments.close()  # so that no notebook is given a new local kernel just now
            await service.close(keep)
            raise
        self._service = service
        set_current(service)

    async def _connect(self, serverapp: Any, service: Service, host: ServerKernelHost) -> None:
        """Tell everybody of the service, and have sessions and attachments as they were before this server."""
        events = self._events = Events(serverapp.event_logger, lambda: self.inventory_error)
        attachments = self._attachments = Attachments(
            serverapp.session_manager,
            serverapp.kernel_manager,
            release=service.scheduler.release,
            on_change=self._attachment_changed,
            log=self.log,
            beside=lambda id: beside(service.scheduler, id),
            extend=partial(extend, service.scheduler),
            now=lambda allocation: service.scheduler.get(allocation.id),
        )
        host.before_stop = attachments.before_stop
        self._unsubscribe = (
            service.scheduler.subscribe(events.allocation),
            service.scheduler.subscribe(attachments.follow),
            service.on_node_change(events.node),
            settle(len(service.scheduler.nodes())),
        )
        sessions = self._sessions = Sessions(
            serverapp.session_manager,
            serverapp.kernel_manager,
            service.scheduler,
            attachments,
            root=serverapp.root_dir,
            log=self.log,
        )
        await sessions.restore()
        sessions.watch()
        self._rounds, self._submissions = Rounds(service.examine), Submissions()

    def _attachment_changed(self, attachment: Attachment) -> None:
        if self._events is not None:
            self._events.attachment(attachment)
        if self._sessions is not None:
            self._sessions.changed()


def _no_longer_current(service: Service | None) -> None:
    if service is None or current() is service:
        set_current(None)


def _without_our_tracebacks(record: logging.LogRecord) -> bool:
    """A start that is cancelled, or a restart of what is being released, is nobody's fault: one line, not two pages.

    The kernel manager logs whatever a provisioner raises with its traceback.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, GpufitError):
        record.msg, record.args = f"{record.getMessage().splitlines()[0]} ({error.message})", ()
        record.exc_info = record.exc_text = None
    return True


def _path(text: str) -> Path:
    """A path as people write it."""
    return Path(text).expanduser()

"""The kernel provisioner: between a kernel manager, which knows processes, and the scheduler, which knows allocations.

    pre_launch      an allocation (granted already, or asked for now), its unit prepared; on a restart: on the same GPUs
    launch_kernel   files and keys in, started, until the kernel answers
    poll, wait      from what the scheduler knows; a node that cannot be reached is not a dead kernel
    kill            until the unit is confirmed gone; the GPUs stay reserved
    cleanup         gives the GPUs back, unless it is for a restart

A kernel manager calls `cleanup` neither after a launch that failed nor after too many restarts, and does not say
whether it terminates or kills for a restart. So GPUs are given back in `cleanup(restart=False)`, when a start fails,
and when the restarter gives up; nowhere else. Nothing here raises or hangs on the way down: that would leave the kernel
listed, or drop it without `cleanup`.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.ioloop.manager import AsyncIOLoopKernelManager
from traitlets import Any as AnyTrait
from traitlets import Float, List, Unicode

from ..errors import Cancelled, GpufitError, Unavailable
from ..models import EndReason, Request, Unit
from ..scheduling.api import Scheduler
from .answer import wait_for_answer
from .bootstrap import contents
from .bootstrap.guard import guard_env
from .connection import Keys, connection_file, connection_info, make_keys, without_encryption
from .grant import ANSWER_WITHIN, Grant
from .hearing import Hearing
from .managers import begins_anew, forget_pending, hold_shutdown, start_of_another
from .wishes import WISHES, request_from

__all__ = ["GpufitProvisioner"]

_LOOK_EVERY = 0.1  # s
_KILLED = -int(signal.SIGKILL)
_GONE = 1  # exit code of a kernel whose allocation ended


class GpufitProvisioner(Hearing):
    """Runs a kernel in an allocation. Made by jupyter_client for a kernelspec that names `gpufit-provisioner`."""

    gpus = AnyTrait(
        None, allow_none=True, help="How many GPUs a kernel gets that has no allocation yet. $GPUFIT_GPUS overrules."
    ).tag(config=True)
    memory = AnyTrait(
        None, allow_none=True, help="Memory per GPU, such as '16GiB', or a list. $GPUFIT_MEMORY overrules."
    ).tag(config=True)
    cpus = AnyTrait(
        None, allow_none=True, help="Cores of the machine for it alone, such as 8 or 0.5. $GPUFIT_CPUS overrules."
    ).tag(config=True)
    ram = AnyTrait(
        None, allow_none=True, help="The machine's own memory for it alone, such as '64GiB'. $GPUFIT_RAM overrules."
    ).tag(config=True)
    image = AnyTrait(None, allow_none=True, help="Image, if not the node's default. $GPUFIT_IMAGE overrules.").tag(
        config=True
    )
    time = AnyTrait(None, allow_none=True, help="Time limit, such as '2h'. $GPUFIT_TIME overrules.").tag(config=True)
    wait_time = AnyTrait(
        None, allow_none=True, help="How long it may be queued, such as '10m'. $GPUFIT_WAIT overrules."
    ).tag(config=True)
    priority = AnyTrait(None, allow_none=True, help="Place in the queue. $GPUFIT_PRIORITY overrules.").tag(config=True)
    node = AnyTrait(None, allow_none=True, help="Only this node (a glob). $GPUFIT_NODE overrules.").tag(config=True)
    gpu_model = AnyTrait(
        None, allow_none=True, help="Only GPUs of this model (a glob). $GPUFIT_GPU_MODEL overrules."
    ).tag(config=True)
    model = AnyTrait(
        None,
        allow_none=True,
        help="A model of the nodes' stores: rather on a node that has it. $GPUFIT_MODEL overrules.",
    ).tag(config=True)
    require_model = AnyTrait(
        None, allow_none=True, help="... only on such a node. $GPUFIT_REQUIRE_MODEL overrules."
    ).tag(config=True)
    write_models = AnyTrait(
        None, allow_none=True, help="The node's models can be written, too. $GPUFIT_WRITE_MODELS overrules."
    ).tag(config=True)
    name = AnyTrait(None, allow_none=True, help="Name of the allocation. $GPUFIT_NAME overrules.").tag(config=True)
    shared = AnyTrait(
        None, allow_none=True, help="May share GPUs with other shared allocations. $GPUFIT_SHARED overrules."
    ).tag(config=True)
    labels = AnyTrait(None, allow_none=True, help="Only nodes with these labels. $GPUFIT_LABELS overrules.").tag(
        config=True
    )

    start_timeout = Float(
        60.0,
        help="Seconds that a kernel may take to answer, from the start of its container (not: the pull of its image).",
    ).tag(config=True)
    stop_timeout = Float(
        30.0, help="Seconds to wait until a container is confirmed gone, before going on without."
    ).tag(config=True)
    env_passthrough = List(
        Unicode(),
        ["JPY_SESSION_NAME", "GPUFIT_MEMORY_GUARD"],
        help="Variables (globs) of the server's environment that kernels get, besides the kernelspec's `env`.",
    ).tag(config=True)

    _restarting = False  # from `pre_launch` until its kernel answers
    _code: int | None = None
    _expected = False  # an end of the kernel that somebody asked for
    _last_words = ""  # on an end that nobody asked for
    _restarter: Any = None  # the one that tells us when it gives up

    def __init__(self, **kwargs: Any) -> None:
        if "wait" in kwargs:  # the kernelspec's word; here it is the name of a method
            kwargs["wait_time"] = kwargs.pop("wait")
        super().__init__(**kwargs)

    # --- start

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Have an allocation with a prepared unit, on a restart a new one on the same GPUs. Returns `cmd` and `env`.

        Called by `KernelManager.pre_start_kernel`. Raises `GpufitError`s; JupyterLab's dialog shows their message.
        """
        if self._restarting:
            await start_of_another(self.parent)
            return kwargs | {"cmd": []}
        given = dict(os.environ if kwargs.get("env") is None else kwargs["env"])
        extra = kwargs.pop("extra_arguments", None) or []
        kwargs = await super().pre_launch(**{**kwargs, "env": given})
        spec_env = {name: kwargs["env"][name] for name in self.kernel_spec.env}
        try:
            if self._grant is None:
                grant = self._grant = await self._allocate({**spec_env, **given}, kwargs.get("cwd"))
                if await self._resume(grant):
                    return kwargs | {"cmd": [], "env": given}
                prepared = grant.prepared()
            else:
                grant, self._restarting = self._grant, True
                self._last_words = self._last_words and await grant.with_last_lines(self._last_words)
                prepared = grant.again(self._last_words)
            self._launched, self._expected, self._code = False, False, None
            self._unit = await prepared
            begins_anew(self.parent, died=bool(self._last_words))
            kwargs["cmd"] = await self._command(grant, [*self.kernel_spec.argv, *extra], kwargs.get("cwd"))
        except BaseException as error:
            await self._undo(error)
            raise
        kwargs["env"] = {name: value for name, value in given.items() if self._passes(name)} | spec_env
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the prepared unit and wait until its kernel answers. Returns the connection info.

        Called by `KernelManager.launch_kernel`. A failure gives everything back, since nobody else will. Without a
        `cmd` it runs already.
        """
        grant, unit = self._grant, self._unit
        if grant is None or unit is None:
            raise Cancelled("the kernel was shut down while it started")
        if not cmd:
            return self.connection_info
        try:
            keys = self._keys = self._keys or self._make_keys(unit)
            name = getattr(self.parent, "kernel_name", "gpufit")
            shown = contents.notice(self._last_words)
            files = contents.files(self._connection_name, connection_file(keys, unit, name), shown)
            env = {**guard_env(grant.allocation), **kwargs.get("env", {})}
            env |= contents.environment(grant.allocation, self._direct)
            endpoint = await grant.launch(cmd, files, env)
            candidates = [keys, *([without_encryption(keys)] if contents.ALLOW_PLAINTEXT in cmd else [])]
            infos = [connection_info(candidate, endpoint) for candidate in candidates]
            chosen = await wait_for_answer(infos, self.start_timeout, lambda: grant.fate(started=False))
            self._keys, self.connection_info = candidates[chosen], cast(KernelConnectionInfo, infos[chosen])
            await self._remember(kwargs.get("env", {}), kwargs.get("cwd"))
            await grant.ready(self.kernel_id)
        except BaseException as error:
            told = await grant.explained(error)
            await self._undo(error)
            raise told from None
        self._launched, self._restarting, self._expected, self._last_words = True, False, False, ""
        return self.connection_info

    async def post_launch(self, **kwargs: Any) -> None:
        """Watch for the restarter to give up, and for `%gpufit release` in a notebook that was started on its GPUs.

        Called by `KernelManager.post_start_kernel`, also after each restart.
        """
        if isinstance(self.parent, AsyncIOLoopKernelManager):  # others have no restarter
            restarter = self.parent._restarter
            if restarter is not None and self._restarter is not restarter:
                self._restarter = restarter
                restarter.add_callback(self._given_up, "dead")
        grant = self._grant
        if self._direct and self._watch is None and grant is not None:
            try:
                # nbclient, papermill and `jupyter run` have no event loop that goes on between two calls.
                await grant.here(lambda: self._listen(grant))
            except Unavailable as ended:
                self.log.debug("kernel %s is not listened to: %s", self.kernel_id, ended.message)

    # --- while it runs

    @property
    def has_process(self) -> bool:
        """Whether there is a unit that a kernel was started in (and that is not waited for yet)."""
        return self._unit is not None and self._launched

    async def poll(self) -> int | None:
        """`None` while the kernel runs or nothing is known, else its exit code. From known state.

        Called by `KernelManager.is_alive`: by the restarter every 3 s, during a shutdown every 0.1 s.
        """
        grant = self._grant
        if grant is None:
            return 0
        if self._code is None and (fate := await grant.fate(self._launched)) is not None:
            code, words = fate
            self._code = _GONE if code is None else code
            if not self._expected:
                self._tell_reason(words)
        return self._code

    async def wait(self) -> int | None:
        """Wait until the kernel ended. Called by `KernelManager` once it found it dead."""
        while self.has_process and await self.poll() is None:  # noqa: ASYNC110  (as the kernel manager itself does)
            await asyncio.sleep(_LOOK_EVERY)
        self._unit = None
        return self._code or 0

    async def send_signal(self, signum: int) -> None:
        """SIGINT interrupts, SIGTERM and SIGKILL stop; a container has no use for the others. Never raises or hangs.

        Called by `KernelManager.signal_kernel`. (Interrupts come as messages: the kernelspec says so.)
        """
        grant = self._grant
        if grant is None or signum == 0:
            return
        if signum == signal.SIGINT:
            await grant.quietly("interrupt", lambda scheduler: scheduler.interrupt(grant.id), ANSWER_WITHIN)
        elif signum in (signal.SIGTERM, signal.SIGKILL):
            await self.kill()
        else:
            self.log.debug("signal %s is not sent on to kernel %s", signum, self.kernel_id)

    # --- down

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Called by `KernelManager.request_shutdown`: what happens to the kernel now is meant to."""
        self._expected = True
        hold_shutdown(self.parent, self.kernel_id)

    async def terminate(self, restart: bool = False) -> None:
        """As `kill`: the kernel had its chance with the shutdown message. Called half-way through a shutdown."""
        await self.kill(restart)

    async def kill(self, restart: bool = False) -> None:
        """Stop and remove the unit, and keep the GPUs; returns when it is confirmed gone, or `stop_timeout` is over.

        Called by `KernelManager.kill_kernel`, also before each automatic restart. `restart` cannot be trusted.
        """
        grant = self._grant
        if grant is None or self._unit is None:
            return
        self._expected = True
        hold_shutdown(self.parent, self.kernel_id)
        gone = await grant.quietly("stop", lambda scheduler: scheduler.stop_unit(grant.id), self.stop_timeout)
        if gone and self._code is None:
            self._code = _KILLED

    async def cleanup(self, restart: bool = False) -> None:
        """Give the GPUs back, unless it is for a restart. Called by `KernelManager.cleanup_resources`, last of all."""
        if restart:
            return
        await self._close_watch()
        await self._end(
            lambda scheduler, id: scheduler.release(
                id, EndReason.RELEASED, "its kernel was shut down", kernel_gone=True
            )
        )

    # --- parts of a start

    async def _allocate(self, environment: dict[str, str], cwd: str | None) -> Grant:
        inside = "GPUFIT_ATTACHED" in environment or "GPUFIT_JOB" in environment
        granted = "" if inside else environment.get("GPUFIT_ALLOCATION", "")
        self._direct = not granted
        if granted:
            return await Grant.given(granted, self.log)
        config = {wish: getattr(self, "wait_time" if wish == "wait" else wish) for wish in WISHES}
        request = _in_folder(request_from(config, environment), cwd)
        return await Grant.asked(request, self.kernel_id, self.log)

    async def _command(self, grant: Grant, argv: list[str], cwd: str | None) -> list[str]:
        spec = await grant.spec()
        same = [mount.target for mount in spec.mounts if mount.source == mount.target]
        folder = grant.allocation.request.folder
        if cwd is not None and folder is not None and spec.shares(folder):
            same.append(folder)
        there = cwd is not None and (
            spec.launcher == "process" or any(os.path.commonpath([target, cwd]) == target for target in same)
        )
        return contents.command(argv, self._connection_name, cwd if there else None, spec.allow_plaintext)

    def _make_keys(self, unit: Unit) -> Keys:
        # The kernel manager's policy is not handed on to us, and "required" without keys would go on in plaintext.
        policy = getattr(self.parent, "transport_encryption", "disabled")
        session = getattr(self.parent, "session", None)
        key = os.urandom(32).hex().encode() if session is None else session.key
        scheme = "hmac-sha256" if session is None else session.signature_scheme
        return make_keys(key, scheme, encrypt=unit.encrypt or policy in ("auto", "required"))

    def _passes(self, name: str) -> bool:
        return name != "JPY_PARENT_PID" and any(fnmatch.fnmatchcase(name, glob) for glob in self.env_passthrough)

    @property
    def _connection_name(self) -> str:
        return f"kernel-{self.kernel_id}.json"

    # --- ends

    async def _end(self, how: Callable[[Scheduler, str], Awaitable[object]]) -> None:
        """End the allocation by `how`, and let go of it. Never raises."""
        grant, self._grant, self._unit, self._launched = self._grant, None, None, False
        if grant is not None:
            await grant.end(lambda scheduler: how(scheduler, grant.id), self.stop_timeout)

    async def _undo(self, error: BaseException) -> None:
        """A start failed: give back what it has taken, and leave no trace in the kernel manager."""
        self._restarting = False
        message = error.message if isinstance(error, GpufitError) else f"{type(error).__name__}: {error}"
        if isinstance(error, asyncio.CancelledError | Cancelled | KeyboardInterrupt):
            await self._end(lambda scheduler, id: scheduler.release(id, EndReason.CANCELLED, kernel_gone=True))
        else:
            await self._end(lambda scheduler, id: scheduler.failed(id, message))
        if self._restarter is not None:
            self._announce_dead(message)
        else:
            forget_pending(self.parent, self.kernel_id)

    def _tell_reason(self, words: str) -> None:
        self._last_words = words.rstrip(".")
        self.log.warning("kernel %s ended: %s", self.kernel_id, words)
        manager: Any = self.parent
        if hasattr(manager, "reason"):
            manager.reason = words  # part of the server's model of the kernel

    def _given_up(self) -> None:
        """Called by the restarter: the kernel died too often. Nobody will call `cleanup`."""
        message = f"its kernel died too often; the last time: {self._last_words or 'no reason known'}"
        self._spawn(self._end_given_up(message))

    async def _end_given_up(self, message: str) -> None:
        await self._close_watch()
        await self._end(lambda scheduler, id: scheduler.failed(id, message))

    def _announce_dead(self, message: str) -> None:
        """A restart failed, of which a kernel manager tells nobody: tell those who wait for this kernel."""
        self._tell_reason(message)
        restarter = self._restarter

        def tell() -> None:
            restarter.remove_callback(self._given_up, "dead")
            restarter._fire_callbacks("dead")

        asyncio.get_running_loop().call_soon(tell)
        self._spawn(self._close_watch())


def _in_folder(request: Request, cwd: str | None) -> Request:
    """With the kernel's directory: it is mounted where the node has it, too."""
    if cwd is None or not os.path.isabs(cwd):
        return request
    return msgspec.structs.replace(request, folder=os.path.normpath(cwd))

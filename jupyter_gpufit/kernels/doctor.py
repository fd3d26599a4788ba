"""`jupyter gpufit doctor`: what is right and what is wrong with a node, and what mends it.

    examine(spec) ─→ reporter, report       cluster/examine.py
                  ─→ tls … image            launching/examine.py, in the node's own threads, each with a time limit
                  ─→ container … ports      a unit of the ordinary launcher, without GPUs, that runs bootstrap/look.py
        deep      ─→ gpu, kernel            another one, with a claim on one idle GPU, that becomes a kernel

Whatever happens, what it started it removes. Should it be killed, its unit ends by itself, and the next one removes it.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from ..cluster.checks import clean
from ..cluster.examine import examine_reporter
from ..diagnosis import CHECKS, Check, Diagnosis, Tell, Verdict, right, unchecked, wrong
from ..errors import ClaimLost, GpufitError, LaunchError
from ..inventory import NodeSpec
from ..launching import examine as engines
from ..launching.base import make_launcher
from ..launching.engine import Engine
from ..launching.worker import Worker
from ..models import Endpoint, Gpu, Launch, Report, Unit
from ..scheduling.logs import text_of
from .answer import wait_for_answer
from .bootstrap import contents, look
from .bootstrap.launch import ENCRYPTS_SINCE
from .connection import connection_file, connection_info, make_keys, without_encryption

if TYPE_CHECKING:
    from ..scheduling.needs import Launcher

__all__ = ["SCHEDULER", "examine"]

T = TypeVar("T")

SCHEDULER = "doctor"
"""What the labels of its containers name as their scheduler: no other one takes them for its own."""
DEEP = ("gpu", "kernel")
ANSWERS_WITHIN = 6.0  # s; an engine that is well needs some milliseconds
SECURE_WITHIN = 10.0
STARTS_WITHIN = 40.0  # s from creating a unit to its first word
DIAL_WITHIN = 3.0
KERNEL_WITHIN = 60.0
REMOVED_WITHIN = 20.0
LIVES = 120.0  # s; what is older than this was left by one that was killed
_LOOK_EVERY = 0.1
_LOG_LINES = 50
_NAME = "kernel-doctor.json"
_KERNEL = ("python3", "-m", "ipykernel_launcher", "-f", "{connection_file}")
_NO_ENGINE = "these are plain processes on this machine, without a Docker engine"


async def examine(
    spec: NodeSpec, *, deep: bool = False, owner: str = "", tell: Tell = lambda diagnosis: None
) -> Diagnosis:
    """Look at one node. `tell` gets the diagnosis after each check. Raises nothing that the node could cause.

    Cancelling it removes what it started before it ends.
    """
    examination = _Examination(spec, deep, owner, tell)
    try:
        await examination.run()
    finally:
        await examination.close()
    return examination.diagnosis(done=True)


class _Look(Struct, frozen=True, kw_only=True):
    """What bootstrap/look.py says."""

    python: str
    ipykernel: str | None
    devices: list[str]
    gpus: list[str] | None


class _Examination:
    def __init__(self, spec: NodeSpec, deep: bool, owner: str, tell: Tell) -> None:
        self._spec, self._deep, self._owner, self._tell = spec, deep, owner, tell
        self._found: dict[str, Check] = {}
        self._worker = Worker(f"doctor-{spec.name}")
        self._engine = Engine(spec) if spec.docker is not None else None
        self._id = f"doctor-{secrets.token_hex(4)}"
        self._units = 0

    def diagnosis(self, *, done: bool = False) -> Diagnosis:
        checks = tuple(self._found[name] for name in CHECKS if name in self._found)
        return Diagnosis(node=self._spec.name, deep=self._deep, done=done, checks=checks)

    async def run(self) -> None:
        checks, report = await examine_reporter(self._spec)
        self._add(*checks)
        if await self._engine_is_well():
            await self._in_units(report)
        self._add_rest()

    async def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        await self._worker.close(patience=0.2)

    # --- the list

    def _add(self, *checks: Check) -> None:
        for check in checks:
            self._found[check.check] = check
            self._tell(self.diagnosis())

    def _add_rest(self) -> None:
        """What nothing was said of by now could not be looked at."""
        wanted = [name for name in CHECKS if name not in self._found and (self._deep or name not in DEEP)]
        culprits = [check.check for check in self._found.values() if check.verdict is not Verdict.RIGHT]
        why = f"not before this is in order: {culprits[-1]}" if culprits else "nothing was found out"
        self._add(*(unchecked(name, why) for name in wanted))
        if not self._deep:
            self._add(unchecked("gpu", "only with --deep, which starts a kernel on one idle GPU"))

    # --- the engine

    async def _engine_is_well(self) -> bool:
        """Whether a container can be tried."""
        spec, engine = self._spec, self._engine
        if engine is None:
            self._add(*(unchecked(name, _NO_ENGINE) for name in ("tls", "engine", "api", "runtime", "image")))
            return True
        late = unchecked("tls", f"it took more than {SECURE_WITHIN:.0f} s")
        self._add(await self._ask(lambda: engines.secure(spec), SECURE_WITHIN, late))
        if self._found["tls"].verdict is Verdict.WRONG:
            return False
        silent = (engines.not_in_time(spec, ANSWERS_WITHIN), dict[str, Any]())
        answers, about = await self._ask(lambda: engines.engine_answers(engine, spec), ANSWERS_WITHIN, silent)
        self._add(answers)
        if answers.verdict is not Verdict.RIGHT:
            return False
        self._add(engines.api(about), engines.runtime(about))
        late = unchecked("image", f"the engine did not say within {ANSWERS_WITHIN:.0f} s whether it is there")
        self._add(await self._ask(lambda: engines.image_there(engine, spec), ANSWERS_WITHIN, late))
        return self._found["image"].verdict is Verdict.RIGHT

    async def _ask(self, call: Callable[[], T], within: float, late: T) -> T:
        try:
            return await self._worker.run(call, within)
        except TimeoutError:
            return late

    # --- what runs there

    async def _in_units(self, report: Report | None) -> None:
        launcher = make_launcher(msgspec.structs.replace(self._spec, pull="never"))
        try:
            await launcher.open(lambda *end: None, lambda claims: None)
            if await self._or_say("container", self._remove_old(launcher)):
                well = await self._or_say("container", self._without_gpu(launcher))
                if well and self._deep:
                    await self._or_say("gpu", self._with_gpu(launcher, report))
        finally:
            await launcher.close()

    async def _or_say(self, check: str, attempt: Awaitable[None]) -> bool:
        """Whether `attempt` came to its end; what it failed with is said of the first check from `check` on that it
        has not said anything of."""
        try:
            await attempt
        except (GpufitError, TimeoutError) as error:
            check = next((name for name in CHECKS[CHECKS.index(check) :] if name not in self._found), CHECKS[-1])
            self._add(self._why(check, error))
            return False
        return True

    def _why(self, check: str, error: GpufitError | TimeoutError) -> Check:
        if isinstance(error, ClaimLost):
            return unchecked(check, f"somebody was faster: {error.message}; try again")
        if isinstance(error, TimeoutError):
            return wrong(check, f"it has not started within {STARTS_WITHIN:.0f} s", self._by_hand())
        lines = str(error.details.get("logs") or "").strip().splitlines()
        # The image's own words are in the message of an ImageRefused.
        last = f"; its last line: {clean(lines[-1], 200)}" if lines and lines[-1].strip() not in error.message else ""
        return wrong(check, f"{error.message}{last}", engines.remedy(error.message) or self._by_hand())

    def _by_hand(self) -> str:
        image = shlex.quote(self._spec.image)
        return f"{engines.docker_command(self._spec)} run --rm -it {image} python3" if self._spec.docker else ""

    async def _remove_old(self, launcher: Launcher) -> None:
        async with asyncio.timeout(STARTS_WITHIN):
            for unit, claim in await launcher.units():
                if claim.scheduler == SCHEDULER and (claim.expires or 0) < time.time() - LIVES:
                    await launcher.stop(unit)

    async def _without_gpu(self, launcher: Launcher) -> None:
        word, began = secrets.token_hex(8), time.monotonic()

        def command(unit: Unit) -> tuple[list[str], dict[str, bytes]]:
            ports = map(str, unit.inner_ports)
            return ["{python}", "{gpufit}/look.py", word, unit.inner_ip, *ports], _files()

        async with self._started(launcher, {}, command) as (unit, endpoint):
            seen = await _first_words(launcher, unit)
            kind = "a container of it" if self._spec.docker else "a process"
            self._add(right("container", f"{kind} starts, in {time.monotonic() - began:.1f} s"))
            self._add(self._ipykernel(seen, unit.encrypt))
            self._add(await self._ports(endpoint, word))

    def _ipykernel(self, seen: _Look, encrypt: bool) -> Check:
        pip, image = "python3 -m pip install 'ipykernel>=7.4'", shlex.quote(self._spec.image)
        if self._spec.docker is not None:
            build = f"{engines.docker_command(self._spec)} build -t {image} -"
            pip = f"printf 'FROM %s\\nRUN python3 -m pip install \"ipykernel>=7.4\"\\n' {image} | {build}"
        python = f"Python {clean(seen.python, 20)}"
        if seen.ipykernel is None:
            return wrong("ipykernel", f"there is none for its {python}", pip)
        version, numbers = clean(seen.ipykernel, 20), re.match(r"(\d+)\.(\d+)", seen.ipykernel)
        new = numbers is not None and (int(numbers[1]), int(numbers[2])) >= ENCRYPTS_SINCE
        if new or not encrypt:
            return right("ipykernel", f"{version}, in {python}")
        since = ".".join(map(str, ENCRYPTS_SINCE))
        if self._spec.allow_plaintext:
            return right("ipykernel", f"{version}: too old to encrypt ({since}), as allow_plaintext = true allows")
        return wrong("ipykernel", f"it is {version}; what goes over the network is encrypted since {since}", pip)

    async def _ports(self, endpoint: Endpoint, word: str) -> Check:
        troubles = await asyncio.gather(*(_dial(endpoint.host, port, word) for port in endpoint.ports))
        closed: dict[str, list[str]] = {}
        for port, why in zip(endpoint.ports, troubles, strict=True):
            if why:
                closed.setdefault(why, []).append(str(port))
        if not closed:
            return right("ports", f"kernels there are reached at {endpoint.host}, all {len(endpoint.ports)} channels")
        said = "; ".join(f"{', '.join(ports)}: {why}" for why, ports in closed.items())
        return wrong(
            "ports",
            f"a container's published ports are not reached at {endpoint.host}: {said}",
            'address = "…"    # in gpufit.toml, if that machine has another one; else its firewall has to let us in at '
            "the ports that `sysctl net.ipv4.ip_local_port_range` says there",
        )

    # --- deep

    async def _with_gpu(self, launcher: Launcher, report: Report | None) -> None:
        if report is None:
            self._add(unchecked("gpu", "which GPU is idle is not known without a report"))
            return
        held = {uuid for _, claim in await launcher.units() for uuid in claim.gpus}
        idle = [gpu for gpu in report.gpus if gpu.allocatable and gpu.idle and gpu.uuid not in held]
        if not idle:
            self._add(unchecked("gpu", f"none of its {len(report.gpus)} GPUs is idle"))
            return
        gpu = min(idle, key=lambda one: one.memory_free or 0)  # the one that is missed least
        began = time.monotonic()
        keys = make_keys(os.urandom(32).hex().encode(), "hmac-sha256", encrypt=True)

        def command(unit: Unit) -> tuple[list[str], dict[str, bytes]]:
            mine = keys if unit.encrypt else without_encryption(keys)
            words = contents.command(_KERNEL, _NAME, None, self._spec.allow_plaintext)
            files = contents.files(_NAME, connection_file(mine, unit, "gpufit")) | _files()
            return ["{python}", "{gpufit}/look.py", "-", "--", *words[1:]], files

        async with self._started(launcher, {gpu.uuid: gpu}, command) as (unit, endpoint):
            self._add(self._sees(gpu, await _first_words(launcher, unit)))
            plain = connection_info(without_encryption(keys), endpoint)
            infos = [connection_info(keys, endpoint)] if unit.encrypt else [plain]
            infos += [plain] if unit.encrypt and self._spec.allow_plaintext else []

            async def fate() -> tuple[int | None, str] | None:
                code = launcher.exit_code(unit)
                return None if code is None else (code, launcher.describe_exit(unit))

            try:
                chosen = await wait_for_answer(infos, KERNEL_WITHIN, fate)
            except LaunchError as error:
                error.details["logs"] = text_of(await launcher.logs(unit, _LOG_LINES))
                raise
            how = "encrypted" if "curve_publickey" in infos[chosen] else "in plaintext"
            self._add(right("kernel", f"it answers, {how}, {time.monotonic() - began:.1f} s after the request"))

    def _sees(self, gpu: Gpu, seen: _Look) -> Check:
        if self._spec.docker is None:
            return right("gpu", f"a process was given {gpu.uuid}")
        count = len(seen.devices) if seen.gpus is None else len(seen.gpus)
        if count == 1:
            return right("gpu", f"a container was given {gpu.uuid}, and sees one GPU")
        if count == 0:
            fix = "nvidia-container-cli info    # on that machine; and does the image set NVIDIA_DRIVER_CAPABILITIES?"
            return wrong("gpu", f"a container was given {gpu.uuid}, and sees no GPU", fix)
        fix = "default-runtime    # in that machine's /etc/docker/daemon.json: leave it out"
        return wrong("gpu", f"a container was given {gpu.uuid} alone, and sees {count} GPUs", fix)

    @asynccontextmanager
    async def _started(
        self,
        launcher: Launcher,
        gpus: dict[str, Gpu],
        command: Callable[[Unit], tuple[Sequence[str], dict[str, bytes]]],
    ) -> AsyncIterator[tuple[Unit, Endpoint]]:
        """A unit that runs `command`, removed in the end, whatever comes of it."""
        self._units += 1
        launch = Launch(
            allocation=self._id,
            scheduler=SCHEDULER,
            owner=self._owner,
            name=f"gpufit-{self._id}-{self._units}",
            gpus=dict.fromkeys(gpus, 0),
            cards={uuid: gpu.card for uuid, gpu in gpus.items()},
            expires=time.time() + LIVES,
        )
        unit = None
        try:
            async with asyncio.timeout(STARTS_WITHIN):
                unit = await launcher.prepare(launch, lambda progress: None)
                endpoint = await launcher.start(unit, *command(unit), {})
            yield unit, endpoint
        finally:
            if unit is not None:
                await self._remove(launcher, unit)

    async def _remove(self, launcher: Launcher, unit: Unit) -> None:
        try:
            async with asyncio.timeout(REMOVED_WITHIN):
                await launcher.stop(unit)
        except (GpufitError, TimeoutError) as error:
            why = error.message if isinstance(error, GpufitError) else f"not within {REMOVED_WITHIN:.0f} s"
            fix = f"{engines.docker_command(self._spec)} rm -f {unit.name}" if self._spec.docker else ""
            self._add(wrong("container", f"{unit.name} could not be removed: {why}", fix))


def _files() -> dict[str, bytes]:
    return {"look.py": Path(look.__file__).read_bytes()}


async def _first_words(launcher: Launcher, unit: Unit) -> _Look:
    """What look.py says. Raises `LaunchError` if it ends without a word, and `TimeoutError`."""
    async with asyncio.timeout(STARTS_WITHIN):
        while True:
            ended = launcher.exit_code(unit) is not None
            logs = text_of(await launcher.logs(unit, _LOG_LINES))
            for line in logs.splitlines():
                if line.startswith(look.SAYS):
                    return _understood(line.removeprefix(look.SAYS))
            if ended:
                raise LaunchError(f"{unit.name} {launcher.describe_exit(unit)}", logs=logs)
            await asyncio.sleep(_LOOK_EVERY)


def _understood(line: str) -> _Look:
    try:
        return msgspec.json.decode(line, type=_Look)
    except msgspec.DecodeError as error:
        raise LaunchError(f"what it says cannot be read: {error}") from None


async def _dial(host: str, port: int, word: str) -> str:
    """Why nobody says `word` there; empty: somebody does."""
    try:
        async with asyncio.timeout(DIAL_WITHIN):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                said = await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {DIAL_WITHIN:.0f} s"
    except (OSError, ValueError) as error:  # ValueError: a line without end
        # asyncio words these otherwise, and longer.
        return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    if said.strip() == word.encode():
        return ""
    return "something else answers" if said else "it is closed at once: nothing listens behind it"

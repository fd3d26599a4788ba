"""The three engines of the `cluster` fixture as a lab's machines: a real reporter on each, and the gpufit.toml of all.

with machines(cluster, tmp_path, kernel_image) as inventory:
    async with server_process(tmp_path, inventory=inventory) as server: ...
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster.engines import Engine

__all__ = ["containers", "listens", "machines", "reporter"]

PORT = 9477


@contextmanager
def reporter(engine: Engine, token_file: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`jupyter gpufit reporter` on that host, over its stand-in GPUs. `listens` waits until it does."""
    command = [sys.executable, "-m", "jupyter_gpufit.cli.reporter", "--json", "--host", engine.ip, "--port", str(PORT)]
    command += ["--token-file", str(token_file), "--monitor-period", "500ms", *options]
    with (engine.directory / "reporter.log").open("ab") as errors:
        process = engine.popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def listens(process: subprocess.Popen[bytes]) -> None:
    """Wait until a reporter is ready."""
    assert process.stdout is not None
    assert process.stdout.readline(), f"{process.args!r} ended"


@contextmanager
def machines(engines: Iterable[Engine], directory: Path, image: str, more: str = "") -> Iterator[Path]:
    """A reporter on each of `engines`. Gives gpufit.toml; `more` is added to its `[defaults]`."""
    token = directory / "reporter.token"
    token.write_text(secrets.token_hex(16))
    token.chmod(0o600)
    text = f"""
        [defaults]
        image = "{image}"
        report_token_file = "reporter.token"
        monitor_period = "500ms"
        insecure = true
        {more}
    """
    with ExitStack() as stack:
        reporters = []
        for engine in engines:
            reporters.append(stack.enter_context(reporter(engine, token)))
            text += f"""
                [[node]]
                name = "{engine.name}"
                docker = "{engine.url}"
                report = "http://{engine.ip}:{PORT}"
            """
        for process in reporters:
            listens(process)
        inventory = directory / "gpufit.toml"
        inventory.write_text(text)
        yield inventory


def containers(engine: Engine) -> list[str]:
    """Names of all containers on that engine, in whatever state."""
    try:
        return [each.name for each in engine.client().containers.list(all=True, ignore_removed=True)]
    finally:
        engine.close_clients()

"""`jupyter gpufit demo`: all of it on one machine without a GPU.

A simulated cluster of four unlike nodes, whose "containers" are processes of this machine, a real Jupyter server with
the extension, and the quick-start notebook, in JupyterLab. With `--check` a front end without a screen goes through the
notebook instead, in a session of that server, and tells what each cell gave.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import GpufitError, LaunchError
from ..notebook.client import RestClient
from ..notebook.discovery import Server, running_servers
from ..notebook.transport import ExtensionMissing, ServerUnreachable

__all__ = ["NODES", "DemoServer", "add_parser", "furnish"]

_ABOUT = "A simulated cluster, a Jupyter server and the quick-start notebook, on this machine alone."
_START_WITHIN = 90.0  # s; a cold disk, two slow cores
_STOP_WITHIN = 30.0  # s
NOTEBOOK = "quickstart.ipynb"
ROOT = "notebooks"
"""What JupyterLab shows of the demo's directory: nothing but the notebook."""

_SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}
"""JupyterLab's question whether it may fetch news would lie over what is to be seen."""

NODES = """\
# Four unlike nodes, none of which exists. `jupyter gpufit demo` made this file.

[defaults]
monitor_period = "1s"

[[node]]  # large, and mostly used by others
name = "atlas"
report = "simulated:8xA100-80GB?load=0-4:60GiB@95%"

[[node]]
name = "brook"
report = "simulated:4xA100-40GB"

[[node]]  # one GPU in MIG mode
name = "cedar"
report = "simulated:2xA100-40GB?mig=0:3g.20gb,1g.5gb*4"

[[node]]  # small GPUs, one of them broken
name = "dune"
report = "simulated:4xT4-16GB?fault=3:unhealthy"
"""


def furnish(directory: Path) -> Path:
    """Make the demo's `gpufit.toml` in `directory`, and the model store of one node, unless they are there (then
    somebody may have changed them: a quota, another node). Returns the former. Also for the example notebooks."""
    inventory, store = directory / "gpufit.toml", directory / "models"
    if not inventory.exists():
        (store / "moons-12").mkdir(parents=True, exist_ok=True)
        (store / "moons-12" / "config.json").write_text(json.dumps({"hidden": 12}), "utf-8")
        inventory.write_text(f"{NODES}models = {json.dumps(str(store))}\n", "utf-8")
    return inventory


def add_parser(subparsers: Any) -> None:
    """Add the verb to `jupyter gpufit`. Called by `app.py`."""
    parser = subparsers.add_parser("demo", help="try it without a GPU", description=_ABOUT)
    parser.add_argument(
        "--check", action="store_true", help="run the quick start without a browser, and tell how it went"
    )
    parser.add_argument("--port", type=int, default=0, help="of the Jupyter server (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="work there, and keep it (default: a temporary directory)"
    )
    parser.add_argument("--json", action="store_true", help="with --check: print JSON")
    parser.set_defaults(func=_run)


def _run(options: argparse.Namespace) -> int:
    if not options.check and find_spec("jupyterlab") is None:
        raise LaunchError("the demo needs JupyterLab; install it with: python3 -m pip install 'jupyter_gpufit[demo]'")
    with contextlib.ExitStack() as cleanup:
        # SIGTERM has to clean up as Ctrl-C does.
        before = signal.signal(signal.SIGTERM, _interrupt)
        cleanup.callback(signal.signal, signal.SIGTERM, before)
        directory = options.dir or Path(cleanup.enter_context(_temporary()))
        server = cleanup.enter_context(DemoServer(directory, lab=not options.check, port=options.port))
        if options.check:
            from .check import check

            return check(server.server, server.root / NOTEBOOK, as_json=options.json)
        return _show(server, browser=not options.no_browser)


def _show(demo: DemoServer, *, browser: bool) -> int:
    address = f"{demo.server.url}lab/tree/{NOTEBOOK}?token={demo.server.token}"
    try:
        print(f"The demo runs: {address}\nIts cluster is {demo.directory / 'gpufit.toml'}. Ctrl-C ends it.", flush=True)
        with _browser_at(address) if browser else contextlib.nullcontext():
            code = demo.process.wait()
    except KeyboardInterrupt:
        print("\nEnding the demo, and what runs in it ...", flush=True)
        return 0
    raise LaunchError(f"the demo's Jupyter server ended by itself (exit code {code}):\n{demo.last_words()}")


class DemoServer:
    """A Jupyter server over the simulated cluster, in a process of its own. A context manager; its end ends all."""

    def __init__(self, directory: Path, *, lab: bool, port: int = 0) -> None:
        self.directory = directory
        self.root = directory / ROOT
        self._lab = lab
        self._port = port
        self.process: subprocess.Popen[bytes]
        self.server: Server

    def __enter__(self) -> DemoServer:
        """Raises `LaunchError` if it does not start."""
        self._furnish()
        log = (self.directory / "server.log").open("wb")
        try:
            # In a session of its own: a terminal's Ctrl-C is for us. The server would ask whether it is meant.
            self.process = subprocess.Popen(
                self._command(),
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            log.close()
        try:
            self.server = self._until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def last_words(self, lines: int = 20) -> str:
        """The end of its log."""
        log = (self.directory / "server.log").read_text("utf-8", "replace")
        return "\n".join(log.splitlines()[-lines:])

    def _furnish(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        furnish(self.directory)
        (self.directory / "settings").mkdir(exist_ok=True)
        (self.directory / "settings" / "overrides.json").write_text(json.dumps(_SETTINGS), "utf-8")
        if not (self.root / NOTEBOOK).exists():
            (self.root / NOTEBOOK).write_text(_without_outputs(quick_start().read_text("utf-8")), "utf-8")

    def _command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "jupyterlab" if self._lab else "jupyter_server",
            "--no-browser",
            f"--ServerApp.port={self._port}",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.root_dir={self.root}",
            "--ServerApp.jpserver_extensions={'jupyter_gpufit': True}",
            f"--GpufitExtension.store={self.directory / 'store'}",
            f"--GpufitExtension.inventory={self.directory / 'gpufit.toml'}",
            *([f"--LabApp.app_settings_dir={self.directory / 'settings'}"] if self._lab else []),
            *(["--ServerApp.allow_root=True"] if os.geteuid() == 0 else []),
        ]

    def _environment(self) -> dict[str, str]:
        # The token by environment, because everybody sees a command's words.
        return {
            **os.environ,
            "JUPYTER_TOKEN": secrets.token_hex(24),
            "GPUFIT_INVENTORY": str(self.directory / "gpufit.toml"),
            "GPUFIT_CLAIMS_DIR": str(self.directory / "claims"),  # the nodes of another demo have the same names
        }

    def _until_it_answers(self) -> Server:
        deadline = time.monotonic() + _START_WITHIN
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise LaunchError(f"the demo's Jupyter server did not start (exit code {code}):\n{self.last_words()}")
            for server in running_servers():
                if server.pid == self.process.pid and _answers(RestClient(server)):
                    return server
            time.sleep(0.1)
        raise LaunchError(f"the demo's Jupyter server did not answer in {_START_WITHIN:.0f} s:\n{self.last_words()}")

    def _stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            print("jupyter gpufit: the demo's server does not end; killing it", file=sys.stderr)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _answers(client: RestClient) -> bool:
    """Whether the server is up, with all nodes heard of. Raises `ExtensionMissing`."""
    try:
        nodes = client.nodes()
    except ExtensionMissing:
        raise
    except (ServerUnreachable, GpufitError):
        return False
    return bool(nodes) and all(node.age is not None for node in nodes)


def quick_start() -> Path:
    """The quick-start notebook: in the wheel, or in a checkout. Raises `LaunchError`."""
    here = Path(__file__).resolve().parent
    for place in (here / NOTEBOOK, here.parents[1] / "notebooks" / NOTEBOOK):
        if place.exists():
            return place
    raise LaunchError(f"the quick-start notebook is not in {here}; reinstall jupyter_gpufit")


def _without_outputs(notebook: str) -> str:
    """What the notebook gave whoever ran it last is not what it gives here."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return json.dumps(content, indent=1)


@contextlib.contextmanager
def _browser_at(address: str) -> Iterator[None]:
    """Open a browser there; by way of a page for this user alone, because everybody sees a command's words."""
    import webbrowser

    from jupyter_core.paths import jupyter_runtime_dir

    page = Path(jupyter_runtime_dir()) / f"gpufit-demo-{os.getpid()}.html"
    page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    page.touch(mode=0o600)
    url = escape(address)
    page.write_text(f'<meta http-equiv="refresh" content="0; url={url}">\n<a href="{url}">The demo</a>\n', "utf-8")
    try:
        webbrowser.open(page.as_uri())
        yield
    finally:
        page.unlink(missing_ok=True)


@contextlib.contextmanager
def _temporary() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="gpufit-demo-", ignore_cleanup_errors=True) as directory:
        yield directory


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt

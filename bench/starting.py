"""What it costs to have jupyter_gpufit: imports, `%load_ext`, and the start of a Jupyter server. JSON lines.

    python bench/starting.py [--rounds 15] [--quick]

Each is a process of its own, from its start until it has done what is said; those with and without us take turns.

`import`     `python -c "import jupyter_gpufit"` beside `python -c pass`
`load_ext`   IPython that runs `%load_ext jupyter_gpufit` beside IPython that runs nothing
`server`     `jupyter server` until it answers, with the extension beside without (others, such as JupyterLab, in both)
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

from figures import say
from helpers.jupyterserver import directories

SHELL = "from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell()"
GPUFIT = "jupyter_gpufit"
WITHIN = 60.0  # s


def python(code: str) -> float:
    """Seconds until Python has run `code`, and ended."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def server(home: Path, extended: bool) -> float:
    """Seconds until a Jupyter server answers its first question."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--ServerApp.port_retries=0",
        f"--ServerApp.port={port}", f"--ServerApp.jpserver_extensions={{'{GPUFIT}': {extended}}}",
    ]  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while not _answers(f"http://127.0.0.1:{port}/api"):
            if process.poll() is not None or time.perf_counter() - began > WITHIN:
                raise RuntimeError(f"the server did not start (exit code {process.poll()})")
            time.sleep(0.005)
        return time.perf_counter() - began
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def compare(figure: str, without: Callable[[], float], having: Callable[[], float], rounds: int) -> None:
    """Say what both take, and what having it adds."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for way, taken in zip((without, having), seconds, strict=True):
            took = way()
            if turn:  # the first is a warm-up: nothing is compiled, or in the cache
                taken.append(took)
    before, after = map(median, seconds)
    say(
        f"starting.{figure}/without",
        ratio=round(after / before, 3),
        adds_ms=round(1e3 * (after - before), 1),
        without_ms=round(1e3 * before, 1),
        rounds=rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    rounds = 7 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ |= directories(home)
        inventory = home / "gpufit.toml"
        inventory.write_text('[[node]]\nname = "here"\nreport = "simulated:8xA100-40GB"\ndocker = "process"\n')
        os.environ["GPUFIT_INVENTORY"] = str(inventory)
        compare("import", lambda: python("pass"), lambda: python(f"import {GPUFIT}"), 2 * rounds)
        load = f"{SHELL}; shell.run_line_magic('load_ext', '{GPUFIT}')"
        compare("load_ext", lambda: python(SHELL), lambda: python(load), rounds)
        compare("server", lambda: server(home, False), lambda: server(home, True), rounds)


if __name__ == "__main__":
    main()

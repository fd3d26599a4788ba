"""The first thing that runs in a unit: checks that the image can do what is asked of it, then becomes the kernel.

    python launch.py [--cwd DIR] [--allow-plaintext] CONNECTION_FILE -- -m ipykernel_launcher -f CONNECTION_FILE …

Put into every unit, so it depends on nothing but Python (3.8 or later) and ipykernel, and imports nothing that the
kernel would not import anyway. Its exit code for "this image cannot be used" is known to whoever started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

IMAGE_UNUSABLE = 90
SAYS = "gpufit: "
ENCRYPTS_SINCE = (7, 4)
ALLOW_PLAINTEXT = "--allow-plaintext"
NO_NEWS = "Kernel is running over TCP without encryption"


def main(arguments: list[str]) -> None:
    """`arguments`: as above. Returns when the kernel ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing runs yet that an interrupt could be meant for
    split = arguments.index("--")
    options, kernel = arguments[:split], arguments[split + 1 :]
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    sys.path.append(os.path.join(here, "remote"))  # at the end: where the whole package is installed, that one is meant
    os.environ.pop("JPY_PARENT_PID", None)  # a kernel that finds it exits as soon as that process is not its parent
    if "--cwd" in options:
        enter(options[options.index("--cwd") + 1])
    lead_group()
    guard_memory(os.path.join(here, "guard"))
    connection_file = check_image(options[-1], ALLOW_PLAINTEXT in options)
    run([connection_file if word == options[-1] else word for word in kernel], os.path.join(here, "notice.txt"))


def enter(directory: str) -> None:
    """Work in the notebook's own directory, where this unit has it."""
    try:
        os.chdir(directory)
    except OSError as error:
        print(f"{SAYS}the notebook's directory is not here ({error}); working in {os.getcwd()}", file=sys.stderr)


def lead_group() -> None:
    """ipykernel interrupts the children of a cell only where it leads its process group."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def guard_memory(directory: str) -> None:
    """Have this process, and what it starts, keep to the GPU memory that was asked for, where that is less than all."""
    if "GPUFIT_MEMORY_FRACTIONS" not in os.environ:
        return
    import importlib

    sys.path.insert(0, directory)
    try:
        guard = importlib.import_module("gpufit_memory_guard")
    except ImportError:
        return  # it is a default, not a wall
    finally:
        sys.path.remove(directory)
    guard.hand_on(os.environ)
    guard.install()


def check_image(connection_file: str, allow_plaintext: bool) -> str:
    """The connection file to use. If ipykernel is missing or too old: ends with `IMAGE_UNUSABLE`, saying so."""
    try:
        from ipykernel._version import __version__, version_info
    except ImportError as error:
        refuse(
            f"this image has no ipykernel for {sys.executable} ({error}); "
            "add it with: python3 -m pip install 'ipykernel>=7.4'"
        )
    with open(connection_file) as file:
        connection = json.load(file)
    if "curve_secretkey" not in connection or tuple(version_info[:2]) >= ENCRYPTS_SINCE:
        return connection_file
    found = f"this image's ipykernel is {__version__}, and encrypted channels need 7.4 or later"
    if not allow_plaintext:
        refuse(
            f"{found}; update it with: python3 -m pip install 'ipykernel>=7.4' "
            "(or, on a network you trust, set allow_plaintext = true for this node in gpufit.toml)"
        )
    import tempfile

    print(f"{SAYS}{found}; going on in plaintext, as gpufit.toml allows for this node", file=sys.stderr)
    del connection["curve_publickey"], connection["curve_secretkey"]
    descriptor, plain_file = tempfile.mkstemp(prefix="kernel-", suffix=".json")  # readable by this user alone
    with os.fdopen(descriptor, "w") as file:
        json.dump(connection, file)
    return plain_file


def refuse(message: str) -> None:
    """End, so that whoever started this unit shows `message`."""
    print(f"{SAYS}{message}", file=sys.stderr, flush=True)
    sys.exit(IMAGE_UNUSABLE)


def run(kernel: list[str], notice_file: str) -> None:
    """Become the kernel: what `python3 kernel…` would do, and `%gpufit` is there from the first cell on."""
    sys.argv = kernel[1:]
    if kernel[:2] != ["-m", "ipykernel_launcher"]:
        import runpy

        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module(kernel[1], run_name="__main__", alter_sys=True)
        return
    from ipykernel.kernelapp import IPKernelApp

    app: Any = IPKernelApp.instance()
    silence(app)
    tell_of_crashes()
    app.initialize(kernel[2:])
    # Not through IPython's extension manager: `%load_ext jupyter_gpufit` in a notebook would say it is loaded already.
    from jupyter_gpufit import load_ipython_extension

    load_ipython_extension(app.shell)
    if os.path.exists(notice_file):
        with open(notice_file) as file:
            say_once(app.shell, file.read())
    app.start()


def silence(app: Any) -> None:
    """Keep out of the unit's log what ipykernel tells people who start a kernel by hand: that Ctrl-C will not work, and
    that nothing is encrypted. Whoever started this unit decided that: what stays on one machine is not.
    """

    def is_news(record: Any) -> bool:
        return not str(record.msg).startswith(NO_NEWS)

    def without_a_word(tell: Any = app.log_connection_info) -> None:
        stdout = sys.__stdout__
        with open(os.devnull, "w") as nowhere:
            sys.__stdout__ = nowhere  # type: ignore[misc]  # what it prints to
            try:
                tell()
            finally:
                sys.__stdout__ = stdout  # type: ignore[misc]

    app.log.addFilter(is_news)
    app.log_connection_info = without_a_word


def tell_of_crashes() -> None:
    """Let Python say in the unit's log where it was when a library crashes. What goes to stderr as cells know it is for
    their output, and lost with the kernel."""
    import faulthandler

    faulthandler.enable(os.fdopen(os.dup(2), "w"), all_threads=False)


def say_once(shell: Any, notice: str) -> None:
    """Show `notice` with the first cell: only a cell's output gets into the notebook."""

    def tell(*_: object) -> None:
        shell.events.unregister("pre_run_cell", tell)
        print(notice, file=sys.stderr)

    shell.events.register("pre_run_cell", tell)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Makes Jupyter servers that can be killed at a named step, fast: everything is imported once, then each is a fork.

    orders, one JSON line each ──stdin──→ zygote ──fork──→ servers (jupyter_server's ServerApp with our extension alone)
    {"pid": …, "log": …} for each fork, {"pid": …, "status": …} for each end ←──stdout──

Run as `python -m crash.zygote` by `servers.py`. It has no threads, and opens nothing, before it forks.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from typing import Any

import jupyter_server.services.contents.largefilemanager
import jupyter_server.services.kernels.connection.channels
import jupyter_server.services.sessions.handlers  # noqa: F401
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

import jupyter_gpufit.kernels.provisioner
import jupyter_gpufit.server.extension  # noqa: F401

from . import steps

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fork a server for each line; say who ended."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, _ended)
    say = sys.stdout
    while line := sys.stdin.readline():
        order = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            _be_a_server(order)
        print(json.dumps({"pid": pid, "log": order["log"]}), file=say, flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _ended(*_: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        os.write(1, json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def _be_a_server(order: dict[str, Any]) -> None:
    """In the fork; never returns."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no server outlives the test
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["home"])
        steps.install(order["steps"], order["kill"])
        _serve(order)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(order: dict[str, Any]) -> None:
    config = Config()
    config.ServerApp.jpserver_extensions = {"jupyter_gpufit": True}
    config.ServerApp.reraise_server_extension_failures = True
    config.IdentityProvider.token = order["token"]
    config.GpufitExtension.inventory = order["inventory"]
    config.MappingKernelManager.kernel_info_timeout = 15.0  # s, not a minute, that a page waits for one that just died
    config.LocalScheduler.reap_grace = 0.5  # s; what is left after a crash is removed soon
    app = ServerApp.instance(
        config=config,
        ip="127.0.0.1",
        port=order["port"],
        port_retries=0,
        root_dir=order["home"],
        open_browser=False,
        allow_root=True,
    )
    app.initialize(argv=[], find_extensions=False)
    app.start()


if __name__ == "__main__":
    main()

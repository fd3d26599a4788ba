"""`jupyter gpufit reporter`: what runs on each GPU machine."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..durations import parse_duration
from ..errors import InvalidValue

if TYPE_CHECKING:
    from ..reporting.source import ReportSource

__all__ = ["add_parser", "main"]

_ABOUT = "Report this machine's GPUs over HTTP: GET /v1/report (JSON) and GET /metrics (Prometheus)."
_PORT = 9477


def add_parser(subparsers: Any) -> None:
    """Add the verb to `jupyter gpufit` (an `argparse` subparsers object); sets `func`. Called by `cli/app.py`."""
    _add_arguments(subparsers.add_parser("reporter", help="run on a GPU machine, report its GPUs", description=_ABOUT))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a reporter until it is told to stop. Returns the exit code: 0, or 2 for arguments that cannot be meant."""
    parser = argparse.ArgumentParser(prog="jupyter gpufit reporter", description=_ABOUT)
    _add_arguments(parser)
    return _run(parser.parse_args(argv))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s); others need --token-file")
    add("--port", type=_port, default=_PORT, help="default: %(default)s; 0 takes a free one and says which")
    add("--token-file", type=Path, metavar="FILE", help="holds the token that requests must bear; chmod 600")
    add("--monitor-period", type=_duration, default=5.0, metavar="TIME", help="how often GPUs are read (default: 5s)")
    add("--nvml-timeout", type=_duration, default=10.0, metavar="TIME", help="NVML counts as hung then (default: 10s)")
    add("--models", type=_directory, metavar="DIR", help="the node's model store; what is in it is reported, too")
    add("--simulated", metavar="SPEC", help="report GPUs that do not exist, such as 4xA100-40GB")
    add("--node-name", default=None, metavar="NAME", help="with --simulated: name of the node (default: this host's)")
    add("--json", action="store_true", help="when ready, print one line of JSON with the urls on standard output")
    parser.set_defaults(func=_run)


def _run(options: argparse.Namespace) -> int:
    from ..models import encode
    from ..reporting.agent import run

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)

    def on_ready(urls: Sequence[str]) -> None:
        if options.json:
            print(encode({"urls": list(urls)}).decode(), flush=True)
        else:
            print(f"reporter ready at {' '.join(urls)}", file=sys.stderr, flush=True)

    try:
        run(options.host, options.port, options.token_file, options.monitor_period, _source(options), on_ready)
    except InvalidValue as error:
        print(f"jupyter gpufit reporter: {error.message}", file=sys.stderr)
        return 2
    return 0


def _source(options: argparse.Namespace) -> ReportSource:
    from ..reporting.sampler import Sampler
    from ..reporting.source import LocalSource, SimulatedSource

    if options.simulated is not None:
        return SimulatedSource(options.node_name or socket.gethostname(), options.simulated, models=options.models)
    return LocalSource(Sampler(options.nvml_timeout, 3 * options.nvml_timeout), options.models)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def _directory(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # ~NAME, of somebody who is not known here
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such user here") from None
    if not text.strip():  # such as "$MODELS" that is not set; it would be where the reporter was started
        raise argparse.ArgumentTypeError("it is empty; name the directory")
    return path


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except InvalidValue as error:
        raise argparse.ArgumentTypeError(error.message) from None


if __name__ == "__main__":
    sys.exit(main())

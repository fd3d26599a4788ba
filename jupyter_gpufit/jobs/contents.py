"""What is put into a job's unit beside its folder, and how it is started.

    script    {python} {gpufit}/job.py WORK OUTPUTS         reads job.json beside it, and becomes the program
    notebook  likewise                                      runs it cell by cell (notebook.py)
    command   /bin/sh {gpufit}/job.sh WORK OUTPUTS          needs no Python in the image

The values of a job's variables may be secrets. They go in `files` alone: what is said in a command or in `env` can be
seen from outside.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ..errors import InvalidValue
from ..kernels.bootstrap.contents import held, magic_files
from ..kernels.bootstrap.guard import guard_env, guard_files
from ..models import Allocation, Job, JobKind

__all__ = ["check_parameters", "command", "command_line", "environment", "files"]

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def command(job: Job, outputs: str) -> list[str]:
    """The unit's command. `outputs`: the directory for them there."""
    if job.kind is JobKind.COMMAND:
        return ["/bin/sh", "{gpufit}/job.sh", "{work}", outputs]
    return ["{python}", "{gpufit}/job.py", "{work}", outputs]


def files(allocation: Allocation, job: Job, run: str, where: str) -> dict[str, bytes]:
    """Path relative to the unit's gpufit directory → content. `run`: script or notebook, relative to where the job
    works; `where`: what a person calls the place that has to have what it needs (`image x`)."""
    processes = len(allocation.gpus) or allocation.request.gpus
    variables = {**environment(allocation, job), **guard_env(allocation)}
    if job.launcher is not None and allocation.request.cpus is not None:  # each gets its share of the cores
        variables["OMP_NUM_THREADS"] = str(max(1, int(allocation.request.cpus / processes)))
    variables |= job.env
    if job.kind is JobKind.COMMAND:
        return {"job.sh": _shell_script(command_line(job), variables), **guard_files()}
    told = {
        "kind": job.kind.value,
        "run": run,
        "args": [*job.args, *(f"--{name}={value}" for name, value in _point(job).items())],
        "env": variables,
        "parameters": job.sweep,
        "launcher": job.launcher,
        "processes": processes,
        "where": where,
    }
    magics = magic_files() if job.kind is JobKind.NOTEBOOK else {}
    return {**_sources(), **guard_files(), **magics, "job.json": json.dumps(told).encode()}


def environment(allocation: Allocation, job: Job) -> Mapping[str, str]:
    """What the program can read of its allocation."""
    return {
        **held(allocation),
        "GPUFIT_JOB": "1",
        "GPUFIT_ATTEMPT": str(max(allocation.attempt, 1)),
        "GPUFIT_SWEEP": json.dumps(job.sweep),
        "PYTHONUNBUFFERED": "1",  # so that what it prints is in the log when it prints it
    }


def command_line(job: Job) -> str:
    """The line for the shell: a sweep's values in their places, then the arguments."""
    line = _PLACE.sub(lambda match: shlex.quote(job.sweep[match[1]]) if match[1] in job.sweep else match[0], job.run)
    return " ".join((line, *map(shlex.quote, job.args)))


def check_parameters(job: Job) -> None:
    """Raises `InvalidValue` for a command without a place for a parameter of its sweep."""
    if job.kind is not JobKind.COMMAND:
        return
    places = _PLACE.findall(job.run)
    for name in job.sweep:
        if name not in places:
            near = difflib.get_close_matches(name, places, n=1) or [place for place in places if place not in job.sweep]
            hint = f" (it has {{{near[0]}}})" if near else ""
            raise InvalidValue(
                f"the command {_short(job.run)!r} has no {{{name}}}{hint}; write {{{name}}} where the values of the "
                "sweep shall go"
            )


def _point(job: Job) -> Mapping[str, str]:
    return job.sweep if job.kind is JobKind.SCRIPT else {}


def _short(line: str) -> str:
    return line if len(line) <= 60 else line[:59] + "…"


def _shell_script(line: str, variables: Mapping[str, str]) -> bytes:
    """Runs `line` in a shell, and hands a SIGTERM on to all that it started. A shell alone would die of it, and leave
    the training that it waits for no time to save; one with a trap waits first, and then does not go on."""
    line = f"trap 'exit 143' TERM\n{line}"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return f"""#!/bin/sh
rm -f -- "$0"
cd -- "$1" || exit 126
{exports}GPUFIT_OUTPUTS=$2
export GPUFIT_OUTPUTS
. "${{0%/*}}/guard/guard.sh"
/bin/sh -c {shlex.quote(line)} &
child=$!
stopped=
trap 'stopped=1; trap "" TERM; kill -TERM 0' TERM
wait "$child"
code=$?
if [ -n "$stopped" ]; then
    wait "$child"
    again=$?
    [ "$again" = 127 ] || code=$again
fi
exit "$code"
""".encode("utf-8", "surrogateescape")


@cache
def _sources() -> dict[str, bytes]:
    here = Path(__file__).parent / "bootstrap"
    return {name: (here / name).read_bytes() for name in ("job.py", "notebook.py")}

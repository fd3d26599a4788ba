"""The first thing that runs in the unit of a job that is a script or a notebook.

    python job.py WORK OUTPUTS          what to run, and with what, is in job.json beside it

Becomes the program, so that signals reach that, and its exit code is the unit's. Depends on nothing but Python 3.8 or
later. Its exit code for "this image cannot be used" is known to whoever started it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from typing import Any

IMAGE_UNUSABLE = 90
SAYS = "gpufit: "


def main(work: str, outputs: str) -> None:
    """Does not return, but for a notebook, when that has ended."""
    here = os.path.dirname(os.path.abspath(__file__))
    job = read(os.path.join(here, "job.json"))
    try:
        os.chdir(work)
    except OSError as error:
        refuse(f"the directory {work} of the job cannot be used: {error.strerror}")
    os.environ.update(job["env"])
    os.environ["GPUFIT_OUTPUTS"] = outputs
    keep_to_memory(os.path.join(here, "guard"))
    if not os.path.exists(job["run"]):
        refuse(f"there is no {job['run']} in {os.getcwd()}")
    if job["kind"] == "notebook":
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
        run_notebook(os.path.join(here, "notebook.py"), job, outputs)
    else:
        script = job["run"] if not job["run"].startswith("-") else os.path.join(".", job["run"])
        become([*starter(job), script, *job["args"]])


def read(path: str) -> dict[str, Any]:
    """What to do. It holds secrets, and nobody needs it any more then."""
    with open(path) as file:
        job: dict[str, Any] = json.load(file)
    os.unlink(path)
    return job


def keep_to_memory(guard: str) -> None:
    """Have frameworks keep to the memory that was asked for (memory_guard.py)."""
    sys.path.append(guard)
    import gpufit_memory_guard  # type: ignore[import-not-found]

    gpufit_memory_guard.hand_on(os.environ)
    sys.path.remove(guard)


def starter(job: dict[str, Any]) -> list[str]:
    """What runs a script."""
    if job["launcher"] is None:
        return [sys.executable, "-u"]
    options = ["--standalone", "--nproc-per-node", str(job["processes"])]
    beside = os.path.join(os.path.dirname(sys.executable), "torchrun")
    found = beside if os.access(beside, os.X_OK) else shutil.which("torchrun")
    if found is not None:
        return [found, *options]
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.call([sys.executable, "-c", look]) == 0:  # another one: it has the job's PYTHONPATH
        return [sys.executable, "-m", "torch.distributed.run", *options]
    refuse(f"{job['where']} has no torchrun for {sys.executable}; use one with PyTorch, or leave --launcher out")
    raise AssertionError


def become(command: list[str]) -> None:
    sys.stdout.flush()
    try:
        os.execv(command[0], command)
    except OSError as error:
        refuse(f"{command[0]} cannot be run: {error.strerror}")


def run_notebook(file: str, job: dict[str, Any], outputs: str) -> None:
    remote = os.path.join(os.path.dirname(file), "remote")  # its `%gpufit`; at the end: an installed one is meant first
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), remote)))
    os.environ["GPUFIT_ATTACHED"] = "1"  # how that one knows
    spec = importlib.util.spec_from_file_location("gpufit_notebook", file)
    assert spec is not None
    assert spec.loader is not None
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    sys.exit(notebook.main(job["run"], job["parameters"], outputs, job["where"], refuse))


def refuse(message: str) -> None:
    """End, so that whoever started this unit shows `message`."""
    sys.stdout.write(f"{SAYS}{message}\n")
    sys.stdout.flush()
    sys.exit(IMAGE_UNUSABLE)


if __name__ == "__main__":
    main(*sys.argv[1:3])

"""Whether what a job shall run is there, before anything is made for it."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path, PurePosixPath

from ..errors import InvalidValue
from ..models import Job, JobKind, Request
from .contents import check_parameters

__all__ = ["check_job", "file_of"]

_LARGEST = 256 * 2**20  # bytes of a notebook
_SHOWN = 8


def check_job(request: Request) -> None:
    """Raises `InvalidValue` if its script, notebook or folder is not there, or cannot be meant. Blocks."""
    job = request.job
    assert job is not None
    check_parameters(job)
    if request.folder is not None and not os.path.isdir(request.folder):
        is_file = os.path.exists(request.folder)
        raise InvalidValue(
            f"{request.folder} is no folder" if is_file else f"there is no folder {request.folder} on this machine"
        )
    if job.kind is JobKind.COMMAND:
        if request.folder is not None and " " in job.run and os.path.isfile(os.path.join(request.folder, job.run)):
            raise InvalidValue(
                f"{job.run} is a file, and would be taken for a command; write it in quotes: {job.run!r}"
            )
    else:
        file = Path(request.folder or "") / file_of(request)
        if job.kind is JobKind.NOTEBOOK:
            _check_notebook(job, file)


def file_of(request: Request) -> PurePosixPath:
    """The script or notebook, relative to the folder. Raises `InvalidValue` if it is not in it."""
    job = request.job
    assert job is not None
    if request.folder is None:
        raise InvalidValue(f"{job.file} is to be found in a folder; say which (folder)")
    folder = Path(request.folder)
    path = Path(os.path.normpath(folder / os.path.expanduser(job.file)))
    base = folder.resolve()
    if not os.path.lexists(path):
        raise InvalidValue(f"there is no {job.file} in {folder}{_instead(folder, job)}")
    real = Path(os.path.realpath(path))
    if path.is_relative_to(folder) and real.is_relative_to(base):
        name = path.relative_to(folder)
    elif real.is_relative_to(base):
        name = real.relative_to(base)
    else:
        where = "" if path.is_relative_to(folder) else f", but {path}"
        raise InvalidValue(f"{job.file} is not in {folder}{where or f', but a link to {real}'}; copy it there")
    if not real.is_file():
        raise InvalidValue(f"{job.file} in {folder} is {'a directory' if real.is_dir() else 'no file'}")
    if not os.access(real, os.R_OK):
        raise InvalidValue(f"{job.file} in {folder} cannot be read; make it readable for the server")
    return PurePosixPath(name.as_posix())


def _instead(folder: Path, job: Job) -> str:
    """What there is of that kind."""
    ending = os.path.splitext(job.file)[1]
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(ending) and (folder / name).is_file())
    except OSError:
        return ""
    if near := difflib.get_close_matches(job.file, names, n=1):
        return f"; did you mean {near[0]}?"
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return f"; there is: {shown}" if names else f"; there is no {ending} file in it"


def _check_notebook(job: Job, file: Path) -> None:
    try:
        if file.stat().st_size > _LARGEST:
            raise InvalidValue(f"{job.file} is too large for a notebook; clear its outputs")
        notebook = json.loads(file.read_bytes())
    except OSError as error:
        raise InvalidValue(f"{job.file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InvalidValue(f"{job.file} is no notebook: it is not JSON; save it again in Jupyter") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        old = isinstance(notebook, dict) and "worksheets" in notebook
        why = "it has the form of before 2015" if old else "it has no cells"
        raise InvalidValue(f"{job.file} is no notebook: {why}; save it again in Jupyter")
    metadata = notebook.get("metadata")
    spec = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    language = spec.get("language") if isinstance(spec, dict) else None
    if job.sweep and language not in (None, "", "python"):
        raise InvalidValue(f"{job.file} is a notebook in {language}; a sweep can only set variables of Python")

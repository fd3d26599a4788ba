"""Room for archives that are on their way: beside the store, where there is room for large files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ..errors import StoreError

__all__ = ["clean", "scratch", "writing"]

_PREFIX = "moving-"


@contextlib.asynccontextmanager
async def scratch(where: Path) -> AsyncIterator[Path]:
    """A directory in `where` (made if missing), removed with all that is in it. Raises `StoreError`."""
    with writing(where):
        os.makedirs(where, mode=0o700, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=where, ignore_cleanup_errors=True)
    try:
        yield Path(made.name)
    finally:
        await asyncio.to_thread(made.cleanup)  # of many GiB, that takes a while


@contextlib.contextmanager
def writing(where: Path) -> Iterator[None]:
    """Says what is wrong with writing in `where` as `StoreError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(f"there is no room in {where} for the files of jobs; free some there") from None
        raise StoreError(f"the files of jobs cannot be kept in {where}: {error.strerror or error}") from None


def clean(where: Path) -> None:
    """Remove what processes that died have left there."""
    for left in where.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)

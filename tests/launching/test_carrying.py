"""What is fetched, on its way to the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpufit.errors import StoreError
from jupyter_gpufit.launching.carrying import Carrier


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux's")
@pytest.mark.parametrize("size", [10, 1_000_000], ids=["found when it is closed", "found when it is written"])
def test_a_full_disk_is_said_so_that_it_is_tried_again(tmp_path, size):
    archive = tmp_path / "outputs.tar"
    archive.symlink_to("/dev/full")
    carrier = Carrier(lambda current, total: None)
    full = r"cannot write .*outputs\.tar on this machine: No space left on device"
    with pytest.raises(StoreError, match=full), carrier.writing(archive, "/outputs", 2**30) as write:
        write(bytes(size))
    assert not archive.is_symlink()

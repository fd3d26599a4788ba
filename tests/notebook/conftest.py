"""A local kernel with the magics, over real remote kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.notebooks import LOAD, LocalKernel


@pytest.fixture(scope="module")
def kernel() -> Iterator[LocalKernel]:
    local = LocalKernel()
    try:
        assert local.run(LOAD).ok
        yield local
    finally:
        local.close()

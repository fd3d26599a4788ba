"""What people call a GPU's model: `A100-80GB`, where NVML says `NVIDIA A100-SXM4-80GB` or `NVIDIA A100 80GB PCIe`.

The same as `shortened` in labextension/src/cluster/rows.ts, so that what is read there can be written in a request.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["short_model"]

_MAKER = re.compile(r"^(NVIDIA|Tesla)\s+", re.IGNORECASE)
_LINE = re.compile(r"^GeForce\s+", re.IGNORECASE)
_FORM = re.compile(r"[\s-]*(SXM\d*|HBM\d\w*|PCIE)\b", re.IGNORECASE)
_SIZE = re.compile(r"[\s-]+(\d+)\s?GB\b")


@lru_cache(maxsize=512)  # there are a handful of models, and thousands of GPUs to look at
def short_model(model: str) -> str:
    """The name without maker and form factor, and without what NVML adds for a MIG instance; as it is if nothing is
    left then."""
    whole = model.split(" MIG ")[0]
    name = _LINE.sub("", _MAKER.sub("", whole))
    return _SIZE.sub(r"-\1GB", _FORM.sub("", name), count=1).strip() or whole

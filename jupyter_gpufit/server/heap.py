"""Keeps the garbage collector's pauses short on a large cluster.

What comes and goes with the reports of a thousand nodes makes Python look through *all* objects every few seconds. Most
of those are a Jupyter server's modules, there for good, and looking at them again took 0.2 s each time (with
`gc.freeze`: 0.02 s), in which the server does nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

__all__ = ["LARGE", "settle"]

LARGE = 200  # nodes; what fewer report is so little that the collector seldom looks at everything


def settle(nodes: int) -> Callable[[], None]:
    """Have the collector leave alone what is there now, if there are many nodes. The returned function takes that back.

    The price: what of it is thrown away later, and refers to itself, is kept until then. That is little, and never more
    than there was; what comes later is collected as ever. Called by the extension, once its service is open.
    """
    if nodes < LARGE:
        return lambda: None
    gc.collect()  # so that only what is in use is left alone
    gc.freeze()
    return gc.unfreeze

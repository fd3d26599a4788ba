"""GPUs for notebooks: ask for N GPUs with M memory each, and the next cell runs on them.

Importing this loads neither NVML nor docker, pandas or a widget library; names are loaded when first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .models import Allocation, Gpu, Node, Placement, Report, Request
    from .scheduling.fit import Decision, select

__version__ = "0.1.0"

__all__ = ["Allocation", "Decision", "Gpu", "Node", "Placement", "Report", "Request", "__version__", "select"]

_HOMES = {
    "Allocation": ".models",
    "Gpu": ".models",
    "Node": ".models",
    "Placement": ".models",
    "Report": ".models",
    "Request": ".models",
    "Decision": ".scheduling.fit",
    "select": ".scheduling.fit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext jupyter_gpufit`: register the magics. Called by IPython."""
    if "GPUFIT_ATTACHED" in os.environ:  # this kernel itself runs on GPUs that were granted to it
        from .kernels.bootstrap import attached

        attached.load_ipython_extension(shell)
        return
    from .notebook.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """`%unload_ext jupyter_gpufit`. Called by IPython."""
    if "GPUFIT_ATTACHED" in os.environ:
        from .kernels.bootstrap import attached

        attached.unload_ipython_extension(shell)
        return
    from .notebook.magics import unload

    unload(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Called by jupyter_server to find the extension."""
    from .server.extension import GpufitExtension

    return [{"module": "jupyter_gpufit", "app": GpufitExtension}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Called by `jupyter labextension develop` to find what was built of labextension/."""
    return [{"src": "labextension", "dest": "jupyter-gpufit"}]

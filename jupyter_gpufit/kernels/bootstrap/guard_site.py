"""Put into a unit as `guard/sitecustomize.py`, which every Python there imports when it starts: installs the memory
guard, and then is the image's own `sitecustomize`, if it has one."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))

try:
    import gpufit_memory_guard  # type: ignore[import-not-found]

    gpufit_memory_guard.install()
except Exception:  # noqa: S110  (such as a Python that is too old for it)
    pass

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]

try:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
except ImportError:
    pass
else:
    _spec = PathFinder.find_spec("sitecustomize")
    if _spec is not None and _spec.loader is not None:
        sys.modules["sitecustomize"] = _theirs = module_from_spec(_spec)
        _spec.loader.exec_module(_theirs)  # what it raises is told as ever

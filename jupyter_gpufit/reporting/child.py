"""The process that NVML runs in: `python -m jupyter_gpufit.reporting.child PARENT`, started by `sampler.py` alone.

NVML can hang, or crash whoever called it, so it gets a process of its own. A line on standard input asks for a reading
(`read`, or `reopen` to have NVML look for GPUs anew), a line of JSON on standard output is it. The process ends when
its parent does, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

from .reading import encode_reading

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def main(parent: int) -> int:
    """Answer until standard input ends. Returns the exit code; 3 if the parent was gone before we were tied to it."""
    if sys.platform == "linux":  # elsewhere there is no NVML, and the answer will be that
        _die_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a driver that crashes us every minute would fill the disk
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what NVML prints by itself goes to the log, not between the answers

    from .nvml import NvmlReader

    reader = NvmlReader()
    for question in sys.stdin.buffer:
        if question == b"reopen\n":
            reader.close()
        answers.write(encode_reading(reader.read()) + b"\n")
        answers.flush()
        if reader.outdated():
            os.dup2(answers.fileno(), 1)
            os.execv(sys.executable, sys.orig_argv)  # the same process to its parent, with the library as it is now
    reader.close()
    return 0


def _die_with(parent: int) -> None:
    """SIGKILL when the parent ends: that also ends us while NVML hangs, when we would not see standard input end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the call above
        sys.exit(3)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

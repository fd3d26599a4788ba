"""What the doctor runs in a unit: says what a kernel would find there, then lets itself be reached as a kernel would.

    python look.py WORD IP PORT PORT …    listens there, and answers everybody with WORD; for a minute, not longer
    python look.py WORD -- FILE …         becomes `python FILE …`

It says so in one line: `SAYS`, and a JSON object. Depends on nothing but Python (3.8 or later).
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import socket
import sys
import time
from typing import Any

SAYS = "gpufit-look: "
LISTENS_FOR = 60.0  # s; should nobody be left who ends it


def main(arguments: list[str]) -> None:
    """`arguments`: as above."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    word, rest = arguments[0], arguments[1:]
    found = {"python": sys.version.split()[0], "ipykernel": ipykernel(), "devices": devices(), "gpus": gpus()}
    line = SAYS + json.dumps(found)
    if rest[0] == "--":
        print(line, flush=True)
        os.execv(sys.executable, [sys.executable, *rest[1:]])
    doors = [listen(rest[0], int(port)) for port in rest[1:]]
    print(line, flush=True)
    answer(doors, word, time.monotonic() + LISTENS_FOR)


def ipykernel() -> str | None:
    """Its version; `None`: there is none."""
    try:
        from ipykernel._version import __version__
    except ImportError:
        return None
    return str(__version__)


def devices() -> list[str]:
    """NVIDIA's GPUs among the device files."""
    try:
        return sorted(name for name in os.listdir("/dev") if re.match(r"nvidia\d+$", name))
    except OSError:
        return []


def gpus() -> list[str] | None:
    """Uuids of the GPUs that the driver's library sees; `None`: there is no such library here, or it does not work."""
    try:
        nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        found = []
        for index in range(count.value):
            handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            if nvml.nvmlDeviceGetUUID(handle, text, len(text)) == 0:
                found.append(text.value.decode("ascii", "replace"))
        return found
    except (OSError, AttributeError):
        return None


def listen(address: str, port: int) -> socket.socket:
    """A listening socket."""
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind((address, port))
    door.listen(8)
    return door


def answer(doors: list[socket.socket], word: str, until: float) -> None:
    """Say `word` to whoever comes."""
    while (left := until - time.monotonic()) > 0:
        for door in select.select(doors, [], [], left)[0]:
            visitor, _ = door.accept()
            try:
                visitor.sendall(word.encode() + b"\n")
            except OSError:
                pass
            finally:
                visitor.close()


if __name__ == "__main__":
    main(sys.argv[1:])

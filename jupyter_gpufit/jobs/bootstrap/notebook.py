"""Runs a notebook from top to bottom, in a kernel of its own: what the cells show goes to standard output as it comes,
and a copy with all outputs is saved after each cell.

Loaded by `job.py`. Needs nbclient, nbformat and ipykernel of the image; nothing but the standard library until then.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SIGTERM_CODE = 128 + signal.SIGTERM
_FIRST = """
try:
    __import__("jupyter_gpufit").load_ipython_extension(get_ipython())
except Exception:
    pass
"""
_PYTHON = [
    "--IPKernelApp.log_level=ERROR",  # no advice to those who start a kernel by hand
    f"--IPKernelApp.exec_lines={_FIRST}",  # `%gpufit` is there, as in a kernel on GPUs
]
_STARTS_WITHIN = 300  # s; a cold image on a slow disk imports for a minute


def main(path: str, parameters: dict[str, str], outputs: str, where: str, refuse: Callable[[str], None]) -> int:
    """The exit code: 1 if a cell failed."""
    try:
        import nbclient  # noqa: F401
        import nbformat
    except ImportError as error:
        refuse(lacks(error, where))
    try:
        import ipykernel  # noqa: F401
    except ImportError as error:
        if is_python(read(path, nbformat)):
            refuse(lacks(error, where))
    notebook = read(path, nbformat)
    insert(notebook, parameters, nbformat)
    copy = os.path.join(outputs, os.path.basename(path))
    os.makedirs(outputs, exist_ok=True)
    return asyncio.run(run(notebook, copy, os.path.dirname(os.path.abspath(path)), where, refuse))


def lacks(error: ImportError, where: str) -> str:
    return (
        f"{where} cannot run notebooks: {sys.executable} has no {error.name}; "
        "add what is needed with: python3 -m pip install nbclient nbformat ipykernel"
    )


def read(path: str, nbformat: Any) -> Any:
    return nbformat.read(path, as_version=4)


def is_python(notebook: Any) -> bool:
    """Whether its cells are in Python, as far as it says."""
    metadata = notebook.metadata
    said = metadata.get("kernelspec", {}).get("language") or metadata.get("language_info", {}).get("name") or "python"
    return bool(said == "python")


def insert(notebook: Any, parameters: dict[str, str], nbformat: Any) -> None:
    """Put a cell that sets them behind the one tagged `parameters`; without one, before all."""
    if not parameters:
        return
    lines = ["# Parameters of this run"] + [f"{name} = {literal(value)}" for name, value in parameters.items()]
    cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]})
    if notebook.nbformat_minor < 5:
        cell.pop("id", None)  # before that, cells have none
    tagged = [i for i, each in enumerate(notebook.cells) if "parameters" in each.metadata.get("tags", [])]
    notebook.cells.insert(tagged[0] + 1 if tagged else 0, cell)


def literal(value: str) -> str:
    """`value` as Python: a number, a list, `True`, … where it is one, else text."""
    try:
        return repr(ast.literal_eval(value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return repr(value)


def kernel_name(notebook: Any, where: str, refuse: Callable[[str], None]) -> str:
    """For Python always the kernel of this Python: the name that a notebook has is one of the machine it is from."""
    if is_python(notebook):
        return "python3"
    from jupyter_client.kernelspec import KernelSpecManager

    wanted = str(notebook.metadata.get("kernelspec", {}).get("name", ""))
    there = KernelSpecManager().find_kernel_specs()
    if wanted not in there:
        refuse(f"{where} has no kernel {wanted!r} for this notebook; there are: {', '.join(sorted(there)) or 'none'}")
    return wanted


async def run(notebook: Any, copy: str, folder: str, where: str, refuse: Callable[[str], None]) -> int:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    def save() -> None:
        partial = copy + ".partial"
        write: Any = nbformat.write
        write(notebook, partial)
        os.replace(partial, copy)

    class Client(NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            show(msg)
            return super().process_message(msg, cell, cell_index)

    client = Client(
        notebook,
        kernel_name=kernel_name(notebook, where, refuse),
        timeout=None,
        startup_timeout=_STARTS_WITHIN,
        resources={"metadata": {"path": folder}},
        allow_errors=False,
        extra_arguments=_PYTHON if is_python(notebook) else [],
    )
    client.reset_execution_trackers()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    save()
    async with client.async_setup_kernel():

        def end() -> None:
            """SIGTERM: what there is is saved, at once; the kernel dies with this unit."""
            say("\ngpufit: told to stop; the notebook as it is by now is saved\n")
            with contextlib.suppress(Exception):
                save()
            kill(client.km)
            os._exit(_SIGTERM_CODE)

        with contextlib.suppress(NotImplementedError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)  # in the place of nbclient's
        try:
            client.set_widgets_metadata()
            for index, cell in enumerate(notebook.cells):
                try:
                    await client.async_execute_cell(cell, index, execution_count=client.code_cells_executed + 1)
                finally:
                    with contextlib.suppress(Exception):
                        client.set_widgets_metadata()
                    save()
        except CellExecutionError:
            return 1  # its traceback has been shown
        except DeadKernelError:
            say("\ngpufit: the notebook's kernel died\n")
            return 1
    return 0


def kill(manager: Any) -> None:
    """The kernel's process, if it can be told: it leads a group of its own."""
    pid = getattr(getattr(manager, "provisioner", None), "pid", None)
    if isinstance(pid, int) and pid > 0:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def show(message: Any) -> None:
    """Print what a cell shows."""
    content = message["content"]
    if message["msg_type"] == "stream":
        say(content["text"])
    elif message["msg_type"] in ("execute_result", "display_data"):
        text = content["data"].get("text/plain")
        if text:
            say(("".join(text) if isinstance(text, list) else text) + "\n")
    elif message["msg_type"] == "error":
        lines = content["traceback"] or ["{}: {}".format(content["ename"], content["evalue"])]
        say(_COLOURS.sub("", "\n".join(lines)) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

"""Run the example notebooks on the demo's cluster, and store what they give.

    python notebooks/execute.py [FILE …]       default: all of this directory

Needs no GPU, no Docker and no Jupyter server (`nbclient` runs them; `%gpufit` then has a scheduler of its own).
tests/notebooks/ runs them in the same way.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from jupyter_gpufit.cli.demo import furnish

HERE = Path(__file__).parent
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LONGEST_CELL = 120  # s
HOME = "/home/ada"
"""In what is stored, in the place of a temporary directory."""


def execute(path: Path, directory: Path) -> Any:
    """The notebook as it is after all its cells ran. Its cluster's files, and Jupyter's own, are in `directory`; those
    that it writes itself in `directory/work`.

    Raises `nbclient.exceptions.CellExecutionError`.
    """
    notebook = nbformat.read(path, as_version=4)
    inventory = furnish(directory)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GPUFIT_", "JUPYTERHUB_"))},
        "GPUFIT_INVENTORY": str(inventory),
        "GPUFIT_CLAIMS_DIR": str(directory / "claims"),
        "JUPYTER_DATA_DIR": str(directory / "data"),
        "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        "IPYTHONDIR": str(directory / "ipython"),
    }
    work = directory / "work"
    work.mkdir()
    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(work)}},
    )
    client.execute(env=environment)
    return notebook


def main(arguments: list[str]) -> None:
    """`arguments`: files."""
    for path in map(Path, arguments) if arguments else sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory(prefix="gpufit-notebook-", ignore_cleanup_errors=True) as directory:
            notebook = execute(path, Path(directory))
        notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
        path.write_text(nbformat.writes(notebook).replace(directory, HOME) + "\n", "utf-8")
        print(f"{path.name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")


if __name__ == "__main__":
    main(sys.argv[1:])

"""How variables travel: in what pieces, and as what."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpufit.notebook import transfer
from jupyter_gpufit.notebook.transfer import pack, pull, push


class There:
    """A kernel, in this process."""

    def __init__(self) -> None:
        self.shell = InteractiveShell()
        self.longest_code = 0
        self.expressions = 0

    def evaluate(self, code: str, expressions: dict[str, str]) -> dict[str, str]:
        self.longest_code = max(self.longest_code, len(code))
        self.expressions += len(expressions)
        self.shell.run_cell(code, silent=True).raise_error()
        return {
            name: repr(eval(text, {"get_ipython": lambda: self.shell}, self.shell.user_ns))
            for name, text in expressions.items()
        }


@pytest.mark.parametrize("size", [0, 990, 999, 12_345])
def test_what_is_large_does_not_travel_as_code(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PIECE", 999)
    value = bytes(number % 256 for number in range(size))
    here = {"value": value}
    there = There()
    push(there, pack(["value"], here), here)
    assert there.shell.user_ns["value"] == value
    # A kernel reads through all of a cell's code several times over; an expression it just evaluates.
    assert there.longest_code < 999
    assert there.expressions == len(pack(["value"], here)["value"]) // 999 + 1
    here.clear()
    pull(there, ["value"], here)
    assert here["value"] == value

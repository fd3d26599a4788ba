"""Copy variables to and from an allocation's kernel: pickled, base64, in pieces that any transport lets through.

What cannot travel is named, with its type and the reason. Unpickling runs the sender's code: both are one person's.
"""

from __future__ import annotations

import ast
import base64
import io
import pickle
import re
from collections.abc import Iterable, Mapping, MutableMapping
from types import FunctionType
from typing import Any, Protocol

from ..errors import GpufitError
from ..memory import format_memory
from .cells import RemoteError

__all__ = ["CannotTravel", "Evaluator", "pack", "pull", "push"]

_PIECE = 3 * 2**20  # bytes before base64; a Jupyter server takes messages of up to 10 MiB
LARGEST = 2**30
"""Bytes of one variable. More belongs into a file that both can read."""

_THERE = "the allocation's kernel"
_PROTOCOL = 4  # what every Python 3 reads


class CannotTravel(GpufitError):
    """A variable cannot be copied to or from the allocation."""

    code = "cannot-travel"

    def _render_traceback_(self) -> list[str]:
        return [f"CannotTravel: {self.message}"]


class Evaluator(Protocol):
    """What runs hidden code there: `forward.Link`."""

    def evaluate(self, code: str, expressions: dict[str, str]) -> dict[str, str]:
        """See `cells.evaluate`."""


# What runs there keeps its parcel on the shell object, out of the person's namespace.
_PUSH = """
exec('''
import base64, pickle
parcel = shell.__dict__.pop("_gpufit_parcel")
shell.user_ns[name] = pickle.loads(base64.b64decode("".join(parcel)))
''', {"shell": get_ipython(), "name": %r})
"""
_PULL = """
exec('''
import base64, pickle
if name not in shell.user_ns:
    answer = ("missing", "", 0)
else:
    value = shell.user_ns[name]
    kind = type(value).__module__ + "." + type(value).__qualname__
    try:
        parcel = pickle.dumps(value, protocol)
    except Exception as problem:
        answer = ("error", kind, str(problem) or type(problem).__name__)
    else:
        answer = ("ok", kind, len(parcel))
        if len(parcel) <= largest:
            shell._gpufit_parcel = parcel
shell._gpufit_answer = answer
''', {"shell": get_ipython(), "name": %r, "protocol": %d, "largest": %d})
"""
_PIECE_OF = "__import__('base64').b64encode(get_ipython()._gpufit_parcel[%d:%d]).decode()"


def pack(names: Iterable[str], namespace: MutableMapping[str, Any], *, fresh: bool = False) -> dict[str, bytes]:
    """Variables of `namespace` as `push` takes them. Raises `CannotTravel`.

    `fresh`: they are for a kernel that does not run yet, so that it has run no cell either.
    """
    return {name: _pack(name, namespace, fresh) for name in names}


def push(there: Evaluator, parcels: Mapping[str, bytes], namespace: MutableMapping[str, Any]) -> None:
    """Copy variables of `namespace`, packed, there. Raises `CannotTravel`, or what `there.evaluate` raises."""
    for name, parcel in parcels.items():
        there.evaluate("get_ipython()._gpufit_parcel = []", {})
        for start in range(0, len(parcel), _PIECE):
            piece = base64.b64encode(parcel[start : start + _PIECE]).decode()
            # As an expression: code is transformed, tokenized and hashed there, which takes seconds for so much of it.
            there.evaluate("", {"append": f"get_ipython()._gpufit_parcel.append({piece!r})"})
        try:
            there.evaluate(_PUSH % name, {})
        except RemoteError as problem:
            kind, reason = (
                _type_of(namespace[name]),
                _unpickling(type(problem).__name__, str(problem), _THERE),
            )
            raise CannotTravel(f"{name!r} ({kind}) cannot be made there: {reason}") from None


def pull(there: Evaluator, names: Iterable[str], namespace: MutableMapping[str, Any]) -> None:
    """Copy variables from there into `namespace`. Raises `CannotTravel`, or what `there.evaluate` raises."""
    for name in names:
        answer = there.evaluate(_PULL % (name, _PROTOCOL, LARGEST), {"answer": "get_ipython()._gpufit_answer"})[
            "answer"
        ]
        state, kind, told = ast.literal_eval(answer)
        kind = _short(kind)
        if state == "missing":
            raise CannotTravel(f"there is no variable {name!r} in the allocation's kernel; see what the cell calls it")
        if state == "error":
            raise CannotTravel(f"{name!r} ({kind}) cannot be pickled there: {told}")
        if told > LARGEST:
            raise _too_large(name, kind, told)
        pieces = [
            there.evaluate("", {"piece": _PIECE_OF % (start, start + _PIECE)})["piece"]
            for start in range(0, told, _PIECE)
        ]
        there.evaluate("get_ipython().__dict__.pop('_gpufit_parcel', None)", {})
        parcel = b"".join(base64.b64decode(ast.literal_eval(piece)) for piece in pieces)
        try:
            namespace[name] = pickle.loads(parcel)
        except Exception as problem:  # whatever the unpickled type's own code raises
            reason = _unpickling(type(problem).__name__, str(problem), "this kernel")
            raise CannotTravel(f"{name!r} ({kind}) cannot be made here: {reason}") from None


class _Homeless(Exception):
    """Its argument is defined in a cell."""


class _FreshPickler(pickle.Pickler):
    """Refuses what a kernel would have to have run a cell for: functions and classes are pickled by name."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise _Homeless(value.__qualname__)
        return NotImplemented


def _pickle(value: Any, fresh: bool) -> bytes:
    if not fresh:
        return pickle.dumps(value, _PROTOCOL)
    buffer = io.BytesIO()
    _FreshPickler(buffer, _PROTOCOL).dump(value)
    return buffer.getvalue()


def _pack(name: str, namespace: MutableMapping[str, Any], fresh: bool) -> bytes:
    if name not in namespace:
        raise CannotTravel(f"there is no variable {name!r} in this kernel to push")
    value = namespace[name]
    try:
        parcel = _pickle(value, fresh)
    except _Homeless as homeless:
        raise CannotTravel(
            f"{name!r} ({_type_of(value)}) cannot be made there: {str(homeless)!r} is defined in a cell, and a new "
            "allocation's kernel has run none; define it in the cell that runs there instead"
        ) from None
    except Exception as problem:  # whatever the type's own code raises
        if isinstance(value, FunctionType) and value.__module__ == "__main__":  # a lambda, or made by another function
            raise CannotTravel(f"{name!r} ({_type_of(value)}) cannot be made there: {_not_run(name, _THERE)}") from None
        raise CannotTravel(
            f"{name!r} ({_type_of(value)}) cannot be pickled: {problem or type(problem).__name__}"
        ) from None
    if len(parcel) > LARGEST:
        raise _too_large(name, _type_of(value), len(parcel))
    return parcel


def _too_large(name: str, kind: str, size: int) -> CannotTravel:
    return CannotTravel(
        f"{name!r} ({kind}) is {format_memory(size)} when pickled, and {format_memory(LARGEST)} is the most that is "
        "copied; write it to a file that both kernels can read"
    )


def _unpickling(error: str, text: str, where: str) -> str:
    """Why a pickle cannot be read, as something to do."""
    if error == "ModuleNotFoundError" and (match := re.search(r"No module named '([^']+)'", text)):
        return f"{where} has no module {match[1]!r}; install it there"
    if error == "AttributeError" and (match := re.search(r"get attribute '([^']+)' on <module '__main__'", text)):
        return _not_run(match[1], where)
    if "CUDA" in text:
        return f"{text.splitlines()[0]}; move it to the CPU first (x.cpu())"
    return f"{error}: {text}"


def _not_run(what: str, where: str) -> str:
    return f"{what!r} is defined in a cell, and {where} did not run that cell; run it there, too"


def _type_of(value: object) -> str:
    return _short(f"{type(value).__module__}.{type(value).__qualname__}")


def _short(kind: str) -> str:
    return kind.removeprefix("builtins.").removeprefix("__main__.")

"""`jupyter gpufit doctor`: what is right and wrong with each node, and what mends it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import textwrap
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

import msgspec

from .. import inventory as inventories
from ..cluster.poller import load
from ..diagnosis import Check, Diagnosis, Verdict
from ..errors import InvalidValue, InventoryError, Unavailable
from ..inventory import NodeSpec
from ..kernels.doctor import examine
from ..kernels.service import default_owner

__all__ = ["ABOUT", "add_arguments", "diagnose", "lines", "run"]

ABOUT = (
    "Look at every node of gpufit.toml as the scheduler would: its reporter, its Docker engine, its image, and whether "
    "kernels there are reached from here. It starts a small container without GPUs on each node for a moment; with "
    "--deep also a kernel on one idle GPU. Exit code 1 if something is wrong."
)
_AT_ONCE = 100  # nodes
_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by `cli/app.py`."""
    parser.add_argument("--node", metavar="GLOB", default="*", help="only these nodes")
    parser.add_argument("--deep", action="store_true", help="also start a kernel on one idle GPU of each node")


def run(options: argparse.Namespace) -> int:
    """Called by `cli/app.py`. Raises `InvalidValue`, `Unavailable`."""
    if options.server:
        raise InvalidValue("doctor looks from here, at the machines of an inventory; leave --server out")
    logging.getLogger("jupyter_gpufit").addHandler(logging.NullHandler())  # what is wrong is said in our words
    specs = _nodes(options.inventory, options.node)

    def show(diagnosis: Diagnosis) -> None:
        if not options.json:
            print("\n".join(lines(diagnosis)), flush=True)

    found = asyncio.run(diagnose(specs, options.deep, show))
    if options.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    return 1 if any(diagnosis.wrong for diagnosis in found) else 0


async def diagnose(specs: Sequence[NodeSpec], deep: bool, show: Callable[[Diagnosis], None]) -> list[Diagnosis]:
    """Of each node, in the order of `specs`. `show` gets each as soon as it is done: none waits for another."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(spec: NodeSpec) -> Diagnosis:
        async with room:
            diagnosis = await examine(spec, deep=deep, owner=default_owner())
        show(diagnosis)
        return diagnosis

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(spec)) for spec in specs]
    return [task.result() for task in tasks]


def lines(diagnosis: Diagnosis) -> list[str]:
    """For a terminal."""
    wrong, checked = diagnosis.wrong, [one for one in diagnosis.checks if one.verdict is not Verdict.NOT_CHECKED]
    told = f"{wrong} of {len(checked)} checks wrong" if wrong else f"{len(checked)} checks, nothing wrong"
    found = [f"{diagnosis.node}: {told}"]
    for (verdict, message, fix), alike in groupby(diagnosis.checks, lambda one: (one.verdict, one.message, one.fix)):
        names = [check.check for check in alike]
        if len(names) > 1:
            message += f" (likewise {', '.join(names[1:])})"
        found += _check(Check(check=names[0], verdict=verdict, message=message, fix=fix))
    return [*found, ""]


def _check(check: Check) -> list[str]:
    verdict = check.verdict.replace("-", " ")
    head = f"  {verdict.upper() if check.verdict is Verdict.WRONG else verdict:<11}  {check.check:<9}  "
    width = max(_WIDTH, len(head) + 40)
    said = textwrap.wrap(check.message, width, initial_indent=head, subsequent_indent=" " * len(head))
    # On one line, however long: it is there to be copied.
    return [*(said or [head]), *([" " * len(head) + "→ " + check.fix] if check.fix else [])]


def _nodes(inventory: str | None, glob: str) -> list[NodeSpec]:
    path = inventories.find(inventory)
    try:
        nodes = load(path).nodes
    except InventoryError as error:
        raise Unavailable(f"the inventory cannot be used: {error.message}") from None
    chosen = [spec for spec in nodes if fnmatchcase(spec.name, glob)]
    if not chosen:
        raise InvalidValue(f"--node {glob!r} is no node; there are: {', '.join(spec.name for spec in nodes)}")
    return chosen

"""A cluster in use and in trouble for a while, and what is left of it: should be nothing.

    python bench/soak.py [--allocations 300] [--minutes 15] [--clients 6] [--seed 1]

Needs root and `dockerd` (three engines are started as the tests do). Several clients use a Jupyter server's REST at
the same time, while nodes are taken off the network, and dockerd and the server are killed and started again (for the
second half the server is let live, so that its memory can be looked at). One JSON line per figure; what is done is in
`tests/helpers/soak.py`. Exits with 1 if anything was held twice, lost, stuck or left.
"""

# ruff: noqa: E402

from __future__ import annotations

import sys

# `bench/select.py` bears a standard module's name, which asyncio and others import: keep them apart.
sys.path[:] = [path for path in sys.path if not path.rstrip("/").endswith("bench")]

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from cluster import image
from cluster.engines import Cluster
from helpers.soak import NOTHING, soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocations", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args())

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with Cluster(["gpu01", "gpu02", "gpu03"]) as cluster, tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(soak(cluster, Path(directory), image.BASE, say=say, **options))
    for name, value in figures.items():
        print(json.dumps({"figure": name, "value": value}))
    wrong = [name for name in NOTHING if figures[name]]
    for name in wrong:
        say(f"not nothing: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

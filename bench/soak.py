"""A cluster in use and in trouble for a while, and what is left of it: should be nothing.

    python bench/soak.py [--allocations 300] [--minutes 15] [--clients 6] [--seed 1]

Needs root and `dockerd` (three engines are started as the tests do). Several clients use a Jupyter server's REST at
the same time, while nodes are taken off the network, and dockerd and the server are killed and started again (for the
second half the server is let live, so that its memory can be looked at). One JSON line per figure; what is done is in
`tests/helpers/soak.py`. Exits with 1 if anything was held twice, lost, stuck or left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import figures
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
        found = asyncio.run(soak(cluster, Path(directory), image.BASE, say=say, **options))
    for name, value in found.items():
        figures.say(name, value=value)
    wrong = [name for name in NOTHING if found[name]]
    for name in wrong:
        say(f"not nothing: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

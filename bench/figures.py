"""What every benchmark prints, one JSON line per figure; and the way to what the tests have (engines, servers).

    from figures import say                      # first: it puts tests/ on the path

Machines are shared and noisy: what counts is a ratio of medians measured in one run, the two sides taking turns.
`run.py` gathers the lines of all benchmarks, and writes RESULTS.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["say"]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def say(figure: str, goal: Mapping[str, float] | None = None, **values: object) -> None:
    """Print a figure, such as `launch.docker/floor`. `goal`: of some of its values, the most that each may be."""
    line = {"figure": figure, **values} | ({} if goal is None else {"goal": dict(goal)})
    print(json.dumps(line), flush=True)

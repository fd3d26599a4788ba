"""Recorded requests of a lab that does not exist, for `jupyter gpufit bench policies`: the same ones each time.

python tests/helpers/requests.py requests.jsonl       # what the example in docs/policies.md was made of
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

__all__ = ["sample"]

GIB = 2**30
BEGIN = 1_772_352_000.0  # 2026-03-01
DAY = 86400.0
KINDS: list[tuple[int, dict[str, Any], float]] = [
    # how often, what, and for how many hours on the average
    (30, {"memory": 8 * GIB, "shared": True}, 4),
    (15, {"memory": 20 * GIB, "shared": True}, 5),
    (25, {}, 4),
    (12, {"gpus": 2, "memory": 38 * GIB}, 5),
    (6, {"gpus": 4, "memory": 38 * GIB}, 6),
    (2, {"gpus": 8, "memory": 38 * GIB}, 6),
]


def sample(path: Path, count: int = 2000, per_day: float = 55, seed: int = 1) -> None:
    """Write them. By day more is asked than by night."""
    chance, at = random.Random(seed), BEGIN
    lines: list[dict[str, Any]] = []
    weights = [often for often, _, _ in KINDS]
    for number in range(count):
        by_day = 8 <= (at % DAY) / 3600 < 20
        at += chance.expovariate(per_day / DAY * (1.6 if by_day else 0.4))
        _, wishes, hours = chance.choices(KINDS, weights)[0]
        wait = 4 * 3600.0 if chance.random() < 0.6 else None
        asked = {"gpus": 1, "memory": 0} | wishes | ({} if wait is None else {"wait": wait})
        lines.append({"schema": 1, "line": "asked", "id": f"r{number}", "asked": round(at, 3), **asked})
        if chance.random() < 0.97:
            lasts = chance.expovariate(1 / (hours * 3600))
            ended = {"ended": round(at + lasts, 3), "state": "ended", "reason": "released", "placed": round(at, 3)}
            lines.append({"schema": 1, "line": "ended", "id": f"r{number}", **ended})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    sample(Path(sys.argv[1]))

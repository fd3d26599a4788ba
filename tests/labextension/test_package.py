"""What the package says of the lab extension, and the lab extension of the package."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jupyter_gpufit

HERE = Path(__file__).parents[2]
LABEXTENSION = HERE / "labextension"


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_one_version() -> None:
    assert _json(LABEXTENSION / "package.json")["version"] == jupyter_gpufit.__version__


def test_it_is_installed_from_where_it_is_built_to() -> None:
    package = _json(LABEXTENSION / "package.json")
    built = (LABEXTENSION / package["jupyterlab"]["outputDir"]).resolve().relative_to(HERE).as_posix()
    [paths] = jupyter_gpufit._jupyter_labextension_paths()
    assert f"jupyter_gpufit/{paths['src']}" == built
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared[built] == f"share/jupyter/labextensions/{paths['dest']}"
    assert shared["labextension/install.json"] == f"{shared[built]}/install.json"
    assert paths["dest"] == package["name"]
    install = _json(LABEXTENSION / "install.json")
    assert (
        install["packageName"]
        == project["project"]["name"]
        == package["jupyterlab"]["discovery"]["server"]["base"]["name"]
    )


def test_what_git_ignores_is_only_what_a_build_leaves() -> None:
    # A pattern without a slash in front would also leave the sources out of the sdist.
    ignored = [line for line in (HERE / ".gitignore").read_text().splitlines() if "labextension" in line]
    assert all(re.match(r"/(jupyter_gpufit/)?labextension/", line) for line in ignored)
    assert "/labextension/" not in ignored


def test_every_package_is_locked() -> None:
    package = _json(LABEXTENSION / "package.json")
    locked = (LABEXTENSION / "yarn.lock").read_text(encoding="utf-8")
    for name, wanted in {**package["dependencies"], **package["devDependencies"]}.items():
        assert f"{name}@npm:{wanted}" in locked, f"{name} {wanted}: run `python labextension/build.py install`"

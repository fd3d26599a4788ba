"""Builds the lab extension before a wheel is made of it. Called by hatchling, see pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LabExtension(BuildHookInterface):  # type: ignore[type-arg]
    """Also before an editable installation, which has a copy of what is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling. Raises `CalledProcessError`, after what yarn says about it."""
        subprocess.run([sys.executable, Path(self.root) / "labextension" / "build.py"], check=True)

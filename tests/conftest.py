"""Shared by all tests."""

from __future__ import annotations

pytest_plugins = ["pytest_jupyter.jupyter_server", "cluster.fixtures"]

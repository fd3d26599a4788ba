"""docs/reporter.md says what is so."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from jupyter_gpufit.cli.reporter import add_parser
from jupyter_gpufit.reporting.health import APPLICATION_XIDS, CLEAN_READS
from jupyter_gpufit.reporting.simulated_spec import parse_simulated

DOC = (Path(__file__).parents[2] / "docs" / "reporter.md").read_text()


def test_its_commands_are_understood() -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    commands = re.findall(r"jupyter[- ]gpufit (reporter.*?)(?:  +#.*)?$", DOC, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        assert parser.parse_args(shlex.split(command)).func


@pytest.mark.parametrize("spec", re.findall(r"^    (\d\S*x\S+)  ", DOC, re.MULTILINE))
def test_its_specs_can_be(spec: str) -> None:
    assert parse_simulated(spec).models


def test_its_numbers() -> None:
    assert f"({', '.join(map(str, sorted(APPLICATION_XIDS)))})" in DOC
    assert f"after {CLEAN_READS} reads without" in DOC

"""What can be written after `%gpufit`."""

from __future__ import annotations

import re

import pytest

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import Request
from jupyter_gpufit.notebook.completion import complete
from jupyter_gpufit.notebook.grammar import VERBS, help_of, parse_cell, parse_line, request_of

GIB = 2**30


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("request 2 --memory 16GiB", Request(gpus=2, memory=16 * GIB)),
        ("request --memory 16GiB 2", Request(gpus=2, memory=16 * GIB)),
        ("request -n 2 -m 16G", Request(gpus=2, memory=16 * GIB)),
        ("request", Request()),
        ("request --memory 16GiB,8GiB", Request(gpus=2, memory=(16 * GIB, 8 * GIB))),
        ("explain 1 --memory=500MB --shared", Request(gpus=1, memory=500_000_000, shared=True)),
        (
            "request 1 --name train --image 'a/b:1' --time 2h --wait 10m --node 'gpu*' --model '*A100*'"
            " --label room=b12 --label x=y=z",
            Request(
                name="train",
                image="a/b:1",
                time=7200,
                wait=600,
                node="gpu*",
                model="*A100*",
                labels={"room": "b12", "x": "y=z"},
            ),
        ),
        ("request 3 --share-card", Request(gpus=3, share_card=True)),
        ("request --wait 10m --priority 5", Request(wait=600, priority=5)),
        ("request --wait 10m --priority -5", Request(wait=600, priority=-5)),
    ],
)
def test_a_request(line: str, request_: Request) -> None:
    _, options = parse_line(line)
    assert request_of(options) == request_


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reqest 2", "no 'reqest'; did you mean request?"),
        ("frobnicate", "it has: nodes, gpus"),
        ("request 2 --memroy 16GiB", "no option --memroy; did you mean --memory?"),
        ("request two", "'two' is not a number of GPUs; write a whole number"),
        ("request 0", "gpus is 0; ask for a whole number from 1"),
        ("request 2 --memory 16Q", "'16Q' is not a size of memory; write it like '16GiB'"),
        ("request 2 --memory", "--memory: expected one argument (%gpufit request --help shows how)"),
        ("request 2 --memory 16", "'16' has no unit; write '16GiB' (%gpufit request --help shows how)"),
        ("request 2 --memory -5GiB", "'-5GiB' is negative"),
        ("request 2 -m -5GiB", "'-5GiB' is negative"),
        ("request 2 --time -1h", "'-1h' is negative"),
        ("request -2", "gpus is -2; ask for a whole number from 1"),
        ("request 2 --memory 16 GiB", "16 GiB are two words; write 16GiB (no space), or '16 GiB'"),
        ("request --memory=16 GiB 2", "16 GiB are two words; write 16GiB (no space), or '16 GiB'"),
        ("request 2 --wait 2 h", "2 h are two words; write 2h (no space), or '2 h'"),
        ("request --priority high", "'high' is not a priority; write a whole number"),
        ("request --priority 101", "priority is 101; give a whole number from -100 to 100"),
        ("request 2 --name 3 GiB", "'GiB' is one word too many"),
        ("request 2 --time soon", "'soon' is not a duration; write it like"),
        ("request 2 3", "'3' is one word too many"),
        ("request 2 -n 3", "2 GPUs are asked, and 3 with --gpus"),
        ("request 3 --memory 1G,2G", "memory has 2 sizes for 3 GPUs"),
        ("request --name 'a b'", "name 'a b' cannot be used"),
        ("request --name 'a", "no closing quotation"),
        ("request --label room", "'room' is not a label; write it like room=b12"),
        ("attach", "required: NAME"),
        ("detach train", "'train' is one word too many"),
        ("logs --tail many", "'many'"),
    ],
)
def test_mistakes_are_named_with_what_to_do(line: str, said: str) -> None:
    def meant() -> None:
        verb, options = parse_line(line)
        if verb in ("request", "explain"):
            request_of(options)

    with pytest.raises(InvalidValue, match=re.escape(said)):
        meant()


def test_a_cell() -> None:
    options = parse_cell("train --push a,b --pull c")
    assert (options.name, options.push, options.pull, options.new) == ("train", ("a", "b"), ("c",), False)
    options = parse_cell("-n 2 --memory 8GiB")
    assert options.new
    assert request_of(options) == Request(gpus=2, memory=8 * GIB)
    assert not parse_cell("").new


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train -n 2", "name an allocation, or ask for GPUs"),
        ("--shared", "--shared is of a new allocation"),
        ("--priority 3", "--priority is of a new allocation"),
        ("--push a.b", "'a.b' is not the name of a variable"),
    ],
)
def test_mistakes_in_a_cell(line: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(said)):
        parse_cell(line)


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("%gpufit re", ["release", "request"]),
        ("%gpufit ", sorted(VERBS)),
        ("%gpufit request 2 --m", ["--memory", "--model"]),
        ("%gpufit request --memory 1G --mem", []),
        ("%gpufit request --node g", ["gpu01", "gpu02"]),
        ("%gpufit request --node=g", ["--node=gpu01", "--node=gpu02"]),
        ("%gpufit request --model ", ["'NVIDIA A100'"]),
        ("%gpufit request --label ", ["room=b12"]),
        ("%gpufit request --memory g", []),
        ("%gpufit request --memory ", ["8GiB", "16GiB", "24GiB", "40GiB", "80GiB"]),
        ("%gpufit request --memory 4", ["40GiB"]),
        ("%gpufit request --name ", []),
        ("%gpufit attach t", ["test", "train"]),
        ("%gpufit release ", ["eval", "test", "train", "--all", "--help"]),
        ("%gpufit release train ", ["--all", "--help"]),
        ("%gpufit release --", ["--all", "--help"]),
        ("%gpufit nodes ", ["--help"]),
        ("%gpufit wrong ", []),
        ("%%gpufit t", ["test", "train"]),
        ("%%gpufit train --pu", ["--pull", "--push"]),
        ("%%gpufit --push ", []),
        ("%gpufit", []),
    ],
)
def test_completion(before: str, found: list[str]) -> None:
    known = {
        "name": lambda: ["train", "test", "eval"],
        "node": lambda: ["gpu01", "gpu02", "mig"],
        "model": lambda: ["NVIDIA A100"],
        "label": lambda: ["room=b12"],
    }
    assert complete(before, known) == found


def test_a_mistake_is_answered_with_a_line_not_with_a_page() -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_line("request 2 --memroy 16GiB")
    assert len(caught.value.message) < 120


def test_help_has_a_line_to_type_for_every_verb() -> None:
    for line in help_of().splitlines():
        example = re.split(r"  +", line.strip())[0].partition("= ")[-1] or re.split(r"  +", line.strip())[0]
        if example.startswith("%gpufit") and "VERB" not in example:
            parse_line(example.removeprefix("%gpufit"))
    for verb in VERBS:
        assert f"%gpufit {verb}" in help_of()


def test_every_verb_has_help() -> None:
    everything = help_of()
    for verb, (about, _) in VERBS.items():
        assert about in everything
        assert about in help_of(verb)
    assert parse_line("help")[1].help
    assert parse_line("request --help")[1].help

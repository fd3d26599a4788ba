"""What can be written after `%gpufit`."""

from __future__ import annotations

import re

import pytest

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import Request
from jupyter_gpufit.notebook.grammar import VERBS, complete, help_of, parse_cell, parse_line, request_of

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
        ("request 2 --memory", "--memory: expected one argument"),
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
        ("%gpufit request --memory g", []),
        ("%gpufit attach t", ["test", "train"]),
        ("%gpufit release ", ["eval", "test", "train"]),
        ("%gpufit release train ", []),
        ("%gpufit release --", ["--all"]),
        ("%gpufit nodes ", []),
        ("%gpufit wrong ", []),
        ("%%gpufit t", ["test", "train"]),
        ("%%gpufit train --pu", ["--pull", "--push"]),
        ("%%gpufit --push ", []),
        ("%gpufit", []),
    ],
)
def test_completion(before: str, found: list[str]) -> None:
    assert complete(before, lambda: ["train", "test", "eval"], lambda: ["gpu01", "gpu02", "mig"]) == found


def test_every_verb_has_help() -> None:
    everything = help_of()
    for verb, (about, _) in VERBS.items():
        assert about in everything
        assert about in help_of(verb)
    assert parse_line("help")[1].help
    assert parse_line("request --help")[1].help

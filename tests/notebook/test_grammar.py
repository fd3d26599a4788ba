"""What can be written after `%gpufit`."""

from __future__ import annotations

import re

import pytest

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.models import Job, Request
from jupyter_gpufit.notebook.completion import complete
from jupyter_gpufit.notebook.grammar import VERBS, help_of, parse_cell, parse_line
from jupyter_gpufit.notebook.options import request_of, submission_of

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
            "request 1 --name train --image 'a/b:1' --time 2h --wait 10m --node 'gpu*' --gpu-model '*A100*'"
            " --label room=b12 --label x=y=z",
            Request(
                name="train",
                image="a/b:1",
                time=7200,
                wait=600,
                node="gpu*",
                gpu_model="*A100*",
                labels={"room": "b12", "x": "y=z"},
            ),
        ),
        ("request 3 --share-card", Request(gpus=3, share_card=True)),
        ("request 2 --cpus 8 --ram 64GiB", Request(gpus=2, cpus=8, ram=64 * GIB)),
        ("explain --ram=512MB --cpus .5", Request(cpus=0.5, ram=512_000_000)),
        ("request --wait 10m --priority 5", Request(wait=600, priority=5)),
        ("request --wait 10m --priority -5", Request(wait=600, priority=-5)),
        (
            "request --model llama-7b --require-model --write-models",
            Request(model="llama-7b", require_model=True, write_models=True),
        ),
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
        ("request --ram 64 GiB", "64 GiB are two words; write 64GiB (no space), or '64 GiB'"),
        ("request --ram 3", "--ram: '3' has no unit; write '3GiB' (%gpufit request --help shows how)"),
        ("request --ram 1MiB", "--ram: ram is '1MiB'; ask for 64 MiB of the machine's memory at least"),
        ("request --ram 8GiB,8GiB", "'8GiB,8GiB' is not a size of memory"),
        ("request --cpus 0", "--cpus: cpus is 0; ask for more than 0 and at most 4096 cores, such as 8 or 0.5"),
        ("request --cpus -2", "cpus is -2; ask for more than 0"),
        ("request --cpus many", "--cpus: 'many' is not a number of cores; write one such as 8, or 0.5"),
        ("request --cpus nan", "'nan' is not a number of cores"),
        ("request --cpus 1e3", "'1e3' is not a number of cores"),
        ("request --cpu 3", "there is no option --cpu; did you mean --cpus?"),
        ("request 2 --wait 2 h", "2 h are two words; write 2h (no space), or '2 h'"),
        ("request --priority high", "'high' is not a priority; write a whole number"),
        ("request --priority 101", "priority is 101; give a whole number from -100 to 100"),
        ("request 2 --name 3 GiB", "'GiB' is one word too many"),
        ("request 2 --wait 0", "'0' is not a duration"),
        ("train fit.py --wait 2 h", "2 h are two words; write 2h (no space), or '2 h'"),
        ("request 2 --time soon", "'soon' is not a duration; write it like"),
        ("request 2 3", "'3' is one word too many"),
        ("request 2 -n 3", "2 GPUs are asked, and 3 with --gpus"),
        ("request 3 --memory 1G,2G", "memory has 2 sizes for 3 GPUs"),
        ("request --name 'a b'", "name 'a b' cannot be used"),
        ("request --name 'a", "no closing quotation"),
        ("request --label room", "'room' is not a label; write it like room=b12"),
        ("attach", "required: NAME"),
        ("detach train", "'train' is one word too many"),
        ("logs --tail many", "'many' is not a number of times"),
        ("request --require-model", "require_model (--require-model) needs a model; name it with --model"),
        ("train", "required: WHAT"),
        ("train fit.py --gpu 2", "there is no option --gpu; did you mean --gpus?"),
        ("train fit.py --lr 1e-3", "there is no option --lr; what the script itself gets comes last, after --"),
        ("train python fit.py", "there is a word too many: put a command, and a value with spaces, in quotes"),
        ("train fit.py --retries -1", "'-1' is not a number of times"),
        ("train fit.py --sweep lr", "'lr' is not a list of values; write it like lr=1e-3,1e-4"),
        ("train fit.py --sweep lr=1,,2", "is not a list of values"),
        ("train fit.py --sweep lr=1 --sweep lr=2", "--sweep lr is there twice; write all its values in one"),
        ("train fit.py --launcher mpi", "launcher is 'mpi'; there is only 'torchrun'"),
        ("train 'echo x' --launcher torchrun", "torchrun starts a Python script, and 'echo x' is none"),
        ("train a.ipynb -- --lr 1", "a notebook takes no arguments, '--lr 1' was given; use --sweep, or --env"),
        ("train ''", "run is ''; name a script, a notebook, or a command in quotes"),
        ("train fit.py --env MISSING_HERE", "there is no variable MISSING_HERE here; set it, or write MISSING_HERE="),
        ("upload", "required: PATH"),
        ("upload a --from x", "there is no option --from"),
    ],
)
def test_mistakes_are_named_with_what_to_do(line: str, said: str) -> None:
    def meant() -> None:
        verb, options = parse_line(line)
        if verb in ("request", "explain"):
            request_of(options)
        elif verb == "train":
            submission_of(options, "/home/ada", {})

    with pytest.raises(InvalidValue, match=re.escape(said)):
        meant()


@pytest.mark.parametrize(
    ("line", "request_", "sweep"),
    [
        ("train fit.py", Request(job=Job(run="fit.py")), {}),
        (
            "train fit.py -n 2 -m 8GiB --name big --time 6h --wait 1d --image a/b --retries 3 --launcher torchrun"
            " --model llama --require-model --node 'gpu*' -- --lr 1e-3 --name x --help",
            Request(
                gpus=2,
                memory=8 * GIB,
                name="big",
                time=21600,
                wait=86400,
                image="a/b",
                model="llama",
                require_model=True,
                node="gpu*",
                job=Job(run="fit.py", args=("--lr", "1e-3", "--name", "x", "--help"), retries=3, launcher="torchrun"),
            ),
            {},
        ),
        ("train fit.py --wait 0", Request(wait=0, job=Job(run="fit.py")), {}),
        (
            "train fit.py --wait 0s -- 'two words' ''",
            Request(wait=0, job=Job(run="fit.py", args=("two words", ""))),
            {},
        ),
        (
            "train 'python x.py --a 1' --gpus 1 --env A=b=c --env WANDB_KEY --env EMPTY=",
            Request(job=Job(run="python x.py --a 1", env={"A": "b=c", "WANDB_KEY": "from here", "EMPTY": ""})),
            {},
        ),
        (
            "train n.ipynb --sweep lr=1e-3,1e-4 --sweep depth=2,4",
            Request(job=Job(run="n.ipynb")),
            {"lr": ["1e-3", "1e-4"], "depth": ["2", "4"]},
        ),
    ],
)
def test_a_job(line: str, request_: Request, sweep: dict[str, list[str]]) -> None:
    import msgspec

    _, options = parse_line(line)
    found, points = submission_of(options, "/home/ada", {"WANDB_KEY": "from here"}, "a.ipynb")
    assert found == msgspec.structs.replace(request_, folder="/home/ada", notebook="a.ipynb")
    assert points == sweep


@pytest.mark.parametrize(
    "line",
    [
        "train fit.py --env KEY=hunter2 --retries much",
        "train fit.py --env hunter2-is=it",
        "train fit.py --env KEY=the hunter2",
        "train fit.py --env KEY='hunter2",
        "train fit.py --env KEY=1 KEY2=hunter2",
        "train fit.py --env=KEY=hunter2 --what",
        "train a.ipynb --env KEY=hunter2 -- x",
        "train fit.py --env KEY=hunter2 --gpus 0",
    ],
)
def test_the_value_of_a_variable_is_never_repeated(line: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        submission_of(parse_line(line)[1], "/", {})
    assert "hunter2" not in str(caught.value)


def test_following_and_files() -> None:
    assert parse_line("logs -f")[1].follow
    assert (parse_line("logs train --follow --tail 5")[1].name, parse_line("logs")[1].follow) == ("train", False)
    assert parse_line("train x.py -f")[1].follow
    up, down = parse_line("upload a data/ --to train")[1], parse_line("download out.csv")[1]
    assert (up.paths, up.allocation, down.paths, down.allocation) == (["a", "data/"], "train", ["out.csv"], None)


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
        ("--model llama", "--model is of a new allocation"),
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
        ("%gpufit request 2 --me", ["--memory"]),
        ("%gpufit request --memory 1G --mem", []),
        ("%gpufit request --node g", ["gpu01", "gpu02"]),
        ("%gpufit request --node=g", ["--node=gpu01", "--node=gpu02"]),
        ("%gpufit request --gpu-model ", ["'NVIDIA A100'"]),
        ("%gpufit request --label ", ["room=b12"]),
        ("%gpufit request --memory g", []),
        ("%gpufit request --memory ", ["8GiB", "16GiB", "24GiB", "40GiB", "80GiB"]),
        ("%gpufit request --memory 4", ["40GiB"]),
        ("%gpufit request --cpus ", ["1", "2", "4", "8", "16"]),
        ("%gpufit request --cpus=1", ["--cpus=1", "--cpus=16"]),
        ("%gpufit train fit.py --ram 6", ["64GiB"]),
        ("%gpufit explain --c", ["--cpus"]),
        ("%gpufit request --name ", []),
        ("%gpufit attach t", ["test", "train"]),
        ("%gpufit release ", ["eval", "test", "train", "--all", "--help"]),
        ("%gpufit release train ", ["--all", "--help"]),
        ("%gpufit release --", ["--all", "--help"]),
        ("%gpufit nodes ", ["--help"]),
        ("%gpufit wrong ", []),
        ("%%gpufit t", ["test", "train"]),
        ("%gpufit t", ["train"]),
        ("%gpufit request --model l", ["llama-7b"]),
        ("%gpufit train fit.py --sw", ["--sweep"]),
        ("%gpufit train f", []),
        ("%gpufit train fit.py --launcher ", ["torchrun"]),
        ("%gpufit upload a --to t", ["test", "train"]),
        ("%gpufit download ", ["--from", "--help"]),
        ("%gpufit usage t", ["test", "train"]),
        ("%gpufit logs -", ["--follow", "--help", "--tail"]),
        ("%%gpufit train --pu", ["--pull", "--push"]),
        ("%%gpufit --push ", []),
        ("%gpufit", []),
    ],
)
def test_completion(before: str, found: list[str]) -> None:
    known = {
        "name": lambda: ["train", "test", "eval"],
        "node": lambda: ["gpu01", "gpu02", "mig"],
        "gpu_model": lambda: ["NVIDIA A100"],
        "label": lambda: ["room=b12"],
        "model": lambda: ["llama-7b", "bert"],
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

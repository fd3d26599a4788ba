"""What a kernel asks for that nobody wrote `%gpufit request` for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_gpufit.errors import InvalidValue
from jupyter_gpufit.kernels.wishes import WISHES, request_from, variable
from jupyter_gpufit.models import Request

GIB = 2**30


def test_the_kernelspec_asks() -> None:
    assert request_from({"gpus": 2, "memory": "16GiB"}, {}) == Request(gpus=2, memory=16 * GIB)
    assert request_from({"cpus": 8, "ram": "64GiB"}, {"GPUFIT_CPUS": "0.5"}) == Request(cpus=0.5, ram=64 * GIB)


def test_the_environment_overrules_the_kernelspec() -> None:
    environment = {
        "GPUFIT_GPUS": "2",
        "GPUFIT_MEMORY": "16GiB, 8GiB",
        "GPUFIT_CPUS": "8",
        "GPUFIT_RAM": "64GiB",
        "GPUFIT_IMAGE": "lab/torch:1",
        "GPUFIT_TIME": "2h",
        "GPUFIT_WAIT": "10m",
        "GPUFIT_PRIORITY": "5",
        "GPUFIT_NODE": "gpu0?",
        "GPUFIT_GPU_MODEL": "*A100*",
        "GPUFIT_MODEL": "llama-7b",
        "GPUFIT_REQUIRE_MODEL": "1",
        "GPUFIT_WRITE_MODELS": "yes",
        "GPUFIT_NAME": "train",
        "GPUFIT_SHARED": "yes",
        "GPUFIT_LABELS": "room=b12, rack=3",
    }
    assert environment.keys() == {variable(wish) for wish in WISHES}
    request = request_from({"gpus": 1, "memory": "1GiB", "node": "other", "image": "other"}, environment)
    assert request == Request(
        gpus=2,
        memory=(16 * GIB, 8 * GIB),
        cpus=8,
        ram=64 * GIB,
        image="lab/torch:1",
        time=7200,
        wait=600,
        priority=5,
        node="gpu0?",
        gpu_model="*A100*",
        model="llama-7b",
        require_model=True,
        write_models=True,
        name="train",
        shared=True,
        labels={"room": "b12", "rack": "3"},
    )


def test_an_empty_variable_says_nothing() -> None:
    assert request_from({"gpus": 3}, {"GPUFIT_GPUS": "", "GPUFIT_SHARED": " "}) == Request(gpus=3)


def test_what_a_kernel_holds_is_not_what_one_started_from_it_asks_for() -> None:
    for kind in ("GPUFIT_ATTACHED", "GPUFIT_JOB"):
        held = {kind: "1", "GPUFIT_GPUS": "GPU-1,GPU-2", "GPUFIT_MEMORY": "1,2", "GPUFIT_NAME": "train"}
        held |= {"GPUFIT_CPUS": "8", "GPUFIT_RAM": "68719476736"}
        assert request_from({"gpus": 1, "memory": "1GiB"}, held) == Request(gpus=1, memory=GIB)


def test_what_is_about_something_else_is_no_slip_of_the_pen() -> None:
    assert request_from({"gpus": 1}, {"GPUFIT_MEMORY_GUARD": "0"}) == Request()


@pytest.mark.parametrize(
    ("config", "environment", "told"),
    [
        ({}, {"GPUFIT_GPUS": "two"}, ["GPUFIT_GPUS", "'two'"]),
        ({}, {"GPUFIT_GPUS": "0"}, ["GPUFIT_GPUS", "0", "1 to"]),
        ({}, {"GPUFIT_MEMORY": "16Gobs"}, ["GPUFIT_MEMORY", "16Gobs", "16GiB"]),
        ({"gpus": 3}, {"GPUFIT_MEMORY": "1G,2G"}, ["GPUFIT_MEMORY", "kernelspec", "2 sizes for 3 GPUs"]),
        ({}, {"GPUFIT_CPUS": "many"}, ["GPUFIT_CPUS", "'many'", "'8'"]),
        ({}, {"GPUFIT_CPUS": "nan"}, ["GPUFIT_CPUS", "nan", "more than 0"]),
        ({}, {"GPUFIT_CPUS": "1e300"}, ["cpus is 1e+300;"]),
        ({}, {"GPUFIT_RAM": "64"}, ["GPUFIT_RAM", "'64'", "64GiB"]),
        ({"cpus": 0}, {}, ["kernelspec", "cpus", "more than 0"]),
        ({"cpus": "8"}, {}, ["kernelspec", "cpus"]),
        ({}, {"GPUFIT_SHARED": "perhaps"}, ["GPUFIT_SHARED", "perhaps"]),
        ({}, {"GPUFIT_LABELS": "b12"}, ["GPUFIT_LABELS", "b12", "room=b12"]),
        ({}, {"GPUFIT_TIME": "soon"}, ["GPUFIT_TIME", "soon", "2h"]),
        ({"gpus": "two"}, {}, ["kernelspec", "gpus"]),
        ({"memory": [1, "x"]}, {"GPUFIT_GPUS": "2"}, ["kernelspec", "'x'"]),
    ],
)
def test_what_cannot_be_meant_names_the_value_and_where_it_comes_from(
    config: dict[str, object], environment: dict[str, str], told: list[str]
) -> None:
    with pytest.raises(InvalidValue) as caught:
        request_from(config, environment)
    for part in told:
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("GPUFIT_GPU", "GPUFIT_GPUS"),
        ("GPUFIT_CPU", "GPUFIT_CPUS"),
        ("GPUFIT_MEM", "GPUFIT_MEMORY"),
        ("GPUFIT_NODES", "GPUFIT_NODE"),
        ("GPUFIT_memory", "GPUFIT_MEMORY"),
        ("GPUFIT_TIMEOUT", "GPUFIT_TIME"),
    ],
)
def test_a_slip_in_a_variables_name_is_not_passed_over(slip: str, meant: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        request_from({"gpus": 1}, {slip: "2"})
    assert f"{slip}=2" in caught.value.message
    assert f"did you mean {meant}?" in caught.value.message


def test_variables_that_are_no_wishes_are_none_of_its_business() -> None:
    others = (
        "INVENTORY",
        "CLAIMS_DIR",
        "TOKEN",
        "ALLOCATION",
        "UNIT",
        "DIRECT",
        "SERVER_CA",
        "EXAMPLES",
        "SCREENSHOTS",
    )
    environment = {f"GPUFIT_{other}": "x" for other in others} | {"GPUS": "7", "XGPUFIT_GPU": "7"}
    assert request_from({"gpus": 1}, environment) == Request(gpus=1)
    assert request_from({"gpus": 1}, {"GPUFIT_ATTACHED": "1", "GPUFIT_MODELS": "/models"}) == Request(gpus=1)


def test_the_kernelspec_we_ship_asks_for_something() -> None:
    spec = json.loads((Path(__file__).parents[2] / "kernelspec" / "kernel.json").read_text())
    request = request_from(spec["metadata"]["kernel_provisioner"]["config"], {})
    assert request.gpus == 1
    assert spec["interrupt_mode"] == "message"
    assert spec["metadata"]["supported_encryption"] == ["curve"]

"""Which container a process is in, from the kernel's own words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster.engines import Engine

from jupyter_gpufit.reporting.containers import container_ids, container_of, process_name

A, B = "a1" * 32, "b2" * 32


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (f"12:pids:/docker/{A}\n11:memory:/docker/{A}\n0::/system.slice/docker.service\n", [A]),
        (f"1:name=systemd:/system.slice/docker-{A}.scope\n", [A]),
        (f"0::/system.slice/docker-{A}.scope\n", [A]),
        (f"0::/system.slice/docker-{A}.scope/init\n", [A]),
        (f"0::/../../system.slice/docker-{A}.scope\n", [A]),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{A}.scope\n", [A]),
        (f"0::/machine.slice/libpod-{A}.scope/container\n", [A]),
        (f"4:memory:/docker/{A}/docker/{B}\n", [A, B]),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", []),
        (f"0::/docker/{A[:-1]}\n", []),
        (f"0::/docker/{A}0\n", []),
        ("", []),
        ("garbage", []),
    ],
)
def test_ids(text: str, ids: list[str]) -> None:
    assert container_ids(text) == ids


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, cgroup in {"self": f"0::/docker/{B}", "7": f"0::/docker/{B}/docker/{A}", "8": f"0::/docker/{B}"}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(cgroup)
    (tmp_path / "7" / "comm").write_text("python3\n")
    return tmp_path


def test_the_container_is_the_one_below_our_own(proc: Path) -> None:
    assert container_of(7, proc) == A
    assert container_of(8, proc) is None, "the one we are in ourselves is none that the engine beside us knows"


def test_a_process_that_is_gone(proc: Path) -> None:
    assert container_of(99, proc) is None
    assert process_name(99, proc) is None
    assert process_name(7, proc) == "python3"


def test_this_process() -> None:
    assert container_of(os.getpid(), Path("/proc")) is None
    assert process_name(os.getpid(), Path("/proc"))


def test_a_real_container(engine: Engine, kernel_image: str) -> None:
    client = engine.client()
    container = client.containers.run(kernel_image, ["sleep", "600"], detach=True)
    container.reload()
    assert container_of(container.attrs["State"]["Pid"], Path("/proc")) == container.id

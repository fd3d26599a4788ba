"""How large a machine is, as its engine and its kernel say."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from jupyter_gpufit.launching.machine import Machine, engines, this_machine

GIB = 2**30


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16 cores, of which this process may use 12, and of 64 GiB."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"total": 64 * GIB}))


def files(root: Path, **texts: str | int) -> Path:
    """`root` with these files; `__` in a name is a directory's `/`, `_DOT_` a dot."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def cgroups(root: Path, *lines: str) -> Path:
    return files(root, proc__self__cgroup="\n".join(lines))


@pytest.mark.parametrize(
    ("info", "machine"),
    [
        ({"NCPU": 48, "MemTotal": 256 * GIB}, Machine(48.0, 256 * GIB)),
        ({}, Machine()),
        ({"NCPU": 0, "MemTotal": 0}, Machine()),
        ({"NCPU": None, "MemTotal": "much"}, Machine()),
    ],
)
def test_what_an_engine_says(info: dict[str, object], machine: Machine) -> None:
    assert engines(info) == machine


@pytest.mark.usefixtures("has")
def test_without_limits_it_is_what_the_process_may_use(tmp_path: Path) -> None:
    assert this_machine(tmp_path) == Machine(12.0, 64 * GIB)  # no /proc, no /sys
    cgroups(tmp_path, "0::/user.slice")
    files(tmp_path / "sys/fs/cgroup/user.slice", cpu_DOT_max="max 100000", memory_DOT_max="max")
    assert this_machine(tmp_path) == Machine(12.0, 64 * GIB)


@pytest.mark.usefixtures("has")
def test_the_least_of_all_cgroups_around_it_counts(tmp_path: Path) -> None:
    cgroups(tmp_path, "0::/user.slice/ann/server")
    inner = tmp_path / "sys/fs/cgroup/user.slice/ann"
    files(inner / "server", cpu_DOT_max="max 100000", memory_DOT_max="max")
    files(inner, cpu_DOT_max="450000 100000", memory_DOT_max=8 * GIB)
    files(inner.parent, cpu_DOT_max="800000 100000", memory_DOT_max=6 * GIB)
    assert this_machine(tmp_path) == Machine(4.5, 6 * GIB)


@pytest.mark.usefixtures("has")
def test_version_1_of_them(tmp_path: Path) -> None:
    cgroups(tmp_path, "9:name=systemd:/x", "4:memory:/docker/abc", "1:cpu,cpuacct:/docker/abc", "0::/x")
    # In a container, `/docker/abc` is what the host calls it; here it is the root.
    files(tmp_path / "sys/fs/cgroup/memory", memory_DOT_limit_in_bytes=4 * GIB)
    files(tmp_path / "sys/fs/cgroup/cpu,cpuacct", cpu_DOT_cfs_quota_us=150_000, cpu_DOT_cfs_period_us=100_000)
    assert this_machine(tmp_path) == Machine(1.5, 4 * GIB)
    files(tmp_path / "sys/fs/cgroup/memory", memory_DOT_limit_in_bytes=2**63 - 4096)
    files(tmp_path / "sys/fs/cgroup/cpu,cpuacct", cpu_DOT_cfs_quota_us=-1)
    assert this_machine(tmp_path) == Machine(12.0, 64 * GIB)


@pytest.mark.usefixtures("has")
@pytest.mark.parametrize("said", ["", "0", "-5 100000", "nonsense", "1 0"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, said: str) -> None:
    cgroups(tmp_path, "0::/a/../../../etc")
    files(tmp_path / "sys/fs/cgroup", cpu_DOT_max=said, memory_DOT_max=said)
    assert this_machine(tmp_path) == Machine(12.0, 64 * GIB)


def test_this_one_has_some() -> None:
    machine = this_machine()
    assert machine.cpus is not None
    assert machine.ram is not None
    assert 0 < machine.cpus <= (os.cpu_count() or 1)
    assert 0 < machine.ram <= psutil.virtual_memory().total

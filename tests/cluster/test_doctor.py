"""`jupyter gpufit doctor` on real engines: one that is well, and one for each thing that can be wrong with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.frontend import eventually
from helpers.machines import containers, machines
from msgspec.structs import replace

from jupyter_gpufit.cli.doctor import diagnose
from jupyter_gpufit.cluster.examine import examine_reporter
from jupyter_gpufit.diagnosis import CHECKS, Check, Diagnosis
from jupyter_gpufit.inventory import Mount, NodeSpec, load
from jupyter_gpufit.kernels import doctor
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Launch

from . import certificates, image
from .engines import Engine

A_GPU = Mount(source="/dev/null", target="/dev/nvidia0")
"""What a container with a GPU has, and ours, whose GPUs are no devices, have not."""
SOUND = ("reporter", "report", "tls", "engine", "api", "image", "container", "ipykernel", "ports")


@pytest.fixture
async def spec(engine: Engine, kernel_image: str, tmp_path: Path) -> AsyncIterator[NodeSpec]:
    """The engine as a node of an inventory, with a reporter, and nothing wrong."""
    with machines([engine], tmp_path, kernel_image, 'pull = "never"') as inventory:
        [spec] = load(inventory).nodes
        await eventually(lambda: reports(spec))
        yield spec


async def reports(spec: NodeSpec) -> bool:
    """Whether its reporter has read the GPUs by now."""
    return (await examine_reporter(spec))[1] is not None


async def examined(spec: NodeSpec, *, deep: bool = False) -> dict[str, Check]:
    """Each check, by name; the list itself is in order."""
    steps: list[Diagnosis] = []
    diagnosis = await doctor.examine(spec, deep=deep, owner="ann", tell=steps.append)
    names = [check.check for check in diagnosis.checks]
    assert names == [name for name in CHECKS if name in names]
    assert diagnosis.done
    assert [len(step.checks) for step in steps][:2] == [1, 2], "one by one"
    assert not any(step.done for step in steps)
    return {check.check: check for check in diagnosis.checks}


def of(found: dict[str, Check], verdict: str) -> tuple[str, ...]:
    return tuple(name for name, check in found.items() if check.verdict == verdict)


async def test_a_machine_with_nothing_wrong(engine: Engine, spec: NodeSpec) -> None:
    found = await examined(replace(spec, mounts=(A_GPU,)), deep=True)
    assert of(found, "right") == (*SOUND, "gpu", "kernel"), found
    assert "4 GPUs" in found["report"].message
    assert f"reached at {engine.ip}, all 5 channels" in found["ports"].message
    assert "it answers, encrypted" in found["kernel"].message
    assert found["runtime"].verdict == "not-checked", "its hook is not in what it says of itself"
    assert "nvidia-ctk runtime configure" in found["runtime"].fix
    assert containers(engine) == []


async def test_what_is_wrong_with_gpus(engine: Engine, spec: NodeSpec) -> None:
    blind = await examined(spec, deep=True)
    assert of(blind, "wrong") == ("gpu",)
    assert "sees no GPU" in blind["gpu"].message
    greedy = await examined(replace(spec, mounts=(A_GPU, replace(A_GPU, target="/dev/nvidia1"))), deep=True)
    assert "and sees 2 GPUs" in greedy["gpu"].message
    # One container, made and not started, holds them all.
    launcher = make_launcher(spec)
    await launcher.open(lambda *end: None, lambda claims: None)
    gpus = dict.fromkeys(engine.gpu_uuids, 1)
    try:
        launch = Launch(allocation="b1", scheduler="s2", owner="ben", name="gpufit-b1", gpus=gpus)
        await launcher.prepare(launch, lambda progress: None)
    finally:
        await launcher.close()
    held = await examined(spec, deep=True)
    assert of(held, "right") == SOUND
    assert held["gpu"].message == "none of its 4 GPUs is idle"
    assert containers(engine) == ["gpufit-b1"]


async def test_a_reporter_that_is_not_there_or_wants_another_token(
    engine: Engine, spec: NodeSpec, tmp_path: Path
) -> None:
    gone = await examined(replace(spec, report=f"http://{engine.ip}:9"), deep=True)
    assert of(gone, "right") == SOUND[2:], "the rest is looked at all the same"
    assert "Connection refused" in gone["reporter"].message
    assert "jupyter gpufit reporter --host" in gone["reporter"].fix
    assert gone["gpu"].message == "which GPU is idle is not known without a report"
    other = tmp_path / "other.token"
    other.write_text("x" * 32)
    refused = await examined(replace(spec, report_token_file=str(other)))
    assert "refuses our token (401)" in refused["reporter"].message
    assert refused["reporter"].fix.startswith(f"scp gpu01:/etc/gpufit/token {other}")
    assert refused["report"].verdict == "not-checked"
    none = await examined(replace(spec, report_token_file=None))
    assert none["reporter"].fix.startswith('report_token_file = "')


@pytest.mark.parametrize(
    ("variant", "wrong", "says", "fix"),
    [
        ("no-ipykernel", "ipykernel", "there is none for its Python 3.11", "pip install"),
        (
            "old-ipykernel",
            "ipykernel",
            "it is 6.29.5; what goes over the network",
            "pip install",
        ),
        ("missing", "image", "is not there, and gpufit.toml says pull = 'never'", "docker -H tcp://"),
    ],
)
async def test_images(engine: Engine, spec: NodeSpec, variant: str, wrong: str, says: str, fix: str) -> None:
    name = f"{image.REPOSITORY}:{variant}" if variant == "missing" else image.variant(engine.client(), variant)
    found = await examined(replace(spec, image=name))
    assert of(found, "wrong") == (wrong,), found
    assert says in found[wrong].message
    assert fix in found[wrong].fix
    assert name in found[wrong].fix
    if variant == "old-ipykernel":
        allowed = await examined(replace(spec, image=name, allow_plaintext=True))
        assert "too old to encrypt" in allowed["ipykernel"].message
        assert of(allowed, "wrong") == ()
    if variant == "missing":
        later = await examined(replace(spec, image=name, pull="missing"))
        assert of(later, "wrong") == ()
        assert "the first request waits until it is pulled" in later["image"].message
        assert later["container"].message == "not before this is in order: image"
    assert containers(engine) == []


async def test_an_address_at_which_kernels_are_not_reached(engine: Engine, spec: NodeSpec) -> None:
    found = await examined(replace(spec, address="localhost"))
    assert of(found, "wrong") == ("ports",)
    assert "Connection refused" in found["ports"].message
    assert found["ports"].fix.startswith('address = "…"')
    foreign = await examined(replace(spec, address="10.255.255.1"))
    assert of(foreign, "wrong") == ("container",)
    assert "10.255.255.1 is not an address of that machine's own" in foreign["container"].message
    unmounted = await examined(replace(spec, models="/srv/none"))
    assert of(unmounted, "wrong") == ("report", "container")  # its reporter was not told of them, either
    assert unmounted["container"].fix.startswith("sudo mkdir -p /srv/none ")


async def test_a_port_where_no_engine_is(engine: Engine, spec: NodeSpec) -> None:
    found = await examined(replace(spec, docker=f"tcp://{engine.ip}:9"))
    assert of(found, "wrong") == ("engine",)
    assert f"tcp://{engine.ip}:9" in found["engine"].message
    assert "systemctl restart docker" in found["engine"].fix
    assert of(found, "right") == ("reporter", "report", "tls")


async def test_an_engine_that_hangs_delays_no_other(
    engine: Engine, spec: NodeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ANSWERS_WITHIN", 2.0)
    engine.freeze()
    hanging = replace(spec, name="hangs")
    well = NodeSpec(name="well", report="simulated:1xT4-16GB")
    seen: list[str] = []
    found = await diagnose([hanging, well], False, lambda diagnosis: seen.append(diagnosis.node))
    assert seen == ["well", "hangs"]
    assert [one.node for one in found] == ["hangs", "well"], "as the inventory has them"
    checks = {check.check: check for check in found[0].checks}
    assert of(checks, "wrong") == ("engine",)
    assert "did not answer within 2 s" in checks["engine"].message
    assert checks["container"].message == "not before this is in order: engine"


async def test_tls(tls_engine: Engine, kernel_image: str, tmp_path: Path) -> None:
    engine = tls_engine
    spec = NodeSpec(
        name="secure",
        docker=engine.url,
        tls=str(engine.tls_files),
        image=kernel_image,
        pull="never",
        report="simulated:2xA100-40GB",
    )
    found = await examined(spec)
    assert of(found, "wrong") == (), found
    assert found["tls"].message == "its certificate is accepted, ours too, and nobody gets in without one"
    absent = await examined(replace(spec, tls=str(tmp_path / "none")))
    assert of(absent, "wrong") == ("tls",)
    assert "is missing" in absent["tls"].message
    assert absent["engine"].message == "not before this is in order: tls"
    # As if it were plain; and by another name than its certificate has.
    plain = await examined(replace(spec, tls=None, insecure=True))
    assert of(plain, "wrong") == ("engine",)
    # A client's certificate that another authority has signed.
    certificates.make(tmp_path / "others", engine.ip)
    others, mixed = tmp_path / "others", tmp_path / "mixed"
    mixed.mkdir()
    for name, source in (("ca.pem", engine.tls_files), ("cert.pem", others), ("key.pem", others)):
        (mixed / name).write_bytes((source / name).read_bytes())
    strange = await examined(replace(spec, tls=str(mixed)))
    assert of(strange, "wrong") == ("tls",)
    assert "it does not accept our certificate" in strange["tls"].message
    stranger = await examined(replace(spec, tls=str(tmp_path / "others")))
    assert "its certificate is not accepted" in stranger["tls"].message
    assert containers(engine) == []


async def test_ssh(engine: Engine, spec: NodeSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    server = engine.start_ssh()
    spec = replace(spec, docker=server.url, insecure=False)
    try:
        stranger = await examined(spec)  # without the test's known hosts
        assert of(stranger, "wrong") == ("engine",)
        assert "Host key verification failed" in stranger["engine"].message
        assert stranger["engine"].fix.startswith(f"docker -H {server.url} version ")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        found = await examined(spec)
        assert of(found, "right") == SOUND
        assert found["tls"].message == "by ssh"
    finally:
        server.stop()


async def test_what_is_cancelled_or_was_killed_leaves_nothing(engine: Engine, spec: NodeSpec) -> None:
    task = asyncio.create_task(doctor.examine(spec, deep=True))
    await eventually(lambda: there(engine))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert containers(engine) == []
    # One that was killed cannot remove anything: whoever comes next does, once that one can no longer be at work.
    launcher = make_launcher(spec)
    await launcher.open(lambda *end: None, lambda claims: None)
    now = time.time()
    try:
        for name, expires in (("old", now - doctor.LIVES - 1), ("new", now + 1)):
            mine = {"allocation": name, "scheduler": doctor.SCHEDULER, "owner": "ann", "gpus": {}}
            left = Launch(**mine, name=f"gpufit-{name}", expires=expires)
            await launcher.prepare(left, lambda progress: None)
    finally:
        await launcher.close()
    await examined(spec)
    assert containers(engine) == ["gpufit-new"]


async def there(engine: Engine) -> bool:
    return bool(await asyncio.to_thread(containers, engine))

"""What only Docker engines bring along: transports, images, pulls, and engines that die, hang or are cut off."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import tarfile
import time

import psutil
import pytest
from cluster import host
from cluster import image as kernel_images
from helpers.registry import Registry
from msgspec.structs import replace

from jupyter_gpufit.errors import ClaimLost, ImageRefused, LaunchError, NodeUnfit, NodeUnreachable
from jupyter_gpufit.inventory import Mount
from jupyter_gpufit.launching import labels
from jupyter_gpufit.launching.base import make_launcher
from jupyter_gpufit.models import Launch

pytestmark = pytest.mark.docker
SLEEP = "import time; print('up', flush=True); time.sleep(1000)"


@pytest.fixture
def impatient(monkeypatch):
    """Deadlines of a few seconds."""
    monkeypatch.setattr("jupyter_gpufit.launching.engine.CONNECT_WITHIN", 1.0)
    monkeypatch.setattr("jupyter_gpufit.launching.engine.CALL_WITHIN", 6.0)
    monkeypatch.setattr("jupyter_gpufit.launching.events.CONNECT_WITHIN", 1.0)
    monkeypatch.setattr("jupyter_gpufit.launching.events.SILENT_FOR", 2.0)
    monkeypatch.setattr("jupyter_gpufit.launching.events.LONGEST_WAIT", 0.5)


@pytest.fixture
def gateway(containers):
    """This machine's address as the engine's host sees it."""
    return f"{containers.engine.ip.rpartition('.')[0]}.254"


# --- what is made -----------------------------------------------------------------------------------------------------


async def test_nothing_of_the_launch_shows_in_docker_inspect(containers):
    async with containers.opened() as watched:
        unit = await watched.prepare(containers.uuids[1], kernel="k1")
        await watched.run(unit, SLEEP + " # hidden1", {"kernel.json": b"hidden2"}, TOKEN="hidden3")
        await watched.said(unit, "up")
        inspected = containers.engine.client().api.inspect_container(unit.id)
        assert "hidden" not in json.dumps(inspected)
        assert inspected["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == [containers.uuids[1]]
        assert inspected["Config"]["Labels"][labels.PREFIX + "kernel"] == "k1"
        assert inspected["Name"] == "/" + unit.name
        await watched.launcher.stop(unit)


async def test_what_it_may_have_of_the_machine(containers):
    async with containers.opened(cpus=1.5, ram=2**30) as watched:
        for wishes, limits in (
            ({}, (1_500_000_000, 2**30)),
            ({"cpus": 0.75, "ram": 2**28}, (750_000_000, 2**28)),
        ):
            unit = await watched.prepare(**wishes)
            found = containers.engine.client().api.inspect_container(unit.id)["HostConfig"]
            assert (found["NanoCpus"], found["Memory"], found["MemorySwap"]) == (*limits, limits[1])
            await watched.launcher.stop(unit)
    async with containers.opened(cpus=4096) as watched:  # said of all nodes, the small ones too
        unit = await watched.prepare()
        found = containers.engine.client().api.inspect_container(unit.id)["HostConfig"]
        assert found["NanoCpus"] == containers.engine.client().info()["NCPU"] * 1e9
        await watched.launcher.stop(unit)


async def test_what_it_may_not(containers):
    async with containers.opened(pids=20) as watched:
        unit = await watched.prepare()
        code = f"""
import os
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print("capabilities", int(status["CapEff"], 16), int(status["CapBnd"], 16), "privileges", status["NoNewPrivs"])
print("first", open("/proc/1/comm").read().strip())
try:
    for n in range(30):
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000"])
except BlockingIOError:
    print("forked", n < 20)
{SLEEP}
"""
        await watched.run(unit, code)
        logs = await watched.said(unit, "up")
        assert "capabilities 0 0 privileges 1" in logs
        assert "first docker-init" in logs or "first tini" in logs
        assert "forked True" in logs
        await watched.launcher.stop(unit)


async def test_mounts_models_and_working_directory(containers, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/weights").write_text("w")
    (tmp_path / "data").mkdir()
    mounts = (Mount(source=str(tmp_path / "data"), target="/data", read_only=False),)
    async with containers.opened(mounts=mounts, models=str(tmp_path / "models"), workdir="/tmp") as watched:
        unit = await watched.prepare()
        code = """
import os
print(os.getcwd(), open(os.environ["GPUFIT_MODELS"] + "/weights").read())
open("/data/made", "w").write("m")
try:
    open("/models/mine", "w")
except OSError as error:
    print(error.strerror)
"""
        await watched.run(unit, code + SLEEP)
        assert (await watched.said(unit, "up")).splitlines()[:2] == ["/tmp w", "Read-only file system"]
        assert (tmp_path / "data/made").read_text() == "m"
        await watched.launcher.stop(unit)


async def test_a_mount_that_is_not_there_is_named_and_nothing_left(containers):
    async with containers.opened(models="/no/such/store") as watched:
        with pytest.raises(LaunchError, match="/no/such/store"):
            await watched.prepare()
    assert not containers.left()


async def test_a_name_that_is_taken_leaves_its_holder_alone(containers):
    async with containers.opened() as watched:
        unit = await watched.prepare()
        with pytest.raises(LaunchError, match="already in use"):
            await watched.prepare(name=unit.name)
        assert containers.left() == ["/" + unit.name]


async def test_what_is_written_to_a_mounted_folder_is_ours(containers, tmp_path, monkeypatch):
    """Whatever the image's user is. (Here we are somebody without a name in the image.)"""
    for name in ("folder", "models"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 1234, 5678)
    for module in ("containers", "prepared"):
        monkeypatch.setattr(f"jupyter_gpufit.launching.{module}.ours", lambda: "1234:5678")
    image, folder = commit(containers.engine, "user", "USER jovyan"), str(tmp_path / "folder")
    changes = {"image": image, "shared": (str(tmp_path),), "models": str(tmp_path / "models")}
    async with containers.opened(**changes) as watched:
        unit = await watched.prepare(folder=folder, workspace=True, write_models=True)
        (tmp_path / "in.tar").write_bytes(packed("out.txt", b"out"))
        await watched.launcher.put(unit, tmp_path / "in.tar", print)
        await watched.launcher.put(unit, tmp_path / "in.tar", print, "{outputs}")
        code = """
import getpass, os, pathlib
open("made", "w").close()
open(os.environ["GPUFIT_MODELS"] + "/made", "w").close()
pathlib.Path("/outputs/out.txt").write_text("changed")
(pathlib.Path.home() / "made").touch()
print(os.getuid(), os.getgid(), os.getcwd(), pathlib.Path.home(), getpass.getuser())
"""
        await watched.run(unit, code + SLEEP)
        said = await watched.said(unit, "up")
        assert said.splitlines()[0] == f"1234 5678 {folder} /gpufit/home gpufit"
        for made in ("folder/made", "folder/out.txt", "models/made"):
            assert ((tmp_path / made).stat().st_uid, (tmp_path / made).stat().st_gid) == (1234, 5678)
        await watched.launcher.stop(unit)
    assert not containers.left()


def packed(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def test_a_disk_that_is_full_while_files_are_put(containers, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    host.run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small))
    try:
        mount = Mount(source=str(small), target="/data", read_only=False)
        async with containers.opened(mounts=(mount,)) as watched:
            unit = await watched.prepare()
            (tmp_path / "in.tar").write_bytes(packed("much", bytes(8 * 2**20)))
            with pytest.raises(NodeUnfit, match="the disk of gpu01 is full"):
                await watched.launcher.put(unit, tmp_path / "in.tar", print, "/data")
            await watched.launcher.stop(unit)
    finally:
        host.run("umount", str(small))


# --- images -----------------------------------------------------------------------------------------------------------


def commit(engine, name: str, *changes: str) -> str:
    """The kernel image with other configuration."""
    container = engine.client().containers.create(kernel_images.BASE)
    container.commit("gpufit-test/kernel", name, changes=list(changes))
    container.remove()
    return f"gpufit-test/kernel:{name}"


@pytest.mark.parametrize("user", ["USER jovyan", "USER 1000:1000", "USER nobody-knows-me"])
async def test_an_image_whose_user_is_not_root(containers, user):
    image = commit(containers.engine, "user", user)
    async with containers.opened(image=image) as watched:
        unit = await watched.prepare(containers.uuids[0])
        code = "import os; open(os.environ['F'], 'a').write('!'); print(os.getuid(), open(os.environ['F']).read()); "
        try:
            await watched.run(unit, code + SLEEP, {"a/f": b"mine"}, F="{gpufit}/a/f")
        except LaunchError as refused:  # Docker itself does not know the user
            said = refused.message
        else:
            said = await watched.said(unit, "up")
            await watched.launcher.stop(unit)
        assert said.startswith("1000 mine!") or ("nobody-knows-me" in user and "nobody-knows-me" in said)
    assert not containers.left()


async def test_an_image_without_python_says_so(containers):
    image = commit(containers.engine, "no-python", "ENV PATH=/nowhere")
    async with containers.opened(image=image) as watched:
        assert "no python3 on its PATH (/nowhere)" in await why_it_ended(containers, watched)


async def test_an_image_without_a_shell_says_so(containers):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    containers.engine.client().api.import_image_from_data(buffer.getvalue(), "gpufit-test/kernel", "no-shell")
    async with containers.opened(image="gpufit-test/kernel:no-shell") as watched:
        assert "this image has no /bin/sh" in await why_it_ended(containers, watched)


async def why_it_ended(containers, watched) -> str:
    """Start a unit of which the image cannot be used: refused at once, or a moment later."""
    unit = await watched.prepare(containers.uuids[0])
    try:
        await watched.run(unit, SLEEP)
    except ImageRefused as refused:
        assert not containers.left()
        return refused.message
    _, sentence = await watched.ended(unit)
    await watched.launcher.stop(unit)
    return sentence


async def test_the_words_of_an_image_that_cannot_be_used_are_the_sentence(containers):
    async with containers.opened() as watched:
        unit = await watched.prepare()
        code = "import sys, time; time.sleep(0.5); print('gpufit: its ipykernel is too old', flush=True); sys.exit(90)"
        await watched.run(unit, code)
        assert await watched.ended(unit) == (90, "its ipykernel is too old")
        await watched.launcher.stop(unit)


async def test_an_image_that_is_not_allowed(containers):
    async with containers.opened() as watched:
        with pytest.raises(ImageRefused, match="not allowed on gpu01"):
            await watched.prepare(image="evil/miner")


async def test_a_missing_image_that_may_not_be_pulled(containers):
    async with containers.opened(image="gpufit-test/none:1") as watched:
        with pytest.raises(ImageRefused, match="docker pull gpufit-test/none:1"):
            await watched.prepare()


# --- pulling ----------------------------------------------------------------------------------------------------------


async def test_a_missing_image_is_pulled_with_progress(containers, gateway):
    with Registry(gateway, size=4 * 2**20, rate=4 * 2**20) as registry:
        async with containers.opened(image=registry.name, pull="missing") as watched:
            began = time.monotonic()
            times = []
            unit = await watched.launcher.prepare(
                watched.launch(), lambda p: (watched.progress.append(p), times.append(time.monotonic() - began))
            )
            phases = [progress.phase for progress in watched.progress]
            assert phases[0] == "pulling"
            assert times[0] < 2
            assert phases[-1] == "creating"
            counted = [p for p in watched.progress if p.total]
            assert any(0 < p.current < p.total for p in counted)
            assert max(p.total for p in counted) > registry.size
            assert registry.name in counted[0].message
            watched.progress.clear()
            await watched.launcher.stop(unit)
            await watched.launcher.stop(await watched.prepare())
            assert [p.phase for p in watched.progress] == ["creating"]  # it is there now
        containers.engine.client().images.remove(registry.name)


async def test_a_pull_can_be_cancelled(containers, gateway, eventually):
    with Registry(gateway, size=64 * 2**20, rate=2**20) as registry:
        async with containers.opened(image=registry.name, pull="missing") as watched:
            task = asyncio.create_task(watched.prepare(containers.uuids[0]))
            await eventually(lambda: any(p.current for p in watched.progress), "bytes")
            task.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - began < 30  # the pull would have gone on for a minute
            await eventually(registry.broken_off.is_set, "the engine to give it up")
            assert not containers.left()


async def test_a_pull_that_fails_says_why(containers, gateway):
    with Registry(gateway) as registry:
        unknown = registry.name.replace("slow", "unknown")
        async with containers.opened(image=unknown, pull="missing") as watched:
            with pytest.raises(ImageRefused, match=f"{unknown}.* cannot be pulled on gpu01: .*(not found|unknown)"):
                await watched.prepare()
    async with containers.opened(image=registry.name, pull="missing") as watched:
        with pytest.raises(ImageRefused, match="connection refused"):
            await watched.prepare()


# --- transports -------------------------------------------------------------------------------------------------------


async def test_plain_tcp_is_refused(containers):

    from jupyter_gpufit.launching.base import make_launcher

    launcher = make_launcher(replace(containers.spec, insecure=False))
    with pytest.raises(NodeUnreachable, match="insecure = true"):
        await launcher.prepare(Launch(allocation="a", scheduler="s", owner="o", name="n", gpus={}), print)
    await launcher.close()


async def test_a_unix_socket_is_this_machine(containers):
    async with containers.opened(docker=containers.engine.unix_url, insecure=False) as watched:
        unit = await watched.prepare()
        assert not unit.encrypt
        endpoint = await watched.run(unit, SLEEP)
        assert endpoint.host == "127.0.0.1"
        bindings = containers.engine.client().api.inspect_container(unit.id)["HostConfig"]["PortBindings"]
        assert {binding[0]["HostIp"] for binding in bindings.values()} == {"127.0.0.1"}
        await watched.launcher.stop(unit)


async def test_tls(tls_engine, kernel_image, containers, kernel, evaluate, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    changes = {"name": "secure", "docker": tls_engine.url, "insecure": False, "image": kernel_image}
    async with containers.opened(tls=str(tls_engine.tls_files), **changes) as watched:
        unit = await watched.prepare(tls_engine.gpu_uuids[0])
        assert unit.encrypt
        assert await evaluate(await kernel(watched, unit), "1 + 1") == "2"
        await watched.launcher.stop(unit)


async def test_tls_without_its_files(tls_engine, containers, tmp_path, eventually):
    launcher = make_launcher(replace(containers.spec, docker=tls_engine.url, tls=str(tmp_path)))
    troubles = []
    await launcher.open(print, print, troubles.append)
    with pytest.raises(NodeUnreachable, match=r"TLS file '.*ca\.pem' is missing; gpufit.toml says tls = .*for gpu01"):
        await launcher.units()
    await eventually(lambda: troubles, "trouble")
    assert troubles[0].startswith(f"the TLS file '{tmp_path}/ca.pem' is missing")
    await launcher.close()


async def test_ssh(containers, kernel, evaluate, monkeypatch, eventually):
    engine = containers.engine
    server = engine.start_ssh()
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        async with containers.opened(docker=server.url, insecure=False) as watched:
            unit = await watched.prepare(containers.uuids[0])
            assert unit.encrypt
            assert await evaluate(await kernel(watched, unit), "1 + 1") == "2"
            await watched.launcher.stop(unit)
        assert "ssh" not in [child.name() for child in psutil.Process().children()]
    finally:
        server.stop()


async def test_ssh_that_is_refused_gives_the_reason(containers):
    server = containers.engine.start_ssh()
    try:
        launcher = make_launcher(replace(containers.spec, docker=server.url))
        with pytest.raises(NodeUnreachable, match="Host key verification failed"):  # without the test's known hosts
            await launcher.units()
        await launcher.close()
    finally:
        server.stop()


# --- engines that fail ------------------------------------------------------------------------------------------------


async def test_an_engine_that_comes_up_later(containers, impatient, eventually):
    containers.engine.kill()
    launcher, said = make_launcher(containers.spec), []
    await launcher.open(print, said.append)
    with pytest.raises(NodeUnreachable, match=r"engine of gpu01 \(tcp://.*\) does not answer"):
        await launcher.units()
    assert said == []
    await asyncio.to_thread(containers.engine.start)
    await eventually(lambda: said == [[]], "its claims")
    await launcher.close()


async def test_an_engine_that_does_not_answer_is_trouble_until_it_does(containers, impatient, eventually):
    engine = containers.engine
    engine.kill()
    launcher, troubles = make_launcher(containers.spec), []
    await launcher.open(print, print, troubles.append)
    try:
        await eventually(lambda: troubles, "trouble at first")
        assert re.fullmatch(
            r"its Docker engine does not answer since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: Connection refused \(tcp://.*\)",
            troubles[0],
        )
        await asyncio.to_thread(engine.start)
        await eventually(lambda: troubles[-1] is None, "the engine to answer")
        engine.partition()
        await eventually(lambda: troubles[-1] is not None, "the cable to be missed")
        assert "it took too long" in troubles[-1] or "No route to host" in troubles[-1]
        engine.heal()
        await eventually(lambda: troubles[-1] is None, "the engine to answer again")
    finally:
        await launcher.close()


async def test_an_engine_behind_an_ssh_that_is_refused_is_trouble(containers, eventually):
    launcher, troubles = make_launcher(replace(containers.spec, docker="ssh://me@127.0.0.1:9")), []
    await launcher.open(print, print, troubles.append)
    await eventually(lambda: troubles, "trouble")
    assert "does not answer since" in troubles[0]
    assert "Connection refused" in troubles[0]
    await launcher.close()


async def test_kill_9_of_dockerd_is_no_end_of_a_unit(containers, impatient, eventually):
    async with containers.opened() as watched:
        unit = await watched.prepare(containers.uuids[0])
        await watched.run(unit, SLEEP)
        await watched.said(unit, "up")
        containers.engine.kill()
        await asyncio.sleep(1)
        assert watched.launcher.exit_code(unit) is None
        assert watched.exits == []
        with pytest.raises(NodeUnreachable):
            await watched.launcher.stop(unit)
        assert watched.launcher.exit_code(unit) is None
        await asyncio.to_thread(containers.engine.start)  # which ends the containers it had (there is no live-restore)
        await eventually(lambda: watched.launcher.exit_code(unit) is not None, "its end to be known")
        await watched.launcher.stop(unit)
        assert not containers.left()


@pytest.mark.parametrize("how", ["kill", "stop"])  # of dockerd; of the machine, whose containers end a moment before
async def test_what_ends_with_its_engine_is_told_from_what_ends_by_itself(containers, impatient, how):
    async with containers.opened() as watched:
        lost, killed = [await watched.prepare(workspace=True) for _ in range(2)]
        for unit in (lost, killed):
            await watched.run(unit, SLEEP)
            await watched.said(unit, "up")
        containers.engine.client().api.kill(killed.id)
        await watched.ended(killed)
        assert not watched.launcher.failed_with_node(killed)
        await asyncio.to_thread(getattr(containers.engine, how))
        await asyncio.to_thread(containers.engine.start)
        _, sentence = await watched.ended(lost)
        assert "while its engine did not answer" in sentence
        assert watched.launcher.failed_with_node(lost)
        for unit in (lost, killed):
            await watched.launcher.stop(unit)


async def test_an_engine_that_is_cut_off_delays_no_other(cluster, containers, impatient, eventually, kernel):
    lost, fine = cluster["gpu01"], cluster["gpu02"]

    def at(engine):
        return containers.opened(name=engine.name, docker=engine.url)

    async with at(lost) as there, at(fine) as here:
        unit = await there.prepare(lost.gpu_uuids[0])
        await there.run(unit, SLEEP)
        await there.said(unit, "up")
        lost.partition()
        stopping = [asyncio.create_task(there.launcher.stop(unit)) for _ in range(5)]  # more than it has threads
        began = time.monotonic()
        with pytest.raises(NodeUnreachable):
            await there.launcher.interrupt(unit)
        assert time.monotonic() - began < 25  # the calls before it take 30 s each
        began = time.monotonic()
        other = await here.prepare(fine.gpu_uuids[0])
        await kernel(here, other)
        await here.launcher.stop(other)
        undisturbed = time.monotonic() - began
        assert undisturbed < 20
        assert all(isinstance(e, NodeUnreachable) for e in await asyncio.gather(*stopping, return_exceptions=True))
        assert there.launcher.exit_code(unit) is None
        os.kill(lost.client().api.inspect_container(unit.id)["State"]["Pid"], signal.SIGKILL)
        await asyncio.sleep(1)
        assert there.launcher.exit_code(unit) is None  # nobody has told us
        lost.heal()
        await eventually(lambda: there.launcher.exit_code(unit) == 137, "its end to be known")
        await there.launcher.stop(unit)


async def test_what_could_not_be_undone_is_undone_later(containers, impatient, eventually):
    async with containers.opened() as watched:
        warm = await watched.prepare()
        await watched.launcher.stop(warm)
        launch = asyncio.create_task(watched.prepare(containers.uuids[0]))
        await eventually(lambda: watched.progress[-1].phase == "creating" and len(watched.progress) > 1, "its creation")
        containers.engine.freeze()
        try:
            unit = await launch
        except NodeUnreachable:
            pass
        else:  # it was faster than the frost
            with pytest.raises(NodeUnreachable):
                await watched.run(unit, SLEEP)
        containers.engine.thaw()
        await eventually(lambda: not containers.left(), "it to be removed")


async def test_close_does_not_wait_for_an_engine_that_hangs(containers):
    async with containers.opened() as watched:
        containers.engine.freeze()
        hanging = [asyncio.create_task(watched.launcher.units()) for _ in range(6)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await watched.launcher.close()
        assert time.monotonic() - began < 10
        containers.engine.thaw()
        for task in hanging:
            with contextlib.suppress(NodeUnreachable, asyncio.CancelledError):
                await task


# --- others -----------------------------------------------------------------------------------------------------------


async def test_containers_of_others_are_left_alone(containers):
    client = containers.engine.client()
    plain = client.containers.create(containers.spec.image, ["true"])
    odd = client.containers.create(
        containers.spec.image, ["true"], labels={labels.ALLOCATION: "a", labels.PREFIX + "gpus": "no JSON"}
    )
    async with containers.opened() as watched:
        assert await watched.launcher.units() == []
        assert watched.held == set()
        await watched.launcher.stop(await watched.prepare(containers.uuids[0]))
    assert {item["Id"] for item in client.api.containers(all=True)} == {plain.id, odd.id}


async def test_a_container_removed_by_somebody_has_ended(containers):
    async with containers.opened() as watched:
        unit = await watched.prepare(containers.uuids[0])
        await watched.run(unit, SLEEP)
        containers.engine.client().api.remove_container(unit.id, force=True)
        assert (await watched.ended(unit))[0] == 137
        prepared = await watched.prepare(containers.uuids[0])
        containers.engine.client().api.remove_container(prepared.id)
        with pytest.raises(LaunchError, match="removed by somebody"):
            await watched.run(prepared, SLEEP)


async def test_what_ended_while_nobody_watched(containers):
    async with containers.opened() as before:
        unit = await before.prepare(containers.uuids[0])
        await before.run(unit, "import time; time.sleep(1); raise SystemExit(5)")
        gone = await before.prepare(containers.uuids[1])
        await before.run(gone, SLEEP)
    containers.engine.client().api.wait(unit.id)
    containers.engine.client().api.remove_container(gone.id, force=True)
    async with containers.opened() as after:
        assert await after.ended(unit) == (5, "ended with exit code 5")
        assert [found for found, _ in await after.launcher.units()] == [unit]
        assert after.launcher.exit_code(gone) == 137
        await after.launcher.stop(unit)


async def test_a_unit_prepared_by_the_server_before_us_can_be_started(containers):
    async with containers.opened() as before:
        unit = await before.prepare(containers.uuids[0])
    async with containers.opened() as after:
        await after.run(unit, SLEEP)
        await after.said(unit, "up")
        await after.launcher.stop(unit)


# --- a scheduler that died between creating and starting --------------------------------------------------------------


async def test_a_container_never_started_is_ignored_after_five_minutes(containers, monkeypatch):
    async with containers.opened("s1") as dead, containers.opened("s2") as other:
        old = await dead.prepare(containers.uuids[0])
        with pytest.raises(ClaimLost):
            await other.prepare(containers.uuids[0])
        monkeypatch.setattr("jupyter_gpufit.launching.claims.STALE_AFTER", -5.0)  # as if five minutes had passed
        new = await other.prepare(containers.uuids[0])
        monkeypatch.undo()
        await other.run(new, SLEEP)
        # And should it still live, it has to look again.
        monkeypatch.setattr("jupyter_gpufit.launching.docker.LOOK_AGAIN_AFTER", -5.0)
        with pytest.raises(ClaimLost, match=new.allocation):
            await dead.run(old, "print('ran')")
        assert containers.left() == ["/" + new.name]
        await other.launcher.stop(new)


async def test_a_late_start_that_nobody_minds(containers, monkeypatch, kernel, evaluate):
    monkeypatch.setattr("jupyter_gpufit.launching.docker.LOOK_AGAIN_AFTER", -5.0)
    async with containers.opened() as watched:
        unit = await watched.prepare(containers.uuids[0])
        assert await evaluate(await kernel(watched, unit), "1 + 1") == "2"
        await watched.launcher.stop(unit)

"""The parts without I/O: claims, labels, what is asked of an engine, and the table of what is known of it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpufit.errors import ClaimLost, ImageRefused, InvalidValue, LaunchError, NodeUnfit
from jupyter_gpufit.inventory import Mount, NodeSpec
from jupyter_gpufit.kernels.bootstrap import launch as bootstrap
from jupyter_gpufit.launching import claims, containers, labels
from jupyter_gpufit.launching.base import (
    IMAGE_UNUSABLE,
    Places,
    check_image,
    describe_end,
    fill_in,
    make_launcher,
    refusal,
)
from jupyter_gpufit.launching.machine import Machine
from jupyter_gpufit.launching.pulling import Layers
from jupyter_gpufit.launching.states import Ended, Seen, Table, ended_meanwhile, ended_unwatched, killed
from jupyter_gpufit.launching.users import entry, owner_of
from jupyter_gpufit.models import Claim, Launch, Progress, Unit

GIB = 2**30


def claim(allocation: str = "a", shared: bool = False, **gpus: int) -> Claim:
    return Claim(allocation=allocation, scheduler="s", owner="ann", gpus=gpus, shared=shared)


def launch(**wishes) -> Launch:
    wishes = {"allocation": "a", "scheduler": "s", "owner": "ann", "name": "n", "gpus": {"G1": GIB}} | wishes
    return Launch(**wishes)


def spec(**entries) -> NodeSpec:
    return NodeSpec(
        **{"name": "n1", "docker": "tcp://10.0.0.1:2375", "insecure": True, "image": "good/one:1"} | entries
    )


# --- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "others", "clash"),
    [
        (claim(G1=1), [claim(G2=1)], []),
        (claim(G1=1), [claim(G1=1)], ["G1"]),
        (claim(G1=1, G2=1), [claim(G2=1, G3=1)], ["G2"]),
        (claim(shared=True, G1=1), [claim(G1=1)], ["G1"]),
        (claim(G1=1), [claim(shared=True, G1=1)], ["G1"]),
        (claim(shared=True, G1=4), [claim(shared=True, G1=6)], []),
        (claim(shared=True, G1=5), [claim(shared=True, G1=3), claim(shared=True, G1=3)], ["G1"]),
        (claim(shared=True, G2=5), [claim(shared=True, G2=6)], []),  # how much G2 has is not known
        (claim(), [claim(G1=1)], []),
    ],
)
def test_which_claims_fit_together(mine, others, clash):
    assert sorted(claims.conflicts(mine, others, {"G1": 10})) == clash


sharing = st.builds(
    lambda shared, gpus: Claim(allocation="a", scheduler="s", gpus=gpus, shared=shared),
    st.booleans(),
    st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 10)),
)


@given(sharing, sharing, st.dictionaries(st.sampled_from("ABCD"), st.integers(0, 15)))
def test_of_two_claims_either_sees_the_clash(one, other, totals):
    """Else the one that does not see it would start beside the one that looked before."""
    assert claims.conflicts(one, [other], totals).keys() == claims.conflicts(other, [one], totals).keys()


def of_host(allocation: str, cpus: float = 0, ram: int = 0, owner: str = "ann") -> Claim:
    return Claim(allocation=allocation, scheduler="s", owner=owner, gpus={f"G-{allocation}": 1}, cpus=cpus, ram=ram)


BIG = Machine(8.0, 64 * GIB)


@pytest.mark.parametrize(
    ("mine", "others", "machine", "short"),
    [
        (of_host("a", 5), [of_host("b", 3)], BIG, []),
        (of_host("a", 5), [of_host("b", 2), of_host("c", 1.5)], BIG, ["cores"]),
        (of_host("a", 0.1), [of_host("b", 0.2), of_host("c", 7.7)], BIG, []),  # as floats they are more than 8
        (of_host("a", 5), [of_host("b", 3), of_host("b", 3)], BIG, []),  # one allocation
        (of_host("a", 5), [of_host("a", 5)], BIG, []),  # itself
        (of_host("a"), [of_host("b", 8), of_host("c", 8)], BIG, []),  # it asks for none
        (of_host("a", ram=GIB), [of_host("b", ram=64 * GIB)], BIG, ["RAM"]),
        (of_host("a", 5, GIB), [of_host("b", 5, 64 * GIB)], BIG, ["RAM", "cores"]),
        (of_host("a", 5, GIB), [of_host("b", 5, 64 * GIB)], Machine(), []),
        (of_host("a", 5), [of_host("b", 4), of_host("c", -9)], BIG, ["cores"]),
    ],
)
def test_which_claims_the_machine_has_room_for(mine, others, machine, short):
    assert sorted(claims.crowded(mine, others, machine)) == short


asking = st.builds(of_host, st.sampled_from("ab"), st.sampled_from([0, 0.1, 4, 7.9]), st.sampled_from([0, GIB]))


@given(asking, asking, st.builds(Machine, st.sampled_from([None, 4.0, 8.0]), st.sampled_from([None, GIB, 3 * GIB])))
def test_of_two_claims_either_sees_that_there_is_no_room(one, other, machine):
    assert claims.crowded(one, [other], machine).keys() == claims.crowded(other, [one], machine).keys()


def test_a_claim_that_the_machine_has_no_room_for_says_who_has_it():
    others = [of_host("b", 2, owner="ben"), of_host("c", 4, GIB), of_host("d")]
    with pytest.raises(ClaimLost) as caught:
        claims.check(of_host("a", 4, 64 * GIB), others, None, "n1", BIG)
    assert caught.value.message == (
        "another scheduler was faster on n1: 6 of its 8 cores are held by allocation b of ben, allocation c of ann, 4 "
        "asked; 63 GiB of its RAM is left beside allocation c of ann, 64 GiB asked"
    )
    claims.check(of_host("a", 4, 64 * GIB), others, None, "n1")  # how large it is is not known


def test_a_lost_claim_names_gpu_and_holder():
    with pytest.raises(ClaimLost, match="faster on n1: G1 is held by allocation b of ann") as caught:
        claims.check(claim(G1=1), [claim("b", G1=1)], None, "n1")
    assert caught.value.details["gpus"] == ["G1"]


@pytest.mark.parametrize(
    ("state", "age", "held"),
    [
        ("created", 0, True),
        ("created", 299, True),
        ("created", 300, False),
        ("running", 1e6, True),
        ("paused", 1e6, True),
        ("restarting", 1e6, True),
        ("exited", 0, False),
        ("dead", 0, False),
        ("removing", 0, False),
    ],
)
def test_which_containers_hold_their_gpus(state, age, held):
    assert claims.holds(state, age) is held


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_are_those_of_the_design():
    wishes = {"kernel": "k1", "expires": 12.5, "shared": True, "cards": {"G1": "C1"}}
    prefix = "io.github.jupyter-gpufit."
    assert {name.removeprefix(prefix): text for name, text in labels.encode(launch(**wishes)).items()} == {
        "allocation": "a",
        "scheduler": "s",
        "owner": "ann",
        "kernel": "k1",
        "gpus": '{"G1":1073741824}',
        "cards": '{"G1":"C1"}',
        "expires": "12.5",
        "shared": "true",
    }


def test_labels_tell_what_was_asked_of_the_machine():
    written = labels.encode(launch(cpus=0.29, ram=2**36 + 1))
    assert {name.rpartition(".")[2]: text for name, text in written.items()}.items() >= {
        ("cpus", "0.29"),
        ("ram", "68719476737"),
    }
    claim = labels.decode(written, "id")
    assert (claim.cpus, claim.ram) == (0.29, 2**36 + 1)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-1", "many", "1e999", "-inf"])
def test_labels_of_the_machine_that_cannot_be_meant_hold_nothing_of_it(text):
    prefix = "io.github.jupyter-gpufit."
    claim = labels.decode(labels.encode(launch()) | {f"{prefix}cpus": text, f"{prefix}ram": text}, "id")
    assert (claim.cpus, claim.ram, claim.gpus) == (0, 0, {"G1": GIB})


@given(st.text(), st.dictionaries(st.text(), st.integers(0, 2**60)), st.booleans())
def test_labels_come_back_as_the_claim(owner, gpus, shared):
    written = labels.encode(launch(owner=owner, gpus=gpus, shared=shared))
    assert labels.decode(written, "c1") == Claim(
        allocation="a", scheduler="s", owner=owner, gpus=gpus, shared=shared, container="c1"
    )


@pytest.mark.parametrize("gpus", ["", "[]", '{"G1": "much"}', "{"])
def test_labels_that_cannot_be_read(gpus):
    with pytest.raises(InvalidValue, match="container c1"):
        labels.decode({labels.ALLOCATION: "a", labels.PREFIX + "gpus": gpus}, "c1")


# --- what is asked of an engine ---------------------------------------------------------------------------------------


def test_a_container_is_made_with_all_its_fences():
    wanted = spec(
        ram=4 * GIB,
        cpus=1.5,
        pids=99,
        shm_size=GIB,
        workdir="/work",
        models="/srv/models",
        mounts=(Mount(source="/data", target="/data"), Mount(source="/out", target="/out", read_only=False)),
    )
    body = containers.create_body(wanted, launch(gpus={"G2": 1, "G1": 2}), "img", "10.0.0.1")
    host = body["HostConfig"]
    assert host["DeviceRequests"] == [{"DeviceIDs": ["G2", "G1"], "Capabilities": [["gpu"]]}]
    assert host["Init"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["RestartPolicy"] == {"Name": "no"}
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (4 * GIB, 4 * GIB, 1_500_000_000)
    assert (host["PidsLimit"], host["ShmSize"]) == (99, GIB)
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("/data", "/data", True),
        ("/out", "/out", False),
        ("/srv/models", "/models", True),
    ]
    assert host["PortBindings"]["52001/tcp"] == [{"HostIp": "10.0.0.1", "HostPort": ""}]
    assert len(host["PortBindings"]) == 5
    assert body["WorkingDir"] == "/work"
    assert body["Env"] == ["GPUFIT_MODELS=/models"]


def test_a_container_has_what_it_asked_for_of_the_machine():
    asked = launch(cpus=2.5, ram=3 * GIB)
    for node in (spec(), spec(ram=4 * GIB, cpus=8)):
        body = containers.create_body(node, asked, "img", "10.0.0.1")
        host = body["HostConfig"]
        assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (3 * GIB, 3 * GIB, 2_500_000_000)
        assert body["Env"] == ["OMP_NUM_THREADS=3", "PYTHON_CPU_COUNT=3"]
    for cores, limit in ((None, 16), (8.0, 8), (64.0, 16)):
        host = containers.create_body(spec(cpus=16), launch(), "img", "10.0.0.1", cores=cores)["HostConfig"]
        assert host["NanoCpus"] == limit * 1e9
    body = containers.create_body(spec(), asked, "img", "10.0.0.1", says={"PATH", "OMP_NUM_THREADS"})
    assert body["Env"] == ["PYTHON_CPU_COUNT=3"]


def test_a_container_without_gpus_sees_none_whatever_its_image_says():
    body = containers.create_body(spec(), launch(gpus={}), "img", "127.0.0.1")
    assert "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]
    assert "DeviceRequests" not in body["HostConfig"]
    assert "Memory" not in body["HostConfig"]


def test_a_unit_with_a_folder_is_ours_there():
    wanted = spec(
        workdir="/elsewhere",
        models="/srv/models",
        shared=("/home",),
        mounts=(Mount(source="/a", target="/home/ann/p"), Mount(source="/b", target="/b")),
    )
    asked = launch(folder="/home/ann/p", workspace=True, write_models=True)
    body = containers.create_body(wanted, asked, "img", "10.0.0.1", "/net/ann/p", "1234:100")
    assert (body["User"], body["WorkingDir"]) == ("1234:100", "/home/ann/p")
    assert {"HOME=/gpufit/home", "USER=gpufit", "LOGNAME=gpufit"} < set(body["Env"])
    mounts = [(m["Source"], m["Target"], m["ReadOnly"]) for m in body["HostConfig"]["Mounts"]]
    assert mounts == [
        ("/b", "/b", True),
        ("/srv/models", "/models", False),
        ("/net/ann/p", "/home/ann/p", False),
    ]
    assert body["ExposedPorts"] == {}
    assert containers.create_body(wanted, launch(folder="/home/ann/p"), "img", "h")["User"] == (
        f"{os.getuid()}:{os.getgid()}"
    )


def test_a_unit_with_a_workspace():
    body = containers.create_body(spec(workdir="/elsewhere"), launch(workspace=True), "img", "10.0.0.1")
    assert body["WorkingDir"] == "/work"
    assert "User" not in body
    assert body["HostConfig"]["PortBindings"] == {}


def test_a_store_that_may_not_be_written_is_not():
    body = containers.create_body(spec(models="/m", models_write=False), launch(write_models=True), "img", "h")
    assert body["HostConfig"]["Mounts"][0]["ReadOnly"] is True


def test_which_folders_are_mounted(tmp_path):
    home = tmp_path / "home"
    (home / "mine").mkdir(parents=True)
    (home / "out").symlink_to("/")
    (home / "in").symlink_to(home / "mine")
    node = spec(shared=(str(home),), models="/srv/models")
    assert containers.check_folder(node, str(home / "mine")) == str(home / "mine")
    assert containers.check_folder(node, str(home / "in")) == str(home / "mine")
    for folder, why in (
        (str(home / "out"), "'/', to which '.*/home/out' leads, is not shared with n1"),
        (str(home / "../other"), "cannot be mounted"),
        (str(tmp_path), "is not shared with n1; add it to `shared` in gpufit.toml"),
        ("/proc/self", "cannot be mounted"),
        ("/", "cannot be mounted"),
        ("/models/x", "containers have something of their own there"),
        ("/gpufit", "containers have something of their own there"),
    ):
        with pytest.raises(LaunchError, match=why):
            containers.check_folder(node, folder)


def test_directories_are_put_in_once():
    places = Places("/g", "/folder/{outputs}", "/o")
    assert fill_in("{gpufit}/x {work} {outputs} {lr} {", places) == "/g/x /folder/{outputs} /o {lr} {"
    script = containers.run_script(["true", "{work}"], {"OUT": "{outputs}"}, "/a b").decode()
    assert "exec true '/a b'" in script
    assert "export OUT=/outputs" in script


def test_a_restart_asks_for_its_ports():
    body = containers.create_body(spec(), launch(host_ports=(1, 2, 3, 4, 5)), "img", "10.0.0.1")
    assert [b[0]["HostPort"] for b in body["HostConfig"]["PortBindings"].values()] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("docker", "address", "bind", "host", "encrypt"),
    [
        ("unix:///var/run/docker.sock", None, "127.0.0.1", "127.0.0.1", False),
        ("unix:///var/run/docker.sock", "10.0.0.7", "10.0.0.7", "10.0.0.7", True),
        ("tcp://10.0.0.1:2376", None, "10.0.0.1", "10.0.0.1", True),
        ("tcp://gpu01:2376", None, "0.0.0.0", "gpu01", True),
        ("tcp://gpu01:2376", "10.0.0.7", "10.0.0.7", "10.0.0.7", True),
        ("ssh://me@gpu01", None, "0.0.0.0", "gpu01", True),
        ("tcp://localhost:2375", None, "127.0.0.1", "127.0.0.1", False),
        ("tcp://127.0.0.1:2375", "gpu01.example.org", "0.0.0.0", "gpu01.example.org", True),
    ],
)
def test_how_a_node_is_reached(docker, address, bind, host, encrypt):
    assert containers.reach(spec(docker=docker, address=address)) == containers.Reach(bind, host, encrypt)


@pytest.mark.parametrize("value", ["plain", "it's", '"$HOME" `x` \\', "two\nlines", "", "é"])
def test_the_run_script_keeps_every_word(value, tmp_path):
    script = containers.run_script(["printf", "%s|", value, "{gpufit}/x"], {"VALUE": value})
    (tmp_path / "run").write_bytes(script.replace(b"exec printf", b"exec printf '%s|' \"$VALUE\"; exec printf", 1))
    assert subprocess.run(["sh", tmp_path / "run"], capture_output=True, text=True).stdout == f"{value}|"
    (tmp_path / "run").write_bytes(script)
    printed = subprocess.run(["sh", tmp_path / "run"], capture_output=True, text=True).stdout
    assert printed == f"{value}|/gpufit/x|"


def test_the_run_script_without_python_says_so(tmp_path):
    script = tmp_path / "run"
    script.write_bytes(containers.run_script(["{python}", "-V"], {}))
    found = subprocess.run(["/bin/sh", script], env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert found.returncode == 90
    assert "no python3 on its PATH (/nowhere)" in refusal(found.stdout.splitlines())


def test_the_archive_belongs_to_the_image_user_alone():
    data = containers.archive({"a/b/c": b"1", "a/d": b"2", "run": b""}, (1000, 100))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {m.name: (m.mode, m.uid, m.gid, m.isdir()) for m in tar}
    folder, file = (0o700, 1000, 100, True), (0o600, 1000, 100, False)
    assert found == {
        "gpufit": folder,
        "gpufit/a": folder,
        "gpufit/a/b": folder,
        "gpufit/a/b/c": file,
        "gpufit/a/d": file,
        "gpufit/run": file,
    }


def test_the_archive_for_a_user_nobody_knows_is_for_all():
    with tarfile.open(fileobj=io.BytesIO(containers.archive({"x": b""}, None))) as tar:
        assert [m.mode for m in tar] == [0o777, 0o666]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a//b"])
def test_the_archive_keeps_to_its_directory(name):
    with pytest.raises(LaunchError, match="outside"):
        containers.archive({name: b""}, (0, 0))


def test_a_users_entry():
    passwd = "root:x:0:0:root:/root:/bin/sh\n# comment\nbroken:line\njovyan:x:1000:100::/home/jovyan:/bin/bash\n"
    assert entry(passwd, "jovyan") == (1000, 100)
    assert entry(passwd, "broken") is None
    assert entry(passwd, "ann") is None


def test_what_an_image_says_of_its_users_is_read_in_part():
    class Client:
        def get_archive(self, container, path):
            return iter(lambda: bytes(2**20), None), {}  # endless

    for user in ("ann", "²", "9" * 5000):
        assert owner_of(Client(), "c", user) is None
    assert owner_of(Client(), "c", "1000:100") == (1000, 100)


def test_images_are_those_the_inventory_allows():
    allowed = spec(images=("good/*", "exact:1"))
    for image in ("good/one:1", "good/other", "exact:1"):
        check_image(allowed, image)
    for image in ("bad/good/one:1", "exact:12", "Good/one"):
        with pytest.raises(ImageRefused, match=r"not allowed on n1; allowed there: good/one:1, good/\*, exact:1"):
            check_image(allowed, image)


def test_the_launcher_for_a_node():
    assert make_launcher(spec()).kind == "docker"
    assert make_launcher(NodeSpec(name="here")).kind == "process"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "nvidia-container-toolkit"),
        ("Bind for 10.0.0.1:4000 failed: port is already allocated", "10.0.0.1:4000.*request again"),
        ("listen tcp 10.0.0.1:0: bind: cannot assign requested address", "10.0.0.1 is not an address"),
        ("nvidia-container-cli: device error: G1: unknown device", "G1: unknown device"),
    ],
)
def test_a_refusal_to_start_says_what_to_do(words, part):
    assert re.search(part, containers.why_not_started(words, "10.0.0.1"))


def test_the_words_of_an_image_that_cannot_be_used():
    assert "no /bin/sh" in refusal(["[FATAL tini (6)] exec /bin/sh failed: No such file or directory"])
    assert refusal(["ordinary", "lines"]) is None
    assert refusal(["gpufit: first", "gpufit: last", "other"]) == "last"


def test_the_kernels_room_means_the_same_by_its_exit_code():
    assert bootstrap.IMAGE_UNUSABLE == IMAGE_UNUSABLE


# --- how things end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "how", "sentence"),
    [
        (0, {}, "ended with exit code 0"),
        (3, {}, "ended with exit code 3"),
        (137, {}, "killed by SIGKILL (exit code 137)"),
        (137, {"memory": True, "limit": 2 * GIB}, "killed for memory: limit 2 GiB"),
        (137, {"memory": True}, "killed for memory: the node had none left"),
        (90, {"said": "this image has no ipykernel"}, "this image has no ipykernel"),
        (90, {}, "ended with exit code 90"),
        (255, {}, "ended with exit code 255"),
    ],
)
def test_a_sentence_for_every_end(code, how, sentence):
    assert describe_end(code, **how) == sentence


# --- the table --------------------------------------------------------------------------------------------------------


def seen(state: str, id: str = "c1", **more) -> Seen:
    unit = Unit(id=id, name=id, node="n1", allocation="a" + id)
    return Seen(unit=unit, claim=claim("a" + id, G1=1), state=state, **more)


def test_an_end_is_news_once():
    table = Table()
    table.listed([seen("created", created=100.0)])
    assert table.happened(seen("running")) == []
    assert table.end_of(seen("running").unit) is None
    (end,) = table.happened(seen("exited", code=3, sentence="how"))
    assert (end.code, end.sentence) == (3, "how")
    assert table.happened(seen("gone")) == []
    assert table.listed([]) == []
    assert table.end_of(end.unit) == end


def test_what_is_missing_from_the_list_was_removed():
    table = Table()
    table.listed([seen("running", "c1"), seen("running", "c2")])
    (end,) = table.listed([seen("running", "c2")])
    assert (end.unit.id, end.code) == ("c1", 137)
    assert table.end_of(seen("running", "c2").unit) is None


def test_nothing_is_known_before_the_first_list():
    table = Table()
    unit = seen("running").unit
    assert table.end_of(unit) is None
    table.listed([])
    assert table.end_of(unit).code == 137


def test_what_we_removed_does_not_come_back():
    table = Table()
    table.listed([seen("running")])
    table.dismiss(seen("running").unit)
    assert table.claims(0.0) == []
    assert table.happened(seen("exited", code=137)) == []
    assert table.listed([seen("running")]) == []  # a list of before
    assert table.claims(0.0) == []
    assert table.end_of(seen("running").unit) == Ended(seen("running").unit, 137, "stopped")


def test_a_list_from_just_before_a_container_was_made_is_no_end():
    table = Table()
    table.listed([])
    table.happened(seen("created"))  # as `prepare` says
    assert table.listed([]) == []
    assert table.happened(seen("created", created=5.0)) == []  # the engine's event
    assert table.end_of(seen("created").unit) is None
    table.happened(seen("running"))
    (end,) = table.happened(seen("exited", code=1))
    assert end.code == 1
    assert table.happened(seen("running")) == []  # an event older than the end: does not undo it
    assert table.end_of(end.unit) == end


def test_what_never_ran_does_not_end():
    table = Table()
    table.listed([])
    table.happened(seen("created", created=1.0))
    assert table.happened(seen("gone")) == []  # another scheduler's claim was lost
    assert table.end_of(seen("gone").unit) is not None


def test_who_holds_what_follows_state_and_age():
    table = Table()
    table.listed(
        [seen("created", "c1", created=1000.0), seen("running", "c2", created=1.0), seen("exited", "c3", code=0)]
    )
    assert [claim.allocation for claim in table.claims(1299.0)] == ["ac1", "ac2"]
    assert [claim.allocation for claim in table.claims(1300.0)] == ["ac2"]
    table.happened(seen("running", "c1"))
    table.happened(seen("paused", "c2"))
    assert [claim.allocation for claim in table.claims(9999.0)] == ["ac1", "ac2"]


@pytest.mark.parametrize(
    ("how", "blamed"),
    [
        ({"code": 137}, True),
        ({"code": 143}, True),
        ({"code": 255}, True),
        ({"code": 137, "memory": True}, False),
        ({"code": 0}, False),
        ({"code": 1}, False),
    ],
)
def test_what_was_killed_while_nobody_watched_was_its_nodes_doing(how, blamed):
    assert ended_unwatched(seen("exited", **how)).with_node is blamed
    table = Table()
    (end,) = table.listed([ended_unwatched(seen("exited", **how))])
    assert end.with_node is blamed


def test_a_node_is_blamed_afterwards():
    table = Table()
    table.listed([seen("running")])
    (end,) = table.happened(seen("exited", code=137, sentence="killed"))
    assert killed(end)
    assert not end.with_node
    assert table.blame_node(end.unit).sentence.startswith("killed while its engine did not answer")
    assert table.end_of(end.unit).with_node


# --- pulling ----------------------------------------------------------------------------------------------------------


def test_layers_are_added_up():
    lines = """
        {"status": "Pulling from library/x", "id": "latest"}
        {"status": "Pulling fs layer", "id": "l1", "progressDetail": {}}
        {"status": "Pulling fs layer", "id": "l2", "progressDetail": {}}
        {"status": "Already exists", "id": "l0", "progressDetail": {}}
        {"status": "Downloading", "id": "l1", "progressDetail": {"current": 10, "total": 100}}
        {"status": "Downloading", "id": "l2", "progressDetail": {"current": 5, "total": 50}}
        {"status": "Verifying Checksum", "id": "l2", "progressDetail": {}}
        {"status": "Download complete", "id": "l2", "progressDetail": {}}
        {"status": "Downloading", "id": "l1", "progressDetail": {"current": 60, "total": 100}}
    """
    layers = Layers("img")
    assert layers.progress() == Progress(phase="pulling", current=0, message="pulling img")
    for line in lines.strip().splitlines():
        layers.take(json.loads(line))
    assert layers.progress() == Progress(phase="pulling", current=110, total=150, message="pulling img")
    layers.take({"status": "Extracting", "id": "l1", "progressDetail": {"current": 1, "total": 100}})
    assert layers.progress().message == "unpacking img"
    layers.take({"status": "Digest: sha256:0"})
    layers.take({"status": "Pull complete", "id": "l1", "progressDetail": {}})
    assert layers.progress() == Progress(phase="pulling", current=150, total=150, message="pulling img")


def test_an_end_while_the_engine_was_silent_says_so():
    one = Unit(id="U", name="u", node="n1", allocation="a")
    seen = Seen(unit=one, claim=claim(), state="exited", code=137, sentence="killed by SIGKILL (exit code 137)")
    assert ended_meanwhile(seen).sentence == (
        "killed by SIGKILL (exit code 137) while its engine did not answer "
        "(one that starts again without live-restore ends what it ran)"
    )
    running = Seen(unit=one, claim=claim(), state="running")
    assert ended_meanwhile(running) is running


@pytest.mark.parametrize(
    "words",
    ["mkdir /var/lib/docker/x: no space left on device", "write: disk quota exceeded", "No space left on device"],
)
def test_a_full_disk_is_a_node_on_which_nothing_can_be_launched(words):
    with pytest.raises(NodeUnfit, match=r"the disk of n1 is full \(.*\); free some there"):
        containers.check_disk("n1", words)


def test_other_words_are_no_full_disk():
    containers.check_disk("n1", "port is already allocated")

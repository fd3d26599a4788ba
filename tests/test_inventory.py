"""`gpufit.toml`: what it may say, and how it says what is wrong."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpufit import inventory
from jupyter_gpufit._gpufit_toml import parse
from jupyter_gpufit._this_machine import this_machine
from jupyter_gpufit.errors import InventoryError
from jupyter_gpufit.inventory import Mount, NodeSpec
from jupyter_gpufit.memory import GiB

PATIENT = settings(deadline=None)  # the machine may be busy with other things

FILE = Path("/etc/gpufit/gpufit.toml")


def spec(text: str) -> NodeSpec:
    """The one node of an inventory."""
    (node,) = parse(text, FILE).nodes
    return node


def node(keys: str, name: str = "gpu01") -> NodeSpec:
    return spec(f'[[node]]\nname = "{name}"\n{keys}')


def refusal(text: str) -> InventoryError:
    with pytest.raises(InventoryError) as caught:
        parse(text, FILE)
    return caught.value


# --- what it may say


def test_the_example_of_the_design() -> None:
    read = parse(
        """
        [defaults]
        image = "quay.io/jupyter/pytorch-notebook:cuda12-latest"
        monitor_period = "5s"
        [[node]]
        name = "gpu01"
        docker = "tcp://gpu01:2376"
        tls = "tls"
        report = "http://gpu01:9477"
        address = "10.0.0.11"
        monitor_period = "2s"
        models = "/srv/models"
        labels = { room = "b12" }
        [[node]]
        name = "gpu02"
        docker = "ssh://me@gpu02"
        report = "https://gpu02:9477/gpufit/"
        """,
        FILE,
    )
    first, second = read.nodes
    assert first == NodeSpec(
        name="gpu01",
        docker="tcp://gpu01:2376",
        tls="/etc/gpufit/tls",
        report="http://gpu01:9477",
        address="10.0.0.11",
        monitor_period=2.0,
        models="/srv/models",
        labels={"room": "b12"},
    )
    assert (second.monitor_period, second.docker, second.report) == (5.0, "ssh://me@gpu02", "https://gpu02:9477/gpufit")
    assert (first.launcher, first.reached_at, second.reached_at) == ("docker", "10.0.0.11", "gpu02")
    assert (read.policy, read.path) == ("best-fit", str(FILE))


def test_every_key_is_read() -> None:
    """No key of `NodeSpec` without a reader, and each arrives as what people meant."""
    every: dict[str, tuple[str, Any]] = {
        "docker": ('"unix:///run/user/1000/docker.sock"', "unix:///run/user/1000/docker.sock"),
        "report": ('"simulated:2xA100-40GB"', "simulated:2xA100-40GB"),
        "report_token_file": ('"/run/token"', "/run/token"),
        "address": ('"fe80::1"', "fe80::1"),
        "monitor_period": ('"1m30s"', 90.0),
        "timeout": ("2", 2.0),
        "stale_after": ('"5m"', 300.0),
        "idle_after": ('"1h30m"', 5400.0),
        "idle_warning": ('"5m"', 300.0),
        "image": ('"lab/torch:2"', "lab/torch:2"),
        "images": ('["lab/*", "quay.io/jupyter/*"]', ("lab/*", "quay.io/jupyter/*")),
        "pull": ('"never"', "never"),
        "shm_size": ('"8GiB"', 8 * GiB),
        "ram": ('"64GB"', 64 * 10**9),
        "cpus": ("1.5", 1.5),
        "pids": ("1000", 1000),
        "workdir": ('"/home/lab"', "/home/lab"),
        "mounts": (
            '["/srv/data:/data", "/scratch:/scratch:rw", {source = "/a", target = "/b", read_only = false}]',
            (
                Mount(source="/srv/data", target="/data"),
                Mount(source="/scratch", target="/scratch", read_only=False),
                Mount(source="/a", target="/b", read_only=False),
            ),
        ),
        "tls": ('"~/certs"', str(Path("~/certs").expanduser())),
        "insecure": ("true", True),
        "allow_plaintext": ("true", True),
        "models": ('"/srv/models"', "/srv/models"),
        "models_write": ("false", False),
        "shared": ('["/home/", "/srv/projects"]', ("/home", "/srv/projects")),
        "enforce": ('"stop"', "stop"),
        "labels": ('{ room = "b12" }', {"room": "b12"}),
    }
    assert {"name", *every} == set(NodeSpec.__struct_fields__)
    text = "\n".join(f"{key} = {toml}" for key, (toml, _) in every.items())
    expected = NodeSpec(name="gpu01", **{key: value for key, (_, value) in every.items()})
    assert node(text) == expected
    assert spec(f'[defaults]\n{text}\n[[node]]\nname = "gpu01"') == expected, "[defaults] fills nodes"


def test_a_node_without_docker_runs_plain_processes() -> None:
    for keys in ("", 'docker = "process"', 'report = "simulated:1xH100"'):
        assert node(keys).launcher == "process"
        assert node(keys).reached_at == "127.0.0.1"
    own = spec('[defaults]\ndocker = "unix:///d.sock"\n[[node]]\nname = "a"\ndocker = "process"')
    assert own.docker is None, "a node can do without the engine of the defaults"


def test_patience_grows_with_the_period() -> None:
    assert node("").stale_after == 30
    assert node('monitor_period = "1m"').stale_after == 184, "three periods and a timeout"
    assert node('monitor_period = "1m"\nstale_after = "70s"').stale_after == 70, "what is said is taken"


def test_policies_are_those_of_the_scheduler() -> None:
    policies = pytest.importorskip("jupyter_gpufit.scheduling.policies")
    assert sorted(inventory.POLICIES) == policies.names()
    for policy in inventory.POLICIES:
        assert parse(f'policy = "{policy}"\n[[node]]\nname = "a"', FILE).policy == policies.find(policy).name


# --- how it says what is wrong

REFUSED = [  # keys of a node, the key at fault, what the message has to say besides file, node and key
    ('docker = "gpu01:2376"', "docker", "tcp://gpu01:2376"),
    ('docker = "http://gpu01:2375"', "docker", "'http://gpu01:2375'.*none of the schemes unix://, tcp://, ssh://"),
    ('docker = "tcp://gpu01"', "docker", "no port"),
    ('docker = "tcp://gpu01:99999"', "docker", "not an address"),
    ('docker = "tcp://:2376"', "docker", "host"),
    ('docker = "tcp://me@gpu01:2376"', "docker", "user"),
    ('docker = "tcp://gpu01:2376/x"', "docker", "more than"),
    ('docker = "unix://var/run/docker.sock"', "docker", "three slashes"),
    ('docker = "ssh://-oProxyCommand=x@gpu01"', "docker", "more than"),
    ('docker = "ssh://-oProxyCommand=x"', "docker", "host"),
    ('docker = "ssh://gpu01/%0a"', "docker", "more than"),
    ("docker = 5", "docker", "docker = 5: has to be text, in quotes"),
    ('docker = "tcp://127.0.0.1:2375"', "docker", "insecure = true"),
    ('docker = "tcp://gpu02:2375"\ninsecure = true', "report", "GPUs are read on this machine.*http://gpu02:9477"),
    ('docker = "ssh://gpu02"', "report", "http://gpu02:9477"),
    ('report = "http://gpu01:9477"', "docker", "plain processes run only on this machine"),
    ('report = "http://gpu01:9477"\ndocker = "process"', "docker", "plain processes run only on this machine"),
    ('report = "gpu01:9477"', "report", "http://gpu01:9477"),
    ('report = "http://gpu01"', "report", "no port.*9477"),
    ('report = "http://gpu01:9477?x=1"', "report", "more than"),
    ('report = "http://me@gpu01:9477"', "report", "report_token_file"),
    ('report = "simulated:"', "report", "4xA100-40GB"),
    ('report = "simulated"', "report", "simulated:4xA100-40GB"),
    ('report = "Local"', "report", "'local'"),
    ('address = "http://10.0.0.1"', "address", "without scheme and port"),
    ('address = "10.0.0.1:80x"', "address", "10.0.0.1:80x"),
    ('monitor_period = "fast"', "monitor_period", "'fast' is not a duration.*'90s'"),
    ("monitor_period = 0", "monitor_period", "0"),
    ("monitor_period = true", "monitor_period", "not a duration"),
    ('timeout = "2h"', "timeout", "'2h'.*from 100ms to 1m"),
    ('stale_after = "1s"', "stale_after", "less than the monitor_period \\(5s\\)"),
    ('shm_size = "lots"', "shm_size", "'lots' is not a size"),
    ("shm_size = 1.5", "shm_size", "not a size"),
    ('ram = "1MiB"', "ram", "too little; give at least 64MiB"),
    ("cpus = 0", "cpus", "cpus = 0: has to be a number > 0$"),
    ("cpus = nan", "cpus", "nan"),
    ("pids = 0", "pids", "pids = 0: has to be a whole number >= 16$"),
    ("pids = true", "pids", "pids = True: has to be a whole number"),
    ('insecure = "yes"', "insecure", "'yes': has to be true or false, without quotes"),
    ('pull = "sometimes"', "pull", "is not one of 'missing', 'never', 'always'$"),
    ('pull = "allways"', "pull", "did you mean 'always'"),
    ('image = ""', "image", "empty"),
    ('images = "lab/*"', "images", "has to be a list, in"),
    ("images = [1]", "images", "has to be text, in quotes"),
    ('workdir = "work"', "workdir", "absolute"),
    ('models = "/srv/../etc"', "models", r"without '\.\.'"),
    ('mounts = ["/data"]', "mounts", "'/data:/data'|/srv/data:/data"),
    ('mounts = ["/data:/data:rx"]', "mounts", "not a mount"),
    ('mounts = ["data:/data"]', "mounts", "absolute"),
    ('mounts = ["/a:/c", "/b:/c/"]', "mounts", "/c is the target of two mounts"),
    ('mounts = ["/var/run/docker.sock:/s"]', "mounts", "root of the node"),
    ('mounts = ["/a:/proc"]', "mounts", "container's own"),
    ('mounts = ["/a:/"]', "mounts", "container's own"),
    ('mounts = [{source = "/a", target = "/b", mode = "rw"}]', "mounts", "'mode'"),
    ('mounts = [{source = "/a"}]', "mounts", "target"),
    ('mounts = ["/a:/models"]\nmodels = "/srv"', "mounts", "/models is where 'models' is mounted"),
    ('mounts = ["/srv/work:/work:rw"]', "mounts", "/work is a container's own"),
    ('mounts = ["/srv/work://work"]', "mounts", "/work is a container's own"),
    ('mounts = ["/srv/work://"]', "mounts", "/ is the container's own"),
    ('models_write = "no"', "models_write", "'no': has to be true or false, without quotes"),
    ('shared = "/home"', "shared", "has to be a list, in"),
    ('shared = ["home"]', "shared", "not an absolute path"),
    ('shared = ["/home/../etc"]', "shared", r"without '\.\.'"),
    ('shared = ["/"]', "shared", "/ cannot be shared as a whole; name the directories below it"),
    ('shared = ["/home", "/home/"]', "shared", "/home is named twice"),
    ("shared = [5]", "shared", "has to be text, in quotes"),
    ('enforce = "kill"', "enforce", "is not one of 'warn', 'stop'$"),
    ('enforce = "stopp"', "enforce", "did you mean 'stop'"),
    ("enforce = true", "enforce", "is not one of 'warn', 'stop'"),
    ("labels = { rack = 5 }", "labels", "the label 'rack' is 5; labels are text: write rack = \"5\""),
    ("labels = { fast = true }", "labels", "the label 'fast' is True; labels are text: write fast = \"true\""),
    ("labels = 1", "labels", "labels = 1: has to be a table"),
    ('image = "UPPER case"', "image", "cannot be the name of an image; write it like"),
    ('image = "lab/PyTorch"', "image", "names of images have no capital letters"),
    ('image = "lab/pytorch:"', "image", "cannot be the name of an image"),
    ('mounts = [{source = 1, target = "/b"}]', "mounts", "'source' has to be text, in quotes"),
    ('monitor_perod = "2s"', "monitor_perod", "did you mean 'monitor_period'"),
    ('monitor-period = "2s"', "monitor-period", "did you mean 'monitor_period'"),
    ('DOCKER = "unix:///x"', "DOCKER", "did you mean 'docker'"),
    ("zzz = 1", "zzz", "the keys here are name, docker, report"),
    ('report_token = "s3cr3t"', "report_token", "did you mean 'report_token_file'"),
]


@pytest.mark.parametrize(("keys", "key", "says"), REFUSED, ids=[row[0].replace("\n", "; ") for row in REFUSED])
def test_an_error_names_file_node_key_value_and_reason(keys: str, key: str, says: str) -> None:
    error = refusal(f'[[node]]\nname = "gpu01"\n{keys}')
    assert error.message.startswith(f"{FILE}: [[node]] 'gpu01': {key}"), error.message
    assert re.search(says, error.message), error.message
    assert error.details == {"file": str(FILE), "node": "gpu01", "key": key}
    assert "s3cr3t" not in error.message
    if key in keys:
        other = refusal(f'[defaults]\n{keys}\n[[node]]\nname = "gpu01"')
        assert f"{key}" in other.message, "the same in [defaults]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"has no \[\[node\]\]"),
        ("[[node]", "is not TOML"),
        ("[[node]]\nname = gpu01", 'is not TOML: .*line 2.*; text needs quotes: name = "gpu01"$'),
        ('[[node]]\nname = "a"\nreport = http://a:9477  # here', 'text needs quotes: report = "http://a:9477"$'),
        ("[[node]]\npassword = hunter", 'text needs quotes: password = "…"$'),
        ('[[node]]\nname = "a"\ninsecure = yes', "is not TOML"),
        ('[node]\nname = "a"', r"write \[\[node\]\], with two brackets"),
        ('[[nodes]]\nname = "a"', "nodes: there is no such key; did you mean 'node'"),
        ("[[node]]\n[[node]]", "number 1: name: is missing"),
        ('[[node]]\nname = "a"\n[[node]]\nname = "a"', "'a': name = 'a': another .* has this name"),
        ('[[node]]\nname = "a b"', "cannot be a name"),
        ("[[node]]\nname = 7", "number 1: name = 7: has to be text"),
        ('[defaults]\nname = "a"\n[[node]]\nname = "a"', "each node's own"),
        ('[defaults]\nshm_sise = "1GiB"\n[[node]]\nname = "a"', r"\[defaults\]: shm_sise.*did you mean 'shm_size'"),
        ('defaults = 1\n[[node]]\nname = "a"', r"write \[defaults\] on a line"),
        ('policy = "best_fit"\n[[node]]\nname = "a"', "policy = 'best_fit'.*did you mean 'best-fit'"),
        ('policy = 5\n[[node]]\nname = "a"', "use 'best-fit', 'claim', 'fragmentation' or 'balance'"),
        ("a = " + "[" * 5000, "is not TOML"),
    ],
)
def test_an_error_outside_a_nodes_keys(text: str, says: str) -> None:
    message = refusal(text).message
    assert message.startswith(f"{FILE}: ")
    assert re.search(says, message), message


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.12-slim",
        "lab/a_b__c-d.e:V1.0",
        "localhost/x",
        "localhost:5000/x/y:t",
        "10.0.0.1:5000/x",
        "Registry.Example.com/lab/x@sha256:" + "0a" * 32,
        "quay.io/jupyter/pytorch-notebook:cuda12-latest",
        "sha256:" + "0a" * 32,
    ],
)
def test_names_of_images(image: str) -> None:
    assert spec(f'[[node]]\nname = "a"\nimage = "{image}"').image == image


@pytest.mark.parametrize("value", ["ssh://me:hunter2@gpu01", "tcp://:hunter2@gpu01:1", "tcp://me:hun@ter2@h:1"])
@pytest.mark.parametrize("key", ["docker", "report", "address", "image", "labels"])
def test_no_error_repeats_a_password(key: str, value: str) -> None:
    error = None
    try:
        node(f'{key} = "{value}"\nimages = 5')
    except InventoryError as caught:
        error = caught
    assert error is not None
    assert "ter2" not in error.message


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@PATIENT
@given(st.lists(anything, max_size=4), st.data())
def test_whatever_it_says_the_only_error_is_inventory_error(odd: list[Any], data: st.DataObject) -> None:
    """Values of any TOML type under any key are taken or refused, in words; nothing else happens."""
    table = {"name": "a"}
    for value in odd:
        table[data.draw(st.sampled_from(NodeSpec.__struct_fields__))] = value
    text = "[[node]]\n" + "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
    try:
        (read,) = parse(text, FILE).nodes
    except InventoryError as caught:
        error = caught
    else:
        # What is taken has the types that the rest of the package counts on.
        assert msgspec.convert(msgspec.to_builtins(read), NodeSpec) == read
        return
    assert error.message.startswith(str(FILE))
    assert error.message.isprintable()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return '""'
    if isinstance(value, int | float):
        return repr(value) if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return (
            '"'
            + "".join(f"\\U{ord(char):08X}" if ord(char) < 0xD800 or ord(char) > 0xDFFF else "?" for char in value)
            + '"'
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"


# --- where it is


def test_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.mkdir()
    monkeypatch.delenv("GPUFIT_INVENTORY", raising=False)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(config))
    monkeypatch.setenv("JUPYTER_NO_CONFIG", "")
    monkeypatch.setattr("jupyter_core.paths.jupyter_config_path", lambda: [str(tmp_path / "none"), str(config)])
    assert inventory.find() is None
    (config / "gpufit.toml").write_text("")
    assert inventory.find() == config / "gpufit.toml"
    monkeypatch.setenv("GPUFIT_INVENTORY", str(tmp_path / "env.toml"))
    assert inventory.find() == tmp_path / "env.toml", "named, so it is meant, though it does not exist"
    assert inventory.find(tmp_path / "option.toml") == tmp_path / "option.toml"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", "a directory"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | str | None) -> None:
    file = tmp_path / "gpufit.toml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        file.mkdir()
    with pytest.raises(InventoryError, match=re.escape(str(file))):
        inventory.load(file)


def test_loaded_from_a_file_relative_names_are_relative_to_it(tmp_path: Path) -> None:
    file = tmp_path / "gpufit.toml"
    file.write_text('[[node]]\nname = "a"\nreport_token_file = "token"\n')
    assert inventory.load(file).nodes[0].report_token_file == str(tmp_path / "token")


# --- none: this machine


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes | None], None]]:
    """Starts something that listens where `$DOCKER_HOST` points, and answers each connection with `answer`."""
    path = tmp_path / "docker.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    threads = []

    def serve(answer: bytes | None) -> None:
        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                if answer is not None:
                    connection.sendall(answer)
                else:
                    connection.recv(1)  # never answers: until the other side gives up

        listener.listen()
        threads.append(threading.Thread(target=run))
        threads[-1].start()

    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    yield serve
    for thread in threads:
        thread.join(10)
    listener.close()


def test_this_machine_with_an_engine(engine: Any) -> None:
    engine(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
    read = inventory.load(None)
    (here,) = read.nodes
    assert here.docker == os.environ["DOCKER_HOST"]
    assert (here.report, here.reached_at, read.path) == ("local", "127.0.0.1", None)
    assert here.name == socket.gethostname()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 500 no\r\n\r\n", b"SSH-2.0-x\r\n", b"", None])
def test_this_machine_with_something_else_there(engine: Any, answer: bytes | None) -> None:
    engine(answer)
    assert this_machine(patience=0.2).launcher == "process"


def test_this_machine_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in (f"unix://{tmp_path}/none.sock", "tcp://127.0.0.1:1", "tcp://elsewhere:2376", "ssh://me@elsewhere"):
        monkeypatch.setenv("DOCKER_HOST", host)
        assert this_machine(patience=0.2).launcher == "process"


def test_the_documentation_has_every_key() -> None:
    """The table of keys in docs/inventory.md is `NodeSpec`: the same keys in the same order, with the same defaults."""
    page = (Path(__file__).parent.parent / "docs" / "inventory.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE)
    assert [key for key, _ in rows] == list(NodeSpec.__struct_fields__)
    example = node("")
    for key, default in rows[1:]:
        code = re.findall(r"`(.*?)`", default)
        if not code:
            assert getattr(example, key) in (None, (), {}), key
        else:
            assert getattr(node(f"{key} = {code[0]}"), key) == getattr(example, key), key


def test_the_examples_of_the_documentation_work() -> None:
    page = (Path(__file__).parent.parent / "docs" / "inventory.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [len(parse(example, FILE).nodes) for example in examples] == [3, 2]


def test_what_idle_kernels_are_allowed() -> None:
    page = (Path(__file__).parent.parent / "docs" / "time.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    nodes = '[[node]]\nname = "a"\n[[node]]\nname = "b"\nidle_after = "never"\n[[node]]\nname = "c"\nidle_after = "1d"'
    limits = [(one.idle_after, one.idle_warning) for one in parse(f"{example}\n{nodes}", FILE).nodes]
    assert limits == [(7200.0, 600.0), (None, 600.0), (86400.0, 600.0)]
    assert node("").idle_after is None, "off unless configured"
    for keys in ('idle_after = "0s"', 'idle_after = "forever"', "idle_after = true", 'idle_warning = "never"'):
        with pytest.raises(InventoryError, match="idle_"):
            node(keys)


def test_the_model_store_is_where_containers_get_it() -> None:
    from jupyter_gpufit import _gpufit_toml
    from jupyter_gpufit.launching import containers

    assert _gpufit_toml.MODELS == containers.MODELS
    assert _gpufit_toml.OWN == (containers.GPUFIT, containers.WORK, containers.OUTPUTS)


def test_which_folders_a_node_has_too() -> None:
    shares = node('docker = "unix:///d.sock"\nshared = ["/home", "/srv/a"]').shares
    assert [
        shares(path) for path in ("/home", "/home/ann/x", "/srv/a", "/homes", "/srv", "/srv/ab", "/home/../etc")
    ] == [
        *(True, True, True),
        *(False, False, False, False),
    ]
    assert node("").shares("/anything"), "a plain process has all that this machine has"

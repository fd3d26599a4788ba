"""Docker engines as hosts, each in a network namespace of its own, with a file of stand-in GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import docker.errors
import docker.tls
import requests.exceptions
from standins import nvml
from standins.nvml import StandinGpu

from . import certificates, host, image
from .ssh import Ssh

STANDINS = Path(nvml.__file__).parent
START_SECONDS = 60
API_VERSION = "1.41"
NOT_READY = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


def gpu_uuid(node: str, index: int) -> str:
    """The uuid of a stand-in GPU: looks like a real one, and the same in every run."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{node}')}"


def default_gpus(node: str) -> list[StandinGpu]:
    """gpu01 has four A100s, gpu02 two, gpu03 one K80 card with two GPUs on it; any other node two A100s."""
    if node == "gpu03":
        return nvml.k80(0x300, gpu_uuid(node, 0), gpu_uuid(node, 1))
    return [StandinGpu(gpu_uuid(node, index)) for index in range(4 if node == "gpu01" else 2)]


class Engine:
    """One host with a Docker engine. Made by :class:`Cluster`."""

    def __init__(self, slot: host.Slot, name: str, number: int, *, tls: bool = False) -> None:
        self.name = name
        self.ip = slot.address(10 + number)
        self.tls = tls
        self.netns = f"{slot.prefix}{name}"
        self.directory = slot.directory / name
        self.socket = self.directory / "docker.sock"
        self.nvml_file = self.directory / "gpus"
        self._slot = slot
        self._cable = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[docker.DockerClient] = []
        # The image stays in here between runs, which saves its import: ours alone, for as long as we hold the slot.
        self._data = slot.data / name / image.recipe()

    def __repr__(self) -> str:
        return f"<Engine {self.name} {self.url}>"

    # ---- where it is

    @property
    def url(self) -> str:
        """How a client on another machine reaches it; dies in a partition."""
        return f"tcp://{self.ip}:{2376 if self.tls else 2375}"

    @property
    def unix_url(self) -> str:
        """How the tests reach it, whatever the network does."""
        return f"unix://{self.socket}"

    @property
    def tls_files(self) -> Path:
        """A directory with the client's ``ca.pem``, ``cert.pem`` and ``key.pem``, as Docker names them."""
        return self.directory / "tls"

    @property
    def data(self) -> Path:
        """Its data root."""
        return self._data

    @contextlib.contextmanager
    def unkillable(self, container: str) -> Iterator[None]:
        """In here nothing ends that container: its shim, through which it would be, does not answer (so looks a process
        that hangs in a driver's call)."""
        for shim in host.daemons_of(self.directory, ("containerd-shim",)):
            if container in Path(f"/proc/{shim}/cmdline").read_text():
                os.kill(shim, signal.SIGSTOP)
                try:
                    yield
                finally:
                    os.kill(shim, signal.SIGCONT)
                return
        raise RuntimeError(f"{container} has no shim")

    @property
    def log(self) -> Path:
        return self.directory / "dockerd.log"

    @property
    def pid(self) -> int | None:
        """Of dockerd, when it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    # ---- its power switch

    def set_up(self) -> None:
        """Make the host. The engine is started apart, so that several start at the same time."""
        self.directory.mkdir(parents=True)
        for other in set(self._data.parent.glob("*")) - {self._data}:  # of another image
            shutil.rmtree(other)
        self._config.write_text("{}")  # not the machine's own /etc/docker/daemon.json
        self._cable = host.add_host(self._slot, self.name, self.ip)
        if self.tls:
            certificates.make(self.tls_files, self.ip)
        self.set_gpus(default_gpus(self.name))

    def start(self, *, wait: bool = True) -> None:
        if self.pid:
            return
        # Left by a kill: a new dockerd would take a pid that is in use again for its own.
        for pidfile in (self._pidfile, self.directory / "exec/containerd/containerd.pid"):
            pidfile.unlink(missing_ok=True)
        environment = os.environ | {"PATH": f"{STANDINS}:{os.environ['PATH']}"}  # offers --gpus
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*host.enter(self.netns), *self._command()], env=environment, stdout=log, stderr=log
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            if not self.pid:
                raise RuntimeError(f"dockerd of {self.name} ended:\n{self._log_tail()}")
            try:
                # First by hand: docker-py leaves a socket open when it cannot connect, which is a warning in the tests.
                with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
                    probe.connect(str(self.socket))
                with contextlib.closing(docker.DockerClient(base_url=self.unix_url, timeout=30)) as client:
                    client.ping()
                    return
            except NOT_READY:
                if time.monotonic() > end:
                    raise TimeoutError(f"dockerd of {self.name} is not ready:\n{self._log_tail()}") from None
                time.sleep(0.1)

    def stop(self) -> None:
        """As at a shutdown of the machine: SIGTERM, and its containers are gone."""
        self.close_clients()
        if not self._process:
            return
        self.thaw()
        host.kill_cgroup(self.netns)  # dockerd would give each container ten seconds
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self, *, containers: bool = False) -> None:
        """``kill -9`` of dockerd. With ``containers`` too: the power went out.

        Without, they go on until the engine starts again, which then stops them (there is no live-restore).
        """
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
        # The containerd that dockerd started may live on, and then holds its database locked against the next one.
        host.kill_daemons(self.directory, ("containerd",))
        if containers:
            host.kill_daemons(self.directory)
            host.kill_cgroup(self.netns)

    def terminate(self) -> None:
        """SIGTERM to dockerd, as for its upgrade: it ends its containers, or leaves them be if it has live-restore."""
        self.close_clients()
        if self._process:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def configure(self, **options: object) -> None:
        """Start it again, with these entries in its `daemon.json`; :meth:`reset` takes them back."""
        self._config.write_text(json.dumps(options))
        self.restart()

    def freeze(self) -> None:
        """It accepts connections, and never answers."""
        if self.pid:
            os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)

    # ---- its network

    def partition(self) -> None:
        """Pull the cable: packets to and from the host are lost, what runs on it goes on."""
        host.run("ip", "link", "set", self._cable, "down")

    def heal(self) -> None:
        host.run("ip", "link", "set", self._cable, "up")

    # ---- what runs on it

    def client(self, url: str | None = None, *, timeout: int = 30) -> docker.DockerClient:
        """A client, closed with the engine. By its unix socket unless ``url`` says otherwise (:attr:`url`)."""
        if self.tls and url == self.url:
            client = docker.DockerClient(url, version=API_VERSION, timeout=timeout, tls=self.tls_config())
            # requests prefers $REQUESTS_CA_BUNDLE to the authority it was given. This is why the version is not
            # negotiated above: the constructor would do that.
            client.api.trust_env = False
        else:
            client = docker.DockerClient(url or self.unix_url, timeout=timeout)
        self._clients.append(client)
        return client

    def tls_config(self) -> docker.tls.TLSConfig:
        files = self.tls_files
        return docker.tls.TLSConfig(
            client_cert=(str(files / "cert.pem"), str(files / "key.pem")), ca_cert=str(files / "ca.pem"), verify=True
        )

    def close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def popen(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[bytes]:
        """Run a program on the host: in its network, and with its GPUs (a reporter). The caller ends it."""
        environment = os.environ | self.reporter_env | dict(env or {})
        return subprocess.Popen([*host.enter(self.netns), *command], env=environment, **options)  # type: ignore[call-overload,no-any-return]

    def start_ssh(self) -> Ssh:
        """Let the host be reached by ``ssh://`` too, until :meth:`Ssh.stop`."""
        return Ssh(self.directory / "ssh", self.netns, self.ip, self.unix_url)

    def remove_containers(self) -> None:
        with contextlib.closing(docker.DockerClient(base_url=self.unix_url, timeout=60)) as client:
            for container in client.containers.list(all=True, ignore_removed=True):
                with contextlib.suppress(docker.errors.NotFound, docker.errors.APIError):
                    container.remove(force=True, v=True)
            wait_gone = lambda: not client.api.containers(all=True)  # noqa: E731
            host.wait_until(wait_gone, 20, f"the containers of {self.name} to go")

    def reset(self) -> None:
        """Back to how a test may expect it: up, on the network, its own GPUs, no containers."""
        self.close_clients()
        self.thaw()
        self.heal()
        if self._config.read_text() != "{}":
            self.stop()
            self._config.write_text("{}")
        self.start()
        self.remove_containers()
        self.set_gpus(default_gpus(self.name))

    # ---- its GPUs

    def set_gpus(self, gpus: Iterable[StandinGpu], **options: object) -> None:
        """From now on the host has these; ``options`` as of :func:`standins.nvml.write`."""
        self.gpus = list(gpus)
        nvml.write(self.nvml_file, self.gpus, **options)  # type: ignore[arg-type]

    @property
    def gpu_uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.gpus]

    @property
    def reporter_env(self) -> dict[str, str]:
        """What a reporter needs in its environment to see this host's GPUs."""
        return nvml.environment(nvml.build(image.cache_dir() / "nvml"), self.nvml_file)

    # ---- inside

    @property
    def _pidfile(self) -> Path:
        return self.directory / "docker.pid"

    @property
    def _config(self) -> Path:
        return self.directory / "daemon.json"

    def _command(self) -> list[str]:
        tls = ["--tls=false"]  # said aloud, or dockerd waits before it opens the port
        if self.tls:
            files = {"tlscacert": "ca.pem", "tlscert": "server-cert.pem", "tlskey": "server-key.pem"}
            tls = ["--tlsverify", *(f"--{option}={self.tls_files / file}" for option, file in files.items())]
        return [
            "dockerd",
            f"--config-file={self._config}",
            f"--data-root={self._data}",
            f"--exec-root={self.directory / 'exec'}",
            f"--pidfile={self._pidfile}",
            f"--host={self.unix_url}",
            f"--host={self.url}",
            "--bip=192.168.203.1/24",
            f"--cgroup-parent=/{self.netns}",  # by which the processes of its containers are found
            "--exec-opt=native.cgroupdriver=cgroupfs",
            # Should the machine run a containerd of its own, dockerd uses that one: keep the engines apart in it.
            f"--containerd-namespace={self.netns}",
            f"--containerd-plugins-namespace={self.netns}-plugins",
            # A test may serve a registry on this side of the bridge.
            f"--insecure-registry={self._slot.address(0)}/24",
            *tls,
        ]

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Cluster:
    """Several engines on one network, with this machine beside them (at ``gateway``)."""

    def __init__(self, names: Sequence[str], *, tls: bool = False, slot: host.Slot | None = None) -> None:
        self.slot = slot or host.Slot.claim()
        self.gateway = self.slot.address(254)
        self.engines = [Engine(self.slot, name, number, tls=tls) for number, name in enumerate(names, 1)]

    def __getitem__(self, name: str) -> Engine:
        return next(engine for engine in self.engines if engine.name == name)

    def __iter__(self) -> Iterator[Engine]:
        return iter(self.engines)

    def __len__(self) -> int:
        return len(self.engines)

    def set_up(self) -> None:
        """Make hosts and network from nothing, start the engines, and give each the kernel image."""
        host.sweep(self.slot)
        host.add_bridge(self.slot)
        for engine in self.engines:
            engine.set_up()
        with image.making():
            image.tarball()
            if not image.layers().exists():
                self.engines[0].start()
                _make_ready(self.engines[0])
                self.engines[0].stop()
                image.keep_layers(self.engines[0].data)
        for engine in self.engines:
            image.give_layers(engine.data)
            engine.start(wait=False)
        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(_make_ready, self.engines))

    def reset(self) -> None:
        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(Engine.reset, self.engines))

    def tear_down(self) -> None:
        """Remove everything but the cache, whatever state it is in."""
        try:
            with ThreadPoolExecutor(len(self.engines)) as pool:
                list(pool.map(Engine.stop, self.engines))
        finally:
            host.sweep(self.slot)
            self.slot.release()

    def __enter__(self) -> Cluster:
        try:
            self.set_up()
        except BaseException:
            self.tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.tear_down()


def _make_ready(engine: Engine) -> None:
    engine.wait_ready()
    engine.remove_containers()  # of a run that was killed; their layers go with them
    with contextlib.closing(docker.DockerClient(base_url=engine.unix_url, timeout=300)) as client:
        image.load(client)


def missing() -> str | None:
    """Why engines cannot run here, or None."""
    if os.geteuid():
        return "needs root"
    lacking = [tool for tool in ("dockerd", "ip", "nsenter", "iptables", "cc") if not shutil.which(tool)]
    if not any(image.cache_dir().glob(f"kernel-{image.recipe()}.tar")) and not shutil.which("debootstrap"):
        lacking.append("debootstrap")
    return f"needs {', '.join(lacking)}" if lacking else None

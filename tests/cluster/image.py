"""The kernel image of the tests, made on this machine because no registry can be reached from it.

The base is a minimal Debian with Python 3.11, ipykernel, nbclient and numpy, kept as one tar file in the cache
directory. One engine imports it, and all others get links to its layer. Variants are made inside an engine when a test
first asks for one: a shell script run over the base, and changes to its configuration.

``PYTHONPATH=tests python -m cluster.image`` makes the tar file ahead of time (about 50 s).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors

REPOSITORY = "gpufit-test/kernel"
BASE = f"{REPOSITORY}:latest"
MIRROR = os.environ.get("GPUFIT_TEST_MIRROR", "http://deb.debian.org/debian")
PACKAGES = ["ipykernel>=7.4", "nbclient>=0.10", "numpy>=1.26,<3"]
SITE = "usr/local/lib/python3.11/dist-packages"
INCLUDE = "python3-minimal,libpython3-stdlib,libsqlite3-0"
CHANGES = ["ENV LANG=C.UTF-8", "WORKDIR /home/jovyan", 'CMD ["python3"]']

# Runs inside the new root: without what no test needs, which is half of it (ipykernel does without a debugger). A
# container that is not root can never write a .pyc itself, hence compileall.
FINISH = f"""
set -e
cd /{SITE}
rm -rf debugpy debugpy-* jedi/third_party/django-stubs numpy/f2py
find . -type d -name tests -prune -exec rm -rf {{}} +
find numpy -name '*.pyi' -delete
cd /
ln -sf python3 /usr/bin/python
useradd --create-home --uid 1000 --shell /bin/bash jovyan
python3 -m compileall -q -j 0 /{SITE} /usr/lib/python3.11 || true
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /usr/share/doc/* /usr/share/locale/* /usr/share/man/* /var/log/*
"""


@dataclass(frozen=True)
class Variant:
    """What sets an image apart from the base."""

    script: str = ":"
    changes: tuple[str, ...] = ()


VARIANTS = {
    "no-ipykernel": Variant(f"rm -rf /{SITE}/ipykernel /{SITE}/ipykernel-*.dist-info /{SITE}/ipykernel_launcher.py"),
    "non-root": Variant(changes=("USER 1000", "ENV HOME=/home/jovyan")),
    "exits": Variant(
        # More lines than the 50 that a person is shown, and the one that matters last. All on stderr: the engine does
        # not keep the order between the two streams.
        changes=(
            'ENTRYPOINT ["/bin/sh", "-c", "exec >&2; for i in $(seq 60); do echo line $i; done; '
            'echo CUDA driver version is insufficient; exit 3"]',
        ),
    ),
    "old-ipykernel": Variant(
        f"sed -i 's/^__version__ = .*/__version__ = \"6.29.5\"/' /{SITE}/ipykernel/_version.py && "
        f"sed -i 's/^Version: .*/Version: 6.29.5/' /{SITE}/ipykernel-*.dist-info/METADATA && "
        f"mv /{SITE}/ipykernel-*.dist-info /{SITE}/ipykernel-6.29.5.dist-info"
    ),
}


def cache_dir() -> Path:
    """Where what is expensive to make stays between runs."""
    given = os.environ.get("GPUFIT_TEST_CACHE")
    if given:
        path = Path(given)
    else:
        path = Path("/var/cache/gpufit-tests") if os.geteuid() == 0 else Path.home() / ".cache/gpufit-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


def recipe() -> str:
    """A short name of what the base is made from: a new recipe makes a new image."""
    return _digest(INCLUDE, PACKAGES, SITE, CHANGES, FINISH)


@contextlib.contextmanager
def making() -> Iterator[None]:
    """In here nobody else makes the tar file, or the layer."""
    with (cache_dir() / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tarball() -> Path:
    """The base as a tar file; within :func:`making`."""
    target = cache_dir() / f"kernel-{recipe()}.tar"
    if not target.exists():
        _make(cache_dir() / "root", target)
    return target


def layers() -> Path:
    """What an engine's data root holds of the base, for all engines; or where that will be."""
    return cache_dir() / f"layers-{recipe()}"


def keep_layers(data: Path) -> None:
    """Make :func:`layers` from the data root of an engine that has the base and nothing else, and does not run. An
    import takes seconds of both cores, links to the same files take none: a layer below a container is only read."""
    if not (data / "image/overlay2").is_dir():
        return  # another storage driver: then every engine imports it
    new = cache_dir() / "layers.partial"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    _run("cp", "-a", str(data / "image"), str(new))
    _run("cp", "-al", str(data / "overlay2"), str(new))
    new.rename(layers())


def give_layers(data: Path) -> None:
    """To an engine that has never been started."""
    if layers().is_dir() and not data.exists():
        new = data.with_suffix(".partial")
        new.mkdir(parents=True, mode=0o710)
        _run("cp", "-a", str(layers() / "image"), str(new))
        _run("cp", "-al", str(layers() / "overlay2"), str(new))
        new.rename(data)


def load(client: docker.DockerClient) -> str:
    """See that the engine has the base (whose tar file is there); return its name."""
    try:
        if client.images.get(BASE).labels.get("recipe") == recipe():
            return BASE
    except docker.errors.ImageNotFound:
        pass
    changes = [*CHANGES, f"LABEL recipe={recipe()}"]
    client.api.import_image_from_file(str(tarball()), repository=REPOSITORY, tag="latest", changes=changes)
    client.images.get(BASE)  # an import reports its failure in the text it answers: look for the result instead
    return BASE


def variant(client: docker.DockerClient, name: str) -> str:
    """See that the engine has this one of :data:`VARIANTS`; return the image's name."""
    wanted, image = VARIANTS[name], f"{REPOSITORY}:{name}"
    digest = _digest(recipe(), wanted)
    try:
        if client.images.get(image).labels.get("variant") == digest:
            return image
    except docker.errors.ImageNotFound:
        pass
    container = client.containers.create(load(client), ["/bin/sh", "-c", wanted.script], user="0")
    try:
        container.start()
        status = container.wait()["StatusCode"]
        if status:
            raise RuntimeError(f"making {image}: {container.logs().decode()}")
        # commit keeps the configuration of the container: put back what the base says.
        base = ["USER root", 'CMD ["python3"]']
        container.commit(REPOSITORY, name, changes=[*base, f"LABEL variant={digest}", *wanted.changes])
    finally:
        container.remove(force=True)
    return image


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _make(root: Path, target: Path) -> None:
    """debootstrap, pip, tar. ``root`` is scratch space."""
    shutil.rmtree(root, ignore_errors=True)
    _run("debootstrap", "--variant=minbase", f"--include={INCLUDE}", "bookworm", str(root), MIRROR)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    # The wheels must fit the image's Python, whichever one runs the tests.
    _run(*pip, "--python-version", "3.11", "--only-binary=:all:", "--target", str(root / SITE), *PACKAGES)
    _run("chroot", str(root), "/bin/sh", "-c", FINISH)
    partial = target.with_suffix(".partial")
    _run("tar", "-C", str(root), "--numeric-owner", "--one-file-system", "-cf", str(partial), ".")
    partial.replace(target)
    shutil.rmtree(root, ignore_errors=True)


def _run(*command: str) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{result.stdout[-3000:]}")


if __name__ == "__main__":
    with making():
        print(tarball())

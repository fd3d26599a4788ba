"""The same kernel in the same engine, started by gateway_provisioners' Docker provisioner: for `launch.py`.

It needs packages that gpufit does not (`pip install 'gateway_provisioners[docker]'`), so it may run on another Python
($GPUFIT_BENCH_GATEWAY), and on the engine's own machine: its kernels are reached at their containers' addresses. Run
there as `python launch_gateway.py IMAGE`, it starts a kernel for each line that it reads, and says how many seconds it
took until the first cell's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import string
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import AsyncKernelManager
from launch_cell import first_cell

if TYPE_CHECKING:
    from cluster.engines import Engine

__all__ = ["MISSING", "Gateway", "python"]

VARIABLE = "GPUFIT_BENCH_GATEWAY"
IMAGE = "gpufit-bench/gateway:latest"
KERNEL = "gateway"
BIN = "/usr/local/bin"
"""Where its bootstrap is in an image (`jupyter image-bootstrap install`)."""
MISSING = f"no Python has it (pip install 'gateway_provisioners[docker]', and name that one in ${VARIABLE})"
HAS_IT = "import os, gateway_provisioners, Cryptodome, docker; print(os.path.dirname(gateway_provisioners.__file__))"


def python() -> tuple[str, Path] | None:
    """A Python that has it, and where it has it."""
    command = os.environ.get(VARIABLE) or sys.executable
    found = subprocess.run([command, "-c", HAS_IT], capture_output=True, text=True)
    return None if found.returncode else (command, Path(found.stdout.strip()))


class Gateway:
    """Its kernels in `engine`, which has the image `base`."""

    def __init__(self, engine: Engine, base: str, found: tuple[str, Path]) -> None:
        self._engine, self._base, self._found = engine, base, found
        self._driver: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def driven(self, folder: Path) -> Iterator[Gateway]:
        """In here rounds can be asked for. `folder`: for what it writes."""
        self._make_image()
        command, _ = self._found
        spec = [command, "-m", "gateway_provisioners.cli.docker_specapp", "install", f"--prefix={folder}"]
        spec += [f"--kernel-name={KERNEL}", f"--image-name={IMAGE}"]
        subprocess.run(spec, check=True, capture_output=True)
        environment = {
            "PATH": f"{Path(command).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": "/home/jovyan",
            "JUPYTER_RUNTIME_DIR": str(folder),
            "JUPYTER_PATH": str(folder / "share/jupyter"),
            "DOCKER_HOST": self._engine.unix_url,
            "GP_RESPONSE_IP": self._engine.ip,
            "KERNEL_USERNAME": "jovyan",  # it does not start kernels for root
        }
        self._log = folder / "log"
        # All of its environment is the kernel's, too: nothing of ours.
        alone = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        with self._log.open("wb") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._driver = self._engine.popen([*alone, command, __file__, IMAGE], **pipes)
        try:
            yield self
        finally:
            self._driver.stdin.close()  # type: ignore[union-attr]
            self._driver.wait(30)
            self._driver.stdout.close()  # type: ignore[union-attr]

    async def round(self) -> dict[str, float]:
        """Seconds from the request to the first cell's result."""

        def ask() -> bytes:
            self._driver.stdin.write(b"\n")  # type: ignore[union-attr]
            self._driver.stdin.flush()  # type: ignore[union-attr]
            return self._driver.stdout.readline()  # type: ignore[union-attr,no-any-return]

        said = await asyncio.to_thread(ask)
        if not said:
            raise RuntimeError(f"gateway_provisioners failed:\n{self._log.read_text()[-3000:]}")
        return {"result": float(said)}

    def _make_image(self) -> None:
        """The base, and what has to be in an image for it: as its Dockerfile does, compiled, so that it is not slower
        than it need be."""
        client = self._engine.client()
        launchers = self._found[1] / "kernel-launchers"
        template = string.Template((launchers / "bootstrap/bootstrap-kernel.sh").read_text())
        script = template.safe_substitute(install_dir=BIN)  # (which also makes `$` of `$$`)
        site = "/usr/local/lib/python3.11/dist-packages"
        finish = f"python3 -m compileall -q {BIN}/kernel-launchers {site}/Cryptodome"
        container = client.containers.create(self._base, ["/bin/sh", "-c", finish])
        try:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as tar:
                entry = tarfile.TarInfo(f"{BIN}/bootstrap-kernel.sh"[1:])
                entry.size, entry.mode = len(script), 0o755
                tar.addfile(entry, io.BytesIO(script.encode()))
                for part in ("python", "shared"):  # the second has what is only a placeholder in the first
                    tar.add(launchers / part, f"{BIN}/kernel-launchers/python"[1:])
                tar.add(self._found[1].parent / "Cryptodome", f"{site}/Cryptodome"[1:])
            container.put_archive("/", buffer.getvalue())
            container.start()
            if container.wait()["StatusCode"]:
                raise RuntimeError(container.logs().decode())
            repository, _, tag = IMAGE.partition(":")
            container.commit(repository, tag, changes=[f'CMD ["{BIN}/bootstrap-kernel.sh"]'])
        finally:
            container.remove(force=True)


async def one(image: str) -> float:
    begin = time.perf_counter()
    manager: Any = AsyncKernelManager(kernel_name=KERNEL)
    await manager.start_kernel(env=os.environ | {"KERNEL_IMAGE": image})
    try:
        await first_cell(manager.client())
        return time.perf_counter() - begin
    finally:
        await manager.shutdown_kernel(now=True)


async def drive(image: str) -> None:
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await one(image)), flush=True)


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1]))

"""An ssh server on a stand-in host, and a client's set-up to reach it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

from .host import enter, run, wait_until


class Ssh:
    """sshd in the host's network; ``docker system dial-stdio`` over it reaches the host's engine."""

    def __init__(self, directory: Path, netns: str, address: str, docker_host: str) -> None:
        self.url = f"ssh://root@{address}"
        self.home = directory / "home"
        shutil.rmtree(directory, ignore_errors=True)
        dot_ssh = self.home / ".ssh"
        dot_ssh.mkdir(parents=True)
        (directory / "bin").mkdir()
        for key in (directory / "host_key", dot_ssh / "id_ed25519"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        host_key = (directory / "host_key.pub").read_text()
        (dot_ssh / "known_hosts").write_text(f"{address} {host_key}")
        (dot_ssh / "config").write_text(
            f"Host *\n  IdentityFile {dot_ssh}/id_ed25519\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {dot_ssh}/known_hosts\n  LogLevel ERROR\n"
        )
        # ssh takes a person's home from the password file, whatever $HOME says.
        wrapper = directory / "bin/ssh"
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {dot_ssh}/config "$@"\n')
        wrapper.chmod(0o755)
        config = directory / "sshd_config"
        config.write_text(
            f"ListenAddress {address}\nHostKey {directory}/host_key\nPidFile none\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nAuthorizedKeysFile {dot_ssh}/id_ed25519.pub\nStrictModes no\n"
            f"SetEnv DOCKER_HOST={docker_host} PATH={os.environ['PATH']}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        with (directory / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*enter(netns), "/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stdout=log, stderr=log
            )
        wait_until(lambda: _listens(address), 10, f"sshd at {address}")

    @property
    def environment(self) -> dict[str, str]:
        """What a client (ssh, docker, paramiko) needs in its environment to log in."""
        return {"HOME": str(self.home), "PATH": f"{self.home.parent / 'bin'}:{os.environ['PATH']}"}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


def _listens(address: str) -> bool:
    with contextlib.suppress(OSError), contextlib.closing(socket.create_connection((address, 22), timeout=1)):
        return True
    return False

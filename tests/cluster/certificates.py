"""Certificates for an engine that speaks TLS: an authority, a server and a client, made by openssl."""

from __future__ import annotations

from pathlib import Path

from .host import run


def make(directory: Path, address: str) -> None:
    """``ca.pem``, ``cert.pem``, ``key.pem`` as a Docker client names them, and ``server-…`` of the latter two."""
    directory.mkdir(parents=True)
    ca, ca_key = directory / "ca.pem", directory / "ca-key.pem"
    run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gpufit test CA"),
        *("-keyout", str(ca_key), "-out", str(ca)),
        # Python 3.13 refuses an authority that does not say what its key is for.
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    _sign(directory, "server-", f"subjectAltName=IP:{address},IP:127.0.0.1", "serverAuth")
    _sign(directory, "", "subjectAltName=DNS:client", "clientAuth")


def _sign(directory: Path, prefix: str, names: str, usage: str) -> None:
    key, request, extensions = (directory / f"{prefix}{part}" for part in ("key.pem", "request", "extensions"))
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpufit test", "-keyout", str(key),
        "-out", str(request))  # fmt: skip
    extensions.write_text(f"{names}\nextendedKeyUsage={usage}\nauthorityKeyIdentifier=keyid\n")
    run("openssl", "x509", "-req", "-days", "2", "-in", str(request), "-CA", str(directory / "ca.pem"),
        "-CAkey", str(directory / "ca-key.pem"), "-CAcreateserial", "-extfile", str(extensions),
        "-out", str(directory / f"{prefix}cert.pem"))  # fmt: skip

"""What a kernel and its clients have to agree on: addresses, ports and keys.

Two forms of the same thing: the *connection file* that the kernel in the unit reads (it says what to bind), and the
*connection info* that the kernel manager here hands its clients (it says where to connect). In the first all keys are
text; in the second `key` is `bytes` and the Curve keys are `str`, as jupyter_client compares them.
"""

from __future__ import annotations

import json
from typing import Any

import zmq
from msgspec import Struct

from ..errors import LaunchError
from ..models import Endpoint, Unit

__all__ = ["PORTS", "Keys", "connection_file", "connection_info", "make_keys", "without_encryption"]

PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
"""The order of `Unit.inner_ports` and `Endpoint.ports`."""


class Keys(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The secrets of one kernel. They outlive its restarts, so that clients of the kernel before can go on."""

    key: bytes
    """Signs the messages (HMAC)."""
    scheme: str = "hmac-sha256"
    curve_public: str | None = None
    """CurveZMQ (RFC 26), Z85 text; `None`: not encrypted. Who knows the public key may connect: it is secret, too."""
    curve_secret: str | None = None

    def __repr__(self) -> str:
        return f"Keys({'encrypted' if self.curve_public else 'plain'})"  # never the keys: this may end in a log


def make_keys(key: bytes, scheme: str, encrypt: bool) -> Keys:
    """Keys for a new kernel whose messages `key` signs. Called by the provisioner before a kernel's first launch.

    Raises `LaunchError` if encryption is needed and this machine's libzmq has none.
    """
    if not encrypt:
        return Keys(key=key, scheme=scheme)
    if not zmq.has("curve"):
        raise LaunchError(
            "the kernel's channels have to be encrypted and this machine's libzmq lacks CurveZMQ; "
            "install a pyzmq built with libsodium (its wheels on PyPI are)"
        )
    public, secret = zmq.curve_keypair()
    return Keys(key=key, scheme=scheme, curve_public=public.decode("ascii"), curve_secret=secret.decode("ascii"))


def connection_file(keys: Keys, unit: Unit, kernel_name: str) -> bytes:
    """The connection file for the kernel in `unit`, as jupyter_client writes them (JSON)."""
    content: dict[str, Any] = dict(zip(PORTS, unit.inner_ports, strict=True))
    content |= {"transport": "tcp", "ip": unit.inner_ip, "kernel_name": kernel_name}
    content |= {"key": keys.key.decode("utf-8"), "signature_scheme": keys.scheme}
    return json.dumps(content | _curve(keys), indent=1).encode()


def connection_info(keys: Keys, endpoint: Endpoint) -> dict[str, Any]:
    """What `KernelProvisionerBase.launch_kernel` returns for a kernel that is reached at `endpoint`."""
    info: dict[str, Any] = dict(zip(PORTS, endpoint.ports, strict=True))
    host = f"[{endpoint.host}]" if ":" in endpoint.host and not endpoint.host.startswith("[") else endpoint.host
    info |= {"transport": "tcp", "ip": host, "key": keys.key, "signature_scheme": keys.scheme}
    return info | _curve(keys)


def without_encryption(keys: Keys) -> Keys:
    """The same keys for a kernel that was allowed to go on in plaintext."""
    return Keys(key=keys.key, scheme=keys.scheme)


def _curve(keys: Keys) -> dict[str, str]:
    if keys.curve_public is None or keys.curve_secret is None:
        return {}
    return {"curve_publickey": keys.curve_public, "curve_secretkey": keys.curve_secret}

"""Keys and ports, in the two forms that they have."""

from __future__ import annotations

import json

import pytest
import zmq
from jupyter_client.manager import KernelManager

from jupyter_gpufit.errors import LaunchError
from jupyter_gpufit.kernels import connection
from jupyter_gpufit.models import Endpoint, Unit

UNIT = Unit(id="u", name="u", node="n", allocation="a", inner_ip="0.0.0.0", inner_ports=(1, 2, 3, 4, 5))
ENDPOINT = Endpoint(host="gpu01", ports=(11, 12, 13, 14, 15))


@pytest.mark.parametrize("encrypt", [False, True])
def test_kernel_and_clients_agree(encrypt: bool) -> None:
    keys = connection.make_keys(b"secret", "hmac-sha256", encrypt)
    file = json.loads(connection.connection_file(keys, UNIT, "gpufit"))
    info = connection.connection_info(keys, ENDPOINT)
    assert [file[port] for port in connection.PORTS] == [1, 2, 3, 4, 5]
    assert [info[port] for port in connection.PORTS] == [11, 12, 13, 14, 15]
    assert (file["ip"], info["ip"]) == ("0.0.0.0", "gpu01")
    assert file["key"].encode() == info["key"] == b"secret"
    assert ("curve_publickey" in file) is ("curve_publickey" in info) is encrypt
    assert file.get("curve_secretkey") == info.get("curve_secretkey")


@pytest.mark.parametrize("encrypt", [False, True])
def test_jupyter_client_takes_it_as_it_is(encrypt: bool, tmp_path) -> None:
    manager = KernelManager(connection_file=str(tmp_path / "kernel.json"))
    keys = connection.make_keys(manager.session.key, manager.session.signature_scheme, encrypt)
    manager._reconcile_connection_info(connection.connection_info(keys, ENDPOINT))
    assert (manager.curve_publickey is not None) is encrypt
    assert [manager.get_connection_info()[port] for port in connection.PORTS] == [11, 12, 13, 14, 15]
    manager.cleanup_connection_file()


def test_an_ipv6_address_can_be_connected_to() -> None:
    info = connection.connection_info(
        connection.make_keys(b"k", "hmac-sha256", False), Endpoint(host="fd00::1", ports=ENDPOINT.ports)
    )
    assert info["ip"] == "[fd00::1]"


def test_keys_are_not_shown() -> None:
    keys = connection.make_keys(b"secret", "hmac-sha256", True)
    assert keys.curve_public is not None
    assert "secret" not in repr(keys)
    assert keys.curve_public not in repr(keys)


def test_no_plaintext_where_encryption_is_needed_and_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda feature: False)
    with pytest.raises(LaunchError, match="libsodium"):
        connection.make_keys(b"k", "hmac-sha256", True)

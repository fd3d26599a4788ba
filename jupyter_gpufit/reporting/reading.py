"""What one read of NVML found, before anything is concluded from it. Crosses the pipe from the NVML child."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..errors import InvalidValue
from ..models import Report

__all__ = ["Reading", "Xid", "decode_reading", "encode_reading"]


class Xid(Struct, frozen=True):
    """An error the driver met (`nvmlEventTypeXidCriticalError`)."""

    uuid: str
    """Of the GPU, or of the MIG instance if the driver says which one."""
    code: int


class Reading(Struct, frozen=True, kw_only=True):
    """One read: the facts. A GPU whose handle could not be had has an empty `uuid`: only its index is known."""

    report: Report
    xids: tuple[Xid, ...] = ()
    """New since the read before."""
    faults: dict[str, str] = {}
    """uuid -> what NVML's ECC and row-remap counters say is wrong now, for people."""


def encode_reading(reading: Reading) -> bytes:
    """`reading` as one line of JSON, without the newline."""
    return msgspec.json.encode(reading)


def decode_reading(line: bytes) -> Reading:
    """Raises `InvalidValue` for anything that `encode_reading` did not make."""
    try:
        return msgspec.json.decode(line, type=Reading)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValue(f"not a reading: {error}") from None

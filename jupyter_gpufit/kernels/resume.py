"""The part of the provisioner that lets a kernel outlive its server: what is remembered of it, and how it is resumed.

    launched ─→ `Scheduler.remember` ··· the server dies, another one starts ··· `takeback.py` has the kernel manager
    "start" the kernel under its old id ─→ `pre_launch` recalls it ─→ `launch_kernel` starts nothing, and returns where
    the kernel is

Nobody calls `get_provisioner_info` and `load_provisioner_info` for us: jupyter_client only declares them.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from ..models import Unit
from .connection import Keys
from .grant import Grant
from .takeback import Memory

__all__ = ["Resumable"]


class Resumable(KernelProvisionerBase):
    """Base of `Hearing`, which is the base of `GpufitProvisioner`."""

    _grant: Grant | None = None
    _direct = True  # whether this kernel made its allocation itself
    _keys: Keys | None = None
    _unit: Unit | None = None
    _launched = False

    async def get_provisioner_info(self) -> dict[str, Any]:
        """All that `load_provisioner_info` needs, as JSON types. Has the kernel's keys in it: as secret as those."""
        info = await super().get_provisioner_info()
        key: Any = self.connection_info.get("key", b"")
        info["connection_info"] = {**self.connection_info, "key": key.decode() if isinstance(key, bytes) else key}
        return info | {
            "allocation": None if self._grant is None else self._grant.id,
            "direct": self._direct,
            "unit": msgspec.json.decode(msgspec.json.encode(self._unit)),
        }

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Go on with a kernel that another process started. Raises `NotFound` if its allocation is not known."""
        await self._load(provisioner_info)
        if self._grant is None:
            self._grant = await Grant.given(str(provisioner_info["allocation"]), self.log)

    async def _load(self, provisioner_info: dict[str, Any]) -> None:
        await super().load_provisioner_info(provisioner_info)
        info = {**provisioner_info["connection_info"]}
        key = info["key"] = str(info.get("key", "")).encode()
        self.connection_info = cast(KernelConnectionInfo, info)
        self._keys = Keys(
            key=key,
            scheme=info.get("signature_scheme", "hmac-sha256"),
            curve_public=info.get("curve_publickey"),
            curve_secret=info.get("curve_secretkey"),
        )
        self._direct = bool(provisioner_info["direct"])
        self._unit = msgspec.convert(provisioner_info["unit"], Unit | None)
        self._launched = self._unit is not None

    async def _resume(self, grant: Grant) -> bool:
        """Go on with the kernel that runs in the allocation, if that is what this start is for."""
        data = await grant.recalled()
        if data is None:
            return False
        await self._load(Memory.read(data).provisioner)
        if grant.allocation.unit is not None:
            self._unit = grant.allocation.unit  # after a restart it may be a newer one, at the same ports
        return True

    async def _remember(self, env: dict[str, str], cwd: str | None) -> None:
        """Have all that is needed to go on with it kept, should this process die."""
        if self._grant is not None:
            memory = Memory(
                kernel_id=self.kernel_id,
                kernel_name=getattr(self.parent, "kernel_name", "gpufit"),
                provisioner=await self.get_provisioner_info(),
                env=env,
                cwd=cwd,
            )
            await self._grant.remember(bytes(memory))

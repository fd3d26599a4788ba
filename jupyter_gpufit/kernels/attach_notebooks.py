"""The server's sessions, as attachments use them: which notebook is meant, and which kernel it has.

A session is pointed at another kernel only while it has the one that is expected: a person may have chosen another for
their notebook meanwhile, and that is respected.
"""

from __future__ import annotations

import logging
from typing import Any

from tornado.web import HTTPError

from ..errors import NotFound
from .attachment import Attachment

__all__ = ["Notebooks"]


class Notebooks:
    """Of one Jupyter server. Made by `Attachments`."""

    def __init__(self, sessions: Any, kernels: Any, log: logging.Logger) -> None:
        """`sessions` and `kernels` are the server's session and kernel managers."""
        self._sessions, self._kernels, self._log = sessions, kernels, log

    async def named(self, session: str | None, path: str | None) -> dict[str, Any]:
        """The session of that id, or else of that path. Raises `NotFound`."""
        query = {"session_id": session} if session is not None else {"path": str(path).strip("/")}
        try:
            model: dict[str, Any] = await self._sessions.get_session(**query)
        except HTTPError:
            name = session if session is not None else path
            raise NotFound(f"no running notebook {name!r}; open it first, or see `GET /api/sessions`") from None
        return model

    async def model(self, attachment: Attachment) -> dict[str, Any] | None:
        """The session as it is now (it may have been renamed), or `None`."""
        try:
            model: dict[str, Any] = await self._sessions.get_session(session_id=attachment.session)
        except HTTPError:
            return None
        attachment.path, attachment.name, attachment.type = model["path"], model["name"], model["type"]
        return model

    async def point(self, attachment: Attachment, before: str, kernel_id: str) -> bool:
        """Make `kernel_id` the kernel of the session, if that is `before` now; whether it was."""
        model = await self.model(attachment)
        if model is None or model["kernel"]["id"] != before:
            return False
        await self._sessions.update_session(attachment.session, kernel_id=kernel_id)
        return True

    async def give_back(self, attachment: Attachment, model: dict[str, Any] | None, anew: bool) -> None:
        """Give the session its local kernel back, if the remote one is what it has. `model` is how it is now; one that
        is gone is made `anew`, if so said."""
        if model is not None and model["kernel"]["id"] == attachment.remote_kernel:
            await self._sessions.update_session(attachment.session, kernel_id=await self._local_kernel(attachment))
        elif model is None and anew:
            await self._sessions.save_session(
                attachment.session,
                path=attachment.path,
                name=attachment.name,
                type=attachment.type,
                kernel_id=await self._local_kernel(attachment),
            )

    async def have(self, kernel_id: str) -> bool:
        """Whether any session has that kernel."""
        return any(model["kernel"]["id"] == kernel_id for model in await self._sessions.list_sessions())

    async def _local_kernel(self, attachment: Attachment) -> str:
        if attachment.local_kernel not in self._kernels:
            # Somebody shut the parked kernel down. A notebook without any kernel is worse than one that starts afresh.
            self._log.warning("the local kernel of notebook %s is gone; it gets a new one", attachment.path)
            attachment.local_kernel = await self._sessions.start_kernel_for_session(
                attachment.session,
                path=attachment.path,
                name=attachment.name,
                type=attachment.type,
                kernel_name=attachment.local_kernelspec,
            )
        return attachment.local_kernel

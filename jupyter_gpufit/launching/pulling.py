"""Getting an image onto a node, with progress, in a thread of its own: it may take minutes, and can be cancelled.

Layers that were finished stay on the node, as with `docker pull`; the engine gives the rest up when we hang up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import docker
import docker.auth
import docker.errors
import docker.utils
import requests

from ..errors import ImageRefused
from ..models import Progress
from ..scheduling.needs import OnProgress
from .containers import check_disk
from .engine import CONNECT_WITHIN, Engine, hang_up, said

__all__ = ["Layers", "pull"]

TELL_EVERY = 0.25  # s
STALLED_AFTER = 600.0  # s without a word from the engine; while it works it says something every second


class Layers:
    """Adds up what an engine reports layer by layer. Pure."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._layers: dict[str, tuple[int, int | None]] = {}
        self._extracting = False

    def take(self, line: Mapping[str, Any]) -> None:
        """One line of the engine's answer to a pull."""
        id, status, detail = line.get("id"), line.get("status", ""), line.get("progressDetail") or {}
        if id is None:
            return
        current, total = self._layers.get(id, (0, None))
        if status == "Downloading":
            self._layers[id] = (detail.get("current", current), detail.get("total", total))
        elif status in ("Verifying Checksum", "Download complete", "Pull complete"):
            self._layers[id] = (current if total is None else total, total)
        elif status in ("Waiting", "Pulling fs layer"):
            self._layers.setdefault(id, (0, None))
        self._extracting = status == "Extracting"

    def progress(self) -> Progress:
        """Bytes of all layers so far; the total counts the layers whose size is known yet."""
        totals = [total for _, total in self._layers.values() if total is not None]
        doing = "unpacking" if self._extracting else "pulling"
        return Progress(
            phase="pulling",
            current=sum(current for current, _ in self._layers.values()),
            total=sum(totals) if totals else None,
            message=f"{doing} {self._image}",
        )


async def pull(engine: Engine, image: str, on_progress: OnProgress) -> None:
    """Pull `image`. Raises `ImageRefused` with the registry's reason, or `NodeUnreachable`. Cancel it any time."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    one = _Pull(engine, image)
    on_progress(Progress(phase="pulling", message=f"pulling {image}"))

    def tell(progress: Progress) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if done.done() else on_progress(progress))

    def work() -> None:
        error: BaseException | None = None
        try:
            one.run(tell)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, error)

    def finish(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    threading.Thread(target=work, name=f"gpufit-{engine.node}-pull", daemon=True).start()
    try:
        await done
    finally:
        one.cancel()


class _Pull:
    def __init__(self, engine: Engine, image: str) -> None:
        self._engine, self._image = engine, image
        self._lock = threading.Lock()
        self._cancelled = False
        self._response: requests.Response | None = None

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._response is not None:
                hang_up(self._response)

    def run(self, tell: OnProgress) -> None:
        with self._engine.answering():
            client = self._engine.client()
            response = self._ask(client)
            with response:
                with self._lock:
                    self._response = None if self._cancelled else response
                    if self._cancelled:
                        return
                try:
                    client._raise_for_status(response)
                    self._follow(response.iter_lines(chunk_size=None), tell)
                except docker.errors.APIError as error:
                    raise self._refused(said(error)) from None
                finally:
                    with self._lock:
                        self._response = None

    def _ask(self, client: Any) -> requests.Response:
        repository, tag = docker.utils.parse_repository_tag(self._image)
        registry, _ = docker.auth.resolve_repository_name(repository)
        header = docker.auth.get_config_header(client, registry)  # of the ~/.docker/config.json here
        response: requests.Response = client.post(
            client._url("/images/create"),
            params={"fromImage": repository, "tag": tag or "latest"},
            headers={"X-Registry-Auth": header} if header else {},
            stream=True,
            timeout=(CONNECT_WITHIN, STALLED_AFTER),
        )
        return response

    def _follow(self, lines: Iterable[bytes], tell: OnProgress) -> None:
        layers, told = Layers(self._image), 0.0
        for text in lines:
            line = json.loads(text)
            if "error" in line:
                raise self._refused(line["error"])
            layers.take(line)
            if time.monotonic() - told >= TELL_EVERY:
                told = time.monotonic()
                tell(layers.progress())

    def _refused(self, why: str) -> ImageRefused:
        check_disk(self._engine.node, why.strip())
        return ImageRefused(
            f"image {self._image!r} cannot be pulled on {self._engine.node}: {why.strip()}; "
            "check its name, and that the node can reach its registry",
            image=self._image,
        )

"""A server extension for tests: what goes on inside a Jupyter server. `GET insight` → tasks and threads, by name.

server_process(..., config={"ServerApp.jpserver_extensions": {"helpers.insight": True}}, environment={"PYTHONPATH": …})
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "helpers.insight"}]


def _load_jupyter_server_extension(app: Any) -> None:
    app.web_app.add_handlers(".*", [(url_path_join(app.base_url, "insight"), Insight)])


class Insight(APIHandler):
    """Garbage is collected first: what is seen is what somebody holds."""

    @web.authenticated
    async def get(self) -> None:
        gc.collect()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        tasks = Counter(task.get_coro().__qualname__ for task in others)
        tasks.pop("HTTP1ServerConnection._server_request_loop", None)  # connections that whoever asks keeps open
        threads = Counter(thread.name for thread in threading.enumerate())
        self.finish({"tasks": tasks, "threads": threads})

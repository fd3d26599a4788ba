"""The sidebar when its server goes away, when only the events do, and when the server has no such extension.

All under a base URL, as behind a hub. No page is loaded again.
"""

from __future__ import annotations

import re

import pytest
from helpers.browser import Notebook, lab_server
from helpers.sidebar import Sidebar
from playwright.sync_api import BrowserContext, ConsoleMessage, WebSocketRoute

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]
name = "atlas"
report = "simulated:2xA100-40GB"
"""
BASE = "--ServerApp.base_url=/user/ada/"
OPTIONS = (BASE,)
GONE = "does not answer"
DEAF = "tells of no changes"


def said(sidebar: Sidebar) -> str:
    return sidebar.root.inner_text()


def test_kill_9_of_the_server(notebook: Notebook) -> None:
    server = notebook.server
    assert server.url.endswith("/user/ada/")
    sidebar = Sidebar(notebook.open_launcher())
    notebook.until(lambda: "atlas" in said(sidebar), "the cluster")
    assert GONE not in said(sidebar)

    server.kill()
    notebook.until(lambda: GONE in said(sidebar), "the sidebar to say so")
    notebook.dismiss()
    assert "atlas" in said(sidebar), "what was known is shown still"
    notebook.picture("connection-gone")

    server.start_again()
    server.post("gpufit/api/v1/allocations", {"gpus": 1, "memory": "1GiB", "name": "since"})
    notebook.until(lambda: GONE not in said(sidebar), "the sidebar to be connected again")
    notebook.until(lambda: "since" in said(sidebar), "the allocation that was made meanwhile")
    # Events come, too: this one happens now.
    [allocation] = notebook.allocations()
    server.delete(f"gpufit/api/v1/allocations/{allocation['id']}")
    notebook.until(lambda: re.search(r"\b(ended|released|given back)\b", said(sidebar), re.IGNORECASE), "its end")
    notebook.picture("connection-again")


def test_events_alone_are_lost(notebook: Notebook) -> None:
    server, sockets = notebook.server, list[WebSocketRoute]()
    blocked = False

    def route(socket: WebSocketRoute) -> None:
        if blocked:
            socket.close(code=1001)
            return
        socket.connect_to_server()
        sockets.append(socket)

    notebook.page.route_web_socket(re.compile(r"/user/ada/api/events/subscribe"), route)
    sidebar = Sidebar(notebook.open_launcher())
    notebook.until(lambda: "atlas" in said(sidebar), "the cluster")

    blocked = True
    for socket in sockets:
        socket.close(code=1001)
    notebook.until(lambda: DEAF in said(sidebar), "the sidebar to say so")
    notebook.picture("connection-deaf")
    server.post("gpufit/api/v1/allocations", {"gpus": 1, "memory": "1GiB", "name": "unheard"})

    blocked = False
    notebook.until(lambda: DEAF not in said(sidebar), "the sidebar to hear again")
    notebook.until(lambda: "unheard" in said(sidebar), "what it has not heard")


def test_a_server_without_the_extension(browser: BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("bare")
    without = "--ServerApp.jpserver_extensions={'jupyter_gpufit': False}"
    with lab_server(home, INVENTORY, BASE, without) as server:
        page, wrong = browser.new_page(), list[str]()

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and "gpufit" in f"{message.text} {message.location['url']}":
                wrong.append(f"{message.text} {message.location['url']}")

        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        notebook = Notebook(page, server, home)
        sidebar = Sidebar(notebook.open_launcher())
        sentence = "does not have the jupyter_gpufit extension"
        notebook.until(lambda: sentence in said(sidebar), "the sentence")
        notebook.picture("connection-missing")
        page.wait_for_timeout(5000)  # it does not try again and again
        # The browser's own line about the one question that it takes to know.
        assert len(wrong) == 1, wrong
        assert "gpufit/api/v1/about" in wrong[0]
        page.close()

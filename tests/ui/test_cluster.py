"""The sidebar's section *Cluster*: what it tells of nodes and GPUs, found and opened by mouse and by keyboard."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest
from helpers.browser import Notebook, lab_server
from helpers.sidebar import Cluster, Sidebar
from playwright.sync_api import BrowserContext

GiB = 2**30
INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]  # others on four of its GPUs, and one is lost
name = "atlas"
report = "simulated:8xA100-80GB?load=0-2:60GiB@95%&load=3:20GiB@20%&fault=7:lost"
labels = { room = "b12" }

[[node]]
name = "brook"
report = "simulated:2xL4-24GB"
labels = { room = "b14" }

[[node]]  # one card in MIG mode
name = "cedar"
report = "simulated:2xA100-40GB?mig=0:3g.20gb,1g.5gb*2&load=0.1:3GiB@50%"

[[node]]
name = "gone"
docker = "tcp://127.0.0.1:9"
report = "http://127.0.0.1:9"
insecure = true
"""

BEYOND = """root => [...root.querySelectorAll('*')]
    .filter(one => one.getBoundingClientRect().right > root.getBoundingClientRect().right + 1)
    .map(one => one.className)"""


@pytest.fixture
def cluster(launcher: Notebook) -> Cluster:
    cluster = Sidebar(launcher, 300).cluster
    launcher.until(lambda: cluster.names() == ["atlas", "brook", "cedar", "gone"], "the nodes")
    launcher.until(lambda: "8 of 14 GPUs free" in cluster.text(), "all reports")
    return cluster


def test_by_keyboard(launcher: Notebook, cluster: Cluster) -> None:
    keys = launcher.page.keyboard

    def at() -> str:
        """What has the focus."""
        script = "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''"
        return str(launcher.page.evaluate(script)).split(",")[0]

    cluster.search.focus()
    for _ in range(3):
        keys.press("Tab")  # order, more filters, the list
    assert at() == "atlas"
    keys.press("ArrowDown")
    assert at() == "brook"
    keys.press("End")
    assert at() == "gone"
    keys.press("ArrowDown")
    assert at() == "gone"
    keys.press("Home")
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    assert at() == "cedar"
    keys.press("Enter")
    launcher.until(lambda: cluster.button("cedar").get_attribute("aria-expanded") == "true", "the details")
    keys.press("Tab")
    assert at() == "Examine"
    keys.press("Enter")
    cluster.details("cedar").get_by_text("Nothing is wrong").wait_for()
    assert "4 GPUs, " in cluster.details("cedar").inner_text()  # the card in MIG mode is none
    assert at() == "Examine"  # the focus stayed, and so did it with all that has changed meanwhile
    keys.press("Escape")
    assert at() == "cedar"
    keys.press("Enter")
    launcher.until(lambda: cluster.button("cedar").get_attribute("aria-expanded") == "false", "them to be folded")
    keys.press("/")
    keys.type("GONE")
    launcher.until(lambda: cluster.names() == ["gone"], "the filter")
    keys.press("Escape")
    launcher.until(lambda: len(cluster.names()) == 4, "all of them")


def test_by_mouse(launcher: Notebook, cluster: Cluster) -> None:
    cluster.search.fill("room=B1 l4")
    launcher.until(lambda: cluster.names() == ["brook"], "the filter by text")
    cluster.search.fill("nowhere")
    cluster.root.get_by_role("button", name="Clear the filter").click()
    launcher.until(lambda: len(cluster.names()) == 4, "all of them")
    for order, expected in (
        ("Free memory", ["atlas", "cedar", "brook", "gone"]),
        ("Model", ["cedar", "atlas", "brook", "gone"]),
        ("Name", ["atlas", "brook", "cedar", "gone"]),
    ):
        cluster.root.get_by_label("Sort nodes by").select_option(label=order)
        launcher.until(lambda expected=expected: cluster.names() == expected, f"the order by {order}")
    cluster.root.get_by_role("button", name="More filters").click()
    cluster.root.get_by_label("Free on a GPU").fill("30 GiB")
    launcher.until(lambda: cluster.names() == ["atlas", "cedar"], "the filter by memory")
    cluster.root.get_by_label("Free on a GPU").fill("30 Gobi")
    cluster.root.get_by_text("'30 Gobi' is not a size of memory").wait_for()
    cluster.root.get_by_label("Free on a GPU").fill("")
    # Memory that only atlas has, in the form above.
    cluster.root.get_by_label("fits my request").check()
    cluster.sidebar.form.field("Memory per GPU").fill("70GiB")
    launcher.until(lambda: cluster.names() == ["atlas"], "what fits the request")
    cluster.root.get_by_label("fits my request").uncheck()

    cluster.row("atlas").get_by_text("8 × A100-80GB").click()
    details = cluster.details("atlas")
    assert "room=b12" in details.inner_text()
    details.get_by_role("button", name="Examine", exact=True).click()
    details.get_by_text("1 wrong, ").wait_for()
    assert "GPU 7" in details.inner_text()
    launcher.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    details.get_by_role("button", name="Copy: nvidia-smi").click()
    details.get_by_role("button", name="Copied: nvidia-smi").wait_for()
    assert launcher.page.evaluate("navigator.clipboard.readText()").startswith("nvidia-smi")
    launcher.picture("cluster-examined")
    details.get_by_role("button", name="Also start a kernel on one idle GPU").click()
    launcher.until(lambda: "kernel right" in cluster.details("atlas").inner_text(), "the kernel to answer")


def test_each_gpu_tells_who_has_it(launcher: Notebook, cluster: Cluster) -> None:
    request = {"gpus": 1, "memory": "12GiB", "name": "train", "node": "brook"}
    launcher.server.post("gpufit/api/v1/allocations", request)
    mine = launcher.until(
        lambda: next((said for said in cluster.gpus("brook") if "your allocation 'train'" in said), ""), "one of mine"
    )
    assert "L4, " in mine
    assert "GiB of 22.4 GiB free" in mine

    lost = cluster.gpus("atlas")[7]
    assert "GPU 7: A100-80GB, 80 GiB in all, free memory unknown, utilisation unknown; lost" in lost
    assert cluster.gpus("atlas")[3].startswith("GPU 3: A100-80GB, 59.1 GiB of 80 GiB free, 20 GiB used by other")
    assert [said.partition(":")[0] for said in cluster.gpus("cedar")] == [
        *(f"GPU 0, MIG instance {part}" for part in range(3)),
        "GPU 1",
    ]
    # What is seen is what is said: a quarter of that bar, in its own pattern.
    bar = cluster.row("atlas").get_by_role("img").nth(3).locator(".jp-GpuFit-bar")
    part = bar.locator(".jp-mod-foreign")
    assert _width(part) / _width(bar) == pytest.approx(0.25, abs=0.04)
    assert _width(cluster.row("brook").locator(".jp-mod-mine")) > 0
    assert "not usable" in cluster.row("gone").inner_text()
    assert "unreachable since" in cluster.row("gone").inner_text()
    assert "GPU 7: lost" in cluster.row("atlas").inner_text()
    for width in (300, 600):
        cluster.sidebar.drag_to(width)
        launcher.page.wait_for_timeout(300)
        assert cluster.root.evaluate(BEYOND) == []
        launcher.picture(f"cluster-{width}")


def _width(one: Any) -> float:
    return float(one.first.bounding_box()["width"])


def test_a_thousand_nodes(
    browser: BrowserContext, screenshots: Any, tmp_path_factory: pytest.TempPathFactory, capsys: Any
) -> None:
    """As many rows in the page as can be seen; an event costs what is seen, and not what there is."""
    nodes = "\n".join(
        f'[[node]]\nname = "n{number:04}"\nreport = "simulated:8xA100-40GB?foreign=50%&seed={number}"'
        for number in range(1000)
    )
    inventory = f'[defaults]\ndocker = "process"\nmonitor_period = "10s"\n{nodes}'
    page = browser.new_page()
    with lab_server(tmp_path_factory.mktemp("large"), inventory) as server:
        notebook = Notebook(page, server, screenshots).open_launcher()
        cluster = Sidebar(notebook, 300).cluster
        notebook.until(lambda: "of 8000 GPUs free on 1000 nodes" in cluster.text(), "all nodes")
        seen = len(cluster.names())
        assert seen < 60
        assert cluster.item("n0000").get_attribute("aria-setsize") == "1000"

        watch = Watch(page)
        full = watch.cost_of_an_event()
        cluster.button("n0000").focus()
        page.keyboard.press("End")
        notebook.until(lambda: cluster.names()[-1] == "n0999", "the last row")
        assert cluster.item("n0999").get_attribute("aria-posinset") == "1000"
        page.keyboard.press("ArrowUp")
        place = cluster.scrolled()
        watch.cost_of_an_event()
        assert page.evaluate("document.activeElement.ariaLabel").startswith("n0998,")  # with all that has changed
        assert cluster.scrolled() == place
        notebook.picture("cluster-1000")
        assert len(cluster.names()) < 60

        cluster.search.fill("n050")
        notebook.until(lambda: len(cluster.names()) == 10, "the filter")
        ten = watch.cost_of_an_event()
        long_tasks = watch.long_tasks()
        page.close()
    figures = {"rows": seen, "ms per event": full, "ms per event, 10 rows": ten, "long tasks (ms)": long_tasks}
    with capsys.disabled():
        print("\n1,000 nodes:", json.dumps(figures))
    # There are a hundred times the nodes, and about twice the rows. On a busy machine times say little else.
    assert full["script"] / max(ten["script"], 0.1) < 20


class Watch:
    """What a page's main thread is busy with."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._browser = page.context.new_cdp_session(page)
        self._browser.send("Performance.enable")
        page.evaluate("""() => {
            window.longTasks = [];
            new PerformanceObserver(list => list.getEntries().forEach(one => window.longTasks.push(one.duration)))
                .observe({ type: 'longtask' });
        }""")

    def _spent(self) -> dict[str, float]:
        found = {one["name"]: one["value"] for one in self._browser.send("Performance.getMetrics")["metrics"]}
        return {
            name: 1000 * found[key]
            for name, key in (
                ("script", "ScriptDuration"),
                ("layout", "LayoutDuration"),
                ("style", "RecalcStyleDuration"),
                ("all", "TaskDuration"),
            )
        }

    def cost_of_an_event(self, seconds: int = 5) -> dict[str, float]:
        """Milliseconds per second, in which there is one event at most; the median."""
        rounds = []
        for _ in range(seconds):
            before = self._spent()
            self._page.wait_for_timeout(1000)
            rounds.append({name: value - before[name] for name, value in self._spent().items()})
        return {name: round(median(one[name] for one in rounds), 1) for name in rounds[0]}

    def long_tasks(self) -> list[int]:
        return [round(duration) for duration in self._page.evaluate("window.longTasks")]

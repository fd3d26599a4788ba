"""The GPUs sidebar of JupyterLab, as a person uses it. Works on the page of a `helpers.browser.Notebook`."""

from __future__ import annotations

import re

from helpers.browser import Notebook
from playwright.sync_api import Locator

__all__ = ["Card", "Cluster", "Form", "Sidebar"]


class Sidebar:
    """The sidebar of a page, opened."""

    def __init__(self, notebook: Notebook, width: int = 0) -> None:
        """`width`: drag it to that many pixels."""
        self.notebook, self.page = notebook, notebook.page
        self.root = self.page.locator("#jp-gpufit-sidebar")
        tab = self.page.locator('.lm-TabBar-tab[data-id="jp-gpufit-sidebar"]')
        tab.wait_for()
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")  # until then it may open by itself
        if not self.root.is_visible():
            tab.click()
        self.root.wait_for()
        if width:
            self.drag_to(width)

    def drag_to(self, width: int) -> None:
        """Drag its edge until it is that wide."""
        box = self.page.locator("#jp-right-stack").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] - 1, middle)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + box["width"] - width - 1, middle, steps=5)
        self.page.mouse.up()

    @property
    def form(self) -> Form:
        return Form(self)

    @property
    def cluster(self) -> Cluster:
        return Cluster(self)

    def card(self, name: str) -> Card:
        """The card of an allocation, in *My allocations*."""
        return Card(self, name)


class Form:
    """Its section *Request*."""

    def __init__(self, sidebar: Sidebar) -> None:
        self.root = sidebar.root.get_by_role("form", name="Request GPUs")
        self.root.wait_for()

    def field(self, label: str) -> Locator:
        return self.root.get_by_label(label, exact=True)

    def button(self, name: str | re.Pattern[str]) -> Locator:
        return self.root.get_by_role("button", name=name)

    def verdict(self) -> str:
        """What the dry run says."""
        return self.root.locator(".jp-GpuFit-formVerdict").inner_text()

    def outcome(self) -> str:
        """What became of what was asked: granted, or why not."""
        return "\n".join(self.root.locator(".jp-GpuFit-formOutcome, [role=alert]").all_inner_texts()).strip()


class Card:
    """One allocation, in *My allocations*."""

    def __init__(self, sidebar: Sidebar, name: str) -> None:
        named = sidebar.page.locator(".jp-GpuFit-name").get_by_text(name, exact=True)
        self.root = sidebar.root.locator(".jp-GpuFit-held", has=named)

    def text(self) -> str:
        """All it says; empty while there is no such card."""
        return "\n".join(self.root.all_inner_texts())

    def button(self, label: str) -> Locator:
        return self.root.get_by_role("button", name=label, exact=True)

    def press(self, label: str) -> None:
        self.button(label).click()

    def field(self, label: str) -> Locator:
        return self.root.get_by_label(label, exact=True)

    def error(self) -> str:
        """Why what was asked of it did not work."""
        return "\n".join(self.root.locator("[role=alert]").all_inner_texts())


class Cluster:
    """Its section *Cluster*."""

    def __init__(self, sidebar: Sidebar) -> None:
        self.sidebar = sidebar
        self.root = sidebar.root.locator(".jp-GpuFit-cluster")
        self.root.wait_for()

    @property
    def search(self) -> Locator:
        return self.root.get_by_label("Filter nodes by name, model or label")

    def text(self) -> str:
        return self.root.inner_text()

    def names(self) -> list[str]:
        """The nodes whose rows are in the page, in order."""
        found: list[str] = self.root.evaluate(
            """root => [...root.querySelectorAll('[data-node]')]
                .sort((one, other) => one.ariaPosInSet - other.ariaPosInSet).map(row => row.dataset.node)"""
        )
        return found

    def item(self, node: str) -> Locator:
        return self.root.locator(f'[data-node="{node}"]')

    def row(self, node: str) -> Locator:
        """A node, without its details."""
        return self.item(node).locator(".jp-GpuFit-nodeHead")

    def button(self, node: str) -> Locator:
        """What expands it."""
        return self.row(node).get_by_role("button")

    def details(self, node: str) -> Locator:
        return self.item(node).get_by_role("group", name=f"Details of {node}")

    def gpus(self, node: str) -> list[str]:
        """What its bars say to who cannot see them."""
        return [bar.get_attribute("aria-label") or "" for bar in self.row(node).get_by_role("img").all()]

    def scrolled(self) -> float:
        return float(self.root.locator(".jp-GpuFit-nodes").evaluate("list => list.scrollTop"))

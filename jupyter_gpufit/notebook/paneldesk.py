"""`%gpufit panel` in one notebook: one panel, whose widgets are shown as often as the cell is run, and what stays when
they cannot be.

    show      ─→ mime bundle: the widgets, and beside them a page that can be read without any
    leave     ─→ that page alone, where they were: the notebook goes to another kernel, which has no such widgets
    close     ─→ likewise, and all is ended
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from ..durations import format_clock
from ..errors import GpufitError
from ..models import Node
from .client import Client, Json
from .forward import Forwarder
from .outputs import outputs_of
from .panel import Form, Shown, cluster_line, model_table
from .panelwork import Panel
from .show import Page, allocation_table, describe

__all__ = ["PanelDesk", "View"]

WIDGETS = "application/vnd.jupyter.widget-view+json"
_FIRST = 2.0  # s that the cell waits for what the server says, to have it on the page
_AGAIN = "Run %gpufit panel again to have the panel back."


class View(Protocol):
    """What shows the panel (`panelview.PanelView`)."""

    model_id: str

    def show(self, shown: Shown) -> None:
        """Called in the panel's thread."""

    def close(self) -> None:
        """Idempotent."""


class Notebook(Protocol):
    """Whose panel it is (`magics.Gpufit`)."""

    shell: Any
    forwarder: Forwarder

    def found(self) -> Client:
        """The client; the first time that takes a while. Raises a `GpufitError`."""

    @property
    def note(self) -> str | None:
        """Why it is not the expected one."""

    def go_to(self, client: Client, allocation: Json) -> tuple[list[str], str, bool]:
        """See `Gpufit.go_to`."""


def _widgets(panel: Panel, closed: Callable[[], None]) -> View:
    from .panelview import PanelView  # with it come the widgets

    return PanelView(panel, closed)


class PanelDesk:
    """Opens, shows and ends the panel of a notebook, and is its `Desk`."""

    def __init__(self, notebook: Notebook, view: Callable[[Panel, Callable[[], None]], View] = _widgets) -> None:
        self._notebook = notebook
        self._make = view
        self._panel: Panel | None = None
        self._view: View | None = None
        self._form = Form()
        self._displays: list[str] = []
        self._lock = threading.RLock()
        self._running = False

    # --- called by the magic

    def show(self) -> None:
        """`%gpufit panel`."""
        shell, here = self._notebook.shell, self._notebook.forwarder.allocation
        if not hasattr(shell, "kernel"):
            self._plain("The panel is for notebooks. Here: %gpufit request 1 --memory 8GiB, %gpufit release.")
            return
        if here is not None and self._notebook.found().has_session():
            self._plain(
                f"This notebook is going to run in the kernel of {describe(here)}, and the panel works in its local "
                f"kernel. Go back with %gpufit detach or %gpufit release, then run this cell again."
            )
            return
        try:
            panel, view = self._open()
        except ImportError as problem:
            self._plain(f"The panel needs ipywidgets ({problem}): pip install ipywidgets, then restart this kernel.")
            return
        panel.wake()
        panel.ready(_FIRST)
        display = f"gpufit-{uuid.uuid4().hex}"
        with self._lock:
            self._displays.append(display)
        shell.display_pub.publish(data=self._live(view), metadata={}, transient={"display_id": display})

    def leave(self, where: str) -> None:
        """The notebook is about to go to another kernel: what is shown must do without this one."""
        if (panel := self._panel) is None:
            return
        with contextlib.suppress(GpufitError):
            panel.held = self._notebook.found().allocations()  # with what was granted a moment ago
        self._put(
            self._page(
                f"{where} Its local kernel is kept, and the panel with it: go back with %gpufit detach (the GPUs stay "
                "held) or %gpufit release, then run this cell again."
            ).bundle()
        )

    def stay(self) -> None:
        """It does not go after all."""
        view = self._view
        if view is not None:
            self._put(self._live(view))

    def close(self, note: str | None = _AGAIN, wait: bool = True) -> None:
        """End the panel; a page stays where it was (unless `note` is `None`: then there is one). Idempotent."""
        with self._lock:
            panel, self._panel = self._panel, None
            view, self._view = self._view, None
        if panel is None or view is None:
            return
        panel.close(wait)
        self._form = panel.form
        for event, callback in self._events():
            with contextlib.suppress(ValueError):
                self._notebook.shell.events.unregister(event, callback)
        if note is not None:
            self._put(self._page_of(panel, f"The panel is closed. {note}").bundle())
        self._displays.clear()
        view.close()

    # --- called in the panel's thread (`panelwork.Desk`)

    def client(self) -> Client:
        return self._notebook.found()

    def note(self) -> str:
        return self._notebook.note or ""

    @property
    def here(self) -> Json | None:
        return self._notebook.forwarder.allocation

    @property
    def busy(self) -> bool:
        return self._running

    def attach(self, allocation: Json) -> tuple[str, bool]:
        said, problem, leaves = self._notebook.go_to(self._notebook.found(), allocation)
        if problem:
            said.append(f"The notebook keeps its local kernel, which forwards its cells: {problem}")
        elif not leaves:
            said.append("The notebook keeps its local kernel, which forwards its cells.")
        return " ".join(said), leaves

    def detach(self) -> str:
        allocation = self._notebook.forwarder.allocation
        if allocation is None:
            return ""
        self._notebook.forwarder.stop()
        self._notebook.found().detach(allocation["id"])
        return f"This notebook's cells run in its local kernel again; {describe(allocation)} stays held."

    def leave_allocation(self, allocation: Json) -> None:
        here = self._notebook.forwarder.allocation
        if here is not None and here["id"] == allocation["id"]:
            self._notebook.forwarder.stop()

    # --- parts

    def _open(self) -> tuple[Panel, View]:
        with self._lock:
            if self._panel is not None and self._panel.closed:  # it could not be shown any more
                self.close()
            if self._panel is not None and self._view is not None:
                return self._panel, self._view
            made: list[View] = []
            panel = Panel(self, lambda shown: made[0].show(shown), self._form)
            view = self._make(panel, self._closed_by_someone)
            made.append(view)
            view.show(panel.shown)
            panel.start()
            self._panel, self._view = panel, view
            self._running = True  # this very cell
            for event, callback in self._events():
                self._notebook.shell.events.register(event, callback)
            return panel, view

    def _events(self) -> tuple[tuple[str, Callable[..., None]], ...]:
        return ("pre_run_cell", self._before_cell), ("post_run_cell", self._after_cell)

    def _before_cell(self, *_: object) -> None:
        self._running = True

    def _after_cell(self, *_: object) -> None:
        self._running = False
        if (panel := self._panel) is not None:
            panel.wake()

    def _closed_by_someone(self) -> None:
        """The view's button, or `widget.close()`: called in any thread, which must not wait for a server."""
        self.close(wait=False)

    def _put(self, bundle: dict[str, Any]) -> None:
        """In the place of the panel, wherever it is shown."""
        for display in list(self._displays):
            self._notebook.shell.display_pub.publish(
                data=bundle, metadata={}, transient={"display_id": display}, update=True
            )

    def _live(self, view: View) -> dict[str, Any]:
        """The widgets, and beside them the page."""
        reference = {"version_major": 2, "version_minor": 0, "model_id": view.model_id}
        return {**self._page().bundle(), WIDGETS: reference}

    def _page(self, note: str = "") -> Page:
        panel = self._panel
        return Page() if panel is None else self._page_of(panel, note)

    def _page_of(self, panel: Panel, note: str = "") -> Page:
        return page_of(panel.nodes, panel.inventory_error, panel.held, self.here, note, panel.shown.trouble)

    def _plain(self, note: str) -> None:
        """What there is without a panel."""
        client = self._notebook.found()
        nodes, error = client.cluster()
        page = page_of(nodes, error, client.allocations(), self.here, note)
        outputs_of(self._notebook.shell).display({"data": page.bundle(), "metadata": {}})


def page_of(
    nodes: list[Node], error: str | None, held: list[Json], here: Json | None, note: str = "", trouble: str = ""
) -> Page:
    """The panel for where no widgets are: the cluster in a few lines, and what is held."""
    page = Page()
    if note:
        page.say(note)
    if trouble:
        page.say(trouble)
    page.say(f"{cluster_line(nodes)} (at {format_clock(time.time())})")
    if error:
        page.say(f"The inventory cannot be used as it is: {error}")
    if nodes:
        page.table(*model_table(nodes))
    if held:
        page.table(*allocation_table(held, None if here is None else here["id"]))
    else:
        page.say("You hold no GPUs.")
    return page

"""`%gpufit panel`, how it looks: widgets that show a `Shown`, and tell the `Panel` what somebody does. Nothing else is
decided here.

Imports ipywidgets: import it where a panel is opened. Whatever comes from elsewhere is escaped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from .panel import DryRun, Row, Shown
from .panelwork import Panel

__all__ = ["PanelView"]

STYLE = """<style>
.gpufit-panel { max-width: 760px; padding: 12px 16px 16px; gap: 10px; box-sizing: border-box;
  border: 1px solid var(--jp-border-color2, #bdbdbd); border-radius: 4px;
  background: var(--jp-layout-color1, transparent); color: var(--jp-ui-font-color1, inherit); }
.gpufit-panel .widget-html-content { line-height: 1.45; white-space: normal; overflow-wrap: anywhere;
  color: var(--jp-ui-font-color1, inherit); }
.gpufit-panel .widget-html { width: 100%; margin: 0; height: auto; }
.gpufit-panel .widget-label { color: var(--jp-ui-font-color1, inherit); text-align: left; }
.gpufit-panel .gpufit-field { gap: 2px; overflow: hidden; }
.gpufit-panel .gpufit-field > * { margin: 0; }
.gpufit-panel .gpufit-wrong .widget-html-content { padding-left: 92px; color: var(--jp-error-color1, #c62828); }
.gpufit-panel b { font-weight: 600; }
.gpufit-panel .gpufit-soft { color: var(--jp-ui-font-color2, inherit); }
.gpufit-panel .gpufit-bad { color: var(--jp-error-color1, #c62828); }
.gpufit-panel .gpufit-warn { color: var(--jp-warn-color1, #b26a00); }
.gpufit-panel .gpufit-dry { padding: 6px 10px; border-left: 3px solid var(--jp-border-color1, #9e9e9e);
  background: var(--jp-layout-color2, transparent); }
.gpufit-panel .gpufit-dry.gpufit-fits { border-color: var(--jp-success-color1, #388e3c); }
.gpufit-panel .gpufit-dry.gpufit-nowhere { border-color: var(--jp-warn-color1, #f57c00); }
.gpufit-panel .gpufit-dry ul { margin: 4px 0 0; padding-left: 18px; }
.gpufit-panel .gpufit-rows { gap: 8px; }
.gpufit-panel .gpufit-row { gap: 6px; padding-top: 8px; border-top: 1px solid var(--jp-border-color2, #bdbdbd); }
.gpufit-panel .gpufit-buttons { flex-flow: row wrap; gap: 6px; align-items: center; }
.gpufit-panel .gpufit-buttons > * { margin: 0; }
.gpufit-panel .jupyter-widgets-disconnected::before { content: none; }
.gpufit-panel.jupyter-widgets-disconnected > * { opacity: 0.5; pointer-events: none; }
.gpufit-panel.jupyter-widgets-disconnected::before { content: "This panel's kernel is gone. Run %gpufit panel again.";
  padding: 0; font: inherit; color: var(--jp-warn-color1, #b26a00); }
.gpufit-panel progress { width: 12em; max-width: 100%; vertical-align: middle; }
</style>"""

_LABELS = {"description_width": "84px"}
_WIDE = "repeat(auto-fit, minmax(min(100%, 270px), 1fr))"
_EXTENSION = "1h"


def _html(kind: str, text: str, live: bool = False) -> str:
    """A line of the given class. `text` has been escaped."""
    status = " role='status' aria-live='polite'" if live else ""
    return f"<div class='{kind}'{status}>{text}</div>" if text else ""


class PanelView:
    """Made in the kernel's main thread. `show` is called in the panel's; `closed` when somebody closes the widgets."""

    def __init__(self, panel: Panel, closed: Callable[[], None]) -> None:
        self._panel = panel
        self._lock = threading.RLock()
        self._open = True
        self._forms = panel.shown.forms
        self._rows: dict[str, _RowView] = {}
        form = panel.form
        self._fields: dict[str, Any] = {
            "gpus": _text("GPUs", form.gpus, "how many", "How many GPUs, all on one machine"),
            "memory": _text(
                "Memory", form.memory, "any", "Free memory per GPU: 16GiB, or 16GiB,8GiB for one size each"
            ),
            "cpus": _text("CPUs", form.cpus, "none in particular", "Cores of the machine for it alone: 8, or 0.5"),
            "ram": _text("RAM", form.ram, "none in particular", "The machine's own memory for it alone: 64GiB"),
            "image": _text("Image", form.image, "", "Container image, if the inventory allows it", widgets.Combobox),
            "time": _text("Time limit", form.time, "", "The GPUs are given back after this long: 90m, 2h"),
            "wait": _text("Wait", form.wait, "refuse if none fits", "If nothing fits now, wait up to this long: 10m"),
            "shared": widgets.Checkbox(
                value=form.shared,
                description="Share the GPUs",
                tooltip="Other allocations that are shared may use the same GPUs, as long as the memory lasts",
                indent=False,
                layout=widgets.Layout(width="auto"),
            ),
        }
        self._wrong = {name: widgets.HTML() for name in self._fields if name != "shared"}
        for name, field in self._fields.items():
            field.observe(_writes(panel, name), names="value")
        self._head, self._dry, self._said = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._take = _button("", lambda: panel.take_over(), "Write this into the form", width="auto")
        self._take.layout.display = "none"
        self._list = widgets.VBox()
        self._list.add_class("gpufit-rows")
        request = _button("Request", panel.request, "Ask for these GPUs", style="primary")
        close = _button("Close", closed, "Close the panel; what you hold stays held")
        self.root = widgets.VBox(
            [
                widgets.HTML(STYLE, layout=widgets.Layout(display="none")),
                self._head,
                widgets.Box(
                    [self._field(name) for name in self._fields],
                    layout=widgets.Layout(display="grid", grid_template_columns=_WIDE, grid_gap="8px 16px"),
                ),
                self._dry,
                _buttons(request, self._take, close),
                self._said,
                self._list,
            ],
            layout=widgets.Layout(overflow="hidden"),
        )
        self.root.add_class("gpufit-panel")
        self.model_id: str = self.root.model_id
        self.root.observe(lambda change: closed() if change["new"] is None and self._open else None, names="comm")

    def _field(self, name: str) -> Any:
        parts = [self._fields[name]]
        if name in self._wrong:
            self._wrong[name].add_class("gpufit-wrong")
            self._wrong[name].layout.display = "none"
            parts.append(self._wrong[name])
        box = widgets.VBox(parts)
        box.add_class("gpufit-field")
        return box

    def show(self, shown: Shown) -> None:
        """Make the widgets show this. What is as it was is not sent again."""
        with self._lock:
            if not self._open:
                return
            self._head.value = _head(shown)
            if shown.forms != self._forms:
                self._forms = shown.forms
                for name, field in self._fields.items():
                    field.value = getattr(shown.form, name)
            self._fields["image"].options = shown.images
            self._fields["image"].placeholder = shown.image or "the node's own"
            self._fields["time"].placeholder = shown.time or "none"
            for name, said in self._wrong.items():
                _put(said, escape(shown.wrong.get(name, "")))
            _put(self._dry, _dry_html(shown.dry))
            offer = shown.dry.offered if shown.dry is not None else ""
            self._take.description = f"Take {offer}"
            self._take.layout.display = "" if offer else "none"
            self._show_rows(shown)

    def _show_rows(self, shown: Shown) -> None:
        there = {row.id for row in shown.rows}
        _put(self._said, "" if shown.said_of in there else _said_html(shown))
        for id in [id for id in self._rows if id not in there]:
            _close(self._rows.pop(id).box)
        for row in shown.rows:
            view = self._rows.get(row.id) or self._rows.setdefault(row.id, _RowView(self._panel, row.id))
            view.show(row, _said_html(shown) if shown.said_of == row.id else "")
        boxes = tuple(self._rows[row.id].box for row in shown.rows)
        if self._list.children != boxes:
            self._list.children = boxes
        self._list.layout.display = "" if boxes else "none"

    def close(self) -> None:
        """Close all widgets. Idempotent."""
        with self._lock:
            self._open = False
            rows, self._rows = list(self._rows.values()), {}
        for row in rows:
            _close(row.box)
        _close(self.root)


class _RowView:
    """One allocation."""

    def __init__(self, panel: Panel, id: str) -> None:
        self._text, self._said = widgets.HTML(), widgets.HTML()
        self._attach = _button("Attach", lambda: panel.attach(id), "Run this notebook's cells there")
        self._detach = _button("Detach", lambda: panel.detach(id), "Run them in the local kernel; keep the GPUs")
        self._span = widgets.Text(_EXTENSION, layout=widgets.Layout(width="64px"), continuous_update=True)
        self._span.tooltip = "How much more time: 30m, 1h"
        self._extend = _button("Extend by", lambda: panel.extend(id, self._span.value), "Give it more time")
        self._release = _button("Release", lambda: panel.release(id), "Give the GPUs back")
        self._more = _buttons(self._extend, self._span)
        self._all = _buttons(self._attach, self._detach, self._release, self._more)
        self.box = widgets.VBox([self._text, self._all, self._said])
        self.box.add_class("gpufit-row")

    def show(self, row: Row, said: str) -> None:
        self._text.value = _row_html(row)
        _put(self._said, said)
        _seen(self._attach, row.can_attach and not row.wanted)
        _seen(self._detach, row.here or row.wanted)
        self._detach.description = "Detach" if row.here else "Do not attach"
        _seen(self._more, row.can_extend)
        _seen(self._release, row.can_release)
        _seen(self._all, row.can_release or row.here)


# --- as HTML


def _head(shown: Shown) -> str:
    return "".join(
        (
            _html("", f"<b>{escape(shown.where)}</b>"),
            _html("gpufit-soft", escape(shown.cluster)),
            _html("gpufit-warn", escape(shown.note)),
            _html("gpufit-bad", escape(shown.trouble), live=True),
        )
    )


def _dry_html(dry: DryRun | None) -> str:
    if dry is None:
        return ""
    kind = {True: " gpufit-fits", False: " gpufit-nowhere", None: ""}[dry.fits]
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in dry.reasons)
    return _html(f"gpufit-dry{kind}", escape(dry.text) + (f"<ul>{reasons}</ul>" if reasons else ""), live=True)


def _said_html(shown: Shown) -> str:
    return _html("gpufit-bad" if shown.failed else "", escape(shown.said), live=True)


def _row_html(row: Row) -> str:
    bar = "" if row.part is None else f" <progress value='{row.part:.3f}'></progress>"
    here = " · this notebook's cells run here" if row.here else " · attached once it can be" if row.wanted else ""
    return "".join(
        (
            _html("gpufit-soft" if row.ended else "", f"<b>{escape(row.title)}</b>"),
            _html("", escape(row.state + here) + bar),
            _html("gpufit-soft", escape(row.note)),
            _html("gpufit-warn", escape(row.warning)),
        )
    )


# --- widgets


def _text(label: str, value: str, placeholder: str, tooltip: str, kind: Any = widgets.Text) -> Any:
    return kind(
        value=value,
        description=label,
        placeholder=placeholder,
        tooltip=tooltip,
        continuous_update=True,
        style=_LABELS,
        layout=widgets.Layout(width="auto"),
    )


def _button(label: str, click: Callable[[], None], tooltip: str, *, style: str = "", width: str = "auto") -> Any:
    button = widgets.Button(
        description=label, tooltip=tooltip, button_style=style, layout=widgets.Layout(width=width, margin="0")
    )
    button.on_click(lambda _: click())
    return button


def _buttons(*buttons: Any) -> Any:
    box = widgets.HBox(buttons)
    box.add_class("gpufit-buttons")
    return box


def _writes(panel: Panel, name: str) -> Callable[[Any], None]:
    """What tells the panel that a field is another; not when the panel has filled it in itself."""

    def write(change: Any) -> None:
        if getattr(panel.form, name) != change["new"]:
            panel.edit(**{name: change["new"]})

    return write


def _put(html: Any, text: str) -> None:
    html.value = text
    _seen(html, bool(text))


def _seen(widget: Any, seen: bool) -> None:
    widget.layout.display = "" if seen else "none"


def _close(widget: Any) -> None:
    """Close a widget with all that it is made of: each part is known to the kernel by itself."""
    for child in getattr(widget, "children", ()):
        _close(child)
    for part in (widget.layout, getattr(widget, "style", None)):
        if isinstance(part, widgets.Widget):
            part.close()
    widget.close()

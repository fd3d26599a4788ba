"""`%gpufit` and `%%gpufit`: what the verbs do. How they are written is `grammar.py`'s business."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import Conflict, GpufitError, InvalidValue, NotFound
from ..kernels.attachment import LOCAL_TARGET
from ..kernels.bootstrap.completing import complete_no_longer, complete_with
from ..kernels.extended import extended
from ..models import Request, State
from . import grammar
from .cells import Interrupted, RemoteError
from .client import Client, Json, connect, has_ended, is_running, latest
from .completion import Known, complete
from .forward import AllocationLost, Forwarder, Link, run_here
from .jobs import carry, check_kernel, ended, folder_here, follow_log, sent
from .obtain import give_back, is_what_is_asked, obtain, submit, until_ended, until_running
from .options import request_of, submission_of
from .outputs import outputs_of
from .progress import Progress
from .show import Page, allocation_table, describe, explanation, node_table, used
from .transfer import CannotTravel, pack, pull, push

if TYPE_CHECKING:
    from .paneldesk import PanelDesk

__all__ = ["Gpufit", "load", "unload"]

_ALL = 100_000  # lines


class Gpufit:
    """The magics of one shell."""

    def __init__(self, shell: Any, connect: Callable[[Any], tuple[Client, str | None]] = connect) -> None:
        self.shell = shell
        self.forwarder = Forwarder(shell)
        self._connect = connect
        self._client: Client | None = None
        self._connecting = threading.Lock()  # completion asks on a thread of its own
        self._note: str | None = None
        self.note: str | None = None
        self.known = Known(self.found)
        self._panel_desk: PanelDesk | None = None

    @property
    def client(self) -> Client:
        """Found at the first use: loading the extension must cost nothing."""
        client = self.found()
        note, self._note = self._note, None
        if note is not None:
            print(note, file=sys.stderr)
        return client

    def found(self) -> Client:
        """Likewise, in any thread; it is `note` then that tells why it is not the expected one."""
        with self._connecting:
            if self._client is None:
                self._client, self.note = self._connect(self.shell)
                self._note = self.note
            return self._client

    def close(self) -> None:
        """Stop forwarding; an embedded scheduler gives back all it holds. Called at unload and when the kernel ends."""
        if self._panel_desk is not None:
            self._panel_desk.close()
        self.forwarder.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- called by IPython

    def line(self, line: str) -> Any:
        """`%gpufit …`"""
        with _readable():
            verb, options = grammar.parse_line(line)
            if options.help:
                print(grammar.help_of(verb or None))
                return None
            return getattr(self, f"_{verb or 'show'}")(options)

    def cell(self, line: str, cell: str = "") -> None:
        """`%%gpufit …`"""
        with _readable():
            options = grammar.parse_cell(line)
            if options.help:
                print(grammar.help_of("%%gpufit"))
            elif not line.strip() and self.forwarder.runs_here():
                run_here(self.shell, cell)
            else:
                self._run_cell(options, cell)

    def complete(self, before: str) -> list[str]:
        """What the last word of the line, up to the cursor, can become."""
        return complete(before, self.known)

    # --- what there is

    def _show(self, _: Namespace) -> None:
        here = self.forwarder.allocation
        page = Page()
        if here is None:
            page.say("This notebook's cells run in its local kernel.")
        else:
            page.say(f"This notebook's cells run on {describe(here)}.")
        held = self.client.allocations()
        if held:
            page.table(*allocation_table(held, None if here is None else here["id"]))
        else:
            page.say("You hold no GPUs; %gpufit request 1 --memory 8GiB gets one.")
        nodes, error = self.client.cluster()
        if error:
            page.say(f"The inventory cannot be used as it is: {error}")
        page.table(*node_table(nodes))
        self._display(page)

    def _panel(self, _: Namespace) -> None:
        if self._panel_desk is None:
            from .paneldesk import PanelDesk

            self._panel_desk = PanelDesk(self)
        self._panel_desk.show()

    def _nodes(self, _: Namespace) -> Any:
        from ..cluster import tables
        from .frames import Table

        return Table(tables.nodes(self.client.nodes()))

    def _gpus(self, _: Namespace) -> Any:
        from ..cluster import tables
        from .frames import Table

        return Table(tables.gpus(self.client.nodes()))

    def _allocations(self, options: Namespace) -> Any:
        from ..cluster import tables
        from .frames import Table

        return Table(tables.allocations(self.client.allocations(ended=options.ended)))

    def _explain(self, options: Namespace) -> None:
        self._display(explanation(self.client.explain(request_of(options))))

    def _models(self, _: Namespace) -> Any:
        from ..cluster import tables
        from .frames import Table

        return Table(tables.models(self.client.nodes()))

    def _usage(self, options: Namespace) -> Any:
        from ..cluster import tables

        series = self.client.usage(self._named(options.name, ended=True)["id"])
        picture = tables.usage_picture(series)
        bundle = {"text/plain": repr(picture), "text/html": picture._repr_html_()}
        outputs_of(self.shell).display({"data": bundle, "metadata": {}})
        return tables.usage(series)  # with its times as index, and `.plot()`

    def _logs(self, options: Namespace) -> None:
        allocation = self._named(options.name, ended=True)
        if options.follow:
            self._follow(allocation, options.tail)
            return
        text = self.client.logs(allocation["id"], options.tail)
        print(text.rstrip("\n") if text.strip() else f"{allocation['name']!r} has printed nothing so far.")

    # --- jobs and files

    def _train(self, options: Namespace) -> None:
        client = self.client
        request, sweep = submission_of(options, folder_here(), os.environ, client.notebook())
        made = submit(client, self.shell, request, sweep)
        for allocation in made:
            print(sent(allocation, "%gpufit"))
        if not client.lasting:
            print("Without a Jupyter server that has jupyter_gpufit, jobs end with this kernel.")
        if options.follow:
            for allocation in made:
                self._follow(allocation, _ALL)

    def _follow(self, allocation: Json, tail: int) -> None:
        allocation = follow_log(self.client, allocation, Progress(self.shell), "%gpufit", tail, print)
        print(ended(allocation))

    def _upload(self, options: Namespace) -> None:
        self._carry("upload", options)

    def _download(self, options: Namespace) -> None:
        self._carry("download", options)

    def _carry(self, do: str, options: Namespace) -> None:
        allocation = self._named(options.allocation, f", with {'--to' if do == 'upload' else '--from'}")
        carry(self.client, allocation, do, folder_here(), options.paths, Progress(self.shell))

    # --- getting and giving back

    def _request(self, options: Namespace) -> None:
        request = self._wanted(options)
        held = self._held_already(request)
        if held is not None and (here := self.forwarder.allocation) is not None and held["id"] == here["id"]:
            print(f"This notebook runs on {describe(held)} already; nothing to do.")
            return
        if held is not None:
            print(f"You hold {describe(held)} already.")
        allocation = obtain(self.client, self.shell, request) if held is None else held
        if options.no_attach:
            name = allocation["name"]
            print(f"Run cells on it: %gpufit attach {name}. Give it back: %gpufit release {name}")
        else:
            self._attach_to(allocation)

    def _attach(self, options: Namespace) -> None:
        allocation = self._named(options.name)
        check_kernel(allocation)
        here = self.forwarder.allocation
        if here is not None and here["id"] == allocation["id"]:
            print(f"This notebook runs on {describe(allocation)} already; nothing to do.")
            return
        self._attach_to(until_running(self.client, self.shell, allocation))

    def _detach(self, _: Namespace) -> None:
        allocation = self.forwarder.allocation
        if allocation is None:
            print("This notebook's cells run in its local kernel; there is nothing to detach.")
            return
        self.forwarder.stop()
        self.client.detach(allocation["id"])
        print(
            f"This notebook's cells run in its local kernel again; {describe(allocation)} stays held. "
            f"Back: %gpufit attach {allocation['name']}"
        )

    def _extend(self, options: Namespace) -> None:
        allocation = self.client.extend(self._named(options.name)["id"], options.time)
        print(extended(allocation, time.time()))

    def _release(self, options: Namespace) -> None:
        if options.all and options.name:
            raise InvalidValue(f"--all and {options.name!r}; say one of them")
        doomed = self.client.allocations() if options.all else [self._named(options.name, ", or --all")]
        if not doomed:
            print("You hold no GPUs; there is nothing to release.")
        if not options.all and has_ended(doomed[0]):
            print(f"{doomed[0]['name']!r} is {doomed[0].get('reason') or 'ended'} already; it holds nothing.")
            return
        for allocation in doomed:
            if (here := self.forwarder.allocation) is not None and here["id"] == allocation["id"]:
                self.forwarder.stop()
            self.client.release(allocation["id"])
        for allocation in doomed:
            over = until_ended(self.client, self.shell, allocation, f"Released {describe(allocation)}.")
            for said in (over.get("job") and ended(over), used(over)):
                if said:
                    print(said)

    # --- one cell

    def _run_cell(self, options: Namespace, cell: str) -> None:
        # Before anything is started for it. (A kernel that runs may have run the cells that define what is pushed.)
        parcels = pack(options.push, self.shell.user_ns, fresh=options.new)
        if options.new:
            allocation = obtain(self.client, self.shell, self._wanted(options))
            try:
                self._run_on(allocation, options, cell, parcels)
            finally:
                # Also after an error or a Ctrl-C: nobody could name it afterwards.
                give_back(self.client, self.shell, allocation)
            return
        allocation = self._named(options.name, kernel=True)
        check_kernel(allocation)
        self._run_on(until_running(self.client, self.shell, allocation), options, cell, parcels)

    def _run_on(self, allocation: Json, options: Namespace, cell: str, parcels: dict[str, bytes]) -> None:
        link, ours = self.forwarder.link_to(self.client, allocation)
        try:
            self.forwarder.remember()
            push(link, parcels, self.shell.user_ns)
            reply = link.run(cell)
            if reply.wish:
                self._grant(reply.wish, link)
            if reply.error is not None:
                raise RemoteError.make(reply.error)
            pull(link, options.pull, self.shell.user_ns)
        except AllocationLost:
            if not is_running(link.allocation) and not ours:
                self.forwarder.stop()
            raise
        finally:
            if ours:
                self.forwarder.done(link, last=options.new)

    def _grant(self, wish: str, link: Link) -> None:
        """A forwarded cell used the `%gpufit` of the kernel there (in a block, where it could not be cut out)."""
        name = link.allocation["name"]
        if wish in ("release", "release --all"):
            everything = wish.endswith("--all")
            self._release(Namespace(all=everything, name=None if everything else name))
        elif wish == "detach":
            self._detach(Namespace())

    # --- parts

    def _wanted(self, options: Namespace) -> Request:
        """What is asked for, from this kernel's folder and notebook."""
        return request_of(options, folder_here(), self.client.notebook())

    def _named(self, name: str | None, otherwise: str = "", *, ended: bool = False, kernel: bool = False) -> Json:
        """The allocation of that name; without one, the attached, or else the only one (`kernel`: that is no job;
        `ended`: if there is none, the one that ended last). Raises `NotFound`, or `InvalidValue` if there are several;
        `otherwise` is what else can be done then."""
        if name is not None:
            return self.client.get(name)
        if (here := self.forwarder.allocation) is not None:
            # A forwarded cell has looked as it was sent here.
            return (kernel and self.forwarder.look()) or latest(self.client, here)
        held = self.client.allocations()
        if kernel:
            held = [one for one in held if not one.get("job")]
        if ended and not held:
            held = sorted(self.client.allocations(ended=True), key=lambda one: one.get("ended") or 0.0)[-1:]
        if len(held) == 1:
            return held[0]
        if not held:
            raise NotFound("you hold no GPUs; %gpufit request 1 --memory 8GiB gets one")
        raise InvalidValue(f"you hold {', '.join(one['name'] for one in held)}; say which one{otherwise}")

    def _held_already(self, request: Request) -> Json | None:
        """What makes a new allocation needless: the attached one if it is what is asked for, or one of that name."""
        here = self.forwarder.allocation
        if here is not None:
            here = latest(self.client, here)
            if is_running(here) and is_what_is_asked(here, request):
                return here
        if request.name is None:
            return None
        for one in self.client.allocations():
            if one["name"] == request.name:
                if one.get("job"):
                    raise Conflict(
                        f"{request.name!r} is a job of yours, which no notebook can be attached to; use another name, "
                        f"or end it first (%gpufit release {request.name})"
                    )
                if one["state"] == State.STOPPING:
                    until_ended(self.client, self.shell, one, f"The {request.name!r} before this one is given back.")
                    return None
                if one.get("queue"):
                    print(f"{request.name!r} waits for GPUs already.")
                    one = until_running(self.client, self.shell, one)
                if is_what_is_asked(one, request):
                    return until_running(self.client, self.shell, one)
                raise Conflict(
                    f"you hold {describe(one)}, which is not {request.describe()}; "
                    f"release it first (%gpufit release {request.name}), or use another name"
                )
        return None

    def _attach_to(self, allocation: Json) -> None:
        said, problem, _ = self.go_to(self.client, allocation)
        if problem:
            print(f"The notebook keeps its local kernel, which forwards its cells: {problem}", file=sys.stderr)
        print("\n".join(said))

    def go_to(self, client: Client, allocation: Json) -> tuple[list[str], str, bool]:
        """Run the notebook's cells there from the next one on: what to say about it, why it stays in its local kernel
        all the same, if so, and whether it leaves that. Also called by a panel, in its thread."""
        before, where = self.forwarder.allocation, f"this notebook runs on {describe(allocation)}."
        self.forwarder.start(client, allocation)
        said = [f"From the next cell on, {where} Give it back: %gpufit release"]
        if before is not None and before["id"] != allocation["id"]:
            said.insert(0, f"{describe(before)} stays held (%gpufit release {before['name']}).")
        panel, leaves = self._panel_desk, False
        try:
            leaves = client.has_session()
            if leaves and panel is not None:
                panel.leave(f"{where[0].upper()}{where[1:]}")
            client.attach(allocation["id"])
        except GpufitError as problem:
            # Forwarding alone is a complete attach.
            if leaves and panel is not None:
                panel.stay()
            return said, problem.message, False
        if leaves and panel is not None:
            panel.close(None)
        return said, "", leaves

    def _display(self, page: Page) -> None:
        outputs_of(self.shell).display({"data": page.bundle(), "metadata": {}})

    # --- called by the comm manager

    def on_comm(self, comm: Any, message: dict[str, Any]) -> None:
        """The server says that this notebook was detached, or that its allocation ended."""
        data = message["content"].get("data") or {}
        here = self.forwarder.allocation
        ours = here is not None and data.get("allocation") == here["id"]
        if data.get("action") == "stop" and ours and not data.get("reason"):
            self.forwarder.stop()
        # With a reason it ended by itself: the next cell finds that out, and says so instead of running here unnoticed.
        comm.close()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Errors that are made for people are shown as their sentence, and not as a traceback through this package."""
    from IPython.core.error import UsageError

    try:
        yield
    except (AllocationLost, CannotTravel, RemoteError, Interrupted):
        raise  # they know how to show themselves
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    except GpufitError as problem:
        raise UsageError(problem.message) from None


# --- loading


def load(shell: Any) -> None:
    """Register the magics. In a kernel that runs on an allocation, those of `kernels/bootstrap` instead."""
    if os.environ.get("GPUFIT_ATTACHED"):
        from ..kernels.bootstrap.attached import load_ipython_extension

        load_ipython_extension(shell)
        return
    gpufit = Gpufit(shell)
    unload(shell)  # a reload must not leave the old one forwarding

    def line_magic(line: str) -> Any:
        return gpufit.line(line)

    def cell_magic(line: str, cell: str) -> None:
        gpufit.cell(line, cell)

    line_magic.__doc__ = f"GPUs for this notebook.\n\n{grammar.help_of()}"
    cell_magic.__doc__ = grammar.help_of("%%gpufit")
    shell.register_magic_function(line_magic, "line", "gpufit")
    shell.register_magic_function(cell_magic, "cell", "gpufit")
    complete_with(shell, gpufit.complete)
    if (comms := getattr(getattr(shell, "kernel", None), "comm_manager", None)) is not None:
        comms.register_target(LOCAL_TARGET, gpufit.on_comm)
    shell._gpufit = gpufit
    atexit.register(gpufit.close)


def unload(shell: Any) -> None:
    """Undo `load`. An embedded scheduler gives back what it holds."""
    gpufit = shell.__dict__.pop("_gpufit", None)
    complete_no_longer(shell)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpufit", None)
    if (comms := getattr(getattr(shell, "kernel", None), "comm_manager", None)) is not None:
        comms.targets.pop(LOCAL_TARGET, None)
    if gpufit is not None:
        atexit.unregister(gpufit.close)
        gpufit.close()

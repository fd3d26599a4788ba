"""The main job as a person does it: JupyterLab in a browser, on a simulated cluster."""

from __future__ import annotations

import signal

import psutil
from helpers.browser import LOCAL, REMOTE, Notebook
from playwright.sync_api import Response, Route

INVENTORY = """
[defaults]
docker = "process"
monitor_period = "250ms"

[[node]]  # five of its eight GPUs are somebody else's
name = "atlas"
report = "simulated:8xA100-80GB?load=0-4:60GiB@95%"

[[node]]
name = "brook"
report = "simulated:2xA100-40GB"
"""
REQUEST = "%load_ext jupyter_gpufit\n%gpufit request 2 --memory 16GiB"
WHERE = "import os; print(os.environ['GPUFIT_NODE'], os.environ['CUDA_VISIBLE_DEVICES'], os.getpid())"
PROGRESS = """import time
from IPython.display import clear_output
for step in range(5):
    print(f'\\rstep {step} of 5', end='', flush=True)
    time.sleep(0.05)
print()
for left in (2, 1):
    clear_output(wait=True)
    print(f'{left} to go')
"""
RICH = """from IPython.display import HTML, display
shown = display(HTML('<b>one</b>'), display_id=True)
shown.update(HTML('<b class="rich">two</b>'))
value_of_mine, value_of_yours = 41, 42
"""


def test_run_all_runs_every_cell_after_the_request_on_the_gpus(notebook: Notebook) -> None:
    cells = (
        "import os; home = os.getpid()",
        REQUEST,
        WHERE,
        RICH,
        PROGRESS,
        "answer = input('how many? '); print(int(answer) + 1)",
        "value_of_mine + 1",
    )
    notebook.open("all.ipynb", *cells)
    notebook.run_all()
    notebook.reply("41")
    notebook.until(lambda: notebook.ran(range(len(cells))), "all cells to have run")
    [allocation] = notebook.allocations()
    assert allocation["node"] == "brook"
    assert "2 GPUs with 16 GiB each on brook is running" in notebook.output(1)
    node, uuids, pid = notebook.output(2).split()
    assert (node, sorted(uuids.split(","))) == ("brook", sorted(allocation["gpus"]))
    assert notebook.cells.nth(3).locator("b.rich").inner_text() == "two"
    assert notebook.output(4).strip() == "1 to go"
    said = ["how", "many?", "41", "42"]  # (the box for the answer goes a moment later)
    notebook.until(lambda: notebook.output(5).split() == said, "question, answer, and what came of it")
    assert notebook.output(6).strip() == "42"

    # The page follows its session; all is the remote kernel's own from then on.
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    notebook.picture("attached")
    assert notebook.do("'home' in globals(), os.getpid()").strip() == f"(False, {pid})"
    assert {"value_of_mine", "value_of_yours"} <= set(notebook.completions("value_of_"))

    # From the top again, where it is now: nothing more is held.
    notebook.run_all()
    notebook.reply("7")
    notebook.until(lambda: notebook.output(5).split()[-1:] == ["8"] and notebook.ran(range(8)), "all cells again")
    assert "already runs on 2 GPUs" in notebook.output(1)
    assert notebook.output(2).split() == [node, uuids, pid]
    assert [one["id"] for one in notebook.allocations()] == [allocation["id"]]
    notebook.picture("again")

    # And back.
    assert "given back" in notebook.do("%gpufit release")
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    assert notebook.do("home == os.getpid(), 'value_of_mine' in globals()").strip() == "(True, False)"
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    assert not psutil.pid_exists(int(pid))
    assert notebook.ended()["reason"] == "released"
    notebook.picture("released")


def test_a_cell_that_is_run_before_the_page_has_followed_its_session_loses_nothing(notebook: Notebook) -> None:
    """The page looks at its sessions every ten seconds. What is run until then goes to the local kernel."""
    go = notebook.server.root / "go"
    cell = (
        WHERE + f"\nimport pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.05)\nprint('done')"
    )
    notebook.open("early.ipynb", REQUEST, cell, "'after'")
    looks: list[Route] = []
    answers: list[Response] = []
    may_look = False

    def look(route: Route) -> None:
        if may_look:
            route.continue_()
        else:
            looks.append(route)  # and is not answered now

    notebook.page.route("**/api/sessions?*", look)
    notebook.page.on(
        "response", lambda response: answers.append(response) if "/api/sessions?" in response.url else None
    )
    notebook.run(0)
    notebook.until(lambda: notebook.session_kernel() == "gpufit", "the session's swap")
    assert notebook.kernel() == LOCAL
    notebook.run(1)
    notebook.run(2)
    notebook.until(lambda: "brook" in notebook.output(1), "the cell to begin")
    notebook.until(lambda: notebook.session_kernel() == "python3", "the session to be with the kernel that is used")
    may_look = True
    for route in looks:
        route.continue_()
    notebook.until(lambda: answers, "the page to have looked")
    go.touch()
    notebook.until(lambda: notebook.ran(range(3)), "all cells to have run")
    assert notebook.output(1).split()[-1] == "done"
    assert notebook.output(2).strip() == "'after'"
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap after all")


def test_a_notebook_from_the_launcher(notebook: Notebook) -> None:
    notebook.open_launcher()
    notebook.picture("launcher")
    notebook.page.locator(f'.jp-LauncherCard[data-category="Notebook"][title="{REMOTE}"]').click()
    notebook.until(lambda: notebook.idle_in(REMOTE), "the kernel")
    notebook.editor(0).click()
    first = notebook.do(WHERE)
    node, uuids, pid = first.split()
    [allocation] = notebook.allocations()
    assert (node, uuids.split(",")) == (allocation["node"], allocation["gpus"])

    notebook.menu("Kernel", "kernelmenu:restart")
    notebook.accept()
    notebook.until(lambda: not psutil.pid_exists(int(pid)), "the old kernel to go")
    notebook.until(lambda: notebook.idle_in(REMOTE), "the restart")
    again = notebook.do(WHERE).split()
    assert again[:2] == [node, uuids]
    assert again[2] != pid
    assert [one["id"] for one in notebook.allocations()] == [allocation["id"]]

    number = notebook.write("import subprocess\nsubprocess.run(['sleep', '600'])")
    notebook.page.keyboard.press("Control+Enter")
    children = notebook.until(psutil.Process(int(again[2])).children, "a child process")
    notebook.menu("Kernel", "kernelmenu:interrupt")
    notebook.until(lambda: "KeyboardInterrupt" in notebook.output(number), "the interrupt")
    notebook.until(lambda: not any(map(_runs, children)), "the child process to end")

    notebook.menu("Kernel", "kernelmenu:shutdown")
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    assert notebook.ended()["reason"] == "released"
    assert not psutil.pid_exists(int(again[2]))


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_what_cannot_be_had_is_explained_and_what_is_not_had_yet_can_be_cancelled(notebook: Notebook) -> None:
    now, never, later = "request 5 --memory 40GiB", "request 9 --memory 16GiB", "request 5 --memory 40GiB --wait 10m"
    notebook.open("no.ipynb", "%load_ext jupyter_gpufit", *(f"%gpufit {line}" for line in (now, never, later)))
    for number in (0, 1, 2):
        notebook.run(number)
        notebook.until(lambda number=number: notebook.ran([number]), "the cell to have run")
    for number, reason in ((1, "3 idle GPUs, 5 asked"), (2, "9 GPUs")):
        assert notebook.cells.nth(number).locator("table").count() == 1
        text = notebook.output(number)
        assert "Traceback" not in text
        for part in ("atlas", "brook", reason):
            assert part in text
    notebook.picture("refused")

    notebook.run(3)
    notebook.until(lambda: "waiting for GPUs" in notebook.output(3), "the request")
    assert [one["state"] for one in notebook.allocations()] == ["pending"]
    notebook.menu("Kernel", "kernelmenu:interrupt")
    notebook.until(lambda: notebook.ran([3]), "the cell to end")
    assert "Cancelled" in notebook.output(3)
    assert "nothing is held" in notebook.output(3)
    assert "KeyboardInterrupt" in notebook.output(3)
    assert "Traceback" not in notebook.output(3)
    notebook.picture("cancelled")
    notebook.until(lambda: notebook.allocations() == [], "the end of the request")
    assert notebook.ended()["reason"] == "cancelled"
    assert notebook.do("6 * 7").strip() == "42"


def test_a_notebook_shut_down_while_attached_leaves_nothing(notebook: Notebook) -> None:
    notebook.open("close.ipynb", REQUEST, WHERE)
    notebook.run_all()
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    pid = int(notebook.output(1).split()[2])
    assert len(notebook.server.kernels()) == 2
    notebook.menu("File", "filemenu:close-and-cleanup")
    notebook.accept()
    notebook.until(lambda: notebook.allocations() == [], "the GPUs to be given back")
    assert not psutil.pid_exists(pid)
    notebook.until(lambda: notebook.server.kernels() == [], "the local kernel to end")


def test_an_allocation_whose_kernel_dies_again_and_again_gives_the_notebook_back(notebook: Notebook) -> None:
    notebook.open("ends.ipynb", "home = 'here'", REQUEST, WHERE)
    notebook.run_all()
    notebook.until(lambda: notebook.ran(range(3)), "all cells to have run")
    [allocation] = notebook.allocations()
    notebook.until(lambda: notebook.idle_in(REMOTE), "the swap")
    notebook.until(lambda: _killed(allocation["id"]) or notebook.allocations() == [], "the kernel to be given up")
    assert notebook.ended()["reason"] == "failed"
    notebook.picture("ended")
    notebook.dismiss()
    notebook.until(lambda: notebook.idle_in(LOCAL), "the local kernel to be back")
    # What was meant for the GPUs does not run here unnoticed.
    assert f"allocation {allocation['name']!r} is not there any more" in notebook.do("home")
    assert notebook.do("home").strip() == "'here'"
    assert "Traceback" not in notebook.page.locator(".jp-Notebook").inner_text()
    notebook.picture("back")


def _killed(allocation: str) -> bool:
    """`kill -9` the kernels of an allocation, as often as there are some."""
    for process in psutil.process_iter(["cmdline"]):
        try:
            if (
                "ipykernel_launcher" in (process.info["cmdline"] or ())
                and process.environ().get("GPUFIT_ALLOCATION") == allocation
            ):
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    return False

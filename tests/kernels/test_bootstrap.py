"""What is put into a unit, run as it runs there: a directory with the files, a python, and nothing else of ours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.cells import Cell, ready, run_cell
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.manager import AsyncKernelManager

from jupyter_gpufit.kernels import notices
from jupyter_gpufit.kernels.bootstrap import attached as there
from jupyter_gpufit.kernels.bootstrap import contents
from jupyter_gpufit.kernels.connection import make_keys
from jupyter_gpufit.kernels.notices import notify
from jupyter_gpufit.models import Allocation, Request

GIB = 2**30
ALLOCATION = Allocation(
    id="a1",
    name="train",
    owner="ada",
    request=Request(gpus=2, memory=16 * GIB, cpus=8, ram=64 * GIB),
    created=0.0,
    node="gpu01",
    gpus=("GPU-1", "GPU-2"),
    memory=(16 * GIB, 16 * GIB),
)
SPEC = ["{python}", "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def put(directory: Path, notice: str = "", encrypt: bool = False, **command: Any) -> list[str]:
    """Lay the files out as a launcher does; returns the command."""
    keys = make_keys(b"0123456789abcdef", "hmac-sha256", encrypt)
    curve = (
        {}
        if keys.curve_public is None or keys.curve_secret is None
        else {
            "curve_publickey": keys.curve_public.encode(),
            "curve_secretkey": keys.curve_secret.encode(),
        }
    )
    connection_file = directory / "kernel-1.json"
    write_connection_file(str(connection_file), ip="127.0.0.1", key=keys.key, kernel_name="gpufit", **curve)
    for name, content in contents.files("kernel-1.json", connection_file.read_bytes(), notice).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    words = contents.command(SPEC, "kernel-1.json", **command)
    return [word.replace("{gpufit}", str(directory)).replace("{python}", sys.executable) for word in words]


def environment(direct: bool = False) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **contents.environment(ALLOCATION, direct)}


def test_it_is_told_the_model_that_was_asked_for() -> None:
    assert "GPUFIT_MODEL" not in contents.environment(ALLOCATION, False)
    asked = msgspec.structs.replace(ALLOCATION, request=Request(model="llama-7b"))
    assert contents.environment(asked, False)["GPUFIT_MODEL"] == "llama-7b"


def test_a_share_of_a_core_that_was_rounded_up_is_what_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    asked = msgspec.structs.replace(ALLOCATION, request=Request(gpus=2, cpus=0.001))
    there.request(there.Held(contents.environment(asked, False)), ["2", "--cpus", "0.001"])
    assert "nothing to do" in capsys.readouterr().out


def test_it_is_told_what_it_asked_of_the_machine() -> None:
    told = contents.environment(ALLOCATION, False)
    assert (told["GPUFIT_CPUS"], told["GPUFIT_RAM"]) == ("8", str(64 * GIB))
    asked = msgspec.structs.replace(ALLOCATION, request=Request(cpus=0.5))
    told = contents.environment(asked, False)
    assert (told["GPUFIT_CPUS"], "GPUFIT_RAM" in told) == ("0.5", False)


@contextmanager
def kernel(directory: Path, env: dict[str, str] | None = None, **options: Any) -> Iterator[BlockingKernelClient]:
    command = put(directory, **options)
    process = subprocess.Popen(
        command, env=env or environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    client = connected(directory)
    try:
        ready(client)
        yield client
    finally:
        client.stop_channels()
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingKernelClient]:
    """One kernel for all that changes nothing in it, with a working directory of its own."""
    directory, work = tmp_path_factory.mktemp("unit"), tmp_path_factory.mktemp("work")
    # As in a container: there is no jupyter_gpufit but the one that was put in.
    site = directory / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Hide:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'jupyter_gpufit':\n"
        "            return PathFinder.find_spec(name, [entry for entry in sys.path if entry.endswith('remote')])\n"
        "sys.meta_path.insert(0, Hide)\n"
    )
    hide = environment() | {"PYTHONPATH": str(site)}
    with kernel(directory, hide, cwd=str(work), notice="the kernel before this one was killed for memory") as client:
        yield client


def test_the_first_cell_shows_the_notice_and_only_the_first(attached: BlockingKernelClient) -> None:
    first, second = run_cell(attached, "1 + 1"), run_cell(attached, "1 + 1")
    assert "killed for memory" in first.stderr
    assert first.result == "2"
    assert second.stderr == ""


def test_it_works_in_the_notebooks_directory_and_leads_its_group(attached: BlockingKernelClient) -> None:
    cell = run_cell(
        attached, "import os; print(os.getcwd(), os.getpgrp() == os.getpid(), os.environ.get('JPY_PARENT_PID'))"
    )
    assert cell.stdout.split()[1:] == ["True", "None"]
    assert "work" in cell.stdout


def test_it_shows_what_it_holds(attached: BlockingKernelClient) -> None:
    cell = run_cell(attached, "%gpufit")
    for part in ("'train'", "gpu01", "GPU-1", "GPU-2", "16 GiB", "%gpufit release", "%gpufit detach"):
        assert part in cell.stdout


def test_load_ext_works_and_says_nothing(attached: BlockingKernelClient) -> None:
    cell = run_cell(attached, "%load_ext jupyter_gpufit\n%gpufit")
    assert cell.status == "ok"
    assert "already loaded" not in cell.stdout + cell.stderr
    assert "remote" in run_cell(attached, "import jupyter_gpufit; jupyter_gpufit.__file__").result
    assert "GPU-1" in cell.stdout


@pytest.mark.parametrize(
    "line",
    [
        "request 2 --memory 16GiB",
        "request 2 --memory 16G --wait 10m",
        "request 2 -m 16GiB,16GiB",
        "request 2",
        "request 1 --memory 8GiB --name train",
        "request 2 --memory 17179869184B",
        "request --cpus 8 --ram 64GiB 2",
        "request --memory 16GiB,16GiB --cpus 8.001 2",
    ],
)
def test_asking_for_what_it_holds_does_nothing(attached: BlockingKernelClient, line: str) -> None:
    cell = run_cell(attached, f"%gpufit {line}")
    assert cell.status == "ok"
    assert (
        "already runs on 2 GPUs with 16 GiB each, 8 CPUs, 64 GiB RAM on gpu01 ('train'); nothing to do" in cell.stdout
    )
    assert cell.comms == []


@pytest.mark.parametrize(
    "line",
    [
        "request 1 --memory 16GiB",
        "request 2 --memory 8GiB",
        "request 2 --cpus 4",
        "request 2 --ram 32GiB",
        "request 2 --memory 16GiB --name other",
    ],
)
def test_asking_for_something_else_says_what_to_do(attached: BlockingKernelClient, line: str) -> None:
    cell = run_cell(attached, f"%gpufit {line}")
    assert cell.status == "error"
    assert "%gpufit release" in cell.stderr + cell.error
    assert "Traceback" not in cell.stderr


STAYS = "get_ipython().__dict__.pop('_gpufit_leaving', None)"  # what attaching anew does


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("detach", {"action": "detach"}),
        ("release", {"action": "release"}),
        ("release train", {"action": "release"}),
        ("release --all", {"action": "release", "all": True}),
    ],
)
def test_the_way_back_is_asked_for(attached: BlockingKernelClient, line: str, asked: dict[str, Any]) -> None:
    cell = run_cell(attached, f"%gpufit {line}")
    run_cell(attached, STAYS)
    assert cell.status == "ok"
    assert cell.comms == [("jupyter_gpufit", {"allocation": "a1", **asked})]
    assert "local kernel" in cell.stdout
    assert ("all GPUs that you hold" in cell.stdout) == ("all" in asked)


@pytest.mark.parametrize("back", ["release", "detach"])
@pytest.mark.parametrize(
    "line", ["request 2 --memory 16GiB", "request --name other", "attach other", "df = %gpufit gpus", "detach"]
)
def test_what_comes_after_the_way_back_was_asked_for_stops_run_all(
    attached: BlockingKernelClient, back: str, line: str
) -> None:
    """Also in the next cell: the server lets a kernel do all that it has to do before the notebook leaves it."""
    assert run_cell(attached, f"%gpufit {back}").status == "ok"
    cell = run_cell(attached, line if "=" in line else f"%gpufit {line}")
    assert (cell.status, cell.comms) == ("error", [])
    said = "'train' is being given back" if back == "release" else "return to its local kernel ('train' stays held)"
    assert said in cell.stderr + cell.error
    assert "run this again in a moment" in cell.stderr + cell.error
    run_cell(attached, STAYS)
    assert run_cell(attached, "%gpufit request 2").status == "ok"


def test_a_kernel_that_was_not_left_after_all_works_on(attached: BlockingKernelClient) -> None:
    """Nobody heard it (the server has gone): it must not wait for that for ever."""
    run_cell(attached, "%gpufit release")
    assert run_cell(attached, "%gpufit request 2").status == "error"
    run_cell(attached, "import jupyter_gpufit; within, jupyter_gpufit.LEAVES_WITHIN = jupyter_gpufit.LEAVES_WITHIN, 0")
    cell = run_cell(attached, "%gpufit request 2")
    run_cell(attached, "jupyter_gpufit.LEAVES_WITHIN = within")
    assert (cell.status, "nothing to do" in cell.stdout) == ("ok", True)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("%gpufit re", ["release", "request"]),
        ("x = 1\n%gpufit rel", ["release"]),
        ("df = %gpufit gp", ["gpus"]),
        ("%gpufit release ", ["--all", "--help", "train"]),
        ("%gpufit request 2 --", ["--cpus", "--help", "--memory", "--name", "--ram"]),
        ("%%gpufit ", ["--pull", "--push", "train"]),
    ],
)
def test_tab_shows_what_can_follow_and_nothing_else(
    attached: BlockingKernelClient, code: str, found: list[str]
) -> None:
    reply = attached.complete(code, reply=True, timeout=30)["content"]
    assert sorted(reply["matches"]) == found
    assert reply["cursor_start"] == len(code) - len(code.split(" ")[-1])
    everything = attached.complete("%gpufit ", reply=True, timeout=30)["content"]["matches"]
    assert "request" in everything
    assert "abs" not in everything


@pytest.mark.parametrize(
    "line",
    [
        "release other",
        "frobnicate",
        "request 2 --memory 16Gobs",
        "request two",
        "request 2 --memory 16",
        "release --al",
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(attached: BlockingKernelClient, line: str) -> None:
    cell = run_cell(attached, f"%gpufit {line}")
    assert cell.status == "error"
    assert line.split()[-1] in cell.stderr + cell.error
    assert cell.comms == []


def test_a_line_that_cannot_be_read_is_not_repeated(attached: BlockingKernelClient) -> None:
    cell = run_cell(attached, "%gpufit train 'a.py --env KEY=hunter2")
    said = cell.stderr + cell.error
    assert "the line cannot be read: no closing quotation" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("verb", ["nodes", "explain 2", "attach b", "logs -f", "train a.py", "models", "upload a"])
def test_other_verbs_say_where_they_work(attached: BlockingKernelClient, verb: str) -> None:
    for line in (f"%gpufit {verb}", f"df = %gpufit {verb}"):
        cell = run_cell(attached, line)
        assert (cell.status, "works in the local kernel" in cell.stderr + cell.error) == ("error", True)
        terminal = f"or in a terminal: jupyter gpufit {verb.split()[0]} …"
        assert (terminal in cell.stderr + cell.error) == (verb != "attach b")


@pytest.mark.parametrize(
    "head", ["%%gpufit", "%%gpufit train", "%%gpufit --push a,b --pull c", "%%gpufit train --push a"]
)
def test_a_cell_for_this_allocation_runs_as_any_other(attached: BlockingKernelClient, head: str) -> None:
    cell = run_cell(attached, f"{head}\nx = 20\nx + 1")
    assert cell.result == "21"
    failing = run_cell(attached, f"{head}\n1\n1 / 0")
    assert failing.error.startswith("ZeroDivisionError")
    assert "line 3" in failing.traceback or "----> 3" in failing.traceback
    assert run_cell(attached, f"{head}\n%%capture caught\nprint(1)").stdout == ""


@pytest.mark.parametrize("head", ["%%gpufit other", "%%gpufit -n 2 --memory 8GiB", "%%gpufit train -n 2"])
def test_a_cell_for_another_allocation_does_not_run(attached: BlockingKernelClient, head: str) -> None:
    cell = run_cell(attached, f"{head}\nprint('ran')")
    assert cell.status == "error"
    assert "ran" not in cell.stdout
    assert "local kernel" in cell.stderr + cell.error


def test_a_notebook_that_was_started_on_its_gpus_has_nowhere_to_detach_to(tmp_path: Path) -> None:
    with kernel(tmp_path, environment(direct=True)) as client:
        detach = run_cell(client, "%gpufit detach")
        assert detach.status == "error"
        assert "no local kernel" in detach.stderr + detach.error
        release = run_cell(client, "%gpufit release")
        assert release.comms == [("jupyter_gpufit", {"action": "release", "allocation": "a1"})]
        # Here the whole package is installed, and stays what `import` finds.
        assert run_cell(client, "import jupyter_gpufit; jupyter_gpufit.select.__module__").status == "ok"
        assert run_cell(client, "%load_ext jupyter_gpufit\n%gpufit").stdout.count("GPU-1") == 1
        assert run_cell(client, "import sys; 'pandas' in sys.modules or 'docker' in sys.modules").result == "False"


def test_an_encrypted_kernel_answers_encrypted_clients(tmp_path: Path) -> None:
    with kernel(tmp_path, encrypt=True) as client:
        assert client.curve_publickey is not None
        assert run_cell(client, "6 * 7").result == "42"


def test_a_directory_that_is_not_there_is_told_and_no_obstacle(tmp_path: Path) -> None:
    command = put(tmp_path, cwd="/nowhere/at/all")
    process = subprocess.Popen(
        command, env=environment(), cwd="/", stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    process.kill()
    process.communicate()
    assert "/nowhere/at/all" in line


@pytest.mark.parametrize(
    ("version", "allowed", "refused"),
    [("6.29.5", False, True), ("7.3.0", False, True), ("7.4.0", False, False), ("6.29.5", True, False)],
)
def test_an_image_that_is_too_old_to_encrypt(tmp_path: Path, version: str, allowed: bool, refused: bool) -> None:
    fake_ipykernel(tmp_path / "site" / "ipykernel", version)
    command = put(tmp_path, encrypt=True, allow_plaintext=allowed)
    env = environment() | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    if refused:
        assert done.returncode == contents.IMAGE_UNUSABLE
        assert version in done.stderr
        assert "pip install 'ipykernel>=7.4'" in done.stderr
        assert "allow_plaintext" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert ("curve_secretkey" in json.loads(done.stdout)) is not allowed
    assert "Traceback" not in done.stderr


def test_an_image_without_ipykernel(tmp_path: Path) -> None:
    command = put(tmp_path)
    done = subprocess.run(
        [command[0], "-S", *command[1:]],
        env=environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == contents.IMAGE_UNUSABLE
    assert "no ipykernel" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kernelspec_of_another_language_is_started_as_it_says() -> None:
    argv = ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"]
    assert contents.command(argv, "kernel-1.json", cwd="/home")[-1] == "{gpufit}/kernel-1.json"
    assert contents.command(argv, "kernel-1.json")[0] == "R"


def test_another_module_than_ipykernel_is_run_as_python_would(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "xkernel.py").write_text("import sys, json; print(json.dumps([__name__, sys.argv[1:]]))")
    words = contents.command(["python3", "-m", "xkernel", "-f", "{connection_file}", "--x"], "kernel-1.json")
    command = [word.replace("{gpufit}", str(tmp_path)).replace("{python}", sys.executable) for word in words]
    env = environment() | {"PYTHONPATH": str(tmp_path / "site")}
    printed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(printed) == ["__main__", ["-f", str(tmp_path / "kernel-1.json"), "--x"]]


def test_the_bootstrap_adds_next_to_nothing_to_a_kernels_start(tmp_path: Path) -> None:
    """Counted in modules, not in time: what it imports is what the kernel imports anyway."""
    with kernel(tmp_path, environment()) as client:
        ours = set(
            run_cell(
                client, "import sys; print(*[m for m in sys.modules if m.startswith('jupyter_gpufit')])"
            ).stdout.split()
        )
    assert ours <= {
        "jupyter_gpufit",
        "jupyter_gpufit.kernels",
        "jupyter_gpufit.kernels.bootstrap",
        "jupyter_gpufit.kernels.bootstrap.attached",
        "jupyter_gpufit.kernels.bootstrap.completing",
        "jupyter_gpufit.kernels.bootstrap.notices",
    }


WORKERS = """
import multiprocessing, time
workers = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)) for _ in range(2)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
"""


@pytest.mark.parametrize(("work", "number"), [("import subprocess; subprocess.run(['sleep', '600'])", 1), (WORKERS, 2)])
def test_an_interrupt_message_reaches_children(tmp_path: Path, work: str, number: int) -> None:
    with kernel(tmp_path) as client:
        pid = int(run_cell(client, "import os; os.getpid()").result)
        message = client.execute(work)
        deadline = time.monotonic() + 30
        while asleep(pid) < number and time.monotonic() < deadline:  # a child that is being forked may not hear it
            time.sleep(0.05)
        assert asleep(pid) == number
        client.control_channel.send(client.session.msg("interrupt_request", {}))
        cell = Cell.of(client, message)
        assert cell.error.startswith("KeyboardInterrupt")
        while children(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert children(pid) == []


def asleep(pid: int) -> int:
    """How many of the children do what they are there for: sleep."""
    return sum("nanosleep" in Path(f"/proc/{child}/wchan").read_text() for child in children(pid))


def children(pid: int) -> list[str]:
    """Pids of the children that live: one that nobody has waited for yet does nothing any more."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in pids if "State:\tZ" not in Path(f"/proc/{child}/status").read_text()]


def fake_ipykernel(package: Path, version: str) -> None:
    """An ipykernel of some version that prints its connection file and ends."""
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    numbers = tuple(int(part) for part in version.split("."))
    (package / "_version.py").write_text(f"__version__ = {version!r}\nversion_info = {numbers!r}\n")
    (package / "kernelapp.py").write_text(
        "import logging\n"
        "class Shell:\n"
        "    input_transformers_cleanup = []\n"
        "    magics_manager = type('', (), {'magics': {'line': {}, 'cell': {}}})\n"
        "    events = type('', (), {'register': staticmethod(lambda *_: None)})\n"
        "    def register_magic_function(self, *_): pass\n"
        "    def set_hook(self, *_, **__): pass\n"
        "class IPKernelApp:\n"
        "    shell = Shell()\n"
        "    @classmethod\n"
        "    def instance(cls): return cls()\n"
        "    log = logging.getLogger('app')\n"
        "    def log_connection_info(self): pass\n"
        "    def initialize(self, argv): self.argv = argv\n"
        "    def start(self): print(open(self.argv[self.argv.index('-f') + 1]).read())\n"
    )


def printing(directory: Path) -> tuple[subprocess.Popen[str], BlockingKernelClient]:
    """A kernel whose output is to be looked at, and a client of it; both are the caller's to end."""
    process = subprocess.Popen(
        put(directory), env=environment(), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return process, connected(directory)


def connected(directory: Path) -> BlockingKernelClient:
    client = BlockingKernelClient(connection_file=str(directory / "kernel-1.json"))
    client.load_connection_file()
    client.start_channels()
    return client


def test_a_kernel_prints_nothing_but_what_its_cells_do(tmp_path: Path) -> None:
    process, client = printing(tmp_path)
    try:
        ready(client)
        run_cell(client, "import os; os.write(1, b'mine\\n')")
    finally:
        client.stop_channels()
        process.kill()
        printed, _ = process.communicate()
    assert printed == "mine\n"


def test_a_crash_leaves_its_reason_in_what_the_unit_printed(tmp_path: Path) -> None:
    process, client = printing(tmp_path)
    try:
        ready(client)
        client.execute("import ctypes\nctypes.string_at(0)")
        printed, _ = process.communicate(timeout=60)
    finally:
        client.stop_channels()
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGSEGV
    first, *rest = printed.splitlines()
    assert first == "Fatal Python error: Segmentation fault"
    assert any("in string_at" in line for line in rest)
    assert printed.count("most recent call first") == 1, "of the thread that crashed alone"


@pytest.mark.parametrize("module", ["ipykernel_launcher", "patient"])
def test_an_interrupt_while_it_starts_does_not_end_it(tmp_path: Path, module: str) -> None:
    """Of a kernel that is none of Python's own, the module decides itself what an interrupt does."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "early.py").write_text("print('begun', flush=True); import time; time.sleep(0.5)")
    (modules / "patient.py").write_text("import signal; print(signal.getsignal(signal.SIGINT).__name__)")
    command = put(tmp_path)
    program = (tmp_path / "launch.py").read_text().replace("    split = ", "    import early\n    split = ", 1)
    (tmp_path / "launch.py").write_text(program)
    command[command.index("ipykernel_launcher")] = module
    process = subprocess.Popen(
        command, env=environment() | {"PYTHONPATH": str(modules)}, cwd="/", stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        if module == "patient":
            assert process.communicate(timeout=60)[0] == "default_int_handler\n"
            return
        client = BlockingKernelClient(connection_file=str(tmp_path / "kernel-1.json"))
        client.load_connection_file()
        client.start_channels()
        try:
            ready(client)
            assert run_cell(client, "6 * 7").result == "42"
        finally:
            client.stop_channels()
    finally:
        process.kill()
        process.communicate()


# --- notices


def tell(client: BlockingKernelClient, text: str, **answer: Any) -> bool:
    """As the server does; whether it was heard."""
    return asyncio.run(notify(client.get_connection_info(), text, **answer))


def until_stream(client: BlockingKernelClient, name: str) -> list[dict[str, Any]]:
    """What the kernel publishes until something is printed there, that last."""
    heard = []
    while not heard or heard[-1]["msg_type"] != "stream" or heard[-1]["content"]["name"] != name:
        heard.append(client.get_iopub_msg(timeout=30))
    return heard


SILENT = """
import os, time
print("begun")
while not os.path.exists({stop!r}):
    time.sleep(0.02)
"""


def test_a_notice_is_shown_at_once_in_a_silent_cell(attached: BlockingKernelClient, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    message = attached.execute(SILENT.format(stop=str(stop)))
    until_stream(attached, "stdout")
    assert tell(attached, "it ends in 2 m")
    heard = until_stream(attached, "stderr")
    assert heard[-1]["content"]["text"] == "it ends in 2 m\n"
    assert heard[-1]["parent_header"]["msg_id"] == message, "it belongs to the cell"
    assert [one["msg_type"] for one in heard] == ["stream"], "nothing says that the kernel is idle: it is not"
    stop.touch()
    assert Cell.of(attached, message).status == "ok"
    assert run_cell(attached, "1").stderr == "", "once"


def test_a_notice_is_kept_for_the_next_cell_while_none_runs(attached: BlockingKernelClient) -> None:
    assert tell(attached, "it ends in 10 m")
    assert tell(attached, "it ends in 2 m")
    message = attached.execute("print('begun')")
    heard = until_stream(attached, "stdout")
    assert [one["content"].get("name") for one in heard if one["msg_type"] == "stream"] == ["stderr", "stdout"]
    [warning] = [one for one in heard if one["content"].get("name") == "stderr"]
    assert warning["content"]["text"].strip() == "it ends in 2 m", "the last one"
    assert warning["parent_header"]["msg_id"] == message
    Cell.of(attached, message)
    assert run_cell(attached, "1").stderr == ""


def test_a_notice_that_was_taken_back_is_not_shown(attached: BlockingKernelClient) -> None:
    assert tell(attached, "it ends in 2 m")
    assert tell(attached, "")
    assert run_cell(attached, "1").stderr == ""


def test_a_cell_that_failed_or_ran_another_has_ended(attached: BlockingKernelClient) -> None:
    for code in ("1 / 0", "def (:", "", "get_ipython().run_cell('1 / 0')", "await __import__('asyncio').sleep(0)"):
        run_cell(attached, code)
        assert tell(attached, f"after {code!r}")
        cell = run_cell(attached, "2")
        assert cell.stderr.strip() == f"after {code!r}"


def test_notices_survive_a_reload(attached: BlockingKernelClient) -> None:
    run_cell(attached, "%reload_ext jupyter_gpufit")
    assert tell(attached, "it ends")
    assert run_cell(attached, "1").stderr.strip() == "it ends"


@pytest.mark.parametrize(
    "rubbish", [{}, {"text": None}, {"text": ["x"], "answers": {"a": 1}}, {"answers": "nothing asked"}]
)
def test_rubbish_harms_nothing(attached: BlockingKernelClient, rubbish: dict[str, Any]) -> None:
    attached.control_channel.send(attached.session.msg("gpufit_notice", rubbish))
    assert attached.get_control_msg(timeout=30)["content"] == {"status": "ok"}
    assert run_cell(attached, "1").status == "ok"


@pytest.mark.parametrize(
    ("text", "error"), [("'train' has 3 h now: it ends in 2 h, at 15:46 UTC.", False), ("it has no time limit", True)]
)
def test_more_time_is_asked_for_and_the_answer_is_the_cells(
    attached: BlockingKernelClient, text: str, error: bool
) -> None:
    for line in ("extend 1h", "extend train 1h", "extend a1 '1 h'"):
        message = attached.execute(f"%gpufit {line}")
        while (asked := attached.get_iopub_msg(timeout=30))["msg_type"] != "comm_open":
            continue
        data = asked["content"]["data"]
        assert (data["action"], data["allocation"], data["time"].replace(" ", "")) == ("extend", "a1", "1h")
        assert tell(attached, text, answers=data["ask"], error=error)
        cell = Cell.of(attached, message)
        assert (cell.status, cell.stdout.strip()) == (("error", "") if error else ("ok", text)), cell
        assert (text in cell.error + cell.stderr) == error
        assert run_cell(attached, "1").stderr == "", "and not shown again"


def test_more_time_for_which_nobody_answers(attached: BlockingKernelClient) -> None:
    run_cell(attached, "import sys; sys.modules['jupyter_gpufit'].ANSWERED_WITHIN = 0.1")
    cell = run_cell(attached, "%gpufit extend 1h")
    assert "jupyter gpufit extend train 1h" in cell.error + cell.stderr
    assert "the server did not answer" in cell.error + cell.stderr
    assert run_cell(attached, "%gpufit").status == "ok", "it is not about to be left"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("extend", "write how much more time: %gpufit extend 1h"),
        ("extend --all", "write how much more time"),
        ("extend train now 1h", "write how much more time"),
        ("extend other 1h", "this kernel holds 'train' alone"),
    ],
)
def test_more_time_that_cannot_be_meant(attached: BlockingKernelClient, line: str, said: str) -> None:
    cell = run_cell(attached, f"%gpufit {line}")
    assert said in cell.error + cell.stderr
    assert cell.comms == []


async def test_a_kernel_that_knows_no_notices_is_not_told_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_WITHIN", 1.0)
    manager = AsyncKernelManager()
    await manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        await client.wait_for_ready(timeout=60)
        assert not await notify(manager.get_connection_info(), "it ends")
        assert (await client.execute_interactive("6 * 7", timeout=60))["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
    assert not await notify(manager.get_connection_info(), "it ends"), "nor one that is gone"

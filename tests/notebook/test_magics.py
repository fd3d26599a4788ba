"""The verbs of `%gpufit`, and `%%gpufit`, in a local kernel over real remote kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from helpers.notebooks import LocalKernel, Outcome


@pytest.fixture(autouse=True)
def nothing_held(kernel: LocalKernel) -> Iterator[None]:
    kernel.run("held.calls.clear()", silent=True)
    yield
    assert kernel.run("%gpufit release --all").ok
    assert ask(kernel, "held.allocations()") == "[]"


def ask(kernel: LocalKernel, expression: str) -> str:
    """The value of an expression in the local kernel, also while cells are forwarded."""
    reply = kernel.run("", user_expressions={"it": expression}, store_history=False).reply
    return str(reply["user_expressions"]["it"]["data"]["text/plain"])


def refused(outcome: Outcome) -> str:
    """What a cell says that ends with a sentence: no traceback, and still an error for *Run All*."""
    assert outcome.reply["status"] == "error", outcome
    assert outcome.reply["ename"] == "UsageError", outcome
    assert not outcome.of("error")
    return outcome.text("stderr")


# --- request, release


def test_a_request_shows_how_it_comes_along_in_one_display(kernel: LocalKernel) -> None:
    outcome = kernel.run("%gpufit request 2 --memory 16GiB")
    assert outcome.ok, outcome
    (display,) = outcome.of("display_data")
    updates = outcome.of("update_display_data")
    assert {update["transient"]["display_id"] for update in updates} == {display["transient"]["display_id"]}
    texts = [content["data"]["text/plain"] for _, content in outcome.messages if "data" in content]
    assert re.search(r"alloc-1 on n1: pulling the image 1 GiB of 4 GiB, \d+ s", "\n".join(texts))
    assert texts[-1] == "'alloc-1': 2 GPUs with 16 GiB each on n1 is running."
    assert ask(kernel, "held.calls") == "['request', 'attach']"


def test_the_same_request_again_does_nothing(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 2 --memory 16GiB")
    outcome = kernel.run("%gpufit request 2 --memory 16GiB")
    assert outcome.ok
    assert "already; nothing to do" in outcome.text()
    assert ask(kernel, "held.calls.count('request')") == "1"


def test_a_request_that_names_what_one_holds_attaches_to_it(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --memory 1GiB --name train --no-attach")
    assert ask(kernel, "held.calls") == "['request']"
    outcome = kernel.run("%gpufit request 1 --memory 1GiB --name train")
    assert outcome.ok, outcome
    assert "You hold 'train'" in outcome.text()
    assert ask(kernel, "held.calls") == "['request', 'attach']"
    assert "2 GPUs" in refused(kernel.run("%gpufit request 2 --memory 1GiB --name train"))


def test_a_request_that_names_one_that_waits_waits_with_it_and_says_where_it_stands(kernel: LocalKernel) -> None:
    """As after a restart of the notebook's kernel, which had asked for it."""
    kernel.run(
        "from jupyter_gpufit.models import Queued, Request\n"
        "made = held._allocations[held.request(Request(name='train'))['id']]\n"
        "place = Queued(position=1, of=2, until=9e9, missing='No node has 1 GPU now.')\n"
        "held._change(made, node=None, gpus=(), memory=(), queue=place)\n"
        "def changed(id, *_, **__):\n"
        "    del held.changed\n"
        "    held._change(held._allocations[id], node='n1', gpus=made.gpus, memory=made.memory, queue=None)\n"
        "    return held.get(id)\n"
        "held.changed = changed\n"
        "held.calls.clear()",
        silent=True,
    )
    outcome = kernel.run("%gpufit request 1 --name train")
    assert outcome.ok, outcome
    assert "'train' waits for GPUs already." in outcome.text()
    texts = [content["data"]["text/plain"] for _, content in outcome.messages if "data" in content]
    assert "waiting for GPUs, number 1 of 2 in the queue; No node has 1 GPU now; it waits" in "\n".join(texts)
    assert "request" not in ask(kernel, "held.calls")


def test_another_request_in_an_attached_notebook_gets_another_allocation(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name first")
    outcome = kernel.run("%gpufit request 2 --name second")
    assert outcome.ok, outcome
    assert "'first': 1 GPU on n1 stays held" in outcome.text()
    assert "runs on 'second'" in outcome.text()


def test_no_attach_leaves_the_cells_here(kernel: LocalKernel) -> None:
    here = kernel.run("import os; os.getpid()").value()
    outcome = kernel.run("%gpufit request 1 --no-attach --name aside")
    assert "Run cells on it: %gpufit attach aside" in outcome.text()
    assert kernel.run("os.getpid()").value() == here


def test_what_does_not_fit_is_said_node_by_node(kernel: LocalKernel) -> None:
    outcome = kernel.run("%gpufit request 9 --memory 16GiB")
    assert "No node has that now." in refused(outcome)
    (table,) = outcome.of("display_data")
    assert re.search(r"n1 +✗ +4 idle GPUs, 9 asked", table["data"]["text/plain"])
    assert re.search(r"n2 +✗ +unreachable", table["data"]["text/plain"])
    assert "&lt;b&gt;" in table["data"]["text/html"]


def test_ctrl_c_while_it_starts_cancels_it(kernel: LocalKernel) -> None:
    kernel.run("held._slow = True", silent=True)
    try:
        request = kernel.send("%gpufit request 1 --name slow")
        after = kernel.send("'after'")
        kernel.finish(request, until=lambda outcome: "pulling" in str(outcome.messages))
        kernel.manager.interrupt_kernel()
        outcome = kernel.finish(request)
        assert outcome.reply["status"] == "error"
        assert "Cancelled 'slow'; nothing is held." in str(outcome.messages)
        assert "jupyter_gpufit/" not in str(outcome.messages)
        assert kernel.finish(after).reply["status"] == "aborted"
        assert ask(kernel, "held.allocations()") == "[]"
    finally:
        kernel.run("held._slow = False", silent=True)


def test_an_allocation_that_does_not_start_says_why_with_its_last_words(kernel: LocalKernel) -> None:
    kernel.run(
        "held._real, held._start = held._start, lambda: None\n"
        "from jupyter_gpufit.models import EndReason, State\n"
        "held.changed = lambda id, *_, **__: held.end(id, EndReason.FAILED, 'It has no ipykernel.') or held.get(id)",
        silent=True,
    )
    try:
        outcome = kernel.run("%gpufit request 1")
        assert "did not start: It has no ipykernel." in refused(outcome)
        assert "logs of id-" in outcome.text("stderr")
    finally:
        kernel.run("held._start = held._real; del held.changed", silent=True)


def test_release_needs_no_name_where_it_is_clear(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name a --no-attach")
    outcome = kernel.run("%gpufit release")
    assert "Released 'a'" in str(outcome.messages)
    assert "you hold no GPUs" in refused(kernel.run("%gpufit release"))
    kernel.run("%gpufit request 1 --name b --no-attach")
    kernel.run("%gpufit request 1 --name c --no-attach")
    assert "you hold b, c; say which one, or --all" in refused(kernel.run("%gpufit release"))
    assert "--all" not in refused(kernel.run("%gpufit logs"))
    assert "no allocation is called 'd'" in refused(kernel.run("%gpufit release d"))
    assert kernel.run("%gpufit release b").ok
    assert ask(kernel, "[one['name'] for one in held.allocations()]") == "['c']"
    again = kernel.run("%gpufit release b")
    assert again.ok
    assert "'b' is released already; it holds nothing." in again.text()


def test_more_time(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name e1 --time 1h --no-attach")
    for line in ("extend e1 30m", "extend 30m"):
        outcome = kernel.run(f"%gpufit {line}")
        assert outcome.ok
    assert outcome.text().startswith("'e1' has 2 h now: it ends in ")
    assert "'soon' is not a duration" in refused(kernel.run("%gpufit extend e1 soon"))
    assert "SPAN" in refused(kernel.run("%gpufit extend"))
    assert "no allocation is called 'e2'" in refused(kernel.run("%gpufit extend e2 1h"))
    kernel.run("%gpufit request 1 --name e2 --no-attach")
    assert "has no time limit; there is nothing to extend" in refused(kernel.run("%gpufit extend e2 1h"))
    assert "you hold e1, e2; say which one" in refused(kernel.run("%gpufit extend 1h"))


def test_a_name_that_is_just_being_given_back_can_be_asked_for_again(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name train --no-attach")
    kernel.run("held.release(held.get('train')['id'])", silent=True)  # elsewhere, and it takes its time
    assert ask(kernel, "held.get('train')['state']") == "'stopping'"
    outcome = kernel.run("%gpufit request 2 --name train --no-attach")
    assert outcome.ok, outcome
    assert "The 'train' before this one is given back." in str(outcome.messages)
    assert ask(kernel, "len(held.get('train')['gpus'])") == "2"


def test_attach_and_detach_keep_both_kernels(kernel: LocalKernel) -> None:
    kernel.run("side = 'here'")
    kernel.run("%gpufit request 1 --name both")
    kernel.run("side = 'there'")
    kernel.run("get_ipython()._gpufit_leaving = ('detach', 0.0)")  # as if that kernel had been asked, too
    outcome = kernel.run("%gpufit detach")
    assert "stays held. Back: %gpufit attach both" in outcome.text()
    assert kernel.run("side").value() == "'here'"
    assert "nothing to detach" in kernel.run("%gpufit detach").text()
    assert kernel.run("%gpufit attach both").ok
    assert kernel.run("side").value() == "'there'"
    assert kernel.run("'_gpufit_leaving' in get_ipython().__dict__").value() == "False"
    assert "nothing to do" in kernel.run("%gpufit attach both").text()


# --- what there is


def test_at_a_glance(kernel: LocalKernel) -> None:
    page = kernel.run("%gpufit").of("display_data")[0]["data"]["text/plain"]
    assert "run in its local kernel" in page
    assert "You hold no GPUs" in page
    assert re.search(r"n1 +4 × \? +4/4 +39 GiB", page)
    assert "no route to host" in page


def test_logs(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name talker --no-attach")
    assert "logs of id-" in kernel.run("%gpufit logs talker").text()


def test_without_a_name_it_is_about_what_ended_last(kernel: LocalKernel) -> None:
    for name in ("older", "newer"):
        kernel.run(f"%gpufit request 1 --name {name} --no-attach")
    kernel.run("%gpufit release newer")
    kernel.run("%gpufit release older")
    assert "'older' has ended" in kernel.run("%gpufit logs -f").text()


def test_explain(kernel: LocalKernel) -> None:
    page = kernel.run("%gpufit explain 2").of("display_data")[0]["data"]["text/plain"]
    assert re.search(r"n1 +✓ +chosen", page)
    assert "stages: 1 enough idle GPUs" in page


def test_mistakes(kernel: LocalKernel) -> None:
    assert "did you mean request?" in refused(kernel.run("%gpufit reqest 2"))
    assert "'16Q' is not a size" in refused(kernel.run("%gpufit request 2 --memory 16Q"))
    assert "'16' has no unit; write '16GiB'" in refused(kernel.run("%gpufit request 2 --memory 16"))
    assert ask(kernel, "held.calls") == "[]"


def test_tables_have_numbers_and_show_sizes(kernel: LocalKernel) -> None:
    shown = kernel.run("df = %gpufit gpus\ndf").of("execute_result")[0]["data"]
    for text in (shown["text/plain"], shown["text/html"]):
        assert "39 GiB" in text
        assert "<NA>" not in text
        assert "&lt;NA&gt;" not in text
    assert kernel.run("int(df.memory_free.sum())").value() == str(4 * 39 * 2**30)
    assert kernel.run("import pickle, pandas; one = pickle.loads(pickle.dumps(df)); one.equals(df)").value() == "True"
    assert kernel.run("type(one) is type(df[['node']]) is pandas.DataFrame").value() == "True"
    assert "n2" in kernel.run("%gpufit nodes").value()
    assert kernel.run("%gpufit allocations").ok


def test_python_variables_can_be_used(kernel: LocalKernel) -> None:
    kernel.run("count = 9")
    assert "No node has that now" in refused(kernel.run("%gpufit request {count}"))


def test_help_and_completion(kernel: LocalKernel) -> None:
    payload = kernel.run("%gpufit?").reply["payload"][0]["data"]["text/plain"]
    assert "%gpufit request" in payload
    assert "--memory" in kernel.run("%gpufit request --help").text()
    kernel.run("%gpufit request 1 --name train --no-attach")
    for line, found in (
        ("%gpufit rel", ["release"]),
        ("%gpufit release ", ["train", "--all", "--help"]),
        ("%gpufit release tr", ["train"]),
        ("%gpufit request 2 --mem", ["--memory"]),
        ("%gpufit request 2 --me", ["--memory"]),
        ("df = %gpufit n", ["nodes"]),
        ("%%gpufit tr", ["train"]),
        ("x = 1\n%gpufit lo", ["logs"]),
    ):
        reply = kernel.client.complete(line, reply=True, timeout=30)["content"]
        assert reply["matches"] == found, reply
        assert reply["cursor_start"] == len(line) - len(line.split(" ")[-1])
    everything = kernel.client.complete("%gpufit ", reply=True, timeout=30)["content"]["matches"]
    assert everything == sorted(everything)
    assert "abs" not in everything
    # ... and elsewhere all is as it was.
    assert "import" in kernel.client.complete("impor", reply=True, timeout=30)["content"]["matches"]


def test_tab_does_not_wait_for_a_server_that_does_not_answer(kernel: LocalKernel) -> None:
    kernel.run("import threading; gate = threading.Event()", silent=True)
    kernel.run("held._real, held.allocations = held.allocations, lambda **_: gate.wait() and held._real()", silent=True)
    try:
        reply = kernel.client.complete("%gpufit release ", reply=True, timeout=30)["content"]
        assert "--all" in reply["matches"]
    finally:
        kernel.run("gate.set(); del held.allocations", silent=True)


# --- jobs and files


def test_a_job_is_one_line_and_returns_at_once(kernel: LocalKernel) -> None:
    outcome = kernel.run("token = 's3cret'\n%gpufit train fit.py -n 1 -m 8GiB --name fit --env KEY={token} -- --lr 1")
    assert outcome.ok, outcome
    assert outcome.text() == "'fit' starts on n1. Follow it: %gpufit logs -f fit\n"
    request = ask(
        kernel, "(lambda r: (r.folder == __import__('os').getcwd(), r.notebook, r.job.args))(held.submitted[-1][0])"
    )
    assert request == "(True, 'work/fit.ipynb', ('--lr', '1'))"
    assert ask(kernel, "held.submitted[-1][0].job.env") == "{'KEY': 's3cret'}"
    page = kernel.run("%gpufit").of("display_data")[0]["data"]["text/plain"]
    assert "runs fit.py --lr 1" in page
    assert "s3cret" not in page + str(kernel.run("%gpufit allocations").messages)


def test_a_sweep_is_a_line_for_each(kernel: LocalKernel) -> None:
    outcome = kernel.run("%gpufit train fit.py --name s --sweep lr=1e-3,1e-4")
    assert outcome.text().splitlines() == [
        "'s-1' (lr=1e-3) starts on n1. Follow it: %gpufit logs -f s-1",
        "'s-2' (lr=1e-4) waits for GPUs, number 1 of 1 in the queue. Follow it: %gpufit logs -f s-2",
    ]


def test_jobs_of_a_scheduler_of_ones_own_end_with_it(kernel: LocalKernel) -> None:
    kernel.run("held.lasting = False", silent=True)
    try:
        outcome = kernel.run("%gpufit train fit.py")
        assert outcome.text().endswith("has jupyter_gpufit, jobs end with this kernel.\n")
    finally:
        kernel.run("held.lasting = True", silent=True)


def test_a_job_that_is_followed_tells_all_it_prints_and_its_end(kernel: LocalKernel) -> None:
    outcome = kernel.run("%gpufit train fit.py --name fit --follow")
    assert outcome.ok, outcome
    said = outcome.text()
    assert "epoch 1\nepoch 2\n'fit' finished after 2 s. Its outputs are in /home/ada/outputs/x\n" in said
    kernel.run("held.code = 3", silent=True)
    try:
        kernel.run("%gpufit train fit.py --name fit3")
        outcome = kernel.run("%gpufit logs -f fit3")
        assert outcome.text().startswith("epoch 1\nepoch 2\n'fit3' failed with exit code 3. Its outputs")
        page = kernel.run("from jupyter_gpufit.notebook.show import *\nfit3 = held.get('fit3')", silent=True)
        assert page.ok
        assert ask(kernel, "'ended (failed, exit code 3)' in str(allocation_table([fit3]))") == "True"
        # Over, and still there to be read; also without its name, as the one that ended last.
        assert "logs of id-" in kernel.run("%gpufit logs").text()
    finally:
        kernel.run("held.code = 0", silent=True)


def test_ctrl_c_ends_the_following_and_not_the_job(kernel: LocalKernel) -> None:
    kernel.run("held.code = -1", silent=True)  # it does not end
    try:
        kernel.run("%gpufit train fit.py --name fit")
        request = kernel.send("%gpufit logs -f")
        kernel.finish(request, until=lambda outcome: "epoch 2" in outcome.text())
        kernel.manager.interrupt_kernel()
        outcome = kernel.finish(request)
        assert outcome.reply["ename"] == "Interrupted", outcome
        assert "'fit' goes on, and is no longer followed. Again: %gpufit logs -f fit" in str(outcome.messages)
        assert "jupyter_gpufit/" not in str(outcome.messages)
        assert ask(kernel, "held.get('fit')['state']") == "'running'"
    finally:
        kernel.run("held.code = 0", silent=True)


def test_nothing_attaches_to_a_job(kernel: LocalKernel) -> None:
    kernel.run("token = 1\n%gpufit train fit.py --name fit")
    assert "'fit' is a job, and no cells can run there" in refused(kernel.run("%gpufit attach fit"))
    assert "'fit' is a job, and no cells can run there" in refused(kernel.run("%%gpufit fit\n1"))
    assert "you hold no GPUs" in refused(kernel.run("%%gpufit --push token\n1"))
    said = refused(kernel.run("%gpufit request 1 --name fit"))
    assert "'fit' is a job of yours, which no notebook can be attached to; use another name" in said
    assert "nothing to do" not in kernel.run("%gpufit request 1").text()


def test_what_a_job_asks_for_may_not_fit(kernel: LocalKernel) -> None:
    outcome = kernel.run("%gpufit train fit.py -n 9")
    assert "No node has that now." in refused(outcome)
    assert outcome.of("display_data")
    assert "the name 'fit' is taken" in refused(
        kernel.run("%gpufit train fit.py --name fit") and kernel.run("%gpufit train fit.py --name fit")
    )


def test_files_are_copied_with_one_display(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name side --no-attach")
    for line, said in (("upload a b/", "Uploading to 'side'"), ("download c --from side", "Downloading from 'side'")):
        outcome = kernel.run(f"%gpufit {line}")
        assert outcome.ok, outcome
        texts = [content["data"]["text/plain"] for _, content in outcome.messages if "data" in content]
        assert f"{said[0].lower()}{said[1:]}: 1 GiB of 4 GiB" in texts
        assert texts[-1] == f"{said} is done."
        assert len(outcome.of("display_data")) == 1
    assert ask(kernel, "held.calls[-2:]") == "['upload a b/', 'download c']"
    assert "node 'n1' has no room for it" in refused(kernel.run("%gpufit upload broken"))
    kernel.run("%gpufit request 1 --name other --no-attach")
    assert "you hold side, other; say which one, with --to" in refused(kernel.run("%gpufit upload a"))
    kernel.run("%gpufit release other")
    assert "'../x' leads out of" in refused(kernel.run("%gpufit upload ../x"))
    kernel.run("held._slow = True", silent=True)
    try:
        request = kernel.send("%gpufit upload large")
        kernel.finish(request, until=lambda outcome: "2 GiB of 4" in str(outcome.messages))
        kernel.manager.interrupt_kernel()
        outcome = kernel.finish(request)
        assert "Cancelled uploading to 'side'; what was copied by then is there." in str(outcome.messages)
        assert ask(kernel, "held.calls[-1]") == "'cancel_transfer'"
    finally:
        kernel.run("held._slow = False", silent=True)


def test_models_and_usage_are_tables(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --memory 24GiB --name side --no-attach")
    models = kernel.run("df = %gpufit models\ndf")
    assert "13 GiB" in models.value()
    outcome = kernel.run("df = %gpufit usage\nlen(df)")
    assert outcome.value() == "1"
    (picture,) = outcome.of("display_data")
    assert "asked 24 GiB on 1 GPU, peak 9 GiB" in picture["data"]["text/plain"]
    assert "asked 24 GiB on 1 GPU, peak 9 GiB" in picture["data"]["text/html"]


def test_a_release_says_what_would_have_been_enough(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --memory 24GiB --name large --no-attach")
    said = kernel.run("%gpufit release large").text()
    assert said == "Asked 24 GiB on 1 GPU, peak 9 GiB, busy 43 % of the time; --memory 10GiB would have been enough.\n"
    kernel.run("%gpufit request 1 --memory 8GiB --name small --no-attach")
    assert kernel.run("%gpufit release small").text() == ""


# --- one cell


def test_one_cell_on_an_allocation(kernel: LocalKernel) -> None:
    here = kernel.run("import os; os.getpid()").value()
    kernel.run("%gpufit request 1 --name side --no-attach")
    there = kernel.run("%%gpufit side\nimport os\nx = 5\nos.getpid()").value()
    assert there != here
    assert kernel.run("os.getpid()").value() == here
    assert kernel.run("%%gpufit\nx").value() == "5"  # the only one that is held
    failed = kernel.run("%%gpufit side\n1 / 0")
    assert failed.reply["ename"] == "ZeroDivisionError"


def test_an_allocation_for_one_cell_is_given_back_also_after_an_error(kernel: LocalKernel) -> None:
    assert kernel.run("%%gpufit -n 2 --memory 8GiB\n6 * 7").value() == "42"
    assert ask(kernel, "held.allocations()") == "[]"
    assert kernel.run("%%gpufit -n 1\n1 / 0").reply["ename"] == "ZeroDivisionError"
    assert ask(kernel, "held.allocations()") == "[]"
    request = kernel.send("%%gpufit -n 1\nimport time\nprint('on', flush=True)\ntime.sleep(600)")
    kernel.finish(request, until=lambda outcome: "on" in outcome.text())
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request).reply["ename"] == "KeyboardInterrupt"
    assert ask(kernel, "held.allocations()") == "[]"


def test_push_and_pull(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name side --no-attach")
    kernel.run("import numpy\na = numpy.arange(400_000)\nb = {'k': ['v']}")
    outcome = kernel.run("%%gpufit --push a,b --pull c,d\nc = a * 2\nd = b['k']")
    assert outcome.ok, outcome
    assert kernel.run("int(c.sum()), d").value() == "(159999600000, ['v'])"
    assert not [name for name in kernel.run("%%gpufit\ndir()").value().split("'") if "gpufit" in name]


@pytest.mark.parametrize(
    ("setup", "line", "code", "said"),
    [
        ("", "--push nothing", "", "no variable 'nothing' in this kernel"),
        ("", "--pull nothing", "", "no variable 'nothing' in the allocation's kernel"),
        (
            "f = lambda: 1",
            "--push f",
            "",
            "'f' is defined in a cell, and the allocation's kernel did not run that cell",
        ),
        (
            "def h(): pass",
            "--push h",
            "",
            "'h' is defined in a cell, and the allocation's kernel did not run that cell",
        ),
        ("g = (i for i in [1])", "--push g", "", "'g' (generator) cannot be pickled: cannot pickle 'generator' object"),
        (
            "class Mine: pass\nm = Mine()",
            "--push m",
            "",
            "'Mine' is defined in a cell, and the allocation's kernel did not run that",
        ),
        ("", "--pull o", "import threading; o = threading.Lock()", "'o' (_thread.lock) cannot be pickled there"),
        (
            "",
            "--pull t",
            "class T: pass\nt = T()",
            "'t' (T) cannot be made here: 'T' is defined in a cell, and this kernel",
        ),
        (
            "import sys, types\nm = sys.modules['only_here'] = types.ModuleType('only_here')\n"
            "exec('class C: pass', m.__dict__)\nm.C.__module__ = 'only_here'\nx = m.C()",
            "--push x",
            "",
            "'x' (only_here.C) cannot be made there: the allocation's kernel has no module 'only_here'; install it",
        ),
    ],
)
def test_what_cannot_travel_is_named(kernel: LocalKernel, setup: str, line: str, code: str, said: str) -> None:
    kernel.run("%gpufit request 1 --name side --no-attach")
    assert kernel.run(setup).ok
    outcome = kernel.run(f"%%gpufit side {line}\n{code or 'pass'}")
    assert outcome.reply["ename"] == "CannotTravel", outcome
    assert said in outcome.reply["evalue"]
    assert "jupyter_gpufit/" not in "\n".join(outcome.reply["traceback"])


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("f = lambda: 1", "'<lambda>' is defined in a cell, and a new allocation's kernel has run none"),
        ("def f(): pass", "'f' is defined in a cell"),
        ("class Mine: pass\nf = [{1: Mine()}]", "'Mine' is defined in a cell"),
        ("f = (i for i in [1])", "'f' (generator) cannot be pickled"),
    ],
)
def test_nothing_is_started_for_what_cannot_travel(kernel: LocalKernel, setup: str, said: str) -> None:
    kernel.run(setup)
    outcome = kernel.run("%%gpufit -n 1 --push f\nf")
    assert outcome.reply["ename"] == "CannotTravel", outcome
    assert said in outcome.reply["evalue"]
    assert ask(kernel, "held.calls") == "[]"
    assert kernel.run("import fractions\nf = fractions.Fraction(1, 3)\nk = len").ok
    assert kernel.run("%%gpufit -n 1 --push f,k\nk([f]) + f").value() == "Fraction(4, 3)"


def test_release_all_in_a_block_of_a_forwarded_cell(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name other --no-attach")
    kernel.run("%gpufit request 1 --name here")
    ask_ = "create_comm(target_name='jupyter_gpufit', data={'action': 'release', 'all': True})"  # as the %gpufit there
    assert kernel.run(f"from comm import create_comm\nif True:\n    {ask_}").ok
    assert ask(kernel, "held.allocations()") == "[]"


def test_unloading_stops_forwarding_and_gives_nothing_to_the_shell(kernel: LocalKernel) -> None:
    kernel.run("%gpufit request 1 --name side")
    kernel.run("get_ipython()._gpufit.forwarder.close()", silent=True)
    assert kernel.run("'transform_cell' in get_ipython().__dict__").value() == "False"

"""`jupyter_kernel_test`'s own tests, against kernel `gpufit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jupyter_kernel_test
import pytest
from jupyter_client.manager import start_new_kernel


class Conformance(jupyter_kernel_test.KernelTests):
    """What a Python kernel has to do; where it runs is the subclasses' matter."""

    __test__ = False
    kernel_name = "gpufit"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oops', file=sys.stderr)"
    completion_samples = [  # noqa: RUF012  (jupyter_kernel_test's way)
        {"text": "zi", "matches": {"zip"}},
    ]
    complete_code_samples = ["1", "print('hello')", "def f(x):\n  return x*2\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('no')"
    code_execute_result = [{"code": "1+2+3", "result": "6"}, {"code": "6*7", "result": "42"}]  # noqa: RUF012
    code_display_data = [  # noqa: RUF012
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x^2'))", "mime": "text/latex"},
    ]
    code_history_pattern = "1?2*"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    def test_history(self) -> None:
        """In place of the inherited one, which does not know that ipykernel calls its own session number 0."""
        codes = [sample["code"] for sample in self.code_execute_result]

        def history(**how: Any) -> list[tuple[int, str]]:
            reply = self.history_helper(codes, output=False, raw=True, **how)
            return [(entry[1], entry[2]) for entry in reply["content"]["history"]]

        tail = history(hist_access_type="tail", n=len(codes))
        assert [code for _, code in tail] == codes
        start = tail[0][0]
        assert history(hist_access_type="range", session=0, start=start, stop=start + 1) == tail[:1]
        found = history(hist_access_type="search", pattern=self.code_history_pattern, unique=True)
        assert [code for _, code in found] == codes[:1]

    @classmethod
    def setUpClass(cls) -> None:
        """Not here: the cluster comes first (`kernel`)."""

    @classmethod
    def tearDownClass(cls) -> None:
        """Likewise."""


@pytest.fixture(scope="class")
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """One kernel for a whole class, started and stopped as any application of jupyter_client would."""
    request.cls.km, request.cls.kc = start_new_kernel(kernel_name="gpufit")
    yield
    request.cls.kc.stop_channels()
    request.cls.km.shutdown_kernel()
    request.cls.km.context.destroy(linger=0)


@pytest.fixture(scope="class")
def engine_cluster(shared_cluster: Any, _engine: Any, kernel_image: str) -> Iterator[None]:
    """The same with one node that is a real engine on another host: kernels in containers, and encrypted."""
    simulated = shared_cluster.file.read_text()
    shared_cluster.file.write_text(
        f"""
[[node]]
name = "{_engine.name}"
docker = "{_engine.url}"
insecure = true
address = "{_engine.ip}"
report = "simulated:2xT4-16GB"
image = "{kernel_image}"
pull = "never"
"""
    )
    yield
    shared_cluster.file.write_text(simulated)


@pytest.mark.usefixtures("shared_cluster", "kernel")
class TestProcessLauncher(Conformance):
    __test__ = True


@pytest.mark.docker
@pytest.mark.usefixtures("engine_cluster", "kernel")
class TestDockerLauncher(Conformance):
    __test__ = True

    def test_it_is_encrypted_and_elsewhere(self) -> None:
        assert self.km.curve_publickey is not None
        assert not self.km.ip.startswith("127.")

"""`jupyter_kernel_test`'s own tests, against kernel `gpufit`."""

from __future__ import annotations

import pytest
from jupyter_client.manager import start_new_kernel
from jupyter_kernel_test import KernelTests


class Conformance(KernelTests):
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
    code_execute_result = [{"code": "6 * 7", "result": "42"}]  # noqa: RUF012
    code_display_data = [  # noqa: RUF012
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x^2'))", "mime": "text/latex"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls) -> None:
        cls.km, cls.kc = start_new_kernel(kernel_name=cls.kernel_name)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kc.stop_channels()
        cls.km.shutdown_kernel()
        cls.km.context.destroy(linger=0)


class TestProcessLauncher(Conformance):
    __test__ = True

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls, simulated_cluster: None) -> None:
        """Before `setUpClass`: an inventory of simulated nodes."""

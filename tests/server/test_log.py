"""What the server's log shows of errors that are nobody's fault."""

from __future__ import annotations

import logging

import pytest

from jupyter_gpufit.errors import Cancelled
from jupyter_gpufit.server.extension import _without_our_tracebacks


@pytest.mark.parametrize(("error", "shown"), [(Cancelled("it was released"), False), (KeyError("a bug"), True)])
def test_only_bugs_have_tracebacks(error: Exception, shown: bool, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tests.server.log")
    log.addFilter(_without_our_tracebacks)
    try:
        raise error
    except Exception:
        log.exception("Error waiting for kernel manager ready")
    assert ("Traceback" in caplog.text) == shown
    assert ("it was released" in caplog.text) != shown

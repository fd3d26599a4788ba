"""What is left of a kernel's iopub channel, by the topics that it is known to have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from jupyter_gpufit.kernels.topics import COMMS, DOINGS, hear_less


@pytest.fixture
def ends() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    with zmq.Context() as context, context.socket(zmq.XPUB) as kernel, context.socket(zmq.SUB) as front_end:
        kernel.setsockopt(zmq.RCVTIMEO, 5000)
        front_end.setsockopt(zmq.RCVTIMEO, 5000)
        kernel.bind("inproc://iopub")
        front_end.connect("inproc://iopub")
        front_end.setsockopt(zmq.SUBSCRIBE, b"")
        assert kernel.recv() == b"\x01"
        yield kernel, front_end


@pytest.mark.parametrize("topic", [b"", b"status", b"kernel.1.stream", b"kernel_core.1.status", b"comm-1", b"\x00\xff"])
def test_of_a_kernel_with_other_topics_everything_is_heard(topic: bytes, ends: tuple[zmq.Socket[bytes], ...]) -> None:
    kernel, front_end = ends
    assert not hear_less(front_end, [topic, b"message"], (COMMS,))
    assert not hear_less(front_end, [], (COMMS,))
    kernel.send_multipart([b"anything", b"message"])
    assert front_end.recv_multipart() == [b"anything", b"message"]


def test_the_next_process_is_heard_too_but_not_what_it_prints(ends: tuple[zmq.Socket[bytes], ...]) -> None:
    kernel, front_end = ends
    assert hear_less(front_end, [b"kernel.1-a.status", b"message"], (COMMS, DOINGS))
    assert {kernel.recv() for _ in range(3)} == {b"\x01comm-", b"\x01kernel.", b"\x00"}
    for topic in (b"stream.stdout", b"display_data", b"kernel.2-b.execute_input", b"comm-3"):
        kernel.send_multipart([topic, b"message"])
    assert [front_end.recv_multipart()[0] for _ in range(2)] == [b"kernel.2-b.execute_input", b"comm-3"]

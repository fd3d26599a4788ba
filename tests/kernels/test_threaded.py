"""Questions to an event loop in another thread, also to one that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jupyter_gpufit.errors import Unavailable
from jupyter_gpufit.kernels.threaded import LoopThread, ask_on


class There:
    """A loop in a thread, and what is asked of it."""

    def __init__(self) -> None:
        self.thread = LoopThread("gpufit test")
        self.thread.start(at_exit=self.thread.stop)
        self.loop = self.thread.call(self._loop)
        self.cancelled = False

    async def answer(self) -> int:
        return 42

    async def never(self) -> int:
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


@pytest.fixture
def there() -> Iterator[There]:
    made = There()
    yield made
    made.thread.stop()


async def test_it_answers(there: There) -> None:
    assert await ask_on(there.loop, there.answer) == 42


async def test_one_that_has_ended_is_unavailable(there: There) -> None:
    there.thread.stop()
    with pytest.raises(Unavailable):
        await ask_on(there.loop, there.answer)


async def test_one_that_ends_meanwhile_is_unavailable(there: There) -> None:
    asked = asyncio.create_task(ask_on(there.loop, there.never))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(there.thread.stop)
    with pytest.raises(Unavailable):
        await asked


async def test_who_is_cancelled_is_cancelled_and_so_is_the_question(there: There) -> None:
    asked = asyncio.create_task(ask_on(there.loop, there.never))
    await asyncio.sleep(0.05)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await ask_on(there.loop, there.answer) == 42
    assert there.cancelled

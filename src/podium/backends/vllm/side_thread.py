"""A thread for one piece of blocking work, beside an event loop.

It never keeps the interpreter from exiting, and it cannot be interrupted: work that shall end early has to look for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from podium.backends.worker_threads import post

T = TypeVar("T")


class SideThread(Generic[T]):
    """Runs `work` at once; `outcome` has what it returned or raised. Belongs to the running loop."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self.outcome: asyncio.Future[T] = self._loop.create_future()
        self.outcome.add_done_callback(_note_taken)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def wait(self) -> T:
        """What `work` returned; raises what it raised. Cancelling the wait does not end the work."""
        result = await asyncio.shield(self.outcome)
        self._thread.join()  # it has done everything but return
        return result

    async def is_done_within(self, timeout_s: float) -> bool:
        """Wait for the end, for at most `timeout_s`; says whether it came."""
        await asyncio.wait([self.outcome], timeout=timeout_s)
        if self.outcome.done():
            self._thread.join()
        return self.outcome.done()

    def _run(self) -> None:
        try:
            result, error = self._work(), None
        except BaseException as caught:  # noqa: BLE001 - it belongs to whoever waits
            result, error = None, caught
        post(self._loop, self._settle, result, error)

    def _settle(self, result: T | None, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(cast(T, result))
        else:
            self.outcome.set_exception(error)


def _note_taken(outcome: asyncio.Future[T]) -> None:
    """Work may be abandoned, and fail with nobody left to hear of it."""
    if not outcome.cancelled():
        outcome.exception()

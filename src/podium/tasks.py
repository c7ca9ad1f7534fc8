"""A background task with an owner: started once, awaited on close, its failure never lost; and futures to share.

For the few tasks that outlive the call that starts them. Everything else lives in task groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

_log = logging.getLogger("podium.tasks")

Value = TypeVar("Value")

CLOSE_LIMIT_S = 2.0
"""How long a cancelled task may take to end."""


class OwnedTask:
    """One task of an object that closes it. `on_failure` hears of an exception that ends it; cancelling is not one."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<OwnedTask {self._name}{'' if self.is_running else ', not running'}>"

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Start on the running loop. Raises RuntimeError while the former work still runs."""
        if self.is_running:
            work.close()
            raise RuntimeError(f"{self._name} is running already")
        self._task = asyncio.get_running_loop().create_task(self._guard(work), name=self._name)
        self._task.add_done_callback(lambda _: work.close())  # it never began when it was cancelled at once

    async def close(self) -> None:
        """Cancel it and wait until it has ended; one that does not end is given up and logged. Idempotent."""
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        task.cancel()
        _, running = await asyncio.wait([task], timeout=CLOSE_LIMIT_S)
        if running:
            _log.error("%s did not end within %g s after it was cancelled", self._name, CLOSE_LIMIT_S)

    async def wait(self) -> None:
        """Wait until it has ended by itself."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as failure:  # noqa: BLE001 - handed to the owner, whatever it is
            self._on_failure(failure)


def follow(future: Future[Value]) -> Future[Value]:
    """A future that ends as `future` does. Whoever gives it up, or cancels it, does not touch the other."""
    own: Future[Value] = Future()

    def end(ended: Future[Value]) -> None:
        if ended.cancelled():
            own.cancel()
        if not own.set_running_or_notify_cancel():
            return
        failure = ended.exception()
        if failure is None:
            own.set_result(ended.result())
        else:
            own.set_exception(failure)

    future.add_done_callback(end)
    return own

"""A background task with an owner: started once, awaited on close, its failure never lost.

For the few tasks that outlive the call that starts them. Everything else lives in task groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


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
        """Start on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._guard(work), name=self._name)

    async def close(self) -> None:
        """Cancel it and wait until it has ended. Idempotent."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    async def wait(self) -> None:
        """Wait until it has ended by itself."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as failure:  # noqa: BLE001 - handed to the owner, whatever it is
            self._on_failure(failure)

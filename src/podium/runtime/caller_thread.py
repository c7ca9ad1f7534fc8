"""A thread with an event loop for callers that have none: they hand in a coroutine and wait for what it returns.

It knows nothing of engines. Whoever waits gets an answer: when it is closed, what runs may end first, within a limit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")

CLOSE_LIMIT_S = 5.0
"""How long what runs may take to end, once the thread is closed; then it is cancelled."""


class CallerThreadClosedError(Exception):
    """The thread was closed, and takes no work."""


class CallerThread:
    """Started when it is made. Safe from any thread but its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(_serve(ready)), name="podium caller", daemon=True)
        self._thread.start()
        self._loop, self._closed = ready.result()

    def __repr__(self) -> str:
        return f"<CallerThread{', closed' if self._is_closed else ''}>"

    def run(self, work: Coroutine[object, object, Value]) -> Value:
        """Run a coroutine there and return what it returns; leaving early cancels it.

        Raises what it raises, and CallerThreadClosedError when the thread is closed.
        """
        with self._lock:
            if self._is_closed:
                work.close()
                raise CallerThreadClosedError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # an interrupt of the user too
            future.cancel()
            raise

    def close(self) -> None:
        """Let what runs end, and then the thread. Idempotent; returns when it has ended."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()


async def _serve(ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    closed = asyncio.Event()
    ready.set_result((asyncio.get_running_loop(), closed))
    await closed.wait()
    running = asyncio.all_tasks() - {asyncio.current_task()}
    if running:
        await asyncio.wait(running, timeout=CLOSE_LIMIT_S)

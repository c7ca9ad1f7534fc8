"""One event loop in a thread, for an engine that tests share: a backend belongs to the loop that it was loaded on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class SharedLoop:
    """Runs coroutines of any test on one loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared test loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], timeout_s: float = 100.0) -> T:
        """What `work` returns; raises what it raises, or TimeoutError."""

        async def run_within_limit() -> T:
            async with asyncio.timeout(timeout_s):
                return await work

        return asyncio.run_coroutine_threadsafe(run_within_limit(), self._loop).result()

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

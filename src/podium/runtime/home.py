"""Where an engine's loop runs: a thread of its own, unless somebody brings another home.

A home runs one coroutine to its end and says that it ended. It knows nothing of engines.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeAlias

_log = logging.getLogger("podium.engine")

JOIN_LIMIT_S = 1.0
"""How long a thread may take to be gone after its last word."""

Life: TypeAlias = Callable[[], Coroutine[object, object, None]]


class Home(Protocol):
    """One place for one loop; it is used once."""

    def start(self, live: Life, on_end: Callable[[], None]) -> None:
        """Run `live()` there, and `on_end()` after it, however it ended. Returns at once."""
        ...

    def join(self) -> None:
        """Once `on_end` was called: let whatever is left be gone, which is a matter of microseconds."""
        ...


class ThreadHome:
    """A thread with an event loop of its own, so that a busy caller never stalls what runs there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<ThreadHome {self._name}>"

    def start(self, live: Life, on_end: Callable[[], None]) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=_run, args=(live, on_end), name=self._name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, within a limit; for one that was never started there is nothing to do."""
        if self._thread is not None:
            self._thread.join(JOIN_LIMIT_S)


def _run(live: Life, on_end: Callable[[], None]) -> None:
    try:
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(live())
    except asyncio.CancelledError:
        _log.info("the start was cancelled")
    finally:
        on_end()


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops: uvloop where it is installed (the extra `fast`), else the standard library."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - it may not be there
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory

"""Ctrl-C: the first one asks for an orderly end, the second one ends the process at once.

Nothing here knows what an orderly end is; whoever runs says what the first one does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

from podium.cli.problems import INTERRUPTED_EXIT


def quit_at_once() -> None:
    """Leave without waiting for anything."""
    os._exit(INTERRUPTED_EXIT)


class Interrupts:
    """Handles SIGINT while it is entered. `on_first` is called, on the loop, for the first signal."""

    def __init__(self, on_first: Callable[[], object], on_second: Callable[[], object] = quit_at_once) -> None:
        self.on_first = on_first
        self.count = 0
        self._on_second = on_second
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Interrupts count={self.count}>"

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGINT, self._take)
        except (NotImplementedError, RuntimeError, ValueError):  # no such signals here, or not in the main thread
            return self
        self._loop = loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGINT)

    def _take(self) -> None:
        self.count += 1
        (self.on_first if self.count == 1 else self._on_second)()

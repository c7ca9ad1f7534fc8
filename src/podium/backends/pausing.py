"""What backends have in common when they are paused: what a pause is told, and that the latest call counts.

It knows neither jobs nor engines. A pause that waits never keeps a resume from taking over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from podium.core.identity import Payload
from podium.core.operations import PauseMode
from podium.errors import ErrorKind, ErrorRecord, Scope, SupersededError, UnsupportedError
from podium.options import read_params


class NoArguments(msgspec.Struct, frozen=True):
    """The call takes none."""


class PauseArguments(msgspec.Struct, frozen=True):
    """What becomes of running work."""

    mode: PauseMode


def read_pause(arguments: Mapping[str, Payload], modes: frozenset[PauseMode], stage: str) -> PauseMode:
    """The mode of a pause. Raises InvalidRequestError for what is none, UnsupportedError when `modes` lacks it."""
    mode = read_params(PauseArguments, arguments, "pause").mode
    if mode not in modes:
        known = ", ".join(sorted(modes))
        raise UnsupportedError.because(f"stage '{stage}' cannot pause with '{mode}'; it can: {known}", stage=stage)
    return mode


class Turns:
    """Calls that move a backend between work and rest: when one begins, the one before ends with SupersededError."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._number = 0
        self._running: asyncio.Timeout | None = None
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Take over. The block ends with SupersededError wherever it waits, as soon as somebody else takes over."""
        if self._running is not None:
            self._running.reschedule(0.0)  # long ago: at once
        self._number += 1
        mine = self._number
        try:
            async with asyncio.timeout(None) as self._running:
                yield
        except TimeoutError:
            if self._number == mine:
                raise
            message = f"a later pause, resume, sleep or wake-up of stage '{self._stage}' took over"
            record = ErrorRecord(kind=ErrorKind.SUPERSEDED, scope=Scope.REPLICA, stage=self._stage, message=message)
            raise SupersededError(record) from None
        finally:
            if self._number == mine:
                self._running = None

    def note_change(self) -> None:
        """Let `wait` look again."""
        if self._running is not None:
            self._changed.set()

    async def wait(self, is_so: Callable[[], bool]) -> None:
        """In a turn: wait until `is_so()`; it is asked after each `note_change`."""
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

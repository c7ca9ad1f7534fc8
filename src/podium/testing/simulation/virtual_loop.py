"""An event loop whose time jumps to the next timer as soon as nothing is left to do; and an engine's home on it.

The same coroutines take the same turns whenever they run: nothing here depends on real time, threads, or where objects
lie in memory. It has no sockets, no pipes and no signals.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from podium.runtime.home import Life
from podium.tasks import OwnedTask
from podium.testing.virtual_clock import VirtualClock

TURN_LIMIT = 400_000
"""Turns that one world may take; one that takes more turns in circles."""


class NothingLeftError(RuntimeError):
    """Somebody waits, and nothing is left that could ever happen."""


class CirclesError(RuntimeError):
    """The loop turned more often than any world needs."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs on a VirtualClock, and moves it. Raises NothingLeftError or CirclesError out of `run_until_complete`."""

    _scheduled: list[asyncio.TimerHandle]  # asyncio's own heap of timers, the next one first

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.complaints: list[str] = []
        """What asyncio would have logged."""
        self.turns = 0
        self._serials = itertools.count(1)
        self._selector = self  # asyncio waits there for the world outside, of which there is none
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        """The time of the clock."""
        return self.clock.now()

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that would still fire."""
        return [timer for timer in self._scheduled if not timer.cancelled()]

    def select(self, timeout: float | None) -> list[object]:
        """Called by asyncio when it has to wait: let the time pass."""
        self.turns += 1
        if self.turns > TURN_LIMIT:
            self.turns = 0  # what is left may still be cancelled
            raise CirclesError(f"the world took more than {TURN_LIMIT} turns")
        if timeout is None:
            raise NothingLeftError("somebody waits, and nothing is left to happen")
        if timeout > 0:
            self.clock.advance(max(0.0, self._scheduled[0].when() - self.clock.now()))
        return []

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps, so that nobody has to be woken."""

    def _make_task(
        self, _: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **more: Any
    ) -> asyncio.Task[Any]:
        return _NumberedTask(next(self._serials), work, self, more)

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        self.complaints.append(f"{context.get('message')}" + (f": {failure!r}" if failure is not None else ""))


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks have the same order in every process."""

    def __init__(
        self,
        number: int,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        loop: asyncio.AbstractEventLoop,
        more: dict[str, Any],
    ) -> None:
        self._number = number
        super().__init__(work, loop=loop, **{"name": f"task {number}", **more})

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class LoopHome:
    """A `Home` on the running loop: engine and callers take turns, in an order that never varies."""

    def __init__(self) -> None:
        self._life = OwnedTask("the engine", self._fail)
        self.failure: BaseException | None = None

    def start(self, live: Life, on_end: Callable[[], None]) -> None:
        """Begin a task."""

        async def run() -> None:
            try:
                await live()
            finally:
                on_end()

        self._life.start(run())

    def join(self) -> None:
        """Its last step is this turn's."""

    def _fail(self, failure: BaseException) -> None:
        self.failure = failure

"""The one queue into the driver: events from any thread, taken out in batches by the loop.

A wake-up crosses threads once for a whole burst, not once for each event.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

from podium.core.events import Event
from podium.ports.environment import Clock

BATCH_LIMIT = 1024
"""Events that one step takes at most, so that deadlines and other tasks get their turn."""


class Inbox:
    """Events on their way to the core. `post` works from any thread; everything else belongs to the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque()
        self._is_woken = False
        self._thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Inbox {len(self._events)} events>"

    def __len__(self) -> int:
        return len(self._events)

    def bind(self) -> None:
        """Belong to the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def post(self, event: Event) -> None:
        """Put an event in, from any thread; wakes the loop if it sleeps."""
        self._events.append(event)
        if threading.get_ident() == self._thread:
            self.wake()
        elif not self._is_woken and self._loop is not None:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits for this event any more
                self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Let `get` return, with or without events."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self, deadline: float | None) -> list[Event]:
        """The events that are there, in order; waits for some until `deadline` and returns none when it came."""
        if self._events:
            await asyncio.sleep(0)  # a turn for everybody else, and for more events to come in
        else:
            await self._wait(deadline)
        self._is_woken = False
        return [self._events.popleft() for _ in range(min(len(self._events), BATCH_LIMIT))]

    async def _wait(self, deadline: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._is_woken = False
        if self._events:
            return
        timer = None
        if deadline is not None:
            timer = loop.call_later(max(0.0, deadline - self._clock.now()), self.wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

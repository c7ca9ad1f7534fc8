"""Every wait of the core, on one heap.

A timer is set, moved and cleared in constant time: the heap keeps one entry for it, which is looked at again only when
it comes due. So a chunk that moves its job's deadline costs one assignment, and cleared timers are swept in bulk.
"""

from __future__ import annotations

import heapq
from math import inf

SWEEP_FLOOR = 64
"""Below this many entries the heap is not worth sweeping."""


class Timer:
    """Something with a deadline. `due` is inf while nothing is awaited; only `Deadlines` changes it."""

    __slots__ = ("_entry_at", "due")

    def __init__(self) -> None:
        self.due = inf
        self._entry_at = inf


class Deadlines:
    """The heap of all timers that are set."""

    __slots__ = ("_heap", "_pushes", "live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._pushes = 0
        self.live = 0

    def __repr__(self) -> str:
        return f"<Deadlines {self.live} set>"

    def set(self, timer: Timer, due: float) -> None:
        """Let `timer` be due at `due`, instead of whenever it was; never, when that is inf."""
        if due == inf:
            self.clear(timer)
            return
        if timer.due == inf:
            self.live += 1
        timer.due = due
        if due < timer._entry_at:
            self._push(timer)

    def clear(self, timer: Timer) -> None:
        """Let `timer` wait for nothing. Idempotent."""
        if timer.due == inf:
            return
        timer.due = inf
        self.live -= 1
        if len(self._heap) > 2 * self.live + SWEEP_FLOOR:
            self._sweep()

    def next_due(self) -> float | None:
        """When the earliest timer is due; None when none is set."""
        while self._heap:
            at, _, timer = self._heap[0]
            if at == timer.due:
                return at
            self._refresh_top()
        return None

    def pop_due(self, now: float) -> Timer | None:
        """The earliest timer that is due at `now`, cleared; None when there is none."""
        due = self.next_due()
        if due is None or due > now:
            return None
        timer = heapq.heappop(self._heap)[2]
        timer.due = timer._entry_at = inf
        self.live -= 1
        return timer

    def _push(self, timer: Timer) -> None:
        self._pushes += 1
        timer._entry_at = timer.due
        heapq.heappush(self._heap, (timer.due, self._pushes, timer))

    def _refresh_top(self) -> None:
        at, _, timer = heapq.heappop(self._heap)
        if at != timer._entry_at:
            return
        timer._entry_at = inf
        if timer.due < inf:
            self._push(timer)

    def _sweep(self) -> None:
        timers = {id(timer): timer for _, _, timer in self._heap}
        self._heap.clear()
        for timer in timers.values():
            timer._entry_at = inf
            if timer.due < inf:
                self._push(timer)

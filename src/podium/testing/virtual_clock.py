"""Time that passes only when a test says so: a Clock for deadlines and limits without waiting for them.

It moves no event loop; whoever waits in a test waits for a condition instead.
"""

from __future__ import annotations


class VirtualClock:
    """A `podium.ports.environment.Clock` in seconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def __repr__(self) -> str:
        return f"<VirtualClock {self._now:g} s>"

    def now(self) -> float:
        """The time."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass, and return the time then. Raises ValueError when they are negative."""
        if not seconds >= 0:
            raise ValueError(f"time cannot go back by {-seconds:g} s")
        self._now += seconds
        return self._now

"""Watches the loop: what it costs, when it last moved, and whoever else wants to see its steps.

Nothing here changes what the loop does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from podium.core.effects import Effect
from podium.core.events import Event
from podium.core.orchestrator import Orchestrator
from podium.ports.environment import Clock, Observer

_log = logging.getLogger("podium.engine")


class LoopStatistics(msgspec.Struct, frozen=True):
    """The loop's own cost. `recent_us_per_event` is an exponential mean over about the last hundred steps.

    `busy_s` is the time it spent in all, `idle_s` the time since it last moved, `largest_batch` counts events.
    """

    steps: int
    events: int
    effects: int
    busy_s: float
    recent_us_per_event: float
    largest_batch: int
    idle_s: float

    @property
    def us_per_event(self) -> float:
        """The mean cost of an event since the start, in microseconds."""
        return 1e6 * self.busy_s / self.events if self.events else 0.0


class LoopObserver:
    """Counts steps and their cost, and passes each step on to `others` (a journal, metrics, traces).

    One of those that raises is logged, and hears no more: whoever watches does not bring the engine down.
    """

    def __init__(self, clock: Clock, others: Sequence[Observer] = ()) -> None:
        self._clock = clock
        self._others = list(others)
        self._steps = 0
        self._events = 0
        self._effects = 0
        self._busy_s = 0.0
        self._recent_us = 0.0
        self._largest_batch = 0
        self._moved_at = clock.now()

    def __repr__(self) -> str:
        return f"<LoopObserver {self._steps} steps, {self._recent_us:.1f} us per event lately>"

    def on_start(self, core: Orchestrator) -> None:
        """Pass on."""
        self._tell(lambda other: other.on_start(core))

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        """Count, and pass on."""
        self._steps += 1
        self._events += len(events)
        self._effects += len(effects)
        self._moved_at = now
        self._largest_batch = max(self._largest_batch, len(events))
        if self._others:
            self._tell(lambda other: other.on_step(events, now, effects))

    def on_cost(self, events: int, seconds: float) -> None:
        """Add up."""
        self._busy_s += seconds
        if events:
            self._recent_us += (1e6 * seconds / events - self._recent_us) * 0.02
        if self._others:
            self._tell(lambda other: other.on_cost(events, seconds))

    def on_end(self) -> None:
        """Pass on."""
        self._tell(lambda other: other.on_end())

    def _tell(self, say: Callable[[Observer], None]) -> None:
        for other in tuple(self._others):
            try:
                say(other)
            except Exception:  # noqa: BLE001 - foreign code; the engine goes on without it
                self._others.remove(other)
                _log.exception("%r watches the engine no more: it raised", other)

    def statistics(self) -> LoopStatistics:
        """The figures as they are now."""
        return LoopStatistics(
            steps=self._steps,
            events=self._events,
            effects=self._effects,
            busy_s=self._busy_s,
            recent_us_per_event=self._recent_us,
            largest_batch=self._largest_batch,
            idle_s=max(0.0, self._clock.now() - self._moved_at),
        )

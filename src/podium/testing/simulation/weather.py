"""What can go wrong in one world: each world has a few kinds of trouble, and many have none of a kind.

Worlds in which everything goes wrong at once hide more than they show. This module only draws.
"""

from __future__ import annotations

from random import Random

import msgspec

from podium.core.graph import Limits


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """Chances from 0 to 1 that a thing of a kind goes wrong, and times in seconds. Zero is never.

    Between a replica and the core: `duplicate` and `lose` events, `delay_s` at most, out of order with `reorder`,
    `full` outboxes. Stages: `hang`, `slow`, `die`, `fail`, `odd_end` (abort, error), `early_end` (before the input has
    ended), `refuse` input, failing (`stop_fail`) and hanging (`stop_hang`) stops, `shuffle` and repeat outputs,
    `close_hang`. Processors: `process`. Callers: `leave`, `deadline`, `abort` at the same moment with `storm`. `tight`
    limits are of tenths of seconds and of few jobs. `polled` clients are asked for events at intervals. Control calls
    fail (`call_fail`) and hang (`call_hang`).
    """

    tight: bool
    storm: bool
    reorder: bool
    polled: bool
    delay_s: float
    duplicate: float
    lose: float
    full: float
    hang: float
    slow: float
    die: float
    fail: float
    odd_end: float
    early_end: float
    refuse: float
    stop_fail: float
    stop_hang: float
    close_hang: float
    shuffle: float
    process: float
    leave: float
    deadline: float
    load_fail: float
    call_fail: float
    call_hang: float

    @property
    def can_stall(self) -> bool:
        """Whether anything may take longer than its limit, for no fault of the engine."""
        return bool(self.tight or self.lose or self.hang or self.slow or self.stop_hang)

    @property
    def can_delay_stops(self) -> bool:
        """Whether a stop may fail, or be confirmed late, for no fault of the engine."""
        return bool(self.tight or self.lose or self.stop_fail or self.stop_hang or self.polled)


def draw_weather(draw: Random) -> Weather:
    """The weather of one world."""

    def some(chance: float, *rates: float) -> float:
        return draw.choice(rates) if draw.random() < chance else 0.0

    return Weather(
        tight=draw.random() < 0.25,
        storm=draw.random() < 0.2,
        reorder=draw.random() < 0.3,
        polled=draw.random() < 0.15,
        delay_s=some(0.6, 0.0, 0.001, 0.02, 0.1),
        duplicate=some(0.3, 0.1, 0.3),
        lose=some(0.12, 0.01, 0.05),
        full=some(0.15, 0.02, 0.1),
        hang=some(0.2, 0.05, 0.2),
        slow=some(0.2, 0.05, 0.2),
        die=some(0.25, 0.02, 0.05, 0.15),
        fail=some(0.3, 0.05, 0.2),
        odd_end=some(0.2, 0.05, 0.2),
        early_end=some(0.3, 0.2, 0.6),
        refuse=some(0.2, 0.05, 0.1),
        stop_fail=some(0.3, 0.2, 0.6),
        stop_hang=some(0.15, 0.1, 0.4),
        close_hang=some(0.1, 0.3),
        shuffle=some(0.4, 0.3, 0.8),
        process=some(0.25, 0.05, 0.15),
        leave=some(0.5, 0.2, 0.5),
        deadline=some(0.3, 0.2, 0.6),
        load_fail=some(0.05, 0.3),
        call_fail=some(0.3, 0.1, 0.4),
        call_hang=some(0.15, 0.1, 0.4),
    )


def draw_limits(draw: Random, weather: Weather) -> Limits:
    """The limits of one stage: generous, or so tight that they are met."""
    if not weather.tight:
        return Limits(max_inflight=draw.choice((2, 64)), start_timeout_s=20.0)
    return Limits(
        max_inflight=draw.choice((1, 2, 64)),
        max_queued=draw.choice((1, 3, 64)),
        max_buffered_chunks=draw.choice((2, 65536, 65536)),
        queue_timeout_s=draw.choice((0.2, 1.0)),
        dispatch_timeout_s=draw.choice((0.1, 1.0)),
        first_output_timeout_s=draw.choice((0.1, 0.5)),
        chunk_timeout_s=draw.choice((0.1, 0.5)),
        stop_timeout_s=draw.choice((0.05, 0.3)),
        stuck_timeout_s=draw.choice((0.2, 0.5)),
        start_timeout_s=5.0,
    )

"""What is measured: the shapes, how often and how long, and what the figures are held against.

The foreign figures are of vLLM-Omni 0.30's orchestrator, driven the same way (three stages that answer at once) on a
machine like the one that ours are from; they are the better of its two modes. They orient, they do not compare: for
that both would have to run side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from podium.testing.benchmark_shape import Shape, parse_shape


class Figure(StrEnum):
    """What a foreign figure counts."""

    REQUESTS = "requests/s"
    OUTPUTS = "outputs/s"


class Orientation(msgspec.Struct, frozen=True):
    """A foreign figure for a shape, how many times as much is aimed at, and what is needed at least."""

    figure: Figure
    value: float
    aim: float = 10.0
    least: float = 6.0


ORIENTATION: Mapping[str, Orientation] = {
    "3x1x1": Orientation(Figure.REQUESTS, 1162, aim=0, least=0),  # its goal is the latency's
    "3x1x16": Orientation(Figure.REQUESTS, 1604),
    "3x1x64": Orientation(Figure.REQUESTS, 1206),
    "3x32x16": Orientation(Figure.OUTPUTS, 8500, aim=20, least=12),
    "3x32x64": Orientation(Figure.OUTPUTS, 8100, aim=20, least=12),
    "3x32x16:complete": Orientation(Figure.OUTPUTS, 8500, aim=20, least=12),
    "3x32x64:complete": Orientation(Figure.OUTPUTS, 8100, aim=20, least=12),
}
LATENCY_US = 780.0
IDLE_CPU_SHARES = (0.0007, 0.128)
CROSSINGS_AT_MOST = 2.0
GROWTH_AT_MOST = 1.25
"""Above this a cost counts as growing; what is below cannot be told from the noise of a shared machine."""

CONTROL_SHARE, CONTROL_SHARE_AT_LEAST = 0.95, 0.85
"""Of its rate a load keeps all but the noise while a control call hangs."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are in seconds; each shape is measured `repetitions` times."""

    shapes: tuple[Shape, ...]
    repetitions: int
    seconds: float
    latency_calls: int
    core_requests: int
    idle_s: float
    idle_open: int
    held: tuple[int, ...]
    replicas: tuple[int, ...]
    memory_requests: int


_QUICK = ("3x1x1", "3x1x16", "3x1x64", "3x32x16", "3x32x64", "3x32x64:complete")
_FULL = (
    *("3x1x1", "3x1x16", "3x1x64", "3x1x1000"),
    *("3x32x1", "3x32x16", "3x32x64", "3x32x1000"),
    *("3x32x1:complete", "3x32x16:complete", "3x32x64:complete", "3x32x1000:complete"),
    *("3x32x64:all-final", "8x8x64", "fan-out:5x8x64", "fan-in:5x8x64", "fan-in:5x8x64:complete"),
)
LATENCY_SHAPE = parse_shape("3x1x1")
HELD_SHAPE = parse_shape("3x8x16")
REPLICA_SHAPE = parse_shape("3x8x16")
CONTROL_SHAPE = parse_shape("3x8x64")
QUICK = Plan(
    shapes=tuple(map(parse_shape, _QUICK)),
    repetitions=3,
    seconds=0.3,
    latency_calls=100,
    core_requests=300,
    idle_s=1.0,
    idle_open=1000,
    held=(0, 2000),
    replicas=(1, 8),
    memory_requests=500,
)
FULL = Plan(
    shapes=tuple(map(parse_shape, _FULL)),
    repetitions=5,
    seconds=0.6,
    latency_calls=300,
    core_requests=1000,
    idle_s=4.0,
    idle_open=1000,
    held=(0, 100, 1000, 10_000),
    replicas=(1, 4, 16, 64),
    memory_requests=2000,
)

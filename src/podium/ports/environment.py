"""What the shell needs of its surroundings: time, the store of payloads, and somebody who watches.

Each has one implementation in `runtime/` and one in `testing/` (a virtual clock, a store that counts, an observer that
records).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from podium.core.effects import Effect
from podium.core.events import Event
from podium.core.identity import Payload
from podium.core.orchestrator import Orchestrator


class Clock(Protocol):
    """Monotonic time in seconds."""

    def now(self) -> float:
        """The time."""
        ...


class PayloadStore(Protocol):
    """Owns what payload handles stand for, where that is more than a Python reference."""

    def release(self, payloads: Sequence[Payload]) -> None:
        """Free payloads that nobody will get."""
        ...


class Observer(Protocol):
    """Sees every step of the loop: journal, metrics and traces hang here and nowhere else. Must not raise or wait."""

    def on_start(self, core: Orchestrator) -> None:
        """The loop is about to take its first step. `core` is for reading."""
        ...

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        """`effects` is what the core answered to `events` at `now`; none when the step broke the core."""
        ...

    def on_cost(self, events: int, seconds: float) -> None:
        """The step with `events` events, and performing its effects, took the loop so long."""
        ...

    def on_end(self) -> None:
        """The loop took its last step."""
        ...


class Environment(NamedTuple):
    """The three together, as the driver gets them."""

    clock: Clock
    store: PayloadStore
    observer: Observer

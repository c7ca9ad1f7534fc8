"""The barrier of one stage: whether it works, stands still or sleeps, and which control call is in charge of it.

Plain state that moves through its table; what is sent to replicas is decided in `controlling.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podium.core.lifecycle import BARRIER, QUIET, BarrierState, BarrierTrigger, move
from podium.core.operations import PauseMode
from podium.core.snapshot import BarrierSnapshot

if TYPE_CHECKING:
    from podium.core.control import ControlCall
    from podium.core.records import Job


class Barrier:
    """One stage's barrier. `is_frozen` says that jobs stand still in it, or may.

    `closed_at` is when they began to stand still, or when the stage was closed if they do not. `call` is the
    control call in charge; `blocker` is some job that a drain waits for.
    """

    __slots__ = ("blocker", "call", "closed_at", "is_frozen", "state")

    def __init__(self) -> None:
        self.state = BarrierState.OPEN
        self.is_frozen = False
        self.closed_at = 0.0
        self.call: ControlCall | None = None
        self.blocker: Job | None = None

    def __repr__(self) -> str:
        return f"<Barrier {self.state}{f', {self.call!r}' if self.call is not None else ''}>"

    @property
    def is_open(self) -> bool:
        """Whether the stage works."""
        return self.state is BarrierState.OPEN

    @property
    def is_quiet(self) -> bool:
        """Whether every replica has confirmed that no step runs or will start."""
        return self.state in QUIET

    @property
    def lets_start(self) -> bool:
        """Whether work that was admitted may start: always but while it stands still; what drains has to."""
        return self.is_open or (self.state is BarrierState.CLOSING and not self.is_frozen)

    def advance(self, trigger: BarrierTrigger) -> None:
        """Move through the table."""
        self.state = move(BARRIER, self.state, trigger)

    def close(self, mode: PauseMode, now: float) -> None:
        """Begin to pause, or pause in another mode."""
        freezes = mode is PauseMode.KEEP and not self.is_frozen
        if self.is_open or freezes:
            self.closed_at = now
        if freezes:
            self.is_frozen = True
        self.advance(BarrierTrigger.PAUSE)

    def snapshot(self) -> BarrierSnapshot:
        """It, as data."""
        return BarrierSnapshot(self.state, self.is_frozen, self.closed_at)

    def restore(self, snapshot: BarrierSnapshot) -> None:
        """Stand as another one stood."""
        self.state, self.is_frozen, self.closed_at = snapshot.state, snapshot.is_frozen, snapshot.closed_at

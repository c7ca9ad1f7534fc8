"""A core that breaks, for tests of who drives one. It stands in front of a real one: a compiled core takes no patch."""

from __future__ import annotations

from collections.abc import Sequence

from podium.core.effects import Effect
from podium.core.events import Event
from podium.core.orchestrator import Orchestrator
from podium.errors import InternalError


class BrokenCore:
    """As `core`, but a step with an event of type `fatal` raises InternalError; every step does, unless it is given."""

    def __init__(self, core: Orchestrator, fatal: type[object] | None = None) -> None:
        self._core = core
        self._fatal = fatal

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        if self._fatal is None or any(isinstance(event, self._fatal) for event in events):
            raise InternalError("the planted fault")
        return self._core.step(events, now)

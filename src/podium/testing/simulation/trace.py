"""The trace of one world: every step of the engine and everything that was done to it, as bytes that can be compared.

It is an Observer. Nothing in a trace depends on real time, addresses, or the order of sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from podium.core.effects import Effect
from podium.core.events import Event
from podium.core.orchestrator import Orchestrator


class Trace:
    """A digest of all lines so far; with `keeps_lines` the lines too."""

    def __init__(self, *, keeps_lines: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._encoder = msgspec.json.Encoder()
        self.lines: list[str] | None = [] if keeps_lines else None
        self.steps = 0
        self.events = 0

    def __repr__(self) -> str:
        return f"<Trace {self.steps} steps, {self.digest}>"

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        return self._hash.hexdigest()

    def note(self, line: str) -> None:
        """Something happened around the engine."""
        self._add(line.encode())

    def on_start(self, core: Orchestrator) -> None:
        """Nothing is to be told."""

    def on_step(self, events: Sequence[Event], now: float, effects: Sequence[Effect]) -> None:
        """One line for each step that had anything in it."""
        if events or effects:
            self.steps += 1
            self.events += len(events)
            self._add(self._encoder.encode((now, events, effects)))

    def on_cost(self, events: int, seconds: float) -> None:
        """Real time has no place here."""

    def on_end(self) -> None:
        """Nothing is to be told."""

    def _add(self, line: bytes) -> None:
        self._hash.update(line)
        self._hash.update(b"\n")
        if self.lines is not None:
            self.lines.append(line.decode())

"""What everything in a world shares: its seed, its weather, and the truth about it.

The weather may change while a world runs: once it has had its trouble, it is calm, and must still work.
"""

from __future__ import annotations

from random import Random

import msgspec

from podium.testing.simulation.truth import Truth
from podium.testing.simulation.weather import Weather


class Surroundings:
    """The shared part of one world."""

    def __init__(self, seed: int, weather: Weather, truth: Truth) -> None:
        self.seed = seed
        self.weather = weather
        self.truth = truth

    def __repr__(self) -> str:
        return f"<Surroundings of seed {self.seed}>"

    def draw_for(self, name: str) -> Random:
        """A source of chance for one part, which does not depend on what other parts draw."""
        return Random(f"{self.seed} {name}")

    def calm_down(self) -> None:
        """Let nothing go wrong any more."""
        fields = {field: type(value)(0) for field, value in msgspec.structs.asdict(self.weather).items()}
        self.weather = msgspec.convert(fields, Weather)

"""What an action can reach: the engine, what surrounds it, and the stages behind it.

It only names things, so that kinds of actions need not know each other.
"""

from __future__ import annotations

from typing import NamedTuple

from podium.runtime.async_omni_engine import AsyncOmniEngine
from podium.testing.simulation.stages import SimulatedBackend
from podium.testing.simulation.surroundings import Surroundings


class Scene(NamedTuple):
    """One world, as actions see it."""

    engine: AsyncOmniEngine
    around: Surroundings
    backends: list[SimulatedBackend]

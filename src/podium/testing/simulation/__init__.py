"""One seed is one world: a whole engine over stages that go wrong, in time that passes when nothing is left to do.

`run_seed` and `run_seeds` are what tests and `podium simulate` call. It decides nothing about an engine; it only says
what it saw.
"""

from podium.testing.simulation.runner import Report, SeedReport, run_seed, run_seeds

__all__ = ["Report", "SeedReport", "run_seed", "run_seeds"]

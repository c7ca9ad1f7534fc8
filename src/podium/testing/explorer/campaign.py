"""Explores several worlds at once, each in a process of its own, and says what came of all of them.

The largest are begun first, so that no processor is left with a large one at the end.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from podium.testing.explorer.outside import World
from podium.testing.explorer.search import Exploration, explore


def explore_all(
    worlds: Sequence[World], *, max_states: int | None = None, processes: int | None = None
) -> Iterator[Exploration]:
    """What came of each world, in the order in which they are done; `processes` defaults to one for each processor."""
    count = min(len(worlds), processes or os.cpu_count() or 1)
    largest_first = sorted(worlds, key=lambda world: world.bound, reverse=True)
    if count == 1:
        yield from (explore(world, max_states=max_states) for world in largest_first)
        return
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = [pool.submit(_explore, world, max_states) for world in largest_first]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _explore(world: World, max_states: int | None) -> Exploration:
    return explore(world, max_states=max_states)

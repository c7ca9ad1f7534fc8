"""Every interleaving of events in the worlds of the explorer, on the real core: none violates the contract."""

from __future__ import annotations

import pytest

from podium.testing.explorer.outside import World
from podium.testing.explorer.search import explore
from podium.testing.explorer.traces import tell
from podium.testing.explorer.worlds import WORLDS

LARGEST_FIRST: list[World] = sorted(WORLDS, key=lambda world: world.bound, reverse=True)


@pytest.mark.parametrize("world", LARGEST_FIRST, ids=lambda world: world.name)
@pytest.mark.timeout(900)
@pytest.mark.rule(
    "ORCH-INV-003", "ORCH-INV-100", "ORCH-INV-101", "ORCH-INV-102", "ORCH-INV-103", "ORCH-INV-104", "ORCH-INV-106",
    "ORCH-INV-107", "ORCH-INV-108", "ORCH-INV-109", "ORCH-INV-110", "ORCH-INV-111", "ORCH-INV-115", "ORCH-INV-116",
    "ORCH-INV-118", "ORCH-INV-201", "ORCH-INV-202", "ORCH-INV-204", "ORCH-INV-206", "ORCH-INV-207", "ORCH-INV-208",
    "ORCH-INV-209", "ORCH-INV-210", "ORCH-INV-211", "ORCH-INV-213", "ORCH-INV-215", "ORCH-INV-216", "ORCH-INV-306",
)  # fmt: skip
def test_no_interleaving_violates_the_contract(world: World) -> None:
    found = explore(world)

    assert found.violation is None, "\n".join([found.violation.what, *tell(found.violation.steps)])
    assert found.exhausted
    assert found.states <= world.bound

"""Virtual time."""

from __future__ import annotations

import pytest

from podium.ports.environment import Clock
from podium.testing.virtual_clock import VirtualClock


def test_time_passes_only_when_told() -> None:
    clock: Clock = (virtual := VirtualClock(10))
    assert clock.now() == clock.now() == 10
    assert virtual.advance(2.5) == 12.5
    assert clock.now() == 12.5
    assert repr(virtual) == "<VirtualClock 12.5 s>"


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_never_goes_back(seconds: float) -> None:
    clock = VirtualClock(10)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(seconds)
    assert clock.now() == 10

"""What stages produce, and how pieces become a whole."""

from __future__ import annotations

import numpy as np
import pytest

from podium.payloads import Audio, Image, Text, join


def sound(*samples: float, rate: int = 10) -> Audio:
    return Audio(np.array(samples, dtype=np.float32), rate)


def test_nothing_makes_nothing() -> None:
    assert join([]) is None


def test_a_single_piece_is_its_own_whole() -> None:
    picture = Image(np.zeros((2, 2, 3), dtype=np.uint8))
    assert join([picture]) is picture


def test_texts_are_joined_with_their_tokens() -> None:
    assert join([Text("Hel", (1,)), Text("lo", (2, 3)), Text("")]) == Text("Hello", (1, 2, 3))


def test_sounds_are_joined() -> None:
    whole = join([sound(0.1, 0.2), sound(0.3)])
    assert isinstance(whole, Audio)
    assert whole.samples.tolist() == np.array([0.1, 0.2, 0.3], dtype=np.float32).tolist()
    assert whole.samples.dtype == np.float32
    assert whole.sample_rate == 10
    assert whole.duration_s == pytest.approx(0.3)


def test_sounds_of_different_rates_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"different sample rates: \[8, 16\] Hz"):
        join([sound(0.1, rate=16), sound(0.1, rate=8)])


@pytest.mark.parametrize("pieces", [[1, 2], [Text("a"), sound(0.1)], [Text("a"), None], [sound(0.1), "x"]])
def test_anything_else_becomes_a_list(pieces: list[object]) -> None:
    assert join(pieces) == pieces

"""The weights of a stage: settled in one version, or under way."""

from __future__ import annotations

import pytest

from podium.core.fence import Fence
from podium.core.identity import ReplicaKey
from podium.errors import InternalError

ONE, TWO = ReplicaKey("a", 0, 0), ReplicaKey("a", 1, 0)


def updating() -> Fence:
    fence = Fence()
    fence.begin(3)
    fence.note_sent(ONE)
    fence.note_updated(ONE)
    return fence


@pytest.mark.rule("ORCH-INV-238")
def test_an_update_ends_in_its_version() -> None:
    fence = Fence()
    assert fence.is_settled
    assert repr(fence) == "<Fence settled 0>"
    fence = updating()
    assert not fence.is_settled
    assert repr(fence) == "<Fence updating 0 to 3, 1 updated>"
    fence.commit()
    assert (fence.is_settled, fence.version, fence.updated, fence.touched) == (True, 3, {}, {})


@pytest.mark.rule("ORCH-INV-238")
def test_what_was_rolled_back_has_its_former_version() -> None:
    fence = updating()
    fence.fail()
    fence.roll_back()
    assert (fence.is_settled, fence.version, fence.target, fence.touched) == (True, 0, 0, {})


def test_a_second_change_counts_once_it_is_confirmed() -> None:
    fence = updating()
    fence.note_sent(ONE)
    assert ONE not in fence.updated
    assert ONE in fence.touched


def test_beginning_anew_needs_every_replica_again() -> None:
    fence = updating()
    fence.fail()
    fence.begin(4)
    assert (fence.target, fence.updated, list(fence.touched)) == (4, {}, [ONE])


def test_a_replica_that_is_gone_took_its_weights_along() -> None:
    fence = updating()
    fence.forget_replica(ONE)
    fence.forget_replica(TWO)
    assert (fence.updated, fence.touched) == ({}, {})


def test_another_one_can_stand_as_it_stands() -> None:
    fence, other = updating(), Fence()
    other.restore(fence.snapshot())
    assert other.snapshot() == fence.snapshot()


def test_what_is_broken_is_not_committed() -> None:
    fence = updating()
    fence.fail()
    with pytest.raises(InternalError, match="FenceState broken has no move for 'commit'"):
        fence.commit()

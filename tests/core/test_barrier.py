"""The barrier of a stage: its moves, and what they let happen."""

from __future__ import annotations

import pytest

from podium.core.barrier import Barrier
from podium.core.control import ControlCall, Step
from podium.core.events import ControlRequested
from podium.core.lifecycle import BARRIER, QUIET, SLEEPY, BarrierState, BarrierTrigger
from podium.core.operations import Pause, PauseMode
from podium.errors import InternalError


def test_it_is_open_at_first() -> None:
    barrier = Barrier()
    assert (barrier.is_open, barrier.is_quiet, barrier.lets_start) == (True, False, True)
    assert repr(barrier) == "<Barrier open>"


def test_repr_names_the_call_in_charge() -> None:
    barrier = Barrier()
    barrier.close(PauseMode.WAIT, 1.0)
    barrier.call = ControlCall(ControlRequested(7, Pause(PauseMode.WAIT), ("a",), 9.0), (Step.DRAIN,))
    assert repr(barrier) == "<Barrier closing, <ControlCall 7 Pause at call, 0 pending>>"


@pytest.mark.rule("ORCH-INV-232")
@pytest.mark.parametrize(
    ("mode", "lets_start"), [(PauseMode.ABORT, True), (PauseMode.WAIT, True), (PauseMode.KEEP, False)]
)
def test_what_drains_may_start_and_what_stands_still_may_not(mode: PauseMode, lets_start: bool) -> None:
    barrier = Barrier()
    barrier.close(mode, 1.0)
    assert barrier.lets_start is lets_start
    before = barrier.is_quiet
    barrier.advance(BarrierTrigger.QUIESCE)
    assert (before, barrier.is_quiet, barrier.lets_start) == (False, True, False)


def test_it_was_closed_when_it_was_first_closed_and_stays_frozen() -> None:
    barrier = Barrier()
    barrier.close(PauseMode.KEEP, 1.0)
    barrier.close(PauseMode.ABORT, 5.0)
    assert (barrier.closed_at, barrier.is_frozen) == (1.0, True)


def test_it_counts_from_when_it_was_frozen_if_it_was_closed_before() -> None:
    barrier = Barrier()
    barrier.close(PauseMode.WAIT, 1.0)
    barrier.close(PauseMode.KEEP, 5.0)
    barrier.close(PauseMode.KEEP, 9.0)
    assert (barrier.closed_at, barrier.is_frozen) == (5.0, True)


def test_another_one_can_stand_as_it_stands() -> None:
    barrier, other = Barrier(), Barrier()
    barrier.close(PauseMode.KEEP, 1.0)
    other.restore(barrier.snapshot())
    assert other.snapshot() == barrier.snapshot()


def test_what_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(InternalError, match="BarrierState open has no move for 'sleep'"):
        Barrier().advance(BarrierTrigger.SLEEP)


@pytest.mark.rule("ORCH-INV-233", "ORCH-INV-234", "ORCH-INV-236")
def test_the_table() -> None:
    """Only confirmations end what is under way; whatever has failed can be tried again, and undone."""
    confirmations = {one for one in BarrierTrigger if one.startswith("confirm")}
    for state, row in BARRIER.items():
        if state.endswith("ing") or state is BarrierState.FALLING_ASLEEP:
            assert set(row) & confirmations, f"{state} never ends"
        assert (BarrierState.OPEN in row.values()) == (state is BarrierState.OPENING)
    for state in SLEEPY:
        assert BARRIER[state].keys() >= {BarrierTrigger.SLEEP, BarrierTrigger.WAKE}
    for state in (BarrierState.CLOSING, BarrierState.QUIESCED):
        assert BARRIER[state].keys() >= {BarrierTrigger.PAUSE, BarrierTrigger.RESUME}
    assert SLEEPY < QUIET

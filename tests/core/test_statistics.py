"""The core's figures about itself."""

from __future__ import annotations

import pytest

from podium.core.lifecycle import GateState, ReplicaState
from podium.core.statistics import Counters, ReplicaStatistics, StageStatistics, Statistics


def stage(queued: int = 0, running: int = 0, buffered: int = 0, *states: ReplicaState) -> StageStatistics:
    replicas = tuple(
        ReplicaStatistics(slot, 0, state, running, 0, takes_work=state is ReplicaState.LIVE)
        for slot, state in enumerate(states)
    )
    return StageStatistics(queued, running, buffered, GateState.OPEN, replicas)


def statistics(
    *, requests: int = 0, abort_calls: int = 0, control_calls: int = 0, timers: int = 0, **stages: StageStatistics
) -> Statistics:
    return Statistics(
        requests=requests,
        held=0,
        aborting=0,
        abort_calls=abort_calls,
        control_calls=control_calls,
        timers=timers,
        remembered=5,
        longest_wait_s=0.0,
        stages=stages,
        counters=Counters(),
    )


def test_idle_with_no_entry_in_any_table() -> None:
    assert statistics(a=stage()).is_idle


@pytest.mark.parametrize(
    "busy",
    [
        statistics(requests=1),
        statistics(abort_calls=1),
        statistics(control_calls=1),
        statistics(timers=1),
        statistics(a=stage(queued=1)),
        statistics(a=stage(), b=stage(running=1)),
        statistics(a=stage(buffered=1)),
    ],
)
def test_not_idle_with_an_entry_in_one_table(busy: Statistics) -> None:
    assert not busy.is_idle


@pytest.mark.case("B044")
def test_a_stage_is_available_with_any_live_replica_whatever_their_order() -> None:
    live, draining, gone = ReplicaState.LIVE, ReplicaState.DRAINING, ReplicaState.GONE
    assert stage(0, 0, 0, draining, live).is_available
    assert stage(0, 0, 0, live, gone).is_available
    assert not stage(0, 0, 0, draining, gone).is_available
    assert not stage().is_available


def test_a_copy_of_the_counters_does_not_move() -> None:
    counters = Counters(submitted=3)
    copy = counters.copy()
    counters.submitted += 1
    assert copy == Counters(submitted=3)

"""The tables: complete, with no state that cannot be reached, and no way out of an end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

from podium.core.events import FinishReason
from podium.core.lifecycle import (
    AT_REPLICA,
    BEFORE_REPLICA,
    FORWARDING,
    GATE,
    JOBS,
    REPLICAS,
    REQUESTS,
    Forwarding,
    GateAction,
    GateState,
    JobState,
    JobTrigger,
    ReplicaState,
    RequestState,
    RequestTrigger,
    move,
)
from podium.errors import InternalError

AnyTable = Mapping[StrEnum, Mapping[StrEnum, StrEnum]]
TABLES = [(JOBS, JobState), (REQUESTS, RequestState), (REPLICAS, ReplicaState), (GATE, GateState)]
each_table = pytest.mark.parametrize(("table", "states"), TABLES, ids=["jobs", "requests", "replicas", "gate"])


@each_table
def test_every_state_has_a_row_and_can_be_reached(table: AnyTable, states: type[StrEnum]) -> None:
    assert set(table) == set(states)
    first = next(iter(table))
    reached = {first} | {target for row in table.values() for target in row.values()}
    assert reached == set(states)


@pytest.mark.rule("ORCH-INV-100")
def test_ends_have_no_way_out() -> None:
    assert {state for state, row in JOBS.items() if not row} == {
        JobState.FINISHED, JobState.STOPPED, JobState.FAILED, JobState.SKIPPED,
    }  # fmt: skip
    assert {state for state, row in REQUESTS.items() if not row} == {
        RequestState.COMPLETED, RequestState.ABORTED, RequestState.FAILED,
    }  # fmt: skip


def test_a_move_follows_the_table() -> None:
    assert move(JOBS, JobState.WAITING, JobTrigger.READY) is JobState.QUEUED


def test_a_move_that_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(InternalError, match="RequestState completed has no move for 'abort'"):
        move(REQUESTS, RequestState.COMPLETED, RequestTrigger.ABORT)


def test_a_credit_is_held_in_the_states_between_dispatch_and_end() -> None:
    over = {state for state, row in JOBS.items() if not row}
    assert set(JobState) - AT_REPLICA - BEFORE_REPLICA == over
    assert not AT_REPLICA & BEFORE_REPLICA


@pytest.mark.rule("ORCH-INV-108")
def test_what_a_finish_means_downstream() -> None:
    assert set(FORWARDING) == set(FinishReason)
    assert {reason for reason, meaning in FORWARDING.items() if meaning is Forwarding.FORWARD} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }


def test_a_closed_gate_stays_closed() -> None:
    assert set(GATE[GateState.CLOSED].values()) == {GateState.CLOSED}
    assert all(set(row) == set(GateAction) for row in GATE.values())

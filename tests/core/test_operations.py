"""Control operations are data: they say what is wanted, and survive being written and read."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.operations import (
    BARRIER_METHODS,
    BeginUpdate,
    CallMethod,
    CommitUpdate,
    HoldPolicy,
    Operation,
    Pause,
    PauseMode,
    Resume,
    RollBackUpdate,
    Sleep,
    UpdateWeights,
    WakeUp,
)

EVERY_OPERATION: list[Operation] = [
    CallMethod("reset", {"x": 1}),
    Pause(PauseMode.KEEP, HoldPolicy.REFUSE),
    Resume(),
    Sleep(1, {"a": ("kv", "weights")}, PauseMode.ABORT),
    WakeUp({"a": ("kv",)}),
    BeginUpdate(3),
    UpdateWeights({"method": "load"}),
    CommitUpdate(),
    RollBackUpdate({"method": "restore"}),
]


@pytest.mark.parametrize("operation", EVERY_OPERATION, ids=lambda one: type(one).__name__)
def test_an_operation_can_be_written_and_read(operation: Operation) -> None:
    assert msgspec.json.decode(msgspec.json.encode(operation), type=Operation) == operation


def test_every_operation_is_tried() -> None:
    assert {type(operation) for operation in EVERY_OPERATION} == set(Operation.__args__)


def test_running_work_is_kept_unless_somebody_says_otherwise() -> None:
    assert (Sleep(1, {}).mode, Sleep(1, {}).held) == (PauseMode.WAIT, HoldPolicy.HOLD)
    assert Pause(PauseMode.WAIT).held is HoldPolicy.HOLD


def test_what_moves_a_barrier_at_a_replica() -> None:
    assert {"pause", "resume", "sleep", "wake_up"} == BARRIER_METHODS

"""Operations are data: they survive being written to a journal and read again, and are told apart by their names."""

from __future__ import annotations

from typing import get_args

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
    CallMethod("reset_prefix_cache", {"x": 1}),
    Pause(PauseMode.KEEP, HoldPolicy.REFUSE),
    Resume(),
    Sleep(1, {"a": ("cache", "weights")}, PauseMode.ABORT, HoldPolicy.REFUSE),
    WakeUp({"a": ("cache",)}),
    BeginUpdate(3),
    UpdateWeights({"method": "load"}),
    CommitUpdate(),
    RollBackUpdate({"method": "restore"}),
    RollBackUpdate(),
]


@pytest.mark.parametrize("operation", EVERY_OPERATION, ids=repr)
def test_it_survives_a_journal(operation: Operation) -> None:
    text = msgspec.json.encode(operation)
    assert msgspec.json.decode(text, type=Operation) == operation


def test_the_list_has_every_operation() -> None:
    assert {type(operation) for operation in EVERY_OPERATION} == set(get_args(Operation))


def test_work_is_held_and_drains_unless_somebody_says_otherwise() -> None:
    assert Pause(PauseMode.ABORT).held is HoldPolicy.HOLD
    sleep = Sleep(1, {})
    assert (sleep.mode, sleep.held) == (PauseMode.WAIT, HoldPolicy.HOLD)
    assert RollBackUpdate().arguments is None


def test_the_core_makes_the_arguments_of_what_moves_a_barrier() -> None:
    assert {"pause", "resume", "sleep", "wake_up"} == BARRIER_METHODS

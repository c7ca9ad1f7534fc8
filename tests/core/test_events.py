"""Events are data: they survive being written to a journal and read again."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.events import (
    AbortRequested,
    AckLevel,
    CallReturned,
    ControlRequested,
    Event,
    Finish,
    FinishReason,
    InputAppended,
    InputRejected,
    JobOutput,
    ReplicaDrained,
    ReplicaJoined,
    ReplicaLost,
    ReplicaReported,
    RequestCancelled,
    RequestSubmitted,
    ShutdownRequested,
    StageFailed,
    StageProduced,
    StageStarted,
    StageStopped,
    StopFailed,
)
from podium.core.identity import JobKey, ReplicaKey
from podium.core.operations import CallMethod, Pause, PauseMode, RollBackUpdate, Sleep
from tests.support.core_world import an_error

JOB, REPLICA = JobKey("r", "a", "main", 1), ReplicaKey("a", 0, 0)

EVERY_EVENT: list[Event] = [
    RequestSubmitted(ticket=1, request_id="r", prompt="hello", params={"a": "x"}, outputs=("text",), deadline=3.5),
    InputAppended(1, "r", ("more",), last=True),
    AbortRequested(1, ("r",), AckLevel.STOPPED, 9.0),
    RequestCancelled(1, "r"),
    StageStarted(REPLICA, JOB),
    StageProduced(REPLICA, (JobOutput(JOB, 3, ("x", "y"), Finish(FinishReason.LENGTH, {"tokens": 2})),)),
    StageStopped(REPLICA, JOB, "partial"),
    StopFailed(REPLICA, JOB, an_error()),
    StageFailed(REPLICA, JOB, an_error()),
    InputRejected(REPLICA, JOB, an_error()),
    ReplicaJoined(REPLICA),
    ReplicaDrained(REPLICA),
    ReplicaLost(REPLICA, an_error()),
    ReplicaReported(REPLICA, 7, member=1),
    ControlRequested(1, CallMethod("reset", {"x": 1}), ("a",), 9.0),
    ControlRequested(2, Pause(PauseMode.ABORT), ("a",), 9.0),
    ControlRequested(3, Sleep(1, {"a": ("weights",)}), ("a",), 9.0),
    ControlRequested(4, RollBackUpdate(None), ("a",), 9.0),
    CallReturned(REPLICA, 7, "value", an_error()),
    ShutdownRequested(an_error()),
]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_an_event_can_be_written_and_read(event: Event) -> None:
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_every_event_is_tried() -> None:
    assert {type(event) for event in EVERY_EVENT} == set(Event.__args__)


def test_a_request_asks_for_everything_by_default() -> None:
    event = RequestSubmitted(ticket=1, request_id="r")
    assert (event.outputs, event.priority, event.deadline, event.input_open) == (None, 0, None, False)

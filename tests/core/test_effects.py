"""Effects are data: they survive being written to a journal and read again."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.effects import (
    AbortRecord,
    AbortStatus,
    CallReplica,
    CloseReplica,
    ControlRecord,
    Effect,
    EmitOutput,
    EndInput,
    EndRequest,
    FeedJob,
    Outcome,
    RefuseRequest,
    ReleasePayloads,
    ReplyAbort,
    ReplyControl,
    SourceInput,
    StageTimings,
    StartJob,
    StopJob,
)
from podium.core.events import Finish, FinishReason
from podium.core.identity import JobKey, ReplicaKey
from tests.support.core_world import an_error

JOB, REPLICA = JobKey("r", "a", "main", 1), ReplicaKey("a", 0, 0)

EVERY_EFFECT: list[Effect] = [
    StartJob(
        replica=REPLICA, job=JOB, prompt="p", params={"seed": 1}, input_open=True, priority=2, deadline=1.5,
        inputs=(SourceInput("b", 0, ("x",), FinishReason.STOP),),
    ),
    FeedJob(REPLICA, JOB, "b", 1, ("y",)),
    EndInput(REPLICA, JOB, "b", FinishReason.LENGTH),
    StopJob(REPLICA, JOB),
    CloseReplica(REPLICA, an_error()),
    EmitOutput(1, "a", 0, ("x",), 2.5, 0, 0, Finish(FinishReason.STOP), "partial", StageTimings(0.0, 1.0), True),
    EndRequest(1, "r", Outcome.FAILED, 2.5, an_error(), {"a": StageTimings(0.0, 0.5, 1.0, 1.5, 2.0)}),
    RefuseRequest(1, "r", an_error()),
    ReplyAbort(1, (AbortRecord("r", AbortStatus.ABORTED, {"a": "partial"}, ("a",), an_error()),)),
    CallReplica(REPLICA, 3, "reset", {"x": 1}),
    ReplyControl(1, (ControlRecord("a", 0, ok=False, value="x", error=an_error()),), an_error()),
    ReleasePayloads(("x",)),
]  # fmt: skip


@pytest.mark.parametrize("effect", EVERY_EFFECT, ids=lambda effect: type(effect).__name__)
def test_an_effect_can_be_written_and_read(effect: Effect) -> None:
    assert msgspec.json.decode(msgspec.json.encode(effect), type=Effect) == effect


def test_every_effect_is_tried() -> None:
    assert {type(effect) for effect in EVERY_EFFECT} == set(Effect.__args__)

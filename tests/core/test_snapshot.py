"""What an idle core hands on: enough for another core to answer the same to whatever comes."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.effects import AbortStatus, EndRequest, ReplyAbort, StartJob
from podium.core.events import (
    AbortRequested,
    AckLevel,
    Event,
    Finish,
    FinishReason,
    GateAction,
    GateMoved,
    JobOutput,
    ReplicaJoined,
    ReplicaLost,
    RequestSubmitted,
    StageProduced,
    StageStarted,
)
from podium.core.graph import Graph
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import GateState
from podium.core.orchestrator import Orchestrator
from podium.core.snapshot import Snapshot
from podium.errors import InternalError
from tests.support.core_world import a_loss, make_stage

GRAPH = Graph([make_stage("solo", output="text")])
FIRST, SECOND = ReplicaKey("solo", 0, 0), ReplicaKey("solo", 1, 4)


def serve_one(core: Orchestrator, request_id: str, at: float) -> StartJob:
    """Let a core serve one request from begin to end."""
    (start,) = core.step([RequestSubmitted(ticket=1, request_id=request_id)], at)
    assert isinstance(start, StartJob)
    finish = JobOutput(start.job, 0, ("hello",), Finish(FinishReason.STOP))
    effects = core.step([StageStarted(start.replica, start.job), StageProduced(start.replica, (finish,))], at)
    assert isinstance(effects[-1], EndRequest)
    return start


def a_used_core() -> Orchestrator:
    core = Orchestrator(GRAPH)
    core.step([ReplicaJoined(FIRST), ReplicaJoined(SECOND)], 0.0)
    serve_one(core, "r1", 1.0)
    core.step([ReplicaLost(FIRST, a_loss())], 2.0)
    return core


def test_an_empty_core_has_an_empty_snapshot() -> None:
    assert Orchestrator(GRAPH).snapshot() == Snapshot(gate={"solo": GateState.OPEN})


def test_it_has_what_the_core_knows() -> None:
    assert a_used_core().snapshot() == Snapshot(
        replicas=(SECOND,),
        newest=(FIRST, SECOND),
        gate={"solo": GateState.OPEN},
        remembered=("r1",),
        serial=1,
        attempt=1,
    )


def test_only_an_idle_core_has_one() -> None:
    core = a_used_core()
    core.step([RequestSubmitted(ticket=2, request_id="r2")], 3.0)
    assert not core.is_idle
    with pytest.raises(InternalError, match="only an idle core has a snapshot"):
        core.snapshot()


def test_it_survives_being_written() -> None:
    snapshot = a_used_core().snapshot()
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


def test_another_core_goes_on_as_the_first_would() -> None:
    original = a_used_core()
    other = Orchestrator(GRAPH, snapshot=original.snapshot())
    events: list[Event] = [
        ReplicaJoined(FIRST),  # a generation that the slot has seen: it must not come back
        RequestSubmitted(ticket=3, request_id="r3", prompt="p"),
        AbortRequested(9, ("r1", "nobody"), AckLevel.STOPPED, 99.0),
        GateMoved(GateAction.HOLD),
        RequestSubmitted(ticket=4, request_id="r4"),
    ]
    for number, event in enumerate(events):
        assert other.step([event], 10.0 + number) == original.step([event], 10.0 + number), event
    assert other.next_deadline() == original.next_deadline()


def test_numbers_go_on_and_ended_ids_are_remembered() -> None:
    other = Orchestrator(GRAPH, snapshot=a_used_core().snapshot())
    (reply,) = other.step([AbortRequested(1, ("r1",), AckLevel.STOPPED, 99.0)], 5.0)
    assert isinstance(reply, ReplyAbort)
    assert reply.records[0].status is AbortStatus.ALREADY_ENDED
    assert serve_one(other, "r1", 6.0).job.attempt == 2


def test_the_gate_stands_as_it_stood() -> None:
    core = Orchestrator(GRAPH)
    core.step([GateMoved(GateAction.REFUSE)], 0.0)
    other = Orchestrator(GRAPH, snapshot=core.snapshot())
    assert other.snapshot().gate == {"solo": GateState.REFUSING}

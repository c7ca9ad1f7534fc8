"""Rules 300-399, on the core: start, shutdown, extension."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.effects import EndRequest, ReplyAbort, StartJob
from podium.core.events import JobOutput, ShutdownRequested, StageProduced
from podium.core.graph import Graph, Limits, Modality
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import GateAction
from podium.errors import ConfigurationError, ErrorKind, ErrorRecord, Scope
from tests.support.core_world import Replicas, World, complete, lines, make_stage, voice

STOPPED = ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message="the engine is shut down")
DEAD = ErrorRecord(kind=ErrorKind.ENGINE_DEAD, scope=Scope.ENGINE, message="the engine died")


@pytest.mark.rule("ORCH-INV-300")
@pytest.mark.case("B049")
def test_an_impossible_pipeline_is_refused_with_all_its_faults() -> None:
    tokens = msgspec.structs.replace(make_stage("e", output="tokens"), produces=Modality.TOKENS)
    with pytest.raises(ConfigurationError) as caught:
        Graph(
            [
                make_stage("a", complete("ghost"), output="out"),
                make_stage("b", limits=Limits(max_queued=-1)),
                tokens,
                make_stage("e", output="out"),
            ]
        )
    assert [f"{fault.where}: {fault.problem}" for fault in caught.value.faults] == [
        "stage 'e': the name is used twice",
        "stage 'e', output: 'out' is already the output of stage 'a'",
        "stage 'a', sources: unknown source 'ghost'",
        "stage 'b', limits.max_queued: -1 makes no sense",
        "stage 'e', output: tokens cannot be delivered to a client",
        "stage 'b': no output needs it, so it would never run",
    ]
    assert all(fault.remedy for fault in caught.value.faults)


@pytest.mark.rule("ORCH-INV-302", "ORCH-INV-304")
@pytest.mark.parametrize("error", [STOPPED, DEAD], ids=["shutdown", "fatal error"])
@pytest.mark.parametrize("point", range(0, 40, 5))
def test_whenever_the_engine_goes_down_every_request_and_every_waiter_hears_of_it_once(
    point: int, error: ErrorRecord
) -> None:
    world = World(*voice(limits=Limits(max_inflight=2)))
    for number in range(6):
        world.submit(f"r{number}")
    replicas = Replicas(world, seed=point)
    replicas.run(events=point)
    world.gate(GateAction.HOLD)
    world.submit("held")
    world.abort("r1", "r2", "r3")
    live = world.core.statistics().requests
    effects = world.tell(ShutdownRequested(error))
    ended = [one for one in effects if isinstance(one, EndRequest)]
    assert len(ended) == live
    assert {one.error.message for one in ended if one.error is not None} == {error.message}
    assert len([one for one in world.effects if isinstance(one, ReplyAbort)]) == 1
    assert world.core.statistics().requests == world.core.statistics().abort_calls == 0
    assert world.tell(ShutdownRequested(error)) == []
    assert lines(world.submit("late")) == ["refuse late engine_stopped"]
    replicas.run()
    assert world.core.statistics().is_idle


@pytest.mark.rule("ORCH-INV-302")
def test_after_shutdown_nothing_opens_the_gate_again() -> None:
    world = World(*voice())
    world.tell(ShutdownRequested(STOPPED))
    world.gate(GateAction.OPEN)
    world.gate(GateAction.HOLD, "a")
    assert {stage.gate for stage in world.core.statistics().stages.values()} == {"closed"}


@pytest.mark.rule("ORCH-INV-305")
@pytest.mark.case("B044")
def test_the_core_says_which_stage_has_no_live_replica() -> None:
    world = World(*voice(), replicas=2)
    available = []

    def look() -> None:
        available.append({name: stage.is_available for name, stage in world.core.statistics().stages.items()})

    look()
    world.lose("b", 0)
    look()
    world.drain("b", 1)
    look()
    world.join("b", 0, 1)
    look()
    assert available == [
        {"a": True, "b": True},
        {"a": True, "b": True},
        {"a": True, "b": False},
        {"a": True, "b": True},
    ]


@pytest.mark.rule("ORCH-INV-306")
@pytest.mark.case("B042", "B097")
def test_nothing_of_a_former_generation_matches() -> None:
    world = World(make_stage("a", output="out"))
    world.submit()
    former = world.at("a")
    world.lose("a")
    world.join("a", 0, 1)
    world.submit("s")
    assert world.at("a", "s").replica == ReplicaKey("a", 0, 1)
    late = StageProduced(former.replica, (JobOutput(former.job, 0, ("old",)),))
    assert lines(world.tell(late)) == ["release old"]
    assert world.lose("a", 0, 0) == []
    assert world.join("a", 0, 0) == []
    Replicas(world).run()
    assert [one.job.request for one in world.effects if isinstance(one, StartJob)] == ["r", "s"]
    assert world.emitted("s") == ["s.a.0", "s.a.1"]

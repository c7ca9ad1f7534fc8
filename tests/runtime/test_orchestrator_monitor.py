"""Health is measured: alive when the loop answers, ready when each stage has a replica that takes work."""

from __future__ import annotations

import pytest

from podium.core.events import ReplicaLost
from podium.core.graph import Graph
from podium.core.identity import ReplicaKey
from podium.core.orchestrator import Orchestrator
from podium.core.statistics import Statistics
from podium.errors import ErrorKind, ErrorRecord, Scope
from podium.runtime.clock import MonotonicClock
from podium.runtime.host import DEAD, EngineHost, HostState
from podium.runtime.orchestrator_monitor import Health, check_health, judge
from podium.runtime.outlet import CallerOutlet
from podium.runtime.replica_slot import SlotPhase, SlotStatistics
from podium.runtime.rpc_result_router import RpcResultRouter
from tests.support.core_world import World, a_loss, make_stage, streaming

GRAPH = Graph([make_stage("a", output="text"), make_stage("b", streaming("a"), output="speech")])


def host(state: HostState) -> EngineHost:
    host = EngineHost(
        Orchestrator(GRAPH),
        [],
        CallerOutlet(RpcResultRouter(), RpcResultRouter()),
        MonotonicClock(),
        [],
        lambda *_: None,
    )
    host.state = state
    return host


def statistics(*lost: tuple[str, int]) -> Statistics:
    world = World(*GRAPH.stages.values(), replicas=2)
    world.tell(*(ReplicaLost(ReplicaKey(stage, slot, 0), a_loss()) for stage, slot in lost))
    return world.core.statistics()


@pytest.mark.rule("ORCH-INV-305")
@pytest.mark.case("B044")
def test_ready_means_that_each_stage_has_a_live_replica() -> None:
    assert judge(statistics()) == Health(is_live=True, is_ready=True)
    assert judge(statistics(("a", 0))).is_ready, "[dead, alive] is ready"
    assert judge(statistics(("a", 1), ("b", 0))).is_ready, "so is [alive, dead]"


@pytest.mark.rule("ORCH-INV-305")
@pytest.mark.case("B044")
def test_the_answer_names_the_stages_at_fault() -> None:
    one = judge(statistics(("b", 0), ("b", 1)))
    assert one == Health(is_live=True, is_ready=False, reason="no live replica of stage 'b'", unavailable_stages=("b",))
    both = judge(statistics(("b", 0), ("b", 1), ("a", 1), ("a", 0)))
    assert both.unavailable_stages == ("a", "b")
    assert both.reason == "no live replica of stage 'a', 'b'"


@pytest.mark.rule("ORCH-INV-305")
def test_the_answer_names_what_comes_back() -> None:
    slots = (
        SlotStatistics("a", 0, 0, SlotPhase.SERVING),
        SlotStatistics("a", 1, 1, SlotPhase.STARTING, is_coming=True),
        SlotStatistics("b", 0, 1, SlotPhase.STARTING, is_coming=True, failure="stage 'b' did not start: no memory"),
        SlotStatistics("b", 1, 0, SlotPhase.CLOSING),
    )
    health = judge(statistics(("a", 1), ("b", 0), ("b", 1)), slots)
    assert health.reason == (
        "no live replica of stage 'b' (replica 0 of stage 'b' is starting again, after this: "
        "stage 'b' did not start: no memory)"
    )
    assert health.restarting_stages == ("a", "b")
    assert judge(statistics(("a", 1)), slots) == Health(is_live=True, is_ready=True, restarting_stages=("a", "b"))


@pytest.mark.rule("ORCH-INV-305")
@pytest.mark.parametrize("state", [state for state in HostState if state is not HostState.SERVING])
async def test_an_engine_that_does_not_serve_is_not_live(state: HostState) -> None:
    async def read() -> Statistics:
        raise AssertionError("there is nobody to ask")

    health = await check_health(host(state), read)
    assert health == Health(is_live=False, is_ready=False, reason=f"the engine is {state}")


@pytest.mark.rule("ORCH-INV-305")
async def test_a_loop_that_answers_is_judged() -> None:
    async def read() -> Statistics:
        return statistics()

    assert (await check_health(host(HostState.SERVING), read)).is_ready


SILENCE = ErrorRecord(kind=ErrorKind.WAIT_TIMEOUT, scope=Scope.ENGINE, message="has not answered for 2 s")


@pytest.mark.rule("ORCH-INV-203", "ORCH-INV-305")
@pytest.mark.parametrize("error", [SILENCE, DEAD])
async def test_a_loop_that_does_not_answer_is_not_live(error: ErrorRecord) -> None:
    async def read() -> Statistics:
        raise error.to_exception()

    health = await check_health(host(HostState.SERVING), read)
    assert health == Health(is_live=False, is_ready=False, reason=error.message)

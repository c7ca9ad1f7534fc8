"""The tables of the core, by themselves."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.admission import EngineLimits
from podium.core.control import ControlCall, Step
from podium.core.effects import ReleasePayloads
from podium.core.events import ControlRequested, JobOutput, RequestSubmitted
from podium.core.graph import Balance, Graph
from podium.core.identity import JobKey, ReplicaKey
from podium.core.lifecycle import GateState, ReplicaState, ReplicaTrigger
from podium.core.operations import CallMethod, PauseMode
from podium.core.records import Request, Wait
from podium.core.state import CoreState
from podium.core.statistics import Counters, ReplicaStatistics, StageStatistics
from podium.errors import InternalError
from tests.support.core_world import voice


@pytest.fixture
def state() -> CoreState:
    state = CoreState(Graph(voice()), EngineLimits(max_remembered=2))
    state.pools["a"].try_join(ReplicaKey("a", 0, 0))
    return state


def add_request(state: CoreState, request_id: str = "r", at: float = 0.0) -> Request:
    event = RequestSubmitted(ticket=1, request_id=request_id)
    request = Request(event, state.planner.plan(None), state.next_serial(), at)
    state.requests[request_id] = request
    return request


def test_repr(state: CoreState) -> None:
    add_request(state)
    assert repr(state) == "<CoreState 1 requests, 0 timers>"


def test_numbers_are_never_used_again(state: CoreState) -> None:
    assert [state.next_serial(), state.next_serial()] == [1, 2]
    assert [state.next_attempt(), state.next_attempt()] == [1, 2]


def test_pools_and_replicas_are_found_by_key(state: CoreState) -> None:
    assert state.pool_of(add_request(state).jobs[1]) is state.pools["b"]
    assert state.find_replica(ReplicaKey("a", 0, 0)) is state.pools["a"].replicas[0]
    assert state.find_replica(ReplicaKey("a", 0, 1)) is None
    assert state.find_replica(ReplicaKey("nobody", 0, 0)) is None


def test_a_pool_is_served_once_however_often_it_is_asked_for(state: CoreState) -> None:
    state.serve(state.pools["a"])
    state.serve(state.pools["a"])
    assert list(state.pools_to_serve) == ["a"]


def test_releasing_nothing_says_nothing(state: CoreState) -> None:
    state.release([])
    assert state.effects == []
    state.release(["x", "y"])
    assert state.effects == [ReleasePayloads(("x", "y"))]


@pytest.mark.rule("ORCH-INV-110")
def test_what_is_dropped_is_counted_and_released(state: CoreState) -> None:
    state.drop(())
    state.drop(("x",))
    assert state.counters.dropped == 2
    assert state.effects == [ReleasePayloads(("x",))]


def test_a_job_waits_for_one_thing(state: CoreState) -> None:
    state.now = 10.0
    job = add_request(state).jobs[0]
    state.wait(job, Wait.DISPATCH, 5.0)
    assert (job.wait, job.due, state.deadlines.next_due()) == (Wait.DISPATCH, 15.0, 15.0)
    state.end_wait(job)
    assert job.wait is Wait.NOTHING
    assert state.deadlines.live == 0


def test_only_so_many_ended_requests_are_remembered(state: CoreState) -> None:
    for request_id in ("a", "b", "a", "c"):
        state.remember(request_id)
    assert list(state.remembered) == ["a", "c"]


def test_statistics_of_an_idle_core(state: CoreState) -> None:
    statistics = state.statistics()
    assert statistics.is_idle
    assert state.is_idle
    assert statistics.longest_wait_s == 0.0
    assert statistics.stages == {
        "a": StageStatistics(
            0, 0, 0, GateState.OPEN, (ReplicaStatistics(0, 0, ReplicaState.LIVE, 0, 0, takes_work=True),)
        ),
        "b": StageStatistics(0, 0, 0, GateState.OPEN, ()),
    }
    assert statistics.counters == Counters()


@pytest.mark.rule("ORCH-INV-213")
def test_statistics_count_what_is_buffered_queued_and_running(state: CoreState) -> None:
    first, second = add_request(state, "r", at=1.0), add_request(state, "s", at=4.0)
    state.now = 9.0
    first.jobs[1].inputs["a"].unsent += ["x", "y"]
    key = JobKey("r", "a", "main", 1)
    first.jobs[0].order.accept(JobOutput(key, 5, ("early",)))
    state.pools["a"].replicas[0].jobs[key] = first.jobs[0]
    state.pools["b"].enqueue(second.jobs[1])
    statistics = state.statistics()
    assert statistics.longest_wait_s == 8.0
    assert (statistics.requests, statistics.held, statistics.aborting) == (2, 0, 0)
    assert {name: (one.queued, one.running, one.buffered) for name, one in statistics.stages.items()} == {
        "a": (0, 1, 1),
        "b": (1, 0, 2),
    }
    assert not statistics.is_idle


def test_an_idle_core_can_be_restored(state: CoreState) -> None:
    state.remember("r")
    state.next_serial()
    state.next_attempt()
    state.pools["b"].note_generation(ReplicaKey("b", 0, 3))
    state.pools["a"].replicas[0].note_load(1, 5)
    state.pools["a"].balancer.choose(list(state.pools["a"].replicas.values()), 1)
    other = CoreState(Graph(voice()), EngineLimits())
    other.restore(state.snapshot())
    assert other.snapshot() == state.snapshot()
    assert other.pools["b"].try_join(ReplicaKey("b", 0, 3)) is None
    assert other.next_attempt() == 2
    assert other.pools["a"].replicas[0].reported == 5


def test_only_an_idle_core_has_a_snapshot(state: CoreState) -> None:
    job = add_request(state).jobs[0]
    del state.requests["r"]
    assert state.snapshot().serial == 1
    state.pools["a"].replicas[0].jobs[JobKey("r", "a", "main", 1)] = job
    with pytest.raises(InternalError, match="only an idle core has a snapshot"):
        state.snapshot()


def test_what_is_drawn_goes_on_after_a_restoration() -> None:
    stages = [msgspec.structs.replace(stage, balance=Balance.RANDOM) for stage in voice()]
    state, other = CoreState(Graph(stages), EngineLimits(seed=7)), CoreState(Graph(stages), EngineLimits(seed=8))
    assert state.snapshot().balances != other.snapshot().balances
    other.restore(state.snapshot())
    assert state.snapshot().balances == other.snapshot().balances


def test_a_job_waits_in_vain_for_a_stage_that_stands_still(state: CoreState) -> None:
    first, second = add_request(state).jobs
    state.pools["b"].barrier.close(PauseMode.KEEP, 0.0)
    assert state.standing_still(first) is None
    assert state.standing_still(second) is state.pools["b"]
    first.wait = Wait.BUNDLE
    assert state.standing_still(first) is state.pools["b"]


@pytest.mark.rule("ORCH-INV-306")
def test_what_is_to_come_back_is_awaited_after_a_restoration(state: CoreState) -> None:
    pool, successor = state.pools["a"], ReplicaKey("a", 0, 1)
    replica = pool.replicas[0]
    pool.drain(replica, successor)
    pool.remove(replica, ReplicaTrigger.LEAVE)
    other = CoreState(Graph(voice()), EngineLimits())
    other.restore(state.snapshot())
    assert other.pools["a"].returning == {0: successor}


def test_calls_have_numbers_of_their_own(state: CoreState) -> None:
    assert [state.next_call(), state.next_call()] == [1, 2]


def test_who_is_gone_is_noted_for_those_who_wait_for_an_answer(state: CoreState) -> None:
    key = ReplicaKey("a", 0, 0)
    state.note_gone(key, None)
    assert state.gone == []
    event = ControlRequested(1, CallMethod("reset"), ("a",), 9.0)
    state.control_calls[1] = ControlCall(event, (Step.CALL,))
    state.note_gone(key, None)
    assert state.gone == [(key, None)]

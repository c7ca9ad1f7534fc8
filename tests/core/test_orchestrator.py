"""The core's front: admission, aborts, matching of events, replicas, the gate, time."""

from __future__ import annotations

import pytest

from podium.core.admission import EngineLimits
from podium.core.deadlines import Timer
from podium.core.effects import AbortRecord, AbortStatus, RefuseRequest, ReplyAbort
from podium.core.events import (
    AckLevel,
    FinishReason,
    InputAppended,
    InputRejected,
    JobOutput,
    ReplicaJoined,
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
from podium.core.graph import EdgeMode, Graph, Limits
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import GateAction
from podium.core.operations import CallMethod, Resume
from podium.core.orchestrator import Orchestrator
from podium.errors import ErrorKind, ErrorRecord, InternalError, Scope
from tests.support.core_world import (
    World,
    a_loss,
    an_error,
    chain,
    complete,
    guided,
    lines,
    make_stage,
    on_label,
    voice,
)

LIMITS = Limits(
    max_inflight=1,
    max_queued=2,
    queue_timeout_s=8.0,
    dispatch_timeout_s=3.0,
    first_output_timeout_s=5.0,
    chunk_timeout_s=4.0,
    stop_timeout_s=2.0,
    stuck_timeout_s=6.0,
)


def single(*, replicas: int = 1, limits: EngineLimits | None = None) -> World:
    return World(make_stage("a", output="out", limits=LIMITS), replicas=replicas, limits=limits)


def refusal(world: World) -> ErrorRecord:
    """Why the newest request was refused."""
    effect = world.effects[-1]
    assert isinstance(effect, RefuseRequest)
    assert effect.error.request_id == effect.request_id
    return effect.error


def failure(world: World, request_id: str = "r") -> ErrorRecord:
    """Why a request failed."""
    (end,) = world.terminals(request_id)
    assert end.error is not None
    assert end.error.request_id == request_id
    return end.error


class TestSteps:
    def test_repr(self) -> None:
        assert repr(single().core) == "<Orchestrator <CoreState 0 requests, 0 timers>>"

    def test_it_knows_its_graph_and_its_limits(self) -> None:
        graph = Graph(voice())
        assert Orchestrator(graph).graph is graph
        assert Orchestrator(graph).limits == EngineLimits()

    def test_another_core_can_go_on_where_it_is_idle(self) -> None:
        world = single()
        world.submit()
        assert not world.core.is_idle
        world.finish("a")
        other = Orchestrator(world.core.graph, world.core.limits, world.core.snapshot())
        assert other.is_idle
        event = RequestSubmitted(ticket=2, request_id="s")
        assert other.step([event], 1.0) == world.core.step([event], 1.0)

    def test_handling_leaves_deadlines_alone(self) -> None:
        world = single()
        world.submit()
        started = StageStarted(world.at("a").replica, world.at("a").job)
        assert world.core.handle(started, 100.0) == []
        assert world.core.next_deadline() == 105.0
        assert lines(world.core.expire(105.0)) == ["stop r/a", "end r failed wait_timeout"]

    def test_an_event_comes_before_a_deadline_of_the_same_moment(self) -> None:
        world = single()
        world.submit(deadline=1.0)
        world.now = 1.0
        assert lines(world.finish("a", "x")) == ["emit a@0=x stop last", "end r completed"]

    @pytest.mark.rule("ORCH-INV-117")
    def test_a_batch_has_the_effects_of_its_events_one_by_one(self) -> None:
        one_by_one, batched = single(), single()
        for world in (one_by_one, batched):
            world.submit("r")
            world.submit("s")
        start = one_by_one.at("a")
        events = (
            StageProduced(start.replica, (JobOutput(start.job, 0, ("x",)),)),
            RequestCancelled(one_by_one.tickets["r"], "r"),
            StageStopped(start.replica, start.job),
        )
        assert batched.tell(*events) == [effect for event in events for effect in one_by_one.tell(event)]

    def test_when_something_is_due_next(self) -> None:
        world = single()
        assert world.core.next_deadline() is None
        world.submit()
        assert world.core.next_deadline() == 3.0
        world.finish("a")
        assert world.core.next_deadline() is None

    def test_a_timer_that_nobody_owns_is_a_bug(self) -> None:
        core = single().core
        core._state.deadlines.set(Timer(), 1.0)
        with pytest.raises(InternalError, match="nobody owns"):
            core.expire(1.0)


class TestAdmission:
    @pytest.mark.rule("ORCH-INV-107")
    def test_an_output_that_there_is_not(self) -> None:
        world = single()
        assert lines(world.submit(outputs=("video",), prompt="p")) == ["release p", "refuse r invalid_request"]
        assert refusal(world).message == "outputs: this pipeline has no output 'video'; ask for some of: out"
        assert refusal(world).status == 400

    @pytest.mark.rule("ORCH-INV-102")
    def test_an_id_that_is_live(self) -> None:
        world = single()
        world.submit()
        assert lines(world.submit()) == ["refuse r duplicate_request_id"]
        assert refusal(world).message == "request_id: 'r' belongs to a request that has not ended; use another one"

    @pytest.mark.rule("ORCH-INV-118")
    def test_too_many_requests(self) -> None:
        world = single(limits=EngineLimits(max_requests=1, retry_after_s=2.5))
        world.submit("r")
        world.submit("s")
        assert refusal(world) == ErrorRecord(
            kind=ErrorKind.OVERLOADED,
            scope=Scope.ENGINE,
            request_id="s",
            retry_after_s=2.5,
            message="overloaded: 1 requests are open (limits.max_requests); retry in 2.5 s",
        )

    @pytest.mark.rule("ORCH-INV-118")
    def test_too_many_jobs_in_a_queue(self) -> None:
        world = single()
        for number in range(3):
            world.submit(f"r{number}")
        assert lines(world.submit("one-too-many")) == ["refuse one-too-many overloaded"]
        error = refusal(world)
        assert error.message == "overloaded: 2 jobs wait for stage 'a' (limits.max_queued); retry in 1 s"
        assert (error.scope, error.stage, error.status) == (Scope.STAGE, "a", 429)

    @pytest.mark.case("B111")
    def test_a_stage_without_a_replica(self) -> None:
        world = World(*voice(), replicas=0)
        world.join("a")
        assert lines(world.submit()) == ["refuse r stage_unavailable"]
        assert refusal(world).message == "stage 'b' has no live replica; retry when it is back"
        assert lines(world.submit(outputs=("text",))) == ["start r/a on a[0]@0"]

    def test_every_submission_is_counted(self) -> None:
        world = single()
        world.submit()
        world.submit()
        counters = world.core.statistics().counters
        assert (counters.submitted, counters.refused) == (2, 1)


class TestGate:
    @pytest.mark.rule("ORCH-INV-204")
    def test_what_is_held_is_admitted_in_the_order_of_its_arrival(self) -> None:
        world = single(replicas=2)
        world.gate(GateAction.HOLD)
        assert world.submit("r") == []
        assert world.submit("s", deadline=50.0) == []
        assert world.core.statistics().held == 2
        assert lines(world.gate(GateAction.OPEN)) == ["start r/a on a[0]@0", "start s/a on a[1]@0"]
        assert world.core.statistics().held == 0

    def test_it_is_judged_by_the_stages_that_a_request_needs(self) -> None:
        world = World(*voice())
        world.gate(GateAction.HOLD, "b")
        assert world.submit("held") == []
        assert lines(world.submit("open", outputs=("text",))) == ["start open/a on a[0]@0"]
        assert world.gate(GateAction.HOLD, "a") == []
        assert world.gate(GateAction.OPEN, "a") == []
        assert lines(world.gate(GateAction.OPEN, "b")) == ["start held/a on a[0]@0"]

    def test_refusing(self) -> None:
        world = single()
        world.gate(GateAction.HOLD)
        world.submit("held")
        assert lines(world.gate(GateAction.REFUSE)) == []
        assert lines(world.submit("refused")) == ["refuse refused stage_unavailable"]
        assert refusal(world).message == "stage 'a' is paused and takes no requests; retry when it is resumed"
        assert lines(world.gate(GateAction.OPEN)) == ["start held/a on a[0]@0"]

    @pytest.mark.rule("ORCH-INV-204")
    def test_nobody_is_held_for_ever(self) -> None:
        world = single(limits=EngineLimits(hold_timeout_s=7.0))
        world.gate(GateAction.HOLD)
        world.submit()
        assert lines(world.wait(7.0)) == ["end r failed wait_timeout"]
        assert failure(world).message == "timed out after 7 s waiting for admission (limits.hold_timeout_s)"

    @pytest.mark.rule("ORCH-INV-204")
    def test_a_deadline_holds_at_the_gate_and_after_it(self) -> None:
        world = single()
        world.gate(GateAction.HOLD)
        world.submit("r", deadline=2.0)
        world.submit("s", deadline=2.5)
        assert lines(world.wait(2.0)) == ["end r failed deadline_exceeded"]
        assert failure(world).message == "the request's deadline passed while it waited for admission"
        world.gate(GateAction.OPEN)
        assert lines(world.wait(0.5)) == ["stop s/a", "end s failed deadline_exceeded"]
        assert failure(world, "s").awaited == "confirmation of the start at stage 'a'"

    @pytest.mark.rule("ORCH-INV-210")
    def test_what_is_held_can_be_aborted_and_cancelled(self) -> None:
        world = single()
        world.gate(GateAction.HOLD)
        world.submit("r")
        world.submit("s")
        assert lines(world.abort("r")) == ["emit a@0= abort last", "end r aborted", "reply 1: r aborted"]
        assert lines(world.cancel("s")) == ["end s aborted"]
        assert world.core.statistics().is_idle


class TestControl:
    @pytest.mark.rule("ORCH-INV-204")
    def test_a_call_has_a_limit(self) -> None:
        world = single()
        world.control(CallMethod("reset"), timeout_s=1.0)
        assert lines(world.wait(1.0)) == ["answer 1 control_timeout: a[0] control_timeout"]

    def test_what_opens_because_a_replica_is_gone_serves_what_was_held(self) -> None:
        world = single(replicas=2)
        world.gate(GateAction.HOLD)
        world.submit()
        world.control(Resume())
        world.answer(world.calls()[0])
        assert lines(world.lose("a", 1))[-1] == "start r/a on a[0]@0"

    @pytest.mark.rule("ORCH-INV-204")
    def test_a_wait_that_begins_while_the_stage_stands_still_is_no_fault_of_its_job(self) -> None:
        world = single(limits=EngineLimits(hold_timeout_s=200.0))
        world.submit()
        world.gate(GateAction.HOLD)
        world.start("a")
        assert world.wait(150.0) == []
        assert "end r failed wait_timeout" in lines(world.wait(50.0))


class TestAborts:
    @pytest.mark.rule("ORCH-INV-211")
    def test_nothing_to_abort(self) -> None:
        world = single()
        world.submit("ended")
        world.finish("a", request_id="ended")
        assert lines(world.abort()) == ["reply 1: "]
        assert lines(world.abort("nobody", "ended", "nobody")) == ["reply 2: nobody unknown, ended already_ended"]

    @pytest.mark.rule("ORCH-INV-207")
    def test_an_abort_that_is_only_to_be_accepted_is_answered_at_once(self) -> None:
        world = single()
        world.submit()
        assert lines(world.abort("r", level=AckLevel.ACCEPTED)) == ["stop r/a", "reply 1: r accepted"]
        assert lines(world.abort("r", level=AckLevel.ACCEPTED)) == ["reply 2: r accepted"]

    @pytest.mark.rule("ORCH-INV-207")
    def test_one_answer_for_all_ids(self) -> None:
        world = single(replicas=2)
        world.submit("r")
        world.submit("s")
        world.abort("s", "nobody", "r")
        world.stopped("a", "r's", "r")
        assert world.stopped("a", "s's", "s")[-1] == ReplyAbort(
            1,
            (
                AbortRecord("s", AbortStatus.ABORTED, {"a": "s's"}),
                AbortRecord("nobody", AbortStatus.UNKNOWN),
                AbortRecord("r", AbortStatus.ABORTED, {"a": "r's"}),
            ),
        )

    @pytest.mark.rule("ORCH-INV-207")
    def test_a_second_abort_repeats_what_failed_and_waits_for_the_rest(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        world.stop_failed("b")
        assert lines(world.abort("r")) == ["stop r/b"]
        world.stopped("a", "ax")
        assert lines(world.stopped("b", "bx"))[-1] == "reply 2: r aborted"

    @pytest.mark.rule("ORCH-INV-102")
    def test_only_whole_ids_match(self) -> None:
        world = single()
        world.submit("request-1")
        assert lines(world.abort("request", "request-11")) == ["reply 1: request unknown, request-11 unknown"]

    def test_a_repeated_stop_does_not_extend_the_wait_for_a_silent_replica(self) -> None:
        world = World(
            make_stage("a", output="one", limits=LIMITS),
            make_stage("b", output="two", limits=Limits(stop_timeout_s=90.0)),
        )
        world.submit()
        world.abort("r")
        world.wait(2.0)
        world.stop_failed("a")
        world.wait(5.0)
        assert world.abort("r") == []
        assert lines(world.wait(1.0)) == ["close a[0]@0"]


class TestMatching:
    """Events are matched by the job's key and the replica's generation; the rest is dropped."""

    @pytest.mark.rule("ORCH-INV-110")
    @pytest.mark.case("B021")
    def test_what_matches_nothing_is_dropped_and_released(self) -> None:
        world = single(replicas=2)
        world.submit()
        job = world.at("a").job
        for replica in (ReplicaKey("a", 0, 7), ReplicaKey("a", 1, 0), ReplicaKey("nobody", 0, 0)):
            assert lines(world.tell(StageProduced(replica, (JobOutput(job, 0, ("x",)),)))) == ["release x"]
            assert lines(world.tell(StageStopped(replica, job, "partial"))) == ["release partial"]
            assert world.tell(StageStopped(replica, job), StageFailed(replica, job, an_error())) == []
        former = job._replace(attempt=99)
        assert lines(world.tell(StageProduced(ReplicaKey("a", 0, 0), (JobOutput(former, 0, ("x",)),)))) == ["release x"]
        assert world.core.statistics().counters.dropped == 13
        assert world.terminals() == []

    @pytest.mark.rule("ORCH-INV-102")
    def test_what_is_late_for_a_former_use_of_an_id(self) -> None:
        world = single(replicas=2)
        world.submit(input_open=True)
        first, ticket = world.at("a"), world.tickets["r"]
        world.fail("a")
        world.submit(input_open=True)
        assert lines(world.tell(StageProduced(first.replica, (JobOutput(first.job, 0, ("old",)),)))) == ["release old"]
        assert lines(world.tell(InputAppended(ticket, "r", ("old",)))) == ["release old"]
        assert world.tell(RequestCancelled(ticket, "r")) == []
        assert world.terminals() == []

    @pytest.mark.rule("ORCH-INV-111")
    @pytest.mark.case("B003")
    def test_input_for_a_request_that_takes_none(self) -> None:
        world = single()
        assert lines(world.tell(InputAppended(1, "nobody", ("x",)))) == ["release x"]
        world.submit()
        assert lines(world.append("y")) == ["release y"]
        world.abort("r")
        world.stopped("a")
        world.submit("open", input_open=True)
        world.append(last=True, request_id="open")
        assert lines(world.append("z", request_id="open")) == ["release z"]
        world.submit("aborting", input_open=True)
        world.abort("open", "aborting")
        assert lines(world.append("w", request_id="aborting")) == ["release w"]
        assert world.core.statistics().counters.dropped == 4

    def test_a_stop_that_nobody_asked_for(self) -> None:
        world = single()
        world.submit()
        assert lines(world.stopped("a", "partial")) == ["release partial"]
        assert world.stop_failed("a") == []
        assert lines(world.finish("a", "x"))[-1] == "end r completed"

    def test_an_input_that_was_rejected_fails_the_request(self) -> None:
        world = single()
        world.submit()
        start = world.at("a")
        rejected = InputRejected(start.replica, start.job, an_error("bad", ErrorKind.PROCESSOR_FAILED))
        assert lines(world.tell(rejected)) == ["stop r/a", "end r failed processor_failed"]
        assert world.tell(rejected) == []

    def test_an_input_that_was_rejected_during_an_abort_changes_nothing(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        start = world.at("a")
        assert world.tell(InputRejected(start.replica, start.job, an_error())) == []
        assert lines(world.stopped("a"))[1] == "end r aborted"

    def test_a_failure_during_an_abort_and_a_second_one(self) -> None:
        world = single()
        world.submit()
        world.cancel()
        start = world.at("a")
        failed = StageFailed(start.replica, start.job, an_error())
        assert world.tell(failed, failed) == []
        assert world.core.statistics().is_idle

    def test_a_failed_stop_is_noted_once(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        start = world.at("a")
        failed = StopFailed(start.replica, start.job, an_error("no"))
        assert lines(world.tell(failed, failed)) == ["reply 1: r failed"]

    def test_a_stop_of_a_job_that_is_detached_releases_what_it_made(self) -> None:
        world = single()
        world.submit()
        world.cancel()
        assert world.stop_failed("a") == []
        assert lines(world.stopped("a", "partial")) == ["release partial"]

    def test_what_a_stage_made_that_is_not_final_is_released(self) -> None:
        world = World(*chain(EdgeMode.STREAMING, 2))
        world.submit()
        world.abort("r")
        assert lines(world.stopped("a", "partial"))[0] == "release partial"


class TestReplicas:
    @pytest.mark.case("B042")
    def test_one_that_comes_back_serves_again(self) -> None:
        world = single()
        world.lose("a")
        assert lines(world.submit()) == ["refuse r stage_unavailable"]
        assert world.join("a", 0, 1) == []
        assert lines(world.submit()) == ["start r/a on a[0]@1"]

    def test_one_that_joins_gets_what_waits(self) -> None:
        world = single()
        world.submit("r")
        world.submit("s")
        assert lines(world.join("a", 1)) == ["start s/a on a[1]@0"]

    @pytest.mark.case("B097")
    def test_one_that_cannot_join_is_counted(self) -> None:
        world = single()
        world.tell(ReplicaJoined(ReplicaKey("nobody", 0, 0)))
        world.join("a", 0, 1)
        world.lose("a")
        world.join("a", 0, 0)
        assert world.core.statistics().counters.dropped == 3
        assert not world.core.statistics().stages["a"].is_available

    def test_one_that_is_unknown_cannot_be_lost_or_drained(self) -> None:
        world = single()
        assert world.lose("a", 0, 1) == []
        assert world.drain("a", 0, 1) == []
        assert world.drain("nobody") == []

    def test_draining_twice_changes_nothing(self) -> None:
        world = single(replicas=2)
        world.submit()
        assert world.drain("a") == []
        assert world.drain("a") == []
        assert [one.state for one in world.core.statistics().stages["a"].replicas] == ["draining", "live"]

    @pytest.mark.rule("ORCH-INV-306")
    def test_work_waits_for_the_successor_of_a_drained_replica(self) -> None:
        world = single()
        world.submit("r")
        assert world.drain("a", succeeded=True) == []
        assert lines(world.submit("s")) == []
        assert world.core.statistics().stages["a"].returning == (0,)
        assert lines(world.finish("a", request_id="r"))[0] == "close a[0]@0"
        world.wait(LIMITS.queue_timeout_s)
        assert world.terminals("s") == [], "waiting for a replacement is no fault of the queue"
        assert lines(world.join("a", 0, 1)) == ["start s/a on a[0]@1"]
        assert world.core.statistics().stages["a"].returning == ()

    @pytest.mark.rule("ORCH-INV-202", "ORCH-INV-306")
    def test_what_waits_for_a_successor_fails_when_it_does_not_come(self) -> None:
        world = single()
        assert lines(world.drain("a", succeeded=True)) == ["close a[0]@0"]
        world.submit("r")
        assert world.lose("a", 0, 2) == [], "another one"
        assert lines(world.lose("a", 0, 1)) == ["end r failed stage_unavailable"]
        assert refusal_of(world).kind is ErrorKind.STAGE_UNAVAILABLE

    @pytest.mark.rule("ORCH-INV-202")
    def test_the_loss_of_a_replica_that_drains_does_not_fail_what_waits_for_its_successor(self) -> None:
        world = single()
        world.submit("r")
        world.drain("a", succeeded=True)
        world.submit("s")
        assert lines(world.lose("a")) == ["close a[0]@0", "end r failed replica_lost"]
        assert lines(world.join("a", 0, 1)) == ["start s/a on a[0]@1"]


def refusal_of(world: World) -> ErrorRecord:
    """Why one more request is refused."""
    world.submit("refused")
    return refusal(world)


class TestShutdown:
    @pytest.mark.rule("ORCH-INV-302", "ORCH-INV-304")
    def test_every_request_and_every_call_hears_of_it(self) -> None:
        world = single()
        for request_id in ("running", "queued", "aborted"):
            world.submit(request_id)
        world.abort("running")
        stop = ShutdownRequested(
            ErrorRecord(kind=ErrorKind.ENGINE_STOPPED, scope=Scope.ENGINE, message="the engine is shut down")
        )
        assert lines(world.tell(stop)) == [
            "end running failed engine_stopped",
            "reply 1: running failed",
            "end queued failed engine_stopped",
            "end aborted failed engine_stopped",
        ]
        assert world.tell(stop) == []

    def test_nothing_is_admitted_after_it(self) -> None:
        world = single()
        world.tell(ShutdownRequested(a_loss()))
        world.gate(GateAction.OPEN)
        assert lines(world.submit()) == ["refuse r engine_stopped"]
        assert refusal(world).message == "the engine is shut down"


class TestTime:
    """Each wait has a limit and says what was awaited."""

    @pytest.mark.rule("ORCH-INV-204")
    def test_for_capacity(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="out", limits=LIMITS))
        world.submit("first")
        world.finish("a", "x", request_id="first")
        world.submit()
        world.finish("a", "x")
        world.start("b", "first")
        world.wait(4.0)
        world.produce("b", "busy", request_id="first")
        world.wait(3.0)
        world.produce("b", "busy", request_id="first")
        assert lines(world.wait(1.0)) == ["release x", "end r failed wait_timeout"]
        assert failure(world).message == (
            "timed out after 8 s waiting for capacity at stage 'b' (limits.queue_timeout_s)"
        )
        assert failure(world).replica is None

    @pytest.mark.rule("ORCH-INV-204")
    def test_for_the_start(self) -> None:
        world = single()
        world.submit()
        assert lines(world.wait(3.0)) == ["stop r/a", "end r failed wait_timeout"]
        error = failure(world)
        assert error.message == (
            "timed out after 3 s waiting for confirmation of the start at stage 'a' (limits.dispatch_timeout_s)"
        )
        assert (error.stage, error.replica, error.status) == ("a", 0, 504)
        assert error.awaited == "confirmation of the start at stage 'a'"

    @pytest.mark.rule("ORCH-INV-204")
    def test_for_the_first_output(self) -> None:
        world = single()
        world.submit()
        world.start("a")
        world.wait(5.0)
        assert failure(world).message == (
            "timed out after 5 s waiting for first output at stage 'a' (limits.first_output_timeout_s)"
        )

    @pytest.mark.rule("ORCH-INV-204")
    @pytest.mark.case("B005")
    def test_for_the_next_output(self) -> None:
        world = single()
        world.submit()
        for _ in range(3):
            world.produce("a", "x")
            assert world.wait(3.0) == []
        world.wait(1.0)
        assert failure(world).message == (
            "timed out after 4 s waiting for next output at stage 'a' (limits.chunk_timeout_s)"
        )

    @pytest.mark.rule("ORCH-INV-204")
    def test_for_the_next_input(self) -> None:
        world = single()
        world.submit(input_open=True)
        world.start("a")
        world.wait(4.0)
        assert failure(world).message == (
            "timed out after 4 s waiting for next input from the client at stage 'a' (limits.chunk_timeout_s)"
        )

    @pytest.mark.rule("ORCH-INV-204")
    def test_for_stops(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        assert lines(world.wait(2.0))[0] == "stop r/a"
        assert lines(world.wait(6.0)) == ["close a[0]@0"]

    @pytest.mark.rule("ORCH-INV-204")
    def test_for_an_answer_to_an_abort(self) -> None:
        world = single()
        world.submit()
        world.abort("r", timeout_s=1.0)
        assert lines(world.wait(1.0)) == ["reply 1: r unconfirmed"]

    @pytest.mark.rule("ORCH-INV-204")
    @pytest.mark.case("B091")
    def test_a_deadline_stops_every_stage_at_once(self) -> None:
        world = World(*voice())
        world.submit(deadline=1.5)
        world.produce("a", "x")
        assert lines(world.wait(1.5)) == ["stop r/a", "stop r/b", "end r failed deadline_exceeded"]
        assert failure(world).message == (
            "the request's deadline passed while it waited for "
            "next output at stage 'a', confirmation of the start at stage 'b'"
        )
        assert failure(world).status == 504

    def test_a_finish_of_any_usable_kind_ends_the_waiting(self) -> None:
        for reason in (FinishReason.STOP, FinishReason.LENGTH):
            world = single()
            world.submit()
            world.finish("a", "x", reason=reason)
            assert world.core.next_deadline() is None


class TestSiblings:
    @pytest.mark.rule("ORCH-INV-112")
    def test_all_are_recorded_before_any_starts(self) -> None:
        world = World(*guided(), replicas=2)
        effects = world.submit(samples=2, companions={"negative": "no"})
        assert lines(effects) == [
            "start r/a/0 on a[0]@0",
            "start r/a/0.negative on a[0]@0",
            "start r/a/1 on a[1]@0",
            "start r/a/1.negative on a[1]@0",
        ]
        assert world.core.statistics().requests == 1

    @pytest.mark.rule("ORCH-INV-112", "ORCH-INV-118")
    def test_a_request_is_refused_as_a_whole(self) -> None:
        world = single()
        world.submit(prompt="p", samples=4)
        assert world.released() == ["p"]
        error = refusal(world)
        assert error.kind is ErrorKind.OVERLOADED
        assert error.message == (
            "overloaded: 4 jobs are too many for stage 'a', where 2 may wait (limits.max_queued); retry in 1 s"
        )
        assert world.core.is_idle
        assert lines(world.submit(samples=3)) == ["start r/a/0 on a[0]@0"]

    @pytest.mark.rule("ORCH-INV-204")
    def test_a_bundle_that_does_not_come_is_named(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="image", joins=True, limits=LIMITS))
        world.submit(companions={"negative": "no"})
        world.finish("a", "x", sibling="main")
        world.start("a", sibling="main.negative")
        world.wait(120.0)
        error = failure(world)
        assert (error.kind, error.awaited) == (ErrorKind.WAIT_TIMEOUT, "companions negative at stage 'b'")

    @pytest.mark.rule("ORCH-INV-204", "ORCH-INV-232")
    def test_a_bundle_is_waited_for_longer_while_a_companion_stands_still(self) -> None:
        limits = EngineLimits(hold_timeout_s=300.0)
        world = World(make_stage("a"), make_stage("b", complete("a"), output="image", joins=True), limits=limits)
        world.submit(companions={"negative": "no"})
        world.finish("a", "x", sibling="main")
        world.start("a", sibling="main.negative")
        world.gate(GateAction.HOLD, "a")
        world.wait(120.0)
        world.wait(120.0)
        assert world.terminals() == []
        world.wait(60.0)
        assert failure(world).awaited == "the resume of stage 'a'"

    def test_a_bundle_is_waited_for_anew_after_the_resume(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="image", joins=True))
        world.submit(companions={"negative": "no"})
        world.finish("a", "x", sibling="main")
        world.start("a", sibling="main.negative")
        world.gate(GateAction.HOLD, "a")
        world.wait(119.0)
        world.gate(GateAction.OPEN, "a")
        world.wait(2.0)
        assert world.terminals() == []

    def test_prompts_of_companions_that_are_refused_are_released(self) -> None:
        world = World(*guided(), limits=EngineLimits(max_siblings=2))
        world.submit(prompt="yes", companions={"negative": "no", "style": "so"})
        assert world.released() == ["yes", "no", "so"]
        assert refusal(world).kind is ErrorKind.INVALID_REQUEST
        assert "limits.max_siblings" in refusal(world).message

    @pytest.mark.rule("ORCH-INV-107")
    def test_prompts_of_companions_that_no_output_needs_are_released(self) -> None:
        world = World(make_stage("a", output="text"), make_stage("b", complete("a"), output="image", joins=True))
        assert lines(world.submit(outputs=("text",), companions={"negative": "no"})) == [
            "release no",
            "start r/a on a[0]@0",
        ]

    @pytest.mark.rule("ORCH-INV-207")
    def test_samples_that_there_are_not_or_that_have_ended(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit(samples=2)
        world.finish("a", sibling="0")
        assert lines(world.abort("r", samples=(1, 2))) == ["reply 1: r unknown"]
        assert lines(world.abort("r", samples=(0,))) == ["reply 2: r already_ended"]
        assert lines(world.abort("r", samples=(0, 1), level=AckLevel.ACCEPTED)) == ["stop r/a/1", "reply 3: r accepted"]

    @pytest.mark.rule("ORCH-INV-207", "ORCH-INV-211")
    def test_a_group_is_aborted_together(self) -> None:
        world = World(make_stage("a", output="out"))
        for name, group in (("r1", "g"), ("r2", None), ("r3", "g"), ("r4", "h")):
            world.submit(name, group=group)
        assert lines(world.abort("r2", groups=("g", "nobody"))) == ["stop r2/a", "stop r1/a", "stop r3/a"]
        for name in ("r1", "r2", "r3"):
            world.stopped("a", request_id=name)
        assert lines(world.effects)[-1] == "reply 1: r2 aborted, r1 aborted, r3 aborted"
        assert lines(world.abort(groups=("g",))) == ["reply 2: "]

    @pytest.mark.rule("ORCH-INV-207")
    def test_everything_is_aborted_together(self) -> None:
        world = single()
        world.submit("r1")
        world.submit("r2")
        assert lines(world.abort_all()) == ["stop r1/a", "emit a@0= abort last", "end r2 aborted"]
        assert lines(world.stopped("a", request_id="r1"))[-1] == "reply 1: r1 aborted, r2 aborted"
        assert world.core.is_idle


class TestReports:
    @pytest.mark.case("B097")
    def test_the_next_job_goes_where_there_is_less_to_do(self) -> None:
        world = single(replicas=2)
        world.tell(ReplicaReported(ReplicaKey("a", 0, 0), 2, 0), ReplicaReported(ReplicaKey("a", 0, 0), 1, 1))
        assert [one.reported for one in world.core.statistics().stages["a"].replicas] == [3, 0]
        world.submit("r")
        assert world.at("a").replica.slot == 1

    @pytest.mark.case("B097")
    @pytest.mark.rule("ORCH-INV-306")
    def test_what_a_former_life_or_nobody_reports_changes_nothing(self) -> None:
        world = single()
        world.lose("a")
        world.tell(ReplicaReported(ReplicaKey("a", 0, 0), 9))
        assert world.core.statistics().stages["a"].replicas == ()
        world.join("a", generation=1)
        world.tell(ReplicaReported(ReplicaKey("a", 0, 0), 9), ReplicaReported(ReplicaKey("nobody", 0, 0), 9))
        assert [one.reported for one in world.core.statistics().stages["a"].replicas] == [0]


@pytest.mark.rule("ORCH-INV-116", "ORCH-INV-202")
def test_a_stage_that_may_not_be_needed_refuses_nobody() -> None:
    world = World(
        make_stage("r", labels=("yes", "no"), output="text"), make_stage("a", on_label("r", "yes"), output="out")
    )
    world.lose("a")
    assert lines(world.submit()) == ["start r/r on r[0]@0"]
    world.lose("r")
    assert lines(world.submit("s")) == ["refuse s stage_unavailable"]

"""How jobs and requests end: one terminal each, whatever happens, and nothing left behind."""

from __future__ import annotations

import pytest

from podium.core.admission import EngineLimits
from podium.core.effects import AbortRecord, AbortStatus, CloseReplica, EndRequest, Outcome, ReplyAbort, StageTimings
from podium.core.events import AckLevel, FinishReason, ShutdownRequested, StageFailed
from podium.core.graph import EdgeMode, Limits
from podium.core.identity import ReplicaKey
from podium.core.lifecycle import GateAction
from podium.errors import ErrorKind
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
    streaming,
    voice,
)

ONE = Limits(max_inflight=1, max_queued=9, max_buffered_chunks=2, stop_timeout_s=2.0, stuck_timeout_s=6.0)


def single(*, rerun: bool = False, replicas: int = 1) -> World:
    return World(make_stage("a", output="out", rerun=rerun, limits=ONE), replicas=replicas)


class TestTerminals:
    @pytest.mark.rule("ORCH-INV-101")
    def test_a_terminal_has_the_timings_of_every_planned_stage(self) -> None:
        world = World(*voice())
        world.submit()
        world.wait(1.0)
        world.cancel()
        (end,) = world.terminals()
        assert end == EndRequest(
            1, "r", Outcome.ABORTED, 1.0, None, {"a": StageTimings(0.0, 0.0), "b": StageTimings(0.0)}
        )

    def test_each_outcome_is_counted(self) -> None:
        world = single()
        world.submit("completed")
        world.finish("a", request_id="completed")
        world.submit("failed")
        world.fail("a", request_id="failed")
        world.submit("cancelled")
        world.cancel("cancelled")
        world.stopped("a", request_id="cancelled")
        world.submit("aborted")
        world.abort("aborted")
        world.stopped("a", request_id="aborted")
        counters = world.core.statistics().counters
        assert (counters.completed, counters.failed, counters.cancelled, counters.aborted) == (1, 1, 1, 1)

    @pytest.mark.rule("ORCH-INV-100", "ORCH-INV-201")
    def test_a_failure_stops_the_other_jobs_and_cancels_those_that_wait(self) -> None:
        world = World(
            make_stage("a"),
            make_stage("b"),
            make_stage("c", complete("a"), output="out"),
            make_stage("d", complete("b"), output="more"),
        )
        world.submit()
        world.produce("b", "x")
        assert lines(world.fail("a")) == ["stop r/b", "release x", "end r failed stage_failed"]
        assert lines(world.stopped("b", "partial")) == ["release partial"]
        assert world.core.statistics().is_idle

    @pytest.mark.case("B041")
    def test_a_prompt_that_no_stage_got_is_released(self) -> None:
        world = World(make_stage("a", output="out", limits=ONE))
        world.submit("first", prompt="p1")
        world.submit("second", prompt="p2")
        world.cancel("second")
        world.gate(GateAction.HOLD)
        world.submit("third", prompt="p3")
        world.cancel("third")
        world.cancel("first")
        assert world.released() == ["p2", "p3"]


class TestCancelling:
    @pytest.mark.rule("ORCH-INV-212")
    def test_it_ends_the_request_at_once_and_stops_every_stage(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        assert lines(world.cancel()) == ["stop r/a", "stop r/b", "end r aborted"]
        assert world.cancel() == []
        assert world.core.statistics().counters.cancelled == 1

    def test_during_an_abort_the_abort_goes_on(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        assert world.cancel() == []
        assert lines(world.stopped("a", "x")) == [
            "emit a@0= abort partial=x last",
            "end r aborted",
            "reply 1: r aborted",
        ]
        assert world.core.statistics().counters.cancelled == 0

    def test_a_queued_job_is_cancelled_without_a_stop(self) -> None:
        world = single()
        world.submit("first")
        world.submit("second")
        assert lines(world.cancel("second")) == ["end second aborted"]
        assert world.core.statistics().stages["a"].queued == 0


class TestAborting:
    @pytest.mark.rule("ORCH-INV-205", "ORCH-INV-209")
    def test_each_final_stage_gets_its_abort_output_in_the_order_of_stages(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        assert lines(world.abort("r")) == ["stop r/a", "stop r/b"]
        assert lines(world.stopped("b", "bx")) == []
        assert lines(world.stopped("a", "ax")) == [
            "emit a@1= abort partial=ax",
            "emit b@2= abort partial=bx last",
            "end r aborted",
            "reply 1: r aborted",
        ]
        assert world.effects[-1] == ReplyAbort(1, (AbortRecord("r", AbortStatus.ABORTED, {"a": "ax", "b": "bx"}),))

    def test_what_a_stage_made_that_nobody_asked_for_is_released(self) -> None:
        world = World(*chain(EdgeMode.STREAMING, 2))
        world.submit()
        world.abort("r")
        assert lines(world.stopped("a", "ax")) == [
            "release ax",
            "emit b@0= abort last",
            "end r aborted",
            "reply 1: r aborted",
        ]

    @pytest.mark.rule("ORCH-INV-208", "ORCH-INV-210")
    def test_with_the_work_still_queued(self) -> None:
        world = single()
        world.submit("first")
        world.submit("second")
        assert lines(world.abort("second"))[:2] == ["emit a@0= abort last", "end second aborted"]

    def test_a_stage_that_has_finished_keeps_its_finish(self) -> None:
        world = World(*voice())
        world.submit()
        world.finish("a", "x")
        assert lines(world.abort("r")) == ["stop r/b"]
        assert lines(world.stopped("b", "bx"))[:2] == ["emit b@2= abort partial=bx last", "end r aborted"]

    @pytest.mark.rule("ORCH-INV-211")
    def test_what_completes_all_the_same_has_already_ended(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        effects = world.finish("a", "x")
        assert lines(effects) == ["emit a@0=x stop last", "end r completed", "reply 1: r already_ended"]

    def test_an_engine_that_gives_up_with_nothing_delivers_nothing(self) -> None:
        world = single()
        world.submit()
        assert lines(world.finish("a", reason=FinishReason.ERROR)) == ["end r failed stage_failed"]

    def test_a_job_that_fails_meanwhile_is_one_stop_nearer(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        assert lines(world.fail("a"))[:2] == ["emit a@0= abort last", "end r aborted"]

    def test_a_failure_of_the_request_releases_what_was_handed_over(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        world.stopped("a", "ax")
        effects = world.tell(ShutdownRequested(an_error(kind=ErrorKind.ENGINE_STOPPED)))
        assert lines(effects) == ["release ax", "end r failed engine_stopped", "reply 1: r failed"]


class TestFailedStops:
    @pytest.mark.rule("ORCH-INV-207", "ORCH-INV-216")
    def test_the_caller_hears_of_it_and_can_repeat_the_stop(self) -> None:
        world = World(*voice(limits=ONE))
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        assert lines(world.stop_failed("a")) == ["reply 1: r failed"]
        assert lines(world.stopped("b", "bx")) == []
        assert lines(world.abort("r")) == ["stop r/a"]
        assert lines(world.abort("r")) == []
        assert lines(world.stopped("a", "ax")) == [
            "emit a@1= abort partial=ax",
            "emit b@2= abort partial=bx last",
            "end r aborted",
            "reply 2: r aborted",
            "reply 3: r aborted",
        ]

    def test_without_a_repetition_the_request_goes_on_without_it(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        world.stop_failed("a")
        assert lines(world.wait(2.0)) == ["stop r/a", "emit a@0= abort last", "end r aborted"]

    def test_a_call_about_several_requests_waits_for_all(self) -> None:
        world = single(replicas=2)
        world.submit("r")
        world.submit("s")
        world.abort("r", "s")
        assert lines(world.stop_failed("a", "r")) == []
        assert lines(world.stopped("a", None, "s"))[-1] == "reply 1: r failed, s aborted"


class TestUnconfirmedStops:
    @pytest.mark.rule("ORCH-INV-204", "ORCH-INV-207")
    def test_the_request_ends_and_the_credit_stays_until_the_replica_is_lost(self) -> None:
        world = single()
        world.submit()
        world.abort("r", timeout_s=30.0)
        assert lines(world.wait(2.0)) == ["stop r/a", "emit a@0= abort last", "end r aborted", "reply 1: r unconfirmed"]
        assert world.effects[-1] == ReplyAbort(1, (AbortRecord("r", AbortStatus.UNCONFIRMED, {}, ("a",)),))
        assert world.core.statistics().stages["a"].running == 1
        (close,) = world.wait(6.0)
        assert isinstance(close, CloseReplica)
        assert close.error is not None
        assert close.error.message == "replica 0 of stage 'a' is stuck: it did not confirm a repeated stop within 6 s"
        assert world.core.statistics().is_idle

    @pytest.mark.rule("ORCH-INV-207")
    def test_the_call_is_answered_in_time_though_no_stop_is_confirmed(self) -> None:
        world = World(*voice())
        world.submit("r")
        world.produce("a", "x")
        world.submit("s")
        world.abort("s", "r", timeout_s=1.0)
        world.stopped("a", None, "s")
        (reply,) = world.wait(1.0)
        assert reply == ReplyAbort(
            1,
            (
                AbortRecord("s", AbortStatus.ABORTED),
                AbortRecord("r", AbortStatus.UNCONFIRMED, {}, ("a", "b")),
            ),
        )
        world.stopped("a")
        assert lines(world.stopped("b"))[-1] == "end r aborted"

    def test_the_stop_of_an_ended_request_is_repeated_too(self) -> None:
        world = single()
        world.submit()
        world.cancel()
        assert lines(world.wait(2.0)) == ["stop r/a"]
        assert lines(world.wait(6.0)) == ["close a[0]@0"]

    def test_a_failed_stop_of_an_ended_request_is_repeated(self) -> None:
        world = single()
        world.submit()
        world.cancel()
        assert lines(world.stop_failed("a")) == []
        assert lines(world.wait(2.0)) == ["stop r/a"]
        assert lines(world.stopped("a")) == []
        assert world.core.statistics().is_idle

    def test_a_failed_stop_of_an_abort_that_then_fails(self) -> None:
        world = single()
        world.submit()
        world.abort("r")
        world.stop_failed("a")
        world.tell(ShutdownRequested(an_error(kind=ErrorKind.ENGINE_STOPPED)))
        assert lines(world.wait(2.0)) == ["stop r/a"]

    def test_one_replica_that_is_silent_keeps_the_others_waiting_no_longer_than_the_limit(self) -> None:
        world = World(
            make_stage("a", output="one", limits=ONE),
            make_stage("b", output="two", limits=Limits(stop_timeout_s=5.0)),
        )
        world.submit()
        world.abort("r")
        assert lines(world.wait(2.0)) == ["stop r/a"]
        assert lines(world.abort("r")) == []
        assert lines(world.stop_failed("a")) == []
        assert lines(world.abort("r", level=AckLevel.ACCEPTED)) == ["reply 3: r accepted"]
        assert lines(world.stopped("b", "bx"))[-2:] == ["reply 1: r unconfirmed", "reply 2: r unconfirmed"]

    def test_what_waited_for_a_silent_job_is_released(self) -> None:
        world = World(
            make_stage("a", limits=Limits(stop_timeout_s=9.0)),
            make_stage("b", complete("a"), output="out", prewarm=True, limits=ONE),
        )
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        assert lines(world.wait(2.0)) == ["release x", "stop r/b"]


class TestLoss:
    @pytest.mark.rule("ORCH-INV-202", "ORCH-INV-214")
    @pytest.mark.case("B001")
    def test_it_fails_the_jobs_of_that_replica_only(self) -> None:
        world = single(replicas=2)
        world.submit("r")
        world.submit("s")
        effects = world.lose("a", 0)
        assert lines(effects) == ["close a[0]@0", "end r failed replica_lost"]
        assert effects[0] == CloseReplica(ReplicaKey("a", 0, 0), a_loss())
        assert lines(world.finish("a", "y", request_id="s")) == ["emit a@0=y stop last", "end s completed"]

    @pytest.mark.rule("ORCH-INV-202")
    def test_with_no_replica_left_those_that_need_the_stage_fail_and_the_others_complete(self) -> None:
        world = World(*voice())
        world.submit("text", outputs=("text",))
        world.submit("both")
        assert lines(world.lose("b")) == ["close b[0]@0", "stop both/a", "end both failed stage_unavailable"]
        (end,) = world.terminals("both")
        assert end.error is not None
        assert end.error.message == "stage 'b' has no live replica; retry when it is back"
        assert lines(world.finish("a", request_id="text"))[-1] == "end text completed"

    @pytest.mark.rule("ORCH-INV-202")
    def test_a_stage_that_may_runs_again_with_its_saved_input(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="out", rerun=True), replicas=2)
        world.submit()
        world.produce("a", "x")
        world.produce("a", "y")
        world.produce("b", "early", sequence=1)
        assert lines(world.lose("b", 0)) == ["close b[0]@0", "release early", "start r/b on b[1]@0 a=x,y open"]
        assert lines(world.finish("a", "z")) == ["feed r/b a@2=z", "end input r/b a stop"]
        assert lines(world.finish("b", "done"))[-1] == "end r completed"
        assert world.core.statistics().counters.reruns == 1

    @pytest.mark.rule("ORCH-INV-115")
    def test_it_runs_again_once_and_only_with_nothing_delivered(self) -> None:
        world = single(rerun=True, replicas=3)
        world.submit("shown")
        world.produce("a", "x", request_id="shown")
        assert lines(world.lose("a", 0)) == ["close a[0]@0", "end shown failed replica_lost"]
        world.submit("twice")
        assert lines(world.lose("a", 1)) == ["close a[1]@0", "start twice/a on a[2]@0"]
        assert lines(world.lose("a", 2)) == ["close a[2]@0", "end twice failed replica_lost"]

    def test_what_is_being_aborted_does_not_run_again(self) -> None:
        world = single(rerun=True, replicas=2)
        world.submit()
        world.abort("r")
        assert lines(world.lose("a", 0)) == [
            "close a[0]@0",
            "emit a@0= abort last",
            "end r aborted",
            "reply 1: r aborted",
        ]

    def test_what_should_run_again_fails_with_no_replica_left(self) -> None:
        world = single(rerun=True)
        world.submit()
        assert lines(world.lose("a")) == ["close a[0]@0", "end r failed stage_unavailable"]
        assert world.core.statistics().is_idle

    def test_what_a_lost_replica_was_given_is_not_released(self) -> None:
        """Whoever carried it there owns it; only what came after the loss is the core's to release."""
        world = World(
            make_stage("a"), make_stage("b", streaming("a"), output="out", rerun=True, limits=ONE), replicas=2
        )
        for request_id in ("r", "other"):
            world.submit(request_id)
            world.produce("a", f"{request_id}-1", request_id=request_id)
        world.lose("b", 0)
        world.produce("a", "r-2")
        assert lines(world.cancel()) == ["stop r/a", "release r-2", "end r aborted"]

    def test_detached_jobs_go_with_it(self) -> None:
        world = single()
        world.submit()
        world.cancel()
        assert lines(world.lose("a")) == ["close a[0]@0"]
        assert world.core.statistics().is_idle


class TestDraining:
    @pytest.mark.case("B042")
    def test_it_leaves_with_its_last_job(self) -> None:
        world = single(replicas=2)
        world.submit()
        assert lines(world.drain("a")) == []
        assert lines(world.finish("a", "x")) == ["close a[0]@0", "emit a@0=x stop last", "end r completed"]

    def test_without_jobs_it_leaves_at_once(self) -> None:
        assert lines(single(replicas=2).drain("a")) == ["close a[0]@0"]

    def test_the_last_one_fails_what_waits_for_the_stage(self) -> None:
        world = single()
        world.submit("r")
        world.submit("s")
        assert lines(world.drain("a")) == ["end s failed stage_unavailable"]
        assert lines(world.finish("a", request_id="r"))[-1] == "end r completed"

    def test_it_can_be_lost_meanwhile(self) -> None:
        world = single(replicas=2)
        world.submit()
        world.drain("a")
        assert lines(world.lose("a")) == ["close a[0]@0", "end r failed replica_lost"]


@pytest.mark.rule("ORCH-INV-213")
@pytest.mark.case("B027", "B028")
def test_thousands_of_requests_leave_every_table_as_it_was() -> None:
    world = World(*voice(), limits=EngineLimits(max_remembered=0))
    before = world.core.statistics()
    for number in range(1000):
        request_id = f"r{number}"
        world.submit(request_id)
        if number % 3:
            world.produce("a", "x", request_id=request_id)
        world.abort(request_id) if number % 2 else world.cancel(request_id)
        world.stopped("a", None, request_id)
        if number % 3:
            world.stopped("b", None, request_id)
        world.effects.clear()
    after = world.core.statistics()
    assert after.is_idle
    assert (after.stages, after.remembered, after.timers) == (before.stages, 0, 0)
    assert len(world.core._state.deadlines._heap) < 100


class TestSamples:
    def three(self) -> World:
        world = World(*voice())
        world.submit(samples=3)
        return world

    @pytest.mark.rule("ORCH-INV-114", "ORCH-INV-205", "ORCH-INV-209")
    def test_aborting_one_leaves_the_others(self) -> None:
        world = self.three()
        world.produce("a", "x", sibling="1")
        assert lines(world.abort("r", samples=(1,))) == ["stop r/a/1", "stop r/b/1"]
        world.stopped("a", "a so far", sibling="1")
        assert lines(world.stopped("b", sibling="1")) == [
            "emit a[1]@1= abort partial=a so far",
            "emit b[1]@2= abort",
            "reply 1: r aborted",
        ]
        reply = world.effects[-1]
        assert isinstance(reply, ReplyAbort)
        assert reply.records == (AbortRecord("r", AbortStatus.ABORTED, samples={1: {"a": "a so far"}}),)
        assert world.core.statistics().aborting == 0
        for sibling in "02":
            for stage in "ab":
                world.finish(stage, "x", sibling=sibling)
        (end,) = world.terminals()
        assert end.outcome is Outcome.COMPLETED
        assert world.core.is_idle

    @pytest.mark.rule("ORCH-INV-114")
    def test_when_none_is_left_the_request_is_gone(self) -> None:
        world = self.three()
        world.abort("r", samples=(0, 1))
        for sibling in "01":
            world.stopped("a", sibling=sibling)
        assert lines(world.abort("r", samples=(2,))) == ["stop r/a/2"]
        assert world.core.statistics().aborting == 1
        assert lines(world.stopped("a", sibling="2"))[-2:] == ["end r aborted", "reply 2: r aborted"]
        assert world.core.is_idle

    @pytest.mark.rule("ORCH-INV-114")
    def test_aborting_the_request_aborts_every_sample(self) -> None:
        world = self.three()
        world.abort("r", samples=(0,))
        assert lines(world.abort("r")) == ["stop r/a/1", "stop r/a/2"]
        world.stopped("a", "one", sibling="1")
        world.stopped("a", "two", sibling="2")
        assert lines(world.stopped("a", sibling="0")) == [
            "emit a@4= abort",
            "emit b@5= abort last",
            "end r aborted",
            "reply 1: r aborted",
            "reply 2: r aborted",
        ]
        reply = world.effects[-1]
        assert isinstance(reply, ReplyAbort)
        assert reply.records[0].samples == {0: {}, 1: {"a": "one"}, 2: {"a": "two"}}

    def test_a_sample_that_ends_by_itself_first_has_ended(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit(samples=2)
        world.abort("r", samples=(0,))
        assert lines(world.finish("a", "x", sibling="0")) == ["emit a@0=x stop", "reply 1: r already_ended"]

    def test_a_request_whose_samples_were_aborted_in_part_is_aborted(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit(samples=2)
        world.abort("r")
        world.stopped("a", sibling="0")
        assert lines(world.finish("a", "x", sibling="1")) == [
            "emit a[1]@1=x stop last",
            "end r aborted",
            "reply 1: r aborted",
        ]

    def test_a_call_waits_for_each_of_its_samples_and_for_no_other(self) -> None:
        world = self.three()
        world.abort("r", samples=(0, 1))
        assert "reply 1: r aborted" not in lines(world.stopped("a", sibling="0"))
        world.abort("r", samples=(2,), timeout_s=90.0)
        assert "reply 1: r aborted" in lines(world.stopped("a", sibling="1"))

    def test_samples_that_there_are_not_or_that_have_ended(self) -> None:
        world = self.three()
        for stage in "ab":
            world.finish(stage, "x", sibling="1")
        assert lines(world.abort("r", samples=(0, 3))) == ["reply 1: r unknown"]
        assert lines(world.abort("r", samples=(1,))) == ["reply 2: r already_ended"]

    def test_a_stop_that_fails_is_told_to_those_who_asked_for_that_sample(self) -> None:
        world = self.three()
        world.abort("r", samples=(0,))
        world.abort("r", samples=(1,))
        assert lines(world.stop_failed("a", sibling="0")) == ["reply 1: r failed"]
        assert lines(world.abort("r", samples=(0,))) == ["stop r/a/0"]
        assert lines(world.wait(5.0)) == []
        assert lines(world.stopped("a", sibling="1"))[-1] == "reply 2: r aborted"

    def test_a_stop_that_is_not_confirmed_is_listed_for_its_sample(self) -> None:
        world = World(make_stage("a", output="out", limits=ONE), replicas=2)
        world.submit(samples=2)
        world.abort("r", samples=(0,))
        assert lines(world.wait(2.0)) == ["stop r/a/0", "emit a@0= abort", "reply 1: r unconfirmed"]
        assert lines(world.abort("r", samples=(1,), timeout_s=1.0)) == ["stop r/a/1"]
        assert lines(world.wait(1.0)) == ["reply 2: r unconfirmed"]
        reply = world.effects[-1]
        assert isinstance(reply, ReplyAbort)
        assert reply.records[0].stages == ("a",)

    def test_a_failure_releases_what_was_kept_of_a_sample_and_not_delivered(self) -> None:
        world = self.three()
        world.produce("a", "x", sibling="0")
        world.abort("r", samples=(0,))
        world.stopped("a", "kept", sibling="0")
        assert lines(world.fail("a", sibling="1"))[0] == "release kept"
        assert lines(world.effects)[-1] == "reply 1: r failed"

    def test_a_client_that_goes_away_answers_those_who_abort_a_sample(self) -> None:
        world = self.three()
        world.abort("r", samples=(0,))
        world.cancel()
        assert lines(world.effects)[-2:] == ["end r aborted", "reply 1: r aborted"]


@pytest.mark.rule("ORCH-INV-113")
class TestCompanions:
    def begun(self, *, rerun: bool = False, replicas: int = 1) -> World:
        world = World(*guided(limits=ONE, rerun=rerun), replicas=replicas)
        world.submit(prompt="yes", companions={"negative": "no"})
        return world

    def test_one_that_fails_fails_its_request_once(self) -> None:
        world = World(*guided())
        world.submit(companions={"negative": "no"})
        assert lines(world.fail("a", sibling="main.negative")) == ["stop r/a", "end r failed stage_failed"]
        assert len(world.terminals()) == 1

    def test_losing_one_whose_output_arrived_changes_nothing(self) -> None:
        world = World(*guided())
        world.submit(companions={"negative": "no"})
        world.finish("a", "n", sibling="main.negative")
        world.finish("a", "x", sibling="main")
        world.finish("t", "n", sibling="main.negative")
        assert lines(world.lose("a")) == ["close a[0]@0"]
        world.finish("t", "y", sibling="main")
        assert lines(world.finish("b", "image")) == ["emit b@0=image stop last", "end r completed"]

    @pytest.mark.rule("ORCH-INV-204")
    @pytest.mark.parametrize(
        ("stage", "awaited"), [("a", "capacity at stage 'a'"), ("b", "companions negative at stage 'b'")]
    )
    def test_the_error_of_a_wait_names_what_was_awaited(self, stage: str, awaited: str) -> None:
        world = World(*guided(limits=Limits(max_inflight=1 if stage == "a" else 2, queue_timeout_s=9.0)))
        world.submit(companions={"negative": "no"})
        world.finish("a", "x", sibling="main") if stage == "b" else world.start("a", sibling="main")
        if stage == "b":
            world.finish("t", "x", sibling="main")
            world.start("a", sibling="main.negative")
        world.wait(120.0)
        (end,) = world.terminals()
        assert end.error is not None
        assert (end.error.stage, end.error.awaited) == (stage, awaited)

    @pytest.mark.rule("ORCH-INV-115")
    def test_both_run_again_together(self) -> None:
        world = World(*guided(rerun=True), replicas=2)
        world.submit(companions={"negative": "no"})
        assert lines(world.lose("a", 0)) == [
            "close a[0]@0",
            "start r/a on a[1]@0",
            "start r/a/main.negative on a[1]@0",
        ]

    @pytest.mark.rule("ORCH-INV-115")
    def test_when_the_replica_drains_before_it_began_it_goes_to_another(self) -> None:
        world = self.begun(replicas=2)
        assert lines(world.effects)[-1] == "start r/a on a[0]@0"
        assert lines(world.drain("a", 0)) == ["start r/a/main.negative on a[1]@0"]

    def test_prompts_that_no_replica_got_are_released(self) -> None:
        world = self.begun()
        assert lines(world.cancel()) == ["release no", "stop r/a", "end r aborted"]
        world = World(*guided(limits=ONE))
        world.gate(GateAction.HOLD)
        world.submit(prompt="yes", companions={"negative": "no"})
        assert lines(world.cancel()) == ["release yes,no", "end r aborted"]

    def test_a_companion_that_never_ran_leaves_its_prompt_even_when_the_request_completes(self) -> None:
        world = self.begun()
        assert lines(world.finish("a", sibling="main")) == ["emit b@0= stop last", "release no", "end r completed"]

    @pytest.mark.rule("ORCH-INV-213")
    def test_an_abort_stops_them_too(self) -> None:
        world = World(*guided())
        world.submit(companions={"negative": "no"})
        assert lines(world.abort("r")) == ["stop r/a", "stop r/a/main.negative"]
        world.stopped("a", sibling="main")
        assert lines(world.stopped("a", "partial", sibling="main.negative")) == [
            "release partial",
            "emit b@0= abort last",
            "end r aborted",
            "reply 1: r aborted",
        ]
        assert world.core.is_idle


@pytest.mark.rule("ORCH-INV-116", "ORCH-INV-202")
def test_the_loss_of_a_stage_fails_only_requests_that_need_it_for_certain() -> None:
    world = World(
        make_stage("r", labels=("yes", "no"), output="text"),
        make_stage("a", on_label("r", "yes"), output="out", limits=ONE),
    )
    for request_id in ("runs", "queued", "undecided"):
        world.submit(request_id)
    world.finish("r", "x", request_id="runs", label="yes")
    world.finish("r", "x", request_id="queued", label="yes")
    assert [line for line in lines(world.lose("a")) if line.startswith("end")] == [
        "end runs failed replica_lost",
        "end queued failed stage_unavailable",
    ]
    assert lines(world.finish("r", "x", request_id="undecided", label="no"))[-1] == "end undecided completed"


@pytest.mark.rule("ORCH-INV-215")
class TestRunningAgain:
    def test_a_failed_job_runs_again_once_with_its_saved_input(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="out", rerun=True, limits=ONE))
        world.submit()
        world.produce("a", "x")
        assert lines(world.fail("b")) == ["start r/b on b[0]@0 a=x open"]
        assert lines(world.finish("a", "y")) == ["feed r/b a@1=y", "end input r/b a stop"]
        assert world.core.statistics().counters.reruns == 1
        assert lines(world.fail("b")) == ["end r failed stage_failed"]
        assert world.core.is_idle

    def test_not_when_something_of_it_was_shown(self) -> None:
        world = single(rerun=True)
        world.submit()
        world.produce("a", "x")
        assert lines(world.fail("a")) == ["end r failed stage_failed"]

    def test_not_when_its_client_is_at_fault(self) -> None:
        world = single(rerun=True)
        world.submit()
        start = world.at("a")
        error = an_error("no", ErrorKind.INVALID_REQUEST)
        assert lines(world.tell(StageFailed(start.replica, start.job, error))) == ["end r failed invalid_request"]

    def test_a_draining_replica_leaves_and_another_one_goes_on(self) -> None:
        world = single(rerun=True, replicas=2)
        world.submit()
        world.drain("a", 0)
        assert lines(world.fail("a")) == ["close a[0]@0", "start r/a on a[1]@0"]

    def test_with_no_replica_left_it_fails(self) -> None:
        world = single(rerun=True)
        world.submit()
        world.drain("a", 0)
        assert lines(world.fail("a")) == ["close a[0]@0", "end r failed stage_unavailable"]


class TestWhatIsLeft:
    """What a request leaves behind in the tables, and what it does not."""

    @pytest.mark.rule("ORCH-INV-213")
    def test_what_came_early_is_released_when_the_job_fails(self) -> None:
        world = single()
        world.submit()
        world.produce("a", "early", sequence=1)
        world.fail("a")
        assert world.released() == ["early"]

    @pytest.mark.rule("ORCH-INV-205")
    def test_a_deadline_does_not_end_what_is_being_aborted(self) -> None:
        world = single()
        world.submit(deadline=1.0)
        world.abort("r")
        assert world.wait(1.5) == []
        assert "end r aborted" in lines(world.stopped("a", "x"))

    @pytest.mark.rule("ORCH-INV-210")
    def test_an_abort_withdraws_what_is_queued_while_the_rest_stops(self) -> None:
        world = World(make_stage("a", output="out"), make_stage("b", output="more", limits=ONE))
        world.submit("first", outputs=("more",))
        world.submit()
        assert lines(world.abort("r")) == ["stop r/a"]
        assert world.core.statistics().stages["b"].queued == 0

    @pytest.mark.rule("ORCH-INV-118")
    def test_a_credit_that_is_given_back_goes_to_what_waits(self) -> None:
        world = single()
        world.submit("first")
        world.submit("second")
        assert any(line.startswith("start second/a") for line in lines(world.finish("a", request_id="first")))

    @pytest.mark.rule("ORCH-INV-211")
    def test_an_id_is_remembered_when_its_request_has_ended(self) -> None:
        world = single()
        world.submit()
        world.finish("a")
        assert lines(world.abort("r")) == ["reply 1: r already_ended"]

    @pytest.mark.rule("ORCH-INV-213")
    def test_a_held_request_that_is_cancelled_is_not_held_any_more(self) -> None:
        world = single()
        world.gate(GateAction.HOLD)
        world.submit()
        world.cancel()
        assert world.core.statistics().held == 0

    @pytest.mark.rule("ORCH-INV-213")
    def test_the_deadline_of_a_request_goes_with_it(self) -> None:
        world = single()
        world.submit(deadline=5.0)
        world.finish("a")
        assert world.core.next_deadline() is None

    @pytest.mark.rule("ORCH-INV-207")
    def test_samples_have_ended_when_all_of_them_have(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit(samples=2)
        world.finish("a", sibling="0")
        assert lines(world.abort("r", samples=(0, 1))) == ["stop r/a/1"]

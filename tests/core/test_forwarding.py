"""How work moves on: what starts when, who gets which output, how ends travel."""

from __future__ import annotations

import pytest

from podium.core.effects import EmitOutput, StageTimings, StartJob
from podium.core.events import Finish, FinishReason, JobOutput, StageProduced
from podium.core.graph import EdgeMode, EmptyPolicy, Limits, Stage
from podium.core.lifecycle import GateAction
from tests.support.core_world import World, chain, complete, guided, lines, make_stage, on_label, streaming, voice

SMALL = Limits(max_inflight=1, max_queued=9, max_buffered_chunks=2, first_output_timeout_s=20.0, chunk_timeout_s=5.0)


class TestStarting:
    def test_a_first_stage_starts_with_the_prompt_and_its_parameters(self) -> None:
        world = World(*voice())
        (start,) = world.submit(prompt="hello", params={"a": {"seed": 1}, "b": {}}, priority=3, deadline=60.0)
        assert isinstance(start, StartJob)
        assert (start.prompt, start.params, start.inputs, start.input_open) == ("hello", {"seed": 1}, (), False)
        assert (start.priority, start.deadline) == (3, 60.0)

    @pytest.mark.rule("ORCH-INV-116")
    def test_behind_a_streaming_edge_at_the_first_chunk(self) -> None:
        world = World(*voice())
        world.submit()
        assert lines(world.start("a")) == []
        assert lines(world.produce("a", "x")) == ["emit a@0=x", "start r/b on b[0]@0 a=x open"]

    @pytest.mark.rule("ORCH-INV-116")
    def test_behind_a_complete_edge_at_the_end_of_the_source(self) -> None:
        world = World(*chain(EdgeMode.COMPLETE, 2))
        world.submit()
        assert lines(world.produce("a", "x")) == []
        assert lines(world.finish("a", "y", reason=FinishReason.LENGTH)) == ["start r/b on b[0]@0 a=x,y length"]

    @pytest.mark.rule("ORCH-INV-116")
    def test_prewarmed_before_its_first_input(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="out", prewarm=True))
        assert lines(world.submit()) == ["start r/b on b[0]@0 a= open", "start r/a on a[0]@0"]
        assert lines(world.produce("a", "x")) == ["feed r/b a@0=x"]

    def test_prewarmed_behind_a_complete_edge(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="out", prewarm=True))
        world.submit()
        assert lines(world.produce("a", "x")) == []
        assert lines(world.finish("a", "y")) == ["feed r/b a@0=x,y", "end input r/b a stop"]

    def test_prewarmed_late_and_behind_a_complete_edge(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="out", prewarm=True, limits=SMALL))
        world.submit("first")
        world.submit()
        world.produce("a", "x")
        assert lines(world.fail("b", "first"))[-1] == "start r/b on b[0]@0 a= open"
        assert lines(world.finish("a", "y")) == ["feed r/b a@0=x,y", "end input r/b a stop"]

    def test_prewarmed_and_queued_when_its_first_input_comes(self) -> None:
        stages = make_stage("a"), make_stage("b", streaming("a"), output="out", prewarm=True, limits=SMALL)
        world = World(*stages)
        world.submit("first")
        world.submit("second")
        assert lines(world.produce("a", "x", request_id="second")) == []
        assert lines(world.finish("b", request_id="first"))[-1] == "start second/b on b[0]@0 a=x open"

    @pytest.mark.rule("ORCH-INV-116")
    def test_a_join_waits_for_every_source(self) -> None:
        world = World(make_stage("a"), make_stage("b"), make_stage("c", streaming("a"), complete("b"), output="out"))
        world.submit()
        assert lines(world.produce("a", "x")) == []
        assert lines(world.produce("a", "y")) == []
        assert lines(world.produce("b", "z")) == []
        assert lines(world.finish("b")) == ["start r/c on c[0]@0 a=x,y b=z stop open"]
        assert lines(world.finish("a", "w")) == ["feed r/c a@2=w", "end input r/c a stop"]

    def test_a_join_waits_for_one_source_when_the_other_has_ended(self) -> None:
        world = World(make_stage("a"), make_stage("b"), make_stage("c", streaming("a"), complete("b"), output="out"))
        world.submit()
        assert lines(world.finish("a", "x")) == []
        assert lines(world.finish("b", "y")) == ["start r/c on c[0]@0 a=x stop b=y stop"]

    def test_a_job_that_waits_for_capacity_starts_with_all_that_came_meanwhile(self) -> None:
        world = World(*chain(EdgeMode.STREAMING, 2)[:1], make_stage("b", streaming("a"), output="out", limits=SMALL))
        for request_id in ("first", "second"):
            world.submit(request_id)
            world.produce("a", "x", request_id=request_id)
        world.finish("a", "y", request_id="second")
        assert lines(world.finish("b", "done", request_id="first"))[-1] == "start second/b on b[0]@0 a=x,y stop"


class TestOutputs:
    @pytest.mark.rule("ORCH-INV-105", "ORCH-INV-106")
    def test_each_final_stage_has_its_own_finish_and_the_last_one_ends_the_request(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        assert lines(world.finish("a", "y", reason=FinishReason.LENGTH)) == [
            "emit a@1=y length",
            "feed r/b a@1=y",
            "end input r/b a length",
        ]
        assert lines(world.finish("b", "z")) == ["emit b@3=z stop last", "end r completed"]

    def test_a_finish_says_when_the_stage_was_where(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        for seconds, happens in ((1.0, world.start), (1.0, world.produce)):
            world.wait(seconds)
            happens("a")
        world.wait(1.0)
        world.produce("a", "x")
        world.wait(1.0)
        emit = world.finish("a", "y")[0]
        assert isinstance(emit, EmitOutput)
        assert emit.timings == StageTimings(0.0, 0.0, 1.0, 3.0, 4.0)
        assert emit.finish == Finish(FinishReason.STOP)

    @pytest.mark.rule("ORCH-INV-103", "ORCH-INV-104")
    def test_deliveries_out_of_order_are_put_in_order(self) -> None:
        world = World(*voice())
        world.submit()
        assert lines(world.produce("a", "y", sequence=1)) == []
        assert lines(world.produce("a", "x", sequence=0)) == ["emit a@0=x,y", "start r/b on b[0]@0 a=x,y open"]
        assert lines(world.produce("a", "y'", "z", sequence=1)) == ["release y'", "emit a@2=z", "feed r/b a@2=z"]

    def test_what_is_delivered_without_a_start_counts_as_started(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        world.wait(3.0)
        world.produce("a", "x")
        emit = world.finish("a")[0]
        assert isinstance(emit, EmitOutput)
        assert emit.timings == StageTimings(0.0, 0.0, 3.0, 3.0, 3.0)
        assert world.wait(1000.0) == []

    def test_a_delivery_of_nothing_changes_nothing(self) -> None:
        world = World(*voice())
        world.submit()
        assert world.produce("a") == []

    def test_too_much_out_of_order(self) -> None:
        world = World(make_stage("a", output="out", limits=SMALL))
        world.submit()
        world.produce("a", "b", "c", sequence=1)
        effects = world.produce("a", "d", sequence=3)
        assert lines(effects) == ["release b,c,d", "stop r/a", "end r failed buffer_overflow"]
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.message == "stage 'a' got more than 2 chunks out of order (limits.max_buffered_chunks)"

    def test_too_much_out_of_order_ends_an_abort_too(self) -> None:
        world = World(make_stage("a", output="out", limits=SMALL))
        world.submit()
        world.abort("r")
        effects = world.produce("a", "b", "c", "d", sequence=1)
        assert lines(effects) == ["release b,c,d", "end r failed buffer_overflow", "reply 1: r failed"]

    def test_too_much_for_a_consumer_that_has_not_started(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="out", limits=SMALL))
        world.submit()
        world.produce("a", "x", "y")
        effects = world.produce("a", "z")
        assert lines(effects) == ["stop r/a", "release x,y,z", "end r failed buffer_overflow"]
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.message == (
            "stage 'b' got more than 2 chunks from 'a', before they could be used (limits.max_buffered_chunks)"
        )

    def test_a_failure_on_the_way_to_the_first_consumer_spares_the_others(self) -> None:
        world = World(
            make_stage("a"),
            make_stage("b", complete("a"), output="out", limits=SMALL),
            make_stage("c", streaming("a"), output="more"),
        )
        world.submit()
        effects = lines(world.produce("a", "x", "y", "z"))
        assert "start r/c on c[0]@0 a=x,y,z open" not in effects
        assert effects[-1] == "end r failed buffer_overflow"

    def test_a_consumer_that_ended_early_gets_no_more(self) -> None:
        world = World(make_stage("a", output="text"), make_stage("b", streaming("a"), output="speech"))
        world.submit()
        world.produce("a", "x")
        world.finish("b", "spoken")
        assert lines(world.produce("a", "y")) == ["emit a@3=y"]
        assert lines(world.finish("a")) == ["emit a@4= stop last", "end r completed"]

    def test_what_only_an_ended_consumer_would_have_got_is_released(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="speech"), make_stage("c", output="text"))
        world.submit()
        world.produce("a", "x")
        world.finish("b")
        assert lines(world.produce("a", "y")) == ["release y"]

    def test_the_last_output_of_a_request_feeds_nobody(self) -> None:
        world = World(
            make_stage("a", output="text"),
            make_stage("b"),
            make_stage("c", complete("a")),
            make_stage("d", complete("b"), complete("c"), output="out"),
        )
        world.submit()
        assert lines(world.finish("b")) == ["emit d@0= stop"]
        assert lines(world.finish("a", "x")) == ["emit a@1=x stop last", "end r completed"]


class TestDetached:
    """A request is over, and a replica has not confirmed yet that it stopped."""

    @pytest.fixture
    def world(self) -> World:
        world = World(make_stage("a", output="out", limits=SMALL))
        world.submit()
        world.start("a")
        world.cancel()
        return world

    @pytest.mark.rule("ORCH-INV-100", "ORCH-INV-110")
    def test_what_still_comes_is_released(self, world: World) -> None:
        assert lines(world.produce("a", "x")) == ["release x"]
        assert lines(world.produce("a", "z", sequence=5)) == ["release z"]
        assert world.core.statistics().counters.dropped == 2

    @pytest.mark.parametrize("sequence", [0, 7])
    def test_a_finish_gives_the_credit_back(self, world: World, sequence: int) -> None:
        world.submit("next")
        effects = world.produce("a", sequence=sequence, finish=FinishReason.STOP)
        assert lines(effects) == ["start next/a on a[0]@0"]

    def test_an_abort_of_the_engine_waits_for_the_confirmation(self, world: World) -> None:
        world.submit("next")
        assert lines(world.finish("a", reason=FinishReason.ABORT)) == []
        assert lines(world.stopped("a")) == ["start next/a on a[0]@0"]


class TestFinishes:
    @pytest.mark.rule("ORCH-INV-108")
    def test_an_abort_of_the_engine_aborts_the_request(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        assert lines(world.finish("a", "y", reason=FinishReason.ABORT)) == ["emit a@1=y", "feed r/b a@1=y", "stop r/b"]
        assert lines(world.stopped("b", "z")) == ["emit a@2= abort", "emit b@3= abort partial=z last", "end r aborted"]

    @pytest.mark.rule("ORCH-INV-108")
    def test_an_error_of_the_engine_fails_the_request(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        effects = world.finish("a", "y", reason=FinishReason.ERROR)
        assert lines(effects) == ["emit a@1=y", "feed r/b a@1=y", "stop r/b", "end r failed stage_failed"]
        (end,) = world.terminals()
        assert end.error is not None
        assert (end.error.message, end.error.stage, end.error.replica) == (
            "stage 'a' ended the request with an error",
            "a",
            0,
        )

    @pytest.mark.parametrize("reason", FinishReason)
    def test_a_request_that_failed_on_the_way_ends_once(self, reason: FinishReason) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="out", limits=SMALL))
        world.submit()
        world.finish("a", "x", "y", "z", reason=reason)
        assert [end.error.kind for end in world.terminals() if end.error] == ["buffer_overflow"]
        assert world.core.statistics().stages["a"].running == 0

    @pytest.mark.rule("ORCH-INV-108")
    def test_nothing_from_a_final_stage_is_an_empty_output(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        assert lines(world.finish("a")) == ["emit a@0= stop last", "end r completed"]

    @pytest.mark.rule("ORCH-INV-108")
    def test_nothing_is_an_error_where_the_stage_says_so(self) -> None:
        world = World(make_stage("a", on_empty=EmptyPolicy.ERROR), make_stage("b", complete("a"), output="out"))
        world.submit()
        assert lines(world.finish("a")) == ["end r failed stage_failed"]
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.message == "stage 'a' finished without any output (on_empty: error)"

    def test_nothing_during_an_abort_is_an_empty_output(self) -> None:
        world = World(make_stage("a", output="out", on_empty=EmptyPolicy.ERROR))
        world.submit()
        world.abort("r")
        assert lines(world.finish("a")) == ["emit a@0= stop last", "end r completed", "reply 1: r already_ended"]

    @pytest.mark.rule("ORCH-INV-108", "ORCH-INV-109")
    def test_nothing_for_the_next_stages_ends_them_too(self) -> None:
        world = World(*chain(EdgeMode.STREAMING))
        world.submit()
        assert lines(world.finish("a")) == ["emit c@0= stop last", "end r completed"]

    @pytest.mark.rule("ORCH-INV-109")
    def test_nothing_reaches_a_consumer_that_runs_already(self) -> None:
        world = World(
            make_stage("a"),
            make_stage("b", complete("a")),
            make_stage("c", streaming("b"), output="out", prewarm=True),
        )
        world.submit()
        assert lines(world.finish("a")) == ["end input r/c b stop"]

    def test_a_skipped_stage_is_skipped_once(self) -> None:
        world = World(
            make_stage("a"),
            make_stage("b"),
            make_stage("c", complete("a"), complete("b"), output="out"),
            make_stage("d", complete("b"), output="more"),
        )
        world.submit()
        assert lines(world.finish("a")) == ["emit c@0= stop"]
        assert lines(world.finish("b")) == ["emit d@1= stop last", "end r completed"]


class TestAborting:
    """A request that is being aborted still delivers what was computed, and starts nothing."""

    def test_output_of_a_final_stage_is_delivered(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        assert lines(world.produce("a", "y")) == ["emit a@1=y"]

    def test_output_of_another_stage_is_released(self) -> None:
        world = World(*chain(EdgeMode.STREAMING, 2))
        world.submit()
        world.abort("r")
        assert lines(world.produce("a", "x")) == ["release x"]
        assert lines(world.finish("a", "y")) == [
            "release y",
            "emit b@0= abort last",
            "end r aborted",
            "reply 1: r aborted",
        ]

    def test_a_finish_that_comes_first_counts(self) -> None:
        world = World(*voice())
        world.submit()
        world.produce("a", "x")
        world.abort("r")
        assert lines(world.finish("a", "y")) == ["emit a@1=y stop"]
        assert lines(world.finish("b", "z")) == ["emit b@3=z stop last", "end r completed", "reply 1: r already_ended"]

    def test_an_error_is_one_stop_nearer_to_the_end(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        world.abort("r")
        assert lines(world.finish("a", reason=FinishReason.ERROR))[:2] == ["emit a@0= abort last", "end r aborted"]

    def test_an_abort_of_the_engine_is_confirmed_by_the_stop(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        world.abort("r")
        assert lines(world.finish("a", "x", reason=FinishReason.ABORT)) == ["emit a@0=x"]
        assert lines(world.stopped("a", "x"))[0] == "emit a@1= abort partial=x last"


class TestOpenInput:
    def test_it_is_fed_and_ended_like_any_source(self) -> None:
        world = World(make_stage("a", output="out"))
        assert lines(world.submit(input_open=True)) == ["start r/a on a[0]@0 prompt= open"]
        world.start("a")
        assert lines(world.append("x", "y")) == ["feed r/a prompt@0=x,y"]
        assert lines(world.append("z", last=True)) == ["feed r/a prompt@2=z", "end input r/a prompt stop"]

    def test_what_comes_before_the_start_waits_for_it(self) -> None:
        world = World(make_stage("a", output="out", limits=SMALL))
        world.submit("first")
        world.submit(input_open=True)
        assert lines(world.append("x")) == []
        assert lines(world.append(last=True)) == []
        assert lines(world.finish("a", request_id="first"))[-1] == "start r/a on a[0]@0 prompt=x stop"

    def test_only_first_stages_get_it(self) -> None:
        world = World(*voice())
        world.submit(input_open=True)
        world.produce("a", "x")
        assert lines(world.append("y")) == ["feed r/a prompt@0=y"]

    @pytest.mark.rule("ORCH-INV-100")
    def test_a_failure_at_one_stage_feeds_no_other(self) -> None:
        world = World(
            make_stage("a", output="one", limits=SMALL), make_stage("b", output="two"), make_stage("c", output="three")
        )
        world.submit("first", outputs=("one",))
        world.submit(input_open=True)
        effects = lines(world.append("x", "y", "z"))
        assert effects[-1] == "end r failed buffer_overflow"
        assert not any(effect.startswith("feed") for effect in effects[effects.index("stop r/b") :])

    def test_a_stage_that_ended_early_gets_no_more(self) -> None:
        world = World(make_stage("a"), make_stage("b", complete("a"), output="out"))
        world.submit(input_open=True)
        world.finish("a", "x")
        assert lines(world.append("late", last=True)) == ["release late"]

    def test_with_the_client_silent_for_too_long(self) -> None:
        world = World(make_stage("a", output="out", limits=SMALL))
        world.submit(input_open=True)
        world.start("a")
        world.wait(3.0)
        world.append("x")
        assert world.wait(4.9) == []
        assert lines(world.wait(0.1)) == ["stop r/a", "end r failed wait_timeout"]
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.awaited == "next input from the client at stage 'a'"

    def test_a_client_that_goes_on_does_not_hide_a_replica_that_never_starts(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit(input_open=True)
        for _ in range(3):
            world.wait(10.0)
            world.append("x")
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.awaited == "confirmation of the start at stage 'a'"


class TestWaits:
    """What a running job waits for; each wait is tried where it expires, in test_orchestrator."""

    def test_a_stage_waits_for_its_source_while_that_is_open(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="out", limits=SMALL))
        world.submit()
        world.produce("a", "x")
        world.start("b")
        world.wait(30.0)
        world.produce("a", "y")
        assert world.terminals() == []
        world.finish("a")
        assert world.wait(19.9) == []
        assert lines(world.wait(0.1))[-1] == "end r failed wait_timeout"

    def test_the_end_of_a_source_does_not_start_a_job(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="out"))
        world.submit()
        world.produce("a", "x")
        assert lines(world.finish("a")) == ["end input r/b a stop"]
        assert lines(world.wait(30.0))[-1] == "end r failed wait_timeout"
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.awaited == "confirmation of the start at stage 'b'"

    def test_a_stage_that_has_begun_waits_for_the_next_chunk(self) -> None:
        world = World(make_stage("a"), make_stage("b", streaming("a"), output="out", limits=SMALL))
        world.submit()
        world.produce("a", "x")
        world.produce("b", "y")
        world.finish("a")
        world.wait(4.0)
        world.produce("b", "z")
        assert world.wait(4.0) == []
        assert lines(world.wait(1.0))[-1] == "end r failed wait_timeout"

    def test_a_second_start_of_a_job_changes_nothing(self) -> None:
        world = World(make_stage("a", output="out", limits=SMALL))
        world.submit()
        world.start("a")
        world.wait(10.0)
        world.start("a")
        assert lines(world.wait(10.0))[-1] == "end r failed wait_timeout"


@pytest.mark.rule("ORCH-INV-118")
def test_as_many_jobs_start_as_there_are_credits() -> None:
    world = World(make_stage("a", output="out", limits=SMALL), replicas=2)
    for request_id in ("r0", "r1", "r2"):
        world.submit(request_id)
    assert [line for line in lines(world.effects) if line.startswith("start")] == [
        "start r0/a on a[0]@0",
        "start r1/a on a[1]@0",
    ]
    assert lines(world.finish("a", request_id="r1"))[-1] == "start r2/a on a[1]@0"


def test_one_delivery_can_be_of_several_jobs() -> None:
    world = World(make_stage("a", output="out"))
    world.submit("r")
    world.submit("s")
    first, second = world.at("a", "r"), world.at("a", "s")
    outputs = (JobOutput(first.job, 0, ("r0",)), JobOutput(second.job, 0, ("s0",)))
    assert lines(world.tell(StageProduced(first.replica, outputs))) == ["emit a@0=r0", "emit a@0=s0"]


class TestSiblings:
    @pytest.mark.rule("ORCH-INV-114")
    def test_every_sample_runs_through_all_stages_with_its_index(self) -> None:
        world = World(*voice())
        assert lines(world.submit(prompt="p", samples=2)) == ["start r/a/0 on a[0]@0", "start r/a/1 on a[0]@0"]
        assert {world.at("a", sibling=name).prompt for name in "01"} == {"p"}
        assert lines(world.produce("a", "x", sibling="1")) == ["emit a[1]@0=x", "start r/b/1 on b[0]@0 a=x open"]
        assert lines(world.produce("a", "y", sibling="0")) == ["emit a@1=y", "start r/b/0 on b[0]@0 a=y open"]
        assert lines(world.finish("a", "z", sibling="1")) == [
            "emit a[1]@2=z stop",
            "feed r/b/1 a@1=z",
            "end input r/b/1 a stop",
        ]
        assert lines(world.finish("b", "s", sibling="1")) == ["emit b[1]@4=s stop"]
        assert lines(world.finish("a", sibling="0")) == ["emit a@6= stop", "end input r/b/0 a stop"]
        assert lines(world.finish("b", sibling="0")) == ["emit b@7= stop last", "end r completed"]

    @pytest.mark.rule("ORCH-INV-113", "ORCH-INV-115")
    def test_a_bundle_is_joined_when_all_of_it_is_there(self) -> None:
        world = World(*guided(), replicas=2)
        world.submit("other")
        submitted = world.submit(prompt="yes", companions={"negative": "no", "style": "so"})
        assert lines(submitted) == [
            "start r/a on a[1]@0",
            "start r/a/main.negative on a[1]@0",
            "start r/a/main.style on a[1]@0",
        ]
        assert [one.prompt for one in submitted if isinstance(one, StartJob)] == ["yes", "no", "so"]
        for sibling in ("main.style", "main", "main.negative"):
            world.finish("a", f"a-{sibling}", sibling=sibling)
        world.finish("t", "t-main", sibling="main")
        world.finish("t", "t-style", sibling="main.style")
        assert lines(world.finish("t", "t-negative", sibling="main.negative")) == [
            (
                "start r/b on b[0]@0 a=a-main stop t=t-main stop a.negative=a-main.negative stop "
                "t.negative=t-negative stop a.style=a-main.style stop t.style=t-style stop"
            )
        ]
        assert lines(world.finish("b", "image")) == ["emit b@0=image stop last", "end r completed"]

    @pytest.mark.rule("ORCH-INV-115")
    def test_a_companion_that_is_ready_first_waits_for_its_sample_without_a_limit_of_its_own(self) -> None:
        world = World(*guided(limits=Limits(queue_timeout_s=1.0, chunk_timeout_s=90.0)), replicas=2)
        world.submit(companions={"negative": "no"})
        assert lines(world.finish("a", "x", sibling="main.negative")) == []
        assert world.core.statistics().stages["t"].queued == 1
        world.start("a", sibling="main")
        assert lines(world.wait(60.0)) == []
        assert lines(world.finish("a", "y", sibling="main")) == [
            "start r/t on t[0]@0 a=y stop",
            "start r/t/main.negative on t[0]@0 a=x stop",
        ]

    @pytest.mark.rule("ORCH-INV-113", "ORCH-INV-204")
    def test_a_bundle_has_a_limit_from_when_only_companions_are_missing(self) -> None:
        world = World(*guided(limits=Limits(bundle_timeout_s=20.0)))
        world.submit(companions={"negative": "no", "style": "so"})
        world.finish("a", "x", sibling="main")
        world.wait(5.0)
        world.finish("t", "y", sibling="main")
        for stage in ("a", "t"):
            world.finish(stage, "z", sibling="main.style")
        world.start("a", sibling="main.negative")
        assert world.wait(19.0) == []
        assert lines(world.wait(1.0)) == [
            "release y,z",
            "stop r/a/main.negative",
            "end r failed wait_timeout",
        ]
        (end,) = world.terminals()
        assert end.error is not None
        assert end.error.awaited == "companions negative at stage 'b'"
        assert end.error.message == (
            "timed out after 20 s waiting for companions negative at stage 'b' (limits.bundle_timeout_s)"
        )

    def test_a_companion_that_makes_nothing_ends_what_joins_it(self) -> None:
        world = World(*guided(), make_stage("c", complete("a"), output="text"))
        world.submit(companions={"negative": "no", "style": "so"})
        world.finish("a", "x", sibling="main")
        world.finish("a", "n", sibling="main.negative")
        assert lines(world.finish("a", sibling="main.style")) == [
            "emit b@0= stop",
            "stop r/t/main.negative",
        ]
        assert lines(world.finish("c", "t")) == ["emit c@1=t stop last", "stop r/t", "end r completed"]

    def test_a_sample_that_makes_nothing_ends_its_companions(self) -> None:
        world = World(*guided(), make_stage("c", output="text"))
        world.submit(companions={"negative": "no"})
        assert lines(world.finish("a", sibling="main")) == ["emit b@0= stop", "stop r/a/main.negative"]
        assert lines(world.finish("c", "t")) == ["emit c@1=t stop last", "end r completed"]

    def test_companions_go_on_for_a_stage_that_still_joins_them(self) -> None:
        stages = (
            make_stage("a"),
            make_stage("t"),
            make_stage("b", complete("a"), output="image", joins=True),
            make_stage("c", complete("t"), output="video", joins=True),
        )
        world = World(*stages)
        world.submit(companions={"negative": "no"})
        assert lines(world.finish("a", sibling="main")) == ["emit b@0= stop", "stop r/a/main.negative"]
        world.finish("t", "y", sibling="main")
        assert lines(world.finish("t", "n", sibling="main.negative")) == [
            "start r/c on c[0]@0 t=y stop t.negative=n stop"
        ]

    def test_companions_without_a_sample_to_follow_may_go_anywhere(self) -> None:
        stages = (
            make_stage("a"),
            make_stage("t", complete("a")),
            make_stage("u", streaming("t"), prewarm=True),
            make_stage("b", complete("u"), output="image", joins=True),
        )
        world = World(*stages, replicas=2)
        world.submit(companions={"negative": "no"})
        world.finish("a", "n", sibling="main.negative")
        assert lines(world.finish("a", sibling="main")) == [
            "end input r/u t stop",
            "start r/t/main.negative on t[0]@0 a=n stop",
        ]

    def test_chunks_that_companions_make_are_limited_too(self) -> None:
        world = World(*guided(limits=Limits(max_buffered_chunks=2)))
        world.submit(companions={"negative": "no"})
        world.produce("a", 1, 2, 3, sibling="main.negative")
        (end,) = world.terminals()
        assert end.error is not None
        assert "more than 2 chunks from 'a', before they could be used" in end.error.message

    @pytest.mark.rule("ORCH-INV-114")
    def test_a_stage_that_aborts_a_sample_by_itself_leaves_the_others(self) -> None:
        world = World(*voice())
        world.submit(samples=2)
        assert lines(world.finish("a", "x", sibling="1", reason=FinishReason.ABORT)) == [
            "emit a[1]@0=x",
            "emit a[1]@1= abort",
            "emit b[1]@2= abort",
        ]

    def test_a_sample_ends_with_a_stage_that_is_skipped(self) -> None:
        world = World(*voice())
        world.submit(samples=2)
        assert lines(world.finish("a", sibling="0")) == ["emit a@0= stop", "emit b@1= stop"]
        assert lines(world.finish("a", sibling="1")) == [
            "emit a[1]@2= stop",
            "emit b[1]@3= stop last",
            "end r completed",
        ]

    def test_what_works_for_a_sample_that_has_ended_is_stopped(self) -> None:
        stages = (make_stage("a"), make_stage("b", streaming("a"), output="out"))
        world = World(*stages)
        world.submit(samples=2)
        world.produce("a", "x", sibling="0")
        assert lines(world.finish("b", "y", sibling="0")) == ["emit b@0=y stop", "stop r/a/0"]
        assert lines(world.produce("a", "late", sibling="0")) == ["release late"]
        assert lines(world.stopped("a", "partial", sibling="0")) == ["release partial"]

    def test_a_sample_that_was_aborted_at_a_closed_gate_is_not_begun(self) -> None:
        world = World(*voice())
        world.gate(GateAction.HOLD)
        world.submit(samples=2)
        assert lines(world.abort("r", samples=(0,))) == ["emit a@0= abort", "emit b@1= abort", "reply 1: r aborted"]
        assert lines(world.gate(GateAction.OPEN)) == ["start r/a/1 on a[0]@0"]

    @pytest.mark.rule("ORCH-INV-114")
    def test_a_sample_that_is_being_stopped_gets_no_more_input(self) -> None:
        world = World(make_stage("a", output="out", limits=Limits(max_buffered_chunks=2)))
        world.submit(input_open=True, samples=2)
        world.abort("r", samples=(0,))
        assert lines(world.append(1, 2, 3)) == ["feed r/a/1 prompt@0=1,2,3"]
        assert lines(world.append(last=True)) == ["end input r/a/1 prompt stop"]

    def test_what_still_works_for_a_sample_that_has_ended_gets_no_more_input(self) -> None:
        world = World(
            make_stage("a", limits=Limits(max_buffered_chunks=2)), make_stage("b", streaming("a"), output="out")
        )
        world.submit(input_open=True, samples=2)
        world.produce("a", "x", sibling="0")
        world.finish("b", "y", sibling="0")
        assert lines(world.append(1, 2, 3, last=True)) == [
            "feed r/a/1 prompt@0=1,2,3",
            "end input r/a/1 prompt stop",
        ]

    @pytest.mark.rule("ORCH-INV-115")
    def test_a_companion_that_is_not_joined_any_more_gets_nothing(self) -> None:
        world = World(
            make_stage("a"),
            make_stage("t", streaming("a"), limits=Limits(max_buffered_chunks=2)),
            make_stage("b", complete("t"), output="image", joins=True),
            make_stage("c", complete("a"), output="video", joins=True),
        )
        world.submit(companions={"negative": "no"})
        world.finish("a", "x", sibling="main")
        world.produce("a", "n", sibling="main.negative")
        assert lines(world.finish("t", sibling="main")) == ["emit b@0= stop", "stop r/t/main.negative"]
        assert world.produce("a", 1, 2, 3, sibling="main.negative") == []
        assert lines(world.finish("a", sibling="main.negative")) == [
            "start r/c on c[0]@0 a=x stop a.negative=n,1,2,3 stop"
        ]


@pytest.mark.rule("ORCH-INV-116")
class TestConditions:
    """A router `r` says where to go on: `a` or `b`, which join in `c`."""

    @staticmethod
    def fork(*more: Stage, output: str | None = None) -> World:
        return World(
            make_stage("r", labels=("left", "right", "end"), output=output or "said"),
            make_stage("a", on_label("r", "left")),
            make_stage("b", on_label("r", "right")),
            make_stage("c", complete("a"), streaming("b"), output="out"),
            *more,
        )

    def test_the_edge_with_the_label_is_taken_and_the_join_goes_on_without_the_other(self) -> None:
        world = self.fork()
        world.submit()
        assert lines(world.finish("r", "x", label="left")) == ["emit r@0=x stop", "start r/a on a[0]@0 r=x stop"]
        assert lines(world.finish("a", "y")) == ["start r/c on c[0]@0 a=y stop b= stop"]
        assert lines(world.finish("c", "z"))[-1] == "end r completed"
        assert world.core.is_idle

    def test_the_join_goes_on_when_the_other_source_has_ended_before(self) -> None:
        world = World(
            make_stage("r", labels=("yes", "no"), output="said"),
            make_stage("x"),
            make_stage("c", on_label("r", "yes"), complete("x"), output="out"),
        )
        world.submit()
        world.finish("x", "y")
        assert lines(world.finish("r", "z", label="no")) == ["emit r@0=z stop", "start r/c on c[0]@0 r= stop x=y stop"]

    @pytest.mark.rule("ORCH-INV-108", "ORCH-INV-109")
    def test_what_only_an_untaken_edge_leads_to_is_skipped_and_the_request_ends(self) -> None:
        world = self.fork()
        world.submit()
        assert lines(world.finish("r", "x", label="end")) == [
            "emit r@0=x stop",
            "emit c@2= stop last",
            "end r completed",
        ]
        assert world.core.is_idle

    def test_what_an_untaken_edge_had_kept_is_released(self) -> None:
        world = World(
            make_stage("r", labels=("yes", "no")),
            make_stage("a", on_label("r", "yes"), output="out"),
            make_stage("b", on_label("r", "no"), output="more"),
        )
        world.submit(outputs=("out",))
        world.produce("r", "x")
        assert lines(world.finish("r", "y", label="no")) == ["release x,y", "emit a@0= stop last", "end r completed"]

    def test_what_was_skipped_before_stays_as_it_is(self) -> None:
        world = World(
            make_stage("r", labels=("yes", "no"), output="said"),
            make_stage("x"),
            make_stage("c", on_label("r", "yes"), complete("x"), output="out"),
        )
        world.submit()
        assert lines(world.finish("x")) == ["emit c@0= stop"]
        assert lines(world.finish("r", "z", label="no")) == ["emit r@1=z stop last", "end r completed"]

    def test_what_was_skipped_before_is_left_alone_while_the_request_goes_on(self) -> None:
        world = World(
            make_stage("r", labels=("yes", "no")),
            make_stage("x"),
            make_stage("c", on_label("r", "yes"), complete("x"), output="out"),
            make_stage("d", on_label("r", "no"), output="more"),
        )
        world.submit()
        world.finish("x")
        assert lines(world.finish("r", "z", label="no")) == ["start r/d on d[0]@0 r=z stop"]

    def test_what_is_shared_is_not_released(self) -> None:
        world = self.fork()
        world.submit()
        world.finish("r", "x", label="end")
        assert world.released() == []

    @pytest.mark.rule("ORCH-INV-108")
    def test_an_empty_alternative_ends_what_it_leads_to(self) -> None:
        world = self.fork()
        world.submit()
        world.finish("r", "x", label="left")
        assert lines(world.finish("a")) == ["emit c@2= stop last", "end r completed"]

    @pytest.mark.parametrize(
        ("label", "said"), [(None, "without a label"), ("up", "with 'up'")], ids=["missing", "unknown"]
    )
    def test_a_label_that_is_none_of_the_stage_fails_the_request(self, label: str | None, said: str) -> None:
        world = self.fork()
        world.submit()
        assert lines(world.finish("r", "x", label=label)) == ["release x", "end r failed stage_failed"]
        (end,) = world.terminals()
        assert end.error is not None
        assert (end.error.stage, end.error.replica) == ("r", 0)
        assert end.error.message == f"stage 'r' finished {said}; it may finish with: left, right, end (labels)"

    def test_a_label_of_a_stage_without_labels_means_nothing(self) -> None:
        world = World(make_stage("a", output="out"))
        world.submit()
        assert lines(world.finish("a", "x", label="whatever")) == ["emit a@0=x stop last", "end r completed"]

    def test_labels_do_not_matter_to_what_is_being_aborted(self) -> None:
        world = self.fork()
        world.submit()
        world.abort("r")
        assert lines(world.finish("r", "x"))[:1] == ["emit r@0=x stop"]
        assert [end.error for end in world.terminals()] == [None]

    @pytest.mark.rule("ORCH-INV-202")
    def test_a_stage_that_may_not_be_needed_keeps_nobody_out(self) -> None:
        world = self.fork()
        world.submit("before")
        world.lose("b")
        world.submit("after")
        for request_id in ("before", "after"):
            world.finish("r", "x", request_id=request_id, label="left")
            world.finish("a", "y", request_id=request_id)
            assert lines(world.finish("c", "z", request_id=request_id))[-1] == f"end {request_id} completed"

    @pytest.mark.rule("ORCH-INV-202")
    def test_a_request_fails_once_it_needs_a_stage_without_a_replica(self) -> None:
        world = self.fork()
        world.submit()
        world.lose("b")
        assert lines(world.finish("r", "x", label="right")) == ["emit r@0=x stop", "end r failed stage_unavailable"]
        assert world.core.is_idle


@pytest.mark.rule("ORCH-INV-116")
class TestConditionsAndCompanions:
    """`r` says whether there is an image; `d` makes it of a latent of `m`, joined with that of the companion."""

    @staticmethod
    def image() -> World:
        return World(
            make_stage("r", labels=("yes", "no"), output="text"),
            make_stage("m", on_label("r", "yes")),
            make_stage("d", complete("m"), output="image", joins=True),
        )

    def test_a_companion_goes_where_its_sample_goes_whatever_it_says_itself(self) -> None:
        world = self.image()
        world.submit(companions={"negative": "n"})
        world.finish("r", "x", sibling="main.negative", label="no")
        world.finish("r", "y", sibling="main", label="yes")
        world.finish("m", "z", sibling="main")
        assert lines(world.finish("m", "w", sibling="main.negative")) == [
            "start r/d on d[0]@0 m=z stop m.negative=w stop"
        ]
        assert lines(world.finish("d", "i"))[-1] == "end r completed"
        assert world.core.is_idle

    def test_what_is_passed_over_is_so_for_companions_too_when_they_wait_for_their_leader(self) -> None:
        world = self.image()
        world.submit(companions={"negative": "n"})
        world.finish("r", "x", sibling="main.negative")
        assert lines(world.finish("r", "y", sibling="main", label="no"))[-1] == "end r completed"
        assert world.core.is_idle

    def test_and_when_their_own_source_has_not_ended(self) -> None:
        world = self.image()
        world.submit(companions={"negative": "n"})
        assert lines(world.finish("r", "y", sibling="main", label="no")) == [
            "emit r@0=y stop",
            "emit d@2= stop last",
            "stop r/r/main.negative",
            "end r completed",
        ]
        world.stopped("r", sibling="main.negative")
        assert world.core.is_idle

    def test_a_join_goes_on_with_the_bundle_of_the_way_that_was_taken(self) -> None:
        world = World(
            make_stage("r", labels=("left", "right"), output="text"),
            make_stage("a", on_label("r", "left")),
            make_stage("b", on_label("r", "right")),
            make_stage("d", complete("a"), complete("b"), output="image", joins=True),
        )
        world.submit(companions={"negative": "n"})
        world.finish("r", "x", sibling="main.negative")
        world.finish("r", "y", sibling="main", label="left")
        world.finish("a", "z", sibling="main")
        effects = lines(world.finish("a", "w", sibling="main.negative"))
        assert effects == ["start r/d on d[0]@0 a=z stop b= stop a.negative=w stop b.negative= stop"]

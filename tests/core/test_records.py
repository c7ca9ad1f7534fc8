"""Requests and jobs as records: what they answer about themselves."""

from __future__ import annotations

import pytest

from podium.core.effects import SourceInput, StageTimings
from podium.core.events import Finish, FinishReason, JobOutput, RequestSubmitted
from podium.core.graph import Graph, Limits, Stage
from podium.core.identity import MAIN, PROMPT, JobKey, ReplicaKey
from podium.core.lifecycle import JobTrigger, RequestTrigger
from podium.core.plan import Planner
from podium.core.records import Job, Request, SourceBuffer, Wait
from podium.core.stage_pool import Replica
from podium.errors import InternalError
from tests.support.core_world import complete, guided, make_stage, streaming, voice

REPLICA = Replica(ReplicaKey("b", 0, 0))


def make_request(*stages: Stage, input_open: bool = False) -> Request:
    event = RequestSubmitted(ticket=7, request_id="r", input_open=input_open)
    return Request(event, Planner(Graph(stages or voice())).plan(None), 1, 10.0)


def dispatched(job: Job) -> Job:
    job.advance(JobTrigger.READY)
    job.advance(JobTrigger.DISPATCH)
    job.new_key(1)
    job.replica = REPLICA
    return job


class TestSourceBuffer:
    def test_taking_counts_as_sent(self) -> None:
        buffer = SourceBuffer("a", keeps_history=False)
        begun = [buffer.has_begun]
        buffer.unsent += ["x", "y"]
        begun.append(buffer.has_begun)
        assert buffer.take() == (0, ("x", "y"))
        assert buffer.take() == (2, ())
        begun.append(buffer.has_begun)
        assert begun == [False, True, True]

    def test_a_complete_source_is_due_at_its_end(self) -> None:
        buffer = SourceBuffer("a", keeps_history=False, is_complete=True)
        buffer.unsent.append("x")
        assert buffer.take_due() == (0, ())
        buffer.finish = FinishReason.STOP
        assert buffer.take_due() == (0, ("x",))

    def test_what_goes_at_once_counts_as_sent(self) -> None:
        buffer = SourceBuffer("a", keeps_history=False)
        assert buffer.note_sent(("x", "y")) == 0
        assert buffer.note_sent(("z",)) == 2
        assert buffer.history is None

    def test_a_saved_input_can_be_sent_again(self) -> None:
        buffer = SourceBuffer("a", keeps_history=True)
        buffer.unsent.append("x")
        buffer.take()
        buffer.note_sent(("y",))
        buffer.unsent.append("z")
        buffer.rewind()
        assert buffer.take() == (0, ("x", "y", "z"))

    def test_giving_it_up_leaves_what_a_replica_was_given(self) -> None:
        buffer = SourceBuffer("a", keeps_history=True)
        buffer.note_sent(("x",))
        buffer.rewind()
        buffer.unsent.append("y")
        assert (buffer.drop(), buffer.unsent) == (["y"], [])
        buffer.unsent.append("z")
        assert buffer.drop() == ["z"]

    def test_what_was_not_saved_is_gone(self) -> None:
        buffer = SourceBuffer("a", keeps_history=False)
        buffer.note_sent(("x",))
        buffer.rewind()
        assert buffer.take() == (0, ())


class TestJob:
    def test_repr_says_where_it_is_and_what_it_waits_for(self) -> None:
        job = make_request().jobs[1]
        assert repr(job) == "<Job r/b waiting>"
        dispatched(job).wait = Wait.DISPATCH
        assert repr(job) == "<Job r/b dispatched on b[0]@0, waits for confirmation of the start>"

    def test_questions_about_its_state(self) -> None:
        job = make_request().jobs[0]
        assert (job.is_before_replica, job.is_at_replica, job.is_stopping, job.is_over) == (True, False, False, False)
        dispatched(job)
        assert (job.is_before_replica, job.is_at_replica, job.is_stopping, job.is_over) == (False, True, False, False)
        job.advance(JobTrigger.STOP)
        assert (job.is_at_replica, job.is_stopping) == (True, True)
        job.advance(JobTrigger.STOP_FAILS)
        assert (job.is_at_replica, job.is_stopping) == (True, True)
        job.advance(JobTrigger.CONFIRM_STOP)
        assert (job.is_at_replica, job.is_stopping, job.is_over) == (False, False, True)

    def test_each_attempt_has_a_key_of_its_own(self) -> None:
        job = make_request().jobs[0]
        assert job.new_key(4) == JobKey("r", "a", MAIN, 4)
        assert job.new_key(5) == JobKey("r", "a", MAIN, 5)
        assert job.attempts == 2

    def test_its_place_is_its_replica_and_key(self) -> None:
        assert dispatched(make_request().jobs[1]).place() == (REPLICA.key, JobKey("r", "b", MAIN, 1))

    def test_it_may_run_again_once_and_only_with_nothing_passed_on(self) -> None:
        job = make_request(make_stage("b", output="out", rerun=True)).jobs[0]
        answers = [job.can_rerun]
        job.new_key(1)
        answers.append(job.can_rerun)
        job.order.accept(JobOutput(JobKey("r", "b", MAIN, 1), 0, ("x",)))
        answers.append(job.can_rerun)
        job.rewind()
        answers.append(job.can_rerun)
        job.is_detached = True
        answers.append(job.can_rerun)
        assert answers == [False, True, False, True, False]

    def test_it_may_not_run_again_where_the_stage_does_not_allow_it(self) -> None:
        job = make_request().jobs[0]
        job.new_key(1)
        assert not job.can_rerun

    def test_inputs_are_taken_with_the_ends_of_their_sources(self) -> None:
        job = make_request().jobs[1]
        job.inputs["a"].unsent.append("x")
        job.inputs["a"].finish = FinishReason.STOP
        assert job.take_inputs() == (SourceInput("a", 0, ("x",), FinishReason.STOP),)

    def test_a_first_stage_has_the_prompt_as_source_while_it_is_open(self) -> None:
        assert list(make_request(input_open=True).jobs[0].inputs) == [PROMPT]
        assert list(make_request(input_open=True).jobs[1].inputs) == ["a"]
        assert list(make_request().jobs[0].inputs) == []

    def test_dropped_inputs_are_handed_back_unless_somebody_else_has_them(self) -> None:
        stages = (
            make_stage("a"),
            make_stage("b"),
            make_stage("c", complete("a"), complete("b"), output="out"),
            make_stage("d", streaming("a"), output="more"),
        )
        jobs = {job.stage.name: job for job in make_request(*stages).jobs}
        jobs["c"].inputs["a"].unsent.append("shared")
        jobs["c"].inputs["b"].unsent.append("own")
        assert jobs["c"].drop_inputs() == ["own"]
        assert jobs["c"].drop_inputs() == []

    def test_dropped_inputs_include_what_is_out_of_order(self) -> None:
        job = make_request().jobs[0]
        job.order.accept(JobOutput(JobKey("r", "a", MAIN, 1), 1, ("early",)))
        assert job.drop_inputs() == ["early"]

    def test_rewinding_prepares_a_new_attempt(self) -> None:
        job = dispatched(make_request(make_stage("a"), make_stage("b", streaming("a"), output="o", rerun=True)).jobs[1])
        job.inputs["a"].note_sent(("x",))
        job.order.accept(JobOutput(JobKey("r", "b", MAIN, 1), 0, (), Finish(FinishReason.STOP)))
        job.rewind()
        assert job.replica is None
        assert job.order.expected == 0
        assert job.take_inputs() == (SourceInput("a", 0, ("x",)),)

    def test_timings_are_on_the_clock_of_the_core(self) -> None:
        job = make_request().jobs[0]
        job.queued_at, job.started_at, job.first_output_at, job.finished_at = 11.0, 12.0, 13.0, 14.0
        assert job.timings() == StageTimings(10.0, 11.0, 12.0, 13.0, 14.0)


class TestRequest:
    def test_repr_shows_every_job(self) -> None:
        assert repr(make_request()) == "<Request r held a=waiting b=waiting>"

    def test_it_moves_through_the_table(self) -> None:
        request = make_request()
        request.advance(RequestTrigger.ABORT)
        assert (request.is_aborting, request.is_over) == (True, False)
        request.advance(RequestTrigger.SETTLE)
        assert (request.is_aborting, request.is_over) == (False, True)
        with pytest.raises(InternalError):
            request.advance(RequestTrigger.FAIL)

    def test_a_sample_needs_the_stages_that_have_still_to_do_something_of_use_for_it(self) -> None:
        stages = voice()
        (sample,) = make_request(*stages).samples
        first, second = sample.jobs
        first.is_detached = True
        answers = [sample.needs(stage) for stage in stages]
        second.advance(JobTrigger.CANCEL)
        assert (answers, sample.needs(stages[1])) == ([False, True], False)

    def test_it_is_settled_when_no_replica_works_for_it(self) -> None:
        request = make_request()
        (sample,) = request.samples
        answers = [sample.is_settled]
        dispatched(request.jobs[0])
        answers.append(sample.is_settled)
        request.jobs[0].is_detached = True
        answers.append(sample.is_settled)
        assert answers == [True, False, True]

    def test_what_it_waits_for_in_words(self) -> None:
        request = make_request()
        assert request.awaited() == "admission"
        request.advance(RequestTrigger.ADMIT)
        assert request.awaited() == "its stages"
        dispatched(request.jobs[0])
        assert request.awaited() == "stage 'a'"
        request.jobs[0].wait = Wait.FIRST_OUTPUT
        dispatched(request.jobs[1])
        assert request.awaited() == "first output at stage 'a', stage 'b'"


class TestSiblings:
    def make(self, *, samples: int = 1, input_open: bool = False) -> Request:
        companions = {"negative": "not this"}
        event = RequestSubmitted(
            ticket=7, request_id="r", prompt="this", samples=samples, companions=companions, input_open=input_open
        )
        return Request(event, Planner(Graph(guided())).expand(None, samples, ("negative",), 8), 1, 10.0)

    def test_jobs_read_with_their_sibling(self) -> None:
        request = self.make()
        assert repr(request) == (
            "<Request r held a=waiting t=waiting b=waiting a/main.negative=waiting t/main.negative=waiting>"
        )
        assert repr(request.jobs[3]) == "<Job r/a/main.negative waiting>"
        assert request.jobs[3].new_key(3) == JobKey("r", "a", "main.negative", 3)

    def test_samples_have_their_jobs(self) -> None:
        request = self.make(samples=2)
        assert [len(sample.jobs) for sample in request.samples] == [5, 5]
        assert {job.sample.index for job in request.samples[1].jobs} == {1}
        assert request.open_finals == 2
        sample = request.samples[1]
        assert repr(sample) == "<Sample 1 of r, 1 finals open>"
        sample.is_aborting = True
        assert repr(sample) == "<Sample 1 of r, 1 finals open, aborting>"
        assert not sample.is_over
        sample.open_finals = 0
        assert sample.is_over

    @pytest.mark.parametrize("samples", [1, 2])
    def test_a_prompt_that_is_streamed_is_not_the_companions(self, samples: int) -> None:
        fed = [job.name for job in self.make(samples=samples, input_open=True).jobs if PROMPT in job.inputs]
        assert fed == (["a"] if samples == 1 else ["a/0", "a/1"])

    def test_a_companion_follows_its_sample(self) -> None:
        request = self.make()
        assert request.jobs[3].leader is request.jobs[0]
        assert request.jobs[0].leader is None

    def test_a_joining_job_gets_its_own_first_and_then_its_companions(self) -> None:
        joining = self.make().jobs[2]
        inputs = [(one.source, one.role) for one in joining.take_inputs()]
        assert inputs == [("a", MAIN), ("t", MAIN), ("a", "negative"), ("t", "negative")]
        assert joining.missing == joining.open_sources == 4

    def test_a_joining_job_knows_which_companions_are_missing(self) -> None:
        joining = self.make().jobs[2]
        answers = [joining.lacks_companions_only]
        for buffer in joining.inputs.values():
            buffer.finish = FinishReason.STOP if buffer.role == MAIN else None
        answers.append(joining.lacks_companions_only)
        assert answers == [False, True]
        assert joining.missing_roles == ["negative"]
        joining.wait = Wait.BUNDLE
        joining.request.advance(RequestTrigger.ADMIT)
        assert joining.request.awaited() == "companions at stage 'b'"

    def test_each_sibling_begins_with_its_own_prompt(self) -> None:
        request = self.make()
        assert [request.prompt_of(role) for role in (MAIN, "negative")] == ["this", "not this"]
        assert request.unused_prompts() == ["this", "not this"]
        dispatched(request.jobs[0])
        assert request.unused_prompts() == ["not this"]
        dispatched(request.jobs[3])
        assert request.unused_prompts() == []

    def test_what_is_forgotten_holds_nothing(self) -> None:
        request = self.make()
        sample = request.samples[0]
        request.forget()
        assert (request.jobs, request.samples, sample.jobs) == ((), (), ())


@pytest.mark.rule("ORCH-INV-204")
@pytest.mark.parametrize(
    ("wait", "limit_s"),
    [
        (Wait.NOTHING, 0.0),
        (Wait.QUEUE, 1.0),
        (Wait.DISPATCH, 2.0),
        (Wait.FIRST_OUTPUT, 3.0),
        (Wait.CHUNK, 4.0),
        (Wait.INPUT, 4.0),
        (Wait.BUNDLE, 5.0),
        (Wait.STOP, 6.0),
        (Wait.STUCK, 7.0),
    ],
)
def test_each_wait_has_its_limit(wait: Wait, limit_s: float) -> None:
    limits = Limits(
        queue_timeout_s=1.0,
        dispatch_timeout_s=2.0,
        first_output_timeout_s=3.0,
        chunk_timeout_s=4.0,
        bundle_timeout_s=5.0,
        stop_timeout_s=6.0,
        stuck_timeout_s=7.0,
    )
    (job,) = make_request(make_stage("a", output="out", limits=limits)).jobs
    job.wait = wait
    assert job.wait_limit_s() == limit_s

"""How work moves on: jobs become ready and start, outputs go to their consumers and to the client, sources end.

Which stage runs next is read from the request's plan; nothing here knows an order of stages.
"""

from __future__ import annotations

from typing import assert_never

from podium.core.effects import EndInput, FeedJob, StartJob
from podium.core.ending import (
    abort_samples,
    conclude,
    emit_final,
    end_without,
    fail_request,
    leave_job,
    leave_replica,
    settle,
    unavailable,
)
from podium.core.events import Finish, FinishReason, JobOutput
from podium.core.graph import EdgeMode, EmptyPolicy
from podium.core.identity import MAIN, PROMPT, Payload
from podium.core.lifecycle import FORWARDING, Forwarding, JobState, JobTrigger, RequestTrigger
from podium.core.records import Job, Request, Sample, Wait
from podium.core.stage_pool import Replica, StagePool
from podium.core.state import CoreState
from podium.errors import ErrorKind, ErrorRecord, Scope

# Bound once: on Python 3.11 reading a member off its enum class costs as much as three calls.
_WAITING, _DISPATCHED, _RUNNING = JobState.WAITING, JobState.DISPATCHED, JobState.RUNNING
_READY, _DISPATCH, _START, _FINISH = JobTrigger.READY, JobTrigger.DISPATCH, JobTrigger.START, JobTrigger.FINISH
_NOTHING, _FOR_DISPATCH, _FOR_FIRST, _FOR_CHUNK = Wait.NOTHING, Wait.DISPATCH, Wait.FIRST_OUTPUT, Wait.CHUNK
_STREAMING, _COMPLETE = EdgeMode.STREAMING, EdgeMode.COMPLETE
_BY_ABORT, _EMPTY_IS_ERROR = FinishReason.ABORT, EmptyPolicy.ERROR


def activate(state: CoreState, request: Request) -> None:
    """Let an admitted request begin: jobs without sources are ready, and those that ask to be prewarmed."""
    request.advance(RequestTrigger.ADMIT)
    for job in request.jobs:
        if (job.missing == 0 or job.stage.prewarm) and job.state is _WAITING:
            _make_ready(state, job)


def serve_pool(state: CoreState, pool: StagePool) -> None:
    """Start as many queued jobs as there are credits."""
    while (pair := pool.next_pair()) is not None:
        _start(state, *pair)
    for job in pool.take_fresh():
        state.wait(job, Wait.QUEUE, job.stage.limits.queue_timeout_s)


def note_start(state: CoreState, job: Job) -> None:
    """A replica took up a job."""
    if job.state is _DISPATCHED:
        job.advance(_START)
        job.started_at = state.now
        _await_output(state, job)


def take_output(state: CoreState, job: Job, output: JobOutput) -> None:
    """Take a delivery of a job: put it in order, and pass on what is due."""
    if job.is_detached:
        _take_detached(state, job, output)
        return
    order = job.order
    payloads, finish = output.payloads, output.finish
    if order.is_plain and output.sequence == order.expected:
        order.expected += len(payloads)
    else:
        payloads, finish = _put_in_order(state, job, output)
    if job.state is _DISPATCHED:
        note_start(state, job)
    if finish is not None and finish.reason is _BY_ABORT and job.is_stopping:
        finish = None  # the engine ended it because of our stop, whose confirmation brings the partial output
    if payloads:
        job.last_output_at = state.now
        if job.first_output_at is None:
            job.first_output_at = state.now
    if not order.is_plain and order.early > job.stage.limits.max_buffered_chunks:
        fail_request(state, job.request, _overflow(job, "out of order"))
    elif finish is not None:
        _finish(state, job, payloads, finish)
    elif payloads:
        _pass_on(state, job, payloads, None)
        if job.wait is _FOR_FIRST:
            _await_output(state, job)


def _take_detached(state: CoreState, job: Job, output: JobOutput) -> None:
    """Nothing of a detached job is passed on. Its finish, in whatever order, says that the replica is done with it."""
    if output.payloads:
        state.drop(output.payloads)
    if output.finish is not None and output.finish.reason is not _BY_ABORT:
        leave_replica(state, job, _FINISH)


def _put_in_order(state: CoreState, job: Job, output: JobOutput) -> tuple[tuple[Payload, ...], Finish | None]:
    payloads, finish, repeated = job.order.accept(output)
    if repeated:
        state.drop(repeated)
    return payloads, finish


def append_input(state: CoreState, request: Request, payloads: tuple[Payload, ...], *, last: bool) -> None:
    """Continue the prompt of a request whose input is open."""
    for job in request.jobs:
        if PROMPT not in job.inputs or job.sample.is_aborting:
            continue
        if payloads and not _feed(state, job, PROMPT, _STREAMING, payloads):
            return
        if last:
            _end_source(state, job, PROMPT, _STREAMING, FinishReason.STOP, is_empty=False)
        if job.state is _RUNNING:
            _await_output(state, job)


def _make_ready(state: CoreState, job: Job) -> None:
    pool = state.pool_of(job)
    if not job.plan.is_certain and not pool.is_available:
        fail_request(state, job.request, unavailable(job.stage.name))
        return
    job.advance(_READY)
    job.queued_at = state.now
    pool.enqueue(job)
    state.serve(pool)


def _start(state: CoreState, job: Job, replica: Replica) -> None:
    request, plan = job.request, job.plan
    key = job.new_key(state.next_attempt())
    replica.jobs[key] = job
    job.replica = replica
    job.advance(_DISPATCH)
    state.wait(job, _FOR_DISPATCH, job.stage.limits.dispatch_timeout_s)
    state.effects.append(
        StartJob(
            replica=replica.key,
            job=key,
            prompt=request.prompt if plan.leader < 0 else request.prompt_of(plan.role),
            params=request.params.get(job.stage.name),
            inputs=job.take_inputs(),
            input_open=job.open_sources > 0,
            priority=request.priority,
            deadline=request.deadline,
        )
    )
    for position in plan.followers:
        follower = request.jobs[position]
        if follower.is_parked:
            state.pool_of(job).follow(follower, replica)


def _await_output(state: CoreState, job: Job) -> None:
    """Set the wait of a running job. While its input is open the wait is its source's, or the client's, not its own."""
    limits = job.stage.limits
    if PROMPT in job.inputs and job.inputs[PROMPT].finish is None:
        state.wait(job, Wait.INPUT, limits.chunk_timeout_s)
    elif job.open_sources:
        state.end_wait(job)
    elif job.order.expected:
        state.wait(job, _FOR_CHUNK, limits.chunk_timeout_s)
    else:
        state.wait(job, _FOR_FIRST, limits.first_output_timeout_s)


def _pass_on(state: CoreState, job: Job, payloads: tuple[Payload, ...], finish: Finish | None) -> None:
    """Give output to the client, when the stage is final, and to every consumer; what is being aborted has none."""
    plan, sample = job.plan, job.sample
    if plan.is_final:
        emit_final(state, job, payloads, finish)
    if sample.is_aborting:
        if not plan.is_final:
            state.release(payloads)
        return
    if payloads and sample.open_finals:
        jobs = job.request.jobs
        for link in plan.links:
            if not _feed(state, jobs[link.consumer], link.source, link.mode, payloads):
                return


def _feed(state: CoreState, job: Job, source: str, mode: EdgeMode, payloads: tuple[Payload, ...]) -> bool:
    """Give a consumer more of a source, now or at its start; False when that ended the request."""
    if mode is _STREAMING and (job.state is _RUNNING or job.state is _DISPATCHED):
        sequence = job.inputs[source].note_sent(payloads)
        replica, key = job.place()
        state.effects.append(FeedJob(replica, key, source, sequence, payloads))
        return True
    if job.is_over or job.is_detached:
        if source not in job.plan.shared:
            state.release(payloads)
        return True
    buffer = job.inputs[source]
    is_first = not buffer.has_begun
    buffer.unsent.extend(payloads)
    if len(buffer.unsent) > job.stage.limits.max_buffered_chunks:
        fail_request(state, job.request, _overflow(job, f"from '{buffer.name}', before they could be used"))
        return False
    if is_first and mode is _STREAMING and source != PROMPT:
        _satisfy(state, job)
    return True


def _satisfy(state: CoreState, job: Job) -> None:
    job.missing -= 1
    if job.state is not _WAITING:
        return
    if job.missing == 0:
        _make_ready(state, job)
    elif job.plan.bundle and job.wait is _NOTHING and job.lacks_companions_only:
        state.wait(job, Wait.BUNDLE, job.stage.limits.bundle_timeout_s)


def _finish(state: CoreState, job: Job, payloads: tuple[Payload, ...], finish: Finish) -> None:
    request = job.request
    forwarding = FORWARDING[finish.reason]
    match forwarding:
        case Forwarding.FORWARD:
            leave_replica(state, job, _FINISH)
            _finish_usable(state, job, payloads, finish)
        case Forwarding.ABORT:
            _pass_on(state, job, payloads, None)
            leave_replica(state, job, JobTrigger.FAIL)
            if not request.is_over:
                abort_samples(state, request, (job.sample.index,))
        case Forwarding.FAIL:
            _pass_on(state, job, payloads, None)
            leave_replica(state, job, JobTrigger.FAIL)
            end_without(state, job, _ended_with_error(job))
        case _:
            assert_never(forwarding)


def _finish_usable(state: CoreState, job: Job, payloads: tuple[Payload, ...], finish: Finish) -> None:
    request = job.request
    sample = job.sample
    is_empty = job.order.expected == 0
    if is_empty and job.stage.on_empty is _EMPTY_IS_ERROR and not sample.is_aborting:
        fail_request(state, request, _finished_empty(job))
        return
    if job.stage.labels and finish.label not in job.stage.labels and job.plan.leader < 0 and not sample.is_aborting:
        state.release(payloads)
        fail_request(state, request, _finished_without_label(job, finish.label))
        return
    job.finish_reason = finish.reason
    job.finished_at = state.now
    _pass_on(state, job, payloads, finish)
    if request.is_over:
        return
    if sample.open_finals == 0:
        conclude(state, sample)
        return
    if sample.is_aborting:
        settle(state, sample)
        return
    jobs = request.jobs
    for link in job.plan.links:
        if link.when is None or link.when == finish.label:
            _end_source(state, jobs[link.consumer], link.source, link.mode, finish.reason, is_empty=is_empty)
        else:
            _leave_out(state, jobs[link.consumer], link.source)
    if sample.open_finals == 0:  # a consumer that got nothing was skipped, and had the last output
        conclude(state, sample)


def _end_source(
    state: CoreState, job: Job, source: str, mode: EdgeMode, reason: FinishReason, *, is_empty: bool
) -> None:
    """Tell a consumer that a source ended, however it ended."""
    if job.is_over or job.is_detached:
        return
    buffer = job.inputs[source]
    buffer.finish = reason
    job.open_sources -= 1
    if job.state is _WAITING:
        if is_empty:
            _skip(state, job)
        elif mode is _COMPLETE:
            _satisfy(state, job)
    elif job.replica is not None and job.key is not None:
        if buffer.unsent:
            sequence, payloads = buffer.take()
            state.effects.append(FeedJob(job.replica.key, job.key, source, sequence, payloads))
        state.effects.append(EndInput(job.replica.key, job.key, source, reason))
        if job.state is _RUNNING:
            _await_output(state, job)


def _skip(state: CoreState, job: Job) -> None:
    """Nothing usable comes for a job: it, and what it leads to, ends at once with an empty output."""
    _end_unstarted(state, job)
    for link in job.plan.links:
        consumer = job.request.jobs[link.consumer]
        _end_source(state, consumer, link.source, link.mode, FinishReason.STOP, is_empty=True)
    for position in job.plan.followers:
        follower = job.request.jobs[position]
        if follower.is_parked:
            state.pool_of(job).follow(follower, None)
            state.serve(state.pool_of(job))
    if job.plan.bundle:
        _dismiss_companions(state, job.sample)


def _leave_out(state: CoreState, job: Job, source: str) -> None:
    """The way from a source to a job is not taken: the job goes on with its other sources, if it has any.

    It has not started, because a source that can be left out is awaited to its end, and nothing behind it is prewarmed.
    """
    if job.is_over:
        return
    buffer = job.inputs[source]
    unsent = buffer.drop()
    if source not in job.plan.shared:
        state.release(unsent)
    buffer.finish = FinishReason.STOP
    job.open_sources -= 1
    if any(one.role == MAIN and (one.finish is None or one.has_begun) for one in job.inputs.values()):
        _satisfy(state, job)
    else:
        _pass_over(state, job)


def _pass_over(state: CoreState, job: Job) -> None:
    """No way leads to a job: it ends with an empty output, and so do its companions' jobs at the stage."""
    if job.state is _WAITING:
        _end_unstarted(state, job)
    else:
        leave_job(state, job)
    jobs = job.request.jobs
    for link in job.plan.links:
        _leave_out(state, jobs[link.consumer], link.source)
    for position in job.plan.followers:
        if jobs[position].is_before_replica:
            _pass_over(state, jobs[position])
    if job.plan.bundle:
        _dismiss_companions(state, job.sample)


def _end_unstarted(state: CoreState, job: Job) -> None:
    job.advance(JobTrigger.SKIP)
    state.end_wait(job)
    state.release(job.drop_inputs())
    if job.plan.is_final:
        emit_final(state, job, (), Finish(FinishReason.STOP))


def _dismiss_companions(state: CoreState, sample: Sample) -> None:
    """Stop what companions do for a stage that will not join them any more."""
    for job in reversed(sample.jobs):
        if job.plan.leader >= 0:
            consumers = [job.request.jobs[link.consumer] for link in job.plan.links]
            if all(consumer.is_over or consumer.is_detached for consumer in consumers):
                leave_job(state, job)


def _overflow(job: Job, which: str) -> ErrorRecord:
    limit = job.stage.limits.max_buffered_chunks
    return ErrorRecord(
        kind=ErrorKind.BUFFER_OVERFLOW,
        scope=Scope.REQUEST,
        stage=job.stage.name,
        message=f"stage '{job.stage.name}' got more than {limit} chunks {which} (limits.max_buffered_chunks)",
    )


def _ended_with_error(job: Job) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.STAGE_FAILED,
        scope=Scope.REQUEST,
        stage=job.stage.name,
        replica=_slot_of(job),
        message=f"stage '{job.stage.name}' ended the request with an error",
    )


def _finished_without_label(job: Job, label: str | None) -> ErrorRecord:
    said = "without a label" if label is None else f"with '{label}'"
    return ErrorRecord(
        kind=ErrorKind.STAGE_FAILED,
        scope=Scope.REQUEST,
        stage=job.stage.name,
        replica=_slot_of(job),
        message=f"stage '{job.stage.name}' finished {said}; it may finish with: {', '.join(job.stage.labels)} (labels)",
    )


def _slot_of(job: Job) -> int | None:
    return job.replica.key.slot if job.replica is not None else None


def _finished_empty(job: Job) -> ErrorRecord:
    return ErrorRecord(
        kind=ErrorKind.STAGE_FAILED,
        scope=Scope.REQUEST,
        stage=job.stage.name,
        replica=_slot_of(job),
        message=f"stage '{job.stage.name}' finished without any output (on_empty: error)",
    )
